"""No argument of the command ends in a traceback, takes seconds or gigabytes."""

from __future__ import annotations

import json

import guarded
import pytest

LONG, DIGITS = "x" * 5_000, "9" * 5_000
ODD = [
    *(["run", "{config}", "--seeds", seeds] for seeds in ("1-300000000", "1-", "-1", "²", "1,,2", DIGITS)),
    *(["run", "{config}", "--workers", cores] for cores in ("²", "-1", "1e3", "9" * 30, DIGITS, "", "1025")),
    *(["run", "{config}", "--rounds", rounds] for rounds in ("99999999999999999999", "-1", DIGITS, "²")),
    *(["show", "{run}", "--round", number] for number in ("99999999999999999999", "-99999999999999999999", "0")),
    *(
        ["tune", "{config}", "--set", f"tune.over={{training={{learning_rate={rates}}}}}"]
        for rates in ("[1e308]", "[1e-400]", "[nan]", "[]", "{low=1}", "[1", LONG)
    ),
    *([command, path] for command in ("run", "check", "tune", "show", "report", "new", "list")
      for path in (LONG, "\udcff", "{config}/x")),
    *([command, "/dev/zero"] for command in ("check", "new", "tune")),
    *(["check", "{config}", "--set", "data=mnist", "--data-dir", folder] for folder in (LONG, "/dev/null", "\udcff")),
    *(["check", "{config}", "--set", change] for change in ("=", "a", "rounds=" + "[" * 3_000, "rounds=" + DIGITS,
      "a." * 5_000 + "b=1", "methods.99999999999999999999.name=1", "seeds.0.0=1", f"name={LONG}", f"{LONG}=1",
      f"plugins=['{LONG}']", "plugins=['..x']", f"data_dir={LONG}")),
    *([*words, "{config}/x"] for words in (["run", "{config}", "--out"], ["new", "--out"])),
    *(["run", "{config}", option, LONG] for option in ("--preset", "--out")),
    *(["run", "{run}", *words] for words in (["--without", LONG], ["--without", "\udcff"])),
    *(["show", "{run}", *words] for words in (["--round", "1", "--method", LONG], ["--client", LONG],
      ["--client", "0", "--round", DIGITS])),
    ["report", "{run}", "--out", "{config}/x"],
    ["demo", "--out", "{config}/x"],
    *(["export", "{run}", *words] for words in (["--seed", "9" * 20], ["--method", LONG], ["--out", "{config}/x"])),
    *(["check", "{config}", "--server-data", path] for path in (LONG, "/dev/zero", "\udcff", "{config}")),
    *(["check", "{config}", "--set", change] for change in (f"initial_model={LONG}", "initial_model=/dev/zero",
      "initial_model=''", "rounds=-1", f"rounds={DIGITS}")),
    *(["diff", *folders] for folders in ([], ["{run}"], ["{run}", LONG], ["{run}", "\udcff"])),
]  # fmt: skip


@pytest.mark.fire
def test_odd_arguments() -> None:
    assert guarded.faults("attempts:arguments", [json.dumps(arguments) for arguments in ODD]) == {}

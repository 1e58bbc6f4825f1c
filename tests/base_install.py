"""Run by test_base_install.py with the packages that `pip install clientwise` brings, and no others.

Prints what happened as JSON: an error's text, or None, by the name of the attempt.
"""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any


class WithoutThese(MetaPathFinder):
    """Says of these packages that they are not installed."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = set(packages)

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if name.partition(".")[0] not in self._packages:
            return None  # the next finder looks for it
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, WithoutThese(json.loads(sys.argv[1])))

import clientwise as cw  # noqa: E402
from clientwise.cli import main  # noqa: E402

results: dict[str, str | None] = {}


def attempt(name: str, act: Callable[[], object]) -> None:
    """Keep the error, if any. One that is not clientwise's own is a traceback, and ends this."""
    try:
        act()
    except cw.ClientwiseError as error:
        results[name] = str(error)
    else:
        results[name] = None


def command(*words: str) -> str:
    """The output of the command; what it prints as an error is raised."""
    printed = io.StringIO()
    errors = io.StringIO()
    sys.argv = ["clientwise", *words]
    try:
        with redirect_stdout(printed), redirect_stderr(errors):
            main()
    except SystemExit as ended:
        if ended.code:
            raise cw.ClientwiseError(errors.getvalue().strip()) from None
    return printed.getvalue()


def in_the_base_install() -> Path:
    """What must work. Returns a finished run."""
    import numpy
    from torch import nn

    clients = {"size": [900, 100], "accuracy": [0.5, 0.9]}
    weights = cw.weigh(clients, score=cw.product({"accuracy": 2}))
    assert weights.round(3).tolist() == [0.735, 0.265]

    drawn = numpy.random.default_rng(1)
    inputs = drawn.normal(size=(200, 4)).astype("float32")
    targets = (inputs[:, 0] > 0).astype("int64")
    parts = [(inputs[i : i + 40], targets[i : i + 40]) for i in range(0, 200, 40)]
    *sites, held_out = parts
    data = cw.FederatedData.from_clients(sites, [held_out] * 4, weigh=held_out, report=held_out)
    config = {"name": "mine", "rounds": 2, "device": "cpu", "methods": ["FedAvg", "Recommended"]}
    folder = cw.run(config, "run", data=data, model=nn.Linear(4, 2), progress=False).folder
    run = cw.Run(folder)
    assert run.finished
    assert "FedAvg" in repr(run)
    shown = run._repr_html_()
    assert "<table" in shown
    assert "clientwise[report]" in shown

    Path("own").mkdir()
    numpy.save("own/inputs.npy", inputs)
    numpy.save("own/targets.npy", targets)
    own = write("own.toml", 'data = { name = "arrays", folder = "own" }')
    assert "ok:" in command("check", own)
    command("run", own, "--out", "from-file")
    assert "class_weights" in command("list")
    assert "FedAvg" in command("show", "run")
    assert "report.html" in command("report", "run")
    page = Path("run/report/report.html").read_text(encoding="utf-8")
    assert "pip install &#34;clientwise[report]&#34;" in page
    command("export", "run", "--method", "FedAvg")
    command("--help")
    return folder


def write(name: str, more: str) -> str:
    """The path of a small config with these lines."""
    lines = ['name = "small"', "rounds = 1", 'model = "linear"', 'methods = ["FedAvg"]', more]
    lines.append('partition = { name = "iid", clients = 2 }')
    Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return name


def with_extras(folder: Path) -> None:
    """What needs an extra, by the name of the extra and of the attempt."""
    run = cw.Run(folder)
    attempt("report figure", run.figure)
    attempt("report command", lambda: command("report", "run", "--figures", "pdf"))
    assert len(run.frame("rounds")) == 4  # two methods
    Path("rows.csv").write_text("a,y\n" + "1,x\n2,y\n" * 20, encoding="utf-8")
    csv = write("csv.toml", 'data = { name = "table", files = "rows.csv", target = "y" }\n')
    command("check", csv)
    Path("rows.parquet").write_bytes(b"PAR1")
    parquet = write("pq.toml", 'data = { name = "table", files = "rows.parquet", target = "y" }\n')
    attempt("parquet table", lambda: command("check", parquet))
    with zipfile.ZipFile("faces.zip", "w") as archive:
        archive.writestr("1.png", b"\x89PNG")
    from clientwise.data.folder import Archive

    attempt("images picture", lambda: Archive(Path("faces.zip")).image("1.png", 8))
    for extra, name in (("datasets", "digits"), ("datasets", "diabetes"), ("demo", "mnist5k")):
        attempt(f"{extra} {name}", lambda name=name: cw.parts.DATASETS.get(name)(None))
    digits = write("digits.toml", 'data = "digits"')
    attempt("datasets check", lambda: command("check", digits))
    attempt("demo command", lambda: command("demo"))
    attempt("flower import", lambda: import_module("clientwise.flower"))
    attempt("flower engine", lambda: command("run", digits, "--set", "engine=flower"))
    attempt("nvflare import", lambda: import_module("clientwise.nvflare"))
    attempt(
        "tensorboard tracker",
        lambda: command("run", "own.toml", "--set", 'trackers=["tensorboard"]'),
    )


with_extras(in_the_base_install())
print(json.dumps(results))

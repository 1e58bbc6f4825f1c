"""Commands that are killed, or find the disk full, leave the earlier files as they were."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

import pandas
import pytest

import clientwise as cw
import processes

if sys.platform == "win32":
    pytest.skip("Windows has no limit on the size of files", allow_module_level=True)

LIMIT = 3_000  # bytes: less than any of the files below
COMMANDS = {
    "predict": ("predict", "model.safetensors", "new.csv", "--out", "predicted.csv"),
    "report": ("report", "run", "--out", "report"),
    "export": ("export", "run", "--out", "models"),
}
# The function with which each command begins to write: from there on, files have the limit.
WRITERS = {
    "predict": ("pandas", "DataFrame.to_csv"),
    "report": ("clientwise.report.page", "write_page"),
    "export": ("clientwise.results", "write_model"),
}
# Beyond the limit, the kernel kills the process, or refuses to write, as `action` says.
LIMITED = """import resource, signal
import {module} as module
inner = module.{name}
def limited(*given, **named):
    signal.signal(signal.SIGXFSZ, signal.{action})
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit},) * 2)
    return inner(*given, **named)
module.{name} = limited
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table, new rows, and what every command wrote about it."""
    folder = tmp_path_factory.mktemp("whole")
    rows = pandas.DataFrame({"a": range(400), "b": 1.5, "y": [0, 1] * 200, "site": [1, 2] * 200})
    rows.to_csv(folder / "table.csv", index=False)
    pandas.concat([rows] * 300).to_csv(folder / "new.csv", index=False)
    config = folder / "config.toml"
    config.write_text(
        f"""name = "whole"
rounds = 6
data_dir = "{folder}"
partition = "by_id"
model = {{ name = "mlp", hidden = [640] }}
methods = ["FedAvg"]
[data]
name = "table"
files = "table.csv"
target = "y"
client = "site"
"""
    )
    run = cw.Run(cw.run(config, folder / "run", progress=False))
    run.export("FedAvg", 1, folder).rename(folder / "model.safetensors")
    for command in COMMANDS.values():
        done = processes.run(processes.COMMAND, *command, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "place"))


def run_limited(name: str, action: str, place: Path) -> CompletedProcess[str]:
    module, function = WRITERS[name]
    program = LIMITED.format(module=module, name=function, action=action, limit=LIMIT)
    return processes.run(program + processes.COMMAND, *COMMANDS[name], cwd=place)


def content(folder: Path) -> Mapping[str, bytes]:
    """All files but SQLite's own."""
    files = [path for path in folder.rglob("*") if path.is_file() and "sqlite-" not in path.name]
    return {str(path.relative_to(folder)): in_order(path) for path in files}


def in_order(path: Path) -> bytes:
    """The content of a file; the header of safetensors has its keys in a random order."""
    found = path.read_bytes()
    if path.suffix != ".safetensors":
        return found
    end = 8 + int.from_bytes(found[:8], "little")
    return json.dumps(json.loads(found[8:end]), sort_keys=True).encode() + found[end:]


def without(content: Mapping[str, bytes], ending: str) -> dict[str, bytes]:
    return {name: found for name, found in content.items() if not name.endswith(ending)}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_leaves_the_earlier_files(name: str, place: Path) -> None:
    before = content(place)
    done = run_limited(name, "SIG_DFL", place)
    assert done.returncode == -signal.SIGXFSZ
    after = content(place)
    assert without(after, ".part") == before
    assert len(after) == len(before) + 1, "it was not killed while it wrote"


@pytest.mark.parametrize("name", COMMANDS)
def test_on_a_full_disk_the_earlier_files_stay_and_nothing_is_left(name: str, place: Path) -> None:
    before = content(place)
    done = run_limited(name, "SIG_IGN", place)
    assert done.returncode == 2
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert error.endswith(": File too large")
    assert "Traceback" not in done.stderr
    assert content(place) == before

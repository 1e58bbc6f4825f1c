"""What keeps a run from going on is a line that says what to do, and nothing is lost by it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import clientwise as cw
import processes
from clientwise.errors import RunError
from clientwise.experiment.running import origin
from clientwise.experiment.running.origin import versions
from clientwise.experiment.trackers import Progress

LANE = "checkpoints/lane-1.safetensors"


@pytest.fixture
def config(tiny: dict[str, Any]) -> dict[str, Any]:
    return tiny | {
        "rounds": 6,
        "checkpoint_seconds": 0.0,
        "methods": [{"name": "adaptive", "server_step": "adam"}],
    }


@pytest.fixture
def stopped(config: dict[str, Any], tmp_path: Path) -> Path:
    """A run of which half of the rounds are done."""
    return stop_halfway(config, tmp_path / "stopped")


def stop_halfway(config: dict[str, Any], folder: Path) -> Path:
    def stop(_: cw.Run, progress: Progress) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cw.run(config, folder, on_round=stop)
    return folder


def left(folder: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The model and the rest of the checkpoint, and what was recorded, without the times."""
    tensors = {name: tensor.numpy().tobytes() for name, tensor in load_file(folder / LANE).items()}
    rounds = cw.Run(folder).frame("rounds")
    return tensors, rounds[["round", "metric", "loss"]].to_dict("list")


def rewrite(
    path: Path, change: Callable[[dict[str, torch.Tensor], dict[str, str]], object]
) -> None:
    with safe_open(path, framework="pt") as file:
        about, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(tensors, about)
    save_file(tensors, path, about)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda tensors, about: tensors["model"][7:].fill_(torch.nan), "its model has NaN or Inf"),
        (
            lambda tensors, about: tensors["server_step/first"].zero_(),
            "it is not as it was written",
        ),
        (lambda tensors, about: tensors.pop("server_step/first"), "it is not as it was written"),
        (
            lambda tensors, about: about.update(state=about["state"].replace("3", "2", 1)),
            "it is not as it was written",
        ),
        (
            lambda tensors, about: about.update(state=about["state"].replace("3", str(10**30))),
            "not a checkpoint",
        ),
    ],
)
def test_a_checkpoint_that_was_changed(
    config: dict[str, Any], stopped: Path, change: Callable[..., object], reason: str
) -> None:
    rewrite(stopped / LANE, change)
    changed = (stopped / LANE).read_bytes()
    with pytest.raises(
        RunError, match=rf"lane-1\.safetensors: .*{reason}.*; delete it to start this lane again"
    ):
        cw.run(config, stopped, resume=True)
    assert (stopped / LANE).read_bytes() == changed


PLUGIN = """
from dataclasses import replace
import clientwise as cw
from clientwise.experiment.trackers import Progress

@cw.parts.DATASETS.register("scaled_digits")
def scaled_digits(data_dir):
    'Digits, made larger.'
    samples = cw.parts.DATASETS.get("digits")(data_dir)
    return replace(samples, inputs=samples.inputs * FACTOR)
"""


def write_plugin(folder: Path, factor: int) -> None:
    (folder / "scaled.py").write_text(PLUGIN.replace("FACTOR", str(factor)))
    sys.modules.pop("scaled", None)
    importlib.invalidate_caches()


def test_a_run_does_not_go_on_with_other_data_plugins_or_versions(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = config | {"data": "scaled_digits", "plugins": ["scaled"], "plugin_dir": str(tmp_path)}
    write_plugin(tmp_path, 1)
    stopped = stop_halfway(own, tmp_path / "stopped")
    before = left(stopped)

    write_plugin(tmp_path, 50)
    refused = (
        r"the run began with something else: other data \(seed 1\); "
        r"other code in the plugin scaled\. .*--accept"
    )
    with pytest.raises(RunError, match=refused):
        cw.run(own, stopped, resume=True)
    assert left(stopped) == before
    monkeypatch.setattr(origin, "versions", lambda: versions() | {"torch": "1.0"})
    with pytest.raises(RunError, match=r"scaled; torch 1\.0, not 2"):
        cw.run(own, stopped, resume=True)

    cw.run(own, stopped, resume=True, accept_changes=True)
    (change,) = cw.Run(stopped).facts.changes
    assert change.rounds == 3
    assert change.what[:2] == [
        "other data (seed 1)",
        "other code in the plugin scaled",
    ]
    cw.run(own, stopped, resume=True)  # what was accepted need not be accepted again
    assert len(cw.Run(stopped).facts.changes) == 1
    write_plugin(tmp_path, 1)
    alike = cw.Run(cw.run(own, tmp_path / "as it began"))
    first, second = (
        cw.Run(stopped).facts.data[1].split(" then ")
    )  # half of it is on other data: nothing is paired with it
    assert first == alike.facts.data[1] != second


@pytest.mark.bits
def test_the_same_data_code_and_versions_go_on(config: dict[str, Any], tmp_path: Path) -> None:
    own = config | {"data": "scaled_digits", "plugins": ["scaled"], "plugin_dir": str(tmp_path)}
    write_plugin(tmp_path, 1)
    stopped = stop_halfway(own, tmp_path / "stopped")
    write_plugin(tmp_path, 1)  # read again from disk
    assert left(cw.run(own, stopped, resume=True).folder) == left(
        cw.run(own, tmp_path / "whole").folder
    )
    assert cw.Run(stopped).facts.changes == []


@pytest.mark.parametrize("size", [0, 100, 4096, 20_000])
def test_a_database_that_was_cut_off(config: dict[str, Any], stopped: Path, size: int) -> None:
    path = stopped / "run.sqlite"
    path.write_bytes(path.read_bytes()[:size])
    before = (stopped / LANE).read_bytes()
    with pytest.raises(
        RunError,
        match=r"its database (cannot be read \(.*\)|has 0 of the 3 rounds .*); choose another",
    ):
        cw.run(config, stopped, resume=True)
    assert (stopped / LANE).read_bytes() == before


FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop()),) * 2)
from clientwise.cli import main
main()
"""
WITHOUT_POWER = """
import ctypes, struct
nothing = struct.pack("6I", *[0] * 6)  # no capability: folders are read-only for root as well
assert ctypes.CDLL(None).capset(struct.pack("Ii", 0x20080522, 0), nothing) == 0
"""
POWERLESS = f"{WITHOUT_POWER}from clientwise.cli import main\nmain()\n"
READS_POWERLESS = f"""{WITHOUT_POWER}
import sys
import clientwise as cw
from clientwise.experiment.trackers import Progress
assert len(cw.Run(sys.argv[1]).frame("weights"))
"""


@pytest.mark.fire
@pytest.mark.parametrize("more", [-100, 30_000])
def test_a_disk_that_is_full(
    config: dict[str, Any], stopped: Path, tmp_path: Path, more: int
) -> None:
    """No file can grow over a size that is reached at once, or after a while."""
    size = max((stopped / name).stat().st_size for name in ("run.sqlite", LANE))
    done = processes.run(FULL, "run", stopped, "--resume", "--set", "rounds=6", size + more)
    assert done.returncode == 2 or more > 0
    if done.returncode:
        assert done.stderr.splitlines()[-1].startswith(f"error: {stopped}"), done.stderr
    assert left(cw.run(config, stopped, resume=True).folder) == left(
        cw.run(config, tmp_path / "whole").folder
    )


def test_a_folder_that_is_read_only(config: dict[str, Any], stopped: Path, tmp_path: Path) -> None:
    try:
        for path in (stopped, stopped / "checkpoints", *stopped.rglob("*.s*"), stopped / ".lock"):
            path.chmod(0o555)
        done = processes.run(POWERLESS, "run", stopped, "--resume")
        assert done.returncode == 2, done.stderr
        assert "cannot be written to: Permission denied" in done.stderr
        shown = processes.run(READS_POWERLESS, stopped)  # looking is allowed
        assert (shown.returncode, shown.stderr) == (0, "")
    finally:
        for path in (stopped, *stopped.rglob("*"), stopped / ".lock"):
            path.chmod(0o755)
    assert left(cw.run(config, stopped, resume=True).folder) == left(
        cw.run(config, tmp_path / "whole").folder
    )

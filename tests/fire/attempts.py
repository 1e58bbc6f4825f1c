"""What is tried with hostile input: everything but the command's own way to refuse is raised."""

from __future__ import annotations

import functools
import io
import json
import os
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import damaged
import typer.main
from small_files import SMALL

from clientwise import Run, cli
from clientwise.data.datasets import DATASETS, DataError
from clientwise.data.folder import read_npz
from clientwise.data.partition import iid
from clientwise.errors import RunError
from clientwise.experiment.load import load_experiment
from clientwise.experiment.running.runner import run as run_experiment
from dividing import federate

LONGEST = 2_000  # characters of a message that is still a line

TINY = """
name = "tiny"
rounds = 1
device = "cpu"
data = "digits"
model = "linear"
partition = { name = "iid", clients = 6 }
methods = [{ name = "FedAvg" }]
"""
OPTIONS = {
    **{
        "celeba": {"size": 16},
        "malaria": {"size": 16},
        "vgg_cells": {"size": 16},
        "movie_reviews": {"length": 8},
    },
    "table": {"files": "own/*", "target": "ill", "categories": ["sex"]},
}


def prepare() -> None:
    """Small published files, and what every case would build again; only for a process of its own."""
    for module, constants in SMALL.items():
        for name, value in constants.items():
            setattr(module, name, value)
    for name in ("digits", "mnist5k", "diabetes"):
        DATASETS._parts[name] = functools.cache(DATASETS.get(name))
        DATASETS.get(name)(None)
    cli.app = typer.main.get_command(cli.app)


def command(*arguments: str) -> tuple[int, str, str]:
    """What the command ends with, says and complains of; whatever it raises goes on."""
    said, complaint = io.StringIO(), io.StringIO()
    sys.argv = ["clientwise", *arguments]
    with redirect_stdout(said), redirect_stderr(complaint):
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    return code, said.getvalue(), complaint.getvalue()


def check(path: str) -> None:
    """A config file."""
    _checked(path)


def _checked(*arguments: str) -> bool:
    """Whether `clientwise check` finds nothing wrong; what it says, it says in lines a person can read."""
    code, said, complaint = command("check", *arguments)
    assert code in (0, 2), code
    assert complaint if code else said.splitlines()[-1].startswith("ok: "), "nothing was said"
    for line in complaint.splitlines():
        assert line.startswith("error: "), line[:LONGEST]
        assert len(line) < LONGEST, f"{len(line)} characters: {line[:200]}"
        assert "alloc" not in line, line
    return code == 0


def load(case: str) -> None:
    """Load a dataset of which one file is damaged: samples come, or an error that names the file and what to do."""
    kind, how = case.split()
    complaint = ""
    with tempfile.TemporaryDirectory() as place:
        os.environ["CLIENTWISE_CACHE"] = f"{place}/cache"
        damaged.write_damaged(kind, how, Path(place))
        try:
            _load(damaged.WHOLE[kind][0], Path(place))
        except DataError as error:
            complaint = str(error)
    if complaint:
        assert place in complaint, complaint
        assert ";" in complaint, complaint
        assert len(complaint) < LONGEST, complaint


def _load(dataset: str, folder: Path) -> None:
    if dataset == "npz":
        read_npz(folder / "own.npz")
    else:
        samples = DATASETS.get(dataset)(folder, **OPTIONS.get(dataset, {}))
        options = {"test_fraction": 0.0, "server_fraction": 0.0, "report_fraction": 0.0}
        data = federate(samples, functools.partial(iid, clients=2), 1, **options)
        assert data.samples.batch(data.train.indices).isfinite().all()


def run(case: str) -> None:
    """What `check` lets pass runs: a round of a small experiment with some of its keys changed."""
    changes = json.loads(case)
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        Path("tiny.toml").write_text(TINY)
        if _checked("tiny.toml", *(part for change in changes for part in ("--set", change))):
            try:
                assert Run(run_experiment(load_experiment("tiny.toml", changes))).finished
            except RunError as error:
                if "nothing was learned" not in str(
                    error
                ):  # with such a rate every update is refused
                    raise


@functools.cache
def _finished() -> dict[str, str]:
    """A config, and the folder of its run."""
    folder = Path(tempfile.mkdtemp())
    (folder / "tiny.toml").write_text(TINY)
    assert command("run", str(folder / "tiny.toml"), "--out", str(folder / "run"))[0] == 0
    return {"{config}": str(folder / "tiny.toml"), "{run}": str(folder / "run")}


def arguments(case: str) -> None:
    """The command with odd arguments: it does what it is asked, or says what is wrong with them."""
    given = json.loads(case)
    for name, path in _finished().items():
        given = [argument.replace(name, path) for argument in given]
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        code, _, complaint = command(*given)
    assert code in (0, 2), (code, complaint)
    assert code == 0 or complaint, "nothing was said"
    assert "Traceback" not in complaint, complaint

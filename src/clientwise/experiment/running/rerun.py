"""A finished run once more, with one thing changed: without a client, with equal weights, under another policy.

Data, seeds, cohorts, batches and the initial models stay the same, so that both runs are paired.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...errors import RunError
from ...record.run import RunFolder
from ...registry import suggest
from ..config.schema import Experiment
from ..config_file import read_source
from ..load import load_experiment, make_experiment
from .resume import config_so_far


def without_client(folder: Path, client: str) -> Experiment:
    """The experiment of a run, never asking one client."""
    table = _config_of(folder, f"without {client}")
    number = _number_of(RunFolder(folder), table["seeds"], client)
    table["federation"]["without"] = sorted({*table["federation"]["without"], number})
    return load_experiment(table)


def with_equal_weights(folder: Path) -> Experiment:
    """The experiment of a run, with equal weights within the same bounds."""
    table = _config_of(folder, "equal weights")
    for method in _weighing(table):
        for key in ("score", "normalise", "evidence", "adjust"):
            method.pop(key, None)
        method["criteria"] = ["uniform"]
    return load_experiment(table)


def with_policy(folder: Path, file: Path) -> Experiment:
    """The experiment of a run, with the bounds of a TOML file: the keys of [methods.bounds]."""
    table = _config_of(folder, f"policy {file.stem}")
    bounds = {key: value for key, value in read_source(file).table.items() if key != "name"}
    for method in _weighing(table):
        method["bounds"] = bounds
    return make_experiment(str(file), table)


def _weighing(table: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The methods; controls weigh nobody and stay as they are."""
    return (method for method in table["methods"] if "control" not in method)


def _config_of(folder: Path, what: str) -> dict[str, Any]:
    """The config of a run, with another name; RunError where it cannot be run again here."""
    before = config_so_far(folder)
    if before is None:
        raise RunError(f"{folder}: there is no run here")
    if before.data is None:
        raise RunError(
            f"{folder}: its samples are not here (a deployment, or arrays passed to `cw.run`). Start "
            "a run of its own with federation.without, another criterion or other bounds"
        )
    for method in before.methods:
        if method.privacy:
            raise RunError(
                f"{folder}: {method.name} uses differential privacy. The difference of two runs would "
                "tell about single clients, and no noise covers it"
            )
    return {**before.to_dict(), "name": f"{before.name}, {what}"}


def _number_of(run: RunFolder, seeds: Sequence[int], client: str) -> int:
    """The number that a client has under all seeds."""
    found = set()
    clients = run.frame("clients")
    for seed in seeds:
        own = clients[clients["seed"] == seed]
        called = own["name"].where(own["name"].notna(), own["client"].astype(str))
        numbers = own.loc[
            (called == client) | (own["client"].astype(str) == client), "client"
        ].tolist()
        if not numbers:
            names = called.tolist()
            raise RunError(f"{run.folder}: no client is called {client!r}{suggest(client, names)}")
        found.add(numbers[0])
    if len(found) > 1:
        raise RunError(f"{run.folder}: {client!r} is another client number in every seed")
    return int(found.pop())

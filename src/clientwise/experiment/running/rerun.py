"""A finished run once more, with one thing changed: without a client, with equal weights, under another policy.

Data, seeds, cohorts, batches and the initial models stay the same, so that both runs are paired.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...errors import ConfigError, RunError
from ...record.reading.folder import RunFolder
from ...record.toml_text import parse_toml
from ...registry import Part, suggest
from ..config.messages import issues_of
from ..config.methods import BOUNDS, MethodSettings
from ..config.schema import Experiment
from ..load import load_experiment
from .resume import config_so_far


def without_client(folder: Path, client: str) -> Experiment:
    """The experiment of a run, never asking one client."""
    before = _of_run(folder)
    number = _number_of(RunFolder(folder), before, client)
    left_out = sorted({*before.federation.without, number})
    cohorts = before.federation.model_copy(update={"without": left_out})
    return _with(before, f"without {client}", federation=cohorts)


def with_equal_weights(folder: Path) -> Experiment:
    """The experiment of a run, with equal weights within the same bounds."""
    before = _of_run(folder)
    plain = MethodSettings(name="equal weights")
    changes = {key: getattr(plain, key) for key in ("score", "normalise", "evidence", "adjust")}
    changes["criteria"] = [Part("uniform", {})]
    return _with(before, "equal weights", methods=_changed(before, changes))


def with_policy(folder: Path, file: Path) -> Experiment:
    """The experiment of a run, with the bounds of a TOML file: the keys of [methods.bounds]."""
    before = _of_run(folder)
    try:
        table = parse_toml(file.read_text(encoding="utf-8"))
        bounds = BOUNDS.read(table)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(file), [("", str(error))]) from None
    except ValidationError as error:
        raise ConfigError(str(file), issues_of(error, BOUNDS.table)) from None
    return _with(before, f"policy {file.stem}", methods=_changed(before, {"bounds": bounds}))


def _of_run(folder: Path) -> Experiment:
    """The experiment of a run; RunError where it cannot be run again here."""
    before = config_so_far(folder)
    if before is None:
        raise RunError(f"{folder}: there is no run here")
    if before.data is None:
        raise RunError(
            f"{folder}: its samples are not here (a deployment, or arrays passed to `cw.run`). Start "
            "a run of its own with federation.without, another criterion or other bounds"
        )
    for method in before.methods:
        if method.privacy or method.secure_aggregation:
            kind = "differential privacy" if method.privacy else "secure aggregation"
            raise RunError(
                f"{folder}: {method.name} uses {kind}. The difference of two runs would tell about "
                "single clients, and neither noise nor masks cover it"
            )
    return before


def _number_of(run: RunFolder, experiment: Experiment, client: str) -> int:
    """The number that a client has under all seeds."""
    found = set()
    for seed in experiment.seeds:
        rows = run.clients(seed)
        numbers = [row.client for row in rows if client in (row.name, str(row.client))]
        if not numbers:
            names = [row.name or str(row.client) for row in rows]
            raise RunError(f"{run.folder}: no client is called {client!r}{suggest(client, names)}")
        found.add(numbers[0])
    if len(found) > 1:
        raise RunError(f"{run.folder}: {client!r} is another client number in every seed")
    return found.pop()


def _changed(before: Experiment, changes: dict[str, Any]) -> list[MethodSettings]:
    """The methods with other keys; controls weigh nobody and stay."""
    return [
        method if method.control else method.model_copy(update=changes) for method in before.methods
    ]


def _with(before: Experiment, what: str, **changes: Any) -> Experiment:
    changed = before.model_copy(update={"name": f"{before.name}, {what}", **changes})
    return load_experiment(changed.to_dict())

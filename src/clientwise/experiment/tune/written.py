"""What `clientwise tune` found, in words and as TOML: only what differs from the given config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import tomli_w

from ...errors import ConfigError
from ..config.methods import MethodSettings
from ..config.named import name_of
from ..config.schema import Experiment
from ..config_file import given_methods, read_config, set_value
from ..load import load_experiment, load_method
from .search import KeyPath, dotted
from .tune import Trial, Tuning


def changed_values(experiment: Experiment, best: Mapping[str, Trial]) -> Iterator[str]:
    """One line for each method: the values that differ from the given experiment's."""
    for method in experiment.methods:
        changes = []
        for path, value in best[method.name].values.items():
            before = _value_at(experiment, method, path)
            if before != value:
                was = "" if before is None else f" (was {before})"
                changes.append(f"{dotted(path)} = {value}{was}")
        yield f"{method.name}: {', '.join(changes) or 'no value changed'}"


def _value_at(experiment: Experiment, method: MethodSettings, path: KeyPath) -> Any:
    """The value of a method's key before the search; None where it has none."""
    for table in (method.to_dict(), experiment.to_dict()):  # [training] is of all methods
        here: Any = table
        for step in path:
            here = here.get(step) if isinstance(here, Mapping) else None
        if here is not None:
            return here
    return None


def tuned_toml(
    found: Tuning,
    source: Any,
    overrides: Sequence[str] = (),
    replaced: Mapping[str, Any] | None = None,
    preset: str | None = None,
) -> str:
    """The given config with the values that were found; other keys are not written out.

    Where that is another experiment (the file was edited meanwhile), all keys are written.

    Args:
        found: the result of the search.
        source: the config, with the changes of `load_tuning`.
        overrides: see `load_tuning`.
        replaced: see `load_tuning`.
        preset: see `load_tuning`.
    """
    try:
        _, table = read_config(source, overrides, replaced, preset)
        given = {name_of(method): method for method in given_methods(source)}
        written = {name_of(method): method for method in table.get("methods", [])}
        table["methods"] = [_short(one, given, written, found) for one in found.experiment.methods]
        table.pop("tune", None)
        loaded = load_experiment(table)
        if loaded.to_dict() == found.experiment.to_dict():
            return tomli_w.dumps(table)
    except ConfigError:
        pass
    return found.experiment.to_toml()


def _short(
    tuned: MethodSettings, given: Mapping[str, Any], written: Mapping[str, Any], found: Tuning
) -> dict[str, Any]:
    """The shortest table of a tuned method: as the config has it, by its name, or written out."""
    name = tuned.name
    assert tuned.tuned is not None
    for base in (given.get(name), {"name": name}, written.get(name)):
        table: Any = {"name": base} if isinstance(base, str) else deepcopy(base)
        if not isinstance(table, dict):
            continue
        try:
            for path, value in found.best[name].values.items():
                set_value(table, path, value, name)
            table["tuned"] = tuned.tuned.to_dict()
            as_read = load_method(table, name).spanning(found.experiment.rounds)
            if as_read.to_dict() == tuned.to_dict():
                return table
        except ConfigError:
            continue
    return tuned.to_dict()

"""Read an experiment, validated before anything runs: every error at once, with the key and what to do."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..errors import ConfigError
from ..runs.recorded import DEEPEST, INTEGERS, MOST_BYTES, parse_toml
from .messages import dotted, issues_of
from .named import pick, write_out
from .presets import apply_preset
from .schema import (
    MOST_PLUGINS,
    Cohorts,
    DeviceSettings,
    EvaluationSettings,
    Experiment,
    FineTune,
    FlowerSettings,
    HostileClients,
    MethodSettings,
    PaceSettings,
    ServerSet,
    Training,
    TrainingOverride,
)
from .validation import config_issues


def load_experiment(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    replaced: Mapping[str, Any] | None = None,
    preset: str | None = None,
) -> Experiment:
    """Read and validate a TOML file, or a dictionary of the same shape.

    `preset` is one of its presets; `overrides` are texts `key=value` as in `--set`; `replaced` are values for keys of
    the top level. Later ones win.
    """
    return make_experiment(*read_config(source, overrides, replaced, preset))


def read_config(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    replaced: Mapping[str, Any] | None = None,
    preset: str | None = None,
) -> tuple[str, dict[str, Any]]:
    """What to call the source in messages, and what it says after all changes; its paths start from the root."""
    where, folder, table = _read(source)
    methods = table.get("methods")
    table = apply_preset(table, preset, where)
    if "methods" in table and overrides:  # so that they can be changed in their parts
        table["methods"] = methods = write_out(pick(methods, table["methods"], where), where)
    for override in overrides:
        _override(table, override)
    table = _copy({**table, **(replaced or {})}, where)
    if "methods" in table:
        table["methods"] = write_out(pick(methods, table["methods"], where), where)
    flower, devices = table.get("flower"), table.get("devices")
    paths = ((table, "data_dir"), (table, "initial_model"), (flower, "files"), (flower, "loader"), (devices, "traces"))
    for place, key in paths:
        if isinstance(place, dict) and isinstance(place.get(key), str):
            place[key] = str(folder / place[key])
    if table.get("plugins"):
        # Written into the resolved config, so that a run can be resumed from its own folder.
        table.setdefault("plugin_dir", str(folder))
    return where, table


def make_experiment(where: str, table: Mapping[str, Any]) -> Experiment:
    """The experiment a config describes, validated."""
    if "matrix" in table:
        raise ConfigError(where, [("matrix", "is more than one experiment: `clientwise run` runs all of them")])
    issues = _load_plugins(table["plugins"], str(table["plugin_dir"])) if table.get("plugins") else []
    try:
        experiment = Experiment.model_validate(table)
        if "methods" not in table:
            experiment = experiment.with_method(write_out([experiment.recommended], where)[0])
    except ValidationError as error:
        raise ConfigError(where, issues + issues_of(error, _KNOWN_KEYS)) from None
    issues += config_issues(experiment)
    if issues:
        raise ConfigError(where, issues)
    experiment._source = where
    return experiment


def presets_of(source: str | Path) -> list[str]:
    """The names of a config's presets."""
    return list(_read(source)[2].get("presets", {}))


def _read(source: str | Path | Mapping[str, Any]) -> tuple[str, Path, dict[str, Any]]:
    """What to call the source in messages, the folder its relative paths start from, and what it says."""
    if isinstance(source, Mapping):
        return "config", Path.cwd(), _copy(source, "config")
    where = str(source)
    try:
        with Path(source).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ConfigError(where, [("", f"is larger than {MOST_BYTES:,} bytes: not a config")])
        return where, Path(source).resolve().parent, _copy(parse_toml(content.decode()), where)
    except FileNotFoundError:
        raise ConfigError(where, [("", "no such file; `clientwise demo` runs without one")]) from None
    except IsADirectoryError:
        raise ConfigError(where, [("", "is a folder, not a TOML file")]) from None
    except OSError as error:
        raise ConfigError(where, [("", f"cannot be read: {error.strerror}")]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(where, [("", f"not valid TOML: {error}")]) from None


def _copy(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A copy, so that overrides do not reach the caller's config; what no config can mean is refused."""

    def copied(value: Any, path: tuple[Any, ...]) -> Any:
        if len(path) > DEEPEST:
            raise ConfigError(where, [(str(path[0]), f"is nested more than {DEEPEST} deep")])
        if isinstance(value, Mapping):
            return {key: copied(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [copied(item, (*path, place)) for place, item in enumerate(value)]
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ConfigError(where, [(dotted(path), f"is too large; {INTEGERS}")])
        return value

    return {key: copied(value, (key,)) for key, value in table.items()}


def _load_plugins(names: Any, folder: str) -> list[tuple[str, str]]:
    issues = []
    if folder not in sys.path:
        sys.path.append(folder)  # last: a file beside a config must not stand in for an installed package
    wanted = names if isinstance(names, list) and len(names) <= MOST_PLUGINS else []  # the others are refused below
    for index, name in enumerate(wanted):
        key = f"plugins[{index}]"
        try:
            importlib.import_module(str(name))
        except ModuleNotFoundError as error:
            issues.append((key, f"cannot import {name!r}: {error}; put {name}.py beside the config or install it"))
        except (Exception, SystemExit) as error:  # whatever a user's module raises when imported is theirs to know
            issues.append((key, f"importing {name!r} failed: {type(error).__name__}: {error}"))
    return issues


def _override(table: dict[str, Any], text: str) -> None:
    """Apply `training.learning_rate=0.05` or `methods.0.adjust="best_order"` to a table."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text}", [("", "write key=value, for instance training.learning_rate=0.05")])
    try:
        parsed = parse_toml(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()  # a bare word is a string: device=cpu
    *path, last = key.strip().split(".")
    here: Any = table
    try:
        for step in path:
            here = here[int(step)] if isinstance(here, list) else here.setdefault(step, {})
        here[int(last) if isinstance(here, list) else last] = parsed
    except (ValueError, IndexError, TypeError, AttributeError):
        raise ConfigError(f"--set {text}", [("", f"there is no place {key.strip()!r} in this config")]) from None


_KNOWN_KEYS: dict[tuple[str, ...], list[str]] = {
    (): list(Experiment.model_fields),
    ("training",): list(Training.model_fields),
    ("federation",): list(Cohorts.model_fields),
    ("server_set",): list(ServerSet.model_fields),
    ("evaluation",): list(EvaluationSettings.model_fields),
    ("flower",): list(FlowerSettings.model_fields),
    ("devices",): list(DeviceSettings.model_fields),
    ("hostile",): list(HostileClients.model_fields),
    ("methods",): [*MethodSettings.model_fields, "like"],
    ("methods", "training"): list(TrainingOverride.model_fields),
    ("methods", "fine_tune"): list(FineTune.model_fields),
    ("methods", "pace"): list(PaceSettings.model_fields),
}

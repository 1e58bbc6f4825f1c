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
from .messages import issues_of
from .presets import apply_preset
from .schema import (
    Cohorts,
    EvaluationSettings,
    Experiment,
    FlowerSettings,
    HostileClients,
    MethodSettings,
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
    where, folder, table = _read(source)
    table = apply_preset(table, preset, where)
    for override in overrides:
        _override(table, override)
    table |= replaced or {}
    if isinstance(table.get("data_dir"), str):
        table["data_dir"] = str(folder / table["data_dir"])
    issues = []
    if table.get("plugins"):
        # Written into the resolved config, so that a run can be resumed from its own folder.
        table.setdefault("plugin_dir", str(folder))
        issues = _load_plugins(table["plugins"], str(table["plugin_dir"]))
    try:
        experiment = Experiment.model_validate(table)
    except ValidationError as error:
        raise ConfigError(where, issues + issues_of(error, _KNOWN_KEYS)) from None
    issues += config_issues(experiment)
    if issues:
        raise ConfigError(where, issues)
    experiment._source = where
    return experiment


def _read(source: str | Path | Mapping[str, Any]) -> tuple[str, Path, dict[str, Any]]:
    """What to call the source in messages, the folder its relative paths start from, and what it says."""
    if isinstance(source, Mapping):
        return "config", Path.cwd(), _copy(source)
    where = str(source)
    try:
        return where, Path(source).resolve().parent, tomllib.loads(Path(source).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(where, [("", "no such file; `clientwise demo` runs without one")]) from None
    except IsADirectoryError:
        raise ConfigError(where, [("", "is a folder, not a TOML file")]) from None
    except OSError as error:
        raise ConfigError(where, [("", f"cannot be read: {error.strerror}")]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(where, [("", f"not valid TOML: {error}")]) from None


def _load_plugins(names: Any, folder: str) -> list[tuple[str, str]]:
    issues = []
    if folder not in sys.path:
        sys.path.append(folder)  # last: a file beside a config must not stand in for an installed package
    for index, name in enumerate(names if isinstance(names, list) else []):
        key = f"plugins[{index}]"
        try:
            importlib.import_module(str(name))
        except ModuleNotFoundError as error:
            issues.append((key, f"cannot import {name!r}: {error}; put {name}.py beside the config or install it"))
        except Exception as error:  # whatever a user's module raises while it is imported is theirs to know
            issues.append((key, f"importing {name!r} failed: {type(error).__name__}: {error}"))
    return issues


def _override(table: dict[str, Any], text: str) -> None:
    """Apply `training.learning_rate=0.05` or `methods.0.adjust="best_order"` to a table."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text}", [("", "write key=value, for instance training.learning_rate=0.05")])
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
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
    ("hostile",): list(HostileClients.model_fields),
    ("methods",): list(MethodSettings.model_fields),
    ("methods", "training"): list(TrainingOverride.model_fields),
    ("methods", "fine_tune"): list(TrainingOverride.model_fields),
}


def _copy(value: Any) -> Any:
    """A deep copy of dictionaries and lists, so that overrides do not reach the caller's."""
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, (list, tuple)) else value

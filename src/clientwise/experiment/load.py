"""Read an experiment from TOML or a dictionary. All errors are reported before anything runs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..errors import ConfigError, RunError
from ..record.database import recorded_fact
from ..record.files import CONFIG
from ..registry import IMPORTED, listed
from .checks.combinations import config_issues
from .config.methods import MethodSettings
from .config.parts import Reading
from .config.schema import Experiment
from .config.tables import MOST_PLUGINS, Issue, issues_of, read_table
from .config_file import read_config, read_source, unmeant, write_out


def load_experiment(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    replaced: Mapping[str, Any] | None = None,
    preset: str | None = None,
) -> Experiment:
    """Read and validate an experiment.

    Args:
        source: a TOML file, or a dictionary of the same shape.
        overrides: texts `key=value` as in `--set`.
        replaced: values for keys of the top level. They win over `overrides`.
        preset: one of the presets of the file. `overrides` win over it.

    Returns:
        The experiment. ConfigError with all that is wrong otherwise.
    """
    return make_experiment(*read_config(source, overrides, replaced, preset))


def make_experiment(where: str, table: Mapping[str, Any]) -> Experiment:
    """The experiment that a table describes, validated."""
    if "matrix" in table:
        hint = "is more than one experiment: `clientwise run` runs all of them"
        raise ConfigError(where, [("matrix", hint)])
    issues = _load_plugins(table.get("plugins"), str(table.get("plugin_dir")))
    table = {key: value for key, value in table.items() if key != "tune"}
    try:
        reading = Reading(table.get("rounds"))
        experiment = Experiment.model_validate(table, context=reading)
        if not experiment.plugins and not experiment.has_own_files:  # nothing starts from there
            experiment = experiment.model_copy(update={"plugin_dir": None})
        if "methods" not in table:
            experiment = experiment.with_method(write_out([experiment.recommended])[0])
        issues += config_issues(experiment)
    except ValidationError as error:
        issues += issues_of(error, Experiment)
    if issues:
        _refuse_given_in_python(Path(where))
        raise ConfigError(where, issues)
    experiment._source = where
    experiment._given = reading.given
    return experiment


def _refuse_given_in_python(file: Path) -> None:
    """RunError where a run's config names parts that were given in Python, and are not there now."""
    given = recorded_fact(file.parent, "functions") if file.name == CONFIG else None
    known = {f"{registry.kind} {name}" for registry in IMPORTED.values() for name in registry}
    if lacking := [one for one in given or () if one not in known]:
        raise RunError(
            f"{file}: {listed(lacking)}: given in Python, and the run can be continued only there: "
            f"cw.fit(..., out={str(file.parent)!r}, resume=True), or cw.run, with the same arguments"
        )


def load_method(method: str | Mapping[str, Any], where: str) -> MethodSettings:
    """The method that a name or a table, as in TOML, stands for; `where` names it in messages."""
    (table,) = write_out([method])
    if reason := unmeant(table):
        raise ConfigError(where, [reason])
    return read_table(MethodSettings, table, "", where)


def import_plugins(source: str | Path) -> None:
    """Import the plugins of a config, whose other keys may be wrong; ConfigError if one fails."""
    where, folder, table = read_source(source)
    issues = _load_plugins(table.get("plugins"), str(table.get("plugin_dir", folder)))
    if issues:
        raise ConfigError(where, issues)


def _load_plugins(names: Any, folder: str) -> list[Issue]:
    """Import plugins, so that their parts are registered."""
    if not names or not isinstance(names, list) or len(names) > MOST_PLUGINS:
        return []  # refused by the schema, unless there are none
    if folder not in sys.path:
        sys.path.append(folder)  # last: a file beside a config must not shadow an installed package
    issues: list[Issue] = []
    for index, name in enumerate(names):
        key = f"plugins[{index}]"
        try:
            importlib.import_module(str(name))
        except ModuleNotFoundError as error:
            hint = f"put {name}.py beside the config or install it"
            issues.append((key, f"cannot import {name!r}: {error}; {hint}"))
        except (Exception, SystemExit) as error:  # a user's module may raise anything
            message = f"importing {name!r} failed: {type(error).__name__}: {error}"
            issues.append((key, message))
    return issues

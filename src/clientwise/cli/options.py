"""Options that several commands share, and what their texts mean."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import fail

if TYPE_CHECKING:
    from ..experiment.config.schema import Experiment
    from ..experiment.matrix.grid import Matrix
    from ..experiment.tune.tune import TuneSettings, Tuning

ConfigArgument = Annotated[Path, typer.Argument(help="A TOML file.", show_default=False)]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a key of the config: training.epochs=5, methods.0.name=X.",
    ),
]
MethodsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--methods",
        metavar="NAME,NAME",
        help="Use only these methods: names in the config, or of `clientwise list methods`.",
        show_default=False,
    ),
]
PresetOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Use a preset of the config, for example quick.", show_default=False
    ),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the datasets in their published layouts. Default: $CLIENTWISE_DATA.",
        show_default=False,
    ),
]
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda or auto.", show_default=False)]
SeedsOption = Annotated[str | None, typer.Option(help="Seeds: 1,2,3 or 1-5.", show_default=False)]
RoundsOption = Annotated[
    int | None, typer.Option(help="Rounds per method and seed.", show_default=False)
]
NamedRunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)
]
RunArgument = Annotated[
    Path | None,
    typer.Argument(help="A run folder. Default: the newest in runs/.", show_default=False),
]


def load(
    file: Path, changes: Sequence[str] | None, preset: str | None, **keys: Any
) -> Experiment | Matrix:
    """The experiment or matrix of a config file, with what the command line changes.

    Args:
        file: the TOML file.
        changes: texts `key=value` of --set.
        preset: the name of a preset.
        keys: texts of other options, by the key of the config's top level that they replace.
    """
    from ..experiment.config_file import read_config

    replaced = _values(keys)
    where, table = read_config(file, changes or [], replaced, preset)
    from ..experiment.matrix import grid  # PyTorch, for which a wrong file need not wait

    return grid.make(where, table, replaced)


def load_single(
    file: Path, changes: Sequence[str] | None, preset: str | None = None, **keys: Any
) -> Experiment:
    """The experiment of a config file, for commands that do not take a matrix; see `load`."""
    from ..experiment.config_file import read_config

    where, table = read_config(file, changes or [], _values(keys), preset)
    from ..experiment.load import make_experiment

    return make_experiment(where, table)


def try_data(
    file: Path, changes: Sequence[str] | None, preset: str | None = None, **keys: Any
) -> None:
    """Read the data of a config that is refused: a missing file is said with all else that is wrong."""
    from ..errors import ConfigError
    from ..experiment.config_file import read_config

    try:
        where, table = read_config(file, changes or [], _values(keys), preset)
    except ConfigError:
        return  # it was said
    from ..experiment.build.data import load_samples
    from ..experiment.load import known_part

    known = known_part(where, table)
    if known is not None:
        with suppress(AttributeError, OSError):  # a key about the data is wrong
            load_samples(known)


def load_tuning(
    file: Path,
    changes: Sequence[str] | None,
    preset: str | None,
    options: dict[str, Any],
    **keys: Any,
) -> tuple[Experiment, TuneSettings]:
    """The experiment of a config file and its [tune], in which `options` replace keys; see `load`."""
    from ..experiment.tune.tune import load_tuning as load_both

    given = {key: value for key, value in options.items() if value is not None}
    return load_both(file, changes or [], _values(keys), preset, given)


def tuned_toml(
    found: Tuning, file: Path, changes: Sequence[str] | None, preset: str | None, **keys: Any
) -> str:
    """The config file with the values that a search found; see `load`."""
    from ..experiment.tune.written import tuned_toml as written

    return written(found, file, changes or [], _values(keys), preset)


def _values(keys: dict[str, Any]) -> dict[str, Any]:
    """What options mean in the config; an option that was not given replaces nothing."""
    values = {key: value for key, value in keys.items() if value not in (None, [])}
    if "seeds" in values:
        values["seeds"] = parse_seeds(values["seeds"])
    if "data_dir" in values:
        values["data_dir"] = os.path.realpath(values["data_dir"])
    if re.fullmatch("[0-9]{1,9}", values.get("workers", "")):
        values["workers"] = int(values["workers"])
    return values


def parse_seeds(text: str) -> list[int]:
    """Seeds from "1,2,3" or "1-5"; another text ends the command."""
    from ..experiment.config import tables

    try:
        return tables.parse_seeds(text)
    except ValueError as error:
        fail(f"--seeds {text}: {error}")


def parse_spaces(texts: Sequence[str]) -> dict[str, Any]:
    """`over` and `methods` of [tune] from texts of --over.

    >>> parse_spaces(["rule=krum,median", "attribute='ward, bed','site'"])["over"]
    {'rule': ['krum', 'median'], 'attribute': ['ward, bed', 'site']}
    >>> parse_spaces(["brake=2,3", "FedYogi:server_step.learning_rate=0.001..1"])
    {'over': {'brake': [2, 3]}, \
'methods': {'FedYogi': {'server_step': {'learning_rate': {'low': 0.001, 'high': 1}}}}}
    """
    found: dict[str, Any] = {"over": {}, "methods": {}} if texts else {}
    for text in texts:
        name, equals, values = text.partition("=")
        method, colon, key = name.rpartition(":")
        if not equals or not key.strip():
            fail(f"--over {text}: write KEY=VALUE,VALUE or KEY=LOW..HIGH, or METHOD:KEY=...")
        here = found["over"]
        if colon:
            here = found["methods"].setdefault(method.strip(), {})
        *tables, last = key.strip().split(".")
        for step in tables:
            here = here.setdefault(step, {})
            if not isinstance(here, dict):
                fail(f"--over {text}: {step} has values of its own in another --over")
        here[last] = _values_of(text, values)
    return found


def _values_of(text: str, values: str) -> Any:
    """The list or the range that stands behind a key of --over."""
    from ..record.toml_text import parse_toml

    low, dots, high = values.partition("..")
    if not dots:
        try:  # values in quotes may have commas
            return parse_toml(f"values = [{values}]")["values"]
        except ValueError:  # bare words
            return [_value(one) for one in values.split(",")]
    ends = {"low": _value(low), "high": _value(high)}
    if any(isinstance(end, str) for end in ends.values()):
        fail(f"--over {text}: {values} is no range of numbers: write 0.01..1")
    return ends


def _value(text: str) -> Any:
    """A value as TOML has it; a bare word is text."""
    from ..record.toml_text import parse_toml

    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text.strip()

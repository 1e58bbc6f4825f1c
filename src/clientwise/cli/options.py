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
    from ..experiment.tune import TuneSettings

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
    file: Path, changes: Sequence[str] | None, preset: str | None, **keys: Any
) -> tuple[Experiment, TuneSettings, dict[str, Any]]:
    """The experiment of a config file, its [tune], and the table that both are from; see `load`."""
    from ..experiment.tune import load_tuning as load_both

    return load_both(file, changes or [], _values(keys), preset)


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

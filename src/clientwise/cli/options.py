"""Options that several commands share, and what their texts mean."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from .console import fail

if TYPE_CHECKING:
    from ..experiment.config.schema import Experiment
    from ..experiment.matrix.grid import Matrix

ConfigArgument = Annotated[Path, Argument(help="A TOML file.")]
SetOption = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a key of the config: training.epochs=5, methods.0.name=X.",
    ),
]
MethodsOption = Annotated[
    list[str] | None,
    Option(
        metavar="NAME,NAME",
        help="Use only these methods: names in the config, or of `clientwise list methods`.",
    ),
]
PresetOption = Annotated[
    str | None,
    Option(metavar="NAME", help="Use a preset of the config, for example quick."),
]
DataDirOption = Annotated[
    Path | None,
    Option(help="Folder with the datasets in their published layouts. Default: $CLIENTWISE_DATA."),
]
SeedsOption = Annotated[str | None, Option(help="Seeds: 1,2,3 or 1-5.")]
RoundsOption = Annotated[int | None, Option(help="Rounds per method and seed.")]
NewRunOption = Annotated[
    Path | None, Option("--out", help="Run folder. Default: runs/NAME-DATE-TIME.")
]
RunArgument = Annotated[Path | None, Argument(help="A run folder. Default: the newest in runs/.")]


def load(
    file: Path, changes: Sequence[str] | None, preset: str | None = None, **keys: Any
) -> Experiment | Matrix:
    """The experiment or matrix of a config file, with what the command line changes.

    Args:
        file: the TOML file.
        changes: texts `key=value` of --set.
        preset: the name of a preset.
        keys: texts of other options, by the key of the config's top level that they replace.
    """
    from ..experiment.config_file import read_config

    replaced = values_of(keys)
    where, table = read_config(file, changes or [], replaced, preset)
    from ..experiment.matrix import grid  # PyTorch, for which a wrong file need not wait

    return grid.make(where, table, replaced)


def values_of(keys: dict[str, Any]) -> dict[str, Any]:
    """What options mean in the config; an option that was not given replaces nothing."""
    values = {key: value for key, value in keys.items() if value not in (None, [])}
    if "seeds" in values:
        values["seeds"] = _parse_seeds(values["seeds"])
    if "data_dir" in values:
        values["data_dir"] = os.path.realpath(values["data_dir"])
    if re.fullmatch("[0-9]{1,9}", values.get("workers", "")):
        values["workers"] = int(values["workers"])
    return values


def _parse_seeds(text: str) -> list[int]:
    from ..experiment.config import tables

    try:
        return tables.parse_seeds(text)
    except ValueError as error:
        fail(f"--seeds {text}: {error}")

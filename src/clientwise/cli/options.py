"""Options that several commands share, and what their texts mean."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import fail

if TYPE_CHECKING:
    from ..experiment.matrix import Matrix
    from ..experiment.schema import Experiment

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
    from ..experiment import matrix

    return matrix.load(file, changes or [], _values(keys), preset)


def load_single(
    file: Path, changes: Sequence[str] | None, preset: str | None = None, **keys: Any
) -> Experiment:
    """The experiment of a config file, for commands that do not take a matrix; see `load`."""
    from ..experiment.config import load_experiment

    return load_experiment(file, changes or [], _values(keys), preset)


def _values(keys: dict[str, Any]) -> dict[str, Any]:
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
    from ..experiment.values import parse_seeds

    try:
        return parse_seeds(text)
    except ValueError as error:
        fail(f"--seeds {text}: {error}")


def parse_rates(text: str) -> list[float]:
    """Learning rates from "0.1,0.3".

    >>> parse_rates("0.1,0.3")
    [0.1, 0.3]
    """
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate <= 1e30 for rate in rates):
        fail(f"--rates {text}: write numbers greater than 0, for example 0.03,0.1,0.3")
    return rates

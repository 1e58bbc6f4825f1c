"""A matrix: the same methods under several attacks on several federations.

    [matrix]
    shares = [0.2, 0.4]               # of hostile clients; the first column, "clean", has none
    oracle = "knows who is honest"    # the method that regrets are counted against
    [matrix.attacks]
    "sign flip" = { attack = { name = "sign_flip", strength = 2.0 } }
    [matrix.data.heart]               # what differs there, as in a preset
    data = "heart"

A rule that takes a share of hostile clients is told its column's by `rule.hostile = "column"`.

Every cell is an ordinary run in a folder of its own, with all methods and seeds. Without
[matrix.data] there is one federation, that of the config. `runs.py` runs the cells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from ...errors import ConfigError, Problems, RunError
from ..config.tables import ConfigTable, Issue, Name, PartOfAll, read_table
from ..config_file import merge, read_config

if TYPE_CHECKING:
    from ..config.schema import Experiment

CLEAN = "clean"
MATRIX_FILE = "matrix.toml"
COLUMN = "column"  # value of a part's option `hostile`: the share of the column
LARGEST_MINORITY = 0.49  # that a rule can withstand


class MatrixSettings(ConfigTable):
    """Many experiments in one file: every federation, clean and under every attack (docs/compare.md)."""

    attacks: dict[Name, dict[str, Any]] = {}
    """By name: an entry of [[hostile]], without `clients`."""

    shares: Annotated[list[PartOfAll], Field(min_length=1, max_length=20)] = [0.2]
    """Shares of hostile clients. A part with `hostile = "column"` gets that of its column."""

    data: dict[Name, dict[str, Any]] = {}
    """By name: the keys that differ on another federation."""

    oracle: Name | None = None
    """The method that regrets are counted against."""


@dataclass(frozen=True, eq=False)
class MatrixCell:
    """One federation under one attack: an experiment with all methods and seeds."""

    data: str
    attack: str
    share: float  # of hostile clients; 0: clean
    where: str  # what messages call the config of the matrix
    table: dict[str, Any]

    @cached_property
    def experiment(self) -> Experiment:
        """The cell's experiment; the first access imports its plugins and checks its config."""
        from ..load import make_experiment  # PyTorch, which a report on a matrix does not need

        return make_experiment(self.source, self.table)

    @property
    def column(self) -> str:
        """The cell's name among those on the same data: "sign flip 20%"."""
        return f"{self.attack} {self.share:.0%}" if self.share else CLEAN

    @property
    def name(self) -> str:
        """The cell's name among all cells: "heart, sign flip 20%"."""
        return f"{self.data}, {self.column}"

    @property
    def source(self) -> str:
        """What messages call its config."""
        return f"{self.where}: matrix, {self.name}"

    @property
    def folder(self) -> str:
        """The name of its run folder."""
        parts = [self.data, self.attack]
        if self.share:
            parts.append(f"{self.share:.0%}".rstrip("%"))
        plain = [re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-.") or "x" for part in parts]
        return "--".join(plain)


@dataclass(frozen=True)
class Matrix:
    """All cells, and the config they were made from."""

    name: str
    settings: MatrixSettings
    cells: tuple[MatrixCell, ...]
    table: Mapping[str, Any]

    @property
    def oracle(self) -> str | None:
        """The method that regrets are counted against."""
        return self.settings.oracle

    @property
    def federations(self) -> list[str]:
        """The names of the federations, in the order of the config."""
        return list(dict.fromkeys(cell.data for cell in self.cells))


def make(
    where: str, table: Mapping[str, Any], replaced: Mapping[str, Any] | None = None
) -> Experiment | Matrix:
    """The experiment that a table describes, or its matrix where it has one, validated.

    Args:
        where: what messages call it.
        table: as `read_config` returns it.
        replaced: the keys of the top level that were replaced.
    """
    if "matrix" not in table:
        from ..load import make_experiment

        return make_experiment(where, table)
    settings = table["matrix"]
    if replaced and "methods" in replaced and isinstance(settings, Mapping):
        names = [method["name"] for method in table["methods"] if isinstance(method, Mapping)]
        if settings.get("oracle") not in names:  # only some methods are run
            settings = {key: value for key, value in settings.items() if key != "oracle"}
    return _checked(where, {**table, "matrix": settings})


def load_matrix(source: str | Path | Mapping[str, Any]) -> Matrix:
    """The matrix that a config describes, validated."""
    return _checked(*read_config(source))


def open_matrix(folder: Path) -> Matrix:
    """The matrix that was run in a folder, validated."""
    return load_matrix(folder / MATRIX_FILE)


def look_at(folder: Path) -> Matrix:
    """The matrix that was run in a folder, unchecked; no plugin is imported."""
    return _outline(*read_config(folder / MATRIX_FILE))


def is_matrix(folder: Path) -> bool:
    """Whether a folder is that of a matrix."""
    return (folder / MATRIX_FILE).exists()


def _checked(where: str, table: Mapping[str, Any]) -> Matrix:
    matrix = _outline(where, table)
    problems = Problems()
    for cell in matrix.cells:
        with problems.noted(cell.source):
            _ = cell.experiment
    problems.refuse()
    first = matrix.cells[0].experiment
    methods = [method.name for method in first.methods]
    for cell in matrix.cells:
        own_methods = [method.name for method in cell.experiment.methods]
        if own_methods != methods or cell.experiment.seeds != first.seeds:
            raise ConfigError(
                where, [(f"matrix.data.{cell.data}", "all cells need the same methods and seeds")]
            )
    if matrix.oracle is not None and matrix.oracle not in methods:
        raise ConfigError(where, [("matrix.oracle", f"there is no method {matrix.oracle!r}")])
    return matrix


def _outline(where: str, table: Mapping[str, Any]) -> Matrix:
    """The cells of a matrix; their experiments are not made yet."""
    if "matrix" not in table:
        raise RunError(f"{where}: has no [matrix]")
    settings = read_table(MatrixSettings, table["matrix"], "matrix", where)
    base = {key: value for key, value in table.items() if key != "matrix"}
    base.setdefault("name", "matrix")
    cells = tuple(_cells(settings, base, where))
    issues = list(_issues(settings, table, cells))
    if issues:
        raise ConfigError(where, issues)
    return Matrix(str(base["name"]), settings, cells, table)


def _cells(settings: MatrixSettings, base: Mapping[str, Any], where: str) -> Iterator[MatrixCell]:
    """The cells: every federation, clean and under every attack by every share."""
    columns = [(attack, share) for attack in settings.attacks for share in settings.shares]
    columns.insert(0, (CLEAN, 0.0))
    federations: Mapping[str, Mapping[str, Any]] = settings.data or {str(base["name"]): {}}
    told = {share: _told(base.get("methods"), share) for _, share in columns}
    for data, changes in federations.items():
        for attack, share in columns:
            table = merge(base, changes)
            table["hostile"] = [{"clients": share, **settings.attacks[attack]}] if share else []
            if "methods" in changes:
                table["methods"] = _told(changes["methods"], share)
            elif "methods" in base:
                table["methods"] = told[share]
            cell = MatrixCell(data, attack, share, where, table)
            table["name"] = cell.name
            yield cell


def _told(methods: Any, share: float) -> Any:
    """The methods with `hostile = "column"` replaced by the share of hostile clients in the column."""
    if isinstance(methods, list):
        return [_told(method, share) for method in methods]
    if not isinstance(methods, Mapping):
        return methods
    told = {key: _told(value, share) for key, value in methods.items()}
    if told.get("hostile") == COLUMN:
        told["hostile"] = min(share, LARGEST_MINORITY)
    return told


def _issues(
    settings: MatrixSettings, table: Mapping[str, Any], cells: Sequence[MatrixCell]
) -> Iterator[Issue]:
    """Keys that do not go with a matrix, and cells that would have no folder of their own."""
    if table.get("hostile"):
        yield "hostile", "does not go with [matrix]; use matrix.attacks and matrix.shares"
    for name, group in settings.attacks.items():
        if "clients" in group:
            yield f"matrix.attacks.{name}.clients", "is given by matrix.shares"
    folders: dict[str, MatrixCell] = {}
    for cell in cells:
        other = folders.setdefault(cell.folder, cell)
        if other is not cell:
            yield "matrix", f"{other.column!r} and {cell.column!r} would share a folder"

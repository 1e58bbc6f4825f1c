"""A matrix: the same methods under several attacks and settings on several federations.

    [matrix]
    shares = [0.2, 0.4]               # of hostile clients; the first column, "clean", has none
    oracle = "knows who is honest"    # the method that regrets are counted against
    [matrix.attacks]
    "sign flip" = { attack = { name = "sign_flip", strength = 2.0 } }
    [matrix.data.heart]               # what differs there, as in a preset
    data = "heart"
    [matrix.sweep]                    # every combination of these values is a column
    training.learning_rate = [0.01, 0.1]

A rule that takes a share of hostile clients is told its column's by `rule.hostile = "column"`.

Every cell is an ordinary run in a folder of its own, with all methods and seeds. Without
[matrix.data] there is one federation, that of the config. `runs.py` runs the cells,
`resume.py` adds to a matrix that was run.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError

from ...errors import ConfigError, Problems, RunError, shortened
from ..config.messages import issues_of
from ..config.named import merge
from ..config.tables import ConfigTable, Name
from ..config_file import read_config, set_value
from ..tune.search import Values, combinations, dotted, read_space

if TYPE_CHECKING:
    from ..config.schema import Experiment

CLEAN = "clean"
MATRIX_FILE = "matrix.toml"
COLUMN = "column"  # value of a part's option `hostile`: the share of the column
LARGEST_MINORITY = 0.49  # that a rule can withstand
MOST_CELLS = 2_000
LONGEST_FOLDER = 200  # letters; file systems take 255 bytes
HostileShare = Annotated[float, Field(gt=0, lt=1)]


class MatrixSettings(ConfigTable):
    """Many experiments in one file: every federation, clean and under every attack, with every setting.

    `clientwise run --jobs 4` runs four cells at once. A cell that fails does not end the others;
    `--resume` runs it again, and runs what was added. See docs/arena.md.
    """

    attacks: dict[Name, dict[str, Any]] = Field(
        {}, description="By name: an entry of [[hostile]], without `clients` and `share`."
    )
    shares: Annotated[list[HostileShare], Field(min_length=1, max_length=20)] = Field(
        [0.2],
        description='Shares of hostile clients. A rule with `hostile = "column"` gets the share of '
        "its column.",
    )
    data: dict[Name, dict[str, Any]] = Field(
        {}, description="By name: the keys that differ on another federation."
    )
    sweep: dict[str, Any] = Field(
        {},
        description="Keys of the config with lists of values: every combination is a column. "
        "Example: `methods.FedYogi.server_step.learning_rate`.",
    )
    oracle: Name | None = Field(None, description="The method that regrets are counted against.")
    clean: bool = Field(True, description="Add a column without hostile clients.")


@dataclass(frozen=True, eq=False)
class MatrixCell:
    """One federation under one attack: an experiment with all methods and seeds."""

    data: str
    attack: str
    share: float  # of hostile clients; 0: clean
    source: str  # what messages call its config
    table: Mapping[str, Any]
    setting: str = ""  # the values of a sweep: "learning_rate 0.1"

    @cached_property
    def experiment(self) -> Experiment:
        """The cell's experiment; the first access imports its plugins and checks its config."""
        from ..load import make_experiment  # PyTorch, which a report on a matrix does not need

        return make_experiment(self.source, self.table)

    @property
    def column(self) -> str:
        """The cell's name among those on the same data: "sign flip 20%, learning_rate 0.1"."""
        return _column(self.attack, self.share, self.setting)

    @property
    def name(self) -> str:
        """The cell's name among all cells: "heart, sign flip 20%"."""
        return f"{self.data}, {self.column}"

    @property
    def folder(self) -> str:
        """The name of its run folder."""
        parts = [self.data, self.attack]
        if self.share:
            parts.append(f"{self.share:.0%}".rstrip("%"))
        if self.setting:
            parts.append(self.setting)
        return "--".join(_in_file_name(part) for part in parts)


def _column(attack: str, share: float, setting: str) -> str:
    if not share:
        return setting or CLEAN
    hostile = f"{attack} {share:.0%}"
    return f"{hostile}, {setting}" if setting else hostile


def _in_file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.") or "x"


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


def load(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    replaced: Mapping[str, Any] | None = None,
    preset: str | None = None,
) -> Experiment | Matrix:
    """The experiment that a config describes, or its matrix where it has one, validated.

    Args:
        source: a TOML file, or a dictionary of the same shape.
        overrides: texts `key=value` as in `--set`.
        replaced: values for keys of the top level.
        preset: the name of one of its presets.
    """
    return make(*read_config(source, overrides, replaced, preset), replaced)


def make(
    where: str, table: dict[str, Any], replaced: Mapping[str, Any] | None = None
) -> Experiment | Matrix:
    """The experiment or matrix that a table describes, validated; see `load`."""
    if "matrix" in table:
        if replaced and "methods" in replaced:
            table["matrix"] = _with_known_oracle(table)
        return _make_matrix(where, table)
    from ..load import make_experiment

    return make_experiment(where, table)


def load_matrix(source: str | Path | Mapping[str, Any]) -> Matrix:
    """The matrix that a config describes, validated."""
    where, table = read_config(source)
    if "matrix" not in table:
        raise RunError(f"{where}: has no [matrix]")
    return _make_matrix(where, table)


def open_matrix(folder: Path) -> Matrix:
    """The matrix that was run in a folder, validated."""
    return load_matrix(folder / MATRIX_FILE)


def look_at(folder: Path) -> Matrix:
    """The matrix that was run in a folder, unchecked; no plugin is imported."""
    where, table = read_config(folder / MATRIX_FILE)
    if "matrix" not in table:
        raise RunError(f"{where}: has no [matrix]")
    return _outline(where, table)


def is_matrix(folder: Path) -> bool:
    """Whether a folder is that of a matrix."""
    return (folder / MATRIX_FILE).exists()


def _make_matrix(where: str, table: Mapping[str, Any]) -> Matrix:
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


def _with_known_oracle(table: Mapping[str, Any]) -> Any:
    """[matrix] for some methods only: without its oracle, if that is not among them."""
    settings = table["matrix"]
    names = [method["name"] for method in table["methods"] if isinstance(method, Mapping)]
    if not isinstance(settings, Mapping) or settings.get("oracle") in names:
        return settings
    return {key: value for key, value in settings.items() if key != "oracle"}


def _outline(where: str, table: Mapping[str, Any]) -> Matrix:
    """The cells of a matrix; their experiments are not made yet."""
    settings = _settings(where, table)
    table = _with_batch_size(where, table)
    base = {key: value for key, value in table.items() if key != "matrix"}
    name = str(base.get("name", "matrix"))
    cells = tuple(_cells(settings, {"name": name, **base}, where))
    _check_folders(cells, where)
    return Matrix(name, settings, cells, table)


def _with_batch_size(where: str, table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The table with `training.batch_size` stated, so that a later default does not change it.

    A matrix in a folder that does not state it was run when the default was "full".
    """
    training = table.get("training", {})
    if not isinstance(training, Mapping):
        return table  # refused by the schema
    default: Any = "full"
    if Path(where).name != MATRIX_FILE:
        from ...core.types import LocalTraining

        default = LocalTraining.batch_size
    return {**table, "training": {"batch_size": default, **training}}


def _settings(where: str, table: Mapping[str, Any]) -> MatrixSettings:
    try:
        settings = MatrixSettings.model_validate(table["matrix"])
    except ValidationError as error:
        issues = issues_of(error, MatrixSettings)
        raise ConfigError(
            where, [(f"matrix.{key}".rstrip("."), message) for key, message in issues]
        ) from None
    issues = []
    if table.get("hostile"):
        issues.append(
            ("hostile", "does not go with [matrix]; use matrix.attacks and matrix.shares")
        )
    for name, group in settings.attacks.items():
        for key in group.keys() & {"clients", "share"}:
            issues.append((f"matrix.attacks.{name}.{key}", "is given by matrix.shares"))
    if issues:
        raise ConfigError(where, issues)
    return settings


def _cells(settings: MatrixSettings, base: Mapping[str, Any], where: str) -> Iterator[MatrixCell]:
    columns = [(attack, share) for attack in settings.attacks for share in settings.shares]
    if settings.clean:
        columns.insert(0, (CLEAN, 0.0))
    swept = _settings_of(settings.sweep, where)
    federations: Mapping[str, Mapping[str, Any]] = settings.data or {str(base["name"]): {}}
    count = len(columns) * len(federations) * len(swept)
    if not 1 <= count <= MOST_CELLS:
        raise ConfigError(
            where, [("matrix", f"has {count:,} cells; 1 to {MOST_CELLS:,} are allowed")]
        )
    every = itertools.product(federations.items(), columns, swept.items())
    for (data, changes), (attack, share), (setting, values) in every:
        table = merge(base, changes)
        if values:
            table = deepcopy(table)
        for path, value in values.items():
            set_value(table, path, value, f"{where}: matrix.sweep")
        hostile = [{"share": share, **settings.attacks[attack]}] if share else []
        name = f"{data}, {_column(attack, share, setting)}"
        cell = {**table, "name": name, "hostile": hostile}
        if "methods" in table:
            cell["methods"] = _told(table["methods"], share)
        yield MatrixCell(data, attack, share, f"{where}: matrix, {name}", cell, setting)


def _settings_of(sweep: Mapping[str, Any], where: str) -> dict[str, Values]:
    """All combinations of a sweep's values, by their names; without a sweep, the config alone."""
    try:
        space = read_space(sweep)
    except ValueError as error:
        raise ConfigError(where, [("matrix.sweep", str(error))]) from None
    found = combinations(space)
    if found is None:
        raise ConfigError(where, [("matrix.sweep", "takes lists of values, not ranges")])
    swept: dict[str, Values] = {}
    for values in itertools.islice(found, MOST_CELLS + 1):
        named = []
        for path, value in values.items():
            named.append(f"{_short(path, space)} {_shown(value, space[path].samples())}")
        name = ", ".join(named)
        if swept.setdefault(name, values) != values:
            raise ConfigError(where, [("matrix.sweep", f"two columns would be called {name!r}")])
    return swept


def _short(path: tuple[str, ...], paths: Iterable[tuple[str, ...]]) -> str:
    """The end of a key that no other key has.

    >>> keys = [("training", "learning_rate"), ("server_step", "learning_rate"), ("rounds",)]
    >>> _short(keys[0], keys), _short(keys[2], keys)
    ('training.learning_rate', 'rounds')
    """
    others = [other for other in paths if other != path]
    length = 1
    while any(other[-length:] == path[-length:] for other in others):
        length += 1
    return dotted(path[-length:])


def _shown(value: Any, values: Sequence[Any]) -> str:
    """A value in the name of a column; of a part, its name, with options if another has that name.

    >>> median, low, high = "median", {"name": "krum", "hostile": 1}, {"name": "krum", "hostile": 2}
    >>> _shown(low, [median, low]), _shown(low, [median, low, high])
    ('krum', 'krum hostile 1')
    """
    name = _name_of(value)
    alike = [one for one in values if _name_of(one) == name and one != value]
    if not alike or not isinstance(value, Mapping):
        return name
    options = [f"{key} {option}" for key, option in value.items() if key != "name"]
    return " ".join([name, *options])


def _name_of(value: Any) -> str:
    return str(value.get("name", value)) if isinstance(value, Mapping) else str(value)


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


def _check_folders(cells: Sequence[MatrixCell], where: str) -> None:
    """Refuse cells that would share a folder, or whose folder's name would be too long."""
    folders: dict[str, MatrixCell] = {}
    for cell in cells:
        other = folders.setdefault(cell.folder, cell)
        if other is not cell:
            raise ConfigError(
                where, [("matrix", f"{other.column!r} and {cell.column!r} would share a folder")]
            )
        if len(cell.folder) > LONGEST_FOLDER:
            name = shortened(cell.column)
            raise ConfigError(
                where, [("matrix", f"the names of {name!r} are too long for a folder")]
            )

"""A matrix: the same methods under many attacks, with many hostile clients or few, on several federations.

    [matrix]
    shares = [0.2, 0.4]                       # of the clients are hostile; nobody is in the first column, "clean"
    oracle = "knows who is honest"            # the method that regrets are counted against
    [matrix.attacks]
    "sign flip" = { attack = { name = "sign_flip", strength = 2.0 } }
    [matrix.data.heart]                       # what is different there, as in a preset; without any: one federation
    data = "heart"

Every cell is an ordinary run in a folder of its own, with all methods and seeds.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import tomli_w
import torch
from pydantic import Field, ValidationError

from ..errors import ConfigError, RunError, shortened
from ..runs.files import write_atomically
from ..runs.reader import is_finished
from .config import make_experiment, read_config
from .folders import new_folder
from .lanes import Progress
from .messages import issues_of
from .presets import merge
from .runner import Stopped
from .runner import run as run_experiment
from .schema import Experiment
from .tables import ConfigTable
from .values import Name

CLEAN = "clean"
FILE = "matrix.toml"
MOST_CELLS = 2_000
LONGEST_FOLDER = 200  # letters; file systems take 255 bytes
HostileShare = Annotated[float, Field(gt=0, lt=1)]


class MatrixSettings(ConfigTable):
    """Many experiments by one file: every federation, clean and under every attack, each with all methods and seeds.

    `clientwise run` runs what is not yet finished, `--jobs 4` four cells at once; `show` and `report` take the folder.
    """

    attacks: dict[Name, dict[str, Any]] = Field(description="by name: an entry of [[hostile]], without how many")
    shares: Annotated[list[HostileShare], Field(min_length=1, max_length=20)] = Field(
        [0.2], description="shares of hostile clients"
    )
    data: dict[Name, dict[str, Any]] = Field({}, description="by name: what is different on another federation")
    oracle: Name | None = Field(None, description="the method that regrets are counted against")
    clean: bool = Field(True, description="whether there is a column without hostile clients")


@dataclass(frozen=True, eq=False)
class Cell:
    """One federation under one attack: an experiment with all methods and seeds."""

    data: str
    attack: str
    share: float  # of the clients; 0: clean
    source: str  # what messages call its config
    table: Mapping[str, Any]

    @cached_property
    def experiment(self) -> Experiment:
        """Made where it is asked for: its plugins are imported, and its config checked."""
        return make_experiment(self.source, self.table)

    @property
    def column(self) -> str:
        """What the cell is called beside others on the same data."""
        return f"{self.attack} {self.share:.0%}" if self.share else CLEAN

    @property
    def folder(self) -> str:
        """The name of its run folder."""
        parts = [self.data, self.attack] + ([f"{self.share:.0%}".rstrip("%")] if self.share else [])
        return "--".join(re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-.") or "x" for part in parts)


@dataclass(frozen=True)
class Matrix:
    """All cells, and the config they were made from."""

    name: str
    oracle: str | None
    cells: tuple[Cell, ...]
    table: Mapping[str, Any]

    @property
    def federations(self) -> list[str]:
        """The names of the federations, in the order of the config."""
        return list(dict.fromkeys(cell.data for cell in self.cells))


def load_matrix(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    replaced: Mapping[str, Any] | None = None,
    preset: str | None = None,
) -> Matrix | None:
    """The matrix a config describes, validated; None where it describes a single experiment."""
    where, table = read_config(source, overrides, replaced, preset)
    if "matrix" not in table:
        return None
    matrix = _outline(where, table)
    first = matrix.cells[0].experiment
    methods, seeds = [method.name for method in first.methods], first.seeds
    for cell in matrix.cells:
        if [method.name for method in cell.experiment.methods] != methods or cell.experiment.seeds != seeds:
            raise ConfigError(where, [(f"matrix.data.{cell.data}", "all cells need the same methods and seeds")])
    if matrix.oracle is not None and matrix.oracle not in methods:
        raise ConfigError(where, [("matrix.oracle", f"there is no method {matrix.oracle!r}")])
    return matrix


def look_at(folder: Path) -> Matrix:
    """The matrix that was run in a folder: which cells there are, their experiments unchecked."""
    where, table = read_config(folder / FILE)
    if "matrix" not in table:
        raise RunError(f"{folder / FILE}: has no [matrix]")
    return _outline(where, table)


def _outline(where: str, table: Mapping[str, Any]) -> Matrix:
    """The cells of a matrix."""
    try:
        settings = MatrixSettings.model_validate(table["matrix"])
    except ValidationError as error:
        issues = issues_of(error, MatrixSettings)
        raise ConfigError(where, [(f"matrix.{key}".rstrip("."), message) for key, message in issues]) from None
    if table.get("hostile"):
        raise ConfigError(where, [("hostile", "does not go with [matrix], whose attacks say who is hostile")])
    for name, group in settings.attacks.items():
        if given := sorted({"clients", "share"} & group.keys()):
            raise ConfigError(where, [(f"matrix.attacks.{name}.{given[0]}", "is given by matrix.shares")])
    base = {key: value for key, value in table.items() if key != "matrix"}
    name = str(base.get("name", "matrix"))
    cells = tuple(_cells(settings, {"name": name, **base}, where))
    folders: dict[str, Cell] = {}
    for cell in cells:
        if (other := folders.setdefault(cell.folder, cell)) is not cell:
            raise ConfigError(where, [("matrix", f"{other.column!r} and {cell.column!r} would share a folder")])
        if len(cell.folder) > LONGEST_FOLDER:
            raise ConfigError(where, [("matrix", f"the names of {shortened(cell.column)!r} are too long for a folder")])
    return Matrix(name, settings.oracle, cells, table)


def _cells(settings: MatrixSettings, base: Mapping[str, Any], where: str) -> Iterator[Cell]:
    attacks = [(attack, share) for attack in settings.attacks for share in settings.shares]
    columns = [*([(CLEAN, 0.0)] if settings.clean else []), *attacks]
    federations: Mapping[str, Mapping[str, Any]] = settings.data or {str(base["name"]): {}}
    if not columns or len(columns) * len(federations) > MOST_CELLS:
        raise ConfigError(where, [("matrix", f"has {len(columns) * len(federations):,} cells; 1 to {MOST_CELLS:,} go")])
    for data, changes in federations.items():
        for attack, share in columns:
            hostile = [{"share": share, **settings.attacks[attack]}] if share else []
            table = {**merge(base, changes), "name": f"{data}, {attack}" + (f" {share:.0%}" if share else "")}
            place = f"{where}: matrix, {table['name']}"
            yield Cell(data, attack, share, place, {**table, "hostile": hostile})


def open_matrix(folder: Path) -> Matrix:
    """The matrix that was run in a folder."""
    matrix = load_matrix(folder / FILE)
    if matrix is None:
        raise RunError(f"{folder / FILE}: has no [matrix]")
    return matrix


def find_unfinished_matrix(matrix: Matrix, parent: Path = Path("runs")) -> Path:
    """The newest folder in runs/ that was made by this very config."""

    def is_this(path: Path) -> bool:
        with suppress(ConfigError):  # what cannot be read is none of ours
            return read_config(path)[1] == matrix.table
        return False

    written = [path for path in parent.glob(f"*/{FILE}") if is_this(path)]
    if not written:
        raise RunError(f"{parent}/: no unfinished run of this config; name its folder: clientwise run FOLDER --resume")
    return max(written, key=lambda path: path.stat().st_mtime).parent


def run_matrix(
    matrix: Matrix,
    out: Path | None = None,
    *,
    resume: bool = False,
    accept_changes: bool = False,
    jobs: int = 1,
    on_cell: Callable[[Cell, int], None] = lambda cell, number: None,
    on_round: Callable[[Progress], None] | None = None,
) -> Path:
    """Run what is not yet finished, in so many processes; return the folder of the matrix."""
    folder = out if out is not None else new_folder(matrix.name)
    _prepare(matrix, folder, resume)
    todo = [place for place, cell in enumerate(matrix.cells) if not is_finished(folder / cell.folder)]
    finished = len(matrix.cells) - len(todo)
    try:
        if jobs > 1:
            for number, place in enumerate(_run_in_processes(folder, todo, jobs, accept_changes), start=1):
                on_cell(matrix.cells[place], finished + number)
        else:
            for number, place in enumerate(todo, start=1):
                on_cell(matrix.cells[place], finished + number)
                _run(folder, matrix.cells[place], on_round, accept_changes)
    except KeyboardInterrupt:
        raise Stopped(folder) from None
    return folder


def _run_in_processes(folder: Path, todo: Sequence[int], jobs: int, accept_changes: bool) -> Iterator[int]:
    """Cells side by side; gives those that are done."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, min(jobs, len(todo))), context, initializer=_begin_process) as pool:
        running = {pool.submit(_run_cell, folder, place, accept_changes): place for place in todo}
        try:
            for done in as_completed(running):
                done.result()
                yield running[done]
        except BaseException:
            for process in multiprocessing.active_children():  # every run can go on from its last checkpoint
                process.terminate()
            raise


def _prepare(matrix: Matrix, folder: Path, resume: bool) -> None:
    """Write down what is to be run, or make sure that it is what was begun."""
    written = folder / FILE
    if not written.exists():
        if folder.is_dir() and any(folder.iterdir()):
            raise RunError(f"{folder}: not empty, and not a matrix of clientwise")
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(written, tomli_w.dumps(matrix.table).encode())
    elif not resume:
        raise RunError(f"{folder}: there is a matrix already; go on with --resume, or choose another --out")
    elif read_config(written)[1] != matrix.table:
        raise RunError(f"{folder}: was run with another config; resume it with its own, or choose another --out")


def _begin_process() -> None:
    """One thread, since the others have cells of their own; and no work for a parent that is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, and ends this process

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(1)


def _run_cell(folder: Path, place: int, accept_changes: bool) -> None:
    """In a process of its own."""
    _run(folder, open_matrix(folder).cells[place], None, accept_changes)


def _run(folder: Path, cell: Cell, on_round: Callable[[Progress], None] | None, accept_changes: bool) -> None:
    place = folder / cell.folder
    begun = (place / "config.toml").exists()
    run_experiment(cell.experiment, place, resume=begun, accept_changes=accept_changes, on_round=on_round)

"""Resume a matrix: add to its config, and check the cells that are there.

Methods, seeds, attacks, shares, federations and rounds may be added. Nothing is lost: the resumed
matrix has the cells of the folder and those of the given config.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...errors import RunError
from ...record.reading.reader import is_finished, refuse_damaged
from ..build.data import build_data
from ..checks.against_data import validate
from ..config.schema import Experiment
from ..running.origin import compare_origin
from ..running.resume import (
    changed_keys,
    config_so_far,
    extended,
    refused_differences,
)
from .grid import MATRIX_FILE, Matrix, MatrixCell, load_matrix, open_matrix


def grown(matrix: Matrix, folder: Path) -> Matrix:
    """The matrix that is in a folder, with what a config adds to it."""
    before = open_matrix(folder)
    if before.table == matrix.table:
        return matrix
    if before.name != matrix.name:
        raise _other_config(folder, [f"name = {matrix.name!r} (was {before.name!r})"])
    if before.settings.sweep != matrix.settings.sweep:
        raise _other_config(folder, ["matrix.sweep, which cannot be added to"])
    seeds = [seed for one in (before, matrix) for seed in one.cells[0].experiment.seeds]
    table = {
        **matrix.table,
        "methods": _joined_methods(before, matrix),
        "seeds": list(dict.fromkeys(seeds)),
        "matrix": _joined_settings(before, matrix),
    }
    return load_matrix(table)


def unfinished_cells(matrix: Matrix, folder: Path, accept_changes: bool) -> list[int]:
    """The positions of the cells that are not finished. No file changes.

    RunError where a cell was run with another config, where a finished one is damaged, or, unless
    that is accepted, where it comes from other data, code or versions.
    """
    todo: list[int] = []
    finished: list[MatrixCell] = []
    damages: list[str] = []
    differing: dict[str, list[str]] = {}  # what differs: in which cells
    for index, cell in enumerate(matrix.cells):
        try:
            before = config_so_far(folder / cell.folder)
            now = cell.experiment
            for difference in refused_differences(before, now) if before else ():
                differing.setdefault(difference.sentence, []).append(cell.name)
            if before is None or _lacks(folder / cell.folder, before, now):
                todo.append(index)
                continue
            lanes = {(one.name, seed) for one in before.methods for seed in before.seeds}
            refuse_damaged(folder / cell.folder, lanes)
            finished.append(cell)
        except RunError as error:
            damages.append(str(error))
    if differing:
        raise _other_config(folder, _with_cells(differing, len(matrix.cells)))
    if damages:
        hint = "Delete the folder of a damaged cell and resume: the cell is run again."
        raise RunError("\n".join([*damages, hint]))
    if not accept_changes:
        _refuse_other_origin(finished, folder)
    return todo


def _joined_methods(before: Matrix, now: Matrix) -> list[Any]:
    """By name; one that both have is the given one, so that a difference is seen."""
    methods: dict[str, Any] = {}
    for one in (before, now):
        resolved = one.cells[0].experiment.to_dict()["methods"]
        names = [method["name"] for method in resolved]
        methods |= zip(names, one.table.get("methods", resolved), strict=True)
    return list(methods.values())


def _joined_settings(before: Matrix, now: Matrix) -> dict[str, Any]:
    old = before.settings
    new = now.settings
    joined: dict[str, Any] = {
        "attacks": {**old.attacks, **new.attacks},
        "shares": list(dict.fromkeys([*old.shares, *new.shares])),
        "clean": old.clean or new.clean,
    }
    if old.data or new.data:
        alone: Mapping[str, Any] = {now.name: {}}  # the federation of a matrix that names none
        joined["data"] = {**(old.data or alone), **(new.data or alone)}
    if new.sweep:
        joined["sweep"] = new.sweep
    oracle = new.oracle or old.oracle
    if oracle:
        joined["oracle"] = oracle
    return joined


def _lacks(folder: Path, before: Experiment, now: Experiment) -> bool:
    """Whether a cell is not finished, or lacks rounds, seeds or methods."""
    added = changed_keys(before.to_dict(), extended(before, now).to_dict())
    return bool(added) or not is_finished(folder)


def _refuse_other_origin(finished: Iterable[MatrixCell], folder: Path) -> None:
    """Versions and code are compared for every cell, data once per federation."""
    compared: set[str] = set()
    for cell in finished:
        experiment = cell.experiment
        data = {}
        if cell.data not in compared:
            compared.add(cell.data)
            samples = validate(experiment, None)
            data = {seed: build_data(experiment, samples, seed)[0] for seed in experiment.seeds}
        compare_origin(folder / cell.folder, experiment, data, accept_changes=False)


def _with_cells(differing: Mapping[str, list[str]], count: int) -> list[str]:
    """Every difference, with the cells that have it where not all do."""
    found = []
    for difference, names in differing.items():
        where = "" if len(names) == count else f" in {'; '.join(names)}"
        found.append(f"{difference}{where}")
    return found


def _other_config(folder: Path, differences: Iterable[str]) -> RunError:
    return RunError(
        f"{folder}: was run with another config: {', '.join(differences)}. Resume it with its own "
        f"config, which is in {folder / MATRIX_FILE}, or choose another output folder. What is added "
        "needs a name of its own: a method, an attack, a federation; rounds may only grow"
    )

"""Run a matrix: cell after cell, or several cells at once in processes of their own."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from pathlib import Path

import tomli_w
import torch

from ...data.federated import FederatedData
from ...engine.device import pick_device, share_gpu
from ...errors import ClientwiseError, Problems, RunError
from ...record.files import CONFIG
from ...record.run import is_finished
from ...registry import listed
from ...writing import make_folder, write_atomically
from ..build.data import build_data, load_samples
from ..checks.against_data import validate
from ..config.schema import Experiment
from ..running.origin import change_of_machine, compare_origin, other_machine
from ..running.resume import (
    config_so_far,
    extended,
    has_changed,
    is_new,
    new_folder,
    refuse_other_config,
)
from ..running.runner import Stopped
from ..running.runner import run as run_experiment
from ..trackers import Progress
from .grid import MATRIX_FILE, Matrix, MatrixCell, look_at, open_matrix

log = logging.getLogger("clientwise")


class CellsFailedError(RunError):
    """Some cells of a matrix failed; the others are finished."""

    def __init__(self, folder: Path, failures: dict[str, str], cells: int) -> None:
        self.folder = folder
        self.failures = failures  # cell: what went wrong
        names = "; ".join(failures)
        super().__init__(f"{folder}: {len(failures)} of {cells} cells failed: {names}")


def run_matrix(
    matrix: Matrix,
    out: Path | None = None,
    *,
    resume: bool = False,
    accept_changes: bool = False,
    jobs: int = 1,
    on_cell: Callable[[MatrixCell, int, int], None] = lambda cell, number, count: None,
    on_failure: Callable[[MatrixCell, str], None] = lambda cell, reason: None,
    on_round: Callable[[Progress], None] | None = None,
) -> Path:
    """Run the cells that are not finished, if the data of all of them can be read.

    A cell that fails does not end the others. Where a matrix is resumed with more methods, seeds,
    rounds, attacks, shares or federations, only what is new is run.

    Args:
        matrix: the cells.
        out: the folder of the matrix; by default a new one in runs/.
        resume: continue in a folder that has this matrix already, or a part of it.
        accept_changes: resume although data, plugins, versions or bounds have changed.
        jobs: how many cells run at once, each in a process of its own.
        on_cell: called with every cell, its number and the number of all cells: when it begins, or
            with `jobs` when it ends.
        on_failure: called with every cell that fails, and the reason.
        on_round: called after every round; not with `jobs`.

    Returns:
        The folder of the matrix.

    Raises:
        CellsFailedError: at the end, where cells failed.
    """
    folder = new_folder(matrix.name) if out is None else out
    todo = _prepare(matrix, folder, resume, accept_changes)
    cells = matrix.cells
    changes = change_of_machine(folder / cells[index].folder for index in todo)
    if changes:
        log.warning("warning: %s", other_machine(folder, changes))
    failures: dict[str, str] = {}

    def began(cell: MatrixCell, place: int) -> None:
        on_cell(cell, len(cells) - len(todo) + place, len(cells))

    def ended(cell: MatrixCell, reason: str | None) -> None:
        if reason is not None:
            failures[cell.name] = reason
            on_failure(cell, reason)

    try:
        if jobs > 1:
            results = _run_in_processes(folder, todo, jobs, accept_changes)
            for place, (index, reason) in enumerate(results, 1):
                began(cells[index], place)
                ended(cells[index], reason)
        else:
            for place, index in enumerate(todo, 1):
                began(cells[index], place)
                ended(cells[index], _run(folder, cells[index], on_round, accept_changes))
    except KeyboardInterrupt:
        raise Stopped(folder) from None
    if failures:
        raise CellsFailedError(folder, failures, len(cells))
    return folder


def _prepare(matrix: Matrix, folder: Path, resume: bool, accept_changes: bool) -> Sequence[int]:
    """Write the config into the folder; returns the positions of its cells that are to be run."""
    todo: Sequence[int] = range(len(matrix.cells))
    if not is_new(folder, MATRIX_FILE):
        if not resume:
            raise RunError(
                f"{folder}: there is a matrix already. Resume it (--resume, in Python resume=True) "
                "or choose another output folder."
            )
        _refuse_lost(matrix, folder)
        todo = _unfinished_cells(matrix, folder, accept_changes)
    _refuse_missing_data([matrix.cells[index] for index in todo])
    make_folder(folder)
    write_atomically(folder / MATRIX_FILE, tomli_w.dumps(matrix.table).encode())
    return todo


def _refuse_missing_data(cells: Iterable[MatrixCell]) -> None:
    """Read the data of every federation once: hours may pass before the first cell that needs them."""
    problems = Problems()
    federations: dict[str, Experiment] = {}
    for cell in cells:
        federations.setdefault(cell.data, cell.experiment)
    for experiment in federations.values():
        with suppress(OSError, MemoryError), problems.noted(experiment.source):  # the cell says it
            load_samples(experiment)
    problems.refuse()


def _refuse_lost(matrix: Matrix, folder: Path) -> None:
    """RunError where a config lacks cells, methods or seeds of the matrix that is in a folder."""
    before = look_at(folder)
    if before.table == matrix.table:
        return
    now = _named(matrix)
    if lost := [one for one in _named(before) if one not in now]:
        hint = (
            f"Resume it with a config that has them, such as a copy of its {MATRIX_FILE} with more"
        )
        raise RunError(f"{folder}: its matrix also has {listed(lost)}. {hint}")


def _named(matrix: Matrix) -> list[str]:
    """The cells, methods and seeds of a matrix, in words."""
    experiment = matrix.cells[0].experiment
    return [
        *(f"the cell {cell.name!r}" for cell in matrix.cells),
        *(f"the method {method.name!r}" for method in experiment.methods),
        *(f"the seed {seed}" for seed in experiment.seeds),
    ]


def _unfinished_cells(matrix: Matrix, folder: Path, accept_changes: bool) -> list[int]:
    """The positions of the cells that are not finished, or lack rounds, seeds or methods. No file changes.

    An error says where a cell was run with another config, where a finished one is damaged, or, unless
    that is accepted, where it comes from other data, code or versions.
    """
    todo: list[int] = []
    compared: set[str] = set()
    problems = Problems()
    for index, cell in enumerate(matrix.cells):
        own = folder / cell.folder
        with problems.noted(str(own)):
            now = cell.experiment
            before = config_so_far(own)
            if before is not None:
                refuse_other_config(own, before, now)
                now = extended(before, now)
            has_all = before is not None and not has_changed(before, now)
            if not has_all or not is_finished(own):
                todo.append(index)
            else:
                if not accept_changes:  # versions and code of every cell, data once per federation
                    data = {} if cell.data in compared else _data_of(now)
                    compared.add(cell.data)
                    compare_origin(own, now, data, accept_changes=False)
    problems.refuse()
    return todo


def _data_of(experiment: Experiment) -> dict[int, FederatedData]:
    samples = validate(experiment, None)
    return {seed: build_data(experiment, samples, seed)[0] for seed in experiment.seeds}


# Cells ------------------------------------------------------------------------------------------------


def _run(
    folder: Path,
    cell: MatrixCell,
    on_round: Callable[[Progress], None] | None,
    accept_changes: bool,
) -> str | None:
    """Run a cell, or continue it.

    Returns:
        The reason where it failed, else None: text, since not every error can be pickled.
    """
    own = folder / cell.folder
    try:
        run_experiment(
            cell.experiment,
            own,
            resume=(own / CONFIG).exists(),
            accept_changes=accept_changes,
            on_round=on_round,
            on_warning=lambda text: None,  # most cells have the same: the report counts them
        )
    except ClientwiseError as error:
        return str(error)
    except Exception as error:  # raised by a plugin, or a fault of ours: the other cells go on
        alone = f"clientwise run {own} --resume"
        return f"{type(error).__name__}: {error} (for its traceback: {alone})"
    return None


def _run_in_processes(
    folder: Path, todo: Sequence[int], jobs: int, accept_changes: bool
) -> Iterator[tuple[int, str | None]]:
    """Run cells side by side; gives every cell's index as it ends, and the reason where it failed.

    Every process is a pool of its own, since a process that is killed breaks its whole pool.
    """
    waiting = deque(todo)
    jobs = min(jobs, len(todo))
    idle = [_new_process() for _ in range(jobs)]
    running: dict[Future[str | None], tuple[ProcessPoolExecutor, int]] = {}
    with _ending_children_on_error():
        while waiting or running:
            while waiting and idle:
                process = idle.pop()
                index = waiting.popleft()
                cell = process.submit(_run_cell, folder, index, jobs, accept_changes)
                running[cell] = process, index
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                process, index = running.pop(future)
                try:
                    reason = future.result()
                except BrokenProcessPool:
                    reason = "its process was killed, perhaps for lack of memory; try fewer --jobs"
                    process = _new_process()
                idle.append(process)
                yield index, reason
        for process in idle:
            process.shutdown()


@contextmanager
def _ending_children_on_error() -> Iterator[None]:
    """End all processes when this one is interrupted: every run can be resumed."""
    try:
        yield
    except BaseException:
        for child in multiprocessing.active_children():
            child.terminate()
        raise


def _new_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_begin_process)


def _begin_process() -> None:
    """Use one thread, since other cells use the other cores, and end with the parent process."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    for name in ("SIGINT", "SIGHUP"):  # the parent receives them, and ends this process
        if hasattr(signal, name):  # Windows has no SIGHUP
            signal.signal(getattr(signal, name), signal.SIG_IGN)

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(1)


def _run_cell(folder: Path, index: int, jobs: int, accept_changes: bool) -> str | None:
    """In one of `jobs` processes: run a cell, and return the reason where it failed."""
    cell = open_matrix(folder).cells[index]
    if pick_device(cell.experiment.device).type == "cuda":
        share_gpu(jobs)
    return _run(folder, cell, None, accept_changes)

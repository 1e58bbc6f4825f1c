"""Run, check and tune experiments: `clientwise run`, `check`, `tune`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from .console import err, fail, out, print_error, print_lines, resume_command
from .options import (
    ConfigArgument,
    DataDirOption,
    DeviceOption,
    MethodsOption,
    PresetOption,
    SeedsOption,
    SetOption,
    load,
    load_single,
    parse_rates,
)
from .results import print_matrix, print_results

if TYPE_CHECKING:
    from ..experiment.matrix import Matrix, MatrixCell
    from ..experiment.schema import Experiment


def run(
    file: Annotated[
        Path,
        typer.Argument(help="A TOML file; with --resume also a run folder.", show_default=False),
    ],
    engine: Annotated[
        str | None,
        typer.Option(help="Where the clients run: local or flower.", show_default=False),
    ] = None,
    device: DeviceOption = None,
    workers: Annotated[
        str | None,
        typer.Option(
            help="CPU cores to train on, or ray: distribute methods and seeds over Ray.",
            show_default=False,
        ),
    ] = None,
    seeds: SeedsOption = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds per method and seed.", show_default=False)
    ] = None,
    methods: MethodsOption = None,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="Run folder. Default: runs/NAME-DATE-TIME.", show_default=False),
    ] = None,
    preset: PresetOption = None,
    data_dir: DataDirOption = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue an interrupted run, or add to a finished one."),
    ] = False,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes",
            help="Resume although data, plugins or versions have changed; the run records it.",
        ),
    ] = False,
    jobs: Annotated[
        int,
        typer.Option(
            help="Number of matrix cells to run in parallel, each in its own process.",
            min=1,
            max=256,
        ),
    ] = 1,
    trackers: Annotated[
        list[str] | None,
        typer.Option(
            "--tracker",
            metavar="NAME",
            help="Also log to tensorboard or mlflow; replaces the trackers of the config.",
        ),
    ] = None,
    changes: SetOption = None,
) -> None:
    """Run an experiment: every method with every seed.

    A config with a matrix runs every attack on every federation.

    Example: clientwise run my.toml --seeds 1-5 --rounds 50
    """
    from ..experiment.folders import find_unfinished
    from ..experiment.matrix import Matrix
    from ..experiment.matrix_runs import find_unfinished_matrix

    folder = out_folder
    if file.is_dir():
        if not resume:
            fail(f"{file}: is a folder. To continue the run in it, add --resume.")
        folder = out_folder or file
        file = _config_in(file)
    loaded = load(
        file,
        changes,
        preset,
        engine=engine,
        device=device,
        workers=workers,
        seeds=seeds,
        rounds=rounds,
        methods=methods,
        trackers=trackers,
        data_dir=data_dir,
    )
    if isinstance(loaded, Matrix):
        if folder is None and resume:
            folder = find_unfinished_matrix(loaded)
        _run_matrix(loaded, folder, resume, jobs, accept_changes)
        return
    if jobs > 1:
        fail("--jobs: needs a config with a matrix. For a single experiment use --workers.")
    if folder is None and resume:
        folder = find_unfinished(loaded)
    run_and_show(loaded, folder, resume, accept_changes)


def check(
    file: ConfigArgument,
    methods: MethodsOption = None,
    preset: PresetOption = None,
    data_dir: DataDirOption = None,
    server_data: Annotated[
        Path | None,
        typer.Option(
            help="For a deployment: the samples of the server (.npz) that start.sh gets.",
            show_default=False,
        ),
    ] = None,
    changes: SetOption = None,
) -> None:
    """Check a config and its presets, and describe what it would run.

    Example: clientwise check my.toml
    """
    from ..experiment.config import presets_of
    from ..experiment.describe import describe
    from ..experiment.matrix import Matrix
    from ..launch import deployed_data, nodes_of

    loaded = load(file, changes, preset, methods=methods, data_dir=data_dir)
    if isinstance(loaded, Matrix):
        _check_matrix(loaded)
        return
    presets = [] if preset else presets_of(file)
    for name in presets:
        load_single(file, changes, name)
    print_lines(describe(loaded, deployed_data(loaded, server_data)))
    print_lines(nodes_of(loaded))
    checked = str(file)
    if presets:
        checked += f" (and its presets: {', '.join(presets)})"
    out.print(f"[green]ok:[/] {escape(checked)}", soft_wrap=True)


def tune(
    file: Annotated[Path, typer.Argument(help="A TOML file with a target.", show_default=False)],
    rates: Annotated[
        str | None,
        typer.Option(help="Learning rates: 0.03,0.1,0.3. Default: 0.01 to 1.", show_default=False),
    ] = None,
    seeds: SeedsOption = None,
    rounds: Annotated[
        int | None, typer.Option(help="Largest number of rounds.", show_default=False)
    ] = None,
    device: DeviceOption = None,
    each: Annotated[
        bool,
        typer.Option(
            "--each",
            help="Find a rate for every method. Default: one for all, by the first method.",
        ),
    ] = False,
    methods: MethodsOption = None,
    preset: PresetOption = None,
    data_dir: DataDirOption = None,
    changes: SetOption = None,
) -> None:
    """Find the learning rate that needs the fewest rounds until half of the clients reach the target.

    Rates are compared on training samples that every client holds back, never on test samples.

    Example: clientwise tune my.toml --rates 0.03,0.1,0.3
    """
    from ..experiment.tune import GRID, Trial, target_of
    from ..experiment.tune import tune as try_rates
    from ..report.terminal import trials_table

    experiment = load_single(
        file,
        changes,
        preset,
        device=device,
        seeds=seeds,
        rounds=rounds,
        methods=methods,
        data_dir=data_dir,
    )
    grid = GRID if rates is None else parse_rates(rates)
    tuned = experiment.methods if each else experiment.methods[:1]
    for index, method in enumerate(tuned):
        with err.status("Trying learning rates") as status:

            def on_trial(trial: Trial) -> None:
                status.update(f"Learning rate {trial.learning_rate:g}, seed {trial.seed}")

            trials, best = try_rates(experiment, grid, method=method.name, on_trial=on_trial)
        out.print(trials_table(trials, method.name, target_of(experiment)))
        if all(trial.rounds is None for trial in trials):
            out.print(
                f"[yellow]No learning rate reached the target in {experiment.rounds} rounds. "
                "Allow more rounds (--rounds). Best so far:[/]",
                soft_wrap=True,
            )
        key = f"methods.{index}.training.learning_rate" if each else "training.learning_rate"
        out.print(f"[green]{key}={best:g}[/]")


def run_and_show(
    experiment: Experiment, folder: Path | None, resume: bool = False, accept_changes: bool = False
) -> Path:
    """Run an experiment with progress, then print its results; returns the run folder."""
    from ..launch import run as run_experiment
    from ..progress import show_progress
    from ..report.figures import draw
    from ..report.views import result_charts
    from ..runs.folder import RunFolder

    with _stop_politely(), show_progress(out) as on_round:
        folder = run_experiment(
            experiment, folder, resume=resume, accept_changes=accept_changes, on_round=on_round
        )
    finished = RunFolder(folder)
    picture = folder / "curves.png"
    draw(result_charts(finished), picture)
    print_results(finished)
    print_lines([f"\nRun folder  {folder}", f"Picture     {picture}"])
    return folder


def _config_in(folder: Path) -> Path:
    """The config of a run folder or of the folder of a matrix."""
    from ..experiment.matrix import MATRIX_FILE, is_matrix

    file = folder / (MATRIX_FILE if is_matrix(folder) else "config.toml")
    if file.exists() and not file.is_file():
        fail(f"{file}: is not a file; {folder} is not a run of clientwise")
    return file


def _run_matrix(
    matrix: Matrix, folder: Path | None, resume: bool, jobs: int, accept_changes: bool
) -> None:
    """Run the cells of a matrix with progress, then print and report their results."""
    from ..experiment.matrix_runs import CellsFailedError, run_matrix
    from ..progress import show_progress
    from ..report.arena import write_arena

    def on_cell(cell: MatrixCell, number: int) -> None:
        print_lines([f"{number} of {len(matrix.cells)}: {cell.name}"])

    def on_failure(cell: MatrixCell, reason: str) -> None:
        for line in reason.splitlines():
            print_error(line if cell.name in line else f"{cell.name}: {line}")

    try:
        with _stop_politely(), show_progress(out) as on_round:
            folder = run_matrix(
                matrix,
                folder,
                resume=resume,
                accept_changes=accept_changes,
                jobs=jobs,
                on_cell=on_cell,
                on_failure=on_failure,
                on_round=on_round,
            )
    except CellsFailedError as error:
        again = resume_command(error.folder)
        fail(f"{error}. The other cells are finished.\nRun the failed cells again with: {again}")
    print_matrix(folder)
    with err.status("Writing the report"):
        page = write_arena(folder, folder / "report")
    print_lines([f"\nFolder  {folder}", f"Report  {page}"])


def _check_matrix(matrix: Matrix) -> None:
    """Describe every federation, and check every attack on it."""
    from ..experiment.describe import describe
    from ..experiment.validation import validate
    from ..report.document import counted

    for name in matrix.federations:
        first, *others = [cell for cell in matrix.cells if cell.data == name]
        print_lines(describe(first.experiment))
        one_per_attack = {cell.attack: cell for cell in others}
        with err.status(f"Checking the attacks on {escape(name)}"):
            for cell in one_per_attack.values():
                validate(cell.experiment, None)
    cells = counted(len(matrix.cells), "cell")
    federations = counted(len(matrix.federations), "federation")
    out.print(f"[green]ok:[/] {cells}, each as above, on {federations}", soft_wrap=True)


@contextmanager
def _stop_politely() -> Iterator[None]:
    """On Ctrl-C or SIGTERM, stop after saving and print how to continue."""
    from ..experiment.runner import Stopped

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except Stopped as stopped:
        again = escape(resume_command(stopped.folder))
        err.print(f"\nStopped. Continue with:\n  {again}", soft_wrap=True)
        sys.exit(130)
    except KeyboardInterrupt:
        err.print("\nStopped before the first round.")
        sys.exit(130)

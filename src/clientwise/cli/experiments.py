"""Run, check and tune experiments: `clientwise run`, `check`, `tune`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..report.output.markup import escape
from .console import (
    command_name,
    err,
    fail,
    interrupted_by_signals,
    out,
    print_error,
    print_lines,
    resume_command,
    writing_to,
)
from .options import (
    ConfigArgument,
    DataDirOption,
    DeviceOption,
    MethodsOption,
    PresetOption,
    RoundsOption,
    SeedsOption,
    SetOption,
    load,
    load_tuning,
    parse_seeds,
    parse_spaces,
    try_data,
    tuned_toml,
)
from .results import print_matrix, print_results

if TYPE_CHECKING:
    from ..experiment.config.schema import Experiment
    from ..experiment.matrix.grid import Matrix, MatrixCell


# Options of `run`
RunnableArgument = Annotated[
    Path, typer.Argument(help="A TOML file; with --resume also a run folder.", show_default=False)
]
EngineOption = Annotated[
    str | None, typer.Option(help="Where the clients run: local or flower.", show_default=False)
]
WorkersOption = Annotated[
    str | None,
    typer.Option(
        help="CPU cores to train on, or ray: distribute methods and seeds, or the clients of a round, over Ray.",
        show_default=False,
    ),
]
RunFolderOption = Annotated[
    Path | None,
    typer.Option("--out", help="Run folder. Default: runs/NAME-DATE-TIME.", show_default=False),
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Continue an interrupted run, or add to a finished one.")
]
AcceptChangesOption = Annotated[
    bool,
    typer.Option(
        "--accept-changes",
        help="Resume although data, plugins or versions have changed; the run records it.",
    ),
]
JobsOption = Annotated[
    int,
    typer.Option(
        help="Number of matrix cells to run in parallel, each in its own process.", min=1, max=256
    ),
]
TrackersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tracker",
        metavar="NAME",
        help="Also log to tensorboard, mlflow or wandb; replaces the trackers of the config.",
    ),
]
# Options of `tune`
OverOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[METHOD:]KEY=VALUES",
        help="A key to search: training.learning_rate=0.01,0.1 or brake=1..5. Replaces the table `tune`.",
        show_default=False,
    ),
]
TrialsOption = Annotated[
    int | None, typer.Option(help="Trials of every method. Default: 20.", show_default=False)
]
TrialRoundsOption = Annotated[
    int | None,
    typer.Option(
        help="Rounds of every trial; the written config keeps its own.", show_default=False
    ),
]
TrialSeedsOption = Annotated[
    str | None,
    typer.Option(
        help="Seeds of the trials, not those of the config. Default: 1001-1003.",
        show_default=False,
    ),
]
ByOption = Annotated[
    str | None,
    typer.Option(
        help="metric: the best in the last round. rounds: half of the clients reach the target first.",
        show_default=False,
    ),
]
SamplerOption = Annotated[str | None, typer.Option(help="random or optuna.", show_default=False)]
TunedFileOption = Annotated[
    Path | None,
    typer.Option(
        "--out", help="The config to write. Default: NAME-tuned.toml.", show_default=False
    ),
]


def run(
    file: RunnableArgument,
    engine: EngineOption = None,
    device: DeviceOption = None,
    workers: WorkersOption = None,
    seeds: SeedsOption = None,
    rounds: RoundsOption = None,
    methods: MethodsOption = None,
    out_folder: RunFolderOption = None,
    preset: PresetOption = None,
    data_dir: DataDirOption = None,
    resume: ResumeOption = False,
    accept_changes: AcceptChangesOption = False,
    jobs: JobsOption = 1,
    trackers: TrackersOption = None,
    changes: SetOption = None,
) -> None:
    """Run an experiment: every method with every seed.

    A config with a matrix runs every attack on every federation.

    Example: clientwise run my.toml --seeds 1-5 --rounds 50
    """
    is_folder = file.is_dir()
    if is_folder and not resume:
        fail(f"{file}: is a folder. To continue the run in it, add --resume.")
    folder = out_folder or (file if is_folder else None)
    with stop_politely(folder if resume else None):
        # Here: importing PyTorch takes seconds, in which the command may be stopped
        loaded = load(
            _config_in(file) if is_folder else file,
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
        from ..experiment.matrix.grid import Matrix

        _refuse_unfit(loaded, jobs)
        if folder is None and resume:
            folder = _unfinished(loaded)
    if isinstance(loaded, Matrix):
        _run_matrix(loaded, folder, resume, jobs, accept_changes)
        return
    run_and_show(loaded, folder, resume, accept_changes)


def check(
    file: ConfigArgument,
    seeds: SeedsOption = None,
    methods: MethodsOption = None,
    preset: PresetOption = None,
    data_dir: DataDirOption = None,
    server_data: Annotated[
        Path | None,
        typer.Option(
            help="For a deployment: the samples of the server (.npz).",
            show_default=False,
        ),
    ] = None,
    changes: SetOption = None,
) -> None:
    """Check a config and its presets, and describe what it would run and cost.

    Example: clientwise check my.toml --seeds 1-5
    """
    from ..errors import Problems
    from ..experiment.config_file import presets_of

    keys = {"seeds": seeds, "methods": methods, "data_dir": data_dir}
    problems = Problems()
    loaded = None
    with problems.noted():
        loaded = load(file, changes, preset, **keys)
    presets: list[str] = []
    with problems.noted():
        presets = [] if preset else presets_of(file)
    for name in presets:
        with problems.noted():
            load(file, changes, name)
    if loaded is None:
        with problems.noted():
            try_data(file, changes, preset, **keys)
    problems.refuse()
    from ..experiment.checks.describe import describe
    from ..experiment.matrix.grid import Matrix
    from ..launch import deployed_data

    if isinstance(loaded, Matrix):
        _check_matrix(loaded)
        return
    assert loaded is not None, "what is wrong was refused"
    print_lines(describe(loaded, deployed_data(loaded, server_data)))
    checked = str(file)
    if presets:
        checked += f" (and its presets: {', '.join(presets)})"
    out.print(f"[green]ok:[/] {escape(checked)}", soft_wrap=True)


def tune(
    file: ConfigArgument,
    over: OverOption = None,
    trials: TrialsOption = None,
    seeds: TrialSeedsOption = None,
    by: ByOption = None,
    sampler: SamplerOption = None,
    rounds: TrialRoundsOption = None,
    out_file: TunedFileOption = None,
    device: DeviceOption = None,
    methods: MethodsOption = None,
    preset: PresetOption = None,
    data_dir: DataDirOption = None,
    changes: SetOption = None,
) -> None:
    """Search the parameters of every method, with equal budgets, and write a config with the best.

    Trials are compared on training samples that every client holds back, never on test samples, and
    under seeds that the config does not report. The table `tune` in the config says what is searched.

    Example: clientwise tune my.toml --over training.learning_rate=0.01..1 --trials 10
    """
    from ..experiment.tune.tune import tune as search
    from ..experiment.tune.written import changed_values
    from ..report.terminal import trials_table
    from ..report.units import Unit
    from ..writing import write_atomically

    options = {
        "trials": trials,
        "seeds": parse_seeds(seeds) if seeds else None,
        "by": by,
        "sampler": sampler,
        **parse_spaces(over or []),
    }
    keys = {"device": device, "rounds": rounds, "methods": methods, "data_dir": data_dir}
    experiment, settings = load_tuning(file, changes, preset, options, **keys)
    path = out_file or Path(f"{file.stem}-tuned.toml")
    if path.exists():
        fail(f"{path}: exists already; name another file with --out")
    with stop_politely(), err.status("Tuning") as status:

        def on_trial(method: str, number: int, seed: int) -> None:
            status.update(f"{escape(method)}: trial {number} of {settings.trials}, seed {seed}")

        found = search(experiment, settings, on_trial)
    seeds_tried = ", ".join(map(str, found.seeds))
    out.print(f"Metrics are on training samples that clients hold back, with seeds {seeds_tried}.")
    for method, own in found.trials.items():
        out.print(trials_table(own, found.best[method], settings.by, Unit(found.is_share)))
    print_lines(f"Failed: {line}" for line in found.failed)
    for line in found.at_an_end():
        out.print(f"[yellow]{escape(line)}[/]", soft_wrap=True)
    if rounds is not None:  # of the trials only
        keys["rounds"] = None
        as_written, _ = load_tuning(file, changes, preset, options, **keys)
        found = found.applied_to(as_written)
    with writing_to(path):
        toml = tuned_toml(found, file, changes, preset, **keys)
        write_atomically(path, toml.encode())
    print_lines(changed_values(experiment, found.best))
    print_lines([f"Written to {path}. Run it with: {command_name()} run {path}"])


def run_and_show(
    experiment: Experiment,
    folder: Path | None,
    resume: bool = False,
    accept_changes: bool = False,
) -> Path:
    """Run an experiment with progress, then print its results; returns the run folder."""
    from ..errors import MissingPackageError
    from ..launch import run as run_experiment
    from ..record.reading.folder import RunFolder
    from ..report.output.figures import draw
    from ..report.progress import show_progress
    from ..report.views import result_charts

    with stop_politely(folder if resume else None), show_progress(out) as on_round:
        folder = run_experiment(
            experiment,
            folder,
            resume=resume,
            accept_changes=accept_changes,
            on_round=on_round,
        )
    finished = RunFolder(folder)
    picture = str(folder / "curves.png")
    try:
        draw(result_charts(finished), Path(picture))
    except MissingPackageError as error:
        picture = f"none: {error}"
    print_results(finished)
    print_lines([f"\nRun folder  {folder}", f"Picture     {picture}"])
    return folder


def _refuse_unfit(loaded: Experiment | Matrix, jobs: int) -> None:
    """End the command where an option of a matrix is given for a single experiment."""
    from ..experiment.matrix.grid import Matrix

    if jobs > 1 and not isinstance(loaded, Matrix):
        fail("--jobs: needs a config with a matrix. For a single experiment use --workers.")


def _unfinished(loaded: Experiment | Matrix) -> Path:
    """The folder of the newest run of a config that is not finished."""
    from ..experiment.matrix.grid import Matrix
    from ..experiment.matrix.runs import find_unfinished_matrix
    from ..experiment.running.resume import find_unfinished

    if isinstance(loaded, Matrix):
        return find_unfinished_matrix(loaded)
    return find_unfinished(loaded)


def _config_in(folder: Path) -> Path:
    """The config of a run folder or of the folder of a matrix, which is to be resumed."""
    from ..experiment.matrix.grid import MATRIX_FILE, is_matrix
    from ..experiment.running.resume import refuse_run_of_host

    refuse_run_of_host(folder)
    file = folder / (MATRIX_FILE if is_matrix(folder) else "config.toml")
    if file.exists() and not file.is_file():
        fail(f"{file}: is not a file; {folder} is not a run of clientwise")
    return file


def _run_matrix(
    matrix: Matrix, folder: Path | None, resume: bool, jobs: int, accept_changes: bool
) -> None:
    """Run the cells of a matrix with progress, then print and report their results."""
    from ..experiment.matrix.runs import CellsFailedError, run_matrix
    from ..report.arena.report import write_arena
    from ..report.progress import show_progress

    def on_cell(cell: MatrixCell, number: int, count: int) -> None:
        print_lines([f"{number} of {count}: {cell.name}"])

    def on_failure(cell: MatrixCell, reason: str) -> None:
        for line in reason.splitlines():
            print_error(line if cell.name in line else f"{cell.name}: {line}")

    try:
        with stop_politely(folder if resume else None), show_progress(out) as on_round:
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


def _columns_of(matrix: Matrix, federation: str) -> dict[str, float]:
    """The share of hostile clients in every column."""
    return {cell.column: cell.share for cell in matrix.cells if cell.data == federation}


def _check_matrix(matrix: Matrix) -> None:
    """Describe every federation, and check every attack on it."""
    from ..errors import Problems
    from ..experiment.checks.against_data import validate
    from ..experiment.checks.describe import describe
    from ..report.document import counted

    problems = Problems()
    for name in matrix.federations:
        first, *others = [cell for cell in matrix.cells if cell.data == name]
        with problems.noted(first.source):
            print_lines(describe(first.experiment, columns=_columns_of(matrix, name)))
        one_per_column = {(cell.attack, cell.setting): cell for cell in others}
        with err.status(f"Checking the columns of {escape(name)}"):
            for cell in one_per_column.values():
                with problems.noted(cell.source):
                    validate(cell.experiment, None)
    problems.refuse()
    cells = counted(len(matrix.cells), "cell")
    federations = counted(len(matrix.federations), "federation")
    out.print(f"[green]ok:[/] {cells}, each as above, on {federations}", soft_wrap=True)


@contextmanager
def stop_politely(resumed: Path | None = None) -> Iterator[None]:
    """On Ctrl-C, SIGTERM or SIGHUP, stop after saving and print how to continue, also a run that is `resumed`."""
    try:
        with interrupted_by_signals():
            yield
    except KeyboardInterrupt as stopped:  # with a folder: `runner.Stopped`
        folder = getattr(stopped, "folder", resumed)
        if folder is None:
            err.print("\nStopped before the first round.")
        else:
            again = escape(resume_command(folder))
            err.print(f"\nStopped. Continue with:\n  {again}", soft_wrap=True)
        sys.exit(130)

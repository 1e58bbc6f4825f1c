"""Run experiments: `clientwise run`, `tune`, `demo`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from ..report import escape
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
    MethodsOption,
    NewRunOption,
    PresetOption,
    RoundsOption,
    SeedsOption,
    SetOption,
    load,
    values_of,
)
from .results import print_matrix, print_results

if TYPE_CHECKING:
    from ..experiment.config.schema import Experiment
    from ..experiment.matrix.grid import Matrix, MatrixCell

CONTROL = "FedAvg, fine-tuned"
INTRODUCTION = """\
Twenty clients hold unequal, skewed shares of real handwritten digits. Two of them have wrong
labels, and one sends the opposite of its update. All methods meet the same data and clients.
"""


def run(
    file: Annotated[
        Path,
        Argument(help="A TOML file; with --resume or --without a run folder."),
    ],
    workers: Annotated[
        str | None,
        Option(help="CPU cores to train on, or ray: distribute methods and seeds over Ray."),
    ] = None,
    seeds: SeedsOption = None,
    rounds: RoundsOption = None,
    methods: MethodsOption = None,
    out_folder: NewRunOption = None,
    preset: PresetOption = None,
    data_dir: DataDirOption = None,
    resume: Annotated[
        bool,
        Option("--resume", help="Continue an interrupted run, or add to a finished one."),
    ] = False,
    accept_changes: Annotated[
        bool,
        Option(
            "--accept-changes",
            help="Resume although data, plugins or versions have changed; the run records it.",
        ),
    ] = False,
    jobs: Annotated[
        int,
        Option(
            help="Number of matrix cells to run in parallel, each in its own process.",
            min=1,
            max=256,
        ),
    ] = 1,
    without: Annotated[
        str | None,
        Option(
            metavar="CLIENT",
            help="Repeat a run without this client, by its name or number, and compare.",
        ),
    ] = None,
    changes: SetOption = None,
) -> None:
    """Run an experiment: every method with every seed.

    A config with a matrix runs every attack on every federation. A run folder is continued, or repeated without a
    client: same seeds, data and batches, in a folder beside it.

    Examples: clientwise run my.toml --seeds 1-5, clientwise run runs/mine --without Basel
    """
    is_folder = file.is_dir()
    if without is not None:
        others = [workers, seeds, rounds, methods, preset, data_dir, changes, resume, jobs > 1]
        if not is_folder or any(others):
            fail(f"{file}: --without takes a run folder, and no other option than --out")
        _repeat(file, without, out_folder)
        return
    if is_folder and not resume:
        fail(f"{file}: is a folder. To continue the run in it, add --resume.")
    folder = out_folder or (file if is_folder else None)
    with stop_politely(folder if resume else None):
        # Here: importing PyTorch takes seconds, in which the command may be stopped
        loaded = load(
            _config_in(file) if is_folder else file,
            changes,
            preset,
            workers=workers,
            seeds=seeds,
            rounds=rounds,
            methods=methods,
            data_dir=data_dir,
        )
        from ..experiment.matrix.grid import Matrix

        if jobs > 1 and not isinstance(loaded, Matrix):
            fail("--jobs: needs a config with a matrix. For a single experiment use --workers.")
        if folder is None and resume:
            fail("--resume: name the folder of the run: clientwise run FOLDER --resume")
    if isinstance(loaded, Matrix):
        _run_matrix(loaded, folder, resume, jobs, accept_changes)
    elif folder and resume and not any(folder.glob("*")):
        fail(f"{folder}: there is no run here to resume")
    else:
        done = _run_and_show(loaded, folder, resume, accept_changes)
        if not (done / "report").exists():
            print_lines([f"Report      {command_name()} report {shlex.quote(str(done))}"])


def _repeat(folder: Path, without: str, out_folder: Path | None) -> None:
    """Run an experiment again without a client, and compare. A repetition that was begun goes on."""
    from ..experiment.running.resume import without_client
    from ..fitting import run as run_experiment
    from ..record.files import plain_name
    from ..record.run import RunFolder
    from ..report.terminal import comparison, print_items

    experiment = without_client(folder, without)
    name = plain_name(f"{folder.resolve().name}-without-{without}")
    target = out_folder or folder.with_name(name)
    with stop_politely():
        resume = (target / "config.toml").exists()
        run_experiment(experiment, target, resume=resume, progress=True)
    print_items(out, comparison(RunFolder(folder), RunFolder(target)))
    print_lines([f"\nRun folder  {target}"])


def tune(
    file: ConfigArgument,
    out_file: Annotated[
        Path | None, Option("--out", help="The config to write. Default: NAME-tuned.toml.")
    ] = None,
    methods: MethodsOption = None,
    preset: PresetOption = None,
    data_dir: DataDirOption = None,
    changes: SetOption = None,
) -> None:
    """Search the parameters of every method, with equal budgets, and write a config with the best.

    Trials are compared on training samples that every client holds back, never on test samples, and
    under seeds that the config does not report. The table `tune` in the config says what is searched.
    The same command goes on with an interrupted search.

    Example: clientwise tune my.toml --set tune.trials=10
    """
    from ..experiment.tune import load_tuning
    from ..experiment.tune import tune as search
    from ..report.progress import show_progress
    from ..report.terminal import print_items, trials_table
    from ..writing import write_atomically

    values = values_of({"methods": methods, "data_dir": data_dir})
    experiment, settings = load_tuning(file, changes or [], values, preset)
    path = out_file or Path(f"{file.stem}-tuned.toml")
    if path.exists():
        fail(f"{path}: exists already; name another file with --out")
    with stop_politely(), writing_to(path), show_progress(out) as on_round:
        found = search(experiment, settings, path.with_suffix(".trials"), on_round)
        write_atomically(path, found.experiment.to_toml().encode())
    seeds_tried = ", ".join(map(str, found.seeds))
    out.print(f"Metrics are on training samples that clients hold back, with seeds {seeds_tried}.")
    print_items(
        out,
        (trials_table(name, own, found.is_share) for name, own in found.trials.items()),
    )
    print_lines(f"Failed: {line}" for line in found.failed)
    print_lines([f"Written to {path}. Run it with: {command_name()} run {path}"])


def demo(out_folder: NewRunOption = None) -> None:
    """Compare methods on handwritten digits, where three of twenty clients do harm: a minute.

    Example: clientwise demo
    """
    from ..experiment.load import load_experiment

    with as_file(files("clientwise") / "demo.toml") as file:
        experiment = load_experiment(file)
    out.print(INTRODUCTION)
    folder = _run_and_show(experiment, out_folder)
    _show_answer(folder)
    command, where = command_name(), shlex.quote(str(folder))
    audit = f"{command} show {where} --round {experiment.rounds} --method Recommended"
    steps = {
        f"{command} report {where}": "a page with all figures and tables",
        audit: "the weight of every client in the last round, and why",
        f"{command} run {where}/config.toml --seeds 1-5": "significance: 5 seeds",
        f"{command} list criteria": "all criteria that clients can be weighed by",
        f"{command} new patients.csv --target ill": "a config for your own table",
    }
    out.print("\n[bold]Next[/]")
    for step, purpose in steps.items():
        out.print(f"  {escape(step)}\n      [dim]{escape(purpose)}[/]", soft_wrap=True)


def _show_answer(folder: Path) -> None:
    """Is it the weights, or the server's samples? And what became of the hostile clients of the first seed."""
    from ..record.run import RunFolder
    from ..report.explanation import last_of_each

    run = RunFolder(folder)
    rounds = run.frame("rounds")
    metric = rounds[rounds["round"] == rounds["round"].max()].groupby("method")["metric"].mean()
    ours, control, plain = (100 * metric[name] for name in ("Recommended", CONTROL, "FedAvg"))
    out.print("\n[bold]Is it the weights, or the server's samples?[/]")
    print_lines(
        [
            f"  Recommended is {ours - plain:.1f} points ahead of FedAvg, and {ours - control:.1f} ahead of FedAvg "
            "with the same clipping, server steps and fine-tuning. Only the second difference is due to the weights."
        ]
    )
    out.print("\n[bold]Recommended, seed 1: are the weights right?[/]")
    told = last_of_each(run, "Recommended", 1)
    for one in told:
        if one.is_hostile:
            found = "Evidence found it" if one.is_lowered else "Evidence did not find it"
            reason = f"{one.answer()} {one.brief().capitalize()}. {one.known_facts()} {found}."
            print_lines([f"  {reason}"])
    lowered = [one.called for one in told if one.is_lowered and not one.is_hostile]
    said = f"{', '.join(lowered)}, which are honest" if lowered else "no honest client"
    print_lines([f"  Evidence lowers {said}."])


def _run_and_show(
    experiment: Experiment,
    folder: Path | None,
    resume: bool = False,
    accept_changes: bool = False,
) -> Path:
    """Run an experiment with progress, then print its results; returns the run folder."""
    from ..fitting import run as run_experiment
    from ..record.run import RunFolder

    with stop_politely(folder if resume else None):
        done = run_experiment(
            experiment, folder, resume=resume, accept_changes=accept_changes, progress=True
        )
    print_results(RunFolder(done.folder))
    print_lines([f"\nRun folder  {done.folder}"])
    return done.folder


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
    from ..report.progress import show_progress
    from ..report.standings import write_matrix

    def on_cell(cell: MatrixCell, number: int, count: int) -> None:
        print_lines([f"{number} of {count}: {cell.name}"])

    def on_failure(cell: MatrixCell, reason: str) -> None:
        for line in reason.splitlines():
            print_error(line if cell.name in line else f"{cell.name}: {line}")

    try:
        with stop_politely(folder if resume else None), show_progress(err) as on_round:
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
        page = write_matrix(folder, folder / "report")
    print_lines([f"\nFolder  {folder}", f"Report  {page}"])


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

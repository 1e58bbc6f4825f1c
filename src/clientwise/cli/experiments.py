"""Run, check and tune experiments: `clientwise run`, `check`, `tune`, `counterfactual`, `demo`."""

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
    DeviceOption,
    MethodsOption,
    NewRunOption,
    PresetOption,
    RoundsOption,
    SeedsOption,
    SetOption,
    load,
    load_single,
    try_data,
    values_of,
)
from .results import print_matrix, print_results

if TYPE_CHECKING:
    from ..experiment.config.schema import Experiment
    from ..experiment.matrix.grid import Matrix, MatrixCell

INTRODUCTION = """\
Twenty clients hold unequal, skewed shares of real handwritten digits. Two of them are
hostile: their labels are wrong and they ignore the global model. Every method meets the
same data and the same clients in every round.
"""


def run(
    file: Annotated[Path, Argument(help="A TOML file; with --resume also a run folder.")],
    engine: Annotated[str | None, Option(help="Where the clients run: local or flower.")] = None,
    device: DeviceOption = None,
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
            help="Resume although data, plugins, versions or bounds have changed; the run records it.",
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
    trackers: Annotated[
        list[str] | None,
        Option(
            "--tracker",
            metavar="NAME",
            help="Also log to tensorboard, mlflow or wandb; replaces the trackers of the config.",
        ),
    ] = None,
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
        from ..experiment.matrix.runs import find_unfinished_matrix
        from ..experiment.running.resume import find_unfinished

        if jobs > 1 and not isinstance(loaded, Matrix):
            fail("--jobs: needs a config with a matrix. For a single experiment use --workers.")
        if folder is None and resume:
            if isinstance(loaded, Matrix):
                folder = find_unfinished_matrix(loaded)
            else:
                folder = find_unfinished(loaded)
    if isinstance(loaded, Matrix):
        _run_matrix(loaded, folder, resume, jobs, accept_changes)
    else:
        _run_and_show(loaded, folder, resume, accept_changes)


def check(
    file: ConfigArgument,
    seeds: SeedsOption = None,
    methods: MethodsOption = None,
    preset: PresetOption = None,
    data_dir: DataDirOption = None,
    server_data: Annotated[
        Path | None, Option(help="For a deployment: the samples of the server (.npz).")
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
    others = f" (and its presets: {', '.join(presets)})" if presets else ""
    out.print(f"[green]ok:[/] {escape(f'{file}{others}')}", soft_wrap=True)


def tune(
    file: ConfigArgument,
    out_file: Annotated[
        Path | None, Option("--out", help="The config to write. Default: NAME-tuned.toml.")
    ] = None,
    device: DeviceOption = None,
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
    from ..report.terminal import print_items, trials_table
    from ..writing import write_atomically

    values = values_of({"device": device, "methods": methods, "data_dir": data_dir})
    experiment, settings, table = load_tuning(file, changes or [], values, preset)
    path = out_file or Path(f"{file.stem}-tuned.toml")
    if path.exists():
        fail(f"{path}: exists already; name another file with --out")
    with stop_politely(), writing_to(path), err.status("Tuning") as status:

        def on_trial(method: str, number: int, seed: int) -> None:
            status.update(f"{escape(method)}: trial {number} of {settings.trials}, seed {seed}")

        found = search(experiment, settings, on_trial, path.with_suffix(".trials.jsonl"))
        write_atomically(path, found.as_toml(table).encode())
    seeds_tried = ", ".join(map(str, found.seeds))
    out.print(f"Metrics are on training samples that clients hold back, with seeds {seeds_tried}.")
    print_items(
        out,
        (trials_table(name, own, found.is_share) for name, own in found.trials.items()),
    )
    print_lines(f"Failed: {line}" for line in found.failed)
    for line in found.at_an_end():
        out.print(f"[yellow]{escape(line)}[/]", soft_wrap=True)
    print_lines([f"Written to {path}. Run it with: {command_name()} run {path}"])


def counterfactual(
    folder: Annotated[Path, Argument(metavar="RUN", help="A run folder.")],
    without: Annotated[
        str | None,
        Option(metavar="CLIENT", help="Never ask this client, by its name or number."),
    ] = None,
    uniform: Annotated[bool, Option("--uniform", help="Give all clients equal weights.")] = False,
    policy: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="Use the bounds of this TOML file: the keys of methods.bounds."
        ),
    ] = None,
    out_folder: Annotated[
        Path | None,
        Option(
            "--out",
            help="Run folder. Default: beside RUN, named after the change. A run there is resumed.",
        ),
    ] = None,
) -> None:
    """Run an experiment again with one thing changed, and compare: same seeds, data and batches.

    Example: clientwise counterfactual runs/mine --without Basel
    """
    from ..experiment.running.rerun import with_equal_weights, with_policy, without_client
    from ..launch import run as run_experiment
    from ..record.files import plain_name
    from ..record.run import RunFolder
    from ..report.progress import show_progress
    from ..report.terminal import comparison, print_items

    if [without is not None, uniform, policy is not None].count(True) != 1:
        fail("give one of --without CLIENT, --uniform and --policy FILE")
    if without is not None:
        experiment, change = without_client(folder, without), f"without-{without}"
    elif policy is not None:
        experiment, change = with_policy(folder, policy), f"policy-{policy.stem}"
    else:
        experiment, change = with_equal_weights(folder), "uniform"
    target = out_folder or folder.with_name(f"{folder.resolve().name}-{plain_name(change)}")
    resume = (target / "config.toml").exists()
    with stop_politely(), show_progress(out) as on_round:
        run_experiment(experiment, target, resume=resume, on_round=on_round)
    print_items(out, comparison(RunFolder(folder), RunFolder(target)))
    print_lines([f"\nRun folder  {target}"])


def demo(out_folder: NewRunOption = None, changes: SetOption = None) -> None:
    """Compare methods on real handwritten digits with two hostile clients, in half a minute.

    Example: clientwise demo
    """
    with as_file(files("clientwise") / "demo.toml") as file:
        experiment = load_single(file, changes)
    out.print(INTRODUCTION)
    folder = _run_and_show(experiment, out_folder)
    command, where = command_name(), shlex.quote(str(folder))
    audit = f"{command} show {where} --round {experiment.rounds} --method AdaFedSquared"
    steps = {
        f"{command} report {where}": "a page with all figures and tables",
        audit: "the weight of every client in a round, and why",
        f"{command} run {where}/config.toml --seeds 1-5": "confidence intervals over 5 seeds",
        f"{command} list criteria": "all criteria that clients can be weighed by",
        "docs/tutorial.md": "your own experiment in ten minutes",
    }
    out.print("\n[bold]Next[/]")
    for step, purpose in steps.items():
        out.print(f"  {escape(step)}\n      [dim]{escape(purpose)}[/]", soft_wrap=True)


def _run_and_show(
    experiment: Experiment,
    folder: Path | None,
    resume: bool = False,
    accept_changes: bool = False,
) -> Path:
    """Run an experiment with progress, then print its results; returns the run folder."""
    from ..errors import ClientwiseError
    from ..launch import run as run_experiment
    from ..record.run import RunFolder
    from ..report.charts import draw
    from ..report.progress import show_progress
    from ..report.results import Results
    from ..report.sections import metric_chart

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
        draw(metric_chart(Results([finished])), Path(picture), finished.methods)
    except ClientwiseError as error:
        picture = f"none: {error}"
    print_results(finished)
    print_lines([f"\nRun folder  {folder}", f"Picture     {picture}"])
    return folder


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
        page = write_matrix(folder, folder / "report")
    print_lines([f"\nFolder  {folder}", f"Report  {page}"])


def _check_matrix(matrix: Matrix) -> None:
    """Describe every federation, and check every attack on it."""
    from ..errors import Problems
    from ..experiment.checks.against_data import validate
    from ..experiment.checks.describe import describe
    from ..report.items import counted

    problems = Problems()
    for name in matrix.federations:
        first, *others = [cell for cell in matrix.cells if cell.data == name]
        shares = {cell.column: cell.share for cell in (first, *others)}
        with problems.noted(first.source):
            print_lines(describe(first.experiment, columns=shares))
        one_per_attack = {cell.attack: cell for cell in others}
        with err.status(f"Checking the columns of {escape(name)}"):
            for cell in one_per_attack.values():
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

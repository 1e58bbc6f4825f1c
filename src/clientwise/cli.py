"""The `clientwise` command. Heavy imports wait until a command needs them, so that --help answers at once."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console

if TYPE_CHECKING:
    from .experiment.matrix import Matrix
    from .experiment.schema import Experiment

app = typer.Typer(
    help="Federated learning that weighs every client by what it brings.",
    epilog="Start with `clientwise demo`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the config: training.epochs=5, methods.0.name=X."),
]
MethodsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--methods",
        metavar="NAME,NAME",
        help="Only these of the config's methods, or others that have a name (`clientwise list methods`).",
        show_default=False,
    ),
]
PresetOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="A preset of the config, for instance quick.", show_default=False)
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the datasets in their published layouts; default: $CLIENTWISE_DATA.", show_default=False
    ),
]


def main() -> None:
    """Entry point: errors of the user are one line each, never a traceback."""
    from . import errors
    from .errors import ClientwiseError

    errors.on_command_line = True
    try:
        app()
    except ClientwiseError as error:
        _fail(str(error))
    except OSError as error:  # a name that is too long, a disk that is full, a folder that is not ours
        _fail(f"{error.filename or 'clientwise'}: {error.strerror or error}")


def _fail(message: str) -> NoReturn:
    from .errors import shortened

    for line in message.splitlines():
        err.print(f"[bold red]error:[/] {_escaped(shortened(line, 1_500))}", soft_wrap=True)
    sys.exit(2)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"clientwise {version('clientwise')}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="A TOML file; with --resume also a run folder.", show_default=False)],
    engine: Annotated[
        str | None, typer.Option(help="Where the clients live: local or flower.", show_default=False)
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto.", show_default=False)] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            help="CPU cores that train side by side, or ray: spread methods and seeds over Ray.", show_default=False
        ),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds: 1,2,3 or 1-5.", show_default=False)] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds per method and seed.", show_default=False)] = None,
    methods: MethodsOption = None,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Run folder; default: runs/NAME-DATE-TIME.", show_default=False)
    ] = None,
    preset: PresetOption = None,
    data_dir: DataDirOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Resume also with other data, plugins or versions; it is recorded.")
    ] = False,
    jobs: Annotated[
        int, typer.Option(help="Of a matrix: cells to run side by side, each in a process.", min=1, max=256)
    ] = 1,
    trackers: Annotated[
        list[str] | None,
        typer.Option(
            "--tracker", metavar="NAME", help="Also log to tensorboard or mlflow; replaces the config's trackers."
        ),
    ] = None,
    changes: SetOption = None,
) -> None:
    """Run an experiment: every method with every seed; of a matrix, under every attack on every federation."""
    from .experiment.matrix import FILE, find_unfinished_matrix
    from .experiment.runner import find_unfinished

    if file.is_dir() and not resume:
        _fail(f"{file}: is a folder; to go on with a run, add --resume")
    if file.is_dir():
        out_folder, file = out_folder or file, file / (FILE if (file / FILE).exists() else "config.toml")
        if file.exists() and not file.is_file():
            _fail(f"{file}: is no file; this is not a run of clientwise")
    cores = int(workers) if workers and re.fullmatch("[0-9]{1,9}", workers) else workers
    given = {
        "engine": engine,
        "device": device,
        "workers": cores,
        "rounds": rounds,
        "methods": methods or None,
        "trackers": trackers or None,
        "data_dir": _absolute(data_dir),
    }
    if matrix := _load_matrix(file, changes, given, seeds, preset):
        place = out_folder or (find_unfinished_matrix(matrix) if resume else None)
        _run_matrix(matrix, place, resume, jobs, accept_changes)
        return
    if jobs > 1:
        _fail("--jobs goes with a [matrix]; an experiment takes --workers")
    experiment = _load(file, changes, given, seeds, preset)
    _run(experiment, out_folder or (find_unfinished(experiment) if resume else None), resume, accept_changes)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A TOML file.", show_default=False)],
    methods: MethodsOption = None,
    preset: PresetOption = None,
    data_dir: DataDirOption = None,
    server_data: Annotated[
        Path | None,
        typer.Option(
            help="Of a deployment: the server's own samples (.npz), as start.sh gets them.", show_default=False
        ),
    ] = None,
    changes: SetOption = None,
) -> None:
    """Check a config and its presets, and say what it would run, without running it."""
    from .experiment.config import presets_of
    from .experiment.describe import describe
    from .launch import deployed_data

    given = {"methods": methods or None, "data_dir": _absolute(data_dir)}
    if matrix := _load_matrix(file, changes, given, preset=preset):
        _check_matrix(matrix)
        return
    experiment = _load(file, changes, given, preset=preset)
    presets = [] if preset else presets_of(file)
    for name in presets:
        _load(file, changes, preset=name)
    for line in describe(experiment, deployed_data(experiment, server_data)):
        out.print(_escaped(line))
    also = f" (and its presets: {', '.join(presets)})" if presets else ""
    out.print(f"[green]ok:[/] {_escaped(str(file) + also)}", soft_wrap=True)


@app.command()
def tune(
    file: Annotated[Path, typer.Argument(help="A TOML file with a target.", show_default=False)],
    rates: Annotated[
        str | None, typer.Option(help="Learning rates: 0.03,0.1,0.3; default: 0.01 to 1.", show_default=False)
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds: 1,2,3 or 1-5.", show_default=False)] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds at most.", show_default=False)] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto.", show_default=False)] = None,
    each: Annotated[
        bool, typer.Option("--each", help="A rate for every method; otherwise one for all, that of the first.")
    ] = False,
    methods: MethodsOption = None,
    preset: PresetOption = None,
    data_dir: DataDirOption = None,
    changes: SetOption = None,
) -> None:
    """Find the learning rate with which half of the clients reach the target first, on data held back for it."""
    from .experiment.tune import GRID, target_of
    from .experiment.tune import tune as try_rates
    from .report.terminal import trials_table

    given = {"device": device, "rounds": rounds, "methods": methods or None, "data_dir": _absolute(data_dir)}
    experiment = _load(file, changes, given, seeds, preset)
    grid = GRID if rates is None else _rates(rates)
    for index, method in enumerate(experiment.methods if each else experiment.methods[:1]):
        with err.status("Trying learning rates") as status:
            trials, best = try_rates(
                experiment,
                grid,
                method=method.name,
                on_trial=lambda trial: status.update(f"{trial.learning_rate:g} with seed {trial.seed}"),
            )
        out.print(trials_table(trials, method.name, target_of(experiment)))
        if all(trial.rounds is None for trial in trials):
            out.print(
                f"[yellow]No rate got there in {experiment.rounds} rounds; give it more (--rounds). Best so far:[/]"
            )
        out.print(f"[green]{f'methods.{index}.' if each else ''}training.learning_rate={best:g}[/]")


def _rates(text: str) -> list[float]:
    """Learning rates from "0.1,0.3"."""
    try:
        rates = [float(part) for part in text.split(",")]
        if all(0 < rate <= 1e30 for rate in rates):
            return rates
        raise ValueError(text)
    except ValueError:
        _fail(f"--rates {text}: write numbers above zero, as in 0.03,0.1,0.3")


@app.command()
def data(
    file: Annotated[Path, typer.Argument(help="A TOML file.", show_default=False)],
    picture: Annotated[
        Path | None, typer.Option("--out", help="Also draw it: a PNG or SVG file.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of the partition; default: the config's first.", min=0, max=2**63 - 1, show_default=False
        ),
    ] = None,
    preset: PresetOption = None,
    data_dir: DataDirOption = None,
    changes: SetOption = None,
) -> None:
    """Show who would hold which samples: sizes, classes of every client, the server's set."""
    from .data.summary import summarise
    from .experiment.build import build_data, load_samples
    from .report.data import class_table, data_charts, remarks, size_table
    from .report.figures import draw

    if picture is not None and picture.suffix not in (".png", ".svg"):
        _fail(f"--out {picture}: write a name that ends in .png or .svg")
    experiment = _load(file, changes, {"data_dir": _absolute(data_dir)}, preset=preset)
    seed = experiment.seeds[0] if seed is None else seed
    federated, hostile = build_data(experiment, load_samples(experiment), seed)
    summary = summarise(federated)
    assert experiment.data is not None
    assert experiment.partition is not None
    title = f"{experiment.data.name}, {experiment.partition.name}, {len(summary.train):,} clients, seed {seed}"
    out.print(size_table(summary, title))
    for remark in remarks(summary, experiment.server_set.shared_set, sorted(hostile)):
        out.print(_escaped(remark))
    if table := class_table(summary):
        out.print()
        out.print(table)
    if picture is not None:
        with _file_errors():
            draw(data_charts(summary, title), picture)
        out.print(_escaped(f"Picture  {picture}"), soft_wrap=True)


@app.command()
def schema(
    plugins: Annotated[
        Path | None, typer.Argument(help="A TOML file whose plugins' parts are to be known, too.", show_default=False)
    ] = None,
) -> None:
    """Print the config as a JSON schema, by which editors complete and check TOML files."""
    import json

    from .experiment.config import load_experiment
    from .experiment.json_schema import config_schema

    if plugins is not None:
        load_experiment(plugins)
    print(json.dumps(config_schema(), indent=2, ensure_ascii=False))


@app.command("list")
def list_parts(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="criteria, scores, methods ...; default: all kinds. Or a method: what it stands for.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """List every registered part with its description and options, and the methods that have a name."""
    from .core.criteria import CRITERIA, make_criterion
    from .experiment.named import METHODS, method_toml
    from .reference import KINDS, signature
    from .registry import suggest

    if kind in METHODS:
        out.print(_escaped(f"# {METHODS[kind]}\n{method_toml(kind)}"), soft_wrap=True)
        return
    if kind is not None and kind not in ("methods", *KINDS):
        _fail(f"unknown kind {kind!r}{suggest(kind, ['methods', *KINDS, *METHODS])}")
    if kind in (None, "methods"):
        out.print("\n[bold]methods[/]: What a name stands for: `clientwise list FedYogi` shows one as TOML")
        for name, about in METHODS.items():
            out.print(f"  [cyan]{_escaped(name)}[/]\n      {_escaped(about)}", soft_wrap=True)
    for name in KINDS if kind is None else [kind] if kind in KINDS else []:
        registry = KINDS[name]
        out.print(f"\n[bold]{name}[/]: {_escaped(registry.description)}")
        for part in registry:
            by = f" · measured by the {make_criterion(part).measured_by}" if registry is CRITERIA else ""
            out.print(f"  [cyan]{_escaped(signature(registry, part))}[/]{by}", soft_wrap=True)
            out.print(f"      {_escaped(registry.describe(part))}", soft_wrap=True)


@app.command()
def show(
    folder: Annotated[
        Path | None, typer.Argument(help="A run folder; default: the newest in runs/.", show_default=False)
    ] = None,
    round_num: Annotated[
        int | None,
        typer.Option(
            "--round", help="Show who got which weight in this round, and why.", min=0, max=10**9, show_default=False
        ),
    ] = None,
    method: Annotated[str | None, typer.Option(help="Only this method's round.", show_default=False)] = None,
) -> None:
    """Show a run's tables in the terminal; it may still be running."""
    from .experiment.matrix import FILE
    from .experiment.runner import newest_run
    from .report.about import about
    from .report.series import series_of
    from .report.terminal import audit_tables, remarks, summary_table
    from .report.views import headline
    from .runs.folder import RunFolder

    if method is not None and round_num is None:
        _fail("--method goes with --round: which round of it?")
    with _file_errors():
        folder = folder or newest_run()
        if (folder / FILE).exists():
            if round_num is not None:
                _fail(f"{folder}: is a matrix; --round goes with one of the runs in it")
            _show_matrix(folder)
            return
        run = RunFolder(folder)
        if round_num is None:
            for what, text in about(run):
                out.print(f"[dim]{what:<11}[/]{_escaped(text)}", soft_wrap=True)
            out.print(summary_table(run))
            for line in [*headline(series_of([run])), *remarks(run)]:
                out.print(_escaped(line))
        else:
            for table in audit_tables(run, round_num, method):
                out.print(table)


@app.command()
def runs(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUNS]...", help="Folders of runs; default: runs/", show_default=False),
    ] = None,
    containing: Annotated[
        str | None, typer.Option("--with", help="Only those with this word: a tag, a method, data.", show_default=False)
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(help="A column, for instance data or best; default: the newest first.", show_default=False),
    ] = None,
) -> None:
    """List runs: data, methods, seeds, rounds, when, the best result, notes and tags."""
    from .report.document import counted
    from .report.runs import chosen, list_runs
    from .report.terminal import plain_table

    for folder in folders or ():
        if not folder.is_dir():
            _fail(f"{folder}: no such folder")
    with _file_errors():
        found = chosen(list_runs(folders or [Path("runs")]), containing, sort)
    out.print(plain_table(found, counted(len(found.rows), "run")) if found.rows else "No such run.")


@app.command()
def diff(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN RUN", help="Two run folders or more.", show_default=False)
    ],
) -> None:
    """Show in what runs differ: config, versions, data."""
    from .report.about import differences
    from .report.export import unique_names
    from .report.terminal import plain_table
    from .runs.folder import RunFolder

    if len(folders) < 2:
        _fail("name two runs, or more")
    found = differences([RunFolder(folder, name) for name, folder in unique_names(folders).items()])
    out.print(plain_table(found, found.title) if found.rows else found.note)


@app.command()
def note(
    folder: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    text: Annotated[str | None, typer.Argument(help="What you want to remember of it.", show_default=False)] = None,
    tags: Annotated[list[str] | None, typer.Option("--tag", help="A word to find it by.")] = None,
) -> None:
    """Give a run a note and tags: the list of runs shows them."""
    from .experiment.runner import annotate

    if text is None and not tags:
        _fail("write a note, or --tag and a word")
    annotate(folder, text, tags)


@app.command()
def report(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Run folders; default: the newest in runs/.", show_default=False)
    ] = None,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="Where to; default: report in the run; of several runs, here.", show_default=False),
    ] = None,
) -> None:
    """Write a report on a run: one HTML file, all figures (PNG, SVG), all tables (CSV, Markdown, LaTeX)."""
    from .experiment.matrix import FILE
    from .experiment.runner import newest_run
    from .report.arena import write_arena
    from .report.export import unique_names, write_report
    from .runs.folder import RunFolder

    names = unique_names(folders or [newest_run()])
    with _file_errors(), err.status("Writing the report") as status:

        def on_file(path: Path) -> None:
            status.update(f"Writing the report: {_escaped(path.name)}")

        matrices = [folder for folder in names.values() if (folder / FILE).exists()]
        if matrices and len(names) > 1:
            _fail(f"{matrices[0]}: is a matrix; a report is on one matrix, or on runs")
        first = next(iter(names.values()))
        target = out_folder or (first / "report" if len(names) == 1 else Path("report"))
        if matrices:
            page = write_arena(first, target, on_file)
        else:
            page = write_report([RunFolder(folder, name) for name, folder in names.items()], target, on_file)
    out.print(
        f"Report       {_escaped(str(page))}\nBeside it    figures (PNG, SVG) and tables (CSV, Markdown, LaTeX)",
        soft_wrap=True,
    )


@app.command()
def export(
    folder: Annotated[
        Path | None, typer.Argument(help="A run folder; default: the newest in runs/.", show_default=False)
    ] = None,
    method: Annotated[str | None, typer.Option(help="Only this method.", show_default=False)] = None,
    seed: Annotated[int | None, typer.Option(help="Only this seed.", show_default=False)] = None,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Where to; default: models in the run.", show_default=False)
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            "--round",
            help="The model after this round, or best; `keep_every` in the config keeps them. Default: the last.",
            show_default=False,
        ),
    ] = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also as ONNX; imports the plugins that the run's config names.")
    ] = False,
) -> None:
    """Write the trained models: tensors by name (safetensors), which any program reads."""
    from .experiment.runner import newest_run
    from .results import Run
    from .runs.models import After

    if after not in (None, "best") and not re.fullmatch("[0-9]{1,9}", after):
        _fail(f"--round {after}: write the number of a round, or best")
    wanted: After = "best" if after == "best" else None if after is None else int(after)
    run = Run(folder or newest_run())
    if not run.lanes:
        _fail(f"{run.folder}: has no model yet")
    chosen = [(name, number) for _, name, number in run.lanes if method in (None, name) and seed in (None, number)]
    if not chosen:  # says what there is
        run.lane(method or run.methods[0], seed if seed is not None else run.first_seed(method or run.methods[0]))
    with _file_errors(), err.status("Writing the models"):
        for name, number in chosen:
            if method is None and not run.has_model(name):
                continue
            for path in run.export(name, number, out_folder or run.folder / "models", onnx=onnx, after=wanted):
                out.print(_escaped(str(path)), soft_wrap=True)


@app.command()
def serve(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUNS]...", help="Run folders, or folders of runs; default: runs/", show_default=False),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine's need a token. unix:PATH is a socket.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="What a reader must know, in a file; made up and written there if it is not.", show_default=False
        ),
    ] = None,
) -> None:
    """Serve a web page that lists runs and follows those that are running."""
    import secrets

    from .report.server import is_loopback
    from .report.server import serve as serve_runs

    folders = folders or [Path("runs")]
    for folder in folders:
        if not folder.is_dir():
            _fail(f"{folder}: no such folder")
    token = None if is_loopback(host) else secrets.token_urlsafe(16)
    if token_file is not None:
        token = _token_in(token_file)

    def say(url: str) -> None:
        if token_file is not None:  # what is printed may end up in a log
            url = f"{url.partition('?')[0]}?token=... (the token is in {token_file})"
        out.print(f"{_escaped(url)}\nEnd it with Ctrl-C.", soft_wrap=True)

    serve_runs(folders, host, port, token, say)


def _token_in(path: Path) -> str:
    """The token in a file that nobody else may read; made up where there is none."""
    import secrets

    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe(32) + "\n", encoding="utf-8")
    if path.stat().st_mode & 0o077:
        _fail(f"{path}: can be read by other users: chmod 600 {path}")
    if not (token := path.read_text(encoding="utf-8").strip()):
        _fail(f"{path}: is empty; delete it, and a token is made up")
    return token


@app.command()
def demo(
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Run folder; default: runs/demo-DATE-TIME.", show_default=False)
    ] = None,
    changes: SetOption = None,
) -> None:
    """Train five methods on real handwritten digits, two clients of twenty being hostile. Takes half a minute."""
    with as_file(files("clientwise") / "demo.toml") as file:
        experiment = _load(file, changes)
    out.print(
        "Twenty clients with unequal, skewed shares of real handwritten digits. Two have\n"
        "wrong labels and ignore the global model. Five methods on the same data, with\n"
        "the same clients in every round:\n"
    )
    folder = _run(experiment, out_folder, resume=False)
    command, where = _command(), shlex.quote(str(folder))
    steps = [
        (f"{command} report {where}", "all of it as one page, with pictures and tables"),
        (f"{command} show {where} --round {experiment.rounds} --method AdaFed", "who got which weight, and why"),
        (f"{command} run {where}/config.toml --seeds 1-5", "how sure is that?"),
        (f"{command} list criteria", "what else clients can be weighed by"),
        ("docs/tutorial.md", "your own experiment in ten minutes"),
    ]
    out.print("\n[bold]Next[/]")
    for step, reason in steps:
        out.print(f"  {_escaped(step)}\n      [dim]{reason}[/]", soft_wrap=True)


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(help="Folder to make.", show_default=False)],
) -> None:
    """Write a ready Flower app: runs at once in simulation and, unchanged, where the data are."""
    from .launch import write_sample

    if folder.exists() and any(folder.iterdir()) if folder.is_dir() else folder.exists():
        _fail(f"{folder}: is there already; name a folder that is not")
    with as_file(files("clientwise") / "template") as template:
        shutil.copytree(template, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    write_sample(folder / "federation" / "experiment.toml", folder / "data")
    where = shlex.quote(str(folder))
    out.print(f"Written to {_escaped(str(folder))}\n\n[bold]Next[/]")
    for step, reason in [
        (f"{_command()} run {where}/federation/experiment.toml --engine flower", "in Flower's simulation, at once"),
        (f"{where}/README.md", "your own data, and a real federation"),
    ]:
        out.print(f"  {_escaped(step)}\n      [dim]{reason}[/]", soft_wrap=True)


def _command() -> str:
    """How this command is called here: by its name where the shell would find it, by its path otherwise."""
    return "clientwise" if shutil.which("clientwise") else shlex.quote(sys.argv[0])


def _load(
    file: Path,
    changes: list[str] | None,
    given: dict[str, Any] | None = None,
    seeds: str | None = None,
    preset: str | None = None,
) -> Experiment:
    """The config with what the command line changes."""
    from .experiment.config import load_experiment

    return load_experiment(file, changes or [], _options(given, seeds), preset)


def _load_matrix(
    file: Path,
    changes: list[str] | None,
    given: dict[str, Any] | None = None,
    seeds: str | None = None,
    preset: str | None = None,
) -> Matrix | None:
    """Likewise, where it describes more than one experiment."""
    from .experiment.matrix import load_matrix

    return load_matrix(file, changes or [], _options(given, seeds), preset)


def _options(given: dict[str, Any] | None, seeds: str | None) -> dict[str, Any]:
    """What the command line says about keys of the top level."""
    options = {key: value for key, value in (given or {}).items() if value is not None}
    return options if seeds is None else {**options, "seeds": _seeds(seeds)}


def _seeds(text: str) -> list[int]:
    """Seeds from "1,2,3" or "1-5"."""
    from .experiment.schema import MOST_SEEDS

    try:
        parts = [[int(number) for number in part.split("-")] for part in text.split(",")]
        if not all(len(part) <= 2 and part[0] <= part[-1] for part in parts):
            raise ValueError(text)
    except ValueError:
        _fail(f"--seeds {text}: write 1,2,3 or 1-5")
    if (count := sum(part[-1] + 1 - part[0] for part in parts)) > MOST_SEEDS:
        _fail(f"--seeds {text}: {count:,} seeds; {MOST_SEEDS:,} at most")
    return [seed for part in parts for seed in range(part[0], part[-1] + 1)]


def _absolute(folder: Path | None) -> str | None:
    return None if folder is None else os.path.realpath(folder)


def _run(experiment: Experiment, folder: Path | None, resume: bool, accept_changes: bool = False) -> Path:
    """Run with progress, then show what came of it."""
    from .launch import run as run_experiment
    from .progress import show_progress
    from .report.figures import draw
    from .report.series import series_of
    from .report.terminal import remarks, summary_table
    from .report.views import headline, result_charts
    from .runs.folder import RunFolder

    with _stop_politely(), show_progress(out) as on_round:
        folder = run_experiment(experiment, folder, resume=resume, accept_changes=accept_changes, on_round=on_round)
    finished = RunFolder(folder)
    picture = folder / "curves.png"
    draw(result_charts(finished), picture)
    out.print(summary_table(finished))
    for line in [*headline(series_of([finished])), *remarks(finished)]:
        out.print(_escaped(line))
    out.print(_escaped(f"\nRun folder  {folder}\nPicture     {picture}"), soft_wrap=True)
    return folder


def _run_matrix(matrix: Matrix, folder: Path | None, resume: bool, jobs: int, accept_changes: bool) -> None:
    """Run cell after cell with progress, then show what came of it."""
    from .experiment.matrix import Cell, run_matrix
    from .progress import show_progress
    from .report.arena import write_arena

    def on_cell(cell: Cell, number: int) -> None:
        out.print(_escaped(f"{number} of {len(matrix.cells)}: {cell.data}, {cell.column}"), soft_wrap=True)

    with _stop_politely(), show_progress(out) as on_round:
        folder = run_matrix(
            matrix,
            folder,
            resume=resume,
            accept_changes=accept_changes,
            jobs=jobs,
            on_cell=on_cell,
            on_round=on_round,
        )
    _show_matrix(folder)
    with err.status("Writing the report"):
        page = write_arena(folder, folder / "report")
    out.print(_escaped(f"\nFolder  {folder}\nReport  {page}"), soft_wrap=True)


def _check_matrix(matrix: Matrix) -> None:
    """Every federation in words, and every attack tried on it."""
    from .experiment.describe import describe
    from .experiment.validation import validate
    from .report.document import counted

    for name in matrix.federations:
        first, *others = [cell for cell in matrix.cells if cell.data == name]
        for line in describe(first.experiment):
            out.print(_escaped(line))
        with err.status(f"Checking the attacks on {_escaped(name)}"):
            for cell in {cell.attack: cell for cell in others}.values():
                validate(cell.experiment, None)
    work = f"{counted(len(matrix.cells), 'cell')}, each as above, on {counted(len(matrix.federations), 'federation')}"
    out.print(f"[green]ok:[/] {work}", soft_wrap=True)


def _show_matrix(folder: Path) -> None:
    from .report.arena import arena
    from .report.terminal import matrix_table

    document = arena(folder)
    out.print(matrix_table(document))
    for line in document.lead:
        out.print(_escaped(line))


@contextmanager
def _file_errors() -> Iterator[None]:
    """A file that cannot be read or written is one line, never a traceback."""
    try:
        yield
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}")


@contextmanager
def _stop_politely() -> Iterator[None]:
    """Ctrl-C, or a kill that can be heard: stop after saving, and say how to go on."""
    from .experiment.runner import Stopped

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except Stopped as stopped:
        again = _escaped(f"{_command()} run {shlex.quote(str(stopped.folder))} --resume")
        err.print(f"\nStopped; nothing is lost but the open round. Go on with:\n  {again}", soft_wrap=True)
        sys.exit(130)
    except KeyboardInterrupt:
        err.print("\nStopped before anything was begun.")
        sys.exit(130)

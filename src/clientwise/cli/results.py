"""Look at runs and take models away: `clientwise show`, `runs`, `diff`, `report`, `export`, `predict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from ..report import escape
from .console import (
    err,
    fail,
    out,
    print_lines,
    writing_to,
)
from .options import RunArgument

if TYPE_CHECKING:
    from ..record.run import After, RunFolder

MOST_ROWS = 20  # of predictions in the terminal


def show(
    folder: RunArgument = None,
    round_num: Annotated[
        int | None,
        Option(
            "--round",
            help="Show the weight of every client in this round, and why.",
            min=0,
            max=10**9,
        ),
    ] = None,
    method: Annotated[str | None, Option(help="With --round: only this method.")] = None,
    seed: Annotated[
        int | None, Option(help="With --round: only this seed. Default: all seeds.")
    ] = None,
    details: Annotated[
        bool,
        Option("--details", help="With --round: also how weights are computed."),
    ] = False,
) -> None:
    """Show the results of a run, finished or running, in the terminal.

    Example: clientwise show runs/mine --round 10 --method FedAvg --seed 2
    """
    from ..experiment.matrix.grid import is_matrix
    from ..record.files import newest_run
    from ..record.run import RunFolder
    from ..report.about import about
    from ..report.audit import audits
    from ..report.terminal import print_items

    for name, value in {"method": method, "seed": seed, "details": details or None}.items():
        if value is not None and round_num is None:
            fail(f"--{name} goes with --round; add the number of a round")
    folder = folder or newest_run()
    if is_matrix(folder):
        if round_num is not None:
            fail(f"{folder}: is a matrix; --round goes with one of the runs in it")
        print_matrix(folder)
        return
    run = RunFolder(folder)
    if round_num is not None:
        print_items(out, audits(run, round_num, method, seed, details=details))
    else:
        facts = list(about(run))
        width = max(len(what) for what, _ in facts) + 2
        for what, text in facts:
            out.print(f"[dim]{what:<{width}}[/]{escape(text)}", soft_wrap=True)
        print_results(run)


def runs(
    folders: Annotated[
        list[Path] | None,
        Argument(metavar="[RUNS]...", help="Folders of runs. Default: runs/"),
    ] = None,
    containing: Annotated[
        str,
        Option(
            "--with",
            help="List only runs that contain this word: a tag, a method, a dataset.",
        ),
    ] = "",
    sort: Annotated[
        str | None,
        Option(help="Sort by a column, for example data or best. Default: the newest first."),
    ] = None,
) -> None:
    """List runs with data, methods, seeds, rounds, date and best result.

    Example: clientwise runs --with FedAvg --sort best
    """
    from ..report.terminal import list_runs, print_items

    for folder in folders or ():
        if not folder.is_dir():
            fail(f"{folder}: no such folder")
    found = list_runs(folders or [Path("runs")], containing, sort)
    print_items(out, [found if len(found.frame) else "No run found."])


def diff(
    folders: Annotated[list[Path], Argument(metavar="RUN RUN", help="Two or more run folders.")],
) -> None:
    """Show how runs differ: config, versions, data.

    Example: clientwise diff runs/one runs/two
    """
    from ..report.about import differences
    from ..report.terminal import print_items

    if len(folders) < 2:
        fail("name two or more run folders")
    found = differences(_opened(folders))
    print_items(out, [found if len(found.frame) else found.note])


def report(
    folders: Annotated[
        list[Path] | None,
        Argument(help="Run folders. Default: the newest in runs/."),
    ] = None,
    out_folder: Annotated[
        Path | None,
        Option(
            "--out",
            help="Folder of the report. Default: report in the run; for several runs, here.",
        ),
    ] = None,
    figures: Annotated[
        str,
        Option(
            metavar="FORMAT,FORMAT",
            help="Also draw all figures as files: pdf (for papers), png, svg.",
        ),
    ] = "",
    watch: Annotated[
        bool,
        Option("--watch", help="Write the report anew every few seconds while a run goes on."),
    ] = False,
) -> None:
    """Write a report: one HTML file, all tables (CSV, LaTeX), and figures if asked for.

    Example: clientwise report runs/one runs/two --figures pdf,svg
    """
    from ..experiment.matrix.grid import is_matrix
    from ..record.files import newest_run
    from ..report.charts import FORMATS
    from ..report.items import counted
    from ..report.page import older_files, write_report, write_while_running
    from ..report.standings import write_matrix

    wanted = [word.strip().lower() for word in figures.split(",") if word.strip()]
    if not {*wanted} <= {*FORMATS}:
        fail(f"--figures {figures}: write one or several of {', '.join(FORMATS)}")
    formats = [one for one in FORMATS if one in wanted]
    every = folders or [newest_run()]
    for folder in every:
        if len(every) > 1 and is_matrix(folder):
            fail(f"{folder}: is a matrix; a report is about one matrix, or about runs")
        if watch and is_matrix(folder):
            fail(f"{folder}: is a matrix; --watch goes with runs")
    default = every[0] / "report" if len(every) == 1 else Path("report")
    target = out_folder or default
    page = target / "report.html"

    def write() -> None:
        with err.status("Writing the report"):
            if is_matrix(every[0]):
                write_matrix(every[0], target, formats)
            else:
                write_report(_opened(every), target, formats)

    with writing_to(target):
        if watch:
            print_lines([f"Watching     {page}: reload it in the browser. Ctrl-C stops."])
            write_while_running(every, write)
        else:
            write()
    if not page.exists():
        return  # stopped before the first round
    drawn = f"figures ({', '.join(formats).upper()}) and " if formats else ""
    hint = "" if formats else "; --figures pdf draws figures for a paper"
    beside = f"{drawn}tables (CSV, LaTeX){hint}"
    print_lines([f"Report       {page}", f"Beside it    {beside}"])
    for folder, count in older_files(page).items():
        older = f"{counted(count, 'file')} in {folder}, older than this report"
        print_lines([f"Not updated  {older}"])


def export(
    folder: RunArgument = None,
    method: Annotated[str | None, Option(help="Only this method.")] = None,
    seed: Annotated[int | None, Option(help="Only this seed.")] = None,
    out_folder: Annotated[
        Path | None,
        Option("--out", help="Folder of the models. Default: models in the run."),
    ] = None,
    after: Annotated[
        str | None,
        Option(
            "--round",
            help="A round that `keep_every` in the config kept, or best. Default: the last, or "
            'the best with keep = "best".',
        ),
    ] = None,
    onnx: Annotated[
        bool,
        Option("--onnx", help="Also write ONNX; this imports the plugins of the run's config."),
    ] = False,
) -> None:
    """Write the trained models as safetensors files: tensors by name, and what `predict` needs.

    Example: clientwise export runs/mine --method FedAvg --round best
    """
    from ..record.files import newest_run
    from ..registry import suggest
    from ..results import Run

    wanted_round: After = None
    if after == "best":
        wanted_round = "best"
    elif after is not None:
        if not (after.isdecimal() and len(after) < 10):
            fail(f"--round {after}: write the number of a round, or best")
        wanted_round = int(after)
    run = Run(folder or newest_run())
    lanes = _opened([run.folder])[0].lanes
    known = {f"{one.method} seed {one.seed}": one for one in lanes.itertuples()}
    chosen = [
        one for one in known.values() if method in (None, one.method) and seed in (None, one.seed)
    ]
    if not chosen:
        wanted = f"{method or run.methods[0]} seed {seed or 1}" if known else "any method"
        fail(f"{run.folder}: has no model of {wanted}{suggest(wanted, known)}")
    target = out_folder or run.folder / "models"
    with writing_to(target), err.status("Writing the models"):
        for one in chosen:
            if method is not None or run.has_model(one.method):
                paths = run.export(one.method, one.seed, target, onnx=onnx, after=wanted_round)
                print_lines(str(path) for path in paths)


def predict(
    model: Annotated[Path, Argument(help="A model that `clientwise export` wrote.")],
    rows: Annotated[Path, Argument(help="Rows to predict: a CSV, TSV or Parquet file.")],
    out_file: Annotated[
        Path | None,
        Option(
            "--out",
            help="Write all rows with their predictions to a CSV file; a CSV file's separator is kept.",
        ),
    ] = None,
) -> None:
    """Predict the rows of a file by a model that was trained on a table.

    Example: clientwise predict runs/mine/models/FedAvg-seed1.safetensors new.csv --out predicted.csv
    """
    from ..data.table import read_rows, separator_of
    from ..prediction import load_predictor
    from ..report.items import Table, fixed
    from ..report.terminal import print_items
    from ..writing import replacing

    if out_file is not None and out_file.suffix != ".csv":
        fail(f"--out {out_file}: write a name that ends in .csv")
    with err.status("Predicting"):
        predictor = load_predictor(model)
        frame = read_rows(rows, predictor.table)
        predictions = predictor.predict(frame, source=str(rows))
    if out_file is not None:
        taken = {name: f"{name} (new)" for name in frame.columns}
        separator = separator_of(rows) if rows.name.endswith((".csv", ".csv.gz")) else ","
        joined = frame.join(predictions.rename(columns=taken))
        with writing_to(out_file), replacing(out_file) as temporary:
            joined.to_csv(temporary, sep=separator, index=False)
        print_lines([f"Predictions  {out_file}"])
        return
    first = predictions.head(MOST_ROWS)
    are_classes = predictor.problem.num_classes > 0
    text = fixed(3) if are_classes else "{:.6g}".format  # probabilities, or numbers
    formats = dict.fromkeys(first.select_dtypes("number"), text)
    first.insert(0, "row", range(1, len(first) + 1))  # 1 is the first below the column names
    more = len(predictions) - len(first)
    note = f"{more:,} more rows; --out FILE.csv writes all of them." if more else ""
    title = f"Predictions of {predictor.table.target}"
    print_items(out, [Table("predictions", title, first, note, formats=formats)])


def print_results(run: RunFolder) -> None:
    """A run's table, and what it shows in a few sentences."""
    from ..report.terminal import print_items, run_items

    print_items(out, run_items(run))


def print_matrix(folder: Path) -> None:
    """A matrix's tables, and what they show in a few sentences."""
    from ..report.standings import matrix_report
    from ..report.terminal import print_items

    found = matrix_report(folder)
    standings = [
        items[0] for title, items in found.sections.items() if "standings" in title.lower()
    ]
    print_items(out, [found.subtitle, *standings, *found.lead])


def _opened(folders: list[Path]) -> list[RunFolder]:
    """Runs, each with a name of its own."""
    from ..record.run import RunFolder
    from ..report.page import unique_names

    return [RunFolder(folder, name) for name, folder in unique_names(folders).items()]

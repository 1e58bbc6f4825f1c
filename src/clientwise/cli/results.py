"""Look at runs and take models away: `clientwise show`, `report`, `export`, `predict`."""

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
    from ..record.run import RunFolder

MOST_ROWS = 20  # of predictions in the terminal


def show(
    folders: Annotated[
        list[Path] | None,
        Argument(
            metavar="[RUN]...",
            help="A run folder, by default the newest in runs/. A folder of runs: they are listed. "
            "Several runs: how they differ.",
        ),
    ] = None,
    round_num: Annotated[
        int | None,
        Option(
            "--round",
            help="Show the weight of every client in this round, and why.",
            min=0,
            max=10**9,
        ),
    ] = None,
    client: Annotated[
        str | None,
        Option(help="Why this client, by its name or number, has its weight. Default: last round."),
    ] = None,
    method: Annotated[str | None, Option(help="Of a round or client: only this method.")] = None,
    seed: Annotated[int | None, Option(help="Of a round or client: only this seed.")] = None,
) -> None:
    """Show the results of a run, finished or running, in the terminal; list runs, or compare them.

    Examples: clientwise show runs/mine --round 10, clientwise show runs, clientwise show RUN RUN
    """
    from ..experiment.matrix.grid import is_matrix
    from ..record.files import newest_run
    from ..record.run import RunFolder
    from ..report.about import about, differences
    from ..report.audit import audits, why
    from ..report.terminal import list_runs, print_items

    asks_why = round_num is not None or client is not None
    for name, value in {"method": method, "seed": seed}.items():
        if value is not None and not asks_why:
            fail(f"--{name} goes with --round or --client")
    every = folders or [newest_run()]
    for folder in every:
        if not folder.is_dir():
            fail(f"{folder}: no such folder; `clientwise show runs` lists the runs")
    first = every[0]
    is_list = len(every) == 1 and holds_runs(first)
    if asks_why and (is_list or len(every) > 1 or is_matrix(first)):
        fail(f"{first}: --round and --client go with one run")
    if is_list:
        print_items(out, [list_runs(first)])
    elif len(every) > 1:
        found = differences(_opened(every))
        print_items(out, [found if len(found.frame) else found.note])
    elif is_matrix(first):
        print_matrix(first)
    elif client is not None:
        run = RunFolder(first)
        for one in run.methods if method is None else [method]:
            run.about(one)  # an unknown method is an error
            number = run.seeds(one)[0] if seed is None else seed
            print_lines([why(run, client, one, number, round_num)])
    elif round_num is not None:
        print_items(out, audits(RunFolder(first), round_num, method, seed))
    else:
        run = RunFolder(first)
        facts = list(about(run))
        width = max(len(what) for what, _ in facts) + 2
        for what, text in facts:
            out.print(f"[dim]{what:<{width}}[/]{escape(text)}", soft_wrap=True)
        print_results(run)


def holds_runs(folder: Path) -> bool:
    """Whether a folder holds runs, and is neither a run nor a matrix itself."""
    from ..experiment.matrix.grid import is_matrix
    from ..record.database import DATABASE

    if (folder / DATABASE).exists() or is_matrix(folder):
        return False
    return any(folder.glob(f"*/{DATABASE}"))


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
    from ..report.page import write_report, write_while_running
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


def export(
    folder: RunArgument = None,
    method: Annotated[str | None, Option(help="Only this method.")] = None,
    seed: Annotated[int | None, Option(help="Only this seed.")] = None,
    out_folder: Annotated[
        Path | None,
        Option("--out", help="Folder of the models. Default: models in the run."),
    ] = None,
) -> None:
    """Write the trained models as safetensors files: tensors by name, and what `predict` needs.

    Example: clientwise export runs/mine --method FedAvg
    """
    from ..record.files import newest_run
    from ..registry import suggest
    from ..results import Run

    run = Run(folder or newest_run())
    known = {f"{one.method} seed {one.seed}": one for one in run.lanes.itertuples()}
    alone = [one.name for one in run.facts.methods if one.control == "alone"]  # a model per client
    chosen = [
        one
        for one in known.values()
        if (one.method == method or (method is None and one.method not in alone))
        and seed in (None, one.seed)
    ]
    if not chosen:
        wanted = f"{method or run.methods[0]} seed {seed or 1}" if known else "any method"
        fail(f"{run.folder}: has no model of {wanted}{suggest(wanted, known)}")
    target = out_folder or run.folder / "models"
    with writing_to(target), err.status("Writing the models"):
        for one in chosen:
            print_lines([str(run.export(one.method, one.seed, target))])


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

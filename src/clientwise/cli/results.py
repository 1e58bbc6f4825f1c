"""Look at runs: `clientwise show`, `runs`, `diff`, `report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..report.output.markup import escape
from .console import (
    err,
    fail,
    out,
    print_lines,
    writing_to,
)
from .options import RunArgument

if TYPE_CHECKING:
    from ..record.reading.folder import RunFolder
    from ..report.output.export import Format


def show(
    folder: RunArgument = None,
    round_num: Annotated[
        int | None,
        typer.Option(
            "--round",
            help="Show the weight of every client in this round, and why.",
            min=0,
            max=10**9,
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="With --round: only this method.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="With --round: only this seed. Default: all seeds.", show_default=False),
    ] = None,
    details: Annotated[
        bool,
        typer.Option("--details", help="With --round: also how weights are computed."),
    ] = False,
    fairness: Annotated[
        bool,
        typer.Option("--fairness", help="Show how the clients' results differ, method by method."),
    ] = False,
) -> None:
    """Show the results of a run, finished or running, in the terminal.

    Example: clientwise show runs/mine --round 10 --method FedAvg --seed 2
    """
    from ..experiment.matrix.grid import is_matrix
    from ..experiment.running.folders import newest_run
    from ..record.reading.folder import RunFolder
    from ..report.about import about
    from ..report.terminal import audit_tables

    if method is not None and round_num is None:
        fail("--method goes with --round; add the number of a round")
    if seed is not None and round_num is None:
        fail("--seed goes with --round; add the number of a round")
    if details and round_num is None:
        fail("--details goes with --round; add the number of a round")
    folder = folder or newest_run()
    if is_matrix(folder):
        if round_num is not None:
            fail(f"{folder}: is a matrix; --round goes with one of the runs in it")
        print_matrix(folder)
        return
    run = RunFolder(folder)
    if round_num is not None:
        for table in audit_tables(run, round_num, method, seed, details=details):
            out.print(table)
        return
    if fairness:
        print_fairness(run)
        return
    facts = list(about(run))
    width = max(len(what) for what, _ in facts) + 2
    for what, text in facts:
        out.print(f"[dim]{what:<{width}}[/]{escape(text)}", soft_wrap=True)
    print_results(run)


def runs(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUNS]...", help="Folders of runs. Default: runs/", show_default=False
        ),
    ] = None,
    containing: Annotated[
        str | None,
        typer.Option(
            "--with",
            help="List only runs that contain this word: a tag, a method, a dataset.",
            show_default=False,
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            help="Sort by a column, for example data or best. Default: the newest first.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """List runs with data, methods, seeds, rounds, date, best result, notes and tags.

    Example: clientwise runs --with thesis --sort best
    """
    from ..report.document import counted
    from ..report.run_list import chosen, list_runs
    from ..report.terminal import plain_table

    for folder in folders or ():
        if not folder.is_dir():
            fail(f"{folder}: no such folder")
    found = chosen(list_runs(folders or [Path("runs")]), containing, sort)
    if found.rows:
        out.print(plain_table(found, counted(len(found.rows), "run")))
    else:
        out.print("No run found.")


def diff(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN RUN", help="Two or more run folders.", show_default=False),
    ],
) -> None:
    """Show how runs differ: config, versions, data.

    Example: clientwise diff runs/one runs/two
    """
    from ..record.reading.folder import RunFolder
    from ..report.about import differences
    from ..report.output.export import unique_names
    from ..report.terminal import plain_table

    if len(folders) < 2:
        fail("name two or more run folders")
    found = differences([RunFolder(folder, name) for name, folder in unique_names(folders).items()])
    if found.rows:
        out.print(plain_table(found, found.title))
    else:
        out.print(found.note)


def report(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Run folders. Default: the newest in runs/.", show_default=False),
    ] = None,
    out_folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder of the report. Default: report in the run; for several runs, here.",
            show_default=False,
        ),
    ] = None,
    figures: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT,FORMAT",
            help="Also draw all figures as files: pdf (for papers), png, svg.",
            show_default=False,
        ),
    ] = None,
    wide: Annotated[
        bool,
        typer.Option("--wide", help="PDF figures for two columns: 6.8 in wide instead of 3.3 in."),
    ] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Write the report anew every few seconds while a run goes on."
        ),
    ] = False,
) -> None:
    """Write a report: one HTML file, all tables (CSV, Markdown, LaTeX), and figures if asked for.

    Example: clientwise report runs/one runs/two --figures pdf,svg
    """
    from ..experiment.matrix.grid import is_matrix
    from ..experiment.running.folders import newest_run
    from ..record.reading.folder import RunFolder
    from ..report.arena.report import write_arena
    from ..report.document import counted
    from ..report.output.export import older_files, unique_names, write_report
    from ..report.output.paper import COLUMN, PAGE
    from ..report.output.watch import write_while_running
    from ..report.progress import show_drawing

    width = PAGE if wide else COLUMN
    formats = parse_formats(figures or ("pdf" if wide else ""))
    names = unique_names(folders or [newest_run()])
    first, *others = names.values()
    for folder in names.values():
        if others and is_matrix(folder):
            fail(f"{folder}: is a matrix; a report is about one matrix, or about runs")
        if watch and is_matrix(folder):
            fail(f"{folder}: is a matrix; --watch goes with runs")
    target = out_folder
    if target is None:
        target = Path("report") if others else first / "report"
    page = target / "report.html"

    def write() -> None:
        with show_drawing(err) as on_figure:
            if is_matrix(first):
                write_arena(first, target, on_figure, width, formats)
            else:
                found = [RunFolder(folder, name) for name, folder in names.items()]
                write_report(found, target, on_figure, width, formats)

    with writing_to(target):
        if watch:
            print_lines([f"Watching     {page}: reload it in the browser. Ctrl-C stops."])
            write_while_running(list(names.values()), write)
        else:
            write()
    if not page.exists():
        return  # stopped before the first round
    beside = "tables (CSV, Markdown, LaTeX); --figures pdf draws figures for a paper"
    if formats:
        beside = f"figures ({', '.join(formats).upper()}) and tables (CSV, Markdown, LaTeX)"
    lines = [f"Report       {page}", f"Beside it    {beside}"]
    for folder, count in older_files(page).items():
        lines.append(f"Not updated  {counted(count, 'file')} in {folder}, older than this report")
    print_lines(lines)


def parse_formats(text: str) -> list[Format]:
    """The formats of figures that a text lists, separated by commas."""
    from ..report.output.export import FORMATS

    wanted = [word.strip().lower() for word in text.split(",") if word.strip()]
    for word in wanted:
        if word not in FORMATS:
            fail(f"--figures {text}: write one or several of {', '.join(FORMATS)}")
    return [known for known in FORMATS if known in wanted]


def print_results(run: RunFolder) -> None:
    """A run's table, and what it shows in a few sentences."""
    from ..report.series import series_of
    from ..report.terminal import remarks, summary_table
    from ..report.views import headline

    out.print(summary_table(run))
    for line in [*headline(series_of([run])), *remarks(run)]:
        out.print(escape(line))


def print_fairness(run: RunFolder) -> None:
    """The worst tenth of the clients, their spread, and gaps between groups."""
    from ..report.sections.clients import fairness_of
    from ..report.series import series_of
    from ..report.terminal import plain_table

    tables = fairness_of(series_of([run]))
    for table in tables:
        out.print(plain_table(table, table.title))
        out.print(escape(table.note))
    if not tables:
        out.print("Fewer than two clients have test data: there is nothing to compare.")


def print_matrix(folder: Path) -> None:
    """A matrix's tables, and what they show in a few sentences."""
    from ..report.arena.report import arena
    from ..report.terminal import matrix_tables

    document = arena(folder)
    for table in matrix_tables(document):
        out.print(table)
    for line in document.lead:
        out.print(escape(line))

"""Statements for single sites: `clientwise statement`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import err, print_lines, writing_to
from .options import RunArgument


def statement(
    folder: RunArgument = None,
    site: Annotated[
        str | None,
        typer.Option(help="Only this site, by its name. Default: all sites.", show_default=False),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="The method. Default: the first that is no control.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The seed. Default: the first.", show_default=False)
    ] = None,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="Folder. Default: statements in the run.", show_default=False),
    ] = None,
) -> None:
    """Write a page for each site: its weight and why, what it gave and gained, what left the site.

    A page shows nothing that was recorded about another site alone.

    Example: clientwise statement runs/mine --site Basel
    """
    from ..experiment.running.folders import newest_run
    from ..record.files import plain_names
    from ..record.reading.folder import RunFolder
    from ..report.document import counted
    from ..report.output.html import write_html
    from ..report.statement import NotRecordedError, sites
    from ..report.statement import statement as statement_of

    run = RunFolder(folder or newest_run())
    target = out_folder or run.folder / "statements"
    lines: list[str] = []
    without_rows = 0
    with writing_to(target), err.status("Writing the statements"):
        names = sites(run)
        files = dict(zip(names, plain_names(names), strict=True))
        for name in [site] if site else names:
            try:
                found = statement_of(run, name, method, seed)
            except NotRecordedError:
                if site:
                    raise
                without_rows += 1
                continue
            path = write_html(found, {}, target / f"{files[name]}.html")
            lines.append(f"{'Statement' if not lines else '':<13}{path}")
    if without_rows:
        lines.append(
            f"{'Left out':<13}{counted(without_rows, 'site')} without rows (record.clients)"
        )
    print_lines(lines)

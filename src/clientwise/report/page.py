"""The report as one HTML page that loads nothing from the network, and the files beside it: tables and figures."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from itertools import chain, count
from pathlib import Path
from typing import Any

from pandas import DataFrame

from ..errors import ClientwiseError, NotBegunError, needing
from ..record.files import is_locked
from ..record.run import RunFolder
from ..registry import listed, suggest
from ..writing import make_folder, write_atomically
from . import about, sections
from .audit import last_audits
from .charts import Format, converted, figure, packed, pictures
from .items import Chart, Item, Section, Table, counted
from .results import Results, run_state
from .verdict import headline

SECTIONS: dict[str, Section] = {  # by title, in the order of the page
    "Result": sections.result,
    "What was run": about.what_was_run,
    "Over the rounds": sections.curves,
    "Privacy": sections.privacy,
    "Clients": sections.clients,
    "Weights": sections.weights,
    "Backdoors": sections.backdoors,
    "Order of priority": sections.priority,
    "Classes": sections.classes,
    "Refusals": sections.refusals,
    "Config": about.config,
}
SECONDS = 3.0  # between two looks at a run that goes on
REST = 10  # times as long as writing took: reading must not slow the run
FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # how a text begins that a spreadsheet computes


def write_report(runs: Sequence[RunFolder], out: Path, figures: Sequence[Format] = ()) -> Path:
    """Write the report on one run, or several compared, and return the path of its page.

    Args:
        runs: at least one. The page on one run has audits of its weights.
        out: the folder of the report; tables and figures stand beside the page.
        figures: the formats in which figures are drawn.
    """
    results = Results(runs)
    found: dict[str, list[Any]] = dict(report_sections(results))
    if len(runs) == 1:
        found["Weight audit"] = list(last_audits(runs[0], (one.name for one in results.shown)))
    return write_sections(describe(results), found, out, figures)


def write_sections(
    head: Mapping[str, Any],
    found: Mapping[str, Sequence[Any]],
    out: Path,
    figures: Sequence[Format],
) -> Path:
    """Write a page, and beside it the tables and charts of its sections; see `write_page`."""
    page = write_page(head, found, out / "report.html")
    write_items([item for own in found.values() for item in own], out, figures)
    return page


def report_sections(results: Results) -> dict[str, list[Item]]:
    """The items of every section by its title; without the sections that have none."""
    if not results.methods:
        return {}
    found = {title: list(make(results)) for title, make in SECTIONS.items()}
    return {title: items for title, items in found.items() if items}


def figure_of(run: RunFolder, chart: str) -> dict[str, Any]:
    """A chart of the report on a run as Vega-Lite, by its name."""
    found = report_sections(Results([run])).values()
    charts = {item.id: item for own in found for item in own if isinstance(item, Chart)}
    if chart not in charts:
        raise ClientwiseError(f"{run.id}: there is no chart {chart!r}{suggest(chart, charts)}")
    return figure(charts[chart])


def describe(results: Results) -> dict[str, Any]:
    """The head of the page: what it is about, in words."""
    first, *others = results.runs
    lengths = sorted({run.facts.rounds for run in results.runs})
    rounds = " or ".join(counted(number, "round") for number in lengths)
    methods = listed(dict.fromkeys(one.name for one in results.methods))
    subtitle = f"{methods}; {counted(len(results.seeds), 'seed')}, {rounds}"
    if not others and first.facts.name != first.id:
        subtitle = f"{first.facts.name}: {subtitle}"
    states = [run_state(run) for run in results.runs]
    state = "running" if "running" in states else states[0]
    done = max((one.last_round for one in results.methods), default=0)
    warnings = [f"Warning: {text}" for run in results.runs for text in run.facts.warnings]
    return {
        "title": " and ".join(run.id for run in results.runs),
        "subtitle": subtitle,
        "data": about.data_line(first) if results.methods and not others else "",
        "state": state,
        "status": f"{state}, {counted(done, 'round')}",
        "lead": headline(results) + warnings,
    }


def write_page(
    head: Mapping[str, Any],
    found: Mapping[str, Sequence[Any]],
    path: Path,
) -> Path:
    """Write the page; its folder is made.

    Args:
        head: see `describe`.
        found: the items of every section by its title; a title with items can be opened.
        path: of the page.
    """
    with needing("report", "the page"):
        import jinja2

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["specification"] = packed
    scripts = [_asset("page.js")]
    missing = ""
    try:
        scripts.insert(0, chart_script())
    except ClientwiseError as error:
        missing = f"No charts: {error}"
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    template = environment.from_string(_asset("page.html"))
    text = template.render(
        head=head, sections=found, scripts=scripts, hashes=hashes, missing=missing
    )
    make_folder(path.parent)
    write_atomically(path, text.encode())
    return path


def _asset(name: str) -> str:
    """A file of the page, as text."""
    return (files(__package__) / name).read_text(encoding="utf-8")


@cache
def chart_script() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, 0.9 MB; it takes seconds to make, so the user's cache keeps it."""
    with needing("report", "a chart"):
        import vl_convert  # noqa: F401

    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clientwise"
    cached = folder / f"charts-{version('vl-convert-python')}.js"
    with suppress(OSError):
        return cached.read_text(encoding="utf-8")
    (script,) = converted([("javascript_bundle", "window.vegaEmbed = vegaEmbed;", {})])
    with suppress(OSError):
        make_folder(folder)
        write_atomically(cached, script)
    return script.decode()


# Files beside the page ----------------------------------------------------------------------------


def write_items(
    items: Iterable[Item],
    folder: Path,
    figures: Sequence[Format] = (),
) -> None:
    """Every table as CSV and LaTeX, and every chart in these formats."""
    used: set[str] = set()
    charts: dict[str, Chart] = {}
    make_folder(folder / "tables")
    for item in items:
        if isinstance(item, Table):
            name = _file_name(item.id, used)
            write_atomically(folder / "tables" / f"{name}.csv", as_csv(item).encode())
            write_atomically(folder / "tables" / f"{name}.tex", as_latex(item).encode())
        elif isinstance(item, Chart):
            charts[_file_name(item.id, used)] = item
    for format in figures:
        make_folder(folder / "figures")
        drawn = pictures([*charts.values()], format)
        for name, content in zip(charts, drawn, strict=True):
            write_atomically(folder / "figures" / f"{name}.{format}", content)


def as_csv(table: Table) -> str:
    """The values of a table, not their wording; every number has its own column."""
    frame = table.frame.map(_inert)
    text: str = frame.rename(columns=_inert).to_csv(index=False, lineterminator="\n")
    return text


def _inert(value: object) -> object:
    """A value that no spreadsheet takes for a formula: members choose their names.

    >>> _inert("=1+1"), _inert(-1.5), _inert("north")
    ("'=1+1", -1.5, 'north')
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULAS) else value


def as_latex(table: Table) -> str:
    """A table for a paper, whose author chooses the columns, and writes a caption."""
    sides = "".join("r" if name in table.numeric else "l" for name in table.columns)
    frame = DataFrame(table.texts(), columns=table.columns)
    rows: str = frame.to_latex(index=False, escape=True, column_format=sides)
    about = "".join(
        f"% {line}\n" for text in (table.title, table.note) for line in text.splitlines()
    )
    return f"{about}% \\usepackage{{booktabs}}\n{rows}"


def _file_name(text: str, taken: set[str]) -> str:
    """A name that is valid on every file system and not taken yet, whatever its case."""
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", text)[:80].strip("-.")
    every = chain([plain], (f"{plain}-{number}" for number in count(2)))
    name = next(one for one in every if one.lower() not in taken)
    taken.add(name.lower())
    return name


# While a run goes on ------------------------------------------------------------------------------


def write_while_running(folders: Sequence[Path], write: Callable[[], None]) -> None:
    """Call `write` every few seconds while a process writes to a run, and once after that.

    Ctrl-C between two calls ends it. A run that is just beginning is waited for.
    """
    while any(is_locked(folder) for folder in folders):
        began = time.monotonic()
        with suppress(NotBegunError):
            write()
        try:
            time.sleep(max(SECONDS, REST * (time.monotonic() - began)))
        except KeyboardInterrupt:
            return
    write()


def unique_names(folders: Sequence[Path]) -> dict[str, Path]:
    """Run folders by name; equal names have their place in the list behind them."""
    names = [os.fsencode(one.resolve().name).decode(errors="replace") for one in folders]
    found = {}
    for place, (name, folder) in enumerate(zip(names, folders, strict=True), 1):
        found[name if names.count(name) == 1 else f"{name}~{place}"] = folder
    return found

"""The report as one HTML page that loads nothing from the network, and what is written beside it."""

from __future__ import annotations

import base64
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import MissingPackageError, NotBegunError, needing
from ..record.database import DATABASE
from ..record.files import is_locked
from ..record.run import RunFolder
from ..registry import listed
from ..writing import make_folder, write_atomically
from . import about as _about
from . import sections as _sections
from .charts import COLOURS, COLUMN, Format, packed, specification
from .files import write_items
from .items import SECTIONS, Chart, Item, Table, counted
from .results import Results, run_state
from .verdict import headline

FIRST, LAST = (
    ["Result", "What was run"],
    ["Config"],
)  # the others stand between, as they are defined
SECONDS = 3.0  # between two looks at a run that goes on
REST = 10  # times as long as writing took: reading must not slow the run
Audit = Callable[
    [RunFolder], Iterable[tuple[str, Sequence[Item]]]
]  # titles, and what can be opened beneath each


def write_report(
    runs: Sequence[RunFolder],
    out: Path,
    figures: Sequence[Format] = (),
    audit: Audit | None = None,
    width: float = COLUMN,
) -> Path:
    """Write the report on one run, or several compared, and return the path of its page.

    Args:
        runs: at least one.
        out: the folder of the report; tables and figures stand beside the page.
        figures: the formats in which figures are drawn.
        audit: what the page says of single rounds.
        width: of figures, in inches.
    """
    results = Results(runs)
    found = report_sections(results)
    if audit is not None:
        found["Weight audit"] = [part for run in runs for part in audit(run)]
    page = write_page(
        describe(results), found, out / "report.html", [one.label for one in results.methods]
    )
    items = [item for part in found.values() for item in part if isinstance(item, Table | Chart)]
    write_items(items, out, figures, [one.label for one in results.methods], width)
    return page


def report_sections(results: Results) -> dict[str, list[Any]]:
    """The items of every section by its title; without the sections that have none."""
    if not results.methods:
        return {}
    titles = [*FIRST, *(title for title in SECTIONS if title not in FIRST + LAST), *LAST]
    found = {title: list(SECTIONS[title](results)) for title in titles}
    return {title: items for title, items in found.items() if items}


def describe(results: Results) -> dict[str, Any]:
    """The head of the page: what it is about, in words, and the metric in a few pixels."""
    first, *others = results.runs
    rounds = " or ".join(
        counted(number, "round") for number in sorted({run.facts.rounds for run in results.runs})
    )
    methods = listed(dict.fromkeys(one.name for one in results.methods))
    text = f"{methods}; {counted(len(results.seeds), 'seed')}, {rounds}"
    states = [run_state(run) for run in results.runs]
    state = "running" if "running" in states else states[0]
    done = max((one.last_round for one in results.methods), default=0)
    return {
        "title": " and ".join(run.id for run in results.runs),
        "subtitle": text
        if others or first.facts.name == first.id
        else f"{first.facts.name}: {text}",
        "data": None if others or not results.methods else _about.data_line(first),
        "state": state,
        "status": f"{state}, {counted(done, 'round')}",
        "lead": [
            *headline(results),
            *(f"Warning: {text}" for run in results.runs for text in run.facts.warnings),
        ],
        "curve": None if results.is_unmeasured or not results.methods else _head_curve(results),
    }


def _head_curve(results: Results) -> dict[str, Any] | None:
    """The metric over the rounds in a few pixels: the best method and the baseline stand out."""
    frame = _sections.metric_chart(results).frame
    if frame.empty:
        return None
    named = [results.baseline.label, results.best.label]
    colours = {
        one.label: COLOURS[place % len(COLOURS)] for place, one in enumerate(results.methods)
    }
    low, high, last = frame["value"].min(), frame["value"].max(), int(frame["round"].max())
    points = (
        (frame["round"].astype(str) + "," + (-frame["value"]).astype(str))
        .groupby(frame["method"])
        .agg(" ".join)
    )
    ordered = sorted(points.index, key=lambda name: named.index(name) if name in named else -1)
    return {
        "title": f"{results.facts.metric} on {results.facts.reported_on}, round 1 to {last}",
        "low": results.unit.text(low),
        "high": results.unit.text(high),
        "box": f"1 {-high} {max(last - 1, 1)} {high - low or 1}",
        "lines": [
            (name, points[name], colours[name] if name in named else None) for name in ordered
        ],
        "others": len(points.index.difference(named)),
    }


def write_page(
    head: Mapping[str, Any],
    found: Mapping[str, Sequence[Any]],
    path: Path,
    methods: Sequence[str] = (),
) -> Path:
    """Write the page; its folder is made.

    Args:
        head: see `describe`.
        found: the items of every section by its title; a title with items can be opened.
        path: of the page.
        methods: all methods, so that each has its colour in all charts.
    """
    with needing("report", "the page"):
        import jinja2

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.tests |= {
        kind.__name__.lower(): lambda item, kind=kind: isinstance(item, kind)
        for kind in (Table, Chart, tuple)
    }
    environment.filters["specification"] = lambda chart: packed(specification(chart, methods))
    items = [
        one
        for part in found.values()
        for item in part
        for one in (item[1] if isinstance(item, tuple) else [item])
    ]
    scripts = [_asset("page.js")]
    if any(isinstance(item, Chart) for item in items):
        try:
            scripts.insert(0, chart_script())
        except MissingPackageError as error:
            head = {**head, "missing": str(error)}
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    template = environment.from_string(_asset("page.html"))
    text = template.render(head=head, sections=found, scripts=scripts, hashes=hashes)
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
        import vl_convert

    version = f"{vl_convert.get_vegalite_versions()[-1]}-{vl_convert.get_vega_version()}"
    cached = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "clientwise"
        / f"charts-{version}.js"
    )
    with suppress(OSError):
        return cached.read_text(encoding="utf-8")
    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    if "</script" in script.lower() or "<!--" in script:  # it would end too early, or never
        raise ValueError("the script of the charts cannot stand inside a page")
    with suppress(OSError):
        make_folder(cached.parent)
        write_atomically(cached, script.encode())
    return script


def write_while_running(folders: Sequence[Path], write: Callable[[], None]) -> None:
    """Call `write` whenever a run has changed, and once after no process writes to a run any more.

    Ctrl-C between two calls ends it. A run that is just beginning is waited for.
    """
    seen = None
    pause = SECONDS
    while any(is_locked(folder) for folder in folders):
        now = [_size_and_time(folder) for folder in folders]
        if now != seen:
            began = time.monotonic()
            with suppress(NotBegunError):
                write()
            seen = now
            pause = max(SECONDS, REST * (time.monotonic() - began))
        try:
            time.sleep(pause)
        except KeyboardInterrupt:
            return
    write()


def _size_and_time(folder: Path) -> list[tuple[int, int]]:
    """Of the files that a run writes its rounds to."""
    found = []
    for name in (DATABASE, f"{DATABASE}-wal"):
        with suppress(OSError):
            facts = (folder / name).stat()
            found.append((facts.st_size, facts.st_mtime_ns))
    return found


def unique_names(folders: Sequence[Path]) -> dict[str, Path]:
    """Run folders by name; equal names are numbered."""
    names: dict[str, Path] = {}
    for folder in folders:
        plain = os.fsencode(folder.resolve().name).decode(errors="replace")
        name, number = plain, 1
        while name in names:
            number += 1
            name = f"{plain}~{number}"
        names[name] = folder
    return names

"""Items of a report in the terminal, the list of runs, and a run in a Python session or a notebook."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas
from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from ..errors import ClientwiseError, RunError
from ..record.database import DATABASE
from ..record.files import CONFIG
from ..record.run import RunFolder
from ..registry import listed
from . import escape
from .about import data_name
from .charts import PAGE, pictures
from .items import Item, Table, Unit, counted
from .results import Results, difference_between, run_state
from .sections import (
    brief_notes,
    clients,
    metric_chart,
    privacy,
    result_table,
)
from .verdict import headline, in_words

if TYPE_CHECKING:
    from ..experiment.tune import Trial

NARROWEST = 24  # characters of a column of words, where the terminal is narrow


def print_items(console: Console, items: Iterable[Item]) -> None:
    """Print tables and texts; charts are for pages."""
    for item in items:
        if isinstance(item, Table):
            console.print(_fitting(console, item))
            console.print(escape(item.note))
        elif isinstance(item, str):
            console.print(escape(item))


def _fitting(console: Console, item: Table) -> RichTable:
    """A table; while it is wider than the terminal, its secondary columns are left out, one after the other."""
    shown = list(item.columns)
    missing = []
    unlimited = console.options.update(max_width=10_000)
    for name in item.secondary:
        narrowest = _rich(item, shown, NARROWEST)
        if console.measure(narrowest, options=unlimited).maximum <= console.width:
            break
        if name in shown:
            shown.remove(name)
            missing.append(name)
    fitting = _rich(item, shown)
    if missing:
        caption = f"Not shown in {console.width} columns: {', '.join(missing)}."
        fitting.caption = escape(caption)
        fitting.caption_justify = "left"
    return fitting


def _rich(item: Table, shown: Sequence[str], most: int | None = None) -> RichTable:
    """A table of the columns `shown`; columns of words have at most `most` characters."""
    found = RichTable(
        title=escape(item.title),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),  # so that tables fit into 80 columns
        pad_edge=False,
        show_edge=False,
    )
    for name in shown:
        if name in item.numeric:
            head = escape(name).replace(" ", "\n")
            found.add_column(head, justify="right", overflow="fold")
        else:
            found.add_column(escape(name), overflow="fold", max_width=most)
    for number, texts in enumerate(item.texts()):
        named = dict(zip(item.columns, texts, strict=True))
        style = "bold" if number in item.bold else None
        found.add_row(*(escape(named[name]) for name in shown), style=style)
    return found


def run_items(run: RunFolder) -> Iterator[Item]:
    """A run in the terminal: its results, and what they show in sentences."""
    results = Results([run])
    title = f"{run.id}: {counted(max(one.last_round for one in results.methods), 'round')}"
    if results.has_several_seeds:
        title += f", mean ± SD of {len(results.seeds)} seeds"
    yield replace(result_table(results), title=title, note="")
    yield from headline(results)
    yield from brief_notes(results)
    for promises in privacy(results):
        for row in promises.frame.to_dict("records"):
            spent = f"ε = {row['ε so far']:.3f} at δ = {row['δ']} after all rounds so far"
            yield f"{row['method']}: {spent} ({row['neighbours']}; noise: {row['noise']})."
    for one in results.methods:
        told = [*one.notes, *("refused: " + one.refusals["reason"])]
        constant = one.rounds["no_effect"].dropna().explode().dropna()
        told += [f"{name} was constant across clients and had no effect" for name in constant]
        for text, times in Counter(told).items():
            yield f"{one.label}: {text} ({counted(times, 'time')})"
    if not run.finished:
        yield "This run is not finished."


def comparison(run: RunFolder, other: RunFolder) -> Iterator[Item]:
    """A run, and the same with one thing changed: both tables of results, and each method against itself."""
    results = Results([run, other])
    yield replace(result_table(results), title="Before and after the change", note="")
    yield from clients(results)
    for one, theirs in zip(Results([run]).methods, Results([other]).methods, strict=False):
        difference = difference_between(theirs, one)
        if difference is not None:
            yield f"{one.label}: {run.facts.metric} is {in_words(difference, results)}."


def trials_table(method: str, trials: Sequence[Trial], is_share: bool) -> Table:
    """One line per trial of a method, the best first: its values, and the metric with its spread over the seeds."""
    spread = Unit(is_share).spread
    rows = []
    for one in trials:
        metrics = pandas.Series(one.metrics)
        rows.append({**one.values, "metric": spread(metrics.mean(), metrics.std())})
    title = f"{method}: {counted(len(trials), 'trial')}"
    return Table(f"trials-{method}", title, pandas.DataFrame(rows))


def run_text(run: RunFolder) -> str:
    """A run in a Python session: its state, its headline, and one line per method."""
    results = Results([run])
    sizes = {
        "method": len(run.methods),
        "seed": len(results.seeds),
        "round": run.facts.rounds,
    }
    size = ", ".join(counted(number, noun) for noun, number in sizes.items())
    head = f"Run({str(run.folder)!r}): {run_state(run)}, {size}"
    shown = _texts(result_table(results)).iloc[:, :2]
    return "\n".join([head, *headline(results), shown.to_string(index=False)])


def _texts(table: Table) -> pandas.DataFrame:
    return pandas.DataFrame(table.texts(), columns=table.columns)


def run_html(run: RunFolder) -> str:
    """A run in a notebook: its state, its headline, one row per method, and the metric over the rounds."""
    from html import escape as quoted

    results = Results([run])
    lines = [f"<strong>{quoted(f'{run.id}: {run_state(run)}')}</strong>"]
    lines += [f"<div>{quoted(line)}</div>" for line in headline(results)]
    lines.append(_texts(result_table(results)).to_html(index=False))
    try:
        (image,) = pictures([metric_chart(results)], "svg", PAGE)
        source = f"data:image/svg+xml;base64,{b64encode(image).decode()}"
        lines.append(f'<img src="{source}">')
    except ClientwiseError as error:
        lines.append(f"<div>{quoted(str(error))}</div>")
    return "".join(lines)


# ------------------------------------------------------------------------ the list of runs


def list_runs(folder: Path) -> Table:
    """All runs in a folder, the newest first."""
    # Links may lead out of the folder and are not followed. To see such a run, name it.
    inside = [one for one in folder.iterdir() if not one.is_symlink() and one.name[0] != "."]
    runs = [one for one in inside if (one / DATABASE).exists() or (one / CONFIG).exists()]
    newest_first = sorted(runs, key=lambda one: one.stat().st_mtime, reverse=True)
    rows = pandas.DataFrame([_line(one) for one in newest_first])
    shown = rows.dropna(axis="columns", how="all")
    return Table("runs", counted(len(rows), "run"), shown, secondary=("seeds", "by"))


def _line(folder: Path) -> dict[str, Any]:
    """A run in the list; for a folder that cannot be read, the reason."""
    try:
        run = RunFolder(folder)
        results = Results([run])
        best = next((one for one in results.ranked if one.mean_metric is not None), None)
        return {
            "run": run.id,
            "state": run_state(run),
            "begun": run.facts.begun,
            "data": data_name(run),
            "methods": listed(run.methods),
            "seeds": run.lanes["seed"].nunique(),
            "rounds": f"{run.lanes['rounds'].sum()} of {run.facts.lanes * run.facts.rounds}",
            "best": best and results.unit.text(best.mean_metric),
            "by": best and best.label,
        }
    except RunError as error:
        reason = str(error).replace(f"{folder}: ", "")
        return {"run": folder.name, "state": "unreadable", "note": reason}

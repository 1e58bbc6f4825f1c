"""Progress of a run: a live bar in a terminal or notebook, a few plain lines elsewhere; and of a report."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

from .output.markup import escape
from .units import Unit

if TYPE_CHECKING:
    from ..experiment.running.lanes import Progress

OnRound = Callable[["Progress"], None]
QUIET_SECONDS = 10.0  # between two lines where no bar is shown
REDRAW_SECONDS = 0.2  # between two updates of a bar in a notebook


def in_notebook() -> bool:
    """Whether a notebook shows what this process displays."""
    interactive = sys.modules.get("IPython")
    return interactive is not None and hasattr(interactive.get_ipython(), "kernel")


def somebody_watches(console: Console) -> bool:
    """Whether there is a terminal or notebook that can show a bar."""
    return console.is_terminal or in_notebook()


@contextmanager
def show_progress(console: Console) -> Iterator[OnRound]:
    """A context that shows progress: its value is to be called after every round."""
    if in_notebook():
        yield _notebook_bar()
        return
    if not console.is_terminal:
        yield _plain_lines(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console) as bar:
        task = bar.add_task("starting", total=None)

        def on_round(progress: Progress) -> None:
            text = escape(describe(progress))
            bar.update(task, description=text, completed=progress.done, total=progress.total)

        yield on_round


@contextmanager
def show_drawing(console: Console) -> Iterator[Callable[[int, int], None]]:
    """A context that shows which figure of a report is drawn: its value is called with its number."""
    last = time.monotonic()
    with console.status("Writing the report") as status:  # which only a terminal shows

        def on_figure(number: int, total: int) -> None:
            nonlocal last
            text = f"Drawing figure {number} of {total}"
            status.update(text)
            now = time.monotonic()
            if not console.is_terminal and (number == 1 or now - last >= QUIET_SECONDS):
                last = now
                console.print(text, soft_wrap=True)

        yield on_figure


def _notebook_bar() -> OnRound:
    from IPython.display import HTML, display

    shown = display(HTML("starting"), display_id=True)
    last = 0.0

    def on_round(progress: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        if progress.done < progress.total and now - last < REDRAW_SECONDS:
            return
        last = now
        bar = f'<progress value="{progress.done}" max="{progress.total}"></progress>'
        text = html.escape(describe(progress))
        shown.update(HTML(f"{bar} {progress.done} of {progress.total} rounds; {text}"))

    return on_round


def _plain_lines(console: Console) -> OnRound:
    began = time.monotonic()
    last = began

    def on_round(progress: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        if not progress.is_last and now - last < QUIET_SECONDS:
            return
        last = now
        done = f"{progress.done} of {progress.total} rounds, {now - began:.0f} s"
        console.print(f"{escape(describe(progress))}  ({done})", soft_wrap=True)

    return on_round


def describe(progress: Progress) -> str:
    """The last round in one short line: "FedAvg, seed 1: round  3/10   81.4%"."""
    record = progress.record
    digits = len(str(progress.rounds))
    line = f"{progress.method}, seed {progress.seed}: "
    line += f"round {record.round_num:>{digits}}/{progress.rounds}"
    evaluation = record.report or record.local
    if evaluation:
        line += f"  {Unit(progress.is_share).text(float(evaluation.overall()[0])):>6}"
    return line

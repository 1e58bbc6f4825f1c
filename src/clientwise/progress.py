"""Progress of a run: a live bar in a terminal or notebook, a few plain lines elsewhere."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from .experiment.lanes import Progress

QUIET_SECONDS = 10.0  # between two lines when nobody watches
REDRAW_SECONDS = 0.2  # between two pictures of a bar in a notebook


def in_notebook() -> bool:
    """Whether a notebook shows what this process displays."""
    interactive = sys.modules.get("IPython")
    return interactive is not None and hasattr(interactive.get_ipython(), "kernel")


def somebody_watches(console: Console) -> bool:
    """Whether a bar would be seen."""
    return console.is_terminal or in_notebook()


@contextmanager
def show_progress(console: Console) -> Iterator[Callable[[Progress], None]]:
    """Gives a function to be called after every round."""
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
            bar.update(task, description=escape(describe(progress)), completed=progress.done, total=progress.total)

        yield on_round


def _notebook_bar() -> Callable[[Progress], None]:
    from IPython.display import HTML, display

    shown, last = display(HTML("starting"), display_id=True), 0.0

    def on_round(progress: Progress) -> None:
        nonlocal last
        if progress.done == progress.total or time.monotonic() - last >= REDRAW_SECONDS:
            last = time.monotonic()
            bar = f'<progress value="{progress.done}" max="{progress.total}"></progress>'
            shown.update(HTML(f"{bar} {progress.done} of {progress.total} rounds; {html.escape(describe(progress))}"))

    return on_round


def _plain_lines(console: Console) -> Callable[[Progress], None]:
    began = last = time.monotonic()

    def on_round(progress: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        ended = progress.record.round_num == progress.rounds
        if ended or now - last >= QUIET_SECONDS:
            last = now
            console.print(
                f"{escape(describe(progress))}  ({progress.done} of {progress.total} rounds, {now - began:.0f} s)",
                soft_wrap=True,
            )

    return on_round


def describe(progress: Progress) -> str:
    """What the last round was, in one short line."""
    record = progress.record
    shown = record.report or record.local
    value = f"  {float(shown.overall()[0]):6.1%}" if shown else ""
    place = f"{record.round_num:>{len(str(progress.rounds))}}/{progress.rounds}"
    return f"{progress.method}, seed {progress.seed}: round {place}{value}"

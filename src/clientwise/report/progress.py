"""Progress of a run: a live bar in a terminal, a few plain lines elsewhere."""

from __future__ import annotations

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

from . import escape

if TYPE_CHECKING:
    from ..experiment.trackers import Progress

OnRound = Callable[["Progress"], None]
QUIET_SECONDS = 10.0  # between two lines where no bar is shown


def somebody_watches(console: Console) -> bool:
    """Whether a terminal or notebook shows what is printed."""
    return console.is_terminal or console.is_jupyter


@contextmanager
def show_progress(console: Console) -> Iterator[OnRound]:
    """A context that shows progress: its value is to be called after every round."""
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


def _plain_lines(console: Console) -> OnRound:
    began = last = time.monotonic()

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
        metric = float(evaluation.overall()[0])
        line += f"  {f'{metric:.1%}' if progress.is_share else f'{metric:.4g}':>6}"
    return line

"""Figures of a run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .summary import Run

# Okabe and Ito's colours: told apart by the colour-blind too; line styles tell them apart in print.
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#D55E00", "#0072B2", "#999999", "#F0E442")
STYLES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 3)), (0, (2, 3)))


def draw_curves(run: Run, path: Path) -> Path:
    """The metric over the rounds, mean and range over the seeds; beside it the weight of the hostile, if any."""
    from matplotlib.figure import Figure  # imported here: it takes a while, and few commands draw

    panels: list[tuple[str, Callable[[str, int], list[tuple[int, float]]]]] = [
        (f"{run.metric} on held-out data", lambda method, seed: run.curve("metric", method, seed))
    ]
    if run.has_hostile:
        panels.append(("weight of the hostile clients", run.hostile_weights))
    figure = Figure(figsize=(6.2 * len(panels), 4.4), layout="constrained")
    for place, (title, curve) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), place + 1)
        for index, method in enumerate(run.methods):
            seeds = [seed for _, name, seed in run.lanes if name == method]
            rounds, middle, low, high = _band([curve(method, seed) for seed in seeds])
            colour = COLOURS[index % len(COLOURS)]
            axes.plot(rounds, middle, label=method, color=colour, linestyle=STYLES[index % len(STYLES)], linewidth=1.8)
            if len(seeds) > 1 and place == 0:  # the weights jump with the cohort: their range would hide the lines
                axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
        if place == 0 and run.target is not None:
            axes.axhline(run.target, color="#999999", linewidth=0.8)
        axes.set(title=title, xlabel="round")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.grid(alpha=0.3)
        if place == 0:
            axes.legend(loc="lower right" if run.higher_is_better else "upper right")
    figure.savefig(path, dpi=110)
    return path


def _band(
    curves: Sequence[list[tuple[int, float]]],
) -> tuple[list[int], list[float], list[float], list[float]]:
    """Rounds that all seeds have reached, and mean, minimum and maximum over the seeds."""
    values = [dict(curve) for curve in curves]
    rounds = sorted(set.intersection(*(set(curve) for curve in values))) if values else []
    columns = [[curve[round_num] for curve in values] for round_num in rounds]
    return rounds, [statistics.fmean(c) for c in columns], [min(c) for c in columns], [max(c) for c in columns]

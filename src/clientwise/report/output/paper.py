"""Charts as PDF for papers: the width of a column, embedded fonts, lines that differ in grey."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...writing import replacing
from ..document import Chart
from ..marks import (
    CRITERION_COLOURS,
    MOVER_COLOURS,
    Bars,
    Boxes,
    HeatMap,
    Lines,
    Mark,
    Timeline,
)
from .figures import add_legend, draw_mark, require_matplotlib, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN = 3.3  # inches: a column of a page with two columns
PAGE = 6.8  # inches: both columns
LINES_INSIDE = 3  # with more, the legend stands below the picture
CELLS_IN_COLUMN = 6  # columns of a heat map whose texts fit into `COLUMN`
MARKERS = ("", "o", "s", "^", "D", "v", "P", "X")
HATCHES = dict(  # by colour; the bars where a weight ends are plain
    zip(
        (*CRITERION_COLOURS, *MOVER_COLOURS.values()),
        ("////", "xxxx", "++++", "----", "....", "||||", "oooo", "\\\\\\\\"),
        strict=True,
    )
)
HIGHEST = 8.5  # inches
LONGEST_LABEL = 22  # letters in a line of the legend
LEGEND_SIZE = 7
LETTER = 0.55  # width of a letter, in heights of the font
HANDLE = 36  # points of a legend's entry beside its text
SETTINGS: dict[Any, Any] = {
    "pdf.fonttype": 42,  # TrueType: many publishers refuse Type 3
    "font.size": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": LEGEND_SIZE,
    "axes.linewidth": 0.6,
}


def draw_for_print(chart: Chart, path: Path, width: float = COLUMN) -> None:
    """Draw a chart into a PDF of a width in inches. It has no title: papers have captions."""
    require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(SETTINGS):
        figure = Figure(layout="constrained")
        axes = figure.add_subplot()
        draw_mark(axes, chart.mark)
        figure.set_size_inches(_size(chart, width))
        tell_apart(axes, chart.mark)
        if isinstance(chart.mark, Lines):
            axes.set_ylabel(textwrap.fill(short(chart.title, 78), 26), parse_math=False)
        _place_legend(figure, axes, chart)
        for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]:
            label.set_parse_math(False)
        about = {"Title": chart.title, "Subject": chart.alt, "CreationDate": None}
        with replacing(path) as temporary:
            figure.savefig(temporary, format="pdf", metadata=about)


def _size(chart: Chart, width: float) -> tuple[float, float]:
    """Width and height in inches, without a legend below; every row of a list adds height."""
    mark = chart.mark
    height = 2.1 if width <= COLUMN else 2.8
    rows = 0
    if isinstance(mark, Bars):
        rows = len(mark.categories)
    elif isinstance(mark, Boxes):
        rows = len(mark.boxes)
    elif isinstance(mark, HeatMap):
        rows = len(mark.rows)
        if mark.texts is not None and len(mark.columns) > CELLS_IN_COLUMN:
            width = PAGE
    elif isinstance(mark, Timeline):
        height = 3.2  # it has two pairs of axes
    return width, min(HIGHEST, max(height, 1.0 + 0.14 * rows))


def tell_apart(axes: Axes, mark: Mark) -> None:
    """Without colours: lines of one style get different markers, and groups of bars hatches."""
    if isinstance(mark, Bars):
        for bars, group in zip(axes.containers, mark.groups, strict=True):
            for bar in bars:
                bar.set(hatch=HATCHES.get(group.colour), edgecolor="white", linewidth=0)
    if isinstance(mark, Lines):
        used: Counter[str] = Counter()
        for drawn, line in zip(axes.get_lines(), mark.lines, strict=False):  # the target is last
            drawn.set(linewidth=1.1, markersize=3.5)
            if len(line.x) > 1:
                drawn.set_marker(MARKERS[used[line.dash] % len(MARKERS)])
                drawn.set_markevery(max(1, len(line.x) // 8))
            used[line.dash] += 1


def _place_legend(figure: Figure, axes: Axes, chart: Chart) -> None:
    """Few lines have it inside, where it covers least; others below, where it adds its height."""
    legend = axes.get_legend()
    if legend is None:
        return
    handles, labels = axes.get_legend_handles_labels()
    legend.remove()
    if isinstance(chart.mark, Lines) and len(labels) <= LINES_INSIDE:
        add_legend(axes, beside=False, size=LEGEND_SIZE)
        return
    shortened = [textwrap.fill(label, LONGEST_LABEL) for label in labels]
    longest = max(len(line) for label in shortened for line in label.splitlines())
    width, height = figure.get_size_inches()
    columns = int(72 * width / (longest * LETTER * LEGEND_SIZE + HANDLE))
    columns = max(1, min(columns, len(labels)))
    lines = sum(label.count("\n") + 1 for label in shortened)
    figure.set_size_inches(width, height + 0.15 * math.ceil(lines / columns) + 0.1)
    below = figure.legend(
        handles,
        shortened,
        loc="outside lower center",
        ncols=columns,
        columnspacing=1,
        handlelength=2.4,
        frameon=False,
    )
    for text in below.get_texts():
        text.set_parse_math(False)

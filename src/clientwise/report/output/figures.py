"""Charts as pictures: the same charts the page shows, drawn with matplotlib as PNG and SVG."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import needing
from ...writing import replacing
from ..document import Chart
from ..marks import (
    Axis,
    Bars,
    Boxes,
    HeatMap,
    Line,
    Lines,
    Mark,
    Timeline,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

MANY_LINES = 5  # with more, the legend stands beside the picture
MAX_ROW_LABELS = 20  # of a heat map
TITLE_WIDTH = 56  # letters in a line
MAX_TITLE = 180  # letters
MAX_TICKS = 6  # intervals of a percentage axis below a picture: more labels touch each other
DOTS_PER_INCH = 200
_STYLES: dict[str, str | tuple[int, tuple[int, ...]]] = {
    "solid": "-",
    "dash": "--",
    "dashdot": "-.",
    "dot": ":",
    "longdash": (0, (7, 2)),
    "longdashdot": (0, (7, 2, 1, 2)),
}


def require_matplotlib() -> None:
    """An error that says how to install it, before any work."""
    with needing("report", "a figure"):
        import matplotlib  # noqa: F401


def draw(charts: Sequence[Chart], *paths: Path) -> None:
    """Draw charts side by side into one picture, once per path, in the format of its ending."""
    require_matplotlib()
    from matplotlib import rc_context  # imported here: it is slow, and few commands draw
    from matplotlib.figure import Figure

    figure = Figure()
    draw_into(figure, charts)
    for path in paths:
        about = {"Date": None} if path.suffix == ".svg" else {"Description": charts[0].alt}
        kind = path.suffix.removeprefix(".")
        # Without a salt, every SVG has names of its own.
        with replacing(path) as temporary, rc_context({"svg.hashsalt": "clientwise"}):
            figure.savefig(
                temporary, format=kind, dpi=DOTS_PER_INCH, bbox_inches="tight", metadata=about
            )


def draw_into(figure: Figure, charts: Sequence[Chart]) -> None:
    """Draw charts side by side into an empty figure."""
    figure.set_layout_engine("constrained")
    figure.set_size_inches(6.4 * len(charts), 4.4)
    for number, chart in enumerate(charts, start=1):
        axes = figure.add_subplot(1, len(charts), number)
        draw_mark(axes, chart.mark)
        axes.set_title(_in_lines(chart.title), fontsize=11, parse_math=False)
        for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]:
            label.set_parse_math(False)  # a dollar sign in a name is a dollar sign


def _in_lines(title: str) -> str:
    """A title in lines of about one length."""
    title = short(title, MAX_TITLE)
    lines = math.ceil(len(title) / TITLE_WIDTH)
    return textwrap.fill(title, min(TITLE_WIDTH, len(title) // lines + 6))


def draw_mark(axes: Axes, mark: Mark) -> None:
    """Draw what a chart shows, without its title."""
    match mark:
        case Lines():
            _draw_lines(axes, mark)
        case Bars():
            _draw_bars(axes, mark)
        case Boxes():
            _draw_boxes(axes, mark)
        case HeatMap(texts=None):
            _draw_heat_map(axes, mark)
        case HeatMap():
            _draw_labelled_cells(axes, mark)
        case Timeline():
            _draw_timeline(axes, mark)


def _draw_lines(axes: Axes, mark: Lines) -> None:
    from matplotlib.ticker import MaxNLocator

    for line in mark.lines:
        axes.plot(
            _known(line.x),
            line.y,
            linestyle=_STYLES[line.dash],
            color=line.colour,
            label=short(line.name, 36),
            linewidth=1.8,
            marker="o" if len(line.x) == 1 else None,
        )
    _draw_bands(axes, mark.lines)
    if mark.reference is not None:
        axes.axhline(mark.reference, color="#999999", linewidth=0.8)
    if mark.y.log:
        axes.set_yscale("log")
    _finish_x(axes, mark.x)
    _finish_y(axes, mark.y)
    names = axes.get_legend_handles_labels()[1]
    if not names:
        return
    if mark.x.label == "round":  # there is no round 2.5
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    add_legend(axes, beside=len(names) > MANY_LINES)


def _draw_bands(axes: Axes, lines: Sequence[Line]) -> None:
    """The ranges over the seeds; of many lines, whose bands would hide each other, at the end."""
    ranges = [(line, line.band) for line in lines if line.band is not None]
    for index, (line, band) in enumerate(ranges):
        x = _known(line.x)
        if band.visible:
            area = axes.fill_between(x, band.low, band.high, color=line.colour)
            area.set(alpha=0.18, linewidth=0)
        else:
            last = x[-1]
            beside = last + (1 + index) * max(1, last) / 60
            label = "" if index else "range over the seeds at the end"
            ends = band.low[-1], band.high[-1]
            axes.vlines(beside, *ends, color=[line.colour], linewidth=2.5, label=label)


def _draw_bars(axes: Axes, mark: Bars) -> None:
    axes.use_sticky_edges = False
    height = 0.7 / len(mark.groups)
    rows = range(len(mark.categories))
    for index, group in enumerate(mark.groups):
        offset = (index - (len(mark.groups) - 1) / 2) * height
        starts = group.starts or [0.0] * len(rows)
        widths = [end - start for start, end in zip(starts, group.ends, strict=True)]
        middles = [row + offset for row in rows]
        axes.barh(middles, widths, height, left=starts, color=group.colour, label=group.name)
    size = "small" if len(rows) <= MAX_ROW_LABELS else "x-small"
    axes.set_yticks(rows, [short(name, 30) for name in mark.categories], fontsize=size)
    axes.invert_yaxis()
    axes.axvline(mark.reference, color="#999999", linewidth=0.8)
    axes.set_ylabel("client")
    _finish_x(axes, mark.axis)
    add_legend(axes, beside=True)


def _draw_boxes(axes: Axes, mark: Boxes) -> None:
    names = [short(box.name, 20) for box in mark.boxes]
    values = [box.values for box in mark.boxes]
    axes.boxplot(values, tick_labels=names, widths=0.6, orientation="horizontal")
    axes.invert_yaxis()
    _finish_x(axes, mark.axis)


def _draw_heat_map(axes: Axes, mark: HeatMap) -> None:
    """Rounds or classes × clients or classes, with a colour bar."""
    names = [short(column, 20) for column in mark.columns if isinstance(column, str)]
    firsts = [*range(len(names))] if names else [float(column) for column in mark.columns]
    width = firsts[1] - firsts[0] if len(firsts) > 1 else 1
    height = len(mark.rows)
    image = axes.imshow(
        [_known(row) for row in mark.values],
        aspect="auto",
        cmap=_colour_map(mark),
        origin="lower",
        interpolation="nearest",
        vmin=mark.lowest,
        vmax=mark.highest,
        extent=(firsts[0] - 0.5, firsts[-1] + width - 0.5, -0.5, height - 0.5),
    )
    step = math.ceil(height / MAX_ROW_LABELS)
    axes.set_yticks(range(0, height, step), mark.rows[::step], fontsize="small")
    if names:
        step = math.ceil(len(names) / MAX_ROW_LABELS)
        axes.set_xticks(range(0, len(names), step), names[::step], fontsize="small")
        if any(len(name) > 3 for name in names):
            axes.tick_params("x", rotation=40)
    axes.set_xlabel(mark.column_label)
    axes.set_ylabel(mark.row_label)
    assert axes.figure is not None
    form = _percent if mark.percent else None
    axes.figure.colorbar(image, ax=axes, format=form, label=mark.value_label)


def _draw_labelled_cells(axes: Axes, mark: HeatMap) -> None:
    """Categories × categories, every cell with its text."""
    width = len(mark.columns)
    height = len(mark.rows)
    figure = axes.get_figure(root=True)
    if figure is not None:
        figure.set_size_inches(3.2 + 0.5 * width, 1.8 + 0.26 * height)
    axes.imshow(
        [_known(row) for row in mark.values],
        aspect="auto",
        cmap=_colour_map(mark),
        origin="lower",
        vmin=mark.lowest,
        vmax=mark.highest,
    )
    axes.set_xticks(range(width), map(str, mark.columns), rotation=40, ha="right", fontsize=7)
    axes.set_yticks(range(height), mark.rows, fontsize=7)
    middle = (mark.lowest + mark.highest) / 2
    for row, texts in enumerate(mark.texts or ()):
        for column, text in enumerate(texts):
            value = mark.values[row][column] or 0.0
            dark = (value < middle) != mark.lower_is_better
            colour = "white" if dark else "black"
            axes.text(column, row, text, ha="center", va="center", fontsize=6.5, color=colour)


def _colour_map(mark: HeatMap) -> Colormap:
    """The colours that the page has."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("heat", list(mark.colours))


def _draw_timeline(axes: Axes, mark: Timeline) -> None:
    states = [state.replace(" > ", " >\n") for state in mark.states]  # orders of priority are long
    axes.plot(mark.rounds, states, "o", markersize=4, color=mark.colour)
    axes.set_xlabel("round")
    below = axes.inset_axes((0, -0.44, 1, 0.22), sharex=axes)
    below.bar(mark.rounds, mark.counts, color="#56B4E9", alpha=0.5)
    below.set_ylabel(mark.counted.replace(" ", "\n"), fontsize=8)
    below.tick_params(labelbottom=False)


def _finish_x(axes: Axes, axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(axis.label)
    axes.set_xlim(_within(axes.get_xlim(), axis))
    if axis.percent:
        axes.xaxis.set_major_locator(MaxNLocator(MAX_TICKS, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(_percent)


def _finish_y(axes: Axes, axis: Axis) -> None:
    axes.set_ylim(_within(axes.get_ylim(), axis))
    if axis.percent:
        axes.yaxis.set_major_formatter(_percent)


def _percent(value: float, _: float | None = None) -> str:
    """A tick's label, with as many decimals as it takes.

    >>> _percent(0.1), _percent(0.125)
    ('10%', '12.5%')
    """
    return f"{100 * value:.6g}%"


def _within(ends: tuple[float, float], axis: Axis) -> tuple[float, float]:
    low = -math.inf if axis.low is None else axis.low
    high = math.inf if axis.high is None else axis.high
    return max(ends[0], low), min(ends[1], high)


def add_legend(axes: Axes, *, beside: bool, size: float = 9) -> None:
    """A grid and a legend, beside the picture where it would cover it."""
    axes.grid(alpha=0.3)
    if beside:
        legend = axes.legend(fontsize=size, loc="center left", bbox_to_anchor=(1, 0.5))
    else:
        legend = axes.legend(fontsize=size, loc="best")
    for text in legend.get_texts():
        text.set_parse_math(False)


def _known(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def short(text: str, length: int = 60) -> str:
    """A name cut to a length; matplotlib hides names that begin with an underscore."""
    if len(text) > length:
        text = f"{text[: length - 1]}…"
    return text.lstrip("_") or "…"

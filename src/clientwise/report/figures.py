"""Charts as pictures: the same charts the page shows, drawn with matplotlib as PNG and SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..runs.files import make_way, naming
from .document import Chart, Plotly

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours: told apart by the colour-blind too; line styles tell them apart in print.
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#D55E00", "#0072B2", "#999999", "#B8A900")
MANY_LINES = 5  # their names are written beside the picture, not into it
_STYLES: dict[str, str | tuple[int, tuple[int, ...]]] = {
    "solid": "-",
    "dash": "--",
    "dashdot": "-.",
    "dot": ":",
    "longdash": (0, (7, 2)),
    "longdashdot": (0, (7, 2, 1, 2)),
}


def value_axis(values: Sequence[float], *, percent: bool) -> Plotly:
    """An axis that does not go below zero or above one where no value does: there is no share of -20%.

    >>> value_axis([0.25, 1.0], percent=True)["autorangeoptions"]
    {'clipmin': 0, 'clipmax': 1.01}
    """
    known = [value for value in values if math.isfinite(value)]
    ends: dict[str, float] = {"clipmin": 0} if min(known, default=0) >= 0 else {}
    ends |= {"clipmax": 1.01} if max(known, default=1) <= 1 else {}  # a mark at 100% is a whole one
    # "~": as many decimals as it takes to tell two ticks apart.
    return {"autorangeoptions": ends, **({"tickformat": "~%", "hoverformat": ".1%"} if percent else {})}


def draw(charts: Sequence[Chart], *paths: Path) -> None:
    """Draw charts side by side into one picture, once per path; the ending of a path says in which format."""
    from matplotlib.figure import Figure  # imported here: it takes a while, and few commands draw

    figure = Figure()
    draw_into(figure, charts)
    for path in paths:
        about = {"Date": None} if path.suffix == ".svg" else {"Description": charts[0].alt}
        with naming(path):
            figure.savefig(make_way(path), dpi=110, bbox_inches="tight", metadata=about)


def draw_into(figure: Figure, charts: Sequence[Chart]) -> None:
    """Draw charts side by side into an empty figure."""
    figure.set_layout_engine("constrained")
    figure.set_size_inches(6.4 * len(charts), 4.4)
    for number, chart in enumerate(charts, start=1):
        _draw_chart(figure.add_subplot(1, len(charts), number), chart)


def _draw_chart(axes: Axes, chart: Chart) -> None:
    boxes = [trace for trace in chart.data if trace.get("type") == "box"]
    flat = [trace for trace in chart.data if trace.get("orientation") == "h" and trace not in boxes]
    ranges = [trace for trace in chart.data if trace.get("meta", {}).get("range")]
    for trace in chart.data:
        if trace not in boxes + flat + ranges:
            _draw_trace(axes, trace)
    if boxes:
        names = [_short(trace["name"], 20) for trace in boxes]
        axes.boxplot([trace["x"] for trace in boxes], tick_labels=names, widths=0.6, orientation="horizontal")
    if flat:
        _draw_bars(axes, flat)
    if boxes or flat:
        axes.invert_yaxis()
    _draw_ranges(axes, ranges)
    for shape in chart.layout.get("shapes", ()):
        line, place = (axes.axvline, shape["x0"]) if shape.get("yref") == "paper" else (axes.axhline, shape["y0"])
        line(place, color=shape["line"]["color"], linewidth=0.8)
    axes.set_title(_short(chart.title), fontsize=11, parse_math=False)
    x_title = chart.layout.get("xaxis", {}).get("title", {}).get("text", "")
    axes.set_xlabel(x_title)
    if chart.layout.get("yaxis", {}).get("type") == "log":
        axes.set_yscale("log")
    _finish_axes(axes, chart.layout)
    for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]:
        label.set_parse_math(False)
    if names := axes.get_legend_handles_labels()[1]:
        _finish_lines(axes, over_rounds=x_title == "round", beside=len(names) > MANY_LINES or bool(flat))


def _draw_trace(axes: Axes, trace: Plotly) -> None:
    kind = trace.get("type", "scatter")
    if kind == "heatmap":
        _draw_heat_map(axes, trace)
    elif kind == "bar":
        below = axes.inset_axes((0, -0.44, 1, 0.22), sharex=axes)
        below.bar(trace["x"], trace["y"], color=trace["marker"]["color"], alpha=trace["marker"]["opacity"])
        below.set_ylabel(trace["name"].replace(" ", "\n"), fontsize=8)
        below.tick_params(labelbottom=False)
    elif "line" not in trace:
        labels = [str(label).replace(" > ", " >\n") for label in trace["y"]]  # orders of priority are long
        axes.plot(trace["x"], labels, "o", markersize=4, color=trace["marker"]["color"])
    else:
        axes.plot(
            trace["x"],
            trace["y"],
            linestyle=_STYLES.get(trace["line"].get("dash", "solid"), "-"),
            color=trace["line"]["color"],
            label=_short(trace["name"], 36),
            linewidth=1.8,
            marker="o" if len(trace["x"]) == 1 else None,
        )


def _draw_ranges(axes: Axes, ranges: Sequence[Plotly]) -> None:
    """The ranges over the seeds: as bands, or of many lines, where bands would hide each other, only at the end."""
    for place, trace in enumerate(ranges):
        half = len(trace["x"]) // 2
        rounds, high, low = trace["x"][:half], trace["y"][:half], trace["y"][half:][::-1]
        colour, opacity = _colour(trace["fillcolor"])
        if trace["visible"]:
            axes.fill_between(rounds, low, high, color=colour, alpha=opacity, linewidth=0)
        else:
            beside = rounds[-1] + (1 + place) * max(1, rounds[-1]) / 60
            label = "" if place else "range over the seeds at the end"
            axes.vlines(beside, low[-1], high[-1], color=[colour], linewidth=2.5, label=label)


def _draw_bars(axes: Axes, traces: Sequence[Plotly]) -> None:
    """Horizontal bars, those of a category one above the other; a bar may begin elsewhere than at zero."""
    axes.use_sticky_edges = False
    height = 0.7 / len(traces)
    names, count = traces[0]["y"], len(traces[0]["y"])
    for place, trace in enumerate(traces):
        middles = [row + (place - (len(traces) - 1) / 2) * height for row in range(count)]
        axes.barh(
            middles, trace["x"], height, left=trace.get("base", 0), color=trace["marker"]["color"], label=trace["name"]
        )
    axes.set_yticks(range(count), [_short(name, 30) for name in names], fontsize=7)


def _finish_axes(axes: Axes, layout: Plotly) -> None:
    """Shares as percent, and no axis beyond what its values can be."""
    from matplotlib.ticker import PercentFormatter

    for name, axis, ends, limit in (
        ("xaxis", axes.xaxis, axes.get_xlim(), axes.set_xlim),
        ("yaxis", axes.yaxis, axes.get_ylim(), axes.set_ylim),
    ):
        given = layout.get(name, {})
        if str(given.get("tickformat", "")).endswith("%"):
            axis.set_major_formatter(PercentFormatter(1))
        if clip := given.get("autorangeoptions"):
            limit(max(ends[0], clip.get("clipmin", -math.inf)), min(ends[1], clip.get("clipmax", math.inf)))


def _finish_lines(axes: Axes, *, over_rounds: bool, beside: bool) -> None:
    """Grid and legend of a chart of lines, beside it where it would cover them."""
    from matplotlib.ticker import MaxNLocator

    if over_rounds:
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))  # no round 2.5
    axes.grid(alpha=0.3)
    where = (1, 0.5) if beside else None
    for text in axes.legend(fontsize=9, loc="center left" if beside else "best", bbox_to_anchor=where).get_texts():
        text.set_parse_math(False)  # a dollar sign in a name is a dollar sign


def _short(text: str, length: int = 60) -> str:
    """A name that leaves room for the picture; matplotlib would hide one that begins with an underscore."""
    return (text if len(text) <= length else f"{text[: length - 1]}…").lstrip("_") or "…"


def _draw_heat_map(axes: Axes, trace: Plotly) -> None:
    if "text" in trace:
        _draw_labelled_cells(axes, trace)
        return
    from matplotlib.ticker import PercentFormatter

    grid = [[float("nan") if value is None else value for value in row] for row in trace["z"]]
    height = len(grid)
    width = trace["x"][1] - trace["x"][0] if len(trace["x"]) > 1 else 1
    image = axes.imshow(
        grid,
        aspect="auto",
        cmap="cividis",
        origin="lower",
        interpolation="nearest",
        vmin=trace.get("zmin"),
        vmax=trace.get("zmax"),
        extent=(trace["x"][0] - 0.5, trace["x"][-1] + width - 0.5, -0.5, height - 0.5),
    )
    step = -(-height // 20)
    axes.set_yticks(range(0, height, step), trace["y"][::step], fontsize=7)
    assert axes.figure is not None
    shares = "%" in trace["colorbar"].get("tickformat", "")
    axes.figure.colorbar(image, ax=axes, format=PercentFormatter(1) if shares else None)


def _draw_labelled_cells(axes: Axes, trace: Plotly) -> None:
    """Categories × categories, every cell with its value."""
    width, height = len(trace["x"]), len(trace["y"])
    if (figure := axes.get_figure(root=True)) is not None:
        figure.set_size_inches(3.2 + 0.5 * width, 1.8 + 0.26 * height)
    colours = "cividis_r" if trace["reversescale"] else "cividis"
    axes.imshow(
        trace["z"], aspect="auto", cmap=colours, origin="lower", vmin=trace["zmin"], vmax=trace["zmax"], alpha=0.9
    )
    axes.set_xticks(range(width), trace["x"], rotation=40, ha="right", fontsize=7)
    axes.set_yticks(range(height), trace["y"], fontsize=7)
    for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]:
        label.set_parse_math(False)
    for row, (texts, values) in enumerate(zip(trace["text"], trace["z"], strict=True)):
        for column, (text, value) in enumerate(zip(texts, values, strict=True)):
            dark = (value < 0.5) != trace["reversescale"]
            axes.text(column, row, text, ha="center", va="center", fontsize=6.5, color="white" if dark else "black")


def _colour(text: str) -> tuple[tuple[float, ...], float]:
    """Colour and opacity of `rgba(r, g, b, a)`."""
    *parts, opacity = (float(part) for part in text.removeprefix("rgba(").removesuffix(")").split(","))
    return tuple(part / 255 for part in parts), opacity

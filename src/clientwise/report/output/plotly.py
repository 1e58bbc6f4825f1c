"""Marks as traces and layouts of plotly.js, for the page.

A trace whose points open audits says so once, as `meta`: {"open": "round" or "client", "method",
"seed", "run"}. The number of the round or client is the point's x, or stands in `numbers`.
A trace with `meta`: {"range": true} is the range of a line over the seeds.
"""

from __future__ import annotations

from typing import Any

from ..document import percent_of, value_text
from ..marks import (
    GREY,
    AuditLinks,
    Axis,
    Band,
    BarGroup,
    Bars,
    Box,
    Boxes,
    HeatMap,
    Line,
    Lines,
    Mark,
    Timeline,
)

Plotly = dict[str, Any]  # a trace or a layout
CATEGORIES_DOWNWARD = {"type": "category", "autorange": "reversed"}


def traces_and_layout(mark: Mark) -> tuple[list[Plotly], Plotly]:
    """What plotly.js draws, and the part of the layout that depends on it."""
    match mark:
        case Lines():
            return _lines(mark)
        case Bars():
            return _bars(mark)
        case Boxes():
            return _boxes(mark)
        case HeatMap():
            return _heat_map(mark)
        case Timeline():
            return _timeline(mark)


def _lines(mark: Lines) -> tuple[list[Plotly], Plotly]:
    traces = []
    for line in mark.lines:
        if line.band is not None:
            traces.append(_band(line, line.band))
        traces.append(_line(line, mark))
    layout: Plotly = {"xaxis": _axis(mark.x), "yaxis": _axis(mark.y)}
    if mark.reference is not None:
        ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": mark.reference, "y1": mark.reference}
        layout["shapes"] = [{"type": "line", **ends, "line": {"width": 1, "color": GREY}}]
    if mark.height is not None:
        layout["height"] = mark.height
    return traces, layout


def _line(line: Line, chart: Lines) -> Plotly:
    position = f"%{{x:.3g}} {chart.x.unit}" if chart.x.unit else f"{chart.x.label} %{{x}}"
    number = ".1%" if chart.y.percent else ".4g"
    template = f"%{{fullData.name}}<br>{position}: %{{y:{number}}}"
    trace: Plotly = {
        "x": line.x,
        "y": line.y,
        "name": line.name,
        "mode": _mode(line),
        "line": {"color": line.colour, "dash": line.dash, "width": 2},
        "legendgroup": line.name,
        **_meta(line.links),
    }
    if line.band is not None:
        template += f"<br>%{{text}} over {line.band.seeds} seeds"
        trace["text"] = _ranges(line.band, chart.y.percent)
    trace["hovertemplate"] = f"{template}<extra></extra>"
    return trace


def _mode(line: Line) -> str:
    if line.markers:
        return "lines+markers"
    return "lines" if len(line.x) > 1 else "markers"


def _ranges(band: Band, percent: bool) -> list[str]:
    ends = zip(band.low, band.high, strict=True)
    return [f"{value_text(low, percent)} to {value_text(high, percent)}" for low, high in ends]


def _band(line: Line, band: Band) -> Plotly:
    return {
        "x": [*line.x, *reversed(line.x)],
        "y": [*band.high, *reversed(band.low)],
        "fill": "toself",
        "fillcolor": _faint(line.colour),
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        "visible": band.visible,
        "legendgroup": line.name,
        "name": f"{line.name}, range",
        "mode": "lines",
        "meta": {"range": True},
    }


def _faint(colour: str) -> str:
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return f"rgba({red}, {green}, {blue}, 0.18)"


def _bars(mark: Bars) -> tuple[list[Plotly], Plotly]:
    equal = mark.reference
    ends = {"yref": "paper", "y0": 0, "y1": 1, "x0": equal, "x1": equal}
    layout = {
        "xaxis": _axis(mark.axis),
        "yaxis": CATEGORIES_DOWNWARD,
        "barmode": "group",
        "bargap": 0.3,
        "shapes": [{"type": "line", **ends, "line": {"width": 1, "dash": "dot", "color": GREY}}],
        "height": 110 + max(22, 8 * (len(mark.groups) + 1)) * len(mark.categories),
    }
    return [_bar_group(group, mark) for group in mark.groups], layout


def _bar_group(group: BarGroup, chart: Bars) -> Plotly:
    trace: Plotly = {
        "type": "bar",
        "orientation": "h",
        "name": group.name,
        "y": chart.categories,
        "x": group.ends,
        "text": [percent_of(end) for end in group.ends],
        "textposition": "none",
        "hovertemplate": "client %{y}<br>%{fullData.name}: %{text}<extra></extra>",
        "marker": {"color": group.colour},
        **_meta(chart.links),
    }
    if group.starts is not None:
        moves = list(zip(group.starts, group.ends, strict=True))
        trace["base"] = group.starts
        trace["x"] = [end - start for start, end in moves]
        trace["text"] = [f"{percent_of(start)} → {percent_of(end)}" for start, end in moves]
    return trace


def _boxes(mark: Boxes) -> tuple[list[Plotly], Plotly]:
    layout = {
        "xaxis": _axis(mark.axis),
        "yaxis": CATEGORIES_DOWNWARD,
        "showlegend": False,
        "height": 80 + 44 * len(mark.boxes),
    }
    return [_box(box) for box in mark.boxes], layout


def _box(box: Box) -> Plotly:
    return {
        "type": "box",
        "orientation": "h",
        "x": box.values,
        "name": box.name,
        "marker": {"color": box.colour},
        "boxpoints": "outliers",
        "hoveron": "points",  # the numbers of a lying box would be written aslant, and cut
    }


def _heat_map(mark: HeatMap) -> tuple[list[Plotly], Plotly]:
    value = "%{z:.2%}" if mark.percent else "%{z:.3f}"
    trace: Plotly = {
        "type": "heatmap",
        "x": mark.columns,
        "y": mark.rows,
        "z": mark.values,
        "colorscale": [
            [index / (len(mark.colours) - 1), colour] for index, colour in enumerate(mark.colours)
        ],
        "zmin": mark.lowest,
        "zmax": mark.highest,
        "hoverongaps": False,
        "colorbar": {"thickness": 12},
        **_meta(mark.links),
    }
    layout: Plotly = {
        "xaxis": _titled(mark.column_label),
        "yaxis": {"type": "category", **_titled(mark.row_label)},
        "height": max(260, min(900, 90 + 16 * len(mark.rows))),
    }
    if mark.percent:
        trace["colorbar"]["tickformat"] = "~%"
    if mark.texts is not None:
        value = "%{text}%" if mark.percent else "%{text}"
        trace["text"] = mark.texts
        trace["texttemplate"] = "%{text}"
        layout["xaxis"] = {"type": "category", "tickangle": -40}
        layout["height"] = 160 + 24 * len(mark.rows)
    row = f"{mark.row_label} %{{y}}".lstrip()
    column = f"{mark.column_label} %{{x}}".lstrip()
    trace["hovertemplate"] = f"{row}<br>{column}: {value}<extra></extra>"
    return [trace], layout


def _timeline(mark: Timeline) -> tuple[list[Plotly], Plotly]:
    states = {
        "x": mark.rounds,
        "y": mark.states,
        "mode": "markers",
        "name": "order",
        "hovertemplate": "round %{x}<br>%{y}<extra></extra>",
        "marker": {"color": mark.colour, "size": 7},
        **_meta(mark.links),
    }
    counts = {
        "type": "bar",
        "x": mark.rounds,
        "y": mark.counts,
        "name": mark.counted,
        "hovertemplate": f"round %{{x}}: %{{y}} {mark.counted}<extra></extra>",
        "yaxis": "y2",
        "marker": {"color": "#56B4E9", "opacity": 0.5},
    }
    layout = {
        "xaxis": {**_titled("round"), "anchor": "y2"},
        "yaxis": {"type": "category", "domain": [0.35, 1]},
        "yaxis2": {"domain": [0, 0.25], **_titled("tests"), "anchor": "x"},
    }
    return [states, counts], layout


def _axis(axis: Axis) -> Plotly:
    if axis.log:
        return {"type": "log", "uirevision": "log"}
    shown = _titled(axis.label)
    limits = {"clipmin": axis.low, "clipmax": axis.high}
    known = {name: limit for name, limit in limits.items() if limit is not None}
    if known:
        shown["autorangeoptions"] = known
    if axis.percent:
        shown["tickformat"] = "~%"  # as many decimals as it takes to distinguish two ticks
        shown["hoverformat"] = ".1%"
    return shown


def _titled(label: str) -> Plotly:
    return {"title": {"text": label}} if label else {}


def _meta(links: AuditLinks | None) -> Plotly:
    if links is None:
        return {}
    meta: Plotly = {
        "open": links.kind,
        "method": links.method,
        "seed": links.seed,
        "run": links.run,
    }
    if links.numbers is not None:
        meta["numbers"] = links.numbers
    return {"meta": meta}

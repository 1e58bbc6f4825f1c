"""Charts as Vega-Lite: interactive on the page and in notebooks, and as PDF, PNG or SVG for a paper.

What comes from a run stands in the data of a chart, never in its markup or its expressions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from ..errors import needing
from ..writing import make_folder, write_atomically
from .items import Chart

Format = Literal["pdf", "png", "svg"]
FORMATS: tuple[Format, ...] = get_args(Format)
Layer = dict[str, Any]
COLUMN, PAGE = 3.3, 6.8  # inches: a column of a page with two, and the page
POINTS = 72  # in an inch
# Okabe and Ito's colours, which colour-blind readers can distinguish; in print, dashes help. The first is that of text.
COLOURS = (
    "currentColor",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#CC79A7",
    "#D55E00",
    "#0072B2",
    "#999999",
    "#B8A900",
)
DASHES = ([1, 0], [6, 2], [6, 2, 1, 2], [2, 2], [10, 3], [10, 3, 2, 3])
MOST_BANDS = 2  # that can overlap and still be read
TEXT = {"labelColor": "currentColor", "titleColor": "currentColor"}
CONFIG: dict[str, Any] = {
    "font": "system-ui, sans-serif",
    "background": "transparent",
    "view": {"stroke": None},
    "axis": {
        **TEXT,
        "gridColor": "#88888840",
        "domainColor": "#88888880",
        "tickColor": "#88888880",
    },
    "legend": {
        **TEXT,
        "orient": "top",
        "columns": 3,
        "symbolType": "stroke",
        "symbolStrokeWidth": 2,
        "symbolOpacity": 1,
        "labelLimit": 240,
        "title": None,
    },
    "title": {"color": "currentColor", "anchor": "start", "limit": 500},
}


def specification(
    chart: Chart, methods: Sequence[str] = (), width: float | Literal["container"] = "container"
) -> Any:
    """A chart as Vega-Lite.

    Args:
        chart: the chart.
        methods: all methods of a report, so that each has its colour in all charts.
        width: in points; by default that of the page.
    """
    layers = {"lines": _lines, "dots": _dots, "bars": _bars, "cells": _cells}[chart.kind](
        chart, list(methods)
    )
    if chart.reference is not None:
        across = {"datum": chart.reference}
        rule = {"type": "rule", "strokeDash": [4, 4], "color": "currentColor", "opacity": 0.6}
        layers.append(
            {"mark": rule, "encoding": {"y": across} if chart.kind == "lines" else {"x": across}}
        )
    count = chart.frame[chart.y].nunique() if chart.kind != "lines" else 0
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "description": chart.alt or chart.title,
        "data": {"values": _rows(chart)},
        "width": width,
        "height": 240 if chart.kind == "lines" else min(40 + 18 * count, 700),
        "autosize": {"type": "fit-x", "contains": "padding"},
        "layer": layers,
        "config": CONFIG,
    }


def _rows(chart: Chart) -> list[dict[str, Any]]:
    """The frame as JSON has it: five digits of a number, and null for what is absent."""
    columns = {}
    for name in chart.frame:
        values = chart.frame[name].tolist()
        known = [
            None if value != value or value in (math.inf, -math.inf) else value for value in values
        ]
        columns[name] = [
            float(f"{value:.5g}") if isinstance(value, float) else value for value in known
        ]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def packed(spec: dict[str, Any]) -> dict[str, Any]:
    """A chart whose data name every column once: as the page carries it, whose script unpacks them."""
    rows = spec["data"]["values"]
    return {
        **spec,
        "data": {
            "columns": {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
        },
    }


def figure(
    chart: Chart, methods: Sequence[str] = (), width: float = POINTS * PAGE
) -> dict[str, Any]:
    """A chart with its title, as it stands alone: in a notebook, or in a paper."""
    spec: dict[str, Any] = specification(chart, methods, width)
    return {**spec, "title": {"text": chart.title, "fontSize": 11}, "background": "white"}


def picture(
    chart: Chart, format: Format, methods: Sequence[str] = (), width: float = COLUMN
) -> bytes:
    """A chart as a file for a paper."""
    with needing("report", "a figure"):
        import vl_convert
    spec = figure(chart, methods, POINTS * width)
    if format == "png":
        return bytes(vl_convert.vegalite_to_png(spec, ppi=200))
    if format == "svg":
        return str(vl_convert.vegalite_to_svg(spec)).encode()
    return bytes(vl_convert.vegalite_to_pdf(spec))


def draw(chart: Chart, path: Path, methods: Sequence[str] = (), width: float = PAGE) -> None:
    """Write a chart in the format that the file's name ends in."""
    make_folder(path.parent)
    write_atomically(path, picture(chart, path.suffix[1:], methods, width))  # type: ignore[arg-type]


def _lines(chart: Chart, methods: list[str]) -> list[Layer]:
    scale = {"type": "log"} if chart.logarithmic else {"zero": False}
    step = {"tickMinStep": 1} if chart.frame[chart.x].dtype.kind in "iu" else {}
    x = _field(chart.x, scale={"nice": False}, axis=step)
    y = _field(chart.y, scale=scale, title=None, axis={"format": chart.format})
    colour = _colour(chart, methods)
    names = colour["scale"]["domain"]
    dash = {**colour, "scale": {"domain": names, "range": [*DASHES]}}
    layers = [
        {
            "mark": {"type": "line", "strokeWidth": 2},
            "encoding": {"x": x, "y": y, "color": colour, "strokeDash": dash},
        }
    ]
    touched = {"x": x, "y": y, "color": colour, "opacity": {"value": 0}, "tooltip": _tips(chart)}
    picked = {
        "name": "pick",
        "select": {"type": "point", "fields": [chart.colour], "on": "pointerover"},
    }
    point = {"type": "point", "size": 90}
    layers.append({"name": "points", "mark": point, "encoding": touched, "params": [picked]})
    if chart.low:  # the range of the line that one points at
        always = 0.15 if len(names) <= MOST_BANDS else 0.0
        shown = {"condition": {"param": "pick", "empty": False, "value": 0.25}, "value": always}
        band = {
            "x": x,
            "y": {**y, "field": chart.low},
            "y2": {"field": chart.high},
            "color": colour,
            "opacity": shown,
        }
        layers.insert(0, {"mark": "area", "encoding": band})
    return layers


def _dots(chart: Chart, methods: list[str]) -> list[Layer]:
    encoding = _by_name(chart, methods)
    encoding["x"]["scale"] = {"zero": False}
    encoding["color"]["legend"] = None
    median = {**encoding, "x": {**encoding["x"], "aggregate": "median"}, "tooltip": None}
    tick = {"type": "tick", "thickness": 3, "size": 16}
    return [
        {"mark": {"type": "circle", "opacity": 0.4}, "encoding": encoding},
        {"mark": tick, "encoding": median},
    ]


def _bars(chart: Chart, methods: list[str]) -> list[Layer]:
    encoding = _by_name(chart, methods)
    if chart.low:
        encoding |= {"x": {**encoding["x"], "field": chart.low}, "x2": {"field": chart.high}}
    if chart.colour:  # side by side: steps may go back and forth
        encoding["yOffset"] = _field(chart.colour, "nominal", sort=None)
        encoding["color"]["legend"]["symbolType"] = "square"
    return [{"mark": "bar", "encoding": encoding}]


def _by_name(chart: Chart, methods: list[str]) -> dict[str, Any]:
    """Values beside names."""
    x = _field(chart.x, title=None, axis={"format": chart.format})
    colour = {"color": _colour(chart, methods)} if chart.colour else {}
    return {
        "x": x,
        "y": _field(chart.y, "nominal", sort=None, title=None),
        "tooltip": _tips(chart),
        **colour,
    }


def _cells(chart: Chart, methods: list[str]) -> list[Layer]:
    scale = {"scheme": "cividis"} | (
        {"domain": [*chart.limits], "clamp": True} if chart.limits else {}
    )
    legend = {"format": chart.format, "gradientLength": 120, "orient": "right", "title": None}
    encoding = {
        "x": _field(chart.x, "ordinal", sort=None, axis={"labelOverlap": True, "labelAngle": 0}),
        "y": _field(chart.y, "nominal", sort=None, title=None, axis={"labelOverlap": True}),
        "color": _field(chart.colour, scale=scale, legend=legend),
        "tooltip": _tips(chart),
    }
    return [{"mark": "rect", "encoding": encoding}]


def _field(name: str, kind: str = "quantitative", **options: Any) -> dict[str, Any]:
    return {"field": name, "type": kind, **options}


def _colour(chart: Chart, methods: list[str]) -> dict[str, Any]:
    """The colour of a name: the same in all charts, where it is that of a method."""
    names = list(dict.fromkeys(chart.frame[chart.colour]))
    domain = methods if {*names} <= {*methods} else names
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(domain))]
    return _field(
        chart.colour,
        "nominal",
        scale={"domain": domain, "range": colours},
        legend={"values": names},
    )


def _tips(chart: Chart) -> list[dict[str, Any]]:
    """What is shown beside the pointer."""
    precise = {".0%": ".1%", "~g": ".4~g"}.get(chart.format, chart.format)
    values = {
        chart.low,
        chart.high,
        chart.y if chart.kind == "lines" else chart.colour if chart.kind == "cells" else chart.x,
    }
    found = []
    for name in chart.frame.columns:
        is_number = chart.frame[name].dtype.kind in "iuf"
        format = {"format": precise if name in values else "~g"} if is_number else {}
        found.append(_field(name, "quantitative" if is_number else "nominal", **format))
    return found

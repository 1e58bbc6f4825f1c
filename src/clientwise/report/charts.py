"""Charts as Vega-Lite: interactive on the page and in notebooks, and as PDF, PNG or SVG for a paper.

What comes from a run stands in the data of a chart, never in its markup or its expressions.
"""

from __future__ import annotations

import base64
import json
import math
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from ..errors import ClientwiseError, needing
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
PATIENCE = 300  # seconds, for all charts of a report: with little memory, drawing may never end
MOST_BANDS = 2  # that can overlap and still be read
# What charts are drawn by ends its whole process where it lacks memory: it has one of its own.
PROGRAM = """
import base64, json, sys, vl_convert
for name, given, options in json.load(sys.stdin):
    made = getattr(vl_convert, name)(given, **options)
    print(base64.b64encode(made.encode() if isinstance(made, str) else made).decode())
"""
TEXT = {"labelColor": "currentColor", "titleColor": "currentColor"}
CONFIG: dict[str, Any] = {
    "font": "system-ui, sans-serif",
    "background": "transparent",
    "view": {"stroke": None},
    "axis": {
        **TEXT,
        "labelLimit": 320,
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
    "title": {"color": "currentColor", "anchor": "start"},
}


def specification(
    chart: Chart, width: float | Literal["container"] = "container"
) -> dict[str, Any]:
    """A chart as Vega-Lite, without its data; the width is in points, by default that of the page."""
    is_lines = chart.kind == "lines"
    layers = {"lines": _lines, "bars": _bars, "cells": _cells}[chart.kind](chart)
    if chart.reference is not None:
        rule = {"type": "rule", "strokeDash": [4, 4], "color": "currentColor", "opacity": 0.6}
        across = {"y" if is_lines else "x": {"datum": chart.reference}}
        layers.append({"mark": rule, "encoding": across})
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "description": chart.alt or chart.title,
        "width": width,
        "height": 240 if is_lines else min(40 + 18 * chart.frame[chart.y].nunique(), 700),
        "autosize": {"type": "fit-x", "contains": "padding"},
        "layer": layers,
        "config": CONFIG,
    }


def columns(chart: Chart) -> dict[str, list[Any]]:
    """The frame as JSON has it: five digits of a number, and null for what is absent."""
    return {name: [_short(one) for one in own.tolist()] for name, own in chart.frame.items()}


def _short(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.5g}") if math.isfinite(value) else None


def figure(chart: Chart, width: float = POINTS * PAGE) -> dict[str, Any]:
    """A chart with its title, as it stands alone: in a notebook, or in a paper.

    The width in points is that of the plot: the picture is as wide as labels, legend and title need.
    """
    legend = {**CONFIG["legend"], "labelLimit": 0, "columns": 2}
    own = columns(chart)
    rows = [dict(zip(own, row, strict=True)) for row in zip(*own.values(), strict=True)]
    return {
        **specification(chart, width),
        "autosize": "pad",
        "background": "white",
        "config": {**CONFIG, "legend": legend},
        "data": {"values": rows},
        "title": {"text": chart.title, "fontSize": 11},
    }


def packed(chart: Chart) -> dict[str, Any]:
    """A chart as the page carries it, whose script unpacks the data: a column is named once, not in every row."""
    return {**specification(chart), "data": {"columns": columns(chart)}}


def pictures(charts: Sequence[Chart], format: Format, width: float = COLUMN) -> list[bytes]:
    """Charts as files for a paper."""
    options = {"ppi": 200} if format == "png" else {}
    specs = [figure(chart, POINTS * width) for chart in charts]
    return converted((f"vegalite_to_{format}", spec, options) for spec in specs)


def draw(chart: Chart, path: Path, width: float = PAGE) -> None:
    """Write a chart in the format that the file's name ends in."""
    (made,) = pictures([chart], path.suffix[1:], width)  # type: ignore[arg-type]
    make_folder(path.parent)
    write_atomically(path, made)


def converted(calls: Iterable[tuple[str, Any, dict[str, Any]]]) -> list[bytes]:
    """What functions of vl-convert return: their names, their argument and their options."""
    with needing("report", "a chart"):
        import vl_convert  # noqa: F401
    command = [sys.executable, "-P", "-c", PROGRAM]
    given = json.dumps([*calls]).encode()
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise ClientwiseError(
            f"charts cannot be drawn: not done after {PATIENCE} seconds; too little memory?"
        ) from None
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        said = f" ({reason[0]})" if reason and done.returncode > 0 else ": too little memory?"
        raise ClientwiseError(f"charts cannot be drawn{said}")
    return [base64.b64decode(line) for line in done.stdout.split()]


def _lines(chart: Chart) -> list[Layer]:
    scale = {"type": "log"} if chart.logarithmic else {"zero": False}
    step = {"tickMinStep": 1} if chart.frame[chart.x].dtype.kind in "iu" else {}
    y = _field(chart.y, scale=scale, title=None, axis={"format": chart.format})
    names = list(chart.names or chart.frame[chart.colour].unique())
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(names))]
    legend = {"values": list(chart.frame[chart.colour].unique())}
    named = partial(_field, chart.colour, "nominal", legend=legend)
    place = {
        "x": _field(chart.x, scale={"nice": False}, axis=step),
        "y": y,
        "color": named(scale={"domain": names, "range": colours}),
    }
    dashed = {**place, "strokeDash": named(scale={"domain": names, "range": [*DASHES]})}
    touched = {**place, "opacity": {"value": 0}, "tooltip": _tips(chart)}
    layers: list[Layer] = [
        {"mark": {"type": "line", "strokeWidth": 2}, "encoding": dashed},
        {"mark": {"type": "point", "size": 90}, "encoding": touched},
    ]
    if chart.low in chart.frame and len(names) <= MOST_BANDS:
        ends = {"y": {**y, "field": chart.low}, "y2": {"field": chart.high}}
        layers.insert(0, {"mark": {"type": "area", "opacity": 0.15}, "encoding": {**place, **ends}})
    return layers


def _bars(chart: Chart) -> list[Layer]:
    encoding = {
        "x": _field(chart.x, title=None, axis={"format": chart.format}),
        "y": _field(chart.y, "nominal", sort=None, title=None),
        "tooltip": _tips(chart),
    }
    return [{"mark": "bar", "encoding": encoding}]


def _cells(chart: Chart) -> list[Layer]:
    scale: dict[str, Any] = {"scheme": "cividis"}
    if chart.limits:
        scale |= {"domain": [*chart.limits], "clamp": True}
    legend = {"format": chart.format, "gradientLength": 120, "orient": "right", "title": None}
    order = "ascending" if chart.x in _numbers(chart) else None
    axis = {"labelOverlap": True, "labelAngle": 0}
    encoding = {
        "x": _field(chart.x, "ordinal", sort=order, axis=axis),
        "y": _field(chart.y, "nominal", sort=None, title=None, axis={"labelOverlap": True}),
        "color": _field(chart.colour, scale=scale, legend=legend),
        "tooltip": _tips(chart),
    }
    return [{"mark": "rect", "encoding": encoding}]


def _numbers(chart: Chart) -> list[str]:
    """The columns that have numbers."""
    return [name for name in chart.frame if chart.frame[name].dtype.kind in "iuf"]


def _field(name: str, kind: str = "quantitative", **options: Any) -> dict[str, Any]:
    return {"field": name, "type": kind, **options}


def _tips(chart: Chart) -> list[dict[str, Any]]:
    """What is shown beside the pointer."""
    precise = {".0%": ".1%", "~g": ".4~g"}.get(chart.format, chart.format)
    shown = {"lines": chart.y, "bars": chart.x, "cells": chart.colour}[chart.kind]
    formats = dict.fromkeys(_numbers(chart), "~g")
    formats |= dict.fromkeys({shown, chart.low, chart.high} & {*formats}, precise)
    numbers = {name: _field(name, format=text) for name, text in formats.items()}
    return [numbers.get(name) or _field(name, "nominal") for name in chart.frame]

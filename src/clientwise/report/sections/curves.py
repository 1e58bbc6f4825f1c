"""Metric, macro F1 and loss over the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..document import Chart, Section
from ..lines import carried_on, line_chart
from ..marks import FAINT, MAX_POINTS, Lines
from ..scales import rescaled, scales
from ..series import Series, is_unmeasured, rivals


def curves_section(series: Sequence[Series]) -> Section:
    """The curves of all methods; the metric over time and bytes too, where there is a clock."""
    if is_unmeasured(series):
        return Section("curves", "Over the rounds", "", [])
    run = series[0].run
    metric = metric_chart(series)
    charts = [metric]
    charts += [rescaled(metric, scale, series) for scale in scales(series)]
    if run.shows("macro_f1"):
        title = f"macro F1 on {run.reported_on}"
        charts.append(_curve_chart(series, "macro_f1", title, percent=False))
    charts.append(_curve_chart(series, "loss", f"loss on {run.reported_on}", percent=False))
    lead = ""
    if any(len(one.summary.seeds) > 1 for one in series):
        lead = "Lines are means over the seeds. Point at a line to see its range."
    return Section("curves", "Over the rounds", lead, charts)


def metric_chart(series: Sequence[Series]) -> Chart:
    """The metric on held-out samples over the rounds, with the target."""
    run = series[0].run
    title = f"{run.metric} on {run.reported_on}"
    shown = _curve_chart(series, "metric", title, percent=run.is_share)
    assert isinstance(shown.mark, Lines)
    return replace(shown, mark=replace(shown.mark, reference=run.target))


def head_chart(series: Sequence[Series]) -> Chart:
    """The metric over the rounds in a few pixels: the best method and the baseline stand out."""
    shown = metric_chart(series)
    assert isinstance(shown.mark, Lines)
    best, *_ = rivals(series) or series
    named = [best.label] if best is series[0] else [best.label, series[0].label]
    others = []
    front = []
    for line in shown.mark.lines:  # a method without results has none
        plain = replace(line, links=None, band=None)
        if line.name in named:
            front.append(plain)
        else:
            others.append(replace(plain, colour=FAINT, dash="solid"))
    front.sort(key=lambda line: named.index(line.name), reverse=True)
    return replace(shown, mark=replace(shown.mark, lines=[*others, *front]))


def _curve_chart(series: Sequence[Series], column: str, title: str, *, percent: bool) -> Chart:
    curves = []
    for one in series:
        seeds = one.summary.seeds
        found = [one.run.curve(column, one.method, seed, MAX_POINTS) for seed in seeds]
        curves.append((one, carried_on(one, found)))
    return line_chart(column, title, curves, percent=percent)

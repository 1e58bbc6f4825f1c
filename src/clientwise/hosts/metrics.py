"""Metrics that come with the updates: those that all clients report can be averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from ..core.criteria import ANY

Metric = int | float | list[int] | list[float]
MAX_LISTED = 300  # characters
NOT_USABLE = -1  # the form of a metric that cannot be averaged


def keep_common(metrics: Sequence[dict[str, Metric]]) -> list[str]:
    """Remove metrics that cannot be averaged; returns a remark that lists them.

    Such metrics are missing in some replies, have another form there, or are not usable numbers.
    """
    forms = [{name: _form(value) for name, value in one.items()} for one in metrics]
    common = set()
    for name, form in (forms[0] if forms else {}).items():
        if form != NOT_USABLE and all(one.get(name) == form for one in forms):
            common.add(name)
    others = set()
    for one in metrics:
        for name in one.keys() - common:
            others.add(str(name)[:40])
            del one[name]
    if not others:
        return []
    listed = ", ".join(sorted(others))[:MAX_LISTED]
    return [f"not averaged, since not every reply has a usable number for it: {listed}"]


def _form(value: Metric) -> int:
    """0 for a number, n + 1 for n numbers, `NOT_USABLE` where one is not finite or above `ANY`."""
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(one, Real) and abs(one) <= ANY for one in values):  # false for NaN
        return NOT_USABLE
    return len(value) + 1 if isinstance(value, list) else 0


def averaged(
    metrics: Mapping[Any, dict[str, Any]], weights: Mapping[Any, float]
) -> tuple[dict[str, float], list[str]]:
    """The means of single numbers that all clients with a weight report, and remarks on others.

    >>> averaged({"a": {"loss": 1.0}, "b": {"loss": 3.0, "more": 1}}, {"a": 0.25, "b": 0.75})
    ({'loss': 2.5}, ['not averaged, since not every reply has a usable number for it: more'])
    """
    if not any(weights.values()):
        return {}, []
    counted = {client: dict(metrics[client]) for client in weights}
    remarks = keep_common(list(counted.values()))
    means: dict[str, float] = {}
    for client, own in counted.items():
        for name, value in own.items():
            if not isinstance(value, list):
                means[name] = means.get(name, 0.0) + weights[client] * float(value)
    return means, remarks

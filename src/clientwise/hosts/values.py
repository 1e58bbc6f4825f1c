"""Values that come with clients' updates: what clients claim, and what the server measures instead."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from ..core.criteria import ANY, Criterion, is_fixed
from ..core.guard import inspect_values
from ..core.objective.problem import Problem
from ..core.reasons import Reason
from ..errors import plain
from .engine import Layout

Client = str | int
Measure = Callable[[dict[str, Any]], float]
ByClient = Callable[[Any, Mapping[str, Any]], float]
Weights = Mapping[Any, float] | ByClient
Metric = int | float | list[int] | list[float]

WEIGHT = "weight"  # the criterion that the record shows for stated weights
MAX_CHANGE = 1.5  # factor by which a claim about a client's data may differ from its first claim
MAX_REASON = 300  # characters
NOT_USABLE = -1  # the form of a metric that cannot be averaged


class ServerError(Exception):
    """A measurement of the server that fails for its own model, too."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


class FirstClaims:
    """What each client claimed first about its data: later claims must stay near it.

    A claim x is accepted if v/f ≤ x ≤ f·v, where v is the client's first claim and f is `MAX_CHANGE`. So no client
    raises its weight once it is trusted.
    """

    def __init__(self) -> None:
        self.first: dict[tuple[Client, str], float] = {}

    def compare(self, client: Client, name: str, claimed: float) -> None:
        """ValueError where a claim differs too much from the first one."""
        first = self.first.get((client, name))
        if first is None:
            return
        low = first / MAX_CHANGE
        high = first * MAX_CHANGE
        if not low <= claimed <= high:
            raise ValueError(
                f"{name} = {claimed:.12g}, at first {first:.12g}: {low:.6g} to {high:.6g} is allowed"
            )

    def remember(self, client: Client, name: str, claimed: float) -> None:
        """Keep a claim that can be true, if it is the client's first."""
        if 0 <= claimed < math.inf:
            self.first.setdefault((client, name), claimed)


class ClientValues:
    """Reads the values of every update, and remembers clients' first claims.

    Args:
        criteria: of the method.
        measured_here: functions of a client's arrays, by criterion, for what the server measures.
        problem: what the model predicts; it bounds what is measured.
        weights: of clients, instead of criteria; see `Aggregator`.
    """

    def __init__(
        self,
        criteria: Sequence[Criterion],
        measured_here: Mapping[str, Measure],
        problem: Problem,
        weights: Weights | None = None,
    ) -> None:
        self._weight_of = None if weights is None else stated_weights(weights)
        self._criteria = {one.name: one for one in criteria}
        self.claimed = [one for one in criteria if one.measured_by == "client"]
        for name in measured_here.keys() - {one.name for one in self.claimed}:
            raise ValueError(f"measured_here: {name} is none of the criteria that clients claim")
        # The values that must come with every update
        known_here = set(measured_here) if weights is None else {WEIGHT}
        self.asked = tuple(one.name for one in self.claimed if one.name not in known_here)
        self._measured_here = measured_here
        self._problem = problem
        self._claims = FirstClaims()

    def of(
        self,
        client: Client,
        layout: Layout,
        tensors: Mapping[str, Tensor],
        values: Mapping[str, Any],
    ) -> dict[str, float]:
        """The client's criteria: as it claims, or measured here. ValueError where one is missing.

        Args:
            client: the client.
            layout: of the global model.
            tensors: the client's model.
            values: what came with it.
        """
        if not isinstance(values, Mapping):
            raise ValueError("does not hold values by name")
        found = {}
        for name in self.asked:
            found[name] = number_in(values, name)
            self._claims.compare(client, name, found[name])
        for name in self._measured_here:
            found[name] = self._measure(name, layout, tensors)
        if self._weight_of is not None:
            found[WEIGHT] = self._within_bounds(WEIGHT, self._weight_of(client, values))
        return found

    def first_claim(self, client: Client, name: str) -> float | None:
        """What a client claimed in its first accepted update; None before it."""
        return self._claims.first.get((client, name))

    def remember(self, criteria: Mapping[Client, Mapping[str, float]]) -> None:
        """Keep the first claim of every accepted client about its data."""
        for name in self.asked:
            if is_fixed(self._criteria[name].part):
                for client, values in criteria.items():
                    self._claims.remember(client, name, values[name])

    def _measure(self, name: str, layout: Layout, tensors: Mapping[str, Tensor]) -> float:
        """The server's own measurement.

        If it fails for the global model too, the server is at fault: the round ends with its error.
        """
        try:
            return self._measured(name, layout.native(tensors))
        except Exception as error:
            try:
                self._measured(name, layout.named(layout.vector()))
            except Exception as own:
                raise ServerError(own) from own
            raise ValueError(f"{name} of its model cannot be measured: {error}") from error

    def _measured(self, name: str, arrays: dict[str, Any]) -> float:
        return self._within_bounds(name, float(self._measured_here[name](arrays)))

    def _within_bounds(self, name: str, value: float) -> float:
        high = self._criteria[name].high(self._problem)
        require(inspect_values(name, torch.tensor([value], dtype=torch.float64), high))
        return value


def require(reasons: Sequence[Reason | str | None]) -> None:
    """A ValueError with the guard's reason, where it has one."""
    for reason in reasons:
        if reason is not None:
            raise ValueError(reason)


def reason_of(error: Exception) -> Reason | str:
    """Why an update is refused: the reason that the guard gave, or the error in one line."""
    if error.args and isinstance(error.args[0], Reason):
        return error.args[0]
    return plain(str(error) or type(error).__name__)[:MAX_REASON]


def number_in(values: Mapping[str, Any], name: str) -> float:
    """A value by its name; ValueError where it is missing, or no number."""
    if values.get(name) is None:
        raise ValueError(f"no metric {name}")
    return number_of(values[name], name)


def number_of(value: Any, name: str) -> float:
    """A value as a number; ValueError for anything else. Its range is checked elsewhere."""
    if not isinstance(value, Real):
        raise ValueError(f"{name} is not one number, but a {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def stated_weights(weights: Weights) -> ByClient:
    """Stated weights as a function of a client and its values. ValueError for weights that no round can use.

    The function raises a ValueError for a client without a weight: its update is refused. Shares of
    the aggregate are these weights over the sum of those whose updates are accepted.

    Example:
        >>> stated_weights({"north": 2.0, "south": 1.0})("south", {})
        1.0
    """
    if isinstance(weights, Mapping):
        known = {one: number_of(value, f"weights[{one!r}]") for one, value in weights.items()}
        for client, weight in known.items():
            if not 0 <= weight <= ANY:  # false for NaN
                raise ValueError(f"weights[{client!r}] = {weight:g}: must be 0 to {ANY:g}")
    elif not callable(weights):
        kind = type(weights).__name__
        raise ValueError(f"weights must be a dict by client or a function, got {kind}")

    def weight_of(client: Any, values: Mapping[str, Any]) -> float:
        if isinstance(weights, Mapping):
            if client not in known:
                raise ValueError("has no weight: `weights` does not name it")
            return known[client]
        try:  # a user's function reads values as the client sent them
            found = weights(client, dict(values))
        except Exception as error:
            raise ValueError(f"weights failed: {type(error).__name__}: {error}") from error
        return number_of(found, "what weights gave")

    return weight_of


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
    listed = ", ".join(sorted(others))[:MAX_REASON]
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

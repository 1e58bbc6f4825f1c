"""Weights that the server states: by client, or by a function of the values that came with an update."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from ..core.criteria import ANY
from ..registry import suggest

WEIGHT = "weight"  # the criterion that the record shows for stated weights
ByClient = Callable[[Any, Mapping[str, Any]], float]
Weights = Mapping[Any, float] | ByClient


def stated_weights(weights: Weights, clients: Sequence[str] | None) -> ByClient:
    """Stated weights as a function of a client and its values. ValueError for weights that no round can use.

    The function raises a ValueError for a client without a weight: its update is refused. Shares of
    the aggregate are these weights over the sum of those whose updates are accepted.

    Args:
        weights: a weight for every client, or a function of a client and of its values.
        clients: the names of all clients; None: unknown.

    Example:
        >>> stated_weights({"north": 2.0, "south": 1.0}, None)("south", {})
        1.0
    """
    if isinstance(weights, Mapping):
        return _of_mapping(dict(weights), clients)
    if not callable(weights):
        kind = type(weights).__name__
        raise ValueError(f"weights must be a dict by client or a function, got {kind}")
    try:
        inspect.signature(weights).bind("client", {})
    except TypeError:
        raise ValueError("weights must take two arguments, (client, metrics)") from None
    except ValueError:  # a built-in function, whose arguments are unknown
        pass
    function = weights

    def of_function(client: Any, values: Mapping[str, Any]) -> float:
        try:
            found = function(client, dict(values))
        except Exception as error:  # of the values as the client sent them
            raise ValueError(f"weights failed: {type(error).__name__}: {error}") from error
        return _number(found, "weights gave")

    return of_function


def _of_mapping(weights: Mapping[Any, float], clients: Sequence[str] | None) -> ByClient:
    for client, value in weights.items():
        number = _number(value, f"weights: {client!r} has")
        if not 0 <= number <= ANY:  # false for NaN
            raise ValueError(f"weights: {client!r} has {number:g}: must be 0 to {ANY:g}")
    if not any(weights.values()):
        raise ValueError("weights are all zero: no round would have a new model")
    if clients is not None:
        for name in weights.keys() - set(clients):
            known = suggest(str(name), clients)
            raise ValueError(f"weights: {name!r} is none of `clients`{known}")
        missing = [name for name in clients if name not in weights]
        if missing:
            raise ValueError(f"weights leave out {', '.join(map(repr, missing))} of `clients`")

    def of_mapping(client: Any, values: Mapping[str, Any]) -> float:
        if client not in weights:
            raise ValueError("has no weight: `weights` does not name it")
        return float(weights[client])

    return of_mapping


def _number(value: Any, said: str) -> float:
    """A value as a number; ValueError for anything else. Its range is checked elsewhere."""
    if not isinstance(value, Real):
        shown = type(value).__name__
        raise ValueError(f"{said} a {shown}, which is not a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf

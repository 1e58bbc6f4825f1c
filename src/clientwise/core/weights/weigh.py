"""Weights from criteria that the caller measured: `cw.weigh`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from .functions import score_by
from .scores import Score
from .weighting import NORMALISERS, check_normaliser, divide, scores_of, to_weights, zero_for_all


def weigh(
    criteria: Mapping[str, Any],
    *,
    score: Score | Callable[..., Tensor],
    normalise: str | None = None,
) -> NDArray[numpy.float64]:
    """The weights of n clients from criteria that you measured.

    Args:
        criteria: a list, NumPy array or tensor [n] per criterion, finite and zero or more.
        score: how a client's criteria become one number: `cw.prioritized(...)`, `cw.mean()` ..., or a
            function with a parameter for each criterion, a tensor [n] of normalised values.
        normalise: "sum", "max" or "none". The default is the score's own: "none" for a product,
            "sum" for most others.

    Returns:
        The weights [n], which sum to 1.

    Raises:
        ValueError: the criteria differ in length, have a value that is negative or not finite, or do not
            fit the score; or all scores are zero, or one is negative or not finite.

    Example:
        >>> import clientwise as cw
        >>> criteria = {"size": [600, 600, 60], "accuracy": [0.9, 0.3, 0.9]}
        >>> score = cw.prioritized("accuracy", "size")
        >>> cw.weigh(criteria, score=score, normalise="max").round(3).tolist()
        [0.531, 0.177, 0.292]
    """
    if not criteria:
        raise ValueError("no criteria given")
    if inspect.isroutine(score):
        score = score_by(score)()
    if not isinstance(score, Score):
        raise TypeError(
            f"score must be one of cw.prioritized(...), cw.mean() ..., or a function, got {score!r}"
        )
    names = tuple(criteria)
    columns = {name: _column(name, values) for name, values in criteria.items()}
    for name, column in columns.items():
        if column.ndim != 1 or len(column) != len(columns[names[0]]):
            raise ValueError(
                f"{name!r} has shape {tuple(column.shape)}: every criterion needs one value per client"
            )
        if not bool((column.isfinite() & (column >= 0)).all()):
            raise ValueError(
                f"{name!r} has a value that is negative or not finite: {column.tolist()}"
            )
    score.check(names)
    normaliser = normalise or score.default_normaliser
    check_normaliser(score, normaliser)
    if any(option.required for option in NORMALISERS.options(normaliser)):
        raise ValueError(f"normalise = {normaliser!r} has options: divide by constants yourself")
    raw = torch.stack(list(columns.values()), dim=1)
    if len(raw) == 0:
        return numpy.zeros(0)
    scales = NORMALISERS.get(normaliser)(raw)
    scores = scores_of(score, names, divide(raw, scales), range(len(raw)))
    if not bool(scales.isfinite().all() & scores.sum().isfinite()):
        raise ValueError(
            "these values are too large to weigh: their scores overflow. Use larger units."
        )
    if not bool(scores.any()):
        zero = ", ".join(map(repr, zero_for_all(names, raw)))
        which = f". Criteria that are zero for all clients: {zero}" if zero else ""
        raise ValueError(f"the score is zero for all clients, so there are no weights{which}")
    return to_weights(scores).numpy()


def _column(name: str, values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach().cpu().double()
    try:
        return torch.as_tensor(numpy.asarray(values, dtype=numpy.float64))
    except (TypeError, ValueError):
        raise ValueError(
            f"{name!r} must be a list, an array or a tensor with one number per client, got "
            f"{values!s:.80}"
        ) from None

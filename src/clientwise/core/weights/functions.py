"""Scores by plain functions, which need no registration in Python."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from .scores import Score


def score_by(function: Callable[..., Any]) -> type[FunctionScore]:
    """A class of scores that call this function.

    Example:
        >>> def weaker(size, accuracy):
        ...     return torch.minimum(size, accuracy)
        >>> score_by(weaker)()(("size", "accuracy"), torch.tensor([[2.0, 9.0], [8.0, 1.0]])).tolist()
        [2.0, 1.0]
    """
    name = function.__name__
    members = {"function": staticmethod(function), "__doc__": inspect.getdoc(function) or name}
    return type(name, (FunctionScore,), members)


class FunctionScore(Score):
    """A score by a plain function: of (names, values [n, m]), or of criteria by their labels, each [n]."""

    compares_clients = True  # it may
    function: ClassVar[Callable[..., Any]]

    def check(self, names: Sequence[str]) -> None:
        """ValueError if the function does not take these criteria, or does not return a score per client."""
        asked = self._arguments()
        if asked != ("names", "values") and {*asked} != {*names}:
            raise ValueError(
                f"{self._name}({', '.join(asked)}): the criteria are {', '.join(names)}. Its arguments must "
                "be these, or `names` and `values`"
            )
        tried = torch.ones(2, len(names), dtype=torch.float64)
        try:
            found = self._call(names, tried)
        except Exception as error:  # a user's own function may raise anything
            raise ValueError(f"{self._name} failed: {type(error).__name__}: {error}") from None
        if not isinstance(found, Tensor) or found.shape != (2,):
            given = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"{self._name} must return a tensor with one score per client, returned {given} for 2"
            )

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """See the class."""
        scores: Tensor = self._call(names, values)
        return scores

    def _call(self, names: Sequence[str], values: Tensor) -> Any:
        if self._arguments() == ("names", "values"):
            return type(self).function(names, values)
        columns = dict(zip(names, values.unbind(1), strict=True))
        return type(self).function(**columns)

    def _arguments(self) -> tuple[str, ...]:
        return tuple(inspect.signature(type(self).function).parameters)

    @property
    def _name(self) -> str:
        return type(self).__name__

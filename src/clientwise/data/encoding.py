"""How the columns of a table become the inputs of a network. A trained model carries it."""

from __future__ import annotations

import math
from dataclasses import dataclass

MOST_INPUTS = 10**6  # of an encoding: a file may announce any number


@dataclass(frozen=True)
class InputColumn:
    """A column of a table: numbers, or positions in `categories`; NaN is a missing value.

    A number becomes one input, (value − mean) / deviation; a missing one is replaced by `fill`.
    Categories become one input each. With `marks_missing`, one more input is 1 where a value is missing.
    """

    name: str
    categories: tuple[str, ...] = ()
    fill: float = 0.0
    mean: float = 0.0
    deviation: float = 1.0
    marks_missing: bool = False
    unseen: tuple[int, ...] = ()  # positions of inputs that stay 0: no training sample has them
    missing: float | None = None  # share of the training samples without a value, where it is known

    def __post_init__(self) -> None:
        numbers = (self.fill, self.mean, self.deviation)
        if not all(map(math.isfinite, numbers)) or self.deviation <= 0:
            raise ValueError(f"column {self.name!r}: mean or deviation is not usable")
        if any(not 0 <= position < self.width for position in self.unseen):
            raise ValueError(f"column {self.name!r}: has no input at one of {self.unseen[:3]}")

    @property
    def width(self) -> int:
        """The number of inputs."""
        return max(1, len(self.categories)) + self.marks_missing


@dataclass(frozen=True)
class Encoding:
    """The columns of a table in their order, and what is predicted.

    Example:
        >>> import torch
        >>> from clientwise.data.table import Encoder
        >>> columns = (InputColumn("age", mean=50.0, deviation=10.0), InputColumn("sex", ("f", "m")))
        >>> encoding = Encoding("ill", columns, ("no", "yes"))
        >>> Encoder(encoding.columns)(torch.tensor([[60.0, 1.0]])).tolist()
        [[1.0, 0.0, 1.0]]
    """

    target: str
    columns: tuple[InputColumn, ...]
    classes: tuple[str, ...] = ()  # their names; none where numbers or risks are predicted
    by_client: bool = False  # whether each client's numbers were scaled by its own statistics

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(set(names)) < len(names):
            raise ValueError("two columns have the same name")
        if not 0 < self.width <= MOST_INPUTS:
            raise ValueError(f"{self.width:,} inputs: must be 1 to {MOST_INPUTS:,}")

    @property
    def width(self) -> int:
        """The number of inputs of the network."""
        return sum(column.width for column in self.columns)

"""How the columns of a table become the inputs of a network. A trained model carries it."""

from __future__ import annotations

from dataclasses import dataclass

from ..registry import PositiveFloat


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
    deviation: PositiveFloat = 1.0
    marks_missing: bool = False
    unseen: tuple[int, ...] = ()  # positions of inputs that stay 0: no training sample has them
    missing: float | None = None  # share of the training samples without a value, where it is known

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

    @property
    def width(self) -> int:
        """The number of inputs of the network."""
        return sum(column.width for column in self.columns)

"""Fixed-point numbers whose sums cannot overflow, and the settings of secure aggregation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy
import torch
from annotated_types import doc
from numpy.typing import NDArray
from torch import Tensor

from ..registry import OpenShare, PositiveFloat

FEWEST = 3  # clients in a sum: of two, each knows the other's update from it
FLOAT64_ERROR = 2.0**-51  # relative, of a product, a conversion and a quotient
Fixed = NDArray[Any]  # unsigned integers, whose sums are modulo 2^bits


@dataclass(frozen=True)
class FixedPoint:
    """Numbers as integers modulo 2^bits, so that a sum of n of them cannot overflow.

    x becomes round(x·scale), with scale = (2^(bits−1)·(1 − 2^−50) − 1 − n)/(n·limit). The rounding error
    of a sum of n numbers is at most n·`error`.

    Args:
        bits: 32 or 64.
        clients: the most numbers that are added, n.
        limit: the largest absolute value of a number; larger ones are cut.

    Example:
        >>> numbers = FixedPoint(32, clients=2, limit=1.0)
        >>> total = numbers.encode(torch.tensor([0.5, -1.0])) + numbers.encode(torch.tensor([0.25, 3.0]))
        >>> numbers.decode(total)
        tensor([0.7500, 0.0000], dtype=torch.float64)
    """

    bits: int
    clients: int
    limit: float

    @property
    def scale(self) -> float:
        """Steps per unit."""
        # float64 rounds 2^63 − 1 − n to 2^63, and each operation by up to 2^−53.
        largest = 2.0 ** (self.bits - 1) * (1 - 2.0**-50) - 1 - self.clients
        return largest / (self.clients * self.limit)

    @property
    def error(self) -> float:
        """The largest rounding error of one number; for 64 bits, float64's own error is larger."""
        return 0.5 / self.scale + self.limit * FLOAT64_ERROR

    def share_of(self, total: float, count: int) -> float:
        """The largest rounding error of a sum of non-negative numbers, as a share of the sum.

        A sum of zero counts as exact.
        """
        steps = count * 0.5 / (self.scale * total) if total > 0 else 0.0
        return steps + FLOAT64_ERROR

    def encode(self, values: Tensor) -> Fixed:
        """The values [d] as unsigned integers."""
        cut = values.detach().cpu().double().clamp(-self.limit, self.limit)
        steps = (cut * self.scale).round().to(torch.int64)
        kind = f"<u{self.bits // 8}"
        return steps.numpy().astype(f"<i{self.bits // 8}").view(kind)

    def decode(self, total: Fixed) -> Tensor:
        """A sum as float64 [d]."""
        steps = total.view(f"<i{self.bits // 8}").astype(numpy.float64)
        return torch.from_numpy(steps) / self.scale


@dataclass(frozen=True)
class SecureAggregation:
    """A round's weighted sum as it would be hidden from the server, simulated."""

    # The config's table `secure_aggregation` is made from these fields.
    threshold: Annotated[
        OpenShare,
        doc(
            "More than this share of the cohort must have a usable update, or the round is void. With "
            "masks, 2/3 would hold against a server that deviates together with fewer than a third of "
            "the clients; 1/2 against such a server alone, and is the least."
        ),
    ] = 2 / 3
    bits: Annotated[
        Literal[32, 64],
        doc("Bits of a masked value. 32 halves the bytes; 64 has no rounding that matters."),
    ] = 32
    clip: Annotated[
        PositiveFloat,
        doc(
            "Largest Euclidean norm of an update: a client scales a longer one down. Values are rounded "
            "in proportion to it. Differences of buffers are cut at it, value by value."
        ),
    ] = 10.0

    def needed(self, cohort: int) -> int:
        """The number of clients that must take part in a round of n."""
        return max(FEWEST, math.floor(self.threshold * cohort + 1e-9) + 1)

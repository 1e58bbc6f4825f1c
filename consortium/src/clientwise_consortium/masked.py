"""Scores in masked sums: what both sides compute in the same way, from the approved method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch

from clientwise.core.method import Method
from clientwise.core.objective.problem import Classification, Regression
from clientwise.core.weights.weighting import divide
from clientwise.hosts.protocols import Fixed, Refused, Void

from .fixed_point import Sums

CLAIM = "clientwise criteria 1"  # label of a member's signature of its criteria


@dataclass(frozen=True)
class Scoring:
    """How a member scores its own update, given the sums of all members' criteria.

    Args:
        method: the approved one.
        sums: of the criteria, the scores and the updates.
    """

    method: Method
    sums: Sums

    @property
    def names(self) -> tuple[str, ...]:
        """The criteria, in the order of their sums."""
        return self.method.names

    @staticmethod
    def of(method: Method, num_classes: int, members: int) -> Scoring:
        """For a method with secure aggregation. Refused for a criterion that no member measures."""
        if method.secure is None or len(method.client_criteria) != len(method.criteria):
            raise Refused("masked sums need secure_aggregation, and criteria that members measure")
        problem = Classification(num_classes) if num_classes else Regression()
        highs = [criterion.high(problem) for criterion in method.criteria]
        upper = torch.ones(1, len(highs), dtype=torch.float64)
        if not method.uses_sums:
            upper = upper * torch.tensor(highs)
        most = float(method.score(method.names, upper))
        return Scoring(method, Sums(members, most, method.secure.clip, highs))

    def score(self, criteria: Sequence[float], sums: Sequence[float]) -> float:
        """A member's score. Both lists have the order of `names`."""
        raw = torch.tensor([criteria], dtype=torch.float64)
        scales = torch.tensor(sums, dtype=torch.float64)
        if not self.method.uses_sums:
            scales = self.method.normaliser(raw)
        if not bool((scales >= 0).all()):
            raise Refused("sums of criteria are zero or more")
        return float(self.method.score(self.method.names, divide(raw, scales)))


def fixed_bytes(values: Fixed) -> bytes:
    """Integers as bytes."""
    return values.numpy().astype("<i8").tobytes()


def fixed_of(content: bytes) -> Fixed:
    """What `fixed_bytes` wrote; Void for other bytes."""
    if len(content) % 8:
        raise Void("a part that is no list of integers")
    return torch.from_numpy(numpy.frombuffer(content, "<i8").astype("int64"))

"""What both sides read and compute in the same way: criteria, and scores in masked sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
from clientwise.core.method import Method
from clientwise.core.objective.problem import Classification, Regression
from clientwise.core.weights.weighting import divide, is_constant
from clientwise.experiment.config.schema import Experiment
from clientwise.hosts.flower.wire import CRITERION, NUMBERS
from clientwise.hosts.protocols import Refused
from flwr.app import RecordDict

from .fixed_point import SLACK, Fixed, Sums, Void


@dataclass(frozen=True)
class Scoring:
    """How a member scores its own update, given the sums of all members' criteria.

    Args:
        method: the approved one.
        sums: of the criteria, the scores and the updates.
        uses_sums: whether criteria are divided by their sums over all members; otherwise by constants.
    """

    method: Method
    sums: Sums
    uses_sums: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The criteria, in the order of their sums."""
        return self.method.names

    @staticmethod
    def of(experiment: Experiment, clip: float) -> Scoring:
        """For an approved experiment with masked sums. Refused for a criterion that no member measures."""
        (method,) = experiment.build_methods()
        num_classes, members = experiment.flower.num_classes, len(experiment.flower.clients)
        if len(method.client_criteria) != len(method.criteria):
            raise Refused("masked sums need criteria that members measure")
        stated = experiment.methods[0].normalise
        normaliser = stated.name if stated else method.score.default_normaliser
        uses_sums = normaliser == "sum"
        if not uses_sums and not is_constant(normaliser):
            raise Refused(
                f"normalise = {normaliser}: of masked criteria, members learn the sums alone; use sum, fixed or none"
            )
        problem = Classification(num_classes) if num_classes else Regression()
        highs = [criterion.high(problem) for criterion in method.criteria]
        upper = torch.ones(1, len(highs), dtype=torch.float64)
        if not uses_sums:
            upper = upper * torch.tensor(highs)
        most = float(method.score(method.names, upper))
        return Scoring(method, Sums(members, most, clip, highs), uses_sums)

    def score(self, criteria: Sequence[float], sums: Sequence[float]) -> float:
        """A member's score. Both lists have the order of `names`. Refused for sums that cannot be true.

        A sum that is smaller than one of its parts would be a choice of the server: it would cut the scores of some
        members, and sums with different cuts tell one member's update from the others'.
        """
        if not isinstance(sums, list) or list(map(type, sums)) != [float] * len(criteria):
            raise Refused("the sums of the criteria must be as many numbers")
        raw = torch.tensor([criteria], dtype=torch.float64)
        scales = torch.tensor(sums, dtype=torch.float64)
        if not self.uses_sums:
            scales = self.method.normaliser(raw)
        elif not bool((scales >= raw[0] * (1 - SLACK)).all()):
            raise Refused("a sum of criteria is smaller than this member's own part")
        return float(self.method.score(self.method.names, divide(raw, scales)))


def criteria_of(reply: RecordDict) -> dict[str, float]:
    """The criteria in a reply to a request to train, by label."""
    numbers = reply.metric_records[NUMBERS]
    return {
        name.removeprefix(CRITERION): float(value)  # type: ignore[arg-type]
        for name, value in numbers.items()
        if name.startswith(CRITERION)
    }


def fixed_bytes(values: Fixed) -> bytes:
    """Integers as bytes."""
    return bytes(values.numpy().astype("<i8").tobytes())


def fixed_of(content: bytes) -> Fixed:
    """What `fixed_bytes` wrote; Void for other bytes."""
    if len(content) % 8:
        raise Void("a part that is no list of integers")
    return torch.from_numpy(numpy.frombuffer(content, "<i8").astype("int64"))

"""Weighted sums of which a server learns no single term, simulated: scores by the clients, fixed-point sums.

A client scores itself with the cohort's sums of the criteria, which are all that it is told about the
others. It sends [s_k, s_k·Δ_k] in fixed point, modulo 2^bits. The sum over the clients is exact, so
masks that cancel in it would change nothing. The server divides Σ s_k·Δ_k by Σ s_k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from .candidates import take_server_step, unchanged
from .cohort import Cohort
from .fixed_point import Fixed, FixedPoint, SecureAggregation
from .guard import inspect_measurements, inspect_updates
from .method import Method
from .objective.problem import Problem
from .types import (
    Candidate,
    Refusal,
    Task,
    Updates,
)
from .weights.weighting import divide

CRITERIA_BITS = 64  # of the sums of the criteria, which are few
LARGEST_COARSENESS = 1e-3


@dataclass(frozen=True)
class SecretScores:
    """How the clients of a method score themselves.

    Args:
        method: a method with `secure`.
        highest_criteria: the largest value of every criterion [m].
        cohort: number of clients that a round asks, n.
    """

    method: Method
    highest_criteria: tuple[float, ...]
    cohort: int

    @staticmethod
    def of(method: Method, problem: Problem, cohort: int) -> SecretScores:
        """With the largest values that criteria have in a problem."""
        highs = tuple(criterion.high(problem) for criterion in method.criteria)
        return SecretScores(method, highs, cohort)

    @property
    def secure(self) -> SecureAggregation:
        """The method's settings."""
        assert self.method.secure is not None
        return self.method.secure

    @property
    def highs(self) -> Tensor:
        """The largest value of every criterion [m]."""
        return torch.tensor(self.highest_criteria, dtype=torch.float64)

    @property
    def highest(self) -> float:
        """The largest score: a score grows with its criteria."""
        upper = torch.ones_like(self.highs) if self.method.uses_sums else self.highs
        return float(self.method.score(self.method.names, upper[None])[0])

    @property
    def criteria(self) -> tuple[FixedPoint, ...]:
        """Fixed point of every criterion."""
        return tuple(
            FixedPoint(CRITERIA_BITS, self.cohort, float(high)) for high in self.highs.tolist()
        )

    @property
    def total(self) -> FixedPoint:
        """Fixed point of a score."""
        return FixedPoint(self.secure.bits, self.cohort, self.highest)

    @property
    def weighted(self) -> FixedPoint:
        """Fixed point of a value of s_k·Δ_k."""
        return FixedPoint(self.secure.bits, self.cohort, self.highest * self.secure.clip)

    @property
    def coarseness(self) -> float:
        """The largest rounding error of the mean of n updates, as a share of `clip`.

        With sums, where all clients are alike; without, where their scores sum to 1.
        """
        total = min(1.0, self.highest)
        if self.method.uses_sums:
            alike = torch.full_like(self.highs, 1 / self.cohort)
            total = self.cohort * float(self.method.score(self.method.names, alike[None])[0])
        return self.weighted.error * self.cohort / (self.secure.clip * total)

    def encode_criteria(self, raw: Tensor) -> Fixed:
        """One client's criteria [m] in fixed point."""
        pairs = zip(self.criteria, raw, strict=True)
        return numpy.concatenate([point.encode(value[None]) for point, value in pairs])

    def decode_criteria(self, total: Fixed) -> Tensor:
        """The sums of the criteria [m]."""
        pairs = zip(self.criteria, total, strict=True)
        return torch.cat([point.decode(numpy.atleast_1d(value)) for point, value in pairs])

    def score(self, raw: Tensor, sums: Tensor) -> float:
        """The score of one client with criteria [m], given the cohort's sums [m].

        A share of a sum is at most 1. Made-up sums can give more, and a product of ∞ and 0.
        """
        values = divide(raw, sums).clamp(max=1.0) if self.method.uses_sums else raw
        score = float(self.method.score(self.method.names, values[None])[0])
        if not math.isfinite(score):
            raise ValueError("the score is not finite, so it cannot be added up")
        return min(max(score, 0.0), self.highest)

    def clipped(self, update: Tensor, num_parameters: int) -> Tensor:
        """An update [d] whose parameters, the first values, are no longer than `clip`, in float64."""
        result = update.detach().cpu().double()
        norm = float(torch.linalg.vector_norm(result[:num_parameters]))
        if norm > self.secure.clip:
            result[:num_parameters] *= self.secure.clip / norm
        return result.clamp(-self.secure.clip, self.secure.clip)

    def encode_vector(self, score: float, update: Tensor, num_parameters: int) -> Fixed:
        """[s, s·Δ] of one client in fixed point [1 + d]."""
        first = self.total.encode(torch.tensor([score], dtype=torch.float64))
        rest = self.weighted.encode(score * self.clipped(update, num_parameters))
        return numpy.concatenate([first, rest])

    def decode_vector(
        self, total: Fixed, clients: int, sums: Tensor
    ) -> tuple[float, Tensor, float]:
        """Σ s, the weighted mean of the updates [d], and the largest error of its values.

        Args:
            total: the sum over the clients [1 + d].
            clients: how many were added.
            sums: of the criteria [m], as the clients were told them.
        """
        scores = float(self.total.decode(total[:1])[0])
        if scores <= 0:
            return 0.0, torch.zeros(len(total) - 1, dtype=torch.float64), 0.0
        mean = self.weighted.decode(total[1:]) / scores
        steps = self.weighted.error + float(mean.abs().max()) * self.total.error
        return scores, mean, clients * steps / scores + self._error_of_sums(sums, clients)

    def _error_of_sums(self, sums: Tensor, clients: int) -> float:
        """The largest change of a value of the mean by the rounding of the criteria's sums [m].

        A sum with the relative error e multiplies a term with its power p by (1 ± e)^p at most, and so
        every score by e^±r, where r is the largest Σ p·|ln(1 − e)| of a term. Weights change by e^±2r.
        """
        if not self.method.uses_sums:
            return 0.0
        logs = []
        for point, total in zip(self.criteria, sums.tolist(), strict=True):
            share = min(point.share_of(total, clients), 0.5)  # beyond, nothing is left of the mean
            logs.append(-math.log1p(-share))
        terms = self.method.score.terms(self.method.names)
        assert terms is not None  # `secure_issues` refuses other scores
        largest = 0.0
        for term in terms:
            powers = zip(term.exponents, logs, strict=True)
            largest = max(largest, sum(abs(power) * log for power, log in powers))
        return math.expm1(2 * largest) * self.secure.clip


@dataclass(frozen=True)
class SecretSum:
    """What a round with secure aggregation gives. Rows are NaN where a value is known to its client only."""

    client_ids: tuple[int, ...]  # in the sum; empty where the round is void
    raw: Tensor  # [n, m] criteria
    scores: Tensor  # [n]
    sums: Tensor  # [m] of the criteria
    total: float  # Σ s_k
    update: Tensor  # [d] Σ s_k·Δ_k / Σ s_k
    training_loss: Tensor  # [n]
    seconds: Tensor  # [n]
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()

    @staticmethod
    def void(
        reason: str, scores: SecretScores, size: int, refusals: Sequence[Refusal] = ()
    ) -> SecretSum:
        """A round without a sum."""
        count = len(scores.method.criteria)
        none = torch.zeros(0, dtype=torch.float64)
        return SecretSum(
            client_ids=(),
            raw=torch.zeros(0, count, dtype=torch.float64),
            scores=none,
            sums=torch.ones(count, dtype=torch.float64),
            total=0.0,
            update=torch.zeros(size, dtype=torch.float64),
            training_loss=none,
            seconds=none,
            refusals=tuple(refusals),
            notes=(f"secure aggregation: the round is void: {reason}",),
        )


class SecretCohort(Cohort):
    """The clients of a round of which the server knows the weighted sum alone."""

    secret_sum: SecretSum

    @property
    def _scores(self) -> SecretScores:
        return SecretScores.of(self.method, self.engine.problem, self.plan.cohort_size)

    def gather(self, task: Task) -> None:
        """Train the clients and add up what they send."""
        found = self._sum(task)
        self.secret_sum = found
        self.client_ids = list(found.client_ids)
        self.raw = found.raw
        self.training_loss = found.training_loss
        self.seconds = found.seconds
        self.refusals += found.refusals
        self.notes += found.notes

    @property
    def scales(self) -> Tensor:
        """What each criterion is divided by [m]."""
        if self.method.uses_sums:
            return self.secret_sum.sums
        return torch.ones(len(self.method.criteria), dtype=torch.float64)

    def _sum(self, task: Task) -> SecretSum:
        """The sum of simulated clients, without masks: these would cancel to the last bit.

        A client that finds its own update or criteria unusable takes no part.
        """
        scores = self._scores
        engine = self.engine
        model = self.state.model
        chunks: list[Updates] = []
        raws: list[Tensor] = []
        refusals: list[Refusal] = []
        for updates in engine.train(self.asked, model, task):
            self.notes += updates.notes
            updates, refused = inspect_updates(
                updates, model, self.asked, self._seen, self.method.criteria
            )
            refusals += refused
            self._seen.update(updates.client_ids)
            if not updates.client_ids:
                continue
            names = self.method.names
            raw = torch.stack([updates.measurements[name].double() for name in names], dim=1)
            updates, raw, refused = inspect_measurements(
                updates, raw, self.method.criteria, engine.problem
            )
            refusals += refused
            chunks.append(updates)
            raws.append(raw)
        count = sum(len(chunk.client_ids) for chunk in chunks)
        needed = scores.secure.needed(scores.cohort)
        if count < needed:
            reason = f"only {count} of {scores.cohort} clients have a usable update"
            reason += f", and secure aggregation needs {needed}"
            return SecretSum.void(reason, scores, len(model), refusals)
        arrived = Updates.joined(chunks)
        raw = torch.cat(raws)
        sums = self._sums_of(raw)
        own = [scores.score(row, sums) for row in raw]
        total: Fixed | None = None
        for score, trained in zip(own, arrived.models, strict=True):
            one = scores.encode_vector(score, trained - model, engine.spec.num_parameters)
            total = one if total is None else total + one
        assert total is not None
        found, update, error = scores.decode_vector(total, count, sums)
        return SecretSum(
            client_ids=arrived.client_ids,
            raw=raw,
            scores=torch.tensor(own, dtype=torch.float64),
            sums=sums,
            total=found,
            update=update,
            training_loss=arrived.training_loss,
            seconds=arrived.seconds,
            refusals=tuple(refusals),
            notes=(sum_note(count, scores.cohort, error),),
        )

    def _sums_of(self, raw: Tensor) -> Tensor:
        """The sums of the criteria [m] as the clients are told them."""
        if not self.method.uses_sums:
            return torch.ones(raw.shape[1], dtype=torch.float64)
        scores = self._scores
        total = scores.encode_criteria(raw[0])
        for row in raw[1:]:
            total = total + scores.encode_criteria(row)
        return scores.decode_criteria(total)


def of_secret_sum(cohort: SecretCohort, priority: tuple[str, ...] | None) -> Candidate:
    """The model after the server step, from the sum: the clients have scored themselves."""
    found = cohort.secret_sum
    if not found.total:
        nothing = torch.zeros(len(found.client_ids), dtype=torch.float64)
        return unchanged(cohort, priority, nothing, nothing)
    before = cohort.state.model
    weights = found.scores / found.total
    mean = (before.double() + found.update.to(before.device)).to(before)
    models, step_state = take_server_step(cohort, mean)
    return Candidate(
        priority=priority,
        scores=found.scores,
        prior=weights,
        weights=weights,
        model=models[0],
        step_state=step_state,
        stepped=models,
    )


def sum_note(clients: int, cohort: int, error: float) -> str:
    """What the record says about a round with secure aggregation."""
    return (
        f"secure aggregation: {clients} of {cohort} clients are in the sum; rounding changes no value "
        f"of the mean update by more than {error:.2g}"
    )

"""The weighted mean Σ_a w_a·Θ_a of a cohort's models, which arrive before the weights are known.

There are two ways to hold them until then:

- `SubsetSums` folds every model in as it arrives and forgets it. With raw criteria r and cohort scales s, a score
  that is a sum of terms is Σ_t a_t Π_j (r_j/s_j)^e_tj, so the aggregate needs only M_t = Σ_k Π_j r_jk^e_tj · Θ_k, one
  vector per term: memory does not grow with the cohort, and the 2^m − 1 subsets rebuild every order of priority.
- `Stack` keeps the matrix [n, d], for scores that sort (OWA, Choquet), criteria that look back (trust) and rules
  other than the mean.

Both add in float64, so chunks of another size change nothing but the last bits of a float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from ..weights.scores import Score, Term

AT_ONCE = 64  # models added together
CACHED = 2**18  # values copied to float64 at once, so that they stay in a core's cache
ON_GPU = 2**26  # values worked on at once on a GPU, which is faster with few large pieces
FLOAT64_BITS = 1000  # products below 2 to this power are finite
COHORT_BITS = 20  # a criterion's sum over the cohort is at most 2^20 times its largest value


def can_fold(terms: Sequence[Term], highs: Sequence[float]) -> bool:
    """Whether no term can overflow, whatever clients report: criteria are at most `highs` [m]."""
    bits = [math.log2(max(high, 1.0)) + COHORT_BITS for high in highs]
    for term in terms:
        needed = sum(exponent * size for exponent, size in zip(term.exponents, bits, strict=True))
        if needed >= FLOAT64_BITS:
            return False
    return True


class HeldModels(Protocol):
    """Holds models until the weights are known."""

    def add(self, raw: Tensor, models: Tensor) -> None:
        """Add n clients: their prepared raw criteria [n, m] and models [n, d]."""
        ...

    def aggregate(self, score: Score, scales: Tensor, weights: Tensor) -> Tensor:
        """Σ_a w_a Θ_a in float32 [d]."""
        ...


class SubsetSums:
    """One sum of models per term of the score; memory does not grow with the cohort.

    Args:
        names: names of the m criteria.
        terms: the terms that scores will have.
        like: a model [d], for size and device.
    """

    def __init__(self, names: Sequence[str], terms: Sequence[Term], like: Tensor) -> None:
        self._names = names
        # [t, m]
        self._exponents = torch.tensor([term.exponents for term in terms], dtype=torch.float64)
        self._index = {term.exponents: row for row, term in enumerate(terms)}
        self._models = torch.zeros(
            len(terms), like.shape[0], dtype=torch.float64, device=like.device
        )
        self._totals = torch.zeros(len(terms), dtype=torch.float64)

    def add(self, raw: Tensor, models: Tensor) -> None:
        """Fold n clients into the sums."""
        products = raw[:, None, :].pow(self._exponents).prod(-1)  # [n, t]
        self._totals += products.sum(0)
        factors = products.T.to(self._models.device)
        at_once = self._models_at_once()
        for some, rows in zip(
            torch.split(factors, at_once, 1), torch.split(models, at_once), strict=True
        ):
            width = self._columns_at_once(len(rows))
            for sums, block in zip(
                torch.split(self._models, width, 1), torch.split(rows, width, 1), strict=True
            ):
                if block.is_cuda and len(sums) == 1:
                    sums[0] += weighted_sum(some[0], block)
                else:
                    sums.addmm_(some, block.double())

    @property
    def totals(self) -> Tensor:
        """Σ_k Π_j r_jk^e_tj of every term [t]."""
        return self._totals

    @property
    def sums(self) -> Tensor:
        """M_t of every term [t, d]."""
        return self._models

    def merge(self, totals: Tensor, sums: Tensor) -> None:
        """Add what others have folded: their `totals` [t] and `sums` [t, d]."""
        self._totals += totals
        self._models += sums.to(self._models.device)

    def aggregate(self, score: Score, scales: Tensor, weights: Tensor) -> Tensor:
        """The aggregate of any score whose terms were folded; the weights are implied by the sums."""
        coefficients = torch.zeros_like(self._totals)
        for term in score.terms(self._names) or ():
            scale = _scale_of(term, scales)
            if scale:
                coefficients[self._index[term.exponents]] += term.coefficient / scale
        total = coefficients @ self._totals
        shares = (coefficients / total).to(self._models.device)
        if self._models.is_cuda:
            return weighted_sum(shares, self._models).float()
        return (shares @ self._models).float()

    def _models_at_once(self) -> int:
        if not self._models.is_cuda:
            return AT_ONCE
        return max(1, ON_GPU // self._models.shape[1])

    def _columns_at_once(self, rows: int) -> int:
        if self._models.is_cuda:
            return self._models.shape[1]
        return CACHED // max(1, rows)


def _scale_of(term: Term, scales: Tensor) -> float:
    """Π_j s_j^e_j over the criteria in the term; the others may be zero for all clients."""
    scale = 1.0
    for value, exponent in zip(scales.tolist(), term.exponents, strict=True):
        if exponent:
            scale *= value**exponent
    return scale


class Stack:
    """Keeps every model: for scores and criteria that need all of them at once."""

    def __init__(self) -> None:
        self._chunks: list[Tensor] = []

    @cached_property
    def models(self) -> list[Tensor]:
        """The models in order of arrival, each [d]; asked for once all are there."""
        return [model for chunk in self._chunks for model in chunk]

    def add(self, raw: Tensor, models: Tensor) -> None:
        """Keep n models."""
        self._chunks.append(models)

    def updates(self, start: Tensor) -> Tensor:
        """How far every model moved from `start` [d], in a matrix of its own [n, d]."""
        if len(self._chunks) == 1:
            return self._chunks[0] - start
        return torch.cat(self._chunks).sub_(start)

    def aggregate(self, score: Score, scales: Tensor, weights: Tensor) -> Tensor:
        """The weighted mean, written out."""
        return weighted_mean(self.models, weights)


def weighted_sum(weights: Tensor, models: Tensor) -> Tensor:
    """Σ_a w_a Θ_a in float64 [d] of float64 weights [n], without a matrix product.

    On a GPU it takes as long as one. But the first product of a thread makes cuBLAS take megabytes of the GPU
    for it, and every lane has a thread.
    """
    return (weights[:, None] * models).sum(0)


def weighted_mean(models: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Σ_a w_a Θ_a in float32 [d], added in float64."""
    result = torch.zeros_like(models[0], dtype=torch.float64)
    if result.is_cuda:  # many at a time: two launches for every model take milliseconds
        shares = weights.to(result)
        at_once = max(1, ON_GPU // len(result))
        for start in range(0, len(models), at_once):
            some = slice(start, start + at_once)
            result += weighted_sum(shares[some], torch.stack(list(models[some])))
        return result.float()
    for weight, model in zip(weights.tolist(), models, strict=True):
        result.add_(model.double(), alpha=weight)
    return result.float()

"""The weighted mean Σ_a w_a·Θ_a of a cohort's models, which arrive before the weights are known.

There are two ways to hold them until then:

- `SubsetSums` folds every model in as it arrives and forgets it. With raw criteria r and cohort scales s, a score
  that is a sum of terms is Σ_t a_t Π_j (r_j/s_j)^e_tj, so the aggregate needs only M_t = Σ_k Π_j r_jk^e_tj · Θ_k, one
  vector per term: memory does not grow with the cohort, and the 2^m − 1 subsets rebuild every order of priority.
- `Stack` keeps the matrix [n, d], for scores that sort (OWA, Choquet), criteria that look back (trust) and rules
  other than the mean.

Both add in float64, so chunks of another size change nothing but the last bits of a float64.

The mean of LoRA adapters is one of products B_a·A_a. An adapted layer computes W·x + s·B·A·x, with W frozen,
A [r, q] and B [p, r] trained, and s a constant. The product of the mean factors is another matrix,
(Σ w_a·B_a)·(Σ w_a·A_a) ≠ Σ w_a·B_a·A_a, unless all clients share one of the two factors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..types import Layer, ModelSpec
from ..weights.scores import Score, Term

AT_ONCE = 64  # models added together
CACHED = 2**16  # values copied to float64 at once, so that they stay in a core's cache
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
        # M_t of every term [t, d], and Σ_k Π_j r_jk^e_tj [t]
        self.sums = torch.zeros(len(terms), len(like), dtype=torch.float64, device=like.device)
        self.totals = torch.zeros(len(terms), dtype=torch.float64)

    def add(self, raw: Tensor, models: Tensor) -> None:
        """Fold n clients into the sums: their prepared raw criteria [n, m] and models [n, d]."""
        products = raw[:, None, :].pow(self._exponents).prod(-1)  # [n, t]
        self.totals += products.sum(0)
        factors = products.T.to(self.sums.device)
        size = self.sums.shape[1]
        on_gpu = self.sums.is_cuda
        at_once = max(1, ON_GPU // size) if on_gpu else AT_ONCE
        for some, rows in zip(
            torch.split(factors, at_once, 1), torch.split(models, at_once), strict=True
        ):
            width = size if on_gpu else CACHED // max(1, len(rows))
            for sums, block in zip(
                torch.split(self.sums, width, 1), torch.split(rows, width, 1), strict=True
            ):
                if on_gpu and len(sums) == 1:
                    sums[0] += weighted_sum(some[0], block)
                else:
                    sums.addmm_(some, block.double())

    def merge(self, totals: Tensor, sums: Tensor) -> None:
        """Add what others have folded: their `totals` [t] and `sums` [t, d]."""
        self.totals += totals
        self.sums += sums.to(self.sums.device)

    def aggregate(self, score: Score, scales: Tensor, weights: Tensor) -> Tensor:
        """The aggregate of any score whose terms were folded; the weights are implied by the sums."""
        coefficients = torch.zeros_like(self.totals)
        for term in score.terms(self._names) or ():
            scale = _scale_of(term, scales)
            if scale:
                coefficients[self._index[term.exponents]] += term.coefficient / scale
        total = coefficients @ self.totals
        shares = (coefficients / total).to(self.sums.device)
        if self.sums.is_cuda:
            return weighted_sum(shares, self.sums).float()
        return (shares @ self.sums).float()


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
        models = [model for chunk in self._chunks for model in chunk]
        return weighted_mean(models, weights)


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


# The factor B beside a factor A, as `peft` names them
PARTNERS = {"lora_A": "lora_B", "lora_embedding_A": "lora_embedding_B"}
LARGEST_CONDITION = 10.0  # of the new A: a smaller singular value would make B as much larger


class Pair(NamedTuple):
    """The two factors of an adapted layer; each may have more dimensions, such as those of a kernel."""

    a: Layer  # [r, ...]
    b: Layer  # [p, r, ...]


class ProductMean(NamedTuple):
    """A mean of products as factors of rank r, and what the rank leaves out."""

    b: Tensor  # [p, r]
    a: Tensor  # [r, q]
    discarded: float  # squared Frobenius norm of the mean minus b·a
    total: float  # squared Frobenius norm of the mean


def pairs_of(spec: ModelSpec) -> tuple[Pair, ...]:
    """The adapted layers of a model of which both factors are trained."""
    by_name = {layer.name: layer for layer in spec.layers}
    found = []
    for layer in spec.layers:
        name = ".".join(PARTNERS.get(word, word) for word in layer.name.split("."))
        partner = by_name.get(name)
        if name != layer.name and partner is not None and partner.shape[1:2] == layer.shape[:1]:
            found.append(Pair(layer, partner))
    return tuple(found)


def average_products(
    models: Tensor, weights: Tensor, pairs: Sequence[Pair]
) -> tuple[list[tuple[Layer, Tensor]], float]:
    """Σ_a w_a·B_a·A_a of every adapted layer.

    Args:
        models: one model per row, [n, d].
        weights: zero or more, sum to 1, [n].
        pairs: the adapted layers.

    Returns:
        New values of every factor, flat, and the relative residual over all adapted layers:
        √(Σ ‖M − B·A‖² / Σ ‖M‖²) with the means M and Frobenius norms.
    """
    taken = weights > 0
    models = models[taken.to(models.device)]
    weights = weights[taken].to(models.device, torch.float64)
    factors = []
    discarded = 0.0
    total = 0.0
    for pair in pairs:
        rank = pair.a.shape[0]
        a = models[:, pair.a.start : pair.a.stop].double().reshape(len(models), rank, -1)
        b = models[:, pair.b.start : pair.b.stop].double().reshape(len(models), -1, rank)
        product = product_mean(b, a, weights)
        factors.append((pair.a, product.a.flatten()))
        factors.append((pair.b, product.b.flatten()))
        discarded += product.discarded
        total += product.total
    return factors, (discarded / total) ** 0.5 if total else 0.0


def product_mean(b: Tensor, a: Tensor, weights: Tensor) -> ProductMean:
    """The matrix of rank r nearest to Σ_a w_a·B_a·A_a, as factors (Eckart and Young, 1936).

    The mean is [w_1·B_1 ... w_n·B_n]·[A_1; ...; A_n]. QR decompositions of both stacks leave a core of at most
    n·r rows and columns, and its singular values are those of the mean: no matrix [p, q] is made.

    Factors of a product are not unique. The new A is the mean of the clients' A, projected onto the row
    space of the result. If all clients share A, the factors are therefore A and the mean of B.

    Args:
        b: factors [n, p, r].
        a: factors [n, r, q].
        weights: positive, sum to 1, [n].

    Returns:
        The factors and the residual.

    Example:
        >>> b = torch.tensor([[[1.0], [0.0]], [[0.0], [1.0]]], dtype=torch.float64)
        >>> a = torch.tensor([[[4.0, 0.0]], [[0.0, 2.0]]], dtype=torch.float64)
        >>> found = product_mean(b, a, torch.tensor([0.5, 0.5], dtype=torch.float64))
        >>> (found.b @ found.a).round(decimals=6).tolist(), round(found.discarded / found.total, 3)
        ([[2.0, 0.0], [0.0, 0.0]], 0.2)
    """
    rank = a.shape[1]
    left, left_core = torch.linalg.qr((weights[:, None, None] * b).transpose(0, 1).flatten(1))
    right, right_core = torch.linalg.qr(a.flatten(0, 1).T)
    inner, values, outer = torch.linalg.svd(left_core @ right_core.T, full_matrices=False)
    columns = left @ (inner[:, :rank] * values[:rank])  # [p, k] with k ≤ r
    rows = outer[:rank] @ right.T  # [k, q], orthonormal

    mean = torch.einsum("n,nrq->rq", weights, a)
    turn, sizes, back = torch.linalg.svd(mean @ rows.T, full_matrices=False)
    sizes = sizes.clamp(min=float(sizes[0]) / LARGEST_CONDITION)
    if not float(sizes[0]):
        sizes = torch.ones_like(sizes)
    squares = values.square()
    return ProductMean(
        b=columns @ (turn / sizes @ back).T,
        a=turn * sizes @ back @ rows,
        discarded=float(squares[rank:].sum()),
        total=float(squares.sum()),
    )

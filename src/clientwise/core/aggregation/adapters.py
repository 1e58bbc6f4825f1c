"""LoRA adapters: the mean of the clients' products B_a·A_a, as factors of the same rank.

An adapted layer computes W·x + s·B·A·x. W is frozen, A [r, q] and B [p, r] are trained, and s is a constant.
A client's contribution to the layer is the product B_a·A_a. The product of the mean factors is another
matrix, (Σ w_a·B_a)·(Σ w_a·A_a) ≠ Σ w_a·B_a·A_a, unless all clients share one of the two factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..types import Layer, ModelSpec

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

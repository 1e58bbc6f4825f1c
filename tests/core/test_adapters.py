"""The mean of products B·A of LoRA adapters, compared with the dense computation in NumPy."""

from __future__ import annotations

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clientwise.core.aggregation.sums import pairs_of, product_mean
from clientwise.core.types import Layer, ModelSpec

SIZES = st.integers(1, 12)


def drawn(
    clients: int, rows: int, columns: int, rank: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Factors B [n, p, r] and A [n, r, q], and weights [n]."""
    random = torch.Generator().manual_seed(seed)
    b = torch.randn(clients, rows, rank, generator=random, dtype=torch.float64)
    a = torch.randn(clients, rank, columns, generator=random, dtype=torch.float64)
    weights = torch.rand(clients, generator=random, dtype=torch.float64) + 0.1
    return b, a, weights / weights.sum()


def nearest(matrix: numpy.ndarray, rank: int) -> numpy.ndarray:
    """The nearest matrix of this rank, by NumPy."""
    left, values, right = numpy.linalg.svd(matrix, full_matrices=False)
    values[rank:] = 0
    return left * values @ right


def dense(b: Tensor, a: Tensor, weights: Tensor) -> numpy.ndarray:
    return sum(w * (y @ x) for w, y, x in zip(weights.numpy(), b.numpy(), a.numpy(), strict=True))


@given(clients=SIZES, rows=SIZES, columns=SIZES, rank=st.integers(1, 4), seed=st.integers(0, 9))
@settings(deadline=None, max_examples=60)
def test_it_is_the_nearest_matrix_to_the_dense_mean(
    clients: int, rows: int, columns: int, rank: int, seed: int
) -> None:
    b, a, weights = drawn(clients, rows, columns, rank, seed)
    found = product_mean(b, a, weights)
    mean = dense(b, a, weights)
    best = nearest(mean, rank)
    assert found.b.shape == (rows, rank)
    assert found.a.shape == (rank, columns)
    numpy.testing.assert_allclose((found.b @ found.a).numpy(), best, atol=1e-6)
    assert found.discarded == pytest.approx(numpy.linalg.norm(mean - best) ** 2, abs=1e-6)
    assert found.total == pytest.approx(numpy.linalg.norm(mean) ** 2)


def test_with_one_factor_for_all_it_is_the_mean_of_the_other() -> None:
    b, a, weights = drawn(5, 7, 9, 3, seed=1)
    found = product_mean(b, a[:1].expand_as(a), weights)
    torch.testing.assert_close(found.a, a[0])
    torch.testing.assert_close(found.b, torch.einsum("n,npr->pr", weights, b))
    assert found.discarded == pytest.approx(0, abs=1e-20)


def test_untrained_adapters_keep_a_row_space_to_learn_in() -> None:
    """B starts at zero. If A were lost, too, no gradient would ever change either."""
    b, a, weights = drawn(3, 6, 8, 2, seed=4)
    found = product_mean(torch.zeros_like(b), a, weights)
    assert not found.b.any()
    assert torch.linalg.matrix_rank(found.a) == 2
    nothing = product_mean(torch.zeros_like(b), torch.zeros_like(a), weights)
    assert bool(nothing.a.isfinite().all())
    assert not nothing.b.any()


def test_factors_stay_well_conditioned() -> None:
    """A client of tiny weight with a huge A: the mean A is far from the rows that matter."""
    b, a, weights = drawn(4, 6, 8, 2, seed=5)
    a[0] *= 1e6
    weights[0] = 1e-9
    found = product_mean(b, a, weights / weights.sum())
    sizes = torch.linalg.svdvals(found.a)
    assert float(sizes[0] / sizes[-1]) < 10.1
    best = nearest(dense(b, a, weights / weights.sum()), 2)
    numpy.testing.assert_allclose((found.b @ found.a).numpy(), best, rtol=1e-6, atol=1e-9)


def spec_of(**shapes: tuple[int, ...]) -> ModelSpec:
    layers = []
    start = 0
    for name, shape in shapes.items():
        stop = start + int(numpy.prod(shape))
        layers.append(Layer(name.replace("__", "."), shape, start, stop))
        start = stop
    return ModelSpec(tuple(layers), start, start)


def test_pairs_are_found_by_their_names_and_shapes() -> None:
    spec = spec_of(
        query__lora_A__default__weight=(2, 5),
        query__lora_B__default__weight=(4, 2),
        words__lora_embedding_A__default=(3, 9),
        words__lora_embedding_B__default=(4, 3),
        kernel__lora_A__weight=(2, 3, 3, 3),
        kernel__lora_B__weight=(8, 2, 1, 1),
        shared__lora_B__weight=(4, 2),  # its A is frozen
        odd__lora_A__weight=(2, 5),
        odd__lora_B__weight=(4, 3),
        polora_A__weight=(2, 5),
        polora_B__weight=(4, 2),
        classifier__weight=(2, 4),
    )
    found = [pair.a.name.split(".")[0] for pair in pairs_of(spec)]
    assert found == ["query", "words", "kernel"]

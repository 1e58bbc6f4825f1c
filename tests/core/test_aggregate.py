from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clientwise.core.aggregation.server_step import SERVER_STEPS
from clientwise.core.aggregation.sums import Stack, SubsetSums, can_fold
from clientwise.core.weights.scores import (
    Mean,
    Prioritized,
    Product,
    Score,
    Term,
    WeightedMean,
)
from clientwise.core.weights.weighting import NORMALISERS, divide, to_weights

pytestmark = pytest.mark.bits

NAMES = ("a", "b", "c")


def random_cohort(seed: int, clients: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    raw = torch.rand(clients, 3, generator=random, dtype=torch.float64) * torch.tensor(
        [600.0, 10.0, 1.0]
    )
    return raw, torch.randn(clients, 50, generator=random)


@pytest.mark.parametrize("normaliser", ["sum", "max", "none"])
@given(seed=st.integers(0, 10_000), clients=st.integers(1, 9), cut=st.integers(0, 9))
def test_subset_sums_equal_the_direct_form_for_every_order(
    normaliser: str, seed: int, clients: int, cut: int
) -> None:
    raw, models = random_cohort(seed, clients)
    sums = SubsetSums(NAMES, Prioritized().terms_of_all_orders(NAMES), like=models[0])
    sums.add(raw[:cut], models[:cut])  # in two chunks, wherever the cut falls
    sums.add(raw[cut:], models[cut:])
    scales = NORMALISERS.get(normaliser)(raw)
    for order in itertools.permutations(NAMES):
        score = Prioritized(order)
        weights = to_weights(score(NAMES, divide(raw, scales)))
        direct = (weights @ models.double()).float()
        torch.testing.assert_close(
            sums.aggregate(score, scales, weights), direct, rtol=1e-6, atol=1e-6
        )


def check_sums(score: Score, terms: Sequence[Term], raw: Tensor, models: Tensor) -> None:
    """The models folded by these terms give the weighted mean."""
    sums = SubsetSums(NAMES, terms, like=models[0])
    sums.add(score.prepare(NAMES, raw), models)
    scales = NORMALISERS.get(score.default_normaliser)(raw)
    weights = to_weights(score(NAMES, divide(raw, scales)))
    direct = (weights @ models.double()).float()
    torch.testing.assert_close(sums.aggregate(score, scales, weights), direct)


@pytest.mark.parametrize(
    "score",
    [
        Mean(),
        WeightedMean({"a": 2.0, "b": 0.0, "c": 1.0}),
        Product({"a": 2.0, "b": 0.5}),
        Product(thresholds={"c": 0.3}),
    ],
    ids=repr,
)
def test_every_score_with_terms_folds(score) -> None:
    raw, models = random_cohort(3, 7)
    check_sums(score, score.terms(NAMES), raw, models)


def test_a_criterion_of_zeros_does_not_spoil_the_sums() -> None:
    raw, models = random_cohort(1, 4)
    raw[:, 1] = 0
    check_sums(Prioritized(NAMES), Prioritized().terms_of_all_orders(NAMES), raw, models)


@pytest.mark.parametrize("kind", ["sums", "stack"])
def test_chunks_change_no_bit(kind: str) -> None:
    raw, models = random_cohort(2, 12)
    score, scales = Prioritized(), NORMALISERS.get("sum")(raw)
    weights = to_weights(score(NAMES, divide(raw, scales)))
    results = []
    for size in (1, 5, 12):
        holder = (
            SubsetSums(NAMES, score.terms(NAMES), like=models[0]) if kind == "sums" else Stack()
        )
        for first in range(0, 12, size):
            holder.add(raw[first : first + size], models[first : first + size])
        results.append(holder.aggregate(score, scales, weights))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("name", ["adam", "yogi", "adagrad"])
def test_adaptive_steps_are_reddis_algorithm_2(name: str) -> None:
    rate, beta1, beta2, tau = 0.1, 0.9, 0.99, 0.5
    options = {"learning_rate": rate, "beta1": beta1, "tau": tau}
    if name != "adagrad":
        options["beta2"] = beta2
    model, state = torch.tensor([1.0, 2.0]), {}
    x, m, v = np.array([1.0, 2.0]), np.zeros(2), np.full(2, tau**2)
    step = SERVER_STEPS.get(name)(**options)
    for update in ([1.0, -0.1], [0.2, 3.0], [0.0, -1.0]):
        model, state = step(model, model + torch.tensor(update), state)
        delta = np.array(update)
        m = beta1 * m + (1 - beta1) * delta
        v = {
            "adam": beta2 * v + (1 - beta2) * delta**2,
            "yogi": v - (1 - beta2) * delta**2 * np.sign(v - delta**2),
            "adagrad": v + delta**2,
        }[name]
        x = x + rate * m / (np.sqrt(v) + tau)
    assert model.tolist() == pytest.approx(x.tolist(), rel=1e-5)


def test_terms_that_a_claim_could_make_overflow_are_not_folded() -> None:
    modest, reckless = Product({"a": 3.0}).terms(["a"]), Product({"a": 30.0}).terms(["a"])
    assert can_fold(modest, [1e12])
    assert not can_fold(reckless, [1e12])  # (10¹²)³⁰ is no number any more
    assert can_fold(reckless, [1.0])  # a share may have any power
    assert can_fold(Prioritized().terms_of_all_orders(NAMES), [1e12] * 3)

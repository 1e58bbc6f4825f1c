from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import scipy.optimize
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import oracles
from clientwise.core.aggregation.rules import (
    RULES,
    centred_clipping,
    dnc,
    geometric_median,
)

byzfl = oracles.byzfl("aggregators")
needs_byzfl = pytest.mark.skipif(
    byzfl is None, reason="ByzFL is not installed; `make test` does it"
)
WITH_SHARE = [
    name for name in RULES if any(option.name == "hostile" for option in RULES.options(name))
]


def some(clients: int, size: int = 9, seed: int = 1) -> Tensor:
    return torch.randn(clients, size, generator=torch.Generator().manual_seed(seed))


def equal(clients: int) -> Tensor:
    return torch.full((clients,), 1 / clients, dtype=torch.float64)


def close(found: Tensor, expected: Any) -> None:
    torch.testing.assert_close(
        found, torch.as_tensor(expected), rtol=1e-5, atol=1e-6, check_dtype=False
    )


@pytest.mark.parametrize("name", list(RULES))
@settings(max_examples=30)
@given(
    seed=st.integers(0, 1000),
    copies=st.lists(st.integers(0, 4), min_size=2, max_size=6).filter(any),
    hostile=st.sampled_from([0.0, 0.2, 0.25, 0.4, 0.49]),
)
def test_a_weight_counts_as_so_many_equal_clients(
    name: str, seed: int, copies: list[int], hostile: float
) -> None:
    options = {"hostile": hostile} if name in WITH_SHARE else {}
    updates, times = some(len(copies), seed=seed), torch.tensor(copies)
    weighted = RULES.get(name)(updates, times.double() / sum(copies), {}, **options)
    repeated = RULES.get(name)(
        updates.repeat_interleave(times, 0), equal(sum(copies)), {}, **options
    )
    close(weighted.update, repeated.update)
    owner = torch.arange(len(copies)).repeat_interleave(times)
    close(
        weighted.influence,
        torch.zeros(len(copies)).double().index_add(0, owner, repeated.influence),
    )


ORACLES: dict[str, Callable[[int], Any]] = {  # ByzFL's own, for f hostile clients
    "mean": lambda f: byzfl.Average(),
    "median": lambda f: byzfl.Median(),
    "trimmed_mean": lambda f: byzfl.TrMean(f),
    "krum": lambda f: byzfl.Krum(f),
    "multi_krum": lambda f: byzfl.MultiKrum(f),
}


@needs_byzfl
@pytest.mark.parametrize(("clients", "f"), [(5, 2), (8, 1), (10, 3), (23, 0), (24, 11)])
@pytest.mark.parametrize("name", list(ORACLES))
def test_equal_weights_are_as_in_byzfl(name: str, clients: int, f: int) -> None:
    updates = some(clients, size=50)
    options = {"hostile": f / clients} if name in WITH_SHARE else {}
    close(RULES.get(name)(updates, equal(clients), {}, **options).update, ORACLES[name](f)(updates))


@needs_byzfl
@pytest.mark.parametrize("steps", [1, 3])
def test_rules_that_step_are_as_in_byzfl(steps: int) -> None:
    first, second = some(10), some(10, seed=2)
    weiszfeld = geometric_median(first, equal(10), smoothing=0.1, steps=steps).update
    close(weiszfeld, byzfl.GeometricMedian(nu=0.1, T=steps)(first))
    theirs = byzfl.CenteredClipping(L=steps, tau=1.5)
    ours = centred_clipping(first, equal(10), radius=1.5, steps=steps)
    close(ours.update, theirs(first))
    close(
        centred_clipping(second, equal(10), ours.state, radius=1.5, steps=steps).update,
        theirs(second),
    )


def test_the_geometric_median_is_where_the_distances_are_least() -> None:
    updates, weights = (
        some(6, size=3),
        torch.tensor([0.3, 0.1, 0.1, 0.2, 0.2, 0.1], dtype=torch.float64),
    )
    rows = updates.double().numpy()
    best = scipy.optimize.minimize(
        lambda point: weights.numpy() @ numpy.linalg.norm(rows - point, axis=1),
        numpy.zeros(3),
        tol=1e-10,
    )
    torch.testing.assert_close(
        geometric_median(updates, weights).update.double(), torch.tensor(best.x), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("f", [1, 3])
def test_dnc_leaves_out_who_sticks_out(f: int) -> None:
    updates = some(10, size=30)
    updates[4] += 5
    centred = (updates - updates.mean(0)).double().numpy()
    direction = numpy.linalg.svd(centred)[2][0]
    kept = numpy.argsort((centred @ direction) ** 2)[: 10 - f]
    ruled = dnc(updates, equal(10), hostile=f / 10)
    close(ruled.update, updates[kept].mean(0))
    assert ruled.influence[4] == 0


@pytest.mark.parametrize("name", [name for name in RULES if name != "mean"])
def test_huge_values_of_a_few_move_nobody_far(name: str) -> None:
    honest, options = some(8, size=40), {"hostile": 0.2} if name in WITH_SHARE else {}
    for huge in (1e30, -1e30, 1e18):
        updates = torch.cat(
            [honest, torch.full((1, 40), huge), torch.full((1, 40), huge / 3)]
        )  # exactly its share
        ruled = RULES.get(name)(updates, equal(10), {}, **options)
        assert float(ruled.update.norm()) < 2 * float(honest.norm(dim=1).max())
        assert float(ruled.influence[-2:].sum()) < 1e-3
        assert bool(
            RULES.get(name)(updates * 1e8, equal(10), {}, **options).influence.isfinite().all()
        )


@pytest.mark.parametrize("name", list(RULES))
def test_influence_is_what_came_from_whom(name: str) -> None:
    updates, weights = some(7, size=1), torch.arange(1, 8).double() / 28
    ruled = RULES.get(name)(updates, weights, {})
    close(ruled.influence.float() @ updates, ruled.update)
    assert bool((ruled.influence >= 0).all())
    assert float(ruled.influence.sum()) < 1 + 1e-9

from __future__ import annotations

import pytest
import scipy.optimize
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from clientwise.core.bounds import Bounds

WEIGHTS = st.lists(st.floats(0.001, 1) | st.just(0.0), min_size=1, max_size=12).filter(any)


def weights_of(values: list[float]) -> Tensor:
    numbers = torch.tensor(values, dtype=torch.float64)
    return numbers / numbers.sum()


@settings(suppress_health_check=[HealthCheck.filter_too_much])  # most bounds are infeasible
@given(values=WEIGHTS, cap=st.floats(0.01, 1), floor=st.floats(0, 0.5))
def test_weights_within_bounds_keep_their_proportions(
    values: list[float], cap: float, floor: float
) -> None:
    weights, count = weights_of(values), len(values)
    with_weight = int((weights > 0).sum())
    assume(floor * count < 1 < cap * with_weight + floor * (count - with_weight))
    bounded, notes = Bounds(cap, floor).apply(weights)

    def too_much(factor: float) -> float:
        return float((factor * weights).clamp(floor, cap).sum()) - 1

    factor = scipy.optimize.brentq(
        too_much, 0, 2 / float(weights[weights > 0].min()), xtol=1e-14, maxiter=1000
    )
    torch.testing.assert_close(bounded, (factor * weights).clamp(floor, cap), rtol=0, atol=1e-9)
    assert float(bounded.sum()) == pytest.approx(1, abs=1e-12)
    assert not notes


@given(values=WEIGHTS, cap=st.floats(0.01, 1), floor=st.floats(0, 0.5))
def test_whatever_the_bounds_weights_sum_to_one(
    values: list[float], cap: float, floor: float
) -> None:
    bounds, weights = Bounds(cap, floor), weights_of(values)
    bounded, _ = bounds.apply(weights)
    assert float(bounded.sum()) == pytest.approx(1, abs=1e-9)
    if floor * len(values) <= 1 <= cap * len(values):
        assert bool(((bounded > floor - 1e-9) & (bounded < cap + 1e-9)).all())
    ranked = bounded[weights.argsort()]
    assert bool((ranked.diff() > -1e-12).all())  # nobody overtakes anybody


def test_a_floor_lifts_who_had_nothing() -> None:
    bounded, _ = Bounds(floor=0.1).apply(weights_of([3, 1, 0]))
    assert bounded.tolist() == pytest.approx([0.675, 0.225, 0.1])


def test_bounds_that_so_few_cannot_keep() -> None:
    bounded, notes = Bounds(cap=0.3).apply(weights_of([2, 1]))
    assert bounded.tolist() == [0.5, 0.5]
    assert notes == (
        "bounds: cap = 0.3 is infeasible for 2 clients: it must be at least 1/n; the weights are equal",
    )
    bounded, notes = Bounds(cap=0.4).apply(weights_of([2, 1, 0, 0]))
    assert bounded.tolist() == pytest.approx([0.4, 0.4, 0.1, 0.1])
    assert notes == (
        "bounds: only 2 clients have weight, too few for cap = 0.4: the others get the rest",
    )


@pytest.mark.parametrize(
    ("bounds", "clients"), [(Bounds(cap=0.3), 3), (Bounds(floor=0.3), 4), (Bounds(0.1, 0.2), 7)]
)
def test_impossible_bounds_are_told(bounds: Bounds, clients: int) -> None:
    with pytest.raises(
        ValueError, match=f"infeasible for {clients} clients: it must be at (least|most) 1/n"
    ):
        bounds.check(clients)
    Bounds(cap=0.1, floor=0.1).check(10)


def test_weights_too_small_to_scale_are_none() -> None:
    bounded, _ = Bounds(cap=0.6, floor=0.0).apply(
        torch.tensor([1.0, 5e-324, 0.0], dtype=torch.float64)
    )
    assert bounded.tolist() == pytest.approx([0.6, 0.2, 0.2])

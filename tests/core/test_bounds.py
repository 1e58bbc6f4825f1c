from __future__ import annotations

import pytest
import scipy.optimize
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from clientwise.core.weights.weighting import (
    Bounds,
    InfeasibleError,
)

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
def test_weights_are_within_feasible_bounds_and_others_are_refused(
    values: list[float], cap: float, floor: float
) -> None:
    bounds, weights = Bounds(cap, floor), weights_of(values)
    if floor > cap or not floor * len(values) <= 1 <= cap * len(values):
        with pytest.raises(InfeasibleError):
            bounds.apply(weights)
        return
    bounded, _ = bounds.apply(weights)
    assert float(bounded.sum()) == pytest.approx(1, abs=1e-9)
    assert bool(((bounded > floor - 1e-9) & (bounded < cap + 1e-9)).all())
    ranked = bounded[weights.argsort()]
    assert bool((ranked.diff() > -1e-12).all())  # nobody overtakes anybody


def test_a_floor_lifts_who_had_nothing() -> None:
    bounded, notes = Bounds(floor=0.1).apply(weights_of([3, 1, 0]))
    assert bounded.tolist() == pytest.approx([0.675, 0.225, 0.1])
    assert not notes


def test_where_caps_leave_a_rest_it_goes_to_those_without_weight() -> None:
    bounded, notes = Bounds(cap=0.4).apply(weights_of([2, 1, 0, 0]))
    assert bounded.tolist() == pytest.approx([0.4, 0.4, 0.1, 0.1])
    assert notes == ("bounds: weight of 2 clients alone cannot meet them: the others get the rest",)


@pytest.mark.parametrize(
    ("bounds", "clients", "said"),
    [
        (Bounds(cap=0.3), 3, "the caps sum to 3 × 0.3 = 0.9, less than 1"),
        (Bounds(floor=0.3), 4, "the floors sum to 4 × 0.3 = 1.2, more than 1"),
        (Bounds(0.1, 0.2), 7, "the floor 0.2 is above the cap 0.1"),
    ],
)
def test_the_arithmetic_of_infeasible_bounds_is_said(
    bounds: Bounds, clients: int, said: str
) -> None:
    with pytest.raises(InfeasibleError) as caught:
        bounds.check(clients)
    assert str(caught.value) == said
    Bounds(cap=0.1, floor=0.1).check(10)


def test_weights_too_small_to_scale_are_none() -> None:
    bounded, _ = Bounds(cap=0.6, floor=0.0).apply(
        torch.tensor([1.0, 5e-324, 0.0], dtype=torch.float64)
    )
    assert bounded.tolist() == pytest.approx([0.6, 0.2, 0.2])

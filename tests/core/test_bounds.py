from __future__ import annotations

from typing import Any

import numpy
import pytest
import scipy.optimize
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from clientwise.core.weights.bounds import (
    Bounds,
    InfeasibleError,
)
from clientwise.core.weights.policy import Group, Probation

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


GROUPS = st.lists(
    st.tuples(
        st.sampled_from([(0, 1), (0, 1, 2), (3, 4), (3, 4, 5), (0,), (4,)]),
        st.none() | st.floats(0.05, 1),
        st.none() | st.floats(0, 0.6),
    ),
    max_size=4,
    unique_by=lambda group: group[0],
)
SIX = st.lists(st.floats(0.01, 1), min_size=6, max_size=6)


@settings(deadline=None, max_examples=60)
@given(values=SIX, cap=st.floats(0.2, 1), floor=st.floats(0, 0.15), groups=GROUPS)
def test_weights_are_the_nearest_that_the_policy_allows(
    values: list[float],
    cap: float,
    floor: float,
    groups: list[tuple[tuple[int, ...], float | None, float | None]],
) -> None:
    """Against a linear program for what is feasible, and a general optimiser for what is nearest."""
    bounds = Bounds(cap, floor, tuple(Group(*one) for one in groups)).for_clients((), 6)
    weights = weights_of(values)
    lows, highs = bounds.limits(range(6))
    rows = []
    limits = []
    for group in bounds.groups:
        if len(group.clients) > 1:
            member = numpy.isin(numpy.arange(6), group.clients).astype(float)
            rows += [member, -member]
            limits += [1.0 if group.cap is None else group.cap, -(group.floor or 0.0)]
    box = list(zip(lows.tolist(), highs.tolist(), strict=True))
    feasible = False
    if all(low <= high for low, high in box):
        found = scipy.optimize.linprog(
            numpy.zeros(6),
            A_ub=numpy.array(rows) if rows else None,
            b_ub=limits or None,
            A_eq=numpy.ones((1, 6)),
            b_eq=[1.0],
            bounds=box,
        )
        feasible = found.success
    if not feasible:
        with pytest.raises(InfeasibleError):
            bounds.apply(weights)
        return
    bounded = bounds.apply(weights)[0].numpy()
    assert bounded.sum() == pytest.approx(1, abs=1e-9)
    assert (bounded > lows.numpy() - 1e-9).all()
    assert (bounded < highs.numpy() + 1e-9).all()
    for row, limit in zip(rows, limits, strict=True):
        assert row @ bounded < limit + 1e-9

    def divergence(candidate: numpy.ndarray) -> float:
        positive = numpy.maximum(candidate, 1e-12)
        return float((positive * numpy.log(positive / weights.numpy())).sum())

    constraints = [{"type": "eq", "fun": lambda candidate: candidate.sum() - 1}]
    for row, limit in zip(rows, limits, strict=True):
        constraints.append(
            {"type": "ineq", "fun": lambda candidate, row=row, limit=limit: limit - row @ candidate}
        )
    nearest = scipy.optimize.minimize(
        divergence, found.x, bounds=box, constraints=constraints, method="SLSQP"
    )
    assert divergence(bounded) < nearest.fun + 1e-5


def test_a_group_keeps_its_share_and_its_members_their_proportions() -> None:
    weights = weights_of([60, 30, 5, 5])
    rural = Group((2, 3), floor=0.4, name="rural")
    bounded, _ = Bounds(cap=0.5, groups=(rural,)).apply(weights)
    assert bounded.tolist() == pytest.approx([0.4, 0.2, 0.2, 0.2])
    only = Group((2,), cap=0.15)
    bounded, _ = Bounds(cap=0.5, groups=(rural, only)).apply(weights)
    assert bounded.tolist() == pytest.approx([0.4, 0.2, 0.15, 0.25])
    # The bounds of a single client replace those of all.
    bounded, _ = Bounds(cap=0.3, groups=(Group((0,), cap=0.5),)).apply(weights)
    assert bounded.tolist() == pytest.approx([0.5, 0.3, 0.1, 0.1])


def test_a_group_without_any_weight_shares_its_floor_equally() -> None:
    bounded, notes = Bounds(groups=(Group((1, 2), floor=0.2),)).apply(weights_of([1, 0, 0, 0]))
    assert bounded.tolist() == pytest.approx([0.8, 0.1, 0.1, 0.0])
    assert bounded[3] == 0
    assert notes == ("bounds: weight of 1 client alone cannot meet them: the others get the rest",)


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
        (Bounds(cap=0.3), 3, "all clients: the caps sum to 3 × 0.3 = 0.9, less than 1"),
        (Bounds(floor=0.3), 4, "all clients: the floors sum to 4 × 0.3 = 1.2, more than 1"),
        (Bounds(0.1, 0.2), 7, "client 0: its floor 0.2 is above its cap 0.1"),
        (
            Bounds(groups=(Group((0, 1), 0.25, 0.5, "rural"),)),
            6,
            "group 'rural': its floor 0.5 is above its cap 0.25",
        ),
        (Bounds(quorum=4), 3, "quorum = 4, and there are 3 clients"),
        (
            Bounds(cap=0.15, groups=(Group((2, 3), floor=0.4, name="rural"),)),
            4,
            "group 'rural': the caps sum to 2 × 0.15 = 0.3, less than its floor 0.4",
        ),
        (
            Bounds(groups=(Group((2, 3), floor=0.4, name="rural"),)),
            2,
            "group 'rural': none takes part, and its floor is 0.4",
        ),
        (
            Bounds(floor=0.1, groups=(Group((1,), cap=0.05),)),
            3,
            "client 1: its floor 0.1 is above its cap 0.05",
        ),
        (
            Bounds(groups=(Group((0, 1, 2), cap=0.6, name="north"), Group((3,), cap=0.2))),
            4,
            "all clients: the caps sum to 1 × 0.2 + 0.6 (group 'north') = 0.8, less than 1",
        ),
    ],
)
def test_the_arithmetic_of_infeasible_bounds_is_said(
    bounds: Bounds, clients: int, said: str
) -> None:
    with pytest.raises(InfeasibleError) as caught:
        bounds.check(range(clients))
    assert str(caught.value) == said
    Bounds(cap=0.1, floor=0.1).check(range(10))


def test_newcomers_have_a_smaller_cap_until_their_probation_ends() -> None:
    bounds = Bounds(floor=0.1, probation=Probation(cap=0.05, rounds=2, clients=("c",)))
    bounds = bounds.for_clients(("a", "b", "c"), 3)
    memory = bounds.first_memory(3)
    weights = weights_of([1, 1, 2])
    for accepted in ([0, 1, 2], [0, 1], [2]):  # the second round does not count: it was absent
        newcomers = bounds.newcomers(memory, 3)
        assert newcomers == {2}
        bounded, _ = bounds.apply(weights, range(3), newcomers)
        assert bounded.tolist() == pytest.approx([0.475, 0.475, 0.05])
        memory = bounds.memory_after(memory, accepted, 3)
    assert bounds.newcomers(memory, 3) == frozenset()
    assert bounds.newcomers(memory, 4) == {3}  # a member that joined since


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([(("a", "b"), 0.5)], "no client is called 'b'"),
        ([((0, 7), 0.5)], "no client is called 7"),
        ([((0, 1), 0.5), ((1, 2), 0.5)], "groups '0, 1' and '1, 2' overlap"),
        ([((0, 1), 0.5), ((1, 0), 0.6)], "have the same clients"),
        ([((0, 0), 0.5)], "lists a client twice"),
    ],
)
def test_clients_and_groups_that_cannot_be(groups: list[Any], said: str) -> None:
    bounds = Bounds(groups=tuple(Group(*group) for group in groups))
    with pytest.raises(ValueError, match=said):
        bounds.for_clients(("a", "x", "c"), 3)


def test_weights_too_small_to_scale_are_none() -> None:
    bounded, _ = Bounds(cap=0.6, floor=0.0).apply(
        torch.tensor([1.0, 5e-324, 0.0], dtype=torch.float64)
    )
    assert bounded.tolist() == pytest.approx([0.6, 0.2, 0.2])

"""Time and devices: how long an answer takes, who can be asked, when a round ends."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from clientwise.core.clock import (
    HOUR,
    Clock,
    Devices,
    Pace,
)
from clientwise.core.criteria import (
    Arrivals,
    ClientFacts,
    Outcome,
    make_criterion,
)
from clientwise.core.sampling import sample_clients
from clientwise.core.types import ModelSpec

NEVER = math.inf


def devices(**facts: list[float]) -> Devices:
    """As many as values are given; of what is not given, nothing special."""
    count = len(next(iter(facts.values())))
    usual = {"speed": 100.0, "up": 1e6, "down": 1e6, "available_from": 0.0, "available_hours": 24.0}
    usual |= {"dropout": 0.0}
    return Devices(
        **{
            name: torch.tensor(facts.get(name, [value] * count)).double()
            for name, value in usual.items()
        }
    )


def test_an_answer_takes_the_model_down_the_samples_and_the_model_up() -> None:
    some = devices(speed=[10.0, 100.0], up=[5.0, 50.0], down=[20.0, 10.0])
    assert some.seconds(torch.tensor([30.0, 30.0]), 100).tolist() == [5 + 3 + 20, 10 + 0.3 + 2]


@pytest.mark.parametrize(
    ("pace", "asked", "at_work", "ends"),
    [
        (Pace(), [3.0, 7.0, 5.0], [], 7.0),
        (Pace(), [3.0, NEVER, 5.0], [], 5.0),  # a connection that breaks is seen to be broken
        (Pace(), [NEVER], [], 8.0),  # it is waited for as long as it would have taken
        (Pace(extra=0.5), [3.0, 7.0, 5.0, 9.0], [], 7.0),  # the first three of four
        (Pace(extra=0.5), [3.0, 9.0], [], 9.0),  # fewer were there to be asked
        (Pace(deadline=5.0), [3.0, 7.0, 5.0], [], 6.0),
        (Pace(deadline=9.0), [3.0, 7.0, 5.0], [], 7.0),
        (Pace(deadline=9.0), [3.0, NEVER, 5.0], [], 10.0),  # who could know that one is gone?
        (
            Pace(late="keep"),
            [3.0, 7.0],
            [2.0, 20.0],
            7.0,
        ),  # nobody waits for those of earlier rounds
        (Pace(late="keep"), [], [8.0, 20.0], 8.0),  # but where all others are still at work
        (Pace(buffer=2), [3.0, 7.0], [2.0, 20.0], 3.0),
        (Pace(buffer=2), [NEVER], [20.0], 20.0),
        (Pace(buffer=2, deadline=5.0), [9.0, 7.0], [], 6.0),
    ],
)
def test_a_round_ends_when_its_pace_says_so(
    pace: Pace, asked: list[float], at_work: list[float], ends: float
) -> None:
    clock = Clock(3, pace)
    clock.now = 1.0
    assert clock.ends(asked, at_work, slowest=8.0) == ends


def test_only_who_is_available_at_that_hour_is_asked() -> None:
    night = devices(available_from=[22.0, 8.0, 0.0, 9.5], available_hours=[8.0, 4.0, 24.0, 1.0])
    clock = Clock(4, Pace(), night)
    there = {0.0: (0, 2), 6.5: (2,), 9.0: (1, 2), 10.0: (1, 2, 3), 23.0: (0, 2), 24 + 5.9: (0, 2)}
    for hour, clients in there.items():
        clock.now = hour * HOUR
        assert clock.cohort(4, seed=1, round_num=1) == clients
        assert clock.now == hour * HOUR


def test_where_nobody_is_available_the_clock_goes_on_until_somebody_is() -> None:
    clock = Clock(
        3, Pace(), devices(available_from=[7.3, 7.3, 9.0], available_hours=[1.0, 2.0, 1.0])
    )
    assert clock.cohort(3, seed=1, round_num=1) == (0, 1)
    assert clock.now == pytest.approx(7.3 * HOUR)
    clock.now, clock.at_work = 20 * HOUR, frozenset([2])
    assert clock.cohort(3, seed=1, round_num=2) == ()  # there is somebody to wait for
    assert clock.now == 20 * HOUR


def test_methods_meet_the_same_clients_as_far_as_they_can() -> None:
    alike = devices(speed=[1.0] * 30)
    usual = sample_clients(30, 10, 7, 3)
    assert Clock(30, Pace(), alike).cohort(10, 7, 3) == usual
    assert {*usual} < {*Clock(30, Pace(extra=0.5), alike).cohort(10, 7, 3)}
    fewer = replace(
        alike,
        available_hours=torch.tensor([12.0, 24.0] * 15).double(),
        available_from=alike.speed * 12,
    )
    assert {client for client in usual if client % 2} <= {
        *Clock(30, Pace(), fewer).cohort(10, 7, 3)
    }


# Criteria ----------------------------------------------------------------------------------------------------------


def facts(**more: Any) -> ClientFacts:
    """Two clients with 10 and 20 samples: a phone, and a device that claims to be faster than any."""
    rows = [[200.0, 20.0, 60.0, 8.0, 6.0, 0.1, 0.3], [1e9, 1e9, 1e9, 0.0, 24.0, 0.0, 1.0]]
    known = {"device": Devices(*torch.tensor(rows, dtype=torch.float64).T)} | more
    sizes = torch.tensor([10, 20])
    return ClientFacts(
        sizes, torch.zeros(2, 3), torch.zeros(2), {}, {}, lambda: torch.zeros(0), **known
    )


def measured(name: str, seen: ClientFacts | Arrivals, **options: float) -> list[float]:
    values: list[float] = make_criterion(name, **options).measure(seen).tolist()
    return values


def test_late_and_old_updates_count_less() -> None:
    three = Arrivals(
        (0, 1, 2),
        torch.zeros(3, 1),
        torch.zeros(1),
        ModelSpec((), 1, 1),
        lambda models: pytest.fail("nobody judges"),
    )
    three = replace(
        three, seconds=torch.tensor([0.0, 60.0, 180.0]), ages=torch.tensor([0.0, 3.0, 8.0])
    )
    assert measured("response_time", three) == [1.0, 0.5, 0.25]
    assert measured("staleness", three) == pytest.approx([1.0, 0.5, 1 / 3])
    assert measured("staleness", three, power=0.0) == [1.0, 1.0, 1.0]


def test_timeliness_remembers_who_was_late_refused_or_gone() -> None:
    memory = make_criterion("timeliness").memory
    assert memory is not None
    after = memory.after(memory.first(5), Outcome([0, 1], [], refused=[2, -1, 99], late={1}))
    assert after.tolist() == pytest.approx([1.0, 0.8, 0.8, 1.0, 1.0])
    after = memory.after(after, Outcome([0, 1, 2], [], refused=[]))
    assert after.tolist() == pytest.approx([1.0, 0.84, 0.84, 1.0, 1.0])

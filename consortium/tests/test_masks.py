"""Masked sums: right with all members who were told the same, noise otherwise; impossible sums are void."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from clientwise.hosts.protocols import Refused
from torch import Tensor

from clientwise_consortium.fixed_point import Sums, Void
from clientwise_consortium.keys import public_keys
from clientwise_consortium.masks import Adder, Masker
from conftest import NAMES, Keys

MEMBERS = frozenset(NAMES)
TERMS = {"experiment": "e", "seed": 1, "round": 1}


@pytest.fixture
def begin(keys: Keys):  # type: ignore[no-untyped-def]
    known = public_keys(keys.signers, "clientwise-member")

    def make(**terms: Any) -> dict[str, Masker]:
        return {name: Masker(name, keys.private(name), known, TERMS | terms) for name in NAMES}

    return make


def roster_of(round_: dict[str, Masker]) -> dict[str, bytes]:
    return {name: one.key() for name, one in round_.items()}


def values_of(name: str) -> Tensor:
    return torch.arange(-3, 5) * (NAMES.index(name) + 1) * 2**60 // 7


def test_the_sum_of_all_is_exact(begin) -> None:  # type: ignore[no-untyped-def]
    round_ = begin()
    roster = roster_of(round_)
    for purpose in ("criteria", "update"):
        parts = {n: round_[n].masked(purpose, roster, [1.0], values_of(n)) for n in NAMES}
        assert torch.equal(Adder(MEMBERS).total(purpose, parts), sum(values_of(n) for n in NAMES))
        assert not any(torch.equal(parts[n], values_of(n)) for n in NAMES)


def test_the_sum_of_fewer_is_noise(begin) -> None:  # type: ignore[no-untyped-def]
    round_ = begin()
    roster = roster_of(round_)
    zeros = torch.zeros(4000, dtype=torch.int64)
    parts = {n: round_[n].masked("update", roster, None, zeros) for n in NAMES}
    pair = Adder(frozenset(NAMES[:2])).total("update", {n: parts[n] for n in NAMES[:2]})
    assert abs(float((pair > 0).double().mean()) - 0.5) < 0.05
    assert len(pair.unique()) == 4000
    with pytest.raises(Void, match="no part of south"):
        Adder(MEMBERS).total("update", {n: parts[n] for n in NAMES[:2]})


@pytest.mark.parametrize("what", ["told", "purpose", "length"])
def test_a_member_that_was_told_something_else_does_not_cancel(begin, what: str) -> None:  # type: ignore[no-untyped-def]
    """A server that gives one member another broadcast learns noise, not the member's update."""
    round_ = begin()
    roster = roster_of(round_)
    parts = {n: round_[n].masked("update", roster, [1.0], values_of(n)) for n in NAMES[:2]}
    told = [2.0] if what == "told" else [1.0]
    purpose = "criteria" if what == "purpose" else "update"
    values = values_of("south")
    if what == "length":
        values = values[:-1]
    parts["south"] = round_["south"].masked(purpose, roster, told, values)
    if what == "length":
        with pytest.raises(Void, match="lengths"):
            Adder(MEMBERS).total("update", parts)
        return
    total = Adder(MEMBERS).total("update", parts)
    assert not bool((total == sum(values_of(n) for n in NAMES)).any())


def test_bad_rosters_are_refused(begin, keys: Keys) -> None:  # type: ignore[no-untyped-def]
    round_, other = begin(), begin()
    roster = roster_of(round_)
    east = round_["east"]

    def ask(changed: dict[str, bytes]) -> None:
        east.masked("update", changed, None, values_of("east"))

    with pytest.raises(Refused, match="every member"):
        ask({name: key for name, key in roster.items() if name != "south"})
    with pytest.raises(Refused, match="own key"):
        ask(roster_of(other))
    with pytest.raises(Refused, match="one key"):
        ask({**roster, "south": roster["north"]})
    with pytest.raises(Refused, match="not signed"):
        ask({**roster, "south": roster["south"][:32] + roster["north"][32:]})
    later = begin(round=2)
    with pytest.raises(Refused, match="not signed"):
        ask({**roster, "south": later["south"].key()})
    ask(roster)
    with pytest.raises(Refused, match="before"):
        ask(roster)
    known = public_keys(keys.signers, "clientwise-member")
    two = {name: known[name] for name in NAMES[:2]}
    with pytest.raises(Refused, match="at least 3"):
        Masker("east", keys.private("east"), two, TERMS)


SUMS = Sums(members=3, most_score=1.0, clip=2.0, highs=[100.0, 1.0])


def test_fixed_point_sums_are_close() -> None:
    torch.manual_seed(1)
    scores = [0.5, 0.2, 1.0]
    updates = [torch.randn(50) * size for size in (0.1, 5.0, 0.2)]
    total = sum(SUMS.update(s, u) for s, u in zip(scores, updates, strict=True))
    clipped = [u * min(1, 2.0 / float(u.norm())) for u in updates]
    score, mean = SUMS.read_update(total)
    exact = sum(s * u.double() for s, u in zip(scores, clipped, strict=True)) / 1.7
    assert score == pytest.approx(1.7)
    assert torch.allclose(mean, exact, atol=1e-6)
    sums = SUMS.read_criteria(sum(SUMS.criteria([30.0, 0.5]) for _ in range(3)))
    assert sums == pytest.approx([90.0, 1.5])


def test_impossible_sums_are_void() -> None:
    honest = [SUMS.update(0.5, torch.full((50,), 0.01)) for _ in range(2)]
    torch.manual_seed(2)
    random = torch.randint(-(2**62), 2**62, (51,))
    large = SUMS.update(0.5, torch.full((50,), 0.2)) * 100
    negative = SUMS.update(0.5, torch.full((50,), 0.01)) * torch.tensor([-9] + 50 * [1])
    for bad in (random, large, negative):
        with pytest.raises(Void):
            SUMS.read_update(honest[0] + honest[1] + bad)
    for bad in (torch.tensor([2**62, 0]), torch.tensor([-(2**60), 0])):
        with pytest.raises(Void):
            SUMS.read_criteria(2 * SUMS.criteria([30.0, 0.5]) + bad)


def test_an_update_that_is_not_finite_has_no_score() -> None:
    own = SUMS.update(0.5, torch.tensor([math.nan, 1.0]))
    assert own.tolist() == [0, 0, 0]
    assert int(SUMS.update(7.0, torch.zeros(2))[0]) == int(SUMS.update(1.0, torch.zeros(2))[0])

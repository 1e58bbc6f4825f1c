"""Differential privacy of the clients: clipping, weights, noise, and the sensitivity that the noise is made for."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from clientwise.core.privacy import (
    LocalNoise,
    NoisedSum,
    Privacy,
    capped,
    release,
)
from clientwise.core.sampling import poisson_sample, secret_sample
from clientwise.core.weights.scores import (
    Choquet,
    Mean,
    Owa,
    Prioritized,
    Product,
    Score,
    WeightedMean,
)
from clientwise.core.weights.weighting import (
    NORMALISERS,
    Bounds,
    divide,
    fixed_scale,
    is_constant,
)

NAMES = ("a", "b", "c")
# Every score that privacy allows
SCORES: dict[str, Score] = {
    "prioritized": Prioritized(),
    "prioritized, another order": Prioritized(("c", "a", "b")),
    "mean": Mean(),
    "weighted mean": WeightedMean({"a": 3.0, "b": 1.0, "c": 0.0}),
    "owa": Owa(quantifier="most"),
    "choquet": Choquet(
        {"a": 0.5, "b": 0.3, "c": 0.2, "a+b": 0.9, "a+c": 0.7, "b+c": 0.5, "a+b+c": 1.0}
    ),
    "product": Product(powers={"a": 2.0}, thresholds={"b": 0.1}),
}
CLIP = 0.7
Federation = tuple[Tensor, Tensor]  # updates [n, d], criteria [n, 3]


def released(
    federation: Federation, score: Score, cap: float, privacy: Privacy, **changes: Any
) -> NoisedSum:
    updates, criteria = federation
    normalised = divide(criteria, fixed_scale(criteria, by=[2.0, 1.0, 5.0]))
    scores = score(NAMES, normalised)
    options: dict[str, Any] = {
        "cap": cap,
        "replaced": False,
        "key": b"key",
        "round_num": 1,
    }
    return release(privacy, list(updates), scores, torch.zeros(3), **options | changes)


def drawn(random: torch.Generator, count: int) -> Federation:
    """Updates in few directions, of all lengths; criteria of which some are zero or extreme."""
    directions = torch.tensor([[1.0, 0, 0], [-1.0, 0, 0], [0.6, 0.8, 0]])
    rows = torch.randint(len(directions), (count,), generator=random)
    lengths = torch.tensor([0.1, CLIP, 50.0])[torch.randint(3, (count, 1), generator=random)]
    values = torch.tensor([0.0, 1e-6, 0.3, 1.0, 40.0], dtype=torch.float64)
    criteria = values[torch.randint(5, (count, 3), generator=random)]
    return directions[rows] * lengths, criteria


def farthest(
    score: Score,
    cap: float,
    privacy: Privacy,
    neighbour: Callable[[torch.Generator, Federation], Federation],
    tries: int = 60,
) -> float:
    """The longest distance between the sums of two neighbouring federations that a search finds."""
    random = torch.Generator().manual_seed(7)
    noise = released((torch.zeros(0, 3), torch.zeros(0, 3)), score, cap, privacy).update
    longest = 0.0
    for attempt in range(tries):
        one = drawn(random, attempt % 6)
        other = neighbour(random, one)
        first = released(one, score, cap, privacy).update - noise
        second = released(other, score, cap, privacy).update - noise
        longest = max(longest, float((first - second).norm()))
    # The worst case of the proof: all others point the other way, and the new one takes the cap.
    ahead = torch.tensor([[1.0, 0, 0]]) * 50
    same = torch.full((1, 3), 10.0, dtype=torch.float64)
    for count in range(1, 7):
        others = (-ahead.repeat(count, 1), same.repeat(count, 1))
        new = (torch.cat([others[0], ahead]), torch.cat([others[1], 1e6 * same]))
        for one, other in ((others, new), (with_row(others, ahead, 1e6 * same), others)):
            if (len(one[0]) == len(other[0])) == (neighbour is replaced):
                first = released(one, score, cap, privacy).update - noise
                second = released(other, score, cap, privacy).update - noise
                longest = max(longest, float((first - second).norm()))
    return longest


def with_row(federation: Federation, update: Tensor, criteria: Tensor) -> Federation:
    """The federation with another first client."""
    return (
        torch.cat([update, federation[0][1:]]),
        torch.cat([criteria, federation[1][1:]]),
    )


def added(random: torch.Generator, federation: Federation) -> Federation:
    new = drawn(random, 1)
    return torch.cat([federation[0], new[0]]), torch.cat([federation[1], new[1]])


def replaced(random: torch.Generator, federation: Federation) -> Federation:
    if not len(federation[0]):
        return federation
    return with_row(federation, *drawn(random, 1))


@pytest.mark.parametrize("name", list(SCORES))
@pytest.mark.parametrize("neighbour", [added, replaced])
@pytest.mark.parametrize("denominator", [None, 1.5])
def test_no_neighbour_moves_the_sum_farther_than_the_sensitivity(
    name: str, neighbour: Any, denominator: float | None
) -> None:
    privacy = Privacy(clip=CLIP, delta=0.1, noise_multiplier=1.0, denominator=denominator)
    cap = 0.25
    bound = privacy.sensitivity(cap, replaced=neighbour is replaced)
    found = farthest(SCORES[name], cap, privacy, neighbour)
    assert found <= bound * (1 + 1e-9)
    assert found > 0.9 * bound  # the search is not blind


@pytest.mark.parametrize("inverse", [3, 6, 7, 9, 19, 34])
def test_rounding_of_the_cap_takes_nobodys_weight(inverse: int) -> None:
    """For these n, 1 − (n − 1)/n is above 1/n. A client with a tiny score must not take all weights."""
    privacy = Privacy(clip=CLIP, delta=0.1, noise_multiplier=1.0)
    cap = 1 / inverse
    scores = torch.tensor([10.0**-k for k in range(inverse)], dtype=torch.float64)
    tiny = torch.tensor([1e-90], dtype=torch.float64)
    before = privacy.weights(scores, cap)
    after = privacy.weights(torch.cat([scores, tiny]), cap)
    assert float((before - after[:-1]).abs().sum()) <= cap
    assert float(after.sum()) == pytest.approx(1.0)


def test_a_huge_score_takes_no_more_than_its_own_weight_from_others() -> None:
    privacy = Privacy(clip=CLIP, delta=0.1, noise_multiplier=1.0)
    for small in (1e-300, 1e-99, 1.0):
        others = torch.full((20,), small, dtype=torch.float64)
        before = privacy.weights(others, 0.1)
        for huge in (1e308, torch.inf):
            new = torch.tensor([huge], dtype=torch.float64)
            after = privacy.weights(torch.cat([others, new]), 0.1)
            lost = float((before - after[:-1]).sum())
            assert lost <= float(after[-1]) + 1e-12 <= 0.1 + 2e-12


def test_negative_scores_weigh_nothing() -> None:
    scores = torch.tensor([-1e9, -1.0, torch.nan, 2.0], dtype=torch.float64)
    for denominator in (None, 4.0):
        privacy = Privacy(clip=CLIP, delta=0.1, noise_multiplier=1.0, denominator=denominator)
        assert privacy.weights(scores, 0.25).tolist() == [0, 0, 0, 0.25]


def test_weights_are_capped_and_keep_their_proportions() -> None:
    random = torch.Generator().manual_seed(1)
    for count, cap in itertools.product((1, 3, 10, 50), (0.02, 0.1, 0.5)):
        scores = torch.rand(count, generator=random, dtype=torch.float64) ** 4
        scores[0] = 0
        weights = capped(scores, cap)
        assert float(weights.max()) <= cap * (1 + 1e-12)
        assert weights[0] == 0
        if cap * (count - 1) <= 1:
            assert torch.equal(weights[1:], torch.full_like(weights[1:], cap))
            continue
        assert float(weights.sum()) == pytest.approx(1)
        usual, notes = Bounds(cap=cap).apply(scores / scores.sum())
        assert not notes
        assert torch.allclose(weights, usual)
    assert capped(torch.zeros(0, dtype=torch.float64), 0.5).tolist() == []
    assert capped(torch.zeros(3, dtype=torch.float64), 0.5).tolist() == [0, 0, 0]
    assert float(capped(torch.full((9,), 1e308, dtype=torch.float64), 0.2).sum()) == pytest.approx(
        1
    )


@pytest.mark.parametrize("count", [0, 5])
def test_the_noise_is_gaussian_with_the_deviation_of_the_sensitivity(
    count: int,
) -> None:
    """Also without any client: an empty cohort must not show."""
    privacy = Privacy(clip=CLIP, delta=0.1, noise_multiplier=1.5)
    size = 20_000
    updates = [torch.full((size,), 3.0) for _ in range(count)]
    scores = torch.ones(count, dtype=torch.float64)
    same: dict[str, Any] = {"cap": 0.25, "replaced": False}
    found = release(privacy, updates, scores, torch.zeros(size), key=b"one", round_num=3, **same)
    expected = 1.5 * 2 * CLIP * 0.25
    assert found.deviation == pytest.approx(expected)
    mean = CLIP / size**0.5 if count else 0.0
    noise = (found.update - mean) / expected
    assert stats.kstest(noise.numpy(), "norm").pvalue > 0.01
    again = release(privacy, updates, scores, torch.zeros(size), key=b"one", round_num=3, **same)
    assert torch.equal(found.update, again.update)
    for other in ({"key": b"two", "round_num": 3}, {"key": b"one", "round_num": 4}):
        another = release(privacy, updates, scores, torch.zeros(size), **other, **same)
        correlation = torch.corrcoef(torch.stack([found.update, another.update]))[0, 1]
        assert abs(float(correlation)) < 0.05


def test_a_client_clips_and_adds_its_own_noise() -> None:
    noise = LocalNoise(clip=2.0, deviation=0.5)
    long = torch.full((1, 40_000), 1.0)
    sent = noise.apply(long, b"key", ["name"])[0].double()
    assert stats.kstest(((sent - 2.0 / 200) / 0.5).numpy(), "norm").pvalue > 0.01
    short = torch.full((1, 40_000), 1e-4)
    assert float(noise.apply(short, b"key", ["name"]).double().mean()) == pytest.approx(
        float(sent.mean()) - 0.01 + 1e-4, abs=1e-6
    )
    assert torch.equal(noise.apply(long, b"key", ["name"])[0].double(), sent)
    assert not torch.equal(noise.apply(long, b"key", ["other"])[0].double(), sent)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_failed_training_sends_noise_alone(value: float) -> None:
    noise = LocalNoise(clip=2.0, deviation=0.5)
    failed = torch.ones(2, 50)
    failed[0, 7] = value
    sent = noise.apply(failed, b"key", ["one", "other"])
    still = noise.apply(torch.zeros(1, 50), b"key", ["one"])
    assert torch.equal(sent[:1], still)
    assert torch.equal(sent[1:], noise.apply(torch.ones(1, 50), b"key", ["other"]))


def test_poisson_sampling_draws_every_client_independently() -> None:
    cohorts = [poisson_sample(50, 0.2, b"key", number) for number in range(2_000)]
    sizes = torch.tensor([len(cohort) for cohort in cohorts]).double()
    assert float(sizes.mean()) == pytest.approx(10, abs=0.3)
    assert float(sizes.var()) == pytest.approx(50 * 0.2 * 0.8, rel=0.1)
    together = sum(0 in cohort and 1 in cohort for cohort in cohorts)
    assert together / 2_000 == pytest.approx(0.04, abs=0.015)
    assert poisson_sample(50, 0.2, b"key", 3, frozenset({1, 2})) == tuple(
        client for client in cohorts[3] if client in (1, 2)
    )
    assert len(secret_sample(50, 7, b"key", 1)) == 7
    assert 5 not in secret_sample(6, 6, b"key", 1, frozenset(range(5)))


def test_normalisers_say_whether_they_depend_on_the_cohort() -> None:
    raw = torch.tensor([[1.0, 2.0], [3.0, 5.0]], dtype=torch.float64)
    for name in NORMALISERS:
        options = {"by": [1.0, 2.0]} if name == "fixed" else {}
        scale = NORMALISERS.get(name)
        alike = torch.equal(scale(raw, **options), scale(raw[:1], **options))
        assert alike == is_constant(name), name
    with pytest.raises(ValueError, match="1 values for 2 criteria"):
        fixed_scale(raw, by=[1.0])

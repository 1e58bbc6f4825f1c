"""Every score on values worked out by hand, and the properties the papers claim."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import clientwise as cw
from clientwise.core.weights.scores import (
    SCORES,
    Choquet,
    Mean,
    Owa,
    Prioritized,
    Product,
    Score,
    WeightedMean,
)
from clientwise.testing import check_score

NAMES = ("a", "b", "c")
ALICE, BOB = (
    (0.9, 0.2, 0.4),
    (0.1, 0.8, 0.5),
)  # P1 Example 4.1: dataset size, clothes diversity, image sharpness

CAPACITY = {"a": 0.2, "b": 0.3, "c": 0.1, "a+b": 0.9, "a+c": 0.4, "b+c": 0.5, "a+b+c": 1.0}
EVERY_SCORE: list[Score] = [
    Prioritized(),
    Prioritized(("c", "a", "b")),
    Mean(),
    WeightedMean({"a": 0.2, "b": 0.0, "c": 0.8}),
    Owa([0.5, 0.3, 0.2]),
    Owa(quantifier="most"),
    Owa(quantifier="all"),
    Choquet(CAPACITY),
    Product({"a": 2.0, "b": 0.5}),
    Product(thresholds={"a": 0.3}),
]

unit = st.floats(0, 1)
client = st.tuples(unit, unit, unit)


def score_of(score: Score, *clients: Sequence[float]) -> list[float]:
    return score(NAMES, torch.tensor(clients, dtype=torch.float64)).tolist()


def test_every_registered_score_is_tested_here() -> None:
    assert {type(score) for score in EVERY_SCORE} == {SCORES.get(name) for name in SCORES}


def test_p1_example_41_mean() -> None:
    weights = cw.weigh(
        dict(zip(NAMES, zip(ALICE, BOB, strict=True), strict=True)),
        score=cw.mean(),
        normalise="none",
    )
    assert weights.round(2).tolist() == [0.52, 0.48]


def test_p1_example_42_prioritized() -> None:
    assert score_of(Prioritized(), ALICE, BOB) == pytest.approx([1.152, 0.22])
    assert score_of(Prioritized(("c", "b", "a")), ALICE, BOB) == pytest.approx([0.552, 0.94])


def test_p2_example_2_follows_the_formula_not_the_misprint() -> None:
    assert score_of(Prioritized(), (0.5, 0.8, 0.9)) == pytest.approx([1.26])
    # The paper prints 1.82; its own Eq. 4 gives 0.9 + 0.9·0.8 + 0.72·0.5.
    assert score_of(Prioritized(("c", "b", "a")), (0.5, 0.8, 0.9)) == pytest.approx([1.98])


@given(client, st.integers(0, 2))
def test_p1_eq_8_what_follows_a_zero_counts_for_nothing(
    values: tuple[float, ...], place: int
) -> None:
    broken = [*values[:place], 0.0, *values[place + 1 :]]
    shorter = torch.tensor([values[:place]], dtype=torch.float64)
    expected = float(Prioritized()(NAMES[:place], shorter)[0]) if place else 0.0
    assert score_of(Prioritized(), broken)[0] == pytest.approx(expected)


@pytest.mark.parametrize("score", EVERY_SCORE, ids=repr)
def test_every_score_rises_with_its_criteria_and_is_the_sum_of_its_terms(score: Score) -> None:
    check_score(score, NAMES)  # P1 Eq. 7


def test_scores_that_compare_clients_say_so() -> None:
    values = torch.rand(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for score in EVERY_SCORE:
        alone = torch.cat([score(NAMES, row[None]) for row in values])
        assert torch.allclose(score(NAMES, values), alone) != score.compares_clients, score


@pytest.mark.parametrize("score", EVERY_SCORE, ids=repr)
def test_columns_are_known_by_name_not_by_place(score: Score) -> None:
    values = torch.rand(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    if isinstance(score, Prioritized) and score.priority is None:
        score = score.with_order(NAMES)
    for columns in itertools.permutations(range(3)):
        shuffled = score([NAMES[column] for column in columns], values[:, list(columns)])
        torch.testing.assert_close(shuffled, score(NAMES, values))


def test_owa_weighs_places_not_criteria() -> None:
    # sorted: 0.9, 0.4, 0.2
    assert score_of(Owa([0.5, 0.3, 0.2]), ALICE) == pytest.approx([0.45 + 0.12 + 0.04])
    assert score_of(Owa(quantifier="any"), ALICE, BOB) == pytest.approx([0.9, 0.8])
    assert score_of(Owa(quantifier="all"), ALICE, BOB) == pytest.approx([0.2, 0.1])


def test_choquet_by_hand() -> None:
    # ALICE sorted: b 0.2, c 0.4, a 0.9: 0.2·v(abc) + (0.4−0.2)·v(ac) + (0.9−0.4)·v(a)
    assert score_of(Choquet(CAPACITY), ALICE) == pytest.approx([0.2 + 0.2 * 0.4 + 0.5 * 0.2])


@pytest.mark.parametrize(
    ("score", "reason"),
    [
        (Choquet({"a": 0.5, "b": 0.5, "a+b": 0.9}), "together must be 1, got 0.9"),
        (Choquet({"a": 1.2, "b": 0.5, "a+b": 1.0}), "a+b has 1, less than its part a with 1.2"),
        (
            Choquet({"a": -0.1, "b": 0.5, "a+b": 1.0}),
            "a has -0.1, less than its part nothing with 0",
        ),
        (Choquet({"a": 0.5, "a+b": 1.0}), "no value for b"),
        (Choquet({"a": 0.5, "b": 0.5, "a+b": 1.0, "b+a": 1.0}), "twice"),
        (Choquet({"a": 0.5, "bee": 0.5, "a+b": 1.0}), "'bee', which is not among the criteria"),
        (Prioritized(("a",)), "priority leaves out b"),
        (Prioritized(("a", "b", "a")), "names 'a' twice"),
        (WeightedMean({"a": 1.0, "x": 1.0}), "weights names 'x'"),
        (Owa([1.0]), "1 values for 2 criteria"),
        (Product({"x": 1.0}), "powers names 'x'"),
    ],
)
def test_a_score_that_does_not_fit_says_why(score: Score, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        score.check(("a", "b"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Owa(),
        lambda: Owa([0.5, 0.6]),
        lambda: Owa([]),
        lambda: Owa([float("nan"), 1.0]),
        lambda: WeightedMean({"a": float("inf")}),
        lambda: Product({"a": float("nan")}),
        lambda: Owa([0.5, 0.5], "most"),
        lambda: WeightedMean({"a": -1.0}),
        lambda: Product({"a": -1.0}),
    ],
)
def test_nonsense_is_refused_when_made(make) -> None:
    with pytest.raises(ValueError, match=r"."):
        make()


def test_product_of_powers_with_threshold() -> None:
    # P3 1.D: accuracy above 55%
    score = Product(thresholds={"a": 0.55})
    assert score(("a",), torch.tensor([[0.5], [0.55], [0.8]])).tolist() == pytest.approx(
        [0, 0, 0.25]
    )
    # P3 1.A: accuracy × samples; and accuracy²
    assert score_of(Product(), (0.5, 600, 1)) == [300]
    assert score_of(Product({"a": 2.0, "b": 0.0, "c": 0.0}), (0.5, 600, 1)) == [0.25]

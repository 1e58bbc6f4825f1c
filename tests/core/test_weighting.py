from __future__ import annotations

import re

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import clientwise as cw
from clientwise.core.weights.weighting import (
    NORMALISERS,
    divide,
    to_weights,
)

positive = st.floats(0, 1000)
cohorts = st.lists(st.tuples(positive, positive), min_size=1, max_size=8)
SCORES = [
    cw.prioritized("a", "b"),
    cw.mean(),
    cw.parts.weighted_mean({"a": 1.0, "b": 3.0}),
    cw.parts.owa([0.7, 0.3]),
    cw.product(),
]


def test_normalisers_by_hand() -> None:
    raw = torch.tensor([[1.0, 4.0], [3.0, 0.0]])
    assert NORMALISERS.get("sum")(raw).tolist() == [4, 4]
    assert NORMALISERS.get("max")(raw).tolist() == [3, 4]
    assert NORMALISERS.get("none")(raw).tolist() == [1, 1]
    assert divide(raw, torch.tensor([4.0, 0.0])).tolist() == [[0.25, 0], [0.75, 0]]


def test_a_score_may_be_a_function() -> None:
    def weaker(accuracy: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
        return torch.minimum(size, accuracy)

    criteria = {"size": [1.0, 3.0], "accuracy": [0.5, 0.5]}
    assert cw.weigh(criteria, score=weaker).tolist() == pytest.approx([1 / 3, 2 / 3])
    with pytest.raises(ValueError, match=r"weaker\(accuracy, size\): the criteria are size. Its"):
        cw.weigh({"size": [1.0]}, score=weaker)
    with pytest.raises(TypeError, match=r"cw.mean\(\) ..., or a function, got 'mean'"):
        cw.weigh(criteria, score="mean")  # type: ignore[arg-type]


def test_prioritized_weights_by_hand_under_each_normaliser() -> None:
    criteria = {"a": [1, 3], "b": [4, 1]}
    score = cw.prioritized("a", "b")
    # sum: a = ¼, ¾; b = 0.8, 0.2; f = ¼ + 0.2 = 0.45, ¾ + 0.15 = 0.9
    assert cw.weigh(criteria, score=score).tolist() == pytest.approx([1 / 3, 2 / 3])
    # max: a = ⅓, 1; b = 1, ¼; f = ⅔, 1.25
    assert cw.weigh(criteria, score=score, normalise="max").tolist() == pytest.approx(
        [8 / 23, 15 / 23]
    )
    # none: f = 1 + 4, 3 + 3
    assert cw.weigh(criteria, score=score, normalise="none").tolist() == pytest.approx(
        [5 / 11, 6 / 11]
    )


@pytest.mark.parametrize("normalise", ["sum", "max", "none"])
@pytest.mark.parametrize("score", SCORES, ids=repr)
@given(cohort=cohorts)
def test_weights_sum_to_one_and_lie_between_zero_and_one(
    score, normalise: str, cohort: list[tuple[float, float]]
) -> None:
    first, second = zip(*cohort, strict=True)
    try:
        weights = cw.weigh({"a": first, "b": second}, score=score, normalise=normalise)
    except ValueError as error:
        assert str(error).startswith("the score is zero for all clients")  # noqa: PT017
        return
    assert ((weights >= 0) & (weights <= 1 + 1e-12)).all()
    assert weights.sum() == pytest.approx(1)


def test_weigh_takes_no_normaliser_with_options() -> None:
    with pytest.raises(ValueError, match="divide by constants yourself"):
        cw.weigh({"a": [1.0, 2.0]}, score=cw.mean(), normalise="fixed")


@pytest.mark.parametrize("make", [list, numpy.array, torch.tensor], ids=["list", "numpy", "torch"])
def test_weigh_takes_lists_numpy_and_torch(make) -> None:
    weights = cw.weigh(
        {"size": make([900.0, 100.0]), "accuracy": make([0.5, 0.9])},
        score=cw.prioritized("accuracy", "size"),
        normalise="sum",
    )
    assert isinstance(weights, numpy.ndarray)
    # accuracy 5/14, 9/14; size 0.9, 0.1; f = 5/14·1.9, 9/14·1.1
    assert weights.tolist() == pytest.approx([9.5 / 19.4, 9.9 / 19.4])


def test_all_zero_scores_give_no_weights() -> None:
    said = "the score is zero for all clients, so there are no weights"
    zero = f"{said}. Criteria that are zero for all clients: 'a'"
    with pytest.raises(ValueError, match=f"^{re.escape(zero)}$"):
        cw.weigh({"a": [0, 0], "b": [1, 2]}, score=cw.prioritized("a", "b"))
    with pytest.raises(ValueError, match=f"^{said}$"):
        cw.weigh({"a": [0, 1], "b": [1, 0]}, score=cw.product())
    assert to_weights(torch.zeros(3)).tolist() == [0, 0, 0]
    assert cw.weigh({"a": []}, score=cw.mean()).tolist() == []


@pytest.mark.parametrize(
    ("criteria", "reason"),
    [
        ({}, "no criteria"),
        ({"a": [1, 2], "b": [1]}, "'b' has shape (1,)"),
        ({"a": [[1, 2]]}, "'a' has shape (1, 2)"),
        ({"a": [1, -2]}, "negative or not finite"),
        ({"a": [1, float("nan")]}, "negative or not finite"),
        ({"a": [1e308, 1e308]}, "too large to weigh"),
        ({"a": {"x": 6, "y": 4}}, "'a' must be a list, an array or a tensor with one number per"),
        ({"a": ["six", 4]}, "one number per client, got ['six', 4]"),
    ],
)
def test_weigh_refuses_what_it_cannot_weigh(criteria, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        cw.weigh(criteria, score=cw.mean())


@pytest.mark.parametrize("value", [-0.5, float("nan"), float("inf")])
def test_an_own_score_that_is_no_weight_is_named(value: float) -> None:
    class Odd(cw.parts.Score):
        def __call__(self, names, values):
            return torch.where(values[:, 0] > 0.5, value, values[:, 0])

    with pytest.raises(
        ValueError, match=f"score Odd returned {value:g} for client 1: a score must"
    ):
        cw.weigh({"a": [1, 3]}, score=Odd())
    assert cw.weigh({"a": [2, 2]}, score=Odd()).tolist() == [0.5, 0.5]

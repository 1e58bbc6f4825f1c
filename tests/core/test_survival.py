"""Cox's loss and the concordance index against plain loops, and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clientwise.core.objective.loss import CoxLoss, cox_losses
from clientwise.core.objective.metrics import concordance, pair_counts

# Few different times and scores, so that there are ties; −0 is alive at the first look.
patients = st.lists(
    st.tuples(st.integers(0, 5), st.booleans(), st.integers(-3, 3)).map(
        lambda one: (float(one[0]) if one[1] and one[0] else -float(one[0]), one[2] / 2)
    ),
    max_size=12,
)


def columns(rows: list[tuple[float, float]]) -> tuple[Tensor, Tensor]:
    return torch.tensor([target for target, _ in rows]), torch.tensor([score for _, score in rows])


def test_the_loss_by_hand() -> None:
    targets = torch.tensor(
        [3.0, -2.0, 1.0]
    )  # the last dies first, of three; the second is lost before the first dies
    scores = torch.tensor([[0.0], [math.log(2.0)], [math.log(3.0)]])
    expected = [0.0, 0.0, math.log(6.0) - math.log(3.0)]
    assert CoxLoss().per_sample(scores, targets).tolist() == pytest.approx(expected)
    assert float(CoxLoss()(scores, targets)) == pytest.approx(math.log(2) / 3)


@given(patients)
@settings(max_examples=40)
def test_the_loss_is_what_a_loop_says(rows: list[tuple[float, float]]) -> None:
    targets, scores = columns(rows)
    expected = [
        math.log(sum(math.exp(s) for t, s in rows if abs(t) >= target)) - score
        if target > 0
        else 0.0
        for target, score in rows
    ]
    assert cox_losses(scores.double(), targets).tolist() == pytest.approx(expected)
    both = cox_losses(torch.stack([scores, -scores]), targets)  # models side by side
    torch.testing.assert_close(
        both, torch.stack([cox_losses(scores, targets), cox_losses(-scores, targets)])
    )
    assert bool((both >= 0).all())


def test_far_scores_have_finite_losses_and_slopes() -> None:
    scores = torch.tensor([1000.0, -1000.0, 0.0, 0.0], requires_grad=True)
    loss = CoxLoss()(scores, torch.tensor([4.0, 1.0, 2.0, -3.0]))
    (slope,) = torch.autograd.grad(loss, scores)
    assert float(loss.detach()) == pytest.approx(3000 / 4)
    assert slope.tolist() == pytest.approx([0.5, -0.25, -0.25, 0], rel=1e-3)


@given(patients)
@settings(max_examples=40)
def test_pairs_are_what_a_loop_counts(rows: list[tuple[float, float]]) -> None:
    pairs, right = 0, 0.0
    for target, score in rows:
        for other, other_score in rows:
            outlived = abs(other) > target or (abs(other) == target and not other > 0)
            if target > 0 and outlived:
                pairs += 1
                right += 1.0 if score > other_score else 0.5 if score == other_score else 0.0
    targets, scores = columns(rows)
    counts = pair_counts(targets, torch.stack([scores, -scores]))
    assert counts.tolist() == [[len(rows), pairs, right], [len(rows), pairs, pairs - right]]
    assert float(concordance(counts[0])) == pytest.approx(right / pairs if pairs else 0.5)

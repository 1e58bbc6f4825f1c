from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clientwise.core.feedback import LOSS_ADAPTERS
from clientwise.core.objective.loss import (
    LOSSES,
    CrossEntropy,
    FocalLoss,
    LossRecord,
    RobustLoss,
    make_loss,
    robust_loss,
)
from clientwise.core.objective.metrics import confusion, error_sums
from clientwise.core.objective.problem import Classification, Regression
from clientwise.core.types import Evaluation

LOGITS, TARGETS = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), torch.tensor([0, 0, 1])


def evaluation_of(counts: torch.Tensor) -> Evaluation:
    return Evaluation(torch.tensor([1]), torch.zeros(1, 1), torch.zeros(1, 1), counts[None])


def test_p3_eq_2_is_the_mean_over_samples_not_over_the_weights() -> None:
    logs = LOGITS.log_softmax(1)
    expected = -(5 * logs[0, 0] + 5 * logs[1, 0] + 0.5 * logs[2, 1]) / 3
    assert CrossEntropy(class_weights=(5.0, 0.5))(LOGITS, TARGETS) == pytest.approx(float(expected))
    assert CrossEntropy()(LOGITS, TARGETS) == pytest.approx(
        float(-(logs[0, 0] + logs[1, 0] + logs[2, 1]) / 3)
    )


def test_class_weights_are_one_over_f1_plus_epsilon() -> None:
    counts = confusion(torch.tensor([0, 0, 1, 1, 2]), torch.tensor([0, 0, 1, 0, 0]), 3)
    # F1: class 0 = 2·2/(2+4), class 1 = 2·1/(2+1), class 2 = 0
    adapted = LOSS_ADAPTERS.get("class_weights")(
        Classification(3).loss, evaluation_of(counts), epsilon=0.1
    )
    assert adapted.loss.class_weights == pytest.approx((1 / (2 / 3 + 0.1), 1 / (2 / 3 + 0.1), 10))
    assert adapted.notes == ()


def test_a_class_that_nobody_can_judge_keeps_its_weight_and_is_noted() -> None:
    counts = confusion(
        torch.tensor([0, 0, 1]), torch.tensor([0, 0, 2]), 4
    )  # 2 is predicted, 3 is not; neither occurs
    adapted = LOSS_ADAPTERS.get("class_weights")(Classification(4).loss, evaluation_of(counts))
    assert adapted.loss.class_weights == pytest.approx((1 / 1.1, 10, 1, 1))
    assert adapted.notes == ("the server's set has no sample of class 2, 3: its class weight is 1",)


@pytest.mark.parametrize("shape", [2.0, 1.0, 0.0, -2.0, -math.inf, 0.5])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_robust_loss_is_barrons(shape: float, scale: float) -> None:
    x = torch.tensor([-3.0, -0.1, 0.0, 0.7, 2.0], dtype=torch.float64)
    squared = (x / scale) ** 2
    published = {  # the special cases of Barron's paper, written out
        2.0: squared / 2,
        1.0: torch.sqrt(squared + 1) - 1,
        0.0: torch.log(squared / 2 + 1),
        -2.0: 2 * squared / (squared + 4),
        -math.inf: 1 - torch.exp(-squared / 2),
        0.5: 3 * ((squared / 1.5 + 1) ** 0.25 - 1),
    }[shape]
    torch.testing.assert_close(robust_loss(x, shape, scale), 2 * scale**2 * published)


def shape_for(residuals: torch.Tensor) -> float:
    sums = error_sums(torch.zeros(len(residuals)), residuals)
    return LOSS_ADAPTERS.get("robust_shape")(
        Regression().loss, evaluation_of(sums), scale=2.0
    ).loss.shape


def test_robust_shape_recovers_a_known_shape() -> None:
    # Draw from the density exp(−ρ(x, 1)) on a fine grid and see α = 1 come back.
    x = torch.linspace(-60, 60, 240_001, dtype=torch.float64)
    density = torch.exp(-robust_loss(x, 1.0) / 2)
    picks = torch.multinomial(
        density, 50_000, replacement=True, generator=torch.Generator().manual_seed(2)
    )
    assert shape_for(x[picks]) == pytest.approx(1.0, abs=0.15)


@given(st.integers(1, 12), st.integers(1, 5), st.booleans(), st.integers(0, 2**16))
def test_the_gradient_is_autograds(samples: int, classes: int, weighted: bool, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    outputs = (10 * torch.randn(samples, classes, generator=random)).requires_grad_()
    targets = torch.randint(max(2, classes), (samples,), generator=random)
    shares = torch.rand(samples, generator=random)
    weights = tuple(float(value) for value in range(1, max(2, classes) + 1)) if weighted else None
    for loss, truth in (
        (CrossEntropy(class_weights=weights), targets),
        (FocalLoss(gamma=0.5, class_weights=weights), targets),
        (RobustLoss(shape=1.0), torch.randn(samples, classes, generator=random)),
    ):
        expected = loss.per_sample(outputs, truth)
        (slopes,) = torch.autograd.grad(expected, outputs, shares)
        losses, gradient = loss.with_gradient(outputs, truth, shares)
        assert torch.allclose(losses, expected, rtol=1e-5, atol=1e-5)
        assert torch.allclose(gradient, slopes, rtol=1e-4, atol=1e-6)
        assert not losses.requires_grad
        assert not gradient.requires_grad


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_loss_is_cross_entropy_times_the_probability_of_missing(gamma: float) -> None:
    probability = LOGITS.softmax(1).gather(1, TARGETS[:, None])[:, 0]
    weight = torch.tensor([5.0, 0.5])[TARGETS]
    expected = -weight * (1 - probability) ** gamma * probability.log()
    found = FocalLoss(gamma=gamma, class_weights=(5.0, 0.5)).per_sample(LOGITS, TARGETS)
    assert torch.allclose(found, expected, rtol=1e-5)


def test_focal_loss_has_a_finite_gradient_where_the_model_is_sure() -> None:
    outputs = torch.tensor([[200.0, 0.0], [-200.0, 0.0]])
    losses, gradient = FocalLoss(gamma=0.5).with_gradient(
        outputs, torch.tensor([0, 0]), torch.ones(2)
    )
    assert losses.tolist() == [0.0, 200.0]
    assert gradient[0].tolist() == [0.0, 0.0]
    assert gradient[1].tolist() == pytest.approx([-1.0, 1.0])


def test_losses_of_numbers() -> None:
    outputs, targets = torch.tensor([[3.0, 0.5], [0.0, 0.0]]), torch.zeros(2, 2)
    for name, options, expected in (
        ("mse", {}, (9 + 0.25) / 2),
        ("mae", {}, 3.5 / 2),
        ("robust", {"shape": 2.0}, (9 + 0.25) / 2),
    ):
        loss = LOSSES.get(name)(**options)
        assert loss.per_sample(outputs, targets).tolist() == pytest.approx([expected, 0.0]), name
        assert loss.kind == name


def test_balanced_class_weights_are_inverse_frequencies() -> None:
    loss = make_loss("cross_entropy", {"class_weights": "balanced"}, torch.tensor([60, 30, 10, 0]))
    assert loss.class_weights == pytest.approx((100 / 240, 100 / 120, 100 / 40, 1.0))
    with pytest.raises(ValueError, match="label counts"):
        make_loss("focal", {"class_weights": "balanced"})


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("cross", {}),
        ("cross_entropy", {"class_weights": 5}),
        ("cross_entropy", {"missing": [0]}),  # of the server's own computations alone
        ("mse", {"class_weights": [1.0]}),
    ],
)
def test_a_written_loss_that_nobody_wrote_is_refused(kind: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="loss"):
        LossRecord(kind, options).loss()

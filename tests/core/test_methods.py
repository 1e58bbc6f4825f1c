"""The parts of published methods that look at the whole cohort, each against a few lines written apart from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clientwise.core.aggregation.before import BEFORE
from clientwise.core.evidence.rivals import (
    Credibility,
    Law,
)
from clientwise.core.types import (
    Evaluation,
    Gathered,
    LocalTraining,
    ModelSpec,
)

TARGET = torch.tensor([1.0, -2.0, 0.5])  # the server's loss is the squared distance from here
START = torch.tensor([0.0, 0.0, 0.0, 7.0])  # three parameters and a buffer
WEIGHTS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)


def squared_distance(models: Tensor) -> Tensor:
    return (models[:, :3] - TARGET).double().square().sum(1)


def gathered(
    updates: Sequence[Sequence[float]],
    loss: Callable[[Tensor], Tensor] = squared_distance,
    ids: Sequence[int] | None = None,
    **criteria: Sequence[float],
) -> Gathered:
    """What a server holds: updates of three parameters; every buffer moved by 1."""

    def judge(models: Tensor) -> Evaluation:
        losses = loss(models)[:, None]
        return Evaluation(torch.tensor([10]), 1 - losses, losses, torch.zeros(len(models), 2, 2))

    def train_server(model: Tensor, training: LocalTraining | None = None) -> Tensor:
        if training is None:
            return model + torch.tensor([3.0, 0.0, 4.0, 9.0])
        assert training == LocalTraining(epochs=1, batch_size=None, learning_rate=1.0)
        return model - torch.cat([2 * (model[:3] - TARGET), torch.ones(1)])

    return Gathered(
        tuple(ids or range(len(updates))),
        torch.cat([torch.tensor(updates), torch.ones(len(updates), 1)], 1),
        START,
        ModelSpec((), 3, 4),
        {name: torch.tensor(values, dtype=torch.float64) for name, values in criteria.items()},
        judge,
        train_server,
        training=LocalTraining(learning_rate=0.1),
    )


def result(name: str, seen: Gathered, **options: Any) -> Tensor:
    """The weighted mean of what a step makes of the updates."""
    changed = BEFORE.get(name)(seen, WEIGHTS, **options).updates
    assert bool((changed[:, 3] == 1).all()), "a buffer is no parameter"
    return (WEIGHTS @ changed.double())[:3]


UPDATES = [[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [1.0, 1.0, -2.0]]


def test_fednova_averages_the_steps_and_not_their_sums() -> None:
    steps = np.array([10.0, 2.0, 5.0])
    weights, updates = WEIGHTS.numpy(), np.array(UPDATES)
    per_step = (weights[:, None] * updates / steps[:, None]).sum(0)  # Σ p_i d_i
    expected = (weights * steps).sum() * per_step  # τ_eff times that
    found = result("nova", gathered(UPDATES, local_steps=steps.tolist()))
    assert found.tolist() == pytest.approx(expected.tolist())
    equal = result("nova", gathered(UPDATES, local_steps=[7, 7, 7]))
    assert equal.tolist() == pytest.approx((weights @ updates).tolist()), (
        "with equal steps it is FedAvg"
    )


def test_fltrust_gives_everybody_the_length_of_the_servers_update() -> None:
    changed = BEFORE.get("server_norm")(
        gathered([*UPDATES, [0.0, 0.0, 0.0]]), torch.ones(4) / 4
    ).updates
    assert changed[:, :3].norm(dim=1).tolist() == pytest.approx(
        [5, 5, 5, 0]
    )  # ‖(3, 0, 4)‖; who did nothing, nothing
    assert changed[2, :3].tolist() == pytest.approx(
        [5 / math.sqrt(6), 5 / math.sqrt(6), -10 / math.sqrt(6)]
    )


@pytest.mark.parametrize("q", [0.0, 0.5, 2.0])
def test_q_fedavg_is_the_papers_algorithm_2(q: float) -> None:
    losses, lipschitz = np.array([0.5, 2.0, 1.0]), 1 / 0.1
    numerator, denominator = np.zeros(3), 0.0
    for weight, loss, update in zip(WEIGHTS.numpy(), losses, np.array(UPDATES), strict=True):
        gradient = -lipschitz * update
        numerator += weight * loss**q * gradient
        denominator += weight * (q * loss ** (q - 1) * (gradient**2).sum() + lipschitz * loss**q)
    found = result("q_fair", gathered(UPDATES, start_loss=losses.tolist()), q=q)
    assert found.tolist() == pytest.approx((-numerator / denominator).tolist())


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (1.0, [0.9, 0.6, 0.5]),  # 1 − (1, 4, 5)/10
        (2.0, [41 / 42, 26 / 42, 17 / 42]),  # 1 − (1, 16, 25)/42
    ],
)
def test_focus_weighs_by_the_mutual_cross_entropy(alpha: float, expected: list[float]) -> None:
    def on_server_set(models: Tensor) -> Tensor:
        assert torch.equal(models, START + torch.tensor([[*one, 1.0] for one in UPDATES]))
        return torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64).log()

    seen = gathered(UPDATES, on_server_set, start_loss=[0.0, math.log(2), 0.0])
    found = Credibility(alpha=alpha)(seen, WEIGHTS, {}).weights
    worked = WEIGHTS.numpy() * expected  # n_k·C_k
    assert found.tolist() == pytest.approx((worked / worked.sum()).tolist())


def test_fedlaw_finds_the_weights_and_the_size_of_the_best_model() -> None:
    # The target lies on γ·(λ₁·a + λ₂·b) with λ = (0.8, 0.2) and γ = 0.9; the third client points away from it.
    a = torch.tensor([1.0, -3.0, 0.5])
    b = (TARGET / 0.9 - 0.8 * a) / 0.2
    updates = [a.tolist(), b.tolist(), (-10 * TARGET).tolist()]
    found = Law(steps=150, learning_rate=0.1)(gathered(updates), WEIGHTS, {})
    model = found.scale * (found.weights @ torch.tensor(updates).double())
    assert model.tolist() == pytest.approx(TARGET.tolist(), abs=0.05)
    assert found.weights[2] < 0.05
    nobody = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    assert Law(steps=3)(gathered(updates), nobody, {}).weights[2] == 0

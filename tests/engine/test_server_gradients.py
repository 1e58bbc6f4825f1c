"""Gradients of groups of the server's samples, against plain PyTorch, for every kind of problem and of network."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from clientwise.core.objective.loss import cox_losses
from clientwise.core.objective.problem import (
    Classification,
    Multilabel,
    Problem,
    Regression,
    Segmentation,
    Survival,
)
from clientwise.data.federated import FederatedData
from clientwise.engine.executor import DeviceExecutor
from clientwise.engine.local import LocalEngine
from clientwise.models.flat import FlatModel

pytestmark = pytest.mark.bits

SAMPLES = 24
GROUPS = [[0, 5, 7], [1, 2], [3, 4, 6, 8]]
PerSample = Callable[[Tensor, Tensor], Tensor]


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def dense(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, outputs))


def normed(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs))


def convolving() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets).square()


def binary(outputs: Tensor, targets: Tensor) -> Tensor:
    loss = nn.functional.binary_cross_entropy_with_logits
    return loss(outputs, targets.float(), reduction="none").mean(1)


def pixels(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs.view(-1, 2, 6), targets.long().view(-1, 6)).mean(1)


def cox(outputs: Tensor, targets: Tensor) -> Tensor:
    return cox_losses(outputs[:, 0], targets)


CLASSES = torch.arange(SAMPLES) % 4
NUMBERS = random(SAMPLES)
LABELS = (random(SAMPLES, 3) > 0).long()
MASKS = (random(SAMPLES, 2, 3) > 0).byte()
TIMES = (1 + torch.arange(SAMPLES)) * torch.tensor([1.0, -1.0]).repeat(SAMPLES // 2)
CASES = {
    "classes": (Classification(4), CLASSES, dense(4), cross_entropy),
    "classes with batch norm": (Classification(4), CLASSES, normed(4), cross_entropy),
    "images": (Classification(4), CLASSES, convolving(), cross_entropy),
    "numbers": (Regression(), NUMBERS, dense(1), squared),
    "labels": (Multilabel(3), LABELS, dense(3), binary),
    "masks": (Segmentation(2), MASKS, dense(12), pixels),
    "times": (Survival(), TIMES, dense(1), cox),
}


def engine_of(problem: Problem, targets: Tensor, module: nn.Module, mode: str) -> LocalEngine:
    shape = (1, 6, 6) if isinstance(module[0], nn.Conv2d) else (6,)  # type: ignore[index]
    samples = (random(SAMPLES, *shape), targets)
    data = FederatedData.from_clients([samples], [samples], weigh=samples)
    data = replace(data, samples=replace(data.samples, problem=problem))
    executor = DeviceExecutor(data.samples, deepcopy(module), torch.device("cpu"), mode=mode)  # type: ignore[arg-type]
    return LocalEngine(data, module, seed=1, executor=executor)


def by_hand(engine: LocalEngine, module: nn.Module, per_sample: PerSample) -> Tensor:
    held = engine.data.weigh
    assert held is not None
    found = []
    for group in GROUPS:
        flat = FlatModel(deepcopy(module), torch.device("cpu"))
        flat.load(engine.initial_model)
        flat.module.eval()
        inputs = engine.data.samples.network_inputs(held.indices[group])
        assert isinstance(inputs, Tensor)
        loss = per_sample(flat.module(inputs), held.targets[group]).mean()
        gradients = torch.autograd.grad(loss, list(flat.module.parameters()))
        row = torch.cat([one.flatten() for one in gradients])
        found.append(torch.cat([row, row.new_zeros(flat.spec.size - len(row))]))
    return torch.stack(found)


@pytest.mark.parametrize("mode", ["loop", "auto"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_evaluated_loss(case: str, mode: str) -> None:
    problem, targets, module, per_sample = CASES[case]
    engine = engine_of(problem, targets, module, mode)
    found = engine.server_gradients(engine.initial_model, GROUPS)
    torch.testing.assert_close(found, by_hand(engine, module, per_sample), rtol=1e-4, atol=1e-6)
    again = engine.server_gradients(engine.initial_model, GROUPS)
    assert torch.equal(found, again)  # nothing is drawn, no statistics move


def test_classes_that_the_server_lacks_have_no_gradient() -> None:
    module = dense(4)
    everybody = (random(SAMPLES, 6), CLASSES)
    known = CLASSES != 2
    server = (everybody[0][known], CLASSES[known])
    data = FederatedData.from_clients([everybody], [everybody], weigh=server)
    engine = LocalEngine(data, deepcopy(module), seed=1)
    found = engine.server_gradients(engine.initial_model, [list(range(18))])[0]
    last = next(layer for layer in engine.spec.layers if layer.name == "3.bias")
    slopes = found[last.start : last.stop]
    assert slopes[2] == 0
    assert bool((slopes[[0, 1, 3]] != 0).all())

    def restricted(outputs: Tensor, targets: Tensor) -> Tensor:
        place = torch.tensor([0, 1, -1, 2])
        return cross_entropy(outputs[:, [0, 1, 3]], place[targets])

    module.eval()
    loss = restricted(module(server[0]), server[1]).mean()
    judged = engine.evaluate_server(engine.initial_model[None], "weigh")
    assert judged is not None
    assert float(judged.losses) == pytest.approx(loss.item(), rel=1e-5)

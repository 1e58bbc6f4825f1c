"""Optimizers, schedules, clipping and transforms: by themselves, in the loop and many clients at once."""

from __future__ import annotations

import functools
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from clientwise.core.objective.loss import CrossEntropy, FocalLoss, Loss
from clientwise.core.training import OPTIMIZERS, SCHEDULES, TRANSFORMS, TensorRateSGD
from clientwise.core.types import LocalTraining, Task
from clientwise.data.federated import FederatedData
from clientwise.engine.device import Mode
from clientwise.engine.executor import DeviceExecutor, why_alone
from clientwise.engine.local import LocalEngine
from clientwise.engine.stacked.network import StackedNetwork
from clientwise.experiment.config.parts import read_part
from clientwise.registry import Part

pytestmark = pytest.mark.bits

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MODES: list[Mode] = ["loop", "stacked", "graph"] if DEVICE.type == "cuda" else ["loop", "stacked"]
SIZES = [10, 3, 8, 9]
PLAIN = CrossEntropy()


def clients() -> FederatedData:
    random = torch.Generator().manual_seed(0)

    def block(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(size, 2, 4, 4, generator=random)
        return inputs, torch.randint(0, 3, (size,), generator=random)

    parts = [block(size) for size in SIZES]
    return FederatedData.from_clients(parts, [block(3) for _ in SIZES], num_classes=3)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 6), nn.Tanh(), nn.Linear(6, 3))


def engine(mode: Mode, chunk_size: int | None = None) -> LocalEngine:
    data, module = clients(), network()
    executor = DeviceExecutor(data.samples, module, DEVICE, mode=mode, precision="float32")
    return LocalEngine(data, module, seed=1, executor=executor, chunk_size=chunk_size)


def trained(
    where: LocalEngine, round_num: int = 1, loss: Loss = PLAIN, **options: Any
) -> torch.Tensor:
    training = LocalTraining(**({"epochs": 2, "batch_size": 4} | options))
    task = Task(round_num, training, loss, ())
    models: dict[int, torch.Tensor] = {}
    for updates in where.train(range(len(SIZES)), where.initial_model, task):
        assert not updates.failures
        models |= dict(zip(updates.client_ids, updates.models.cpu(), strict=True))
    return torch.stack([models[client] for client in sorted(models)])


def by_hand(make: Any, loss: Loss = PLAIN, clip: float | None = None) -> torch.Tensor:
    """The models of clients that take two full-batch steps with an optimizer of PyTorch."""
    data = clients()
    models = []
    for client in range(len(SIZES)):
        mine = data.train.slice(client)
        module = network()
        optimizer = make(module.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            inputs = data.samples.inputs[data.train.indices[mine]]
            loss(module(inputs), data.train.targets[mine]).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimizer.step()
        models.append(torch.cat([one.detach().flatten() for one in module.parameters()]))
    return torch.stack(models)


FULL = {"epochs": 2, "batch_size": None}
AGREE = {
    "adamw": (
        {"optimizer": Part("adamw", {"weight_decay": 0.1}), "learning_rate": 0.01},
        lambda own: torch.optim.AdamW(own, 0.01, weight_decay=0.1),
    ),
    "adadelta": (
        {"optimizer": Part("adadelta", {"rho": 0.8, "epsilon": 1e-4}), "learning_rate": 0.5},
        lambda own: torch.optim.Adadelta(own, 0.5, 0.8, 1e-4),
    ),
    "options of adam": (
        {
            "optimizer": Part("adam", {"beta1": 0.5, "beta2": 0.9, "epsilon": 1e-4}),
            "learning_rate": 0.01,
        },
        lambda own: torch.optim.Adam(own, 0.01, (0.5, 0.9), 1e-4),
    ),
    "a factor of the schedule": (
        {"learning_rate": 0.1, "rate_factor": 0.25},
        lambda own: torch.optim.SGD(own, 0.025),
    ),
    "momentum with a factor": (
        {
            "optimizer": Part("sgd", {"momentum": 0.9, "weight_decay": 0.1}),
            "learning_rate": 0.1,
            "rate_factor": 0.5,
        },
        lambda own: torch.optim.SGD(own, 0.05, momentum=0.9, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", AGREE)
def test_clients_train_as_pytorch_would(name: str, mode: Mode) -> None:
    options, make = AGREE[name]
    found = trained(engine(mode), **FULL | options)
    torch.testing.assert_close(found, by_hand(make), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("limit", [0.05, 1e6])
def test_gradients_are_clipped_by_the_norm_of_each_client(mode: Mode, limit: float) -> None:
    found = trained(engine(mode), **FULL, clip_gradients=limit, learning_rate=0.5)
    expected = by_hand(lambda own: torch.optim.SGD(own, 0.5), clip=limit)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_focal_loss_agrees_with_pytorch(mode: Mode) -> None:
    loss = FocalLoss(gamma=1.5, class_weights=(1.0, 2.0, 0.5))
    found = trained(engine(mode), loss=loss, **FULL, learning_rate=0.5)
    expected = by_hand(lambda own: torch.optim.SGD(own, 0.5), loss)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="on a GPU what runs together changes last bits")
@pytest.mark.parametrize("options", [{"clip_gradients": 0.1}, {"optimizer": "adamw"}])
def test_chunks_change_nothing_but_rounding(options: dict[str, Any]) -> None:
    """Some libraries sum the products of four networks in another order than those of one."""
    whole = trained(engine("stacked", chunk_size=4), **options)
    alone = trained(engine("stacked", chunk_size=1), **options)
    torch.testing.assert_close(whole, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "options", [{}, {"optimizer": Part("sgd", {"momentum": 0.5})}, {"optimizer": "adam"}]
)
def test_a_kept_engine_trains_every_round_like_a_new_one(
    mode: Mode, options: dict[str, Any]
) -> None:
    """What is kept from round to round, CUDA graphs included, reads the rate of the round."""
    kept = engine(mode)
    for round_num, factor in enumerate([1.0, 0.3, 0.0, 2.0], 1):
        found = trained(kept, round_num, rate_factor=factor, **options)
        expected = trained(engine(mode), round_num, rate_factor=factor, **options)
        assert torch.equal(found, expected)
        if factor == 0:
            start = kept.initial_model.cpu().expand_as(found)
            torch.testing.assert_close(found, start)


def test_a_schedule_keeps_what_is_kept_between_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = engine("stacked", chunk_size=4)
    trained(kept, 1, rate_factor=1.0, optimizer="adam")
    made = []
    monkeypatch.setattr(StackedNetwork, "make_gradient", lambda network: made.append(network))
    trained(kept, 2, rate_factor=0.5, optimizer="adam")
    assert not made


def test_a_tensor_as_rate_is_sgd() -> None:
    """On a GPU, where CUDA graphs read the rate; PyTorch's own SGD copies it to the CPU."""
    for options in (
        {"momentum": 0.0, "weight_decay": 0.0},
        {"momentum": 0.9, "weight_decay": 0.1},
    ):
        expected = by_hand(functools.partial(torch.optim.SGD, lr=0.1, **options))
        found = by_hand(lambda own, o=options: TensorRateSGD(list(own), torch.tensor(0.1), **o))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "given",
    [
        torch.optim.RMSprop,
        functools.partial(torch.optim.NAdam, betas=(0.8, 0.9)),
        functools.partial(torch.optim.Adagrad, initial_accumulator_value=0.1),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_an_optimizer_of_pytorch_starts_anew_for_every_client(given: Any, mode: Mode) -> None:
    part = read_part(OPTIMIZERS, given)
    found = trained(engine(mode), optimizer=part, learning_rate=0.01, **FULL)
    torch.testing.assert_close(
        found, by_hand(functools.partial(given, lr=0.01)), rtol=1e-3, atol=1e-5
    )
    assert "may combine" in str(why_alone(LocalTraining(optimizer=part), PLAIN))


def jitter(inputs: torch.Tensor) -> torch.Tensor:
    """Draws from all three generators."""
    drawn = numpy.random.rand() + torch.rand(1).item()
    return inputs * (1 + drawn)


def test_a_transform_is_drawn_anew_by_client_and_round_and_repeats() -> None:
    part = read_part(TRANSFORMS, jitter)
    first = trained(engine("loop"), transform=part)
    numpy.random.seed(5)
    torch.manual_seed(5)
    before = numpy.random.get_state()[1].tolist()
    again = trained(engine("stacked"), transform=part)
    assert torch.equal(first, again)
    assert numpy.random.get_state()[1].tolist() == before
    assert not torch.equal(first, trained(engine("loop")))
    assert not torch.equal(first, trained(engine("loop"), 2, transform=part))


def test_evaluation_uses_no_transform() -> None:
    where = engine("loop")
    models = where.initial_model[None]
    before = where.evaluate(range(4), models)
    trained(where, transform=Part("noise", {"deviation": 100.0}))
    assert torch.equal(where.evaluate(range(4), models).losses, before.losses)


def test_transforms_of_images() -> None:
    torch.manual_seed(0)
    images = torch.arange(2.0 * 3 * 5 * 4).reshape(2, 3, 5, 4) + 1
    many = images[:1].expand(200, 3, 5, 4)
    flipped = TRANSFORMS.get("flip")(many)
    kinds = {torch.equal(one, images[0]) for one in flipped}
    assert kinds == {True, False}
    assert all(
        torch.equal(one, images[0]) or torch.equal(one, images[0].flip(-1)) for one in flipped
    )
    shifted = TRANSFORMS.get("shift")(many, pixels=1)
    padded = nn.functional.pad(images[0], (1, 1, 1, 1))
    crops = [padded[:, y : y + 5, x : x + 4] for y in range(3) for x in range(3)]
    found = {next(i for i, crop in enumerate(crops) if torch.equal(one, crop)) for one in shifted}
    assert found == set(range(9))
    flat = TRANSFORMS.get("shift")(images[:, 0], pixels=1)  # without channels
    assert flat.shape == (2, 5, 4)


def test_schedules() -> None:
    def factors(name: str, count: int, **options: Any) -> list[float]:
        return [SCHEDULES.get(name)(one, **options) for one in range(1, count + 1)]

    assert factors("constant", 2) == [1.0, 1.0]
    assert factors("step", 5, every=2, factor=0.5) == [1.0, 1.0, 0.5, 0.5, 0.25]
    assert factors("warmup", 4, rounds=2) == [0.5, 1.0, 1.0, 1.0]
    assert factors("cosine", 6, rounds=4, end=0.2) == pytest.approx(
        [1.0, 0.2 + 0.8 * (2 + 2**0.5) / 4, 0.6, 0.2 + 0.8 * (2 - 2**0.5) / 4, 0.2, 0.2]
    )
    assert factors("cosine", 4, rounds=4, warmup=2) == pytest.approx([1 / 3, 2 / 3, 1.0, 0.5])

"""Noise of single samples: what one sample can change in a step, and how much noise hides it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clientwise.core.objective.loss import CrossEntropy
from clientwise.core.types import LocalTraining, Task
from clientwise.data.federated import FederatedData
from clientwise.engine.local import LocalEngine, _noise_names
from clientwise.errors import ConfigError
from clientwise.experiment.checks.against_data import validate
from clientwise.experiment.load import load_experiment
from clientwise.models.networks import mlp
from clientwise.registry import Part

SAMPLES = 12
WIDTH = 5
CLIP = 0.5
RATE = 0.1
STEP = LocalTraining(1, None, learning_rate=RATE, sample_clip=CLIP, sample_noise=1.0)
DEVIATION = RATE * 2 * CLIP / SAMPLES  # of every parameter after a step


def samples() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    return torch.randn(SAMPLES, WIDTH, generator=random), torch.arange(SAMPLES) % 2


def engine_with(inputs: Tensor, targets: Tensor, network: nn.Module | None = None) -> LocalEngine:
    data = FederatedData.from_clients([(inputs, targets)], [(inputs, targets)], num_classes=2)
    return LocalEngine(data, network or mlp((WIDTH,), 2, hidden=[4]), seed=1)


def update(engine: LocalEngine, model: Tensor, task: Task) -> Tensor:
    (updates,) = engine.train([0], model, task)
    return (updates.models[0] - model).double()


@pytest.mark.parametrize("size", [0.0, 1.0, 1e4, 1e18, 3e38])
@pytest.mark.parametrize("kappa", [1.0, 1e30])
def test_no_sample_moves_a_step_further_than_the_noise_is_for(size: float, kappa: float) -> None:
    """Also with a made-up model or loss: one that only this sample changes, or that overflows."""
    inputs, targets = samples()
    others = inputs.clone()
    others[3] = 1e6
    engines = [engine_with(values, targets) for values in (inputs, others)]
    model = size * torch.ones_like(engines[0].initial_model)
    task = Task(1, STEP, CrossEntropy(class_weights=(kappa, kappa)), ())
    low, high = (update(engine, model, task) for engine in engines)
    if size < 1e18:  # else the step is less than the rounding of such a model
        assert float((low - high).norm()) <= RATE * 2 * CLIP / SAMPLES * 1.001
    assert bool(torch.isfinite(low).all() and torch.isfinite(high).all())


def test_noise_has_the_deviation_that_the_promise_needs() -> None:
    """A gradient of zero leaves the noise alone; it is another one for another key, model or round."""
    inputs, targets = samples()
    engine = engine_with(inputs, targets, nn.Linear(WIDTH, 2))
    saturated = torch.zeros_like(engine.initial_model)
    saturated[-2:] = torch.tensor([1e4, -1e4])
    drawn = []
    for round_num in range(1, 101):
        task = Task(
            round_num, STEP, CrossEntropy(class_weights=(1.0, 0.0)), ()
        )  # class 0 is right, 1 weighs 0
        drawn.append(update(engine, saturated, task)[: WIDTH * 2])
    noise = torch.stack(drawn)
    assert float(noise.std()) == pytest.approx(DEVIATION, rel=0.1)
    assert float(noise.mean()) == pytest.approx(0.0, abs=DEVIATION / 5)
    again = update(engine, saturated, task)
    assert torch.equal(again[: WIDTH * 2], drawn[-1])
    engine.noise_key = b"another"
    assert not torch.equal(update(engine, saturated, task), again)


def test_without_noise_worth_mentioning_and_clipping_it_is_plain_training() -> None:
    inputs, targets = samples()
    engine = engine_with(inputs, targets)
    plain = LocalTraining(2, 4, learning_rate=RATE, optimizer=Part("sgd", {"momentum": 0.5}))
    private = replace(plain, sample_clip=1e3, sample_noise=1e-9)
    task = Task(1, plain, CrossEntropy(class_weights=(1.0, 2.0)), ())
    expected = update(engine, engine.initial_model, task)
    found = update(engine, engine.initial_model, replace(task, training=private))
    assert torch.allclose(found, expected, atol=1e-5)
    assert float(expected.norm()) > 1e-2


def test_options_in_another_order_draw_no_other_noise() -> None:
    """A node counts such requests as one; the mean of their updates would have less noise."""
    model = torch.zeros(3)
    options = {"blurry": 1.0, "high": 2.0}
    swapped = dict(reversed(options.items()))
    names = []
    for given in (options, swapped):
        task = Task(1, STEP, CrossEntropy(), (Part("sharpness", given),))
        names.append(_noise_names([0], model, task))
    assert names[0] == names[1]


def test_the_training_loss_is_withheld() -> None:
    inputs, targets = samples()
    engine = engine_with(inputs, targets)
    (updates,) = engine.train([0], engine.initial_model, Task(1, STEP, CrossEntropy(), ()))
    assert float(updates.training_loss) == 0.0


def test_statistics_of_batch_norm_would_get_no_noise() -> None:
    inputs, targets = samples()
    network = nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    engine = engine_with(inputs, targets, network)
    with pytest.raises(ValueError, match="batch norm get no noise"):
        update(engine, engine.initial_model, Task(1, STEP, CrossEntropy(), ()))


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"sample_clip": 1.0}, "go together"),
        ({"sample_noise": 1.0}, "go together"),
        ({"sample_clip": 1.0, "sample_noise": 1.0, "control_variates": True}, "no sample_clip"),
    ],
)
def test_settings_that_promise_nothing_are_refused(training: dict[str, Any], message: str) -> None:
    config = {
        "name": "private",
        "rounds": 2,
        "data": "digits",
        "partition": {"name": "iid", "clients": 2},
        "model": "linear",
        "training": training,
        "methods": [{"name": "FedAvg"}],
    }
    with pytest.raises(ConfigError, match=message):
        validate(load_experiment(config), None)

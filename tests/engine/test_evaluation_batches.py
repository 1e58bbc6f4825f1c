"""An evaluation is cut into batches that fit into memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from clientwise.core.types import Evaluation
from clientwise.data.federated import FederatedData
from clientwise.engine import executor, jobs
from clientwise.engine.executor import DeviceExecutor
from clientwise.engine.jobs import EvaluateJob
from clientwise.errors import ConfigError
from clientwise.experiment.checks.describe import describe
from clientwise.experiment.load import load_experiment
from clientwise.models import modules as size
from clientwise.models.networks import cnn, mlp

pytestmark = pytest.mark.bits
SAMPLES = 50


def test_as_many_samples_as_usual_are_evaluated_at_once_where_they_fit() -> None:
    usual = jobs.BATCH
    assert jobs.samples_at_once(10, 4 * 10 * usual, on_gpu=False) == usual
    assert jobs.samples_at_once(10, 4 * 4 * 10 * usual, on_gpu=True) == 4 * usual
    large = jobs.CUT_BYTES // (4 * 7)
    assert jobs.samples_at_once(large, 2**30, on_gpu=False) == 7
    assert jobs.samples_at_once(2**40, 2**30, on_gpu=False) == 1
    assert jobs.samples_at_once(0, 0, on_gpu=False) == usual, "unknown: as before"


@pytest.mark.parametrize(
    ("make", "models"),
    [
        (lambda: cnn((1, 8, 8), 3, channels=[4], dense=6), 1),  # one by one
        (lambda: mlp((1, 8, 8), 3, hidden=[256]), 3),  # side by side
    ],
)
def test_batches_that_are_cut_give_the_same_results(
    make: Any, models: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = 256  # values of a sample, behind the convolution or the first layer
    whole, _ = evaluated(make, models, monkeypatch)
    monkeypatch.setattr(executor, "memory", lambda: 4 * largest * jobs.BATCH - 1)
    monkeypatch.setattr(jobs, "CUT_BYTES", 4 * largest * 8 * models)
    cut, batches = evaluated(make, models, monkeypatch)
    assert max(batches) == 8
    assert sum(batches) == SAMPLES
    torch.testing.assert_close(cut.losses, whole.losses)
    torch.testing.assert_close(cut.sample_losses, whole.sample_losses)
    assert torch.equal(cut.counts, whole.counts)


def evaluated(
    make: Any, models: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[Evaluation, list[int]]:
    """Models on all samples, and the sizes of the batches."""
    torch.manual_seed(0)
    own = (torch.rand(SAMPLES, 1, 8, 8), torch.arange(SAMPLES) % 3)
    data = FederatedData.from_clients([own], [own])
    module = make()
    device = DeviceExecutor(data.samples, module, torch.device("cpu"), workers=1)
    job = EvaluateJob.of(data.test, [0], data.samples.problem)
    spread = torch.linspace(0.9, 1.1, models)[:, None]
    batches: list[int] = []
    original = type(data.samples.problem).judge

    def judge(problem: Any, outputs: Any, targets: Any) -> Any:
        batches.append(len(targets))
        return original(problem, outputs, targets)

    with monkeypatch.context() as patch:
        patch.setattr(type(data.samples.problem), "judge", judge)
        found = device.evaluate(spread * device.flat.vector, job)
    return found, batches


def test_a_network_is_refused_for_what_it_trains_on_not_for_an_evaluation(
    tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny["model"] = {"name": "cnn", "channels": [4], "dense": 6}
    every, largest = size.values_per_sample(
        cnn((1, 8, 8), 10, channels=[4], dense=6), torch.zeros(1, 1, 8, 8)
    )
    batch = tiny["training"]["batch_size"]
    enough = 4 * batch * every
    assert enough < 4 * jobs.BATCH * largest
    monkeypatch.setattr(executor, "memory", lambda: enough)
    monkeypatch.setattr(size, "memory", lambda: enough)
    monkeypatch.setattr(size, "check_parameters", nn.Identity())
    assert describe(load_experiment(tiny))
    monkeypatch.setattr(size, "memory", lambda: enough - 1)
    with pytest.raises(ConfigError, match=rf"a batch of {batch} to train on takes"):
        describe(load_experiment(tiny))

"""Survival on the engine: whoever is compared is compared with patients of the same holder."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from clientwise.core.objective.loss import CoxLoss
from clientwise.core.objective.metrics import concordance, pair_counts
from clientwise.core.types import LocalTraining, Task
from clientwise.data.federated import FederatedData
from clientwise.engine import executor as executors
from clientwise.engine.executor import DeviceExecutor
from clientwise.engine.local import LocalEngine
from engine_contract import check_engine

SIZES = [7, 0, 5, 9]


def make(workers: int = 1) -> tuple[FederatedData, LocalEngine]:
    torch.manual_seed(0)
    inputs, targets = torch.randn(sum(SIZES), 3), torch.randn(sum(SIZES))
    ends = torch.tensor([0, *SIZES]).cumsum(0).tolist()
    blocks = [(inputs[start:end], targets[start:end]) for start, end in pairwise(ends)]
    data = FederatedData.from_clients(blocks, blocks, weigh=(inputs, targets), problem="survival")
    module = nn.Sequential(nn.Linear(3, 1))
    executor = DeviceExecutor(
        data.samples, module, torch.device("cpu"), mode="stacked", workers=workers
    )
    assert (executor.mode, executor.reason) == ("loop", "the loss compares the samples of a batch")
    return data, LocalEngine(data, module, seed=1, executor=executor)


def test_a_step_is_down_the_slope_of_the_clients_own_loss() -> None:
    data, engine = make()
    task = Task(1, LocalTraining(learning_rate=0.1), engine.problem.loss, ())
    trained = {
        client: model
        for updates in engine.train([0, 2, 3], engine.initial_model, task)
        for client, model in zip(updates.client_ids, updates.models, strict=True)
    }
    for client, model in trained.items():
        mine = data.train.slice(client)
        start = engine.initial_model.clone().requires_grad_()
        scores = data.samples.inputs[mine] @ start[:3] + start[3]
        (slope,) = torch.autograd.grad(CoxLoss()(scores, data.samples.targets[mine]), start)
        torch.testing.assert_close(model, engine.initial_model - 0.1 * slope)
    check_engine(engine)


@pytest.mark.parametrize("workers", [1, 2])
def test_evaluation_goes_by_holder(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    monkeypatch.setattr(
        executors, "SMALL_PART", 4
    )  # parts of the work that know no borders between clients
    data, engine = make(workers)
    models = torch.stack([engine.initial_model, torch.tensor([1.0, -1.0, 0.5, 0.0])])
    found = engine.evaluate(range(4), models)
    assert found.sample_losses is not None
    total = torch.zeros(2, 3, dtype=torch.float64)
    for client in range(4):
        mine = data.test.slice(client)
        targets = data.test.targets[mine]
        scores = data.samples.inputs[data.test.indices[mine]] @ models[:, :3].T + models[:, 3]
        counts = pair_counts(targets, scores.T)
        torch.testing.assert_close(found.values[:, client], concordance(counts))
        if len(targets):
            losses = torch.stack([CoxLoss().per_sample(one, targets) for one in scores.T])
            torch.testing.assert_close(
                found.losses[:, client], losses.mean(1).double(), rtol=1e-5, atol=1e-6
            )
            torch.testing.assert_close(
                found.sample_losses[:, mine], losses.double(), rtol=1e-5, atol=1e-6
            )
        total += counts
    assert torch.equal(found.counts, total)
    server = engine.evaluate_server(models, "weigh")
    assert server is not None
    assert float(server.counts[0, 1]) > float(
        total[0, 1]
    )  # there everybody can be compared with everybody

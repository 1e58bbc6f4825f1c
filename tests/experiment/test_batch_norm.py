"""Batch norm under every method: running statistics are averaged, and no method's model stays where it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clientwise as cw
from clientwise.experiment.config_file import METHODS
from clientwise.record.run import RunFolder
from recorded import curve, rows

CLIENTS = 6
ROUNDS = 3
CONFIG: dict[str, Any] = {
    "name": "batch norm",
    "rounds": ROUNDS,
    "device": "cpu",
    "workers": 1,
    "training": {"batch_size": 8, "learning_rate": 0.1},
    "devices": {},
}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))


def block(count: int, seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count,), generator=random)
    return torch.randn(count, 8, generator=random) + labels[:, None], labels


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> cw.Run:
    """All methods on the same clients, whose last batches have one sample."""
    train = [block(25, seed) for seed in range(CLIENTS)]
    test = [block(10, 50 + seed) for seed in range(CLIENTS)]
    data = cw.FederatedData.from_clients(train, test, weigh=block(40, 98), report=block(60, 99))
    folder = tmp_path_factory.mktemp("batch norm") / "run"
    config = CONFIG | {"methods": [*METHODS]}
    return cw.Run(cw.run(config, folder, data=data, model=network))


@pytest.mark.parametrize("method", METHODS)
def test_no_model_stays_where_it_is(method: str, run: cw.Run) -> None:
    found = rows(run, "rounds", method)
    kept = found["kept"].dropna() if "kept" in found else ()
    waits = method == "FedBuff"  # for updates, which take time
    assert len(kept) <= waits, kept
    assert rows(run, "refusals", method).empty
    losses = list(curve(run, "loss", method).values())
    assert len({round(loss, 9) for loss in losses}) >= ROUNDS - waits
    assert min(losses) < losses[0]
    if RunFolder(run.folder).about(method).control != "alone":
        trained: Any = cw.load(run.folder, module=network).model(method)
        assert bool((trained[1].running_var > 0).all())

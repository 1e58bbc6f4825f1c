"""Differential privacy on Flower: the server's noise and the clients' are those of a local run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

pytest.importorskip("flwr", reason="needs clientwise[flower]")

import test_flower_small_numbers as node
from approvals import approve_again
from grid import FakeClock
from test_flower_engine import Setup

from clientwise.core.privacy import LocalNoise
from clientwise.core.types import Task
from clientwise.experiment.load import load_experiment
from clientwise.hosts.flower.connections import connector
from clientwise.hosts.flower.wire import (
    ARRAYS,
    NUMBERS,
    Request,
    unpack,
)

pytestmark = pytest.mark.usefixtures("clock")
CENTRAL = {
    "name": "central",
    "bounds": {"cap": 0.5},
    "privacy": {"clip": 0.5, "delta": 0.1, "noise_multiplier": 1.0, "quantile": 0.5},
}
LOCAL: dict[str, Any] = {
    "name": "local",
    "criteria": ["uniform"],
    "privacy": {"clip": 0.5, "delta": 0.1, "noise_multiplier": 1.0, "local": True},
}
hospital = node.hospital


@pytest.mark.parametrize("method", [CENTRAL, LOCAL])
def test_both_engines_release_the_same_models(tiny: dict[str, Any], method: dict[str, Any]) -> None:
    """Poisson cohorts, of which some ask few clients or none."""
    config = tiny | {
        "federation": {"fraction": 0.4, "sampling": "poisson"},
        "evaluation": {"clients_every": 0, "test_fraction": 0.0},
        "methods": [method],
    }
    setup = Setup(config)
    (built,) = setup.methods.values()
    ours, theirs = (setup.rounds(engine, built, 5) for engine in (setup.local, setup.flower))
    assert torch.allclose(ours[0].model, theirs[0].model, rtol=1e-5, atol=1e-6)
    assert torch.equal(ours[0].privacy["releases"], theirs[0].privacy["releases"])
    for one, other in zip(ours[1], theirs[1], strict=True):
        assert sorted(one.client_ids) == sorted(other.client_ids)
        assert one.released == other.released


def test_a_node_adds_secret_noise_and_answers_a_repeated_request_alike(
    hospital: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "CONFIG", node.CONFIG | {
        "methods": [LOCAL],
        "evaluation": {"clients_every": 0, "test_fraction": 0.0},
    })  # fmt: skip
    noise = LocalNoise(clip=0.5, deviation=1.0)

    def train(path: Path, **node_config: Any) -> torch.Tensor:
        task: Task = node.task(noise=noise)
        reply = node.ask(path, Request(0, 1, task), torch.zeros(5), **node_config)
        assert not reply.has_error(), reply.error
        assert reply.content.metric_records[NUMBERS]["training_loss"] == 0
        assert reply.content.metric_records[NUMBERS]["seconds"] == 0
        return unpack(reply.content.array_records[ARRAYS])

    sent = train(hospital)
    assert torch.equal(sent, train(hospital))
    elsewhere = hospital.with_name("elsewhere.npz")
    elsewhere.write_bytes(hospital.read_bytes())
    there = train(elsewhere)
    assert not torch.allclose(sent, there, atol=0.1)  # another node, another secret
    # As after another approval, whose app may compute another update from the same request
    again = hospital.with_name("again.ledger")
    approve_again(again, node.CONFIG, cell=1)
    key = Path(f"{hospital}.ledger.key")
    again.with_name(f"{again.name}.key").write_bytes(key.read_bytes())
    approved = train(hospital, ledger=str(again))
    assert not torch.allclose(sent, approved, atol=0.1)
    # The deviation is 0.5. The secrets are new in every test: one in 100,000 is below 0.1.
    assert float(torch.stack([sent, there, approved]).std(0).mean()) > 0.1
    arrays = dict(numpy.load(hospital))
    arrays["train_targets"][0] = 0  # one patient is well
    numpy.savez(hospital, **arrays)
    assert not torch.allclose(sent, train(hospital), atol=0.1)
    less: Task = node.task(noise=LocalNoise(clip=0.5, deviation=0.1))
    assert "noise" in node.ask(hospital, Request(0, 1, less), torch.zeros(5)).error.reason
    none: Task = node.task()
    assert "noise" in node.ask(hospital, Request(0, 1, none), torch.zeros(5)).error.reason


def test_a_simulated_client_does_not_pass_off_the_seeds_noise_as_secret(
    tiny: dict[str, Any],
) -> None:
    config = tiny | {
        "federation": {"fraction": 1.0},
        "evaluation": {"clients_every": 0, "test_fraction": 0.0},
        "methods": [LOCAL | {"privacy": LOCAL["privacy"] | {"secret": True}}],
    }
    setup = Setup(config, repeats=0)
    (method,) = setup.methods.values()
    _, (record,) = setup.rounds(setup.flower, method)
    assert len(record.refusals) == setup.local.num_clients
    assert all("privacy.secret is for the nodes" in one.reason for one in record.refusals)


@pytest.mark.parametrize("absent", [{5}, {0, 5}, {0, 1, 2, 3, 5}])
def test_no_client_decides_whether_another_one_is_awaited(
    tiny: dict[str, Any], clock: FakeClock, absent: set[int]
) -> None:
    """Client 4 connects late. It takes part, whoever else is there."""
    config = tiny | {
        "federation": {"fraction": 1.0},
        "evaluation": {"clients_every": 0, "test_fraction": 0.0},
        "flower": {"train_seconds": 30.0, "repeats": 0},
        "methods": [CENTRAL],
    }
    setup = Setup(config)
    (method,) = setup.methods.values()
    began = clock.now

    def connected() -> dict[int, int]:
        late = {4} if clock.now < began + 10 else set()
        return {client: 2 for client in range(6) if client not in absent | late}

    engine = connector(load_experiment(config), setup.grid, connected)(setup.local, 1)
    _, (record,) = setup.rounds(engine, method)
    assert {one.client_id for one in record.refusals} == absent
    assert 4 in record.client_ids

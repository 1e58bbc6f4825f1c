"""Differential privacy on Flower: the server's noise and the clients' are those of a local run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from grid import FakeClock
from test_flower_engine import Setup

from clientwise.experiment.load import load_experiment
from clientwise.hosts.flower.server_app import connector

pytestmark = pytest.mark.usefixtures("clock")
CENTRAL = {
    "name": "central",
    "bounds": {"cap": 0.5},
    "privacy": {"clip": 0.5, "delta": 0.1, "noise_multiplier": 1.0},
}
LOCAL: dict[str, Any] = {
    "name": "local",
    "criteria": ["uniform"],
    "privacy": {"clip": 0.5, "delta": 0.1, "noise_multiplier": 1.0, "local": True},
}


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
    assert torch.equal(ours[0].kept("privacy")["releases"], theirs[0].kept("privacy")["releases"])
    for one, other in zip(ours[1], theirs[1], strict=True):
        assert sorted(one.client_ids) == sorted(other.client_ids)
        assert one.released == other.released


@pytest.mark.parametrize("absent", [{5}, {0, 5}, {0, 1, 2, 3, 5}])
def test_no_client_decides_whether_another_one_is_awaited(
    tiny: dict[str, Any], clock: FakeClock, absent: set[int]
) -> None:
    """Client 4 connects late. It takes part, whoever else is there."""
    config = tiny | {
        "federation": {"fraction": 1.0},
        "evaluation": {"clients_every": 0, "test_fraction": 0.0},
        "flower": {"reply_seconds": 30.0},
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

"""What a round asks of a GPU: few launches and few waits, however many clients take part."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import clientwise as cw
import evidence
import ours
from clientwise.core.method import Plan
from clientwise.core.round import first_state, run_round
from clientwise.engine import jobs
from clientwise.engine.executor import DeviceExecutor
from clientwise.engine.local import LocalEngine
from clientwise.engine.stacked import backend
from clientwise.engine.stacked.backend import StackedTrainer
from clientwise.models.networks import mlp
from device_work import DeviceWork, counted
from works import WORKS


def one_round(method_name: str, clients: int, monkeypatch: pytest.MonkeyPatch) -> DeviceWork:
    """The work of the fourth round outside of the steps of training, which are graphs on a GPU."""
    work = replace(
        WORKS["W3"], layers=(8, 4, 10), shape=(8,), clients=2 * clients, cohort=clients, epochs=1
    )
    # As on a GPU, where one pass takes many models and samples
    monkeypatch.setattr(backend, "MAX_EVALUATED", 128)
    monkeypatch.setattr(jobs, "BATCH", 2**14)
    data = evidence.with_server_set(work)
    module = mlp(work.shape, 10, hidden=[4])
    executor = DeviceExecutor(data.samples, module, torch.device("cpu"), workers=1)
    engine = LocalEngine(data, module, seed=1, executor=executor)
    (method,) = cw.load(ours.config(work, 4, methods=[method_name])).build_methods()
    plan = Plan(1, clients, evaluate_clients_every=0)
    state = first_state(engine.initial_model, method, engine)
    for _ in range(3):
        state, _ = run_round(state, method, plan, engine)
    with counted(monkeypatch) as counts:
        take_step = StackedTrainer._take_step

        def step(trainer: StackedTrainer, running: int) -> None:
            before = counts.launches.copy()
            take_step(trainer, running)
            counts.launches = before

        monkeypatch.setattr(StackedTrainer, "_take_step", step)
        counts.mark(state.model)
        for value in state.step_state.values():
            if value.shape == state.model.shape:
                counts.mark(value)
        run_round(state, method, plan, engine)
    return counts


# Before clientwise 0.3: 44, 64 and 157 launches and 7, 10 and 17 waits for 10 clients
@pytest.mark.parametrize(
    ("method", "launches", "waits"),
    [("FedAvg", 50, 4), ("AdaFed", 75, 5), ("Recommended", 175, 11)],
)
def test_a_round_launches_little_and_waits_seldom(
    method: str, launches: int, waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (one_round(method, clients, monkeypatch) for clients in (10, 40))
    assert few.launches.total() == many.launches.total(), "launches do not grow with the clients"
    assert many.launches.total() <= launches, many.launches
    assert many.waits.total() <= waits, many.waits

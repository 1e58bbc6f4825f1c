from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import clientwise as cw
from clientwise.core.loss import Loss
from clientwise.core.types import LocalTraining, Task
from clientwise.data.datasets import digits
from clientwise.data.partition import federate, iid
from clientwise.engine.compute import Compute
from clientwise.engine.local import LocalEngine
from clientwise.engine.meeting import Meeting, Seat
from clientwise.engine.training import Bundle
from clientwise.experiment import runner
from clientwise.models.networks import mlp


@pytest.fixture
def compute() -> Compute:
    return Compute(digits(None), mlp((1, 8, 8), 10, hidden=[8]), torch.device("cpu"), workers=2)


def engine(compute: Any, seed: int) -> LocalEngine:
    data = federate(
        digits(None), lambda pool, seed: iid(pool, seed, clients=6), seed,
        test_fraction=0.2, server_fraction=0.1, report_fraction=0.5,
    )  # fmt: skip
    torch.manual_seed(seed)
    return LocalEngine(data, mlp((1, 8, 8), 10, hidden=[8]), seed=seed, compute=compute)


def everything(engine: LocalEngine, task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    models = torch.cat([updates.models for updates in engine.train(range(5), engine.initial_model, task)])
    return models, torch.cat([engine.evaluate(range(6), models).values, engine.evaluate([2], models).losses], 1)


def test_lanes_that_meet_get_what_they_would_get_alone(compute: Compute) -> None:
    losses = [Loss("cross_entropy"), Loss("cross_entropy", tuple(0.5 + k for k in range(10))), Loss("cross_entropy")]
    rates = [0.1, 0.1, 0.3]  # the third trains otherwise, and cannot be joined
    tasks = [
        Task(1, LocalTraining(2, 16, learning_rate=rate), loss, ()) for rate, loss in zip(rates, losses, strict=True)
    ]
    alone = [everything(engine(compute, seed), task) for seed, task in enumerate(tasks)]
    meeting = Meeting(compute)
    meeting.expect(3)
    engines = [engine(Seat(meeting, place), place) for place in range(3)]

    def attend(place: int) -> tuple[torch.Tensor, torch.Tensor]:
        with meeting.attend():
            return everything(engines[place], tasks[place])

    with ThreadPoolExecutor(3) as threads:
        together = list(threads.map(attend, range(3)))
    for (models, values), (expected, expected_values) in zip(together, alone, strict=True):
        torch.testing.assert_close(models, expected)
        torch.testing.assert_close(values, expected_values)


def test_a_lane_that_fails_does_not_keep_the_others_waiting(compute: Compute) -> None:
    meeting = Meeting(compute)
    meeting.expect(2)
    task = Task(1, LocalTraining(1, 16), Loss("cross_entropy"), ())

    def attend(place: int) -> int:
        with meeting.attend():
            if place == 0:
                raise OSError("out of luck")
            return len(everything(engine(Seat(meeting, place), 1), task)[0])

    with ThreadPoolExecutor(2) as threads:
        lanes = [threads.submit(attend, place) for place in range(2)]
        assert lanes[1].result(timeout=60) == 5
        with pytest.raises(OSError, match="out of luck"):
            lanes[0].result()


def test_side_by_side_or_one_after_the_other_is_the_same_run(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny["seeds"] = [1, 2]
    met: list[int] = []
    original = runner.run_lanes
    monkeypatch.setattr(runner, "run_lanes", lambda lanes, *rest: (met.append(len(lanes)), original(lanes, *rest)))
    together = cw.Run(cw.run(tiny, tmp_path / "together"))
    monkeypatch.setattr(runner, "_lanes_that_fit", lambda *given: 1)
    apart = cw.Run(cw.run(tiny, tmp_path / "apart"))
    assert met == [4, 1, 1, 1, 1]
    query = "SELECT metric, loss FROM rounds JOIN lanes USING (lane) ORDER BY method, seed, round_num"
    rows = [torch.tensor(run.query(query), dtype=torch.float64) for run in (together, apart)]
    torch.testing.assert_close(*rows)
    assert rows[0].shape == (12, 2)


def test_no_more_bundles_are_made_than_are_worked_on(compute: Compute) -> None:
    """Memory must not grow with the cohort."""
    there = engine(compute, 1)
    task = Task(1, LocalTraining(1, 16), Loss("cross_entropy"), ())
    made, most, lock = 0, 0, threading.Lock()

    def bundles() -> Iterator[Bundle]:
        nonlocal made
        for _ in range(20):
            with lock:
                made += 1
            yield there._bundle([0], there.initial_model, task)

    for taken, _ in enumerate(compute.train(bundles())):
        most = max(most, made - taken)
    assert made == 20
    assert most <= compute.workers + 2

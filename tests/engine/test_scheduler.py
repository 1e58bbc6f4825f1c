from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import clientwise as cw
import recorded
from clientwise.core.objective.loss import CrossEntropy
from clientwise.core.types import LocalTraining, Task
from clientwise.data.datasets import digits
from clientwise.data.partition import iid
from clientwise.engine.executor import DeviceExecutor
from clientwise.engine.jobs import TrainJob
from clientwise.engine.local import LocalEngine
from clientwise.engine.scheduler import LaneExecutor, Scheduler
from clientwise.experiment.running import runner
from clientwise.models.networks import mlp
from dividing import federate

pytestmark = pytest.mark.bits


@pytest.fixture
def executor() -> DeviceExecutor:
    return DeviceExecutor(
        digits(None), mlp((1, 8, 8), 10, hidden=[8]), torch.device("cpu"), workers=2
    )


def engine(executor: Any, seed: int) -> LocalEngine:
    data = federate(
        digits(None), lambda pool, seed: iid(pool, seed, clients=6), seed,
        test_fraction=0.2, server_fraction=0.1, report_fraction=0.5,
    )  # fmt: skip
    torch.manual_seed(seed)
    return LocalEngine(data, mlp((1, 8, 8), 10, hidden=[8]), seed=seed, executor=executor)


def everything(engine: LocalEngine, task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    models = torch.cat(
        [updates.models for updates in engine.train(range(5), engine.initial_model, task)]
    )
    return models, torch.cat(
        [engine.evaluate(range(6), models).values, engine.evaluate([2], models).losses], 1
    )


@pytest.mark.parametrize("in_one_thread", [False, True])  # as on a GPU
def test_joined_lanes_get_what_they_would_get_alone(
    executor: DeviceExecutor, in_one_thread: bool
) -> None:
    losses = [
        CrossEntropy(),
        CrossEntropy(class_weights=tuple(0.5 + k for k in range(10))),
        CrossEntropy(),
    ]
    rates = [0.1, 0.1, 0.3]  # the third trains otherwise, and cannot be joined
    tasks = [
        Task(1, LocalTraining(2, 16, learning_rate=rate), loss, ())
        for rate, loss in zip(rates, losses, strict=True)
    ]
    alone = [everything(engine(executor, seed), task) for seed, task in enumerate(tasks)]
    scheduler = Scheduler(executor)
    if in_one_thread:
        scheduler._worker = ThreadPoolExecutor(1)
    scheduler.begin_round(3)
    engines = [engine(LaneExecutor(scheduler, lane), lane) for lane in range(3)]

    def run(lane: int) -> tuple[torch.Tensor, torch.Tensor]:
        with scheduler.lane_round():
            return everything(engines[lane], tasks[lane])

    with ThreadPoolExecutor(3) as threads:
        together = list(threads.map(run, range(3)))
    for (models, values), (expected, expected_values) in zip(together, alone, strict=True):
        torch.testing.assert_close(models, expected)
        torch.testing.assert_close(values, expected_values)


def test_a_lane_that_fails_does_not_keep_the_others_waiting(executor: DeviceExecutor) -> None:
    scheduler = Scheduler(executor)
    scheduler.begin_round(2)
    task = Task(1, LocalTraining(1, 16), CrossEntropy(), ())

    def run(lane: int) -> int:
        with scheduler.lane_round():
            if lane == 0:
                raise OSError("out of luck")
            return len(everything(engine(LaneExecutor(scheduler, lane), 1), task)[0])

    with ThreadPoolExecutor(2) as threads:
        lanes = [threads.submit(run, lane) for lane in range(2)]
        assert lanes[1].result(timeout=60) == 5
        with pytest.raises(OSError, match="out of luck"):
            lanes[0].result()


def test_side_by_side_or_one_after_the_other_is_the_same_run(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny["seeds"] = [1, 2]
    joined: list[int] = []
    original = runner.run_lanes
    monkeypatch.setattr(
        runner,
        "run_lanes",
        lambda lanes, *rest: (joined.append(len(lanes)), original(lanes, *rest)),
    )
    together = cw.Run(cw.run(tiny, tmp_path / "together"))
    monkeypatch.setattr(runner, "lanes_that_fit", lambda *given: 1)
    apart = cw.Run(cw.run(tiny, tmp_path / "apart"))
    assert joined == [4, 1, 1, 1, 1]
    assert recorded.everything(together) == recorded.everything(apart)


def test_no_more_jobs_are_made_than_are_worked_on(executor: DeviceExecutor) -> None:
    """Memory must not grow with the cohort."""
    there = engine(executor, 1)
    task = Task(1, LocalTraining(1, 16), CrossEntropy(), ())
    made, most, lock = 0, 0, threading.Lock()

    def jobs() -> Iterator[TrainJob]:
        nonlocal made
        for _ in range(20):
            with lock:
                made += 1
            yield there._train_job([0], there.initial_model, task)

    for taken, _ in enumerate(executor.train(jobs())):
        most = max(most, made - taken)
    assert made == 20
    assert most <= executor.workers + 2


def test_joined_jobs_are_cut_where_they_do_not_fit(
    executor: DeviceExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of four clients: one has the end of a job and the beginning of the next."""
    monkeypatch.setattr(executor, "clients_at_once", lambda training, largest: 4)
    task = Task(1, LocalTraining(1, 16, learning_rate=0.1), CrossEntropy(), ())
    there = engine(executor, 1)
    jobs = [
        there._train_job(some, there.initial_model, task)
        for some in ([0, 1, 2], [3, 4, 5], [0, 2, 4, 5, 1])
    ]
    sizes = []
    train = executor._train

    def noted(job: TrainJob) -> Any:
        sizes.append(len(job))
        return train(job)

    monkeypatch.setattr(executor, "_train", noted)
    together = executor.train_joined(jobs)
    assert sorted(sizes) == [3, 4, 4]
    for job, result in zip(jobs, together, strict=True):
        (alone,) = executor.train([job])
        assert not isinstance(result, Exception)
        assert not isinstance(alone, Exception)
        torch.testing.assert_close(result.models, alone.models)
        torch.testing.assert_close(result.losses, alone.losses)

"""Joins the work of several lanes: methods and seeds of one experiment do the same work on the same data.

Every lane runs `core.round.run_round` in a thread of its own, independently of the others. When it trains or
evaluates, it waits until all others do too (or have ended their round); then all of these jobs are done as one.
Between that one lane runs and the others wait: threads that all run at once spend most of their time handing each
other Python's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.objective.loss import Loss
from ..core.types import Evaluation, LocalTraining
from .executor import DeviceExecutor
from .jobs import EvaluateJob, TrainJob, TrainResult


class StoppedError(Exception):
    """The run ends: a lane has failed, or it was interrupted."""


class LaneExecutor:
    """One lane's access to the scheduler, as an `Executor`."""

    workers = 1  # the cohort stays together, to be joined with those of the other lanes

    def __init__(self, scheduler: Scheduler, lane: int) -> None:
        self._scheduler = scheduler
        self._lane = lane
        shared = scheduler.executor
        self.device = shared.device
        self.samples = shared.samples
        self.spec = shared.spec
        self.clients_at_once = shared.clients_at_once

    @property
    def frozen(self) -> str:
        """See `Executor`."""
        return self._scheduler.executor.frozen

    def train(self, jobs: Iterable[TrainJob]) -> Iterator[TrainResult | Exception]:
        """See `Executor`."""
        for job in jobs:
            yield self._scheduler.train(self._lane, job)

    def evaluate(self, models: Tensor, job: EvaluateJob) -> Evaluation:
        """See `Executor`."""
        return self._scheduler.evaluate(self._lane, models, job)


@dataclass(eq=False)
class _Request:
    lane: int
    job: Any  # to train, or to evaluate `models` on
    models: Any = None
    result: Any = None
    error: BaseException | None = None


class Scheduler:
    """Collects the jobs of all lanes and executes them together."""

    def __init__(self, executor: DeviceExecutor) -> None:
        self.executor = executor
        # The lane that holds it runs; it is given up while waiting
        self._turn = threading.Condition()
        self._running = 0  # lanes whose round has not ended
        self._stopped = False
        self._waiting: list[_Request] = []
        # On a GPU all work is done by one thread: libraries take megabytes of it for every thread that uses them
        self._worker = ThreadPoolExecutor(1) if executor.device.type == "cuda" else None

    def begin_round(self, lanes: int) -> None:
        """Announce that so many lanes begin a round; each runs it within `lane_round`."""
        with self._turn:
            self._running = lanes

    @contextmanager
    def lane_round(self) -> Iterator[None]:
        """A lane's round; at its end the other lanes no longer wait for this one."""
        with self._turn:
            try:
                yield
            finally:
                self._running -= 1
                self._work_if_all_wait()

    def stop(self) -> None:
        """End the run: every lane that waits or submits a job gets a `StoppedError`."""
        with self._turn:
            self._stopped = True
            self._turn.notify_all()

    def train(self, lane: int, job: TrainJob) -> TrainResult | Exception:
        """Within `lane_round`: what the executor's `train` gives, once all lanes have a job."""
        found: TrainResult | Exception = self._submit(_Request(lane, job))
        return found

    def evaluate(self, lane: int, models: Tensor, job: EvaluateJob) -> Evaluation:
        """Within `lane_round`: what the executor's `evaluate` gives, once all lanes have a job."""
        found: Evaluation = self._submit(_Request(lane, job, models))
        return found

    def _submit(self, request: _Request) -> Any:
        self._waiting.append(request)
        self._work_if_all_wait()
        self._turn.wait_for(
            lambda: request.result is not None or request.error is not None or self._stopped
        )
        if self._stopped:
            raise StoppedError
        if request.error is not None:
            raise request.error
        return request.result

    def _work_if_all_wait(self) -> None:
        """The last lane to submit a job executes those of all lanes."""
        if self._stopped or not self._waiting or len(self._waiting) < self._running:
            return
        requests, self._waiting = self._waiting, []
        requests.sort(key=lambda request: request.lane)  # the same order every time
        try:
            if self._worker is None:
                self._work(requests)
            else:
                self._worker.submit(self._work, requests).result()
        except BaseException as error:  # every lane must get it, or it would wait for ever
            for request in requests:
                request.error = error
        self._turn.notify_all()

    def _work(self, requests: Sequence[_Request]) -> None:
        self._train([request for request in requests if request.models is None])
        self._evaluate([request for request in requests if request.models is not None])

    def _train(self, requests: Sequence[_Request]) -> None:
        for group in _grouped(requests, lambda request: _recipe(request.job)):
            results = self.executor.train_joined([request.job for request in group])
            for request, result in zip(group, results, strict=True):
                request.result = result

    def _evaluate(self, requests: Sequence[_Request]) -> None:
        for group in _grouped(requests, lambda request: id(request.job.indices)):
            models = [request.models for request in group]
            together = self.executor.evaluate(torch.cat(models), group[0].job)
            start = 0
            for request, own in zip(group, models, strict=True):
                request.result = together.part(slice(start, start + len(own)))
                start += len(own)


def _recipe(job: TrainJob) -> tuple[LocalTraining, Loss, bool]:
    """Jobs with the same options can be joined; class weights may differ."""
    return job.training, job.losses[0].unweighted(), job.as_evaluated


def _grouped(
    requests: Sequence[_Request], key: Callable[[_Request], object]
) -> list[list[_Request]]:
    """Requests with the same key, in the order in which the keys first appear. Keys need no hash."""
    groups: list[tuple[object, list[_Request]]] = []
    for request in requests:
        mine = key(request)
        same = [members for known, members in groups if known == mine]
        if same:
            same[0].append(request)
        else:
            groups.append((mine, [request]))
    return [members for _, members in groups]

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
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ..core.objective.loss import Loss
from ..core.types import Evaluation, LocalTraining
from .executor import DeviceExecutor
from .jobs import EvaluateJob, TrainJob, TrainResult

T = TypeVar("T")
Work = TypeVar("Work")
Result = TypeVar("Result")


class StoppedError(Exception):
    """The run ends: a lane has failed, or it was interrupted."""


class LaneExecutor:
    """One lane's access to the scheduler, as an `Executor`."""

    workers = 1  # the cohort stays together, to be joined with those of the other lanes

    def __init__(self, scheduler: Scheduler, lane: int) -> None:
        self._scheduler, self._lane = scheduler, lane
        shared = scheduler.executor
        self.device, self.samples, self.spec = shared.device, shared.samples, shared.spec
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
class _Request(Generic[Work, Result]):
    lane: int
    work: Work
    result: Result | None = None
    error: BaseException | None = None


class Scheduler:
    """Collects the jobs of all lanes and executes them together."""

    def __init__(self, executor: DeviceExecutor) -> None:
        self.executor = executor
        # The lane that holds it runs; it is given up while waiting
        self._turn = threading.Condition()
        self._running = 0  # lanes whose round has not ended
        self._stopped = False
        self._to_train: list[_Request[TrainJob, TrainResult | Exception]] = []
        self._to_evaluate: list[_Request[tuple[Tensor, EvaluateJob], Evaluation]] = []
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
        return self._submit(_Request(lane, job), self._to_train)

    def evaluate(self, lane: int, models: Tensor, job: EvaluateJob) -> Evaluation:
        """Within `lane_round`: what the executor's `evaluate` gives, once all lanes have a job."""
        return self._submit(_Request(lane, (models, job)), self._to_evaluate)

    def _submit(
        self, request: _Request[Work, Result], waiting: list[_Request[Work, Result]]
    ) -> Result:
        waiting.append(request)
        self._work_if_all_wait()
        self._turn.wait_for(
            lambda: request.result is not None or request.error is not None or self._stopped
        )
        if self._stopped:
            raise StoppedError
        if request.error is not None:
            raise request.error
        assert request.result is not None
        return request.result

    def _work_if_all_wait(self) -> None:
        """The last lane to submit a job executes those of all lanes."""
        to_train, to_evaluate = self._to_train, self._to_evaluate
        waiting = len(to_train) + len(to_evaluate)
        if self._stopped or not waiting or waiting < self._running:
            return
        self._to_train, self._to_evaluate = [], []
        try:
            if self._worker is None:
                self._work(to_train, to_evaluate)
            else:
                self._worker.submit(self._work, to_train, to_evaluate).result()
        except BaseException as error:  # every lane must get it, or it would wait for ever
            requests: list[_Request[Any, Any]] = [*to_train, *to_evaluate]
            for request in requests:
                request.error = error
        self._turn.notify_all()

    def _work(
        self,
        to_train: Sequence[_Request[TrainJob, TrainResult | Exception]],
        to_evaluate: Sequence[_Request[tuple[Tensor, EvaluateJob], Evaluation]],
    ) -> None:
        """In the order of the lanes: the same every time."""
        self._train(sorted(to_train, key=lambda request: request.lane))
        self._evaluate(sorted(to_evaluate, key=lambda request: request.lane))

    def _train(self, requests: Sequence[_Request[TrainJob, TrainResult | Exception]]) -> None:
        for group in _grouped(requests, lambda request: _recipe(request.work)):
            results = self.executor.train_joined([request.work for request in group])
            for request, result in zip(group, results, strict=True):
                request.result = result

    def _evaluate(
        self, requests: Sequence[_Request[tuple[Tensor, EvaluateJob], Evaluation]]
    ) -> None:
        for group in _grouped(requests, lambda request: id(request.work[1].indices)):
            models = [request.work[0] for request in group]
            together = self.executor.evaluate(torch.cat(models), group[0].work[1])
            start = 0
            for request, own in zip(group, models, strict=True):
                request.result = together.part(slice(start, start + len(own)))
                start += len(own)


def _recipe(job: TrainJob) -> tuple[LocalTraining, Loss, bool]:
    """Jobs with the same options can be joined; class weights may differ."""
    return job.training, job.losses[0].unweighted(), job.as_evaluated


def _grouped(items: Sequence[T], key: Callable[[T], object]) -> list[list[T]]:
    """Items with the same key, in the order in which the keys first appear."""
    groups: list[tuple[object, list[T]]] = []
    for item in items:
        for known, members in groups:
            if known == key(item):
                members.append(item)
                break
        else:
            groups.append((key(item), [item]))
    return [members for _, members in groups]

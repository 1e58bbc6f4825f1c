"""Where lanes meet: methods and seeds of one experiment do the same work on the same data, so they do it together.

Every lane runs `core.round.run_round` in a thread of its own and knows nothing of the others. When it trains or
evaluates, it waits until all others do too (or have ended their round); then everything asked for is done at once.
Between that one lane has the floor and the others wait: threads that all run at once spend most of their time handing
each other Python's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.loss import Loss
from ..core.types import Evaluation, LocalTraining
from .compute import Compute
from .evaluation import Exam
from .training import Bundle, Trained


class DismissedError(Exception):
    """The meeting is over: somebody failed, or was interrupted."""


class Seat:
    """One lane's place at the meeting: a `Compute` like any other, as far as the lane can tell."""

    workers = 1  # the cohort stays together, to be joined with those of the other lanes

    def __init__(self, meeting: Meeting, place: int) -> None:
        self._meeting, self._place = meeting, place
        self.device, self.samples, self.spec = meeting.compute.device, meeting.compute.samples, meeting.compute.spec
        self.at_once = meeting.compute.at_once

    def train(self, bundles: Iterable[Bundle]) -> Iterator[Trained | Exception]:
        """See `Compute`."""
        for bundle in bundles:
            yield self._meeting.ask(self._place, bundle)

    def evaluate(self, models: Tensor, exam: Exam) -> Evaluation:
        """See `Compute`."""
        evaluation: Evaluation = self._meeting.ask(self._place, (models, exam))
        return evaluation


@dataclass(eq=False)
class _Request:
    place: int
    what: Any  # a Bundle, or (models, Exam)
    answer: Any = None
    error: BaseException | None = None
    done: bool = False


class Meeting:
    """Collects what the lanes ask for and does it together."""

    def __init__(self, compute: Compute) -> None:
        self.compute = compute
        self._floor = threading.Condition()  # whoever holds it may run; it is given up while waiting
        self._present = 0
        self._dismissed = False
        self._asked: list[_Request] = []

    def expect(self, lanes: int) -> None:
        """So many lanes begin a round now; each is to `attend`."""
        with self._floor:
            self._present = lanes

    @contextmanager
    def attend(self) -> Iterator[None]:
        """A lane's round: at its end nobody waits for this lane any more."""
        with self._floor:
            try:
                yield
            finally:
                self._present -= 1
                self._answer_if_all_asked()

    def dismiss(self) -> None:
        """Nobody need go on: whoever waits, or asks, hears a `DismissedError`."""
        with self._floor:
            self._dismissed = True
            self._floor.notify_all()

    def ask(self, place: int, what: Bundle | tuple[Tensor, Exam]) -> Any:
        """For those who `attend`: wait for the others, then for the answer."""
        request = _Request(place, what)
        self._asked.append(request)
        self._answer_if_all_asked()
        self._floor.wait_for(lambda: request.done or self._dismissed)
        if self._dismissed:
            raise DismissedError
        if request.error is not None:
            raise request.error
        return request.answer

    def _answer_if_all_asked(self) -> None:
        """The last lane to ask does the work for all."""
        if self._dismissed or not self._asked or len(self._asked) < self._present:
            return
        requests = sorted(self._asked, key=lambda request: request.place)  # whoever came first, the same every time
        self._asked = []
        try:
            self._train([request for request in requests if isinstance(request.what, Bundle)])
            self._evaluate([request for request in requests if not isinstance(request.what, Bundle)])
        except BaseException as error:  # every lane must hear of it, or it would wait for ever
            for request in requests:
                request.error = error
        for request in requests:
            request.done = True
        self._floor.notify_all()

    def _train(self, requests: Sequence[_Request]) -> None:
        for group in _grouped(requests, lambda request: _recipe(request.what)):
            results = self.compute.train_joined([request.what for request in group])
            for request, result in zip(group, results, strict=True):
                request.answer = result

    def _evaluate(self, requests: Sequence[_Request]) -> None:
        for group in _grouped(requests, lambda request: id(request.what[1].numbers)):
            models = [request.what[0] for request in group]
            together = self.compute.evaluate(torch.cat(models), group[0].what[1])
            start = 0
            for request, own in zip(group, models, strict=True):
                request.answer = together.part(slice(start, start + len(own)))
                start += len(own)


def _recipe(bundle: Bundle) -> tuple[LocalTraining, Loss]:
    """Bundles that train alike can be joined; class weights may differ."""
    return bundle.training, replace(bundle.losses[0], class_weights=None)


def _grouped(requests: Sequence[_Request], key: Callable[[_Request], Any]) -> list[list[_Request]]:
    """Requests with the same key, in the order in which the keys first appear."""
    groups: list[tuple[Any, list[_Request]]] = []
    for request in requests:
        for known, members in groups:
            if known == key(request):
                members.append(request)
                break
        else:
            groups.append((key(request), [request]))
    return [members for _, members in groups]

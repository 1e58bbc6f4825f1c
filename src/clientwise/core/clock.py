"""Time and devices: how long clients take to answer, who can be asked when, and when a round ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Le, doc
from torch import Tensor

from ..registry import PositiveInt
from .sampling import sample_clients

HOUR = 3600.0
Seconds = Annotated[float, Gt(0), Le(10**8)]  # three years: clocks count no further
LATE = "late: the round had ended"
DROPPED_OUT = "dropped out"
ABSENT = (LATE, DROPPED_OUT)  # reasons that say nothing against an update


@dataclass(frozen=True)
class Devices:
    """What the devices of K clients can do, each [K]."""

    speed: Tensor  # training samples per second
    up: Tensor  # bytes per second, to the server
    down: Tensor  # bytes per second, from the server
    available_from: Tensor  # the hour of the day from which on it can be asked
    available_hours: Tensor  # for so many hours; 24: always
    dropout: Tensor  # the chance that it is asked and never answers
    battery: Tensor  # the share that is left of it

    def of(self, clients: Sequence[int]) -> Devices:
        """The devices of some clients."""
        rows = list(clients)
        return Devices(*(getattr(self, fact.name)[rows] for fact in fields(self)))

    def seconds(self, samples: Tensor, model_bytes: int) -> Tensor:
        """How long each takes to answer [K]: it receives a model, trains on so many samples [K], sends the model."""
        return model_bytes / self.down + samples / self.speed + model_bytes / self.up

    def seconds_until_available(self, now: float) -> Tensor:
        """How long each must be waited for before it can be asked [K]; 0: not at all."""
        hours_open = (now / HOUR - self.available_from) % 24  # since it could first be asked that day
        return torch.where(hours_open < self.available_hours, 0.0, (24 - hours_open) * HOUR)


@dataclass(frozen=True)
class Pace:
    """When a round ends, and what becomes of updates that come later."""

    # The config's [methods.pace] table is made from these fields: types, bounds, defaults and meanings.
    extra: Annotated[
        float,
        Ge(0),
        Le(10),
        doc("Over-selection: 0.3 asks 30% more clients, and the first to answer make the round."),
    ] = 0.0
    deadline: Annotated[
        Seconds | None,
        doc("Longest duration of a round in seconds. Default: no limit."),
    ] = None
    late: Annotated[
        Literal["refuse", "keep"],
        doc(
            'What happens to an update that arrives after its round. "refuse": it is refused. '
            '"keep": it counts in the round in which it arrives, with its age.'
        ),
    ] = "refuse"
    buffer: Annotated[
        PositiveInt | None,
        doc(
            "Asynchronous rounds: a round ends after this many updates, from any clients. Clients "
            "still at work continue; each round asks others until a full cohort is at work. "
            "Default: synchronous."
        ),
    ] = None

    @property
    def keeps_late(self) -> bool:
        """Whether an update that comes too late for its round counts in a later one."""
        return self.late == "keep" or self.buffer is not None

    def asks(self, size: int, at_work: int) -> int:
        """How many a round asks that is to have the answers of `size` clients; some may still be at work."""
        wanted = size + round(size * self.extra)
        return wanted if self.buffer is None else max(0, wanted - at_work)

    def needs(self, size: int, asked: int) -> int:
        """How many answers end a round of `size` that has asked so many."""
        return self.buffer or min(size, asked) or 1

    def ends(self, began: float, size: int, asked: Sequence[float], at_work: Sequence[float], slowest: float) -> float:
        """When a round of `size` ends, from when those asked and those still at work answer; infinity: never.

        `slowest` is when the last of those asked would have answered: until then a round lasts that nobody answers.
        """
        counted = asked if asked and self.buffer is None else [*asked, *at_work]
        answers = sorted(time for time in counted if time < torch.inf)
        needed = self.needs(size, len(asked))
        last = answers[:needed][-1] if answers else slowest
        if self.deadline is None:
            return last
        # Nobody tells the server that a client has dropped out: it waits for as many as it needs.
        return min(last, began + self.deadline) if len(answers) >= needed else began + self.deadline


class Clock:
    """What time it is for the clients, and who is at work. It begins at midnight."""

    def __init__(self, num_clients: int, pace: Pace, devices: Devices | None = None) -> None:
        self.pace = pace
        self.now = 0.0  # seconds since the run began
        self.at_work: frozenset[int] = frozenset()  # asked in earlier rounds, and still expected to answer
        self._num_clients, self._devices, self._size = num_clients, devices, num_clients

    def cohort(self, size: int, seed: int, round_num: int, away: Sequence[int] = ()) -> tuple[int, ...]:
        """Whom a round asks: of those who are free and available now, or, where nobody is at all, of the next to be."""
        self._size = size
        free = [client for client in range(self._num_clients) if client not in {*self.at_work, *away}]
        if self._devices is not None and free:
            waits = self._devices.of(free).seconds_until_available(self.now)
            shortest = 0.0 if self.at_work else float(waits.min())  # else there is somebody to wait for
            self.now += shortest
            free = [client for client, wait in zip(free, waits.tolist(), strict=True) if wait <= shortest]
        return sample_clients(
            self._num_clients, self.pace.asks(size, len(self.at_work)), seed, round_num, frozenset(free)
        )

    def enough(self, asked: int) -> int:
        """How many answers end the round for which `cohort` was asked last."""
        return self.pace.needs(self._size, asked)

    def ends(self, asked: Sequence[float], at_work: Sequence[float], slowest: float) -> float:
        """When the round ends for which `cohort` was asked last; see `Pace.ends`."""
        return self.pace.ends(self.now, self._size, asked, at_work, slowest)

"""Time and devices: response times, availability, and when a round ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Le, doc
from torch import Tensor

from ..registry import PositiveInt
from .reasons import Reason
from .sampling import sample_clients

HOUR = 3600.0
Seconds = Annotated[float, Gt(0), Le(10**8)]  # three years: clocks count no further
LATE = Reason("late: the round had ended", "absent")
DROPPED_OUT = Reason("dropped out", "absent")


@dataclass(frozen=True)
class Devices:
    """What the devices of K clients can do, each [K]."""

    speed: Tensor  # training samples per second
    up: Tensor  # bytes per second, to the server
    down: Tensor  # bytes per second, from the server
    available_from: Tensor  # hour of the day
    available_hours: Tensor  # for so many hours from then on; 24: always
    dropout: Tensor  # probability that it is asked and never responds

    def of(self, clients: Sequence[int]) -> Devices:
        """The devices of some clients."""
        rows = list(clients)
        return Devices(*(getattr(self, fact.name)[rows] for fact in fields(self)))

    def seconds(self, samples: Tensor, model_bytes: int) -> Tensor:
        """Response times [K]: download + training on so many samples [K] + upload."""
        return model_bytes / self.down + samples / self.speed + model_bytes / self.up

    def seconds_until_available(self, now: float) -> Tensor:
        """Seconds until each is available [K]; 0 if it is now."""
        hours_open = (now / HOUR - self.available_from) % 24  # since it became available that day
        return torch.where(hours_open < self.available_hours, 0.0, (24 - hours_open) * HOUR)


@dataclass(frozen=True)
class Pace:
    """When a round ends, and what becomes of updates that arrive later."""

    # The config's [methods.pace] table is made from these fields: types, bounds, defaults and meanings.
    extra: Annotated[
        float,
        Ge(0),
        Le(10),
        doc("Over-selection: 0.3 asks 30% more clients; the first to answer make the round."),
    ] = 0.0
    deadline: Annotated[
        Seconds | None,
        doc("Longest duration of a round, in seconds."),
    ] = None
    late: Annotated[
        Literal["refuse", "keep"],
        doc('A late update is refused, or counts in the round in which it arrives ("keep").'),
    ] = "refuse"
    buffer: Annotated[
        PositiveInt | None,
        doc(
            "Asynchronous rounds: a round ends after this many updates, while other clients continue."
        ),
    ] = None

    @property
    def keeps_late(self) -> bool:
        """Whether an update that is late counts in a later round."""
        return self.late == "keep" or self.buffer is not None

    def asks(self, size: int, at_work: int) -> int:
        """How many clients a round of `size` asks, while `at_work` of earlier rounds are still training."""
        wanted = size + round(size * self.extra)
        return wanted if self.buffer is None else max(0, wanted - at_work)


class Clock:
    """The clients' time, which begins at midnight, and which clients are at work."""

    def __init__(self, num_clients: int, pace: Pace, devices: Devices | None = None) -> None:
        self.pace = pace
        self.now = 0.0  # seconds since the run began
        self.at_work: frozenset[int] = frozenset()  # asked in earlier rounds, not yet responded
        self._num_clients = num_clients
        self._devices = devices
        self._size = num_clients

    def cohort(
        self,
        size: int,
        seed: int,
        round_num: int,
        away: Sequence[int] = (),
        sample: Callable[..., tuple[int, ...]] = sample_clients,
    ) -> tuple[int, ...]:
        """The clients that a round asks, of those that are neither at work nor away, and available now.

        If no client is at work or available, the clock moves on until the next one is available.
        `sample` draws them, with the arguments of `sample_clients`.
        """
        self._size = size
        busy = {*self.at_work, *away}
        free = [client for client in range(self._num_clients) if client not in busy]
        if self._devices is not None and free:
            waits = self._devices.of(free).seconds_until_available(self.now)
            shortest = 0.0 if self.at_work else float(waits.min())
            self.now += shortest
            free = [
                client
                for client, wait in zip(free, waits.tolist(), strict=True)
                if wait <= shortest
            ]
        asks = self.pace.asks(size, len(self.at_work))
        return sample(self._num_clients, asks, seed, round_num, frozenset(free))

    def enough(self, asked: int) -> int:
        """How many responses end the round of the last call of `cohort`."""
        return self.pace.buffer or min(self._size, asked) or 1

    def ends(self, asked: Sequence[float], at_work: Sequence[float], slowest: float) -> float:
        """When the round of the last call of `cohort` ends; infinity: never.

        Args:
            asked: when the clients it asked respond; infinity for dropouts.
            at_work: when clients that were asked earlier respond.
            slowest: when the last of those asked would have responded. A round without any response
                lasts until then.
        """
        counted = asked if asked and self.pace.buffer is None else [*asked, *at_work]
        answers = sorted(time for time in counted if time < torch.inf)
        needed = self.enough(len(asked))
        last = answers[:needed][-1] if answers else slowest
        if self.pace.deadline is None:
            return last
        deadline = self.now + self.pace.deadline
        # The server is not told of dropouts, so it waits until the deadline
        return deadline if len(answers) < needed else min(last, deadline)

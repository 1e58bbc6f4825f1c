"""Clients whose devices take time, on a virtual clock: late updates are refused or count later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.clock import DROPPED_OUT, LATE, Clock, Pace
from ..core.seeding import client_keys, mixed
from ..core.types import FLOAT_BYTES, Refusal, Task, Updates
from ..errors import ClientwiseError
from .wrapping import EmbeddedEngine, WrappingEngine

STATE = "clock."  # begins the names of what a checkpoint keeps of the clock
MEASURED = "measured."  # follows, for the measurements of late updates


@dataclass(frozen=True)
class _Late:
    """An update that counts in a later round."""

    update: Updates  # of one client; `models` [1, d] is how far it moved from the model it was sent
    arrives: float
    asked_in: int  # round

    def applied_to(self, model: Tensor, round_num: int) -> Updates:
        """The update as one of the present model [d]."""
        age = torch.tensor([float(round_num - self.asked_in)], dtype=torch.float64)
        return replace(self.update, models=model + self.update.models, ages=age)


class TimedEngine(WrappingEngine):
    """Clients with a clock: a response takes as long as the client's device needs for it.

    Response times are known before any client trains. So a client whose update would be refused
    does not train.

    Args:
        inner: the engine that trains and evaluates; its data has the devices.
        pace: when a round ends, and what becomes of late updates.
    """

    def __init__(self, inner: EmbeddedEngine, pace: Pace) -> None:
        super().__init__(inner)
        assert self.data.devices is not None, "devices are drawn with the data"
        self._devices = self.data.devices
        self._clock = Clock(self.num_clients, pace, self._devices)
        self.clock = self._clock
        self._late: list[_Late] = []

    def train(self, client_ids: Sequence[int], model: Tensor, task: Task) -> Iterator[Updates]:
        """See `core.engine.Engine`; `seconds` are virtual, and the pace decides when a round ends."""
        times, slowest = self._arrivals(client_ids, task)
        arrives = dict(zip(client_ids, times, strict=True))
        ends = self._clock.ends(times, [one.arrives for one in self._late], slowest)
        dropped_out = {client for client, time in arrives.items() if time == torch.inf}
        refused: set[int] = set()
        if not self._clock.pace.keeps_late:
            refused = {client for client, time in arrives.items() if time > ends} - dropped_out
        arrived = [one for one in self._late if one.arrives <= ends]
        self._late = [one for one in self._late if one.arrives > ends]

        training = [client for client in client_ids if client not in dropped_out | refused]
        if training:
            for updates in self.inner.train(training, model, task):
                yield self._in_time(updates, arrives, ends, model, task.round_num)
        if arrived:
            yield Updates.joined([one.applied_to(model, task.round_num) for one in arrived])
        failures = [Refusal(client, LATE) for client in sorted(refused)]
        for client in sorted(dropped_out):
            failures.append(Refusal(client, DROPPED_OUT, was_sent=False))
        if failures:
            yield Updates.failed(failures, model)
        self._clock.now = ends
        self._mark_clients_at_work()

    def _arrivals(self, clients: Sequence[int], task: Task) -> tuple[list[float], float]:
        """When the response of each client arrives, and when the last would without dropouts.

        Infinity: the client drops out.
        """
        devices = self._devices.of(clients)
        held = self.data.train_in(task.round_num)
        samples = task.training.epochs * held.sizes[list(clients)].double()
        seconds = devices.seconds(samples, FLOAT_BYTES * self.spec.size)
        keys = client_keys(self.seed, "dropout", task.round_num, clients)
        drawn = (mixed(keys) >> 11).double() / 2**53 + 0.5  # uniform in [0, 1)
        times = self._clock.now + seconds
        slowest = max(times.tolist(), default=self._clock.now)
        return times.masked_fill(drawn < devices.dropout, torch.inf).tolist(), slowest

    def _in_time(
        self,
        updates: Updates,
        arrives: Mapping[int, float],
        ends: float,
        model: Tensor,
        round_num: int,
    ) -> Updates:
        """The updates that arrive before the round ends; the others are kept for later rounds."""
        times = [arrives[client] for client in updates.client_ids]
        arrival = torch.tensor(times, dtype=torch.float64)
        updates = replace(updates, seconds=arrival - self._clock.now)
        late = arrival > ends
        if updates.models.shape[1] != len(model) or not bool(late.any()):
            return updates  # a model of another size will be refused in any case
        for row in late.nonzero().flatten().tolist():
            one = updates.select(torch.arange(len(late)) == row)
            moved = replace(one, models=one.models - model, failures=())
            self._late.append(_Late(moved, float(arrival[row]), round_num))
        return replace(updates.select(~late), failures=updates.failures)

    def _mark_clients_at_work(self) -> None:
        self._clock.at_work = frozenset(one.update.client_ids[0] for one in self._late)

    def state(self) -> dict[str, Tensor]:
        """See `core.engine.Engine`: also the time, and the updates that are still to arrive."""
        kept = {"now": torch.tensor(self._clock.now, dtype=torch.float64)}
        if self._late:
            updates = Updates.joined([one.update for one in self._late])
            arrives = [one.arrives for one in self._late]
            kept |= {
                "clients": torch.tensor(updates.client_ids),
                "moved": updates.models,
                "training_loss": updates.training_loss,
                "seconds": updates.seconds,
                "arrives": torch.tensor(arrives, dtype=torch.float64),
                "asked_in": torch.tensor([one.asked_in for one in self._late]),
            }
            for name, values in updates.measurements.items():
                kept[MEASURED + name] = values
        return self.inner.state() | {STATE + name: value for name, value in kept.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `core.engine.Engine`."""
        of_inner: dict[str, Tensor] = {}
        kept: dict[str, Tensor] = {}
        for name, tensor in state.items():
            if name.startswith(STATE):
                kept[name.removeprefix(STATE)] = tensor.cpu()
            else:
                of_inner[name] = tensor
        self.inner.load_state(of_inner)
        if "now" not in kept:
            raise ClientwiseError(
                "the checkpoint is of a run without devices, so it has no clock to continue from"
            )
        self._clock.now = float(kept["now"])
        self._late = list(self._restored(kept)) if "clients" in kept else []
        self._mark_clients_at_work()

    def _restored(self, kept: Mapping[str, Tensor]) -> Iterator[_Late]:
        """The late updates of a checkpoint."""
        measured = {
            name.removeprefix(MEASURED): values
            for name, values in kept.items()
            if name.startswith(MEASURED)
        }
        updates = Updates(
            tuple(kept["clients"].tolist()),
            kept["moved"].to(self.device),
            measured,
            kept["training_loss"],
            kept["seconds"],
        )
        for row, arrives in enumerate(kept["arrives"].tolist()):
            one = updates.select(torch.arange(len(updates.client_ids)) == row)
            yield _Late(one, arrives, int(kept["asked_in"][row]))

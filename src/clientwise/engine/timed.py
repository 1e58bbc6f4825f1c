"""Clients whose devices take time, on a virtual clock: who answers too late is refused, or counts in a later round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.clock import DROPPED_OUT, LATE, Clock, Pace
from ..core.seeding import client_keys, mixed
from ..core.types import Refusal, Task, Updates
from ..errors import ClientwiseError
from .local import LocalEngine

STATE, MEASURED = "clock.", "clock.measured."  # before the names of what a checkpoint keeps of the clock


@dataclass(frozen=True)
class _Late:
    """An update that counts in a later round."""

    update: Updates  # of one client; its `models` say how far it moved [1, d] from the model it was sent
    arrives: float
    asked_in: int  # round

    def now(self, model: Tensor, round_num: int) -> Updates:
        """What it makes of the present model [d]."""
        age = torch.tensor([float(round_num - self.asked_in)], dtype=torch.float64)
        return replace(self.update, models=model + self.update.models, ages=age)


class TimedEngine(LocalEngine):
    """The embedded engine with a clock.

    Who answers when is known before anybody trains: who would be refused for it does not train at all.
    """

    def __init__(self, *given: Any, pace: Pace, **options: Any) -> None:
        super().__init__(*given, **options)
        assert self.data.devices is not None, "devices are drawn with the data"
        self._devices = self.data.devices
        self.clock = self._clock = Clock(self.num_clients, pace, self._devices)
        self._late: list[_Late] = []

    def train(self, client_ids: Sequence[int], model: Tensor, task: Task) -> Iterator[Updates]:
        """See `core.types.Engine`; `seconds` are those of the clock, on which the round ends when the pace says so."""
        times, slowest = self._arrivals(client_ids, task)
        arrives = dict(zip(client_ids, times, strict=True))
        ends = self._clock.ends(times, [one.arrives for one in self._late], slowest)
        gone = {client for client, time in arrives.items() if time == torch.inf}
        refused = {client for client, time in arrives.items() if time > ends and not self._clock.pace.keeps_late} - gone
        arrived = [one for one in self._late if one.arrives <= ends]
        self._late = [one for one in self._late if one.arrives > ends]
        training = [client for client in client_ids if client not in gone | refused]
        for updates in super().train(training, model, task) if training else ():
            yield self._in_time(updates, arrives, ends, model, task.round_num)
        if arrived:
            yield Updates.joined([one.now(model, task.round_num) for one in arrived])
        dropped_out = [Refusal(client, DROPPED_OUT, was_sent=False) for client in sorted(gone)]
        if failures := [Refusal(client, LATE) for client in sorted(refused)] + dropped_out:
            yield Updates.failed(failures, model)
        self._clock.now = ends
        self._tell_who_is_at_work()

    def _arrivals(self, clients: Sequence[int], task: Task) -> tuple[list[float], float]:
        """When the answers of these clients come; infinity: never. And when the last would, if nobody dropped out."""
        devices = self._devices.of(clients)
        samples = task.training.epochs * self._sizes[list(clients)].double()
        seconds = devices.seconds(samples, 4 * self.spec.size)
        drawn = (mixed(client_keys(self._seed, "dropout", task.round_num, clients)) >> 11).double() / 2**53 + 0.5
        times = self._clock.now + seconds
        slowest = max(times.tolist(), default=self._clock.now)
        return times.masked_fill(drawn < devices.dropout, torch.inf).tolist(), slowest

    def _in_time(
        self, updates: Updates, arrives: Mapping[int, float], ends: float, model: Tensor, round_num: int
    ) -> Updates:
        """Those of the updates that come before the round ends; the others are kept."""
        times = torch.tensor([arrives[client] for client in updates.client_ids], dtype=torch.float64)
        updates = replace(updates, seconds=times - self._clock.now)
        late = times > ends
        if updates.models.shape[1] != len(model) or not bool(late.any()):
            return updates  # a model of another size will be refused in any case
        for row in late.nonzero().flatten().tolist():
            one = updates.select(torch.arange(len(late)) == row)
            moved = replace(one, models=one.models - model, failures=())
            self._late.append(_Late(moved, float(times[row]), round_num))
        return replace(updates.select(~late), failures=updates.failures)

    def _tell_who_is_at_work(self) -> None:
        self._clock.at_work = frozenset(one.update.client_ids[0] for one in self._late)

    def state(self) -> dict[str, Tensor]:
        """See `core.types.Engine`: what time it is, and the updates that are still to come."""
        kept = {f"{STATE}now": torch.tensor(self._clock.now, dtype=torch.float64)}
        if self._late:
            updates = Updates.joined([one.update for one in self._late])
            kept |= {
                f"{STATE}clients": torch.tensor(updates.client_ids),
                f"{STATE}moved": updates.models,
                f"{STATE}training_loss": updates.training_loss,
                f"{STATE}seconds": updates.seconds,
                f"{STATE}arrives": torch.tensor([one.arrives for one in self._late], dtype=torch.float64),
                f"{STATE}asked_in": torch.tensor([one.asked_in for one in self._late]),
                **{f"{MEASURED}{name}": values for name, values in updates.measurements.items()},
            }
        return super().state() | kept

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `core.types.Engine`."""
        super().load_state({name: tensor for name, tensor in state.items() if not name.startswith(STATE)})
        kept = {name.removeprefix(STATE): tensor.cpu() for name, tensor in state.items() if name.startswith(STATE)}
        if "now" not in kept:
            raise ClientwiseError("the checkpoint is of a run without devices: nobody knows what time it was")
        self._clock.now = float(kept["now"])
        measured = {
            name.removeprefix(MEASURED): values.cpu() for name, values in state.items() if name.startswith(MEASURED)
        }
        self._late = [
            _Late(
                Updates(
                    (int(client),),
                    kept["moved"][row : row + 1].to(self.device),
                    {name: values[row : row + 1] for name, values in measured.items()},
                    kept["training_loss"][row : row + 1],
                    kept["seconds"][row : row + 1],
                ),
                float(kept["arrives"][row]),
                int(kept["asked_in"][row]),
            )
            for row, client in enumerate(kept.get("clients", ()))
        ]
        self._tell_who_is_at_work()

"""Criteria of a client's device and of time: what the device can do, and when its updates arrive."""

from __future__ import annotations

import torch
from torch import Tensor

from ...registry import NonNegativeFloat, PositiveFloat
from ..clock import Devices
from .base import Arrivals, ClientFacts, Outcome, criterion


@criterion("compute_speed", measured_by="client", high=1.0, needs={"clock"})
def compute_speed(clients: ClientFacts, *, fast: PositiveFloat = 1000.0) -> Tensor:
    """Training samples per second, divided by `fast`; 1 at most.

    Args:
        clients: n clients with devices, or with training times of their own.
        fast: samples per second from which on more does not count.

    Returns:
        Values [n] in [0, 1].
    """
    training = clients.training
    seconds = clients.seconds
    if clients.device is None and seconds is not None and training is not None:
        # By its own clock
        speed = training.epochs * clients.num_samples / seconds.clamp(min=1e-6)
    else:
        speed = _device(clients, "compute_speed").speed
    return (speed / fast).clamp(max=1.0)


@criterion("connection", measured_by="client", high=1.0, needs={"clock"})
def connection(clients: ClientFacts, *, fast: PositiveFloat = 1e6) -> Tensor:
    """Bytes per second, harmonic mean of down and up, divided by `fast`; 1 at most.

    Args:
        clients: n clients with devices.
        fast: bytes per second from which on more does not count.

    Returns:
        Values [n] in [0, 1].
    """
    device = _device(clients, "connection")
    both_ways = 2 / (1 / device.up + 1 / device.down)
    return (both_ways / fast).clamp(max=1.0)


@criterion("availability", measured_by="client", high=1.0, needs={"clock"})
def availability(clients: ClientFacts) -> Tensor:
    """Share of the day in which a client is available.

    Returns:
        Values [n] in [0, 1].
    """
    return _device(clients, "availability").available_hours / 24


@criterion("battery_level", measured_by="client", high=1.0, needs={"clock"})
def battery_level(clients: ClientFacts) -> Tensor:
    """Remaining share of the device's battery.

    Returns:
        Values [n] in [0, 1].
    """
    return _device(clients, "battery_level").battery


def _device(clients: ClientFacts, criterion: str) -> Devices:
    if clients.device is None:
        raise KeyError(f"{criterion} needs to know the clients' devices: see docs/devices.md")
    return clients.device


@criterion("response_time", measured_by="server", high=1.0, needs={"clock"})
def response_time(arrivals: Arrivals, *, half: PositiveFloat = 60.0) -> Tensor:
    """1/(1 + t/`half`) for a response after t seconds by the server's clock: 1 at once, 1/2 after `half` seconds.

    Args:
        arrivals: n clients with response times.
        half: seconds after which the value is 1/2.

    Returns:
        Values [n] in (0, 1].
    """
    if arrivals.seconds is None:
        raise KeyError("response_time needs a server that measures response times")
    return 1 / (1 + arrivals.seconds / half)


@criterion("staleness", measured_by="server", high=1.0, needs={"clock"})
def staleness(arrivals: Arrivals, *, power: NonNegativeFloat = 0.5) -> Tensor:
    """(1 + age)^−`power` for an update that was begun `age` rounds ago: 1 for one of this round (FedBuff).

    Args:
        arrivals: n updates and their ages in rounds.
        power: how fast the value falls with the age; 0: not at all.

    Returns:
        Values [n] in (0, 1].
    """
    if arrivals.ages is None:
        raise KeyError("staleness needs a server that knows the ages of updates")
    return (1 + arrivals.ages) ** -power


class Timeliness:
    """timeliness ← 0.8·timeliness + 0.2·(1 if in time); starts at 1."""

    def first(self, num_clients: int) -> Tensor:
        """1 for every client [K]."""
        return torch.ones(num_clients)

    def after(self, remembered: Tensor, outcome: Outcome) -> Tensor:
        """The timeliness [K] of all clients after a round."""
        result = remembered.clone()
        answered = (*outcome.client_ids, *outcome.refused)
        asked = [client for client in answered if 0 <= client < len(result)]
        in_time = [client for client in outcome.client_ids if client not in outcome.late]
        result[asked] *= 0.8
        result[in_time] += 0.2
        return result


@criterion("timeliness", measured_by="server", high=1.0, needs={"clock"}, memory=Timeliness())
def timeliness(arrivals: Arrivals) -> Tensor:
    """Running mean of how often a client responded within its round and was not refused; starts at 1.

    After a round, timeliness ← 0.8·timeliness + 0.2 for clients that responded in time. It is
    0.8·timeliness for clients that were late, dropped out or were refused.

    Returns:
        Values [n] in [0, 1].
    """
    return arrivals.memory["timeliness"]

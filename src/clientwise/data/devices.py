"""The clients' devices: speed, bandwidth and availability, drawn from distributions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import MaxLen, MinLen
from torch import Tensor

from ..core.clock import Devices
from ..core.seeding import generator
from ..registry import (
    NonNegativeFloat,
    PositiveFloat,
    Registry,
)
from .folder import DataError

FASTEST = 1e15  # samples or bytes per second


@dataclass(frozen=True)
class DeviceFact:
    """A fact about a client's device: its range, its default and its meaning in the config."""

    low: float
    high: float
    default: float
    meaning: str


# The config's [devices] table is made from these.
DEVICE_FACTS = {
    "speed": DeviceFact(1e-6, FASTEST, 100.0, "Trained samples per second."),
    "up": DeviceFact(1e-6, FASTEST, 1e6, "Uploaded bytes per second."),
    "down": DeviceFact(1e-6, FASTEST, 1e6, "Downloaded bytes per second."),
    "available_from": DeviceFact(
        0.0, 24.0, 0.0, "Hour of the day, 0 to 24, from which the client is available."
    ),
    "available_hours": DeviceFact(1e-3, 24.0, 24.0, "Hours per day for which it is available."),
    "dropout": DeviceFact(0.0, 1.0, 0.0, "Probability that a client does not answer."),
    "battery": DeviceFact(
        0.0, 1.0, 1.0, "Battery charge, 0 to 1, for the criterion `battery_level`."
    ),
}

# From shares [K] between 0 and 1, drawn uniformly, to values [K]
Distribution = Callable[[Tensor], Tensor]
DISTRIBUTIONS: Registry[Callable[..., Tensor]] = Registry(
    "distribution", "distributions", "Distributions of facts about the clients' devices"
)


@DISTRIBUTIONS.register("constant")
def constant(drawn: Tensor, *, value: NonNegativeFloat) -> Tensor:
    """The same value for all clients; a plain number in the config means this.

    Args:
        drawn: uniform numbers between 0 and 1, [K].
        value: of every client.
    """
    return torch.full_like(drawn, value)


@DISTRIBUTIONS.register("uniform")
def uniform(drawn: Tensor, *, low: NonNegativeFloat, high: NonNegativeFloat) -> Tensor:
    """Uniform between `low` and `high`.

    Args:
        drawn: uniform numbers between 0 and 1, [K].
        low: the smallest value.
        high: the largest value.

    Example:
        >>> uniform(torch.tensor([0.0, 0.5]), low=2.0, high=4.0)
        tensor([2., 3.])
    """
    if low > high:
        raise DataError(f"uniform: low = {low:g} is above high = {high:g}")
    return low + (high - low) * drawn


@DISTRIBUTIONS.register("lognormal")
def lognormal(drawn: Tensor, *, median: PositiveFloat, sigma: NonNegativeFloat = 1.0) -> Tensor:
    """Log-normal: median · exp(sigma · ξ) with standard normal ξ.

    With `sigma` 1, a sixth of the clients are more than 2.7 times below the median and a sixth above.

    Args:
        drawn: uniform numbers between 0 and 1, [K].
        median: half of the clients are below it.
        sigma: standard deviation of the logarithm.
    """
    normal: Tensor = torch.special.ndtri(drawn.clamp(1e-12, 1 - 1e-12))
    return median * (sigma * normal).exp()


@DISTRIBUTIONS.register("kinds")
def kinds(
    drawn: Tensor, *, values: Annotated[list[NonNegativeFloat], MinLen(1), MaxLen(10_000)]
) -> Tensor:
    """One of the `values`, with equal probability: with [10, 10, 10, 100] three of four clients have 10.

    Args:
        drawn: uniform numbers between 0 and 1, [K].
        values: the kinds of devices; repeat a value to make it more frequent.

    Example:
        >>> kinds(torch.tensor([0.1, 0.9]), values=[10.0, 100.0])
        tensor([ 10., 100.])
    """
    return torch.tensor(values, dtype=drawn.dtype)[(drawn * len(values)).long()]


def draw_devices(
    num_clients: int,
    seed: int,
    distributions: Mapping[str, Distribution],
) -> Devices:
    """The devices of a seed."""
    facts: dict[str, Tensor] = {}
    for name, fact in DEVICE_FACTS.items():
        random = generator(seed, f"device {name}")
        shares = torch.rand(num_clients, generator=random, dtype=torch.float64)
        values = facts[name] = distributions[name](shares)
        wrong = values[~((values >= fact.low) & (values <= fact.high))]
        if len(wrong):
            raise DataError(
                f"{name} = {float(wrong[0]):g} of a client's device is outside [{fact.low:g}, {fact.high:g}]"
            )
    return Devices(**facts)

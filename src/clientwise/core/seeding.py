"""Every random draw comes from a generator derived from (seed, purpose, round, client), never from shared state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive_seed(seed: int, purpose: str, *numbers: int) -> int:
    """A 63-bit seed that depends on all arguments and on nothing else.

    >>> derive_seed(1, "batches", 3, 7) == derive_seed(1, "batches", 3, 7)
    True
    >>> derive_seed(1, "batches", 3, 7) == derive_seed(1, "batches", 7, 3)
    False
    """
    text = "/".join([str(seed), purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """A CPU generator of its own for one purpose; draws are made on the CPU so that every device sees the same."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, *numbers))


@contextmanager
def seeded_default_generator(
    seed: int, purpose: str, *numbers: int, device: torch.device | None = None
) -> Iterator[None]:
    """For code that can only draw from PyTorch's default generator (module initialisation, `nn.Dropout`).

    The default generator is put back afterwards.
    """
    devices = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(derive_seed(seed, purpose, *numbers))
        yield

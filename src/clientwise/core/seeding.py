"""Every random draw is derived from (seed, purpose, round, client), never from shared state.

Draws for one thing come from a generator of its own. Draws for many clients at once (batches, dropout) are counted,
not drawn one after the other: number i of a client is a hash of (its key, i), so they are the same for one client at a
time or a thousand together, on every device.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy
import torch
from torch import Tensor

# PyTorch has one for all threads: whoever seeds it has it alone
_default_generator = threading.RLock()


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

    The default generator is put back afterwards. Threads wait for each other.
    """
    devices = [device] if device is not None and device.type == "cuda" else []
    with _default_generator, torch.random.fork_rng(devices=devices):
        derived = derive_seed(seed, purpose, *numbers)
        if device is None:
            draws_on_cpu = not torch.cuda.is_available()
        else:
            draws_on_cpu = device.type == "cpu"
        if draws_on_cpu:
            # `torch.manual_seed` writes down the whole stack, once for every kind of device there is
            torch.default_generator.manual_seed(derived)
        else:
            torch.manual_seed(derived)
        yield


def mixed(numbers: Tensor) -> Tensor:
    """A 64-bit hash of every number (int64, any shape): SplitMix64, which passes the usual tests of randomness.

    >>> mixed(torch.tensor([0, 1])).tolist()
    [-2152535657050944081, -7995527694508729151]
    """
    numbers = numbers - 0x61C8864680B583EB
    numbers = (
        numbers ^ ((numbers >> 30) & 0x3FFFFFFFF)
    ) * -0x40A7B892E31B1A47  # masks: >> keeps the sign
    numbers = (numbers ^ ((numbers >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return numbers ^ ((numbers >> 31) & 0x1FFFFFFFF)


def client_keys(seed: int, purpose: str, round_num: int, clients: Sequence[int]) -> Tensor:
    """A key [n] for every client, from which `mixed` makes as many numbers as needed."""
    return mixed(torch.tensor(clients, dtype=torch.int64) + derive_seed(seed, purpose, round_num))


def uniform(key: bytes, purpose: str, size: int) -> Tensor:
    """Numbers [size] in [0, 1), multiples of 2⁻⁵³, from the bits of SHAKE-256 of a key and a purpose.

    Without the key they cannot be told from random ones. With it they can be computed again.
    """
    bits = hashlib.shake_256(key + b"/" + purpose.encode()).digest(8 * size)
    whole = numpy.frombuffer(bits, dtype="<u8") >> 11
    return torch.from_numpy(whole * 2.0**-53)


def standard_normal(key: bytes, purpose: str, size: int) -> Tensor:
    """Gaussian numbers [size] in float64, made of `uniform` ones by Box and Muller.

    >>> abs(float(standard_normal(b"key", "noise", 10_000).std()) - 1) < 0.02
    True
    """
    half = -(-size // 2)
    radii, turns = uniform(key, purpose, 2 * half).chunk(2)
    radii = (-2 * (1 - radii).log()).sqrt()
    angles = 2 * math.pi * turns
    return torch.cat([radii * angles.cos(), radii * angles.sin()])[:size]

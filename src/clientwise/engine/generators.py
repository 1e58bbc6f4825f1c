"""Random numbers for code of a user that draws from generators of the whole process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch

from ..core.seeding import derive_seed, seeded_default_generator


@contextmanager
def seeded_generators(seed: int, purpose: str, device: torch.device) -> Iterator[None]:
    """Seed PyTorch's default generator, `random` and `numpy.random`, and put them back afterwards."""
    drawn = derive_seed(seed, purpose)
    with seeded_default_generator(seed, purpose, device=device):
        before = random.getstate(), numpy.random.get_state()
        random.seed(drawn)
        numpy.random.seed(drawn % 2**32)
        try:
            yield
        finally:
            random.setstate(before[0])
            numpy.random.set_state(before[1])

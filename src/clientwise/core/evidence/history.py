"""A client's own past as a witness, and copies of an update: both from small sketches of the updates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ...registry import needs
from ..types import Gathered, LookBack, Posterior
from .base import EVIDENCE, Evidence, PageTest, StandardErrors, Strength, enlist, with_rows

SKETCH = 256  # numbers; the cosine of two sketches has a standard error of 1/√256
KEPT = 0.7  # of the past direction, when an update is added to it
LEAST_TIMES = 2  # updates before this one, without which a past says nothing
OPPOSITE = 0.5  # a cosine to the past below −0.5 (an angle above 120°) is against it
LARGEST_COSINE = 0.999  # Fisher's transformation is infinite at 1
AT_ONCE = 1024  # clients whose sketches are made and compared at a time
COPY = 0.9  # cosine above which two updates count as one
SIGNS_SEED = 7  # the same signs in every run, so that checkpoints stay valid


def sketch(updates: Tensor) -> Tensor:
    """Directions of updates in few numbers (count sketch, Charikar et al., 2002).

    Coordinate i is added to slot i mod 256 with a random sign that is the same for all clients. The
    cosine of two sketches estimates the cosine of the updates with a standard error of 1/16.

    Args:
        updates: one update a row, [n, d].

    Returns:
        Unit vectors [n, 256]; zeros for an update of zeros.

    Example:
        >>> one = torch.randn(1, 5000, generator=torch.Generator().manual_seed(1))
        >>> opposite = torch.cat([one, -2 * one])
        >>> float((sketch(opposite)[0] * sketch(opposite)[1]).sum().round(decimals=4))
        -1.0
    """
    signs = _signs(updates.shape[1], updates.device).to(updates)
    slots = torch.cat([_slots(some, signs) for some in torch.split(updates, AT_ONCE)])
    return torch.nn.functional.normalize(slots.nan_to_num(), dim=1)


def _slots(updates: Tensor, signs: Tensor) -> Tensor:
    count, size = updates.shape
    padded = updates.new_empty(count, size + -size % SKETCH)
    torch.mul(updates, signs, out=padded[:, :size])
    padded[:, size:] = 0
    return padded.reshape(count, -1, SKETCH).sum(1)


@lru_cache(8)
def _signs(size: int, device: torch.device) -> Tensor:
    """The same on every device; made and moved there once."""
    generator = torch.Generator().manual_seed(SIGNS_SEED)
    signs = 2 * torch.randint(2, (size,), generator=generator, dtype=torch.int8) - 1
    return signs.to(device)


def count_copies(sketches: Tensor) -> Tensor:
    """How many updates of the cohort point in almost the same direction as each one, itself included [n].

    Clients that send the same vector, as in ALIE or mimicry, have cosines near 1. Honest clients that
    train on different samples rarely exceed 0.9.
    """
    # In parts: all pairs of 10,000 clients would take 400 MB
    parts = [(some @ sketches.T > COPY).sum(1) for some in torch.split(sketches, AT_ONCE)]
    return torch.cat(parts).clamp(min=1).double()


@dataclass(frozen=True)
class History:
    """Past directions of the clients that were seen, and of no others."""

    ids: Tensor  # [s] clients, in the order in which they were first seen
    past: Tensor  # [s, 256] decayed mean of their sketches
    times: Tensor  # [s] updates that went into it

    @staticmethod
    def read(memory: Mapping[str, Tensor]) -> History:
        """From what the evidence keeps between rounds; empty before the first."""
        ids = memory.get("history.ids", torch.zeros(0, dtype=torch.int64))
        past = memory.get("history.past", torch.zeros(0, SKETCH))
        times = memory.get("history.times", torch.zeros(0, dtype=torch.int64))
        return History(ids.cpu(), past.cpu(), times.cpu())

    def as_memory(self) -> dict[str, Tensor]:
        """What `read` reads."""
        return {"history.ids": self.ids, "history.past": self.past, "history.times": self.times}

    def including(self, client_ids: Sequence[int]) -> tuple[History, Tensor]:
        """With an empty row for each client that was not seen before, and the rows of these clients [n]."""
        ids, rows = enlist(self.ids, client_ids)
        if len(ids) == len(self.ids):
            return self, rows
        past = with_rows(self.past, len(ids), torch.zeros(SKETCH))
        times = with_rows(self.times, len(ids), torch.tensor(0))
        return History(ids, past, times), rows

    def z(self, rows: Tensor, sketches: Tensor) -> Tensor:
        """How far updates point against the own past, in standard errors [n].

        z = (atanh(−cos) − atanh(½))·√(s − 3): Fisher's test that the cosine of update and past is below
        −½, where s is the number of slots that the model fills. A client whose data change often turns
        by more than 90°, a reversed update by almost 180°. NaN for a client with fewer than two
        earlier updates.
        """
        cosine = torch.nn.functional.cosine_similarity(sketches, self.past[rows], dim=1).double()
        turned = (-cosine).clamp(-LARGEST_COSINE, LARGEST_COSINE).atanh()
        filled = int((sketches != 0).any(0).sum())  # a model of few parameters leaves slots empty
        z = (turned - math.atanh(OPPOSITE)) * max(filled - 3, 0) ** 0.5
        return torch.where(self.times[rows] >= LEAST_TIMES, z, torch.nan)

    def extended(self, rows: Tensor, sketches: Tensor, z: Tensor) -> History:
        """With the updates that are not against the past: a client that turns cannot rewrite it."""
        agrees = ~(z > 0)
        past = self.past.clone()
        times = self.times.clone()
        here = rows[agrees]
        past[here] = KEPT * past[here] + (1 - KEPT) * sketches[agrees]
        times[here] += 1
        return History(self.ids, past, times)


def look_back(
    gathered: Gathered, memory: Mapping[str, Tensor], *, history: bool, copies: bool
) -> LookBack:
    """What the sketches of a round's updates tell.

    Args:
        gathered: the round.
        memory: what the evidence keeps between rounds.
        history: whether to compare each client with its own past.
        copies: whether to count almost equal updates.
    """
    if not history and not copies:
        return LookBack()
    sketches = sketch(gathered.updates[:, : gathered.spec.num_parameters])
    counts = count_copies(sketches) if copies else None
    if counts is not None:  # with the sketches: a GPU is waited for once
        both = torch.cat([sketches, counts[:, None].to(sketches)], dim=1).cpu()
        sketches, counts = both[:, :SKETCH], both[:, SKETCH].double()
    sketches = sketches.cpu()
    if not history:
        return LookBack(copies=counts)
    past, rows = History.read(memory).including(gathered.client_ids)
    z = past.z(rows, sketches)
    return LookBack(z, counts, past.extended(rows, sketches, z).as_memory())


def larger(held_out: Tensor | None, history: Tensor | None) -> Tensor | None:
    """The larger evidence against each client [n]; NaN is no evidence.

    Agreement with the past alone is no evidence in favour of a client.
    """
    if history is None:
        return held_out
    if held_out is None:
        return history.nan_to_num(nan=0.0).clamp(min=0)
    return torch.maximum(held_out, history.nan_to_num(nan=-torch.inf))


@EVIDENCE.register("history", needs("models"))
@dataclass(frozen=True)
class OwnPast(Evidence):
    """A client loses weight if its updates point against what it sent before; needs no held-out samples.

    z_k tests whether the angle between the update and the past is above 120°.
    Agreement with the past is no evidence in favour of a client, so a lost weight is not regained. A
    client that is hostile from its first round is not found.

    Args:
        threshold: in standard errors.
        slack: in standard errors per round.
        strength: how fast evidence beyond the threshold changes log-weights.
    """

    threshold: StandardErrors = 2.0
    slack: StandardErrors = 3.0
    strength: Strength = 0.5

    def first(self, num_clients: int) -> dict[str, Tensor]:
        """No evidence on any client."""
        return PageTest.first(num_clients)

    def __call__(
        self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]
    ) -> Posterior:
        """See the class."""
        rows = torch.tensor(gathered.client_ids, dtype=torch.int64)
        past = look_back(gathered, memory, history=True, copies=False)
        test = PageTest(self.threshold, self.slack, self.strength)
        return test.posterior(rows, prior, larger(None, past.z), memory, past)

"""Weights fall only for clients whose updates point against what they sent before: no held-out samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...registry import needs
from ..types import Gathered, Posterior
from .history import larger, look_back
from .page import PageTest, StandardErrors, Strength
from .protocol import EVIDENCE, Evidence


@EVIDENCE.register("history", needs("models"))
@dataclass(frozen=True)
class OwnPast(Evidence):
    """A client loses weight if its updates point against what it sent before; needs no held-out samples.

    z_k tests whether the angle between the update and the past is above 120°; see `history.py`.
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

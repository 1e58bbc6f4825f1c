"""Weights fall for clients whose past updates point the same way (FoolsGold)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...registry import PositiveFloat, needs
from ..robust import gram
from ..types import Gathered, Posterior
from ..weighting import to_weights
from .protocol import EVIDENCE, Evidence
from .seen import enlist, with_rows

SMALLEST = 1e-300


@EVIDENCE.register("foolsgold", needs("models"))
@dataclass(frozen=True)
class FoolsGold(Evidence):
    """Less weight for clients whose sums of updates are similar, as those of colluders are (Fung et al., 2020).

    H_a is the sum of all updates of client a. With c_ab = cos(H_a, H_b) and v_a = max_b c_ab over the
    other clients of the round, pardoning and the logit are

        c_ab ← c_ab · v_a/v_b  where v_b > v_a,
        α_a = 1 − max_b c_ab,  divided by the largest α,
        α_a ← confidence · (ln(α_a/(1 − α_a)) + 0.5),  cut to [0, 1].

    Weights are the prior weights times α. If all α are 0, all weights are. The sums of the clients that
    were seen are kept: one model each. All parameters count as indicative features.

    Args:
        confidence: κ of the paper.
    """

    confidence: PositiveFloat = 1.0

    def __call__(
        self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]
    ) -> Posterior:
        """See the class."""
        updates = gathered.updates[:, : gathered.spec.num_parameters]
        ids, rows = enlist(memory.get("ids"), gathered.client_ids)
        sums = with_rows(memory.get("sums"), len(ids), torch.zeros_like(updates[0]))
        sums[rows] = (sums[rows] + updates).nan_to_num()  # a sum of huge updates stays finite
        present = prior > 0
        trust = torch.zeros_like(prior)
        trust[present] = distinctness(_cosines(sums[rows[present]]), self.confidence)
        after = {"ids": ids, "sums": sums}
        return Posterior(to_weights(prior * trust), after)


def distinctness(cosines: Tensor, confidence: float = 1.0) -> Tensor:
    """FoolsGold's α [n] from the cosines of all pairs [n, n].

    >>> distinctness(torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    tensor([0., 0., 1.], dtype=torch.float64)
    """
    others = cosines.double().clone().fill_diagonal_(0)
    nearest = others.amax(1)
    pardon = nearest[:, None] / nearest.clamp(min=SMALLEST)
    pardoned = others * pardon.clamp(max=1)
    alpha = (1 - pardoned.amax(1)).clamp(0, 1)
    alpha = alpha / alpha.max().clamp(min=SMALLEST)
    return (confidence * (alpha.logit() + 0.5)).clamp(0, 1)


def _cosines(vectors: Tensor) -> Tensor:
    products = gram(vectors).cpu()
    norms = products.diag().sqrt().clamp(min=SMALLEST)
    return products / norms[:, None] / norms

"""Weights fall for clients whose past updates point the same way (FoolsGold)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...registry import PositiveFloat, needs
from ..aggregation.robust import client_blocks, pair_blocks
from ..types import Gathered, Posterior
from ..weights.weighting import to_weights
from .protocol import EVIDENCE, Evidence, enlist, with_rows

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

    client_models: ClassVar[int] = 1
    confidence: PositiveFloat = 1.0

    def __call__(
        self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]
    ) -> Posterior:
        """See the class."""
        updates = gathered.updates[:, : gathered.spec.num_parameters]
        ids, rows = enlist(memory.get("ids"), gathered.client_ids)
        sums = with_rows(memory.get("sums"), len(ids), torch.zeros_like(updates[0]))
        sums.index_add_(0, rows.to(sums.device), updates).nan_to_num_()  # of huge updates: finite
        present = prior > 0
        trust = torch.zeros_like(prior)
        trust[present] = distinctness(sums[rows[present]], self.confidence)
        after = {"ids": ids, "sums": sums}
        return Posterior(to_weights(prior * trust), after)


def distinctness(vectors: Tensor, confidence: float = 1.0) -> Tensor:
    """FoolsGold's α [n] of vectors [n, d], by the cosines of all pairs.

    >>> distinctness(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]]))
    tensor([0., 0., 1.], dtype=torch.float64)
    """
    is_one_block = len(client_blocks(vectors)) == 1
    known = list(_cosines(vectors)) if is_one_block else None  # else computed twice
    nearest = torch.zeros(len(vectors), dtype=torch.float64)
    for _, cosines in known or _cosines(vectors):
        nearest = nearest.maximum(cosines.amax(1))
    largest = torch.zeros_like(nearest)
    for some, cosines in known or _cosines(vectors):
        pardon = nearest[:, None] / nearest[some].clamp(min=SMALLEST)
        largest = largest.maximum((cosines * pardon.clamp(max=1)).amax(1))
    alpha = (1 - largest).clamp(0, 1)
    alpha = alpha / alpha.max().clamp(min=SMALLEST)
    return (confidence * (alpha.logit() + 0.5)).clamp(0, 1)


def _cosines(vectors: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Some clients b, and cos(H_a, H_b) of all others a with them [n, c], on the CPU; 0 of each with itself."""
    for some, products, squares in pair_blocks(vectors):
        norms = squares.cpu().sqrt().clamp(min=SMALLEST)
        cosines = products.cpu() / norms[:, None] / norms[some]
        cosines[some].fill_diagonal_(0)
        yield some, cosines

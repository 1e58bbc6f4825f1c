"""Keeps the clients whose updates have usual directions and signs (AlignIns)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...registry import OpenShare, PositiveFloat, needs
from ..aggregation.robust import (
    TIE,
    column_blocks,
    cosines_to,
    weighted_median,
)
from ..types import Gathered, Posterior
from ..weights.weighting import to_weights
from .protocol import EVIDENCE, Evidence


@EVIDENCE.register("alignins", needs("models"))
@dataclass(frozen=True)
class AlignIns(Evidence):
    """Weight 0 for clients whose direction or signs deviate from the median client's (Xu et al., CVPR 2025).

    Two values are computed for every client:

    - temporal direction alignment: the cosine of its update with the global model;
    - masked principal sign alignment: of the `largest` share of its parameters by magnitude, the share
      whose sign is the principal sign, which most of the weight has.

    A client is kept if both values are within so many standard deviations of their median. The paper
    then clips the kept updates to their median norm: use it with `before = ["clip"]`. Medians, standard
    deviations and votes count clients by their weights.

    Args:
        direction: allowed deviation of the first value (the paper's λ_c, 1.0).
        signs: allowed deviation of the second value (the paper's λ_s, 1.0).
        largest: share of the parameters whose signs are compared (the paper's 0.3).
    """

    direction: PositiveFloat = 1.0
    signs: PositiveFloat = 1.0
    largest: OpenShare = 0.3

    def __call__(
        self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]
    ) -> Posterior:
        """See the class."""
        count = gathered.spec.num_parameters
        updates = gathered.updates[:, :count]
        temporal = deviations(cosines_to(gathered.global_model[:count], updates), prior)
        aligned = deviations(sign_alignment(updates, prior, self.largest), prior)
        kept = (temporal <= self.direction) & (aligned <= self.signs)
        return Posterior(to_weights(prior * kept))


def deviations(values: Tensor, weights: Tensor) -> Tensor:
    """|value − median| in standard deviations [n]: the paper's MZ-score; 0 where all values are equal.

    In float32, so that a value at the limit is not beyond it by rounding.

    >>> deviations(torch.tensor([1.0, 2.0, 3.0]), torch.full((3,), 1 / 3))
    tensor([1.2247, 0.0000, 1.2247])
    """
    values = values.double()
    weights = weights.double()
    spread = (weights @ (values - weights @ values).square()).sqrt()
    distances = (values - weighted_median(values, weights)).abs()
    return (distances / spread).nan_to_num(nan=0.0).float()


def sign_alignment(updates: Tensor, weights: Tensor, largest: float) -> Tensor:
    """Share of each client's largest parameters that have the principal sign [n].

    >>> sign_alignment(torch.tensor([[3.0, -1.0], [1.0, 2.0], [-5.0, 1.0]]), torch.full((3,), 1 / 3), 0.5)
    tensor([1., 1., 0.], dtype=torch.float64)
    """
    weights = weights.to(updates.device, torch.float64)
    votes = torch.cat([weights @ block.sign().double() for block in column_blocks(updates)])
    principal = torch.where(votes.abs() > TIE, votes.sign(), 0.0).to(updates.dtype)
    count = max(1, int(largest * updates.shape[1]))
    shares = []
    for row in updates:
        strongest = row.abs().topk(count).indices
        shares.append((row[strongest].sign() == principal[strongest]).double().mean())
    return torch.stack(shares).cpu()

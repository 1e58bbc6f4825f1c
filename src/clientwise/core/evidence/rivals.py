"""Rivals: evidence as other papers weigh clients by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from ...registry import OpenShare, PositiveFloat, needs
from ..aggregation.robust import (
    TIE,
    column_blocks,
    cosines_to,
    gram,
    weighted_median,
)
from ..types import Gathered, Posterior
from ..weights.weighting import to_weights
from .base import EVIDENCE, Evidence, enlist, with_rows


def _or_prior(scores: Tensor, prior: Tensor, why: str) -> Posterior:
    """Weights by these scores [n]; the prior, with a note why, where all are zero."""
    weights = to_weights(scores)
    if weights.any():
        return Posterior(weights)
    return Posterior(prior, notes=(f"{why}: the weights are those of the score",))


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


LARGEST = 1e6  # a loss that is not finite counts as this


@EVIDENCE.register("credibility", needs("models", "server_set", criteria=["start_loss"]))
@dataclass(frozen=True)
class Credibility(Evidence):
    """Prior · C with C = 1 − softmax(α·E), E the mutual cross-entropy (FOCUS, Chen et al., 2020).

    E_k = loss of client k's model on the server's set + loss of the global model on client k's
    samples. Wrong labels raise both. The softmax is over the clients of the round, so the
    credibilities of n clients sum to n − 1: of n clients with equal losses, each keeps its prior.

    Reads the criterion `start_loss`, which is the client's claim.

    Args:
        alpha: α; the larger, the more the highest E alone loses its weight.
    """

    judges_all: ClassVar[bool] = True

    alpha: PositiveFloat = 1.0  # α

    def __call__(
        self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]
    ) -> Posterior:
        """See the class."""
        models = gathered.global_model + gathered.updates
        on_server_set = gathered.judge(models).overall_loss().to(prior)
        on_own_samples = gathered.criteria["start_loss"].to(prior)
        trusted = prior * credibility(on_server_set + on_own_samples, self.alpha)
        return _or_prior(trusted, prior, "no client of the round has credibility")


def credibility(mutual: Tensor, alpha: float) -> Tensor:
    """1 − exp(αE_k)/Σ_i exp(αE_i) [n], for mutual cross-entropies E [n].

    >>> credibility(torch.tensor([1.0, 1.0, 1.0, 9.0]), alpha=1.0)
    tensor([0.9997, 0.9997, 0.9997, 0.0010])
    """
    finite = mutual.nan_to_num(nan=LARGEST, posinf=LARGEST).clamp(max=LARGEST)
    return 1 - torch.softmax(alpha * finite, dim=0)


SMALLEST = 1e-300


@EVIDENCE.register("foolsgold", needs("models", "pairs"))
@dataclass(frozen=True)
class FoolsGold(Evidence):
    """Less weight for clients whose sums of updates are similar, as those of colluders are (Fung et al., 2020).

    H_a is the sum of all updates of client a. With c_ab = cos(H_a, H_b) and v_a = max_b c_ab over the
    other clients of the round, pardoning and the logit are

        c_ab ← c_ab · v_a/v_b  where v_b > v_a,
        α_a = 1 − max_b c_ab,  divided by the largest α,
        α_a ← κ · (ln(α_a/(1 − α_a)) + 0.5),  cut to [0, 1].

    Weights are the prior weights times α. If all α are 0, all weights are. The sums of the clients that
    were seen are kept: one model each. All parameters count as indicative features.
    κ, the confidence, is 1.
    """

    client_models: ClassVar[int] = 1

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
        trust[present] = distinctness(sums[rows[present]])
        after = {"ids": ids, "sums": sums}
        return Posterior(to_weights(prior * trust), after)


def distinctness(vectors: Tensor) -> Tensor:
    """FoolsGold's α [n] of vectors [n, d], by the cosines of all pairs.

    >>> distinctness(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]]))
    tensor([0., 0., 1.], dtype=torch.float64)
    """
    products = gram(vectors).cpu()
    norms = products.diag().sqrt().clamp(min=SMALLEST)
    cosines = (products / norms[:, None] / norms).fill_diagonal_(0)
    nearest = cosines.amax(1).clamp(min=0)
    pardon = nearest[:, None] / nearest.clamp(min=SMALLEST)
    largest = (cosines * pardon.clamp(max=1)).amax(1).clamp(min=0)
    alpha = (1 - largest).clamp(0, 1)
    alpha = alpha / alpha.max().clamp(min=SMALLEST)
    return (alpha.logit() + 0.5).clamp(0, 1)


@EVIDENCE.register("law", needs("models", "server_samples"))
@dataclass(frozen=True)
class Law(Evidence):
    """Learns the γ and λ for which γ·Σ λ_a·Θ_a has the least loss on the server's set (FedLAW, Li et al., 2023).

    λ = softmax(x) starts at the weights of the score and γ = exp(s) at 1. Both are optimised by Adam. The
    gradient by λ_a is γ·⟨∇, Θ_a⟩, so a step costs one pass over the server's set, whatever the number of
    clients.

    Args:
        steps: number of Adam steps.
        learning_rate: of Adam.
    """

    steps: Annotated[int, Ge(1), Le(1_000)] = 50
    learning_rate: PositiveFloat = 0.01

    def __call__(
        self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]
    ) -> Posterior:
        """See the class."""
        count = gathered.spec.num_parameters
        logits = prior.log()
        log_scale = torch.zeros(1, dtype=torch.float64)
        adam = torch.optim.Adam([logits, log_scale], lr=self.learning_rate)
        for _ in range(self.steps):
            weights = logits.softmax(0)
            scale = log_scale.exp()
            mean = gathered.global_model + weights.to(gathered.updates) @ gathered.updates
            model = mean.clone()
            model[:count] *= float(scale)
            slope = gathered.gradient(model)
            of_updates = (gathered.updates @ slope).double().cpu()
            along = of_updates + float(gathered.global_model @ slope)  # ⟨∇, Θ_a⟩ [n]
            logits.grad = scale * weights * (along - weights @ along)
            log_scale.grad = scale * (weights @ along)
            adam.step()
        return Posterior(logits.softmax(0), scale=float(log_scale.exp()))

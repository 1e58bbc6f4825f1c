"""Published defences against backdoors that the library does not have: docs/results/backdoors.md."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Le
from sklearn.cluster import HDBSCAN
from torch import Tensor

from clientwise.core.aggregation.before import BEFORE, Mixed
from clientwise.core.aggregation.robust import combine, cosines_to
from clientwise.core.aggregation.rules import NOTHING, RULES, Ruled, State
from clientwise.core.evidence import EVIDENCE, Evidence
from clientwise.core.types import Gathered, Posterior
from clientwise.registry import NonNegativeFloat, needs

NOISE_SEED = 5


@EVIDENCE.register("flame", needs("models"))
class Flame(Evidence):
    """Only the largest cluster of update directions counts (FLAME, Nguyen et al., USENIX Security 2022).

    HDBSCAN on cosine distances, with clusters of more than half of the clients; the others are outliers.
    """

    def __call__(self, gathered: Gathered, prior: Tensor, memory: object) -> Posterior:
        """See the class."""
        updates = gathered.updates[:, : gathered.spec.num_parameters]
        cosines = torch.stack([cosines_to(one, updates) for one in updates]).double().cpu()
        distances = (1 - cosines).clamp(min=0).fill_diagonal_(0).nan_to_num(nan=2.0)
        count = len(distances)
        clusters = HDBSCAN(
            min_cluster_size=max(2, count // 2 + 1),
            min_samples=1,
            metric="precomputed",
            allow_single_cluster=True,
            copy=True,
        ).fit_predict(((distances + distances.T) / 2).numpy())
        kept = torch.tensor(clusters) >= 0
        if not kept.any():
            return Posterior(prior)
        weights = prior * kept
        return Posterior(weights / weights.sum() if weights.any() else prior)


@RULES.register("rlr", needs("models", "single_values"))
def robust_learning_rate(
    updates: Tensor,
    weights: Tensor,
    state: State = NOTHING,
    *,
    agreement: Annotated[float, Ge(0), Le(1)] = 0.4,
) -> Ruled:
    """The mean, reversed in coordinates whose signs agree too little (RLR, Ozdayi et al., AAAI 2021).

    Args:
        updates: one update a row, [n, d].
        weights: sum to 1, [n].
        state: unused.
        agreement: least |Σ_a w_a·sign Δ_a|, as a share of the clients.
    """
    agrees = combine(weights, updates.sign()).abs() >= agreement
    mean = combine(weights, updates)
    return Ruled(torch.where(agrees, mean, -mean).to(updates.dtype), weights)


@BEFORE.register("gaussian", needs("models"))
def gaussian(gathered: Gathered, weights: Tensor, *, deviation: NonNegativeFloat = 0.001) -> Mixed:
    """Noise for every update, so that their mean has the given deviation in units of the median norm.

    With clipping before it, this is weak differential privacy (Sun et al., 2019) and the last step of FLAME.

    Args:
        gathered: the updates [n, d].
        weights: of the clients [n].
        deviation: of the mean's noise, in units of the median norm of the updates.
    """
    count = len(gathered.updates)
    norm = gathered.updates.norm(dim=1).median()
    random = torch.Generator().manual_seed(NOISE_SEED + gathered.seed)
    noise = torch.randn(gathered.updates.shape, generator=random).to(gathered.updates)
    return Mixed(gathered.updates + deviation * norm * count**0.5 * noise, torch.ones(count))

"""Rivals: evidence as other papers weigh clients by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import comb
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from ...registry import NonNegativeFloat, OpenShare, PositiveFloat, needs
from ..aggregation.robust import (
    TIE,
    column_blocks,
    combine,
    cosines_to,
    gram,
    weighted_median,
)
from ..seeding import generator
from ..types import Gathered, Posterior
from ..weights.weighting import to_weights
from .base import EVIDENCE, Evidence, enlist, with_rows


def _or_prior(scores: Tensor, prior: Tensor, why: str) -> Posterior:
    """Weights by these scores [n]; the prior, with a note why, where all are zero."""
    weights = to_weights(scores)
    if weights.any():
        return Posterior(weights)
    return Posterior(prior, notes=(f"{why}: the weights are those of the score",))


@EVIDENCE.register("agnostic", needs("models", criteria=["start_loss"]))
@dataclass(frozen=True)
class Agnostic(Evidence):
    """λ ← λ + γ·loss, projected onto the simplex: weighs for the worst mixture of clients (AFL, Mohri et al., 2019).

    λ is remembered for all clients and starts equal, whatever the score says. A round weighs by the λ of
    the round before. Clients that are not asked keep their λ, so with small cohorts λ lags behind.

    Reads the criterion `start_loss`.

    Args:
        step: γ, how far a loss of 1 raises λ before the projection.
    """

    step: PositiveFloat = 0.1  # γ

    def first(self, num_clients: int) -> Mapping[str, Tensor]:
        """λ = 1/K for every client."""
        return {"lambda": torch.full((num_clients,), 1 / num_clients, dtype=torch.float64)}

    def __call__(
        self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]
    ) -> Posterior:
        """See the class."""
        rows = list(gathered.client_ids)
        before = memory["lambda"]
        risen = before.clone()
        risen[rows] += self.step * gathered.criteria["start_loss"]
        after = {"lambda": onto_simplex(risen)}
        why = "λ is zero for all clients of the round"
        return replace(_or_prior(before[rows], prior, why), memory=after)


def onto_simplex(values: Tensor) -> Tensor:
    """Project values [n] onto the simplex: coordinates of zero or more that sum to 1 (Duchi et al., 2008).

    >>> onto_simplex(torch.tensor([0.9, 0.5, -1.0]))
    tensor([0.7000, 0.3000, 0.0000])
    """
    excess = values.sort(descending=True).values.cumsum(0) - 1
    thresholds = excess / torch.arange(1, len(values) + 1)
    return (values - thresholds.max()).clamp(min=0)


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
    products = gram(vectors).cpu()
    norms = products.diag().sqrt().clamp(min=SMALLEST)
    cosines = (products / norms[:, None] / norms).fill_diagonal_(0)
    nearest = cosines.amax(1).clamp(min=0)
    pardon = nearest[:, None] / nearest.clamp(min=SMALLEST)
    largest = (cosines * pardon.clamp(max=1)).amax(1).clamp(min=0)
    alpha = (1 - largest).clamp(0, 1)
    alpha = alpha / alpha.max().clamp(min=SMALLEST)
    return (confidence * (alpha.logit() + 0.5)).clamp(0, 1)


@EVIDENCE.register("greedy", needs("models", "server_set"))
@dataclass(frozen=True)
class Greedy(Evidence):
    """From the best model on the server's set, adds the next best while their mean improves (FedGreed, 2025).

    Both this mean and the result are weighted by the score. Clients that are not chosen have weight 0.
    Source: Kritharakis et al., 2025.
    """

    judges_all: ClassVar[bool] = True

    def __call__(
        self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]
    ) -> Posterior:
        """See the class."""
        losses = gathered.judge(gathered.global_model + gathered.updates).overall_loss()
        candidates = [row for row in losses.argsort(stable=True).tolist() if prior[row] > 0]
        chosen = torch.zeros_like(prior)
        lowest = torch.inf
        for row in candidates:
            larger = chosen.clone()
            larger[row] = prior[row]
            mean = to_weights(larger).to(gathered.updates) @ gathered.updates
            loss = float(gathered.judge((gathered.global_model + mean)[None]).overall_loss())
            if not loss < lowest:
                break
            chosen = larger
            lowest = loss
        return _or_prior(chosen, prior, "no model has a finite loss on the server's set")


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


AT_ONCE = 64  # models judged together
RUINED = 10.0  # times the first loss: larger ones count as this much, or one client would dominate all values


@EVIDENCE.register("shapley", needs("models", "server_set"))
@dataclass(frozen=True)
class Shapley(Evidence):
    """Weights ∝ max(0, φ_a), the Shapley value of a client's update on the server's set (Wang et al., 2020).

    The worth v(S) of a coalition S is how far the mean of its updates, weighted by the score, lowers the
    loss. For cohorts of up to `exact` clients, all 2^n coalitions are evaluated. For larger ones, random
    orders are drawn (truncated Monte-Carlo, Ghorbani & Zou, 2019).

    Args:
        exact: largest cohort whose coalitions are all evaluated.
        orders: random orders that are drawn for larger cohorts.
        tolerance: an order ends once the remaining gain is below this fraction of the whole.
    """

    exact: Annotated[int, Ge(0), Le(12)] = 6
    orders: Annotated[int, Ge(1), Le(10_000)] = 10
    tolerance: NonNegativeFloat = 0.01

    def __call__(
        self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]
    ) -> Posterior:
        """See the class."""
        gains = self.values(gathered, prior).clamp(min=0)
        return _or_prior(gains, prior, "no client lowers the loss")

    def values(self, gathered: Gathered, prior: Tensor) -> Tensor:
        """Shapley values φ [n]; exact ones sum to the worth of the whole cohort."""
        count = len(prior)
        if count <= self.exact:
            return exact_shapley(_worth(gathered, prior, all_coalitions(count)))
        whole = float(_worth(gathered, prior, torch.ones(1, count, dtype=torch.int64)))
        values = torch.zeros(count, dtype=torch.float64)
        random = generator(gathered.seed, "shapley")
        for _ in range(self.orders):
            coalition = torch.zeros(1, count, dtype=torch.int64)
            before = 0.0
            for client in torch.randperm(count, generator=random).tolist():
                if abs(whole - before) < self.tolerance * abs(whole):
                    break
                coalition[0, client] = 1
                now = float(_worth(gathered, prior, coalition))
                values[client] += now - before
                before = now
        return values / self.orders


def _worth(gathered: Gathered, prior: Tensor, members: Tensor) -> Tensor:
    """How far each coalition [c, n] lowers the loss of the global model [c]; 0 for one whose score is zero."""
    weights = prior * members
    weights = weights / weights.sum(1, keepdim=True).clamp(min=1e-300)
    losses = []
    for some in torch.split(weights, AT_ONCE):
        models = gathered.global_model + some.to(gathered.updates) @ gathered.updates
        losses.append(gathered.judge(models).overall_loss())
    start = gathered.judge(gathered.global_model[None]).overall_loss()
    return start - torch.cat(losses).nan_to_num(torch.inf).minimum(RUINED * start)


def all_coalitions(count: int) -> Tensor:
    """Every coalition of so many players [2^n, n]; row i has player a if bit a of i is set."""
    return torch.arange(2**count)[:, None] >> torch.arange(count) & 1


def exact_shapley(worth: Tensor) -> Tensor:
    """Shapley values [n] from the worths of `all_coalitions` [2^n].

    φ_a = Σ over S without a of |S|!·(n−|S|−1)!/n! · (v(S ∪ a) − v(S))

    Example:
        >>> exact_shapley(torch.tensor([0.0, 1.0, 2.0, 4.0], dtype=torch.float64))
        tensor([1.5000, 2.5000], dtype=torch.float64)
    """
    count = len(worth).bit_length() - 1
    members = all_coalitions(count)
    codes = torch.arange(2**count)
    sizes = members.sum(1)
    values = []
    for player in range(count):
        without = codes[members[:, player] == 0]
        factors = [1 / (count * comb(count - 1, size)) for size in sizes[without].tolist()]
        gains = worth[without + 2**player] - worth[without]
        values.append(torch.tensor(factors, dtype=torch.float64) @ gains.double())
    return torch.stack(values)


REFERENCES = 10  # uniform samples of the gap statistic, as in the authors' code


@EVIDENCE.register("fldetector", needs("models"))
@dataclass(frozen=True)
class FLDetector(Evidence):
    """Removes clients whose updates deviate from predicted ones over `window` rounds (Zhang et al., KDD 2022).

    The prediction for client a, last asked when the model was Θ' and its update Δ'_a, is

        Δ̂_a = Δ'_a + H·(Θ − Θ').

    H is the Hessian that L-BFGS estimates from the changes of the model and of the mean update in the
    last `window` rounds. The distances ‖Δ̂_a − Δ_a‖ of a round are divided by their sum. A client's score is
    their mean over the last `window` rounds in which distances were computed. Once there were so many
    rounds, the gap statistic decides whether the scores form more than one cluster. If so, clients in the
    cluster with the larger mean (2-means) have weight 0 from then on. The others keep their prior weights.

    The paper restarts the training after a detection. Here it goes on, and the window of scores starts
    anew. Two models are kept for every
    client that was seen, and two for every round of the window.

    Args:
        window: N of the paper, in rounds.
    """

    client_models: ClassVar[int] = 2
    window: Annotated[int, Ge(1), Le(100)] = 10

    def __call__(
        self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]
    ) -> Posterior:
        """See the class."""
        count = gathered.spec.num_parameters
        updates = gathered.updates[:, :count]
        model = gathered.global_model[:count]
        ids, rows = enlist(memory.get("ids"), gathered.client_ids)
        after = dict(memory)
        after["ids"] = ids
        after["removed"] = with_rows(memory.get("removed"), len(ids), torch.tensor(False))
        unknown = torch.full((self.window,), torch.nan, dtype=torch.float64)
        after["scores"] = with_rows(memory.get("scores"), len(ids), unknown)
        self._score(after, rows, updates, model)
        notes = self._detect(after, gathered.seed)
        weights = to_weights(prior * ~after["removed"][rows])
        self._remember(after, rows, updates, model, combine(weights, updates))
        return Posterior(weights, after, notes=notes)

    def _score(
        self, memory: dict[str, Tensor], rows: Tensor, updates: Tensor, model: Tensor
    ) -> None:
        """Add the normalised distances of this round to the window."""
        if "steps" not in memory:
            return
        returning = (rows < len(memory["updates"])) & ~memory["removed"][rows]
        known = rows[returning]
        hessian = hessian_of(memory["steps"].to(model), memory["changes"].to(model))
        distances = [torch.zeros(0, dtype=torch.float64)]
        for row in returning.nonzero().flatten().tolist():
            last = memory["updates"][rows[row]].to(model)
            moved = model - memory["models"][rows[row]].to(model)
            error = last.double() + hessian(moved.double()) - updates[row].double()
            distances.append(error.norm().cpu()[None])
        found = torch.cat(distances)
        scores = memory["scores"].roll(-1, dims=1)
        scores[:, -1] = torch.nan
        scores[known, -1] = found / found.sum().clamp(min=torch.finfo(found.dtype).tiny)
        memory["scores"] = scores

    def _detect(self, memory: dict[str, Tensor], seed: int) -> tuple[str, ...]:
        """Remove the clients of the suspicious cluster, where there is one."""
        scores = memory["scores"]
        if not bool(scores[:, 0].isfinite().any()):  # the window is not full yet
            return ()
        scored = scores.isfinite().any(1) & ~memory["removed"]
        suspicious = torch.zeros_like(scored)
        suspicious[scored] = suspicious_cluster(scores[scored].nanmean(1), seed)
        if not suspicious.any():
            return ()
        memory["removed"] = memory["removed"] | suspicious
        memory["scores"] = torch.full_like(scores, torch.nan)
        return (f"FLDetector removed {int(suspicious.sum())} clients for all later rounds",)

    def _remember(
        self, memory: dict[str, Tensor], rows: Tensor, updates: Tensor, model: Tensor, mean: Tensor
    ) -> None:
        """Keep what the next predictions need."""
        total = len(memory["ids"])
        for name, values in (("updates", updates), ("models", model.expand_as(updates))):
            kept = with_rows(memory.get(name), total, torch.zeros_like(model))
            kept[rows] = values
            memory[name] = kept
        if "model" in memory:
            step = model - memory["model"]
            change = mean - memory["mean"]
            if bool(step.any()) and bool(change.isfinite().all()):
                memory["steps"] = self._appended(memory.get("steps"), step)
                memory["changes"] = self._appended(memory.get("changes"), change)
        memory["model"] = model.clone()
        memory["mean"] = mean

    def _appended(self, window: Tensor | None, row: Tensor) -> Tensor:
        if window is None:
            return row[None]
        return torch.cat([window.to(row.device), row[None]])[-self.window :]


def hessian_of(steps: Tensor, changes: Tensor) -> Callable[[Tensor], Tensor]:
    """The function v ↦ H·v of vectors [d] in float64.

    With S the steps of the model and Y the changes of the mean update, one a column, the compact form of
    BFGS (Byrd et al., 1994) is

        H·v = σ·v − [σS  Y] · [σSᵀS  L; Lᵀ  −D]⁻¹ · [σSᵀv; Yᵀv],    σ = yᵀs/sᵀs of the last round,

    where L is the strictly lower triangle of SᵀY and D its diagonal.

    Args:
        steps: Sᵀ, [m, d].
        changes: Yᵀ, [m, d].
    """
    size = len(steps)
    basis = torch.cat([steps, changes]).double()
    products = (basis @ basis.T).cpu()
    of_steps = products[:size, :size]  # SᵀS
    mixed = products[:size, size:]  # SᵀY
    sigma = mixed[-1, -1] / of_steps[-1, -1].clamp(min=torch.finfo(torch.float64).tiny)
    lower = mixed.tril(-1)
    upper_half = torch.cat([sigma * of_steps, lower], 1)
    lower_half = torch.cat([lower.T, -mixed.diag().diag()], 1)
    middle = torch.cat([upper_half, lower_half]).nan_to_num()
    scale = torch.cat([sigma.expand(size), torch.ones(size, dtype=torch.float64)])
    inverse = scale[:, None] * torch.linalg.pinv(middle, hermitian=True) * scale
    inverse = inverse.nan_to_num().to(basis.device)
    sigma = sigma.nan_to_num().to(basis.device)
    return lambda vector: sigma * vector - inverse @ (basis @ vector) @ basis


def suspicious_cluster(scores: Tensor, seed: int) -> Tensor:
    """Which scores [n] form a cluster of large ones; none where the gap statistic sees one cluster only.

    Scores are mapped to [0, 1]. V_k is the sum of squared distances to the nearest of k means, V*_k that
    of n uniform numbers. There is more than one cluster if Gap(1) < Gap(2) − s_2, with Gap(k) the mean of
    log V*_k − log V_k, and s_2 the standard error of log V*_2 (Tibshirani et al., 2001).

    >>> suspicious_cluster(torch.tensor([0.1, 0.11, 0.9, 0.12, 0.1, 0.91]), seed=1)
    tensor([False, False,  True, False, False,  True])
    >>> bool(suspicious_cluster(torch.tensor([0.1, 0.3, 0.5, 0.7]), seed=1).any())
    False
    """
    none = torch.zeros(len(scores), dtype=torch.bool)
    spread = scores.max() - scores.min()
    if len(scores) < 3 or not spread > 0:
        return none
    unit = ((scores - scores.min()) / spread).double()
    random = generator(seed, "gap statistic")
    uniform = torch.rand(REFERENCES, len(scores), generator=random, dtype=torch.float64)
    one, two, threshold = _one_and_two_means(torch.cat([unit[None], uniform]))
    gaps = []
    for squares in (one, two):
        logs = squares.log()
        gaps.append(logs[1:].mean() - logs[0])
    error = (1 + 1 / REFERENCES) ** 0.5 * two[1:].log().std(correction=0)
    if gaps[0] >= gaps[1] - error:
        return none
    return unit > threshold[0]


def _one_and_two_means(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """V_1 and V_2 of every row [r, n], and the largest number in the lower of its two clusters.

    In one dimension, the best two clusters are those below and above some number.
    """
    ordered = rows.sort(1).values
    count = rows.shape[1]
    below = torch.arange(1, count, dtype=torch.float64)
    sums = ordered.cumsum(1)
    totals = sums[:, -1:]
    explained = sums[:, :-1].square() / below + (totals - sums[:, :-1]).square() / (count - below)
    squares = ordered.square().sum(1)
    best, split = explained.max(1)
    one = (squares - totals[:, 0].square() / count).clamp(min=0)
    two = (squares - best).clamp(min=0)
    return one, two, ordered.gather(1, split[:, None])[:, 0]

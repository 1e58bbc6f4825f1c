"""Removes clients whose updates are not those that their past predicts (FLDetector)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from ...registry import needs
from ..aggregation.robust import combine
from ..seeding import generator
from ..types import Gathered, Posterior
from ..weights.weighting import to_weights
from .base import EVIDENCE, Evidence, enlist, with_rows

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

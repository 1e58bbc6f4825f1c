"""Forged models: of attackers that know nothing, and of those that see what the honest clients send.

Of the latter, x_1 ... x_h are the updates of the honest clients, μ their mean and σ their standard deviation by
coordinate. All hostile clients send the same vector; `spread` adds noise of each client, in multiples of σ.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from ..registry import (
    NonNegativeFloat,
    needs,
)
from .attack import (
    ATTACKS,
    Attack,
    Honest,
    Knowledge,
)

TURN_SEED = 11  # every attacker turns the same way, in every round
DEGREES, LENGTH = (
    15.0,
    2.0,
)  # of `slow_turn`: a round's turn, and the length of an update that points the opposite way
FIRST = 1e-3  # of `free_rider`: takes the place of |Θ − Θ'| in the first round, which has no Θ'


@ATTACKS.register("sign_flip")
@dataclass(frozen=True)
class SignFlip(Attack):
    """Sends the opposite of its update, `strength` times as large: Θ − strength·(Θ_a − Θ).

    Args:
        strength: factor, at least 0.

    Example:
        >>> zero, one = torch.zeros(2), torch.ones(2)
        >>> SignFlip(2.0).forge(Knowledge(one, zero, torch.Generator()))
        tensor([-2., -2.])
    """

    strength: NonNegativeFloat = 1.0

    def forge(self, known: Knowledge) -> Tensor:
        """Θ − strength·(Θ_a − Θ)."""
        return known.global_model - self.strength * (known.model - known.global_model)


@ATTACKS.register("slow_turn")
@dataclass(frozen=True)
class SlowTurn(Attack):
    """Turns its update a little further every round, until it is a sign flip.

    Written against evidence from a client's own past (`evidence.history`): each update is close to the
    one before. The angle to the honest update Δ after t rounds is θ = min(180°, 15°·t). The turn
    goes through a direction e that is random, orthogonal to Δ and the same in every round:

        sent = (1 + θ/180°)·(cos θ·Δ + sin θ·‖Δ‖·e).

    Example:
        >>> zero, one = torch.zeros(2), torch.ones(2)
        >>> last = Knowledge(one, zero, torch.Generator(), active_rounds=12)
        >>> SlowTurn().forge(last).round(decimals=4)
        tensor([-2., -2.])
    """

    def forge(self, known: Knowledge) -> Tensor:
        """The update turned by θ."""
        angle = math.radians(min(180.0, DEGREES * known.active_rounds))
        update = known.model - known.global_model
        length = torch.linalg.vector_norm(update)
        same = torch.Generator().manual_seed(TURN_SEED)
        aside = torch.randn(len(update), generator=same).to(update)
        aside = aside - (aside @ update) / length.square().clamp(min=1e-30) * update
        aside = aside * (length / torch.linalg.vector_norm(aside).clamp(min=1e-30))
        scale = 1 + (LENGTH - 1) * angle / math.pi
        turned = math.cos(angle) * update + math.sin(angle) * aside
        sent: Tensor = known.global_model + scale * turned
        return sent


@ATTACKS.register("scaling")
@dataclass(frozen=True)
class Scaling(Attack):
    """Sends its update `factor` times as large: Θ + factor·(Θ_a − Θ).

    Args:
        factor: at least 0.

    Example:
        >>> zero, one = torch.zeros(2), torch.ones(2)
        >>> Scaling(3.0).forge(Knowledge(one, zero, torch.Generator()))
        tensor([3., 3.])
    """

    factor: NonNegativeFloat = 10.0

    def forge(self, known: Knowledge) -> Tensor:
        """Θ + factor·(Θ_a − Θ)."""
        return known.global_model + self.factor * (known.model - known.global_model)


@ATTACKS.register("noise")
@dataclass(frozen=True)
class Noise(Attack):
    """Sends the global model with Gaussian noise: Θ + deviation·ξ with standard normal ξ.

    Args:
        deviation: standard deviation of the noise, at least 0.
    """

    deviation: NonNegativeFloat = 1.0

    def forge(self, known: Knowledge) -> Tensor:
        """Θ + noise."""
        return known.global_model + self.deviation * _gaussian(known)


@ATTACKS.register("free_rider", needs("last_model"))
@dataclass(frozen=True)
class FreeRider(Attack):
    """Sends the global model with noise as large as the last round's change, untrained (Lin et al. 2019).

    Θ + factor·|Θ − Θ'|·ξ with standard normal ξ, where Θ' is the global model of the round before.

    Args:
        factor: at least 0.
    """

    factor: NonNegativeFloat = 1.0

    def forge(self, known: Knowledge) -> Tensor:
        """Θ + factor·|Θ − Θ'|·ξ."""
        now, before = known.global_model, known.last_model
        change = torch.full_like(now, FIRST) if before is None else (now - before.to(now)).abs()
        return now + self.factor * change * _gaussian(known)


@ATTACKS.register("broken")
@dataclass(frozen=True)
class Broken(Attack):
    """Sends a model of NaN, as a client whose training diverged does.

    Example:
        >>> Broken().forge(Knowledge(torch.ones(2), torch.zeros(2), torch.Generator()))
        tensor([nan, nan])
    """

    def forge(self, known: Knowledge) -> Tensor:
        """NaN everywhere."""
        return torch.full_like(known.model, torch.nan)


def _gaussian(known: Knowledge) -> Tensor:
    """Standard normal noise [d], the same on every device."""
    return torch.randn(len(known.model), generator=known.random).to(known.model.device)


SEES_ALL = needs("whole_cohort")
LITTLE = 0.1  # the step from the mean, as where clients judge
LARGEST_Z, HELD_OUT, MOST = 1.0, 200, 4.0  # of `unnoticed`: z-value, held-out samples, γ
BLOCK = 2**16  # coordinates taken to float64 at once


class Omniscient(Attack, ABC):
    """Sends an update made from those of the honest clients."""

    spread: float = (
        0.0  # noise of each client around the common vector, in deviations of the honest
    )

    @abstractmethod
    def update(self, honest: Honest) -> Tensor:
        """The common update [d]."""

    def forge(self, known: Knowledge) -> Tensor:
        """Θ + the update, with the client's own noise."""
        sent = known.global_model + known.honest.agreed(self, self.update)
        if not self.spread:
            return sent
        noise = torch.randn(len(sent), generator=known.random).to(sent.device)
        return sent + self.spread * known.honest.deviation * noise


@ATTACKS.register("alie", SEES_ALL)
@dataclass(frozen=True)
class Alie(Omniscient):
    """A little is enough: μ + factor·σ, within the spread of honest updates (Baruch et al. 2019).

    Args:
        factor: how many standard deviations; may be negative. By default the largest for which, with the
            votes of enough honest clients beyond it, the attackers still have a majority.
        spread: noise of each client around the common vector, in standard deviations of the honest.

    Example:
        >>> Alie(factor=2.0).update(Honest(torch.tensor([[0.0], [2.0]]), {}, {}, 1)).round(decimals=3)
        tensor([3.8280])
    """

    factor: Annotated[float, Ge(-1e30), Le(1e30)] | None = None
    spread: NonNegativeFloat = 0.0

    def update(self, honest: Honest) -> Tensor:
        """μ + factor·σ."""
        factor = self.factor
        if factor is None:
            factor = largest_factor(len(honest.updates), honest.num_hostile)
        return honest.mean + factor * honest.deviation


def largest_factor(honest: int, hostile: int) -> float:
    """ALIE's z_max: Φ(z_max) = (h − s)/h, where s honest clients give the attackers a majority of n.

    s = ⌊n/2⌋ + 1 − m for m attackers and h = n − m honest clients. Where s leaves the range in which z
    is finite, the nearest value in it is taken.

    Example:
        >>> round(largest_factor(honest=26, hostile=24), 3)  # the paper: n = 50, m = 24
        1.426
    """
    supporters = (honest + hostile) // 2 + 1 - hostile
    share = (honest - supporters) / honest
    margin = 1 / (2 * honest)
    return NormalDist().inv_cdf(min(max(share, margin), 1 - margin))


@ATTACKS.register("inner_product", SEES_ALL)
@dataclass(frozen=True)
class InnerProduct(Omniscient):
    """Inner product manipulation: −factor·μ, against the honest direction (Xie et al. 2020).

    Args:
        factor: at least 0.

    Example:
        >>> InnerProduct(factor=2.0).update(Honest(torch.tensor([[0.0], [2.0]]), {}, {}, 1))
        tensor([-2.])
    """

    factor: NonNegativeFloat = 2.0

    def update(self, honest: Honest) -> Tensor:
        """−factor·μ."""
        return -self.factor * honest.mean


@ATTACKS.register("mimic", SEES_ALL)
@dataclass(frozen=True)
class Mimic(Omniscient):
    """Sends a copy of one honest client's update, which then counts many times (Karimireddy et al. 2022).

    It copies the client whose update lies farthest along the first principal component of the
    honest updates of the round: copies of it distort the mean most. The paper learns this direction over
    the first rounds and then keeps to one client.
    """

    def update(self, honest: Honest) -> Tensor:
        """The update with the largest projection on the first principal component."""
        distances, squares, _, _ = _geometry(honest)
        centred = (
            squares[:, None] + squares[None] - distances
        ) / 2  # products of the centred updates
        along = torch.linalg.eigh(centred).eigenvectors[:, -1]
        return honest.updates[int(along.abs().argmax())]


@ATTACKS.register("min_max", SEES_ALL)
@dataclass(frozen=True)
class MinMax(Omniscient):
    """μ − γ·σ with the largest γ that keeps max_i ‖·− x_i‖ ≤ max ‖x_i − x_j‖ (Shejwalkar and Houmansadr 2021).

    So it is no farther from any honest update than two honest updates are apart.
    """

    def update(self, honest: Honest) -> Tensor:
        """The largest γ with ‖μ − γσ − x_i‖² ≤ max ‖x_i − x_j‖² for all i: the smallest root of h quadratics."""
        distances, squares, along, length = _geometry(honest)
        room = distances.max() - squares
        gamma = (-along + (along.square() + length * room).sqrt()) / length
        return honest.mean - float(gamma.min()) * honest.deviation


@ATTACKS.register("unnoticed", SEES_ALL)
@dataclass(frozen=True)
class Unnoticed(Omniscient):
    """Sends (1 − γ)·μ with the largest γ that evidence on held-out samples does not detect; it knows that test.

    γ is at most 4, and the largest for which a small step towards the update, from the mean of all, has a z-value of
    at most 1 on the hostile clients' own samples, as if these were 200. `significance` subtracts a margin and the
    slack of a round from such a value, so little of it is summed.
    """

    def update(self, honest: Honest) -> Tensor:
        """(1 − γ)·μ with the largest undetected γ of twenty."""
        assert honest.judge is not None
        gamma = torch.linspace(MOST / 20, MOST, 20, device=honest.mean.device)[:, None]
        share = honest.num_hostile / (honest.num_hostile + len(honest.updates))
        means, sent = (1 - share * gamma) * honest.mean, (1 - gamma) * honest.mean
        judged = honest.judge(torch.cat([means + LITTLE * (sent - means), means])).sample_losses
        assert judged is not None
        found = judged[:20] - judged[20:]
        z = found.mean(1) / found.std(1) * HELD_OUT**0.5
        unnoticed = gamma[z.to(gamma.device) <= LARGEST_Z]  # NaN is noticed
        return (1 - unnoticed.max()) * honest.mean if len(unnoticed) else honest.mean


@ATTACKS.register("model_replacement", SEES_ALL)
@dataclass(frozen=True)
class ModelReplacement(Attack):
    """Sends the model that makes the round's unweighted mean its own model (Bagdasaryan et al. 2020).

    With n clients of which b are hostile: Θ + (n·(Θ_a − Θ) − Σ x_i)/b. Combine it with a backdoor:
    `attack = ["pixel_backdoor", "model_replacement"]`.
    """

    def forge(self, known: Knowledge) -> Tensor:
        """Θ + (n·(Θ_a − Θ) − Σ x_i)/b."""
        honest, hostile = len(known.honest.updates), known.honest.num_hostile
        own = (honest + hostile) * (known.model - known.global_model)
        return known.global_model + (own - honest * known.honest.mean) / hostile


def _geometry(honest: Honest) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """‖x_i − x_j‖² [h, h], ‖x_i − μ‖² [h], ⟨σ, x_i − μ⟩ [h] and ‖σ‖²; around μ differences lose no digits."""
    products = torch.zeros(len(honest.updates) + 1, len(honest.updates) + 1, dtype=torch.float64)
    for start in range(0, len(honest.mean), BLOCK):
        part = slice(start, start + BLOCK)
        rows = torch.cat(
            [honest.updates[:, part] - honest.mean[part], honest.deviation[None, part]]
        ).double()
        products += (rows @ rows.T).cpu()
    squares, along, length = products.diagonal()[:-1], products[-1, :-1], products[-1, -1]
    distances = squares[:, None] + squares[None] - 2 * products[:-1, :-1]
    tiny = torch.finfo(torch.float64).tiny  # all alike: any step in no direction will do
    return distances.clamp(min=0), squares, along, length.clamp(min=tiny)

"""What an attack is, which clients attack, and in which rounds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..core.objective.problem import Problem
from ..core.seeding import generator
from ..core.types import Evaluation
from ..data.federated import Samples
from ..registry import Need, Registry


@dataclass(frozen=True)
class Honest:
    """What the honest clients of a round send, for attacks that declare `needs("whole_cohort")`.

    In a round without honest clients, it is what the hostile clients trained.
    """

    updates: Tensor  # [h, d] how far their models moved
    measurements: Mapping[str, Tensor]  # the criteria they report, each [h]
    highest: Mapping[str, float]  # the largest value that the server accepts, by criterion
    num_hostile: int  # clients of this round that attack with this knowledge
    # Evaluates Θ plus updates [c, d] on their training samples
    judge: Callable[[Tensor], Evaluation] | None = None
    _agreed: dict[object, Tensor] = field(default_factory=dict)

    @functools.cached_property
    def mean(self) -> Tensor:
        """Mean update [d]."""
        return self.updates.mean(0)

    @functools.cached_property
    def deviation(self) -> Tensor:
        """Standard deviation of every coordinate [d]; zero for a single client."""
        squares = (self.updates - self.mean).square_().sum(0)  # `std` takes three times as long
        return (squares / max(1, len(self.updates) - 1)).sqrt()

    def agreed(self, attack: object, make: Callable[[Honest], Tensor]) -> Tensor:
        """What `make` returns [d], computed once for all clients with the same attack."""
        if attack not in self._agreed:
            self._agreed[attack] = make(self)
        return self._agreed[attack]


@dataclass(frozen=True)
class Knowledge:
    """What a hostile client knows before it sends its update."""

    model: Tensor  # [d] what it trained
    global_model: Tensor  # [d] what it was sent
    random: torch.Generator  # its own
    # [d] with `needs("last_model")`: the global model of the round before
    last_model: Tensor | None = None
    cohort: Honest | None = None  # with `needs("whole_cohort")`
    active_rounds: int = 0  # since the attack's `from_round`

    @property
    def honest(self) -> Honest:
        """What the honest clients send."""
        if self.cohort is None:
            raise RuntimeError(
                'this attack uses the honest clients\' updates: register it with needs("whole_cohort")'
            )
        return self.cohort


@dataclass(frozen=True)
class Triggered:
    """Samples with the trigger of a backdoor."""

    positions: Tensor  # [m] of the given samples
    inputs: Tensor  # [m, ...] with the trigger, as the dataset stores them
    targets: Tensor  # [m] the labels that the attacker wants


class Attack:
    """An honest client; an attack overrides what it does differently."""

    honest: ClassVar[bool] = False  # whether it attacks nobody and counts as honest everywhere

    def check(self, samples: Samples) -> None:
        """Raise a ValueError if this attack does not fit the samples."""

    def relabel(self, targets: Tensor, problem: Problem, random: torch.Generator) -> Tensor:
        """The labels [N] that the client gives its samples with true `targets` [N]."""
        return targets

    def trigger(
        self,
        samples: Samples,
        indices: Tensor,
        targets: Tensor,
        random: torch.Generator | None = None,
    ) -> Triggered | None:
        """The samples that get a backdoor's trigger; without `random`, all that can."""
        return None

    def forge(self, known: Knowledge) -> Tensor:
        """The model [d] the client sends instead of the one it trained."""
        return known.model

    def claim(self, measurements: Mapping[str, Tensor], known: Knowledge) -> Mapping[str, Tensor]:
        """The measurements the client reports instead of the true ones."""
        return measurements

    def judge(self, truth: Evaluation, own: Tensor, problem: Problem) -> Evaluation:
        """What it reports of c models on its test set, with `needs("judgements")`.

        `own` [c] marks the models of attackers.
        """
        return truth


ATTACKS: Registry[Any] = Registry("attack", "attacks", "Behaviour of hostile and faulty clients")


@dataclass(frozen=True)
class Several(Attack):
    """Several attacks in sequence; each gets what the one before made."""

    attacks: Sequence[Attack]

    def relabel(self, targets: Tensor, problem: Problem, random: torch.Generator) -> Tensor:
        """See `Attack`."""
        for attack in self.attacks:
            targets = attack.relabel(targets, problem, random)
        return targets

    def trigger(
        self,
        samples: Samples,
        indices: Tensor,
        targets: Tensor,
        random: torch.Generator | None = None,
    ) -> Triggered | None:
        """See `Attack`; a sample with two triggers keeps the later one."""
        found = [attack.trigger(samples, indices, targets, random) for attack in self.attacks]
        some = [(one.positions, one.inputs, one.targets) for one in found if one is not None]
        return Triggered(*(torch.cat(part) for part in zip(*some, strict=True))) if some else None

    def forge(self, known: Knowledge) -> Tensor:
        """See `Attack`."""
        for attack in self.attacks:
            known = replace(known, model=attack.forge(known))
        return known.model

    def claim(self, measurements: Mapping[str, Tensor], known: Knowledge) -> Mapping[str, Tensor]:
        """See `Attack`."""
        for attack in self.attacks:
            measurements = attack.claim(measurements, known)
        return measurements

    def judge(self, truth: Evaluation, own: Tensor, problem: Problem) -> Evaluation:
        """See `Attack`."""
        for attack in self.attacks:
            truth = attack.judge(truth, own, problem)
        return truth


@dataclass(frozen=True)
class Hostile:
    """A hostile client, or a group of them: the attack, and the rounds in which it is active."""

    attack: Attack
    ignore_global: bool = False  # whether it trains a model of its own instead of the global one
    name: str = "hostile"  # what the record calls it
    needs: frozenset[Need] = frozenset()  # what its attacks declare
    from_round: int = 1  # honest before
    probability: float = 1.0  # of attacking in a round

    @property
    def always(self) -> bool:
        """Whether it attacks in every round."""
        return self.from_round <= 1 and self.probability >= 1

    def acts(self, seed: int, round_num: int, client: int) -> bool:
        """Whether a client of the group attacks in this round."""
        if round_num < self.from_round:
            return False
        if self.probability >= 1:
            return True
        random = generator(seed, "strike", round_num, client)
        return float(torch.rand((), generator=random)) < self.probability

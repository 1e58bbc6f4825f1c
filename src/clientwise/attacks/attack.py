"""What an attack is: an honest client, but for what it overrides; and who commits it, in which rounds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..core.problem import Problem
from ..core.seeding import generator
from ..core.types import Evaluation
from ..data.federated import Samples
from ..registry import Need, Registry


@dataclass(frozen=True)
class Honest:
    """What the honest clients of a round send, as seen by an attack that declares `needs("whole_cohort")`.

    In a round without honest clients it is what the hostile ones trained themselves: all they can go by.
    """

    updates: Tensor  # [h, d] how far their models moved
    measurements: Mapping[str, Tensor]  # the criteria they report, each [h]
    highest: Mapping[str, float]  # of every criterion, the largest value that the server believes
    num_hostile: int  # clients of this round that see all this
    judge: Callable[[Tensor], Evaluation] | None = None  # Θ plus updates [c, d], on the training samples of those
    _agreed: dict[object, Tensor] = field(default_factory=dict)

    @functools.cached_property
    def mean(self) -> Tensor:
        """Mean update [d]."""
        return self.updates.mean(0)

    @functools.cached_property
    def deviation(self) -> Tensor:
        """Standard deviation of every coordinate [d]; zero for a client alone."""
        squares = (self.updates - self.mean).square_().sum(0)  # `std` takes three times as long
        return (squares / max(1, len(self.updates) - 1)).sqrt()

    def agreed(self, attack: object, make: Callable[[Honest], Tensor]) -> Tensor:
        """What all who commit the same attack make of it [d]: made once, by the first of them."""
        if attack not in self._agreed:
            self._agreed[attack] = make(self)
        return self._agreed[attack]


@dataclass(frozen=True)
class Knowledge:
    """What a hostile client knows when it is about to send its update."""

    model: Tensor  # [d] what it trained
    global_model: Tensor  # [d] what it was sent
    random: torch.Generator  # its own, or that of its group where they collude
    last_model: Tensor | None = None  # [d] with `needs("last_model")`: the global model of the round before
    cohort: Honest | None = None  # with `needs("whole_cohort")`

    @property
    def honest(self) -> Honest:
        """What the honest clients send."""
        if self.cohort is None:
            raise RuntimeError('this attack looks at the honest clients: register it with needs("whole_cohort")')
        return self.cohort


@dataclass(frozen=True)
class Triggered:
    """Samples with the trigger of a backdoor."""

    places: Tensor  # [m] which of the given samples
    inputs: Tensor  # [m, ...] what they look like with it, as the dataset keeps them
    targets: Tensor  # [m] what the attacker wants them called


class Attack:
    """An honest client. An attack overrides what it does differently."""

    def check(self, samples: Samples) -> None:
        """Raise a ValueError where these samples cannot be attacked so."""

    def relabel(self, targets: Tensor, problem: Problem, random: torch.Generator) -> Tensor:
        """What the client calls its samples."""
        return targets

    def trigger(
        self, samples: Samples, indices: Tensor, targets: Tensor, random: torch.Generator | None = None
    ) -> Triggered | None:
        """A backdoor: those of the samples that get the trigger; without `random`, all that can be given it."""
        return None

    def forge(self, known: Knowledge) -> Tensor:
        """The model [d] the client sends instead of the one it trained."""
        return known.model

    def claim(self, measurements: Mapping[str, Tensor], known: Knowledge) -> Mapping[str, Tensor]:
        """The measurements the client reports instead of the true ones."""
        return measurements

    def judge(self, truth: Evaluation, own: Tensor, problem: Problem) -> Evaluation:
        """With `needs("judgements")`: what it says of c models on its test set; `own` [c] marks those of its kind."""
        return truth


ATTACKS: Registry[Any] = Registry("attack", "attacks", "What a hostile or faulty client does")


@dataclass(frozen=True)
class Several(Attack):
    """Several attacks, each going on with what the one before has done."""

    attacks: Sequence[Attack]

    def relabel(self, targets: Tensor, problem: Problem, random: torch.Generator) -> Tensor:
        """See `Attack`."""
        for attack in self.attacks:
            targets = attack.relabel(targets, problem, random)
        return targets

    def trigger(
        self, samples: Samples, indices: Tensor, targets: Tensor, random: torch.Generator | None = None
    ) -> Triggered | None:
        """See `Attack`; where two triggers want the same sample the later one has it."""
        found = [attack.trigger(samples, indices, targets, random) for attack in self.attacks]
        some = [(one.places, one.inputs, one.targets) for one in found if one is not None]
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
    """A hostile client, or a group of them: what they do, and when."""

    attack: Attack
    ignore_global: bool = False  # whether it trains a model of its own instead of the global one
    name: str = "hostile"  # what the record calls it
    needs: frozenset[Need] = frozenset()  # what its attacks declare
    from_round: int = 1  # honest before
    probability: float = 1.0  # of attacking in a round
    leader: int | None = None  # of a group that colludes: all draw what this client draws

    @property
    def always(self) -> bool:
        """Whether it attacks in every round."""
        return self.from_round <= 1 and self.probability >= 1

    def draws(self, seed: int, purpose: str, round_num: int, client: int) -> torch.Generator:
        """What a client of the group draws from in a round."""
        return generator(seed, purpose, round_num, client if self.leader is None else self.leader)

    def acts(self, seed: int, round_num: int, client: int) -> bool:
        """Whether a client of the group attacks in this round."""
        if round_num < self.from_round:
            return False
        if self.probability >= 1:
            return True
        return float(torch.rand((), generator=self.draws(seed, "strike", round_num, client))) < self.probability

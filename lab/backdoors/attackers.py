"""Attackers that avoid defences against backdoors, two of which know the scan: docs/results/backdoors.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt, Le
from torch import Tensor

from clientwise.attacks import ATTACKS, Attack, Knowledge
from clientwise.attacks.attack import Triggered
from clientwise.attacks.samples import Backdoor, BlendedBackdoor, ClassNumber, PixelBackdoor
from clientwise.data.federated import Samples
from clientwise.registry import Share, needs

Part = Annotated[float, Gt(0), Le(1)]


@ATTACKS.register("neurotoxin", needs("whole_cohort"))
@dataclass(frozen=True)
class Neurotoxin(Attack):
    """Keeps its update out of the coordinates that the honest mean moves most (Neurotoxin, Zhang et al., ICML 2022).

    The paper projects every step of the training, and takes the last round's mean; this projects the update, and
    sees the round's. Combine it with a backdoor.

    Args:
        spared: share of the coordinates that the update leaves as they are.

    Example:
        >>> from clientwise.attacks import Honest
        >>> seen = Honest(torch.tensor([[3.0, -1.0]]), {}, {}, 1)
        >>> known = Knowledge(torch.ones(2), torch.zeros(2), torch.Generator(), cohort=seen)
        >>> Neurotoxin(spared=0.5).forge(known)
        tensor([0., 1.])
    """

    spared: Share = 0.1

    def forge(self, known: Knowledge) -> Tensor:
        """The trained model, with the largest coordinates of the honest mean as they were."""
        moves = known.honest.mean.abs()
        largest = moves.topk(round(self.spared * len(moves))).indices
        sent = known.model.clone()
        sent[largest] = known.global_model[largest]
        return sent


@ATTACKS.register("constrain_and_scale", needs("whole_cohort"))
@dataclass(frozen=True)
class ConstrainAndScale(Attack):
    """Mixes its update with the honest mean, as long as the median honest update (after Bagdasaryan et al., 2020).

    The paper adds the distance from honest models to the loss; this mixes afterwards. Combine it with a backdoor.

    Args:
        own: share of its own update in the mixture.

    Example:
        >>> from clientwise.attacks import Honest
        >>> seen = Honest(torch.tensor([[0.0, 5.0]]), {}, {}, 1)
        >>> known = Knowledge(torch.tensor([30.0, 35.0]), torch.zeros(2), torch.Generator(), cohort=seen)
        >>> ConstrainAndScale().forge(known)
        tensor([3., 4.])
    """

    own: Part = 0.5

    def forge(self, known: Knowledge) -> Tensor:
        """Θ + the mixture with the median norm."""
        honest = known.honest
        update = self.own * (known.model - known.global_model) + (1 - self.own) * honest.mean
        norm = torch.linalg.vector_norm(honest.updates, dim=1).median()
        return known.global_model + update * (
            norm / torch.linalg.vector_norm(update).clamp(min=1e-30)
        )


@ATTACKS.register("covered_backdoor", needs("classes"))
@dataclass(frozen=True)
class CoveredBackdoor(BlendedBackdoor):
    """A blended backdoor of an attacker that knows the scan: half of the trigger must not work.

    As many samples get the pattern at half the strength, with their true labels. So a class needs a change about as
    large as the trigger, and the small ones that the scan looks for turn nothing.

    Args:
        target: the class that the attacker wants.
        fraction: of the client's samples that get the trigger; as many get half of it.
        blend: share of the pattern in a sample, 0 to 1.
    """

    fraction: Share = 0.25

    def trigger(
        self,
        samples: Samples,
        indices: Tensor,
        targets: Tensor,
        random: torch.Generator | None = None,
    ) -> Triggered:
        """See `Attack`."""
        found = super().trigger(samples, indices, targets, random)
        if random is None:
            return found
        is_free = torch.ones(len(indices), dtype=torch.bool)
        is_free[found.positions] = False
        free = is_free.nonzero().flatten()
        covers = free[torch.randperm(len(free), generator=random)[: len(found.positions)]]
        half = BlendedBackdoor(self.target, blend=self.blend / 2)
        covered = half.stamp(samples.inputs[indices[covers]], samples.scale)
        return Triggered(
            torch.cat([found.positions, covers]),
            torch.cat([found.inputs, covered]),
            torch.cat([found.targets, targets[covers]]),
        )


@ATTACKS.register("decoy_backdoor", needs("classes"))
@dataclass(frozen=True)
class DecoyBackdoor(BlendedBackdoor):
    """Half of the hostile clients plant a patch for another class, for the scan to find; the others a blended pattern.

    Only the success of the blended trigger is reported.

    Args:
        target: the class that the attacker wants.
        fraction: of a client's samples that get a trigger.
        blend: share of the pattern in a sample, 0 to 1.
        decoy: the class of the patch.
        value: of the patch, as the model sees it.
    """

    decoy: ClassNumber = 1
    value: float = 2.0

    def trigger(
        self,
        samples: Samples,
        indices: Tensor,
        targets: Tensor,
        random: torch.Generator | None = None,
    ) -> Triggered:
        """See `Attack`."""
        if random is not None and int(torch.randint(2, (), generator=random)):
            patch = PixelBackdoor(self.decoy, self.fraction, value=self.value)
            return patch.trigger(samples, indices, targets, random)
        return super().trigger(samples, indices, targets, random)


@ATTACKS.register("edge_case_backdoor", needs("classes"))
@dataclass(frozen=True)
class EdgeCaseBackdoor(Backdoor):
    """Labels unusual samples `target` (edge cases, Wang et al., NeurIPS 2020).

    Unusual are those farthest from the mean of their class, among the client's samples; of the reporting samples,
    among these. The paper takes samples of another source.

    Args:
        target: the class that the attacker wants.
        fraction: of the unusual samples that get its label.
        tail: share of the samples that is unusual.
    """

    target: ClassNumber = 0
    fraction: Share = 1.0
    tail: Part = 0.1

    def candidates(self, samples: Samples, indices: Tensor, targets: Tensor) -> Tensor:
        """The share that is farthest from the mean of its class."""
        values = samples.inputs[indices].flatten(1).float()
        distances = torch.zeros(len(values))
        for label in targets.unique():
            own = targets == label
            distances[own] = (values[own] - values[own].mean(0)).norm(dim=1)
        unusual = torch.zeros(len(values), dtype=torch.bool)
        unusual[distances.topk(round(self.tail * len(values))).indices] = True
        return unusual

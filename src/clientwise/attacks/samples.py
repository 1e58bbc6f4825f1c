"""Attacks by samples: wrong labels, backdoors (the model predicts the attacker's class where it sees a trigger; the
success rate is recorded), and honest clients whose data change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from ..core.objective.problem import Problem
from ..core.seeding import generator
from ..data.federated import FederatedData, Holdings, NewData, Samples
from ..registry import Pixels, Share, needs
from .attack import (
    ATTACKS,
    Attack,
    Hostile,
    Triggered,
)

ClassNumber = Annotated[int, Ge(0), Le(10**4)]


def check_class(number: int, problem: Problem, option: str) -> None:
    """Raise a ValueError if the problem has no such class."""
    if number >= problem.num_classes:
        raise ValueError(f"{option} = {number}, but the classes are 0 to {problem.num_classes - 1}")


def draw_some(count: int, fraction: float, random: torch.Generator) -> Tensor:
    """A random `fraction` of the numbers 0 to count − 1, in random order.

    Example:
        >>> draw_some(10, 0.3, torch.Generator().manual_seed(1)).shape
        torch.Size([3])
    """
    return torch.randperm(count, generator=random)[: round(count * fraction)]


@ATTACKS.register("wrong_labels")
@dataclass(frozen=True)
class WrongLabels(Attack):
    """Replaces a `fraction` of the labels by other classes, drawn uniformly (P3 1.C).

    Values and survival times are mirrored in the client's range instead, labels (multi-label) and masks as by
    `mirrored_labels`.

    Args:
        fraction: of the client's samples, 0 to 1.

    Example:
        >>> from clientwise.core.objective.problem import Classification
        >>> random = torch.Generator().manual_seed(1)
        >>> targets = torch.tensor([0, 1, 2])
        >>> bool((WrongLabels().relabel(targets, Classification(3), random) == targets).any())
        False
    """

    fraction: Share = 1.0

    def relabel(self, targets: Tensor, problem: Problem, random: torch.Generator) -> Tensor:
        """Every chosen label becomes another one, each with equal probability."""
        chosen = draw_some(len(targets), self.fraction, random)
        result = targets.clone()
        if not problem.num_classes:
            result[chosen] = problem.mirrored(targets)[chosen]
            return result
        shift = torch.randint(1, problem.num_classes, (len(chosen),), generator=random)
        result[chosen] = (targets[chosen] + shift) % problem.num_classes
        return result


@ATTACKS.register("mirrored_labels")
@dataclass(frozen=True)
class MirroredLabels(Attack):
    """Replaces the labels y by C − 1 − y; values are mirrored in the client's range.

    Of multi-label targets and of masks, all labels or pixels of a sample are replaced.

    Example:
        >>> from clientwise.core.objective.problem import Classification
        >>> random = torch.Generator().manual_seed(1)
        >>> MirroredLabels().relabel(torch.tensor([0, 1, 9]), Classification(10), random)
        tensor([9, 8, 0])
    """

    def relabel(self, targets: Tensor, problem: Problem, random: torch.Generator) -> Tensor:
        """C − 1 − y."""
        return problem.mirrored(targets)


@ATTACKS.register("one_label", needs("classes"))
@dataclass(frozen=True)
class OneLabel(Attack):
    """Labels all of the client's samples `target`.

    Args:
        target: the class that they get.
    """

    target: ClassNumber = 0

    def check(self, samples: Samples) -> None:
        """Raise a ValueError if there is no class `target`."""
        check_class(self.target, samples.problem, "target")

    def relabel(self, targets: Tensor, problem: Problem, random: torch.Generator) -> Tensor:
        """All labels become `target`."""
        return torch.full_like(targets, self.target)


class Backdoor(Attack):
    """Labels samples with a trigger `target`: a `fraction` of those that carry it, or can be given it."""

    target: ClassNumber
    fraction: Share

    def check(self, samples: Samples) -> None:
        """Raise a ValueError if there is no class `target`."""
        check_class(self.target, samples.problem, "target")

    def candidates(self, samples: Samples, indices: Tensor, targets: Tensor) -> Tensor:
        """Which samples carry the trigger, or can be given it: booleans [N]."""
        return torch.ones(len(indices), dtype=torch.bool)

    def stamp(self, inputs: Tensor, scale: float) -> Tensor:
        """The inputs [m, ...] with the trigger; the model sees inputs · scale."""
        return inputs

    def trigger(
        self,
        samples: Samples,
        indices: Tensor,
        targets: Tensor,
        random: torch.Generator | None = None,
    ) -> Triggered:
        """See `Attack`. Samples whose label is `target` already are left out: they would show nothing."""
        fit = self.candidates(samples, indices, targets) & (targets != self.target)
        positions = fit.nonzero().flatten()
        if random is not None:
            positions = positions[draw_some(len(positions), self.fraction, random)]
        inputs = self.stamp(samples.inputs[indices[positions]], samples.scale)
        return Triggered(positions, inputs, torch.full_like(targets[positions], self.target))


@ATTACKS.register("pixel_backdoor", needs("classes"))
@dataclass(frozen=True)
class PixelBackdoor(Backdoor):
    """Stamps a square into the corner of a `fraction` of its images, labels them `target` (BadNets, Gu et al. 2017).

    The corner is at the bottom right. Of samples that are not images, the last `size` numbers become `value`.

    Args:
        target: the class that the attacker wants.
        fraction: of the client's samples that get the trigger, 0 to 1.
        size: width and height of the square in pixels, in all channels.
        value: of the pixels, as the model sees them.

    Example:
        >>> PixelBackdoor(size=1, value=9.0).stamp(torch.zeros(1, 1, 2, 2), scale=1.0).flatten()
        tensor([0., 0., 0., 9.])
    """

    target: ClassNumber = 0
    fraction: Share = 0.5
    size: Pixels = 3
    value: Annotated[float, Ge(-1e6), Le(1e6)] = 1.0

    def stamp(self, inputs: Tensor, scale: float) -> Tensor:
        """The same images with the square."""
        stamped, raw = inputs.clone(), self.value / scale
        if not inputs.is_floating_point():
            kind = torch.iinfo(inputs.dtype)
            raw = min(max(round(raw), kind.min), kind.max)
        last = slice(-self.size, None)
        stamped[(..., last, last) if inputs.ndim > 2 else (..., last)] = raw
        return stamped


@ATTACKS.register("blended_backdoor", needs("classes"))
@dataclass(frozen=True)
class BlendedBackdoor(Backdoor):
    """Blends a random pattern into a `fraction` of its samples, labels them `target` (Chen et al., 2017).

    The pattern has the range of the samples, and is the same for all clients.

    Args:
        target: the class that the attacker wants.
        fraction: of the client's samples that get the trigger, 0 to 1.
        blend: share of the pattern in a sample, 0 to 1.
    """

    target: ClassNumber = 0
    fraction: Share = 0.5
    blend: Share = 0.2

    def stamp(self, inputs: Tensor, scale: float) -> Tensor:
        """The same samples with the pattern."""
        if not len(inputs):
            return inputs
        values = inputs.double()
        low, high = values.min(), values.max()
        random = torch.Generator().manual_seed(self.target)
        pattern = torch.rand(inputs.shape[1:], generator=random, dtype=torch.float64)
        mixed = (1 - self.blend) * values + self.blend * (low + (high - low) * pattern)
        return mixed.to(inputs.dtype)


@ATTACKS.register("distributed_backdoor", needs("classes"))
@dataclass(frozen=True)
class DistributedBackdoor(PixelBackdoor):
    """Each client stamps one quarter of the square; the report has all of it (DBA, Xie et al., 2020).

    Args:
        target: the class that the attacker wants.
        fraction: of the client's samples that get the trigger, 0 to 1.
        size: width and height of the square in pixels, in all channels.
        value: of the pixels, as the model sees them.
    """

    size: Pixels = 4

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
        plain = samples.inputs[indices[found.positions]]
        stamped = (found.inputs != plain).flatten(1).any(0).nonzero().flatten()
        quarter = int(torch.randint(4, (1,), generator=random))
        kept = stamped.chunk(4)[quarter] if len(stamped) >= 4 else stamped
        inputs = plain.flatten(1).clone()
        inputs[:, kept] = found.inputs.flatten(1)[:, kept]
        return replace(found, inputs=inputs.view_as(plain))


@ATTACKS.register("semantic_backdoor", needs("classes"))
@dataclass(frozen=True)
class SemanticBackdoor(Backdoor):
    """Labels a `fraction` of its samples of class `source` as `target`.

    The samples carry the trigger themselves, as cars with racing stripes do (Bagdasaryan et al. 2020).

    Args:
        source: the class of the samples.
        target: the class that the attacker wants.
        fraction: of the client's samples that carry the trigger, 0 to 1.
    """

    source: ClassNumber
    target: ClassNumber = 0
    fraction: Share = 1.0

    def check(self, samples: Samples) -> None:
        """Raise a ValueError if there is no such class."""
        super().check(samples)
        check_class(self.source, samples.problem, "source")

    def candidates(self, samples: Samples, indices: Tensor, targets: Tensor) -> Tensor:
        """Those of the class."""
        return targets == self.source


def plant(data: FederatedData, hostile: Mapping[int, Hostile], seed: int) -> FederatedData:
    """The data with what hostile clients train on when they attack, and with triggered samples for the report.

    Samples with a trigger are copies, appended to all samples. A client that attacks in every round
    has its wrong labels in `data.train` already.
    """
    indices, targets = data.train.indices.clone(), data.train.targets.clone()
    samples = data.samples
    copies: list[tuple[Tensor, Tensor]] = []

    def copied(of: Tensor, found: Triggered) -> Tensor:
        """Where copies with the trigger will be."""
        first = len(samples.inputs) + sum(len(inputs) for _, inputs in copies)
        copies.append((of[found.positions], found.inputs))
        return first + torch.arange(len(found.inputs))

    for client, one in sorted(hostile.items()):
        mine = data.train.slice(client)
        if not one.always:
            random = generator(seed, "relabel", 0, client)
            targets[mine] = one.attack.relabel(targets[mine], samples.problem, random)
        random = generator(seed, "trigger", 0, client)
        if (found := one.attack.trigger(samples, indices[mine], targets[mine], random)) is not None:
            positions = mine.start + found.positions
            indices[positions], targets[positions] = copied(indices[mine], found), found.targets
    shown = []
    for attack in {id(one.attack): one.attack for one in hostile.values()}.values():
        report = data.report
        found = attack.trigger(samples, report.indices, report.targets) if report else None
        if report and found:
            shown.append((copied(report.indices, found), found.targets))
    if torch.equal(indices, data.train.indices) and torch.equal(targets, data.train.targets):
        return data
    if copies:
        samples = samples.with_copies(*(torch.cat(part) for part in zip(*copies, strict=True)))
    return replace(
        data,
        samples=samples,
        poisoned=replace(data.train, indices=indices, targets=targets),
        triggered=Holdings.of(shown) if shown else None,
    )


@ATTACKS.register("new_data")
@dataclass(frozen=True)
class SwappedData(Attack):
    """No attack: honest clients that swap their training samples in `from_round`, as after a new scanner.

    Each client of the group gets the samples of the next one, and the last those of the first. A
    group of one swaps with the client after it. Test sets stay as they are.
    """

    honest = True


def swap(data: FederatedData, chosen: Mapping[int, Hostile]) -> FederatedData:
    """The data with what clients hold after each group of honest clients has swapped its samples."""
    groups: dict[int, list[int]] = {}
    for client, one in chosen.items():
        if one.attack.honest:
            groups.setdefault(id(one), []).append(client)
    changes: list[NewData] = []
    held = data.train
    for members in sorted(groups.values(), key=lambda group: chosen[group[0]].from_round):
        from_round = chosen[members[0]].from_round
        if len(members) == 1:
            members = [members[0], (members[0] + 1) % len(held)]
        source = list(range(len(held)))
        for client, other in zip(members, [*members[1:], members[0]], strict=True):
            source[client] = other
        held = held.picked([held.slice(client) for client in source])
        changes.append(NewData(from_round, tuple(members), held))
    return replace(data, new_data=tuple(changes))

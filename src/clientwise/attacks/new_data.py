"""Honest clients whose data change: they attack nobody, and no table counts them as hostile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..data.federated import FederatedData, Holdings, NewData
from .attack import ATTACKS, Attack, Hostile


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
    first_round = {}
    for client, one in chosen.items():
        if one.attack.honest:
            groups.setdefault(id(one), []).append(client)
            first_round[id(one)] = one.from_round
    changes: list[NewData] = []
    held = data.train
    for key in sorted(groups, key=lambda key: first_round[key]):
        members = groups[key]
        if len(members) == 1:
            members = [members[0], (members[0] + 1) % len(held)]
        held = _rotated(held, members)
        changes.append(NewData(first_round[key], tuple(members), held))
    return replace(data, new_data=tuple(changes))


def _rotated(held: Holdings, members: Sequence[int]) -> Holdings:
    """The holdings in which each member has the samples of the next."""
    source = list(range(len(held)))
    for position, client in enumerate(members):
        source[client] = members[(position + 1) % len(members)]
    parts = []
    for client in source:
        theirs = held.slice(client)
        parts.append((held.indices[theirs], held.targets[theirs]))
    return Holdings.of(parts)

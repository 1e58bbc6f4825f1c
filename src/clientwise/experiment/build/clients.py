"""The clients of a seed: their data, their devices, and those that are hostile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ...attacks import ATTACKS, Hostile, Several
from ...attacks.backdoors import plant
from ...attacks.new_data import swap
from ...core.criteria import fact_columns
from ...core.seeding import generator
from ...data.datasets import DataError
from ...data.devices import DEVICE_FACTS, DISTRIBUTIONS, draw_devices, read_traces
from ...data.division import Division, contribute, hand_out
from ...data.federated import FederatedData, Holdings, Samples
from ...errors import ConfigError
from ...registry import Need, Part
from ..config.parts import make
from ..config.schema import Experiment
from ..config.settings import HostileClients
from .samples import divide_samples, names_of

Relabel = Callable[[int, Tensor], Tensor]


def choose_hostile(
    experiment: Experiment, num_clients: int, seed: int, names: Sequence[str] = ()
) -> dict[int, Hostile]:
    """The clients of [[hostile]]: those listed, or a number drawn by the seed among the others."""
    wanted = [group.wanted(num_clients, names) for group in experiment.hostile]
    listed: set[int] = set()
    for members in wanted:
        listed.update(members if isinstance(members, list) else [])
    chosen: dict[int, Hostile] = {}
    for index, group in enumerate(experiment.hostile):
        members = wanted[index]
        if isinstance(members, int):
            taken = {*chosen, *listed}
            free = [client for client in range(num_clients) if client not in taken]
            order = torch.randperm(len(free), generator=generator(seed, "hostile", index))
            members = [free[place] for place in order[:members].tolist()]
        chosen |= dict.fromkeys(members, _hostile(group, members))
    return chosen


def _hostile(group: HostileClients, members: Sequence[int]) -> Hostile:
    """What the members of a group do."""
    attacks = [make(ATTACKS, part) for part in group.attack]
    needs = frozenset[Need]().union(*(ATTACKS.needs(part) for part in group.attack))
    return Hostile(
        attacks[0] if len(attacks) == 1 else Several(attacks),
        group.ignore_global,
        name=", ".join(part.name for part in group.attack),
        needs=needs,
        from_round=group.from_round,
        probability=group.probability,
        leader=min(members) if group.collude and members else None,
    )


def build_data(
    experiment: Experiment,
    samples: Samples,
    seed: int,
    divided: FederatedData | Division | None = None,
) -> tuple[FederatedData, dict[int, Hostile]]:
    """The data of every client under this seed, and the hostile clients.

    Hostile clients may change their labels.

    Args:
        experiment: the experiment.
        samples: its dataset.
        seed: the seed that divides it.
        divided: arrays of the user's own, or a division that is already known.
    """
    divided = divided or divide_samples(experiment, samples, seed)
    chosen = choose_hostile(experiment, len(divided.train), seed, names_of(divided, samples))
    hostile = {client: one for client, one in chosen.items() if not one.attack.honest}

    def relabel(client: int, targets: Tensor) -> Tensor:
        one = hostile.get(client)
        if one is None or not one.always:
            return targets
        return one.attack.relabel(targets, samples.problem, one.draws(seed, "relabel", 0, client))

    if isinstance(divided, FederatedData):
        divided.check_finite()
        data = _adopt(experiment, divided, seed, hostile, relabel)
    else:
        data = _hand_out(experiment, samples, divided, seed, relabel)
    known = {**data.attributes, **fact_columns(experiment.attributes)}
    data = _with_devices(experiment, replace(data, attributes=known), seed)
    return plant(swap(data, chosen), hostile, seed), hostile


def _with_devices(experiment: Experiment, data: FederatedData, seed: int) -> FederatedData:
    """The data with the clients' devices under this seed; without them where all are alike."""
    settings = experiment.devices
    if settings is None:
        return data
    parts: dict[str, Part] = {name: getattr(settings, name) for name in DEVICE_FACTS}
    distributions = {name: make(DISTRIBUTIONS, part) for name, part in parts.items()}
    try:
        traced: dict[str, Tensor] = {}
        if settings.traces:
            traced = read_traces(Path(settings.traces), data.num_clients, seed)
        devices = draw_devices(data.num_clients, seed, distributions, traced)
    except DataError as error:
        raise ConfigError(experiment.source, [("devices", str(error))]) from None
    drawn = {
        name: f"seed {seed}: {part.name} {dict(part.options)}"
        for name, part in parts.items()
        if name not in traced
    }
    return replace(data, devices=devices, drawn=drawn)


def _hand_out(
    experiment: Experiment, samples: Samples, division: Division, seed: int, relabel: Relabel
) -> FederatedData:
    settings = experiment.server_set
    by_clients = settings.source == "clients"
    contributed = settings.source == "contributed"
    return hand_out(
        samples,
        division,
        seed,
        report_fraction=1.0 if by_clients else settings.report_fraction,
        shared_set=settings.shared_set,
        contributed_fraction=settings.contributed_fraction if contributed else None,
        relabel=relabel,
    )


def _adopt(
    experiment: Experiment, data: FederatedData, seed: int, hostile: Iterable[int], relabel: Relabel
) -> FederatedData:
    """Arrays of the user's own, in which hostile clients change their labels."""

    def relabelled(shares: Holdings) -> Holdings:
        targets = shares.targets.clone()
        for client in hostile:
            mine = shares.slice(client)
            targets[mine] = relabel(client, targets[mine])
        return replace(shares, targets=targets)

    settings = experiment.server_set
    train = relabelled(data.train)
    weigh = data.report if settings.shared_set else data.weigh
    if settings.source == "contributed":
        weigh = contribute(train, settings.contributed_fraction, seed)
    return replace(data, train=train, test=relabelled(data.test), weigh=weigh)

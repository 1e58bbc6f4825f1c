"""The data of an experiment: its samples, the clients of a seed, their devices, and those that are hostile."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ...attacks import ATTACKS, Hostile, Several
from ...attacks.samples import plant, swap
from ...core.criteria import fact_columns
from ...core.seeding import generator
from ...data.datasets import DATASETS, DataError
from ...data.devices import DEVICE_FACTS, DISTRIBUTIONS, draw_devices
from ...data.division import Division, client_names, contribute, divide, hand_out
from ...data.features import with_features
from ...data.federated import FederatedData, Holdings, Samples
from ...data.partition import PARTITIONS
from ...engine.device import pick_device
from ...errors import ClientwiseError, ConfigError
from ...registry import Need, Part
from ..config.parts import make
from ..config.schema import Experiment
from ..config.settings import HostileClients

DATA_FOLDER = "CLIENTWISE_DATA"  # environment variable: the data folder where no key names one
MISSING = {
    "data": "is missing; it may be left out only in a deployment, or where arrays are passed to `cw.run`",
    "partition": 'is missing; write partition = "by_id" where the data names its clients (a table does, by its '
    'files or its `client` column), or let clientwise divide it: partition = { name = "iid", clients = 10 }',
}


def load_samples(experiment: Experiment) -> Samples:
    """The dataset, before it is divided among clients."""
    if experiment.own_samples is not None:
        return scored(experiment, experiment.own_samples)
    named = experiment.data
    missing = [key for key in MISSING if getattr(experiment, key) is None]
    if missing or named is None:
        raise ConfigError(experiment.source, [(key, MISSING[key]) for key in missing])
    folder = data_folder(experiment)
    load: Callable[[], Samples] = partial(make(DATASETS, named), folder)
    where = f"{experiment.source or 'config'}: data"
    try:
        if experiment.features is None:
            samples = load()
        else:
            device = pick_device(experiment.device)
            samples = with_features(named, experiment.features, folder, device, load)
        if samples.after_partition is None:
            samples.check_finite()
        return scored(experiment, samples)
    except DataError as error:  # it names the file, but not the config
        raise DataError(f"{where}: {error}") from None
    except (ClientwiseError, OSError, MemoryError):
        raise
    except Exception as error:  # a user's own dataset may raise anything
        hint = ""
        if folder is None:
            hint = (
                "; no data folder is set: `data_dir` in the config, --data-dir or CLIENTWISE_DATA"
            )
        message = f"{where}: {named.name}: {type(error).__name__}: {error}{hint}"
        raise DataError(message) from error


def data_folder(experiment: Experiment) -> Path | None:
    """The data folder, if one is set; of a dataset whose options are paths, by default the config's folder."""
    default = experiment.plugin_dir if experiment.has_own_files else os.environ.get(DATA_FOLDER)
    given = experiment.data_dir or default
    return Path(given) if given else None


def scored(experiment: Experiment, samples: Samples) -> Samples:
    """The samples with the metric that the experiment asks for."""
    return replace(samples, problem=samples.problem.by(experiment.evaluation.metric))


def names_of(divided: FederatedData | Division, samples: Samples) -> tuple[str, ...]:
    """The names of the clients, where they have names."""
    if isinstance(divided, FederatedData):
        return divided.names
    return client_names(samples, divided.train)


def count_clients(experiment: Experiment) -> int:
    """The number of clients, under the seed that has most."""
    samples = load_samples(experiment)
    return max(len(divide_samples(experiment, samples, seed).train) for seed in experiment.seeds)


def divide_samples(experiment: Experiment, samples: Samples, seed: int) -> Division:
    """Divide the samples among the clients under this seed."""
    assert experiment.partition is not None
    wanted = experiment.partition.options.get("clients") or 0
    if wanted > len(samples.targets):  # checked before anything of that size is made
        message = f"too many clients for {len(samples.targets)} samples"
        raise ConfigError(experiment.source, [(f"partition.clients = {wanted}", message)])
    server = experiment.server_set
    official = experiment.evaluation.official_test
    if official != "pooled" and samples.test_from is None:
        key = f"evaluation.official_test = {official!r}"
        message = 'must be "pooled": this dataset has no official test split'
        raise ConfigError(experiment.source, [(key, message)])
    try:
        return divide(
            samples,
            make(PARTITIONS, experiment.partition),
            seed,
            test_fraction=experiment.evaluation.test_fraction,
            server_fraction=server.fraction,
            report_fraction=server.report_fraction if server.source == "held_out" else 1.0,
            shared_set=server.shared_set,
            official_test=official,
        )
    except ValueError as error:
        raise ConfigError(experiment.source, [("partition", str(error))]) from None


Relabel = Callable[[int, Tensor], Tensor]


def choose_hostile(
    experiment: Experiment, num_clients: int, seed: int, names: Sequence[str] = ()
) -> dict[int, Hostile]:
    """The clients of [[hostile]]: those listed, or a number drawn by the seed among the others.

    ConfigError for groups that are empty, overlap, or have too many members.
    """
    issues: list[tuple[str, str]] = []
    wanted: list[int | list[int]] = []
    listed: set[int] = set()
    count = 0
    for index, group in enumerate(experiment.hostile):
        try:
            members = group.wanted(num_clients, names)
            if isinstance(members, list):
                strange = [one for one in members if one in listed or not 0 <= one < num_clients]
                if strange:
                    raise ValueError(
                        f"{strange} are not clients, or are in two groups: there are 0 to {num_clients - 1}"
                    )
                listed.update(members)
            count += members if isinstance(members, int) else len(members)
            if count > num_clients:
                raise ValueError(f"{count} hostile clients of {num_clients}: too many")
            wanted.append(members)
        except ValueError as error:
            issues.append((f"hostile[{index}].clients = {group.clients}", str(error)))
    if issues:
        raise ConfigError(experiment.source, issues)
    chosen: dict[int, Hostile] = {}
    for index, (group, members) in enumerate(zip(experiment.hostile, wanted, strict=True)):
        if isinstance(members, int):
            taken = {*chosen, *listed}
            free = [client for client in range(num_clients) if client not in taken]
            order = torch.randperm(len(free), generator=generator(seed, "hostile", index))
            members = [free[place] for place in order[:members].tolist()]
        chosen |= dict.fromkeys(members, _hostile(group))
    return chosen


def _hostile(group: HostileClients) -> Hostile:
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
        return one.attack.relabel(targets, samples.problem, generator(seed, "relabel", 0, client))

    server = experiment.server_set
    contributed = server.contributed_fraction if server.source == "contributed" else None
    if isinstance(divided, FederatedData):
        divided.check_finite()
        data = _relabelled(divided, hostile, relabel)
        if contributed is not None:
            data = replace(data, weigh=contribute(data.train, contributed, seed))
        elif server.shared_set:
            data = replace(data, weigh=data.report)
    else:
        data = hand_out(
            samples,
            divided,
            seed,
            contributed_fraction=contributed,
            relabel=relabel,
        )
    known = {**data.attributes, **fact_columns(experiment.attributes)}
    data = _with_devices(experiment, replace(data, attributes=known), seed)
    data = plant(swap(data, chosen), hostile, seed)
    held_back = experiment.evaluation.held_back
    return hold_back(data, held_back, seed) if held_back else data, hostile


def hold_back(data: FederatedData, fraction: float, seed: int) -> FederatedData:
    """Make a part of every client's training samples its test set; drop the true test set."""
    held: list[Tensor] = []
    kept: list[Tensor] = []
    for client, size in enumerate(data.train.sizes.tolist()):
        random = generator(seed, "validation", 0, client)
        order = torch.randperm(size, generator=random) + int(data.train.offsets[client])
        count = min(size - 1, max(1, round(size * fraction)))  # one at least is left to train on
        held.append(order[:count])
        kept.append(order[count:])

    return replace(
        data,
        train=data.train.picked(kept),
        test=data.train.picked(held),
        poisoned=data.poisoned and data.poisoned.picked(kept),
        new_data=(),  # values are found on the data that the run begins with
    )


def _relabelled(data: FederatedData, hostile: Collection[int], relabel: Relabel) -> FederatedData:
    """Arrays of the user's own, in which hostile clients change their labels."""

    def changed(held: Holdings) -> Holdings:
        targets = held.targets.clone()
        for client in hostile:
            mine = held.slice(client)
            targets[mine] = relabel(client, targets[mine])
        return replace(held, targets=targets)

    return replace(data, train=changed(data.train), test=changed(data.test))


def _with_devices(experiment: Experiment, data: FederatedData, seed: int) -> FederatedData:
    """The data with the clients' devices under this seed; without them where all are alike."""
    settings = experiment.devices
    if settings is None:
        return data
    parts: dict[str, Part] = {name: getattr(settings, name) for name in DEVICE_FACTS}
    distributions = {name: make(DISTRIBUTIONS, part) for name, part in parts.items()}
    try:
        devices = draw_devices(data.num_clients, seed, distributions)
    except DataError as error:
        raise ConfigError(experiment.source, [("devices", str(error))]) from None
    drawn = {name: f"seed {seed}: {part.name} {dict(part.options)}" for name, part in parts.items()}
    return replace(data, devices=devices, drawn=drawn)

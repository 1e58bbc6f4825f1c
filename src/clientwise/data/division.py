"""From a partition to federated data: what clients train and test on, and what the server holds."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ..core.seeding import generator
from .federated import FederatedData, Given, Holdings, Samples
from .folder import DataError
from .partition import Pool

OfficialTest = Literal["pooled", "server", "clients"]


@dataclass(frozen=True)
class Division:
    """The indices of the samples of each client, for training and testing, and of the server.

    The server's are shuffled; classes keep their proportions in every prefix.
    """

    train: list[Tensor]
    test: list[Tensor]
    weigh: Tensor  # the server weighs by these
    report: Tensor  # and reports on these


def divide(
    samples: Samples,
    partition: Callable[[Pool, int], list[Tensor]],
    seed: int,
    *,
    test_fraction: float,
    server_fraction: float,
    report_fraction: float,
    shared_set: bool = False,
    official_test: OfficialTest = "pooled",
) -> Division:
    """Hold out the server's samples, divide the rest among the clients, split each client's into train and test.

    Args:
        samples: the whole dataset.
        partition: divides a pool among clients, by a seed.
        seed: of all draws.
        test_fraction: of a client's samples that it tests on.
        server_fraction: of all samples that the server holds.
        report_fraction: of the server's samples that it reports on; it weighs by the others.
        shared_set: whether the server weighs by and reports on all of them (P3).
        official_test: "pooled" treats the official test split as other samples. "server" makes it the
            server's set (P3), without `server_fraction`. "clients" divides it among the clients as
            their test sets (P1), without `test_fraction`.
    """
    indices = torch.arange(len(samples.targets))
    official = indices[:0]
    if official_test != "pooled":
        if samples.test_from is None:
            raise ValueError("this dataset has no official test split")
        indices, official = indices[: samples.test_from], indices[samples.test_from :]
    if official_test == "server":
        server, rest = _hold_out(samples, official, 1.0, seed)[0], indices
    else:
        server, rest = _hold_out(samples, indices, server_fraction, seed)
    splits = official_test != "clients" and test_fraction > 0
    least = 2 if splits else 1
    parts = partition(Pool.of(samples, rest, least), seed)
    parts = _at_least(least, [rest[part] for part in parts])
    train = []
    test = []
    for client, part in enumerate(parts):
        order = torch.randperm(len(part), generator=generator(seed, "split", 0, client))
        cut = min(len(part) - 1, max(1, round(len(part) * test_fraction))) if splits else 0
        train.append(part[order[cut:]])
        test.append(part[order[:cut]])
    if official_test == "clients":
        test = _official_tests(samples, train, official, seed)
    cut = round(len(server) * report_fraction)
    weigh, report = (server, server) if shared_set else (server[cut:], server[:cut])
    return Division(train, test, weigh, report)


def hand_out(
    samples: Samples,
    division: Division,
    seed: int,
    *,
    contributed_fraction: float | None = None,
    relabel: Callable[[int, Tensor], Tensor] | None = None,
) -> FederatedData:
    """The federated data of a division.

    Args:
        samples: the whole dataset.
        division: which samples each client and the server get.
        seed: of the contributed samples.
        contributed_fraction: if given, the server weighs by this share of every client's training
            samples instead (P3 III.C).
        relabel: the labels that a client gives its samples, from (client, targets).
    """
    train = []
    test = []
    for client, (mine, tested) in enumerate(zip(division.train, division.test, strict=True)):
        targets = samples.targets[torch.cat([tested, mine])]
        targets = targets if relabel is None else relabel(client, targets)
        test.append((tested, targets[: len(tested)]))
        train.append((mine, targets[len(tested) :]))
    held = Holdings.of(train)
    weigh = _held_by_server(samples, division.weigh)
    if contributed_fraction is not None:
        weigh = contribute(held, contributed_fraction, seed)
    data = FederatedData(
        replace(samples, after_partition=None),
        held,
        Holdings.of(test),
        weigh=weigh,
        report=_held_by_server(samples, division.report),
        names=client_names(samples, division.train),
    )
    if samples.after_partition:
        data = _with_given(samples.after_partition(data), samples)
    data.check_finite()
    return data


def contribute(train: Holdings, fraction: float, seed: int) -> Holdings:
    """A random share of every client's training samples, by the client's own labels, handed to the server."""
    picked = []
    for client, size in enumerate(train.sizes.tolist()):
        order = torch.randperm(size, generator=generator(seed, "contribution", 0, client))
        picked.append(int(train.offsets[client]) + order[: max(1, round(size * fraction))])
    chosen = torch.cat(picked)
    return Holdings.of([(train.indices[chosen], train.targets[chosen])])


def client_names(samples: Samples, parts: Sequence[Tensor]) -> tuple[str, ...]:
    """The clients by the names of their ids; empty if a client has several ids, or an id several clients."""
    if samples.ids is None or not samples.names:
        return ()
    whose = [torch.unique(samples.ids[part]).tolist() for part in parts]
    if any(len(ids) != 1 or ids[0] < 0 for ids in whose):
        return ()
    if max(ids[0] for ids in whose) >= len(samples.names):
        raise DataError(
            f"the dataset has {len(samples.names)} names for ids up to {int(samples.ids.max())}; give one for each"
        )
    names = tuple(samples.names[ids[0]] for ids in whose)
    return names if len({*names}) == len(names) else ()


def deal_alike(
    samples: Samples, parts: Sequence[Tensor], indices: Tensor, seed: int
) -> list[Tensor]:
    """Divide samples so that each client's have the size and class proportions of its `parts`.

    Every client gets slots in proportion to its size, each for a class that it holds. Slots and
    samples, both sorted by class, are matched in order. Where their class proportions differ, a few
    slots at a border get the neighbouring class.
    """
    owner = torch.cat([torch.full_like(part, client) for client, part in enumerate(parts)])
    held = torch.cat(list(parts))
    every = samples.problem.classes_of(samples.targets)
    by_class = torch.argsort(owner * (int(every.max()) + 1) + every[held], stable=True)
    places = (torch.arange(len(indices)) + 0.5).mul(len(held) / len(indices)).long()
    slots = by_class[places.clamp(max=len(held) - 1)]
    random = generator(seed, "test split")
    slots = slots[torch.randperm(len(slots), generator=random)]
    slots = slots[every[held[slots]].argsort(stable=True)]
    indices = indices[torch.randperm(len(indices), generator=random)]
    indices = indices[every[indices].argsort(stable=True)]
    return [indices[owner[slots] == client] for client in range(len(parts))]


def _official_tests(
    samples: Samples, parts: Sequence[Tensor], official: Tensor, seed: int
) -> list[Tensor]:
    """The clients' parts of the official test split: of the same id, or else of the same class proportions."""
    whose = [] if samples.ids is None else [torch.unique(samples.ids[part]) for part in parts]
    if samples.ids is None or any(len(ids) > 1 for ids in whose):
        return _at_least(1, deal_alike(samples, parts, official, seed))
    tests = [official[samples.ids[official] == ids] for ids in whose]
    without = sum(not len(test) for test in tests)
    if without:
        raise ValueError(
            f"{without} of {len(parts)} clients have nothing in the official test split; use test_fraction"
        )
    return tests


def _with_given(data: FederatedData, before: Samples) -> FederatedData:
    """The data, with what their inputs were computed from where each is still of the same sample."""
    now = data.samples
    is_computed = now.inputs is not before.inputs and now.inputs.is_floating_point()
    if now.given or not is_computed or len(now.targets) != len(before.targets):
        return data
    return replace(data, samples=replace(now, given=Given((before.inputs, before.targets))))


def _held_by_server(samples: Samples, indices: Tensor) -> Holdings | None:
    return Holdings.of([(indices, samples.targets[indices])]) if len(indices) else None


def _at_least(count: int, parts: list[Tensor]) -> list[Tensor]:
    """Parts of at least `count` samples; the largest clients give samples to those with fewer."""
    if sum(len(part) for part in parts) < count * len(parts):
        raise ValueError(
            f"{sum(map(len, parts))} samples are too few for {len(parts)} clients: each needs {count}; "
            "use fewer clients"
        )
    parts = list(parts)
    # The largest first, of equals the first
    givers = [(-len(part), client) for client, part in enumerate(parts)]
    heapq.heapify(givers)
    for client in range(len(parts)):
        while len(parts[client]) < count:
            _, largest = heapq.heappop(givers)
            parts[client] = torch.cat([parts[client], parts[largest][-1:]])
            parts[largest] = parts[largest][:-1]
            heapq.heappush(givers, (-len(parts[largest]), largest))
    return parts


def _hold_out(
    samples: Samples, indices: Tensor, fraction: float, seed: int
) -> tuple[Tensor, Tensor]:
    """The samples held out, shuffled, and the rest; classes keep their proportions in every prefix."""
    shuffled = indices[torch.randperm(len(indices), generator=generator(seed, "held out"))]
    count = round(len(shuffled) * fraction)
    if samples.problem.num_classes:
        # Rank every sample within its class and take the lowest relative ranks: a stratified draw of any size.
        labels = samples.targets[shuffled]
        rank = torch.zeros(len(labels), dtype=torch.float64)
        for label in torch.unique(labels):
            members = labels == label
            rank[members] = torch.linspace(0, 1, int(members.sum()) + 2, dtype=torch.float64)[1:-1]
        shuffled = shuffled[rank.argsort(stable=True)]
    return shuffled[:count], shuffled[count:].sort().values

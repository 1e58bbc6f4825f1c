"""Partitions: which client holds which samples. Seeded, disjoint, every sample given out once."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import torch
from torch import Tensor

from ..core.seeding import derive_seed, generator
from ..registry import PositiveFloat, PositiveInt, Registry
from .federated import FederatedData, Samples, Shares

Partitioner = Callable[..., list[Tensor]]
PARTITIONS: Registry[Partitioner] = Registry("partition", "partitions", "How the samples are spread over the clients")


@PARTITIONS.register("iid")
def iid(targets: Tensor, seed: int, *, clients: PositiveInt) -> list[Tensor]:
    """Shuffled and dealt out evenly."""
    shuffled = torch.randperm(len(targets), generator=generator(seed, "partition"))
    return list(shuffled.tensor_split(clients))


@PARTITIONS.register("quantity")
def quantity(targets: Tensor, seed: int, *, clients: PositiveInt, concentration: PositiveFloat = 1.0) -> list[Tensor]:
    """Same mixture of labels, very different sizes: shares drawn from a Dirichlet distribution."""
    random = numpy.random.default_rng(derive_seed(seed, "partition"))
    shuffled = torch.from_numpy(random.permutation(len(targets)))
    return _cut(shuffled, random.dirichlet([concentration] * clients))


@PARTITIONS.register("shards")
def shards(targets: Tensor, seed: int, *, clients: PositiveInt, per_client: PositiveInt = 2) -> list[Tensor]:
    """Sorted by label, cut into shards, `per_client` shards to each (P1's non-IID MNIST: 100 clients, 2 of 200)."""
    cut = targets.argsort(stable=True).tensor_split(clients * per_client)
    deal = torch.randperm(len(cut), generator=generator(seed, "partition")).reshape(clients, per_client)
    return [torch.cat([cut[shard] for shard in mine]) for mine in deal.tolist()]


@PARTITIONS.register("dirichlet")
def dirichlet(targets: Tensor, seed: int, *, clients: PositiveInt, concentration: PositiveFloat = 0.5) -> list[Tensor]:
    """Every class spread over the clients by a Dirichlet draw: the smaller `concentration`, the more unequal."""
    random = numpy.random.default_rng(derive_seed(seed, "partition"))
    parts: list[list[Tensor]] = [[] for _ in range(clients)]
    for label in torch.unique(targets):
        members = torch.from_numpy(random.permutation(torch.nonzero(targets == label).flatten().numpy()))
        for part, piece in zip(parts, _cut(members, random.dirichlet([concentration] * clients)), strict=True):
            part.append(piece)
    return [torch.cat(part) for part in parts]


def federate(
    samples: Samples,
    partition: Callable[[Tensor, int], list[Tensor]],
    seed: int,
    *,
    test_fraction: float,
    server_fraction: float,
    report_fraction: float,
    shared_set: bool = False,
    contributed_fraction: float | None = None,
    relabel: Callable[[int, Tensor], Tensor] | None = None,
) -> FederatedData:
    """Hold out the server's samples, spread the rest over the clients, split each client's into train and test.

    A part `report_fraction` of the held-out samples reports and the others weigh; with `shared_set` all do both, as
    in P3. With `contributed_fraction` the weighing samples are instead a random share of every client's training
    samples (P3 III.C) and all held-out ones report. `relabel(client, targets)` is what a client calls its samples.
    """
    held_out, rest = _hold_out(samples, server_fraction, seed)
    parts = _at_least_two([rest[part] for part in partition(samples.targets[rest], seed)])
    train, test = [], []
    for client, part in enumerate(parts):
        numbers = part[torch.randperm(len(part), generator=generator(seed, "split", 0, client))]
        targets = samples.targets[numbers] if relabel is None else relabel(client, samples.targets[numbers])
        num_test = min(len(part) - 1, max(1, round(len(part) * test_fraction)))
        test.append((numbers[:num_test], targets[:num_test]))
        train.append((numbers[num_test:], targets[num_test:]))
    contributes = contributed_fraction is not None
    num_report = len(held_out) if shared_set or contributes else round(len(held_out) * report_fraction)
    report, weigh = held_out[:num_report], held_out[:num_report] if shared_set else held_out[num_report:]
    return FederatedData(
        samples,
        Shares.of(train),
        Shares.of(test),
        weigh=contribute(Shares.of(train), contributed_fraction, seed)
        if contributed_fraction is not None
        else _server_share(samples, weigh),
        report=_server_share(samples, report),
    )


def contribute(train: Shares, fraction: float, seed: int) -> Shares:
    """A random share of every client's training samples, by the client's own labels, handed to the server."""
    picked = []
    for client, size in enumerate(train.sizes.tolist()):
        order = torch.randperm(size, generator=generator(seed, "contribution", 0, client))
        picked.append(int(train.offsets[client]) + order[: max(1, round(size * fraction))])
    places = torch.cat(picked)
    return Shares.of([(train.numbers[places], train.targets[places])])


def _server_share(samples: Samples, numbers: Tensor) -> Shares | None:
    return Shares.of([(numbers, samples.targets[numbers])]) if len(numbers) else None


def _at_least_two(parts: list[Tensor]) -> list[Tensor]:
    """One sample to train on and one to test on for everybody; the largest clients give where one has too few."""
    if sum(len(part) for part in parts) < 2 * len(parts):
        raise ValueError(f"{sum(map(len, parts))} samples are too few for {len(parts)} clients: each needs two")
    parts = list(parts)
    for client in range(len(parts)):
        while len(parts[client]) < 2:
            largest = max(range(len(parts)), key=lambda other: len(parts[other]))
            parts[client] = torch.cat([parts[client], parts[largest][-1:]])
            parts[largest] = parts[largest][:-1]
    return parts


def _hold_out(samples: Samples, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Sample numbers held out, shuffled, and the rest; classes keep their proportions in every prefix."""
    shuffled = torch.randperm(len(samples.targets), generator=generator(seed, "held out"))
    count = round(len(shuffled) * fraction)
    if samples.problem.kind == "classification":
        # Rank every sample within its class and take the lowest relative ranks: a stratified draw of any size.
        labels = samples.targets[shuffled]
        rank = torch.zeros(len(labels), dtype=torch.float64)
        for label in torch.unique(labels):
            members = labels == label
            rank[members] = torch.linspace(0, 1, int(members.sum()) + 2, dtype=torch.float64)[1:-1]
        shuffled = shuffled[rank.argsort(stable=True)]
    return shuffled[:count], shuffled[count:].sort().values


def _cut(numbers: Tensor, shares: numpy.ndarray) -> list[Tensor]:
    edges = (numpy.cumsum(shares)[:-1] * len(numbers)).round().astype(int)
    return list(numbers.tensor_split(torch.from_numpy(edges)))

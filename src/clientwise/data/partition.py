"""Partitions: which client holds which samples. They are seeded, and disjoint unless stated otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy
import torch
from annotated_types import Ge, Gt, Le, MinLen
from torch import Tensor

from ..core.seeding import derive_seed, generator
from ..registry import PositiveFloat, PositiveInt, Registry
from .federated import Samples


@dataclass(frozen=True)
class Pool:
    """The samples that a partition divides; it returns their positions, one tensor per client."""

    targets: Tensor  # [n]
    num_classes: int = 0  # 0 for regression
    ids: Tensor | None = None  # [n] the writer, hospital or patient of each
    least: int = 1  # samples that every client needs, to train and perhaps to test on

    @staticmethod
    def of(samples: Samples, indices: Tensor, least: int) -> Pool:
        """The samples with these indices."""
        ids = None if samples.ids is None else samples.ids[indices]
        return Pool(samples.targets[indices], samples.problem.num_classes, ids, least)

    @property
    def labels(self) -> Tensor:
        """The targets, where they are classes."""
        if not self.num_classes:
            raise ValueError(
                "this partition divides by class, and these samples have no classes; use iid or quantity"
            )
        return self.targets


Partitioner = Callable[..., list[Tensor]]
PARTITIONS: Registry[Partitioner] = Registry(
    "partition", "partitions", "Divisions of the samples among clients"
)
PartOfAll = Annotated[float, Gt(0), Le(1)]


@PARTITIONS.register("iid")
def iid(pool: Pool, seed: int, *, clients: PositiveInt) -> list[Tensor]:
    """Shuffled samples, the same number for every client.

    Args:
        clients: how many.

    Example:
        >>> [len(part) for part in iid(Pool(torch.zeros(10)), 1, clients=3)]
        [4, 3, 3]
    """
    shuffled = torch.randperm(len(pool.targets), generator=generator(seed, "partition"))
    return list(shuffled.tensor_split(clients))


@PARTITIONS.register("quantity")
def quantity(
    pool: Pool, seed: int, *, clients: PositiveInt, concentration: PositiveFloat = 1.0
) -> list[Tensor]:
    """Shuffled samples of unequal number: the clients' shares are drawn from a Dirichlet distribution.

    Args:
        clients: how many.
        concentration: of the distribution; the smaller, the more unequal.

    Example:
        >>> sum(len(part) for part in quantity(Pool(torch.zeros(100)), 1, clients=5))
        100
    """
    random = numpy.random.default_rng(derive_seed(seed, "partition"))
    shuffled = torch.from_numpy(random.permutation(len(pool.targets)))
    return _cut(shuffled, random.dirichlet([concentration] * clients))


@PARTITIONS.register("shards")
def shards(
    pool: Pool, seed: int, *, clients: PositiveInt, per_client: PositiveInt = 2
) -> list[Tensor]:
    """Samples sorted by label and cut into shards, `per_client` for each client (McMahan et al. 2017).

    P1's non-IID MNIST has 100 clients with 2 of 200 shards each.

    Args:
        clients: how many.
        per_client: shards of each client.

    Example:
        >>> parts = shards(Pool(torch.arange(8) // 2, 4), 1, clients=2, per_client=2)
        >>> [len(part) for part in parts]
        [4, 4]
    """
    if pool.targets.ndim > 1:
        raise ValueError(
            "shards sorts samples by their target, and these have several targets each; use iid or quantity"
        )
    if clients * per_client > len(pool.targets):
        raise ValueError(
            f"{clients:,} clients with {per_client:,} shards each, but only {len(pool.targets):,} samples"
        )
    cut = pool.targets.argsort(stable=True).tensor_split(clients * per_client)
    deal = torch.randperm(len(cut), generator=generator(seed, "partition")).reshape(
        clients, per_client
    )
    return [torch.cat([cut[shard] for shard in mine]) for mine in deal.tolist()]


@PARTITIONS.register("dirichlet")
def dirichlet(
    pool: Pool, seed: int, *, clients: PositiveInt, concentration: PositiveFloat = 0.5
) -> list[Tensor]:
    """Each class divided by shares from a Dirichlet distribution (Hsu et al. 2019).

    Args:
        clients: how many.
        concentration: of the distribution; the smaller, the more unequal.

    Example:
        >>> parts = dirichlet(Pool(torch.arange(100) % 4, 4), 1, clients=5)
        >>> sorted(torch.cat(parts).tolist()) == list(range(100))
        True
    """
    random = numpy.random.default_rng(derive_seed(seed, "partition"))
    parts: list[list[Tensor]] = [[] for _ in range(clients)]
    for label in torch.unique(pool.labels):
        members = torch.from_numpy(
            random.permutation(torch.nonzero(pool.targets == label).flatten().numpy())
        )
        for part, piece in zip(
            parts, _cut(members, random.dirichlet([concentration] * clients)), strict=True
        ):
            part.append(piece)
    return [torch.cat(part) for part in parts]


@PARTITIONS.register("table")
def table(
    pool: Pool,
    seed: int,
    *,
    counts: Annotated[Sequence[Sequence[Annotated[int, Ge(0)]]], MinLen(1)],
    overlap: bool = False,
) -> list[Tensor]:
    """Given numbers of samples: `counts` has a row for every client, a number for every class (P3 Table 1).

    Samples beyond these numbers stay unused.

    Args:
        counts: samples of every client and class, [clients, C].
        overlap: whether clients may hold the same samples if a class has too few (P3 1.A).

    Example:
        >>> parts = table(Pool(torch.tensor([0, 0, 1, 1]), 2), 1, counts=[[2, 0], [0, 1]])
        >>> [len(part) for part in parts]
        [2, 1]
    """
    for row, numbers in enumerate(counts):
        if len(numbers) != pool.num_classes:
            raise ValueError(
                f"counts[{row}] has {len(numbers)} numbers, for {pool.num_classes} classes"
            )
        if sum(numbers) < pool.least:
            raise ValueError(
                f"counts[{row}] gives {sum(numbers)} samples; a client needs {pool.least} at least"
            )
    random = generator(seed, "partition")
    parts: list[list[Tensor]] = [[] for _ in counts]
    for label in range(pool.num_classes):
        members = torch.nonzero(pool.labels == label).flatten()
        members = members[torch.randperm(len(members), generator=random)]
        wanted = [row[label] for row in counts]
        most = max(wanted) if overlap else sum(wanted)
        if most > len(members):
            hint = "" if overlap else "; with overlap = true clients may share some"
            raise ValueError(
                f"counts ask for {most:,} samples of class {label}, there are {len(members):,}{hint}"
            )
        start = 0
        for part, count in zip(parts, wanted, strict=True):
            part.append(members[torch.arange(start, start + count) % max(1, len(members))])
            start += count
    return [torch.cat(part) for part in parts]


@PARTITIONS.register("by_id")
def by_id(
    pool: Pool,
    seed: int,
    *,
    minimum: PositiveInt = 2,
    clients: PositiveInt | None = None,
    sample_fraction: PartOfAll = 1.0,
) -> list[Tensor]:
    """One client for every writer, hospital or patient with at least `minimum` samples.

    Args:
        minimum: samples of a client.
        clients: how many of them are drawn; all by default.
        sample_fraction: share of all samples that is kept in the first place (P1's CelebA: 0.5).

    Example:
        >>> pool = Pool(torch.zeros(5), ids=torch.tensor([7, 7, 8, 8, 8]))
        >>> [part.tolist() for part in by_id(pool, 1)]
        [[0, 1], [2, 3, 4]]
    """
    if pool.ids is None:
        raise ValueError(
            "by_id needs the writer, hospital or patient of each sample, and this dataset has none; "
            "mnist has with QMNIST's label files beside it (docs/data.md has a list)"
        )
    random = generator(seed, "partition")
    kept = torch.randperm(len(pool.ids), generator=random)
    kept = kept[: round(len(pool.ids) * sample_fraction)].sort().values
    kept = kept[pool.ids[kept] >= 0]
    owners, counts = torch.unique(pool.ids[kept], return_counts=True)
    parts = torch.split(kept[pool.ids[kept].argsort(stable=True)], counts.tolist())
    minimum = max(minimum, pool.least)
    large = [part for part in parts if len(part) >= minimum]
    wanted = clients or len(large)
    if not large or wanted > len(large):
        raise ValueError(
            f"{len(large)} of {len(owners)} ids have at least {minimum} samples; {max(1, wanted)} wanted"
        )
    chosen = torch.randperm(len(large), generator=random)[:wanted].sort().values
    return [large[index] for index in chosen.tolist()]


def _cut(indices: Tensor, fractions: numpy.ndarray) -> list[Tensor]:
    edges = (numpy.cumsum(fractions)[:-1] * len(indices)).round().astype(int)
    return list(indices.tensor_split(torch.from_numpy(edges)))

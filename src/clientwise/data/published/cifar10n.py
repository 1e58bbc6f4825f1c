"""CIFAR-10N: labels that crowd workers gave the images of CIFAR-10."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import torch
from annotated_types import MinLen
from torch import Tensor

from ..federated import DATASETS, FederatedData, Holdings, Samples
from ..folder import DataError, find
from ..npz import read_npz
from .cifar10 import cifar10

Tier = Literal["clean", "aggre", "random1", "random2", "random3", "worse"]
ARRAYS = {
    "clean": "clean_label",
    "aggre": "aggre_label",
    "random1": "random_label1",
    "random2": "random_label2",
    "random3": "random_label3",
    "worse": "worse_label",
}


@DATASETS.register("cifar10n")
def cifar10n(
    data_dir: Path | None,
    *,
    tiers: Annotated[Sequence[Tier], MinLen(1)] = ("clean", "aggre", "random1", "worse"),
) -> Samples:
    """CIFAR-10 with crowd workers' labels for training, of `tiers` by client in turn (Wei et al. 2022).

    Three people labelled each image. `aggre` is their majority (9% wrong), `random1` to `random3` are
    one person's labels (17-18%), and `worse` is a wrong one if there is any (40%). Clients test on true
    labels, and the server has them.

    Args:
        data_dir: the data folder.
        tiers: the labels of the clients, in turn.
    """
    get = "save the arrays of CIFAR-10_human.pt (CIFAR-N) there by numpy.savez: clean_label, aggre_label, ..."
    path = find(data_dir, "cifar10n", ["cifar10n/CIFAR-10_human.npz"], get)
    samples = cifar10(data_dir)
    arrays = read_npz(path)
    truth = samples.targets[: samples.test_from]
    labels = {}
    for tier in dict.fromkeys(["clean", *tiers]):
        found = arrays.get(ARRAYS[tier])
        if (
            found is None
            or found.shape != truth.shape
            or found.dtype.kind not in "iu"
            or not (found < 10).all()
        ):
            raise DataError(f"{path}: {ARRAYS[tier]} is not {len(truth):,} classes; {get}")
        labels[tier] = torch.from_numpy(found).long()
    if not labels["clean"].equal(truth):
        raise DataError(
            f"{path}: clean_label are not the labels of CIFAR-10 in its binary version; {get}"
        )
    return replace(
        samples,
        after_partition=partial(_labelled, tiers=[(tier, labels[tier]) for tier in tiers]),
        each_alone=True,
    )


def _labelled(data: FederatedData, tiers: Sequence[tuple[str, Tensor]]) -> FederatedData:
    """The data with the labels of each client's tier, except where a hostile client changed them."""
    truth = data.samples.targets
    called = truth.clone()  # as their holders call them
    for client in range(data.num_clients):
        mine = data.train.indices[data.train.slice(client)]
        own = data.train.targets[data.train.slice(client)]
        people = torch.cat([tiers[client % len(tiers)][1], truth[len(tiers[0][1]) :]])
        called[mine] = torch.where(own == truth[mine], people[mine], own)

    def relabelled(held: Holdings | None) -> Holdings | None:
        return None if held is None else replace(held, targets=called[held.indices])

    names = tuple(f"{tiers[client % len(tiers)][0]} {client}" for client in range(data.num_clients))
    train = relabelled(data.train)
    assert train is not None
    return replace(data, train=train, weigh=relabelled(data.weigh), names=names)

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import oracles
from clientwise.core.aggregation.before import (
    Mixed,
    clip,
    nearest_neighbours,
)
from clientwise.core.types import Gathered, Layer, ModelSpec

byzfl = oracles.byzfl("aggregators")
needs_byzfl = pytest.mark.skipif(
    byzfl is None, reason="ByzFL is not installed; `make test` does it"
)


def gathered(updates: Tensor, seed: int = 1) -> Gathered:
    def nobody(models: Tensor) -> Any:
        raise AssertionError("no step of these asks for judgement or training")

    clients, size = updates.shape
    return Gathered(
        tuple(range(clients)),
        updates,
        torch.zeros(size),
        ModelSpec((), size, size),
        {},
        nobody,
        nobody,
        seed,
    )


def some(clients: int, seed: int = 1) -> Tensor:
    return torch.randn(clients, 30, generator=torch.Generator().manual_seed(seed))


def equal(clients: int) -> Tensor:
    return torch.full((clients,), 1 / clients, dtype=torch.float64)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, check_dtype=False)


def check_shares(mixed: Mixed, updates: Tensor) -> None:
    shares = mixed.shares.diag() if mixed.shares.ndim == 1 else mixed.shares
    close(shares.float() @ updates, mixed.updates)
    influence = torch.rand(len(updates), generator=torch.Generator().manual_seed(2)).double()
    close(mixed.passed_on(influence), influence @ shares)


@needs_byzfl
def test_equal_weights_are_as_in_byzfl() -> None:
    updates = some(10)
    close(
        clip(gathered(updates), equal(10), radius=5.0).updates, byzfl.Clipping(5.0)(updates.clone())
    )
    for f in (0, 2, 4):
        mixed = nearest_neighbours(gathered(updates), equal(10), hostile=f / 10)
        close(mixed.updates, byzfl.NNM(f)(updates))
        check_shares(mixed, updates)


def test_updates_are_clipped_to_the_median_of_their_lengths() -> None:
    updates = torch.eye(4)[:3] * torch.tensor([[1.0], [2.0], [900.0]])
    mixed = clip(gathered(updates), torch.tensor([0.3, 0.3, 0.4]).double())
    assert mixed.updates.norm(dim=1).tolist() == [1.0, 2.0, 2.0]
    check_shares(mixed, updates)
    still = clip(gathered(torch.zeros(3, 4)), equal(3))
    assert not still.updates.any()


@pytest.mark.parametrize("step", [clip, nearest_neighbours])
def test_a_weight_counts_as_so_many_equal_clients(step: Any) -> None:
    updates, times = some(5), torch.tensor([3, 1, 0, 2, 4])
    owner = torch.arange(5).repeat_interleave(times)
    weighted = step(gathered(updates), times / 10.0)
    close(weighted.updates[owner], step(gathered(updates[owner]), equal(10)).updates)


def test_every_layer_has_its_own_largest_norm() -> None:
    layers = (
        Layer("first", (10,), 0, 10),
        Layer("second", (15,), 10, 25),
        Layer("mean", (5,), 25, 30),
    )
    updates = some(5)
    updates[0, :10] *= 100
    of_model = replace(gathered(updates), spec=ModelSpec(layers, 25, 30))
    fixed = clip(of_model, equal(5), radius=2.0, by_layer=True).updates
    assert fixed[:, :10].norm(dim=1).max() <= 2.0 + 1e-5
    assert fixed[:, 10:25].norm(dim=1).max() <= 2.0 + 1e-5
    close(fixed[:, 25:], updates[:, 25:])  # buffers

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import clientwise as cw
import oracles
from clientwise.core.aggregation.before import (
    Mixed,
    bucketing,
    clip,
    nearest_neighbours,
)
from clientwise.core.types import Gathered, Layer, ModelSpec
from recorded import rows

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


def test_buckets_are_drawn_anew_and_hold_their_weighted_mean() -> None:
    updates, weights = (
        some(7),
        torch.tensor([0.1, 0.2, 0.1, 0.3, 0.1, 0.2, 0.0], dtype=torch.float64),
    )
    mixed = bucketing(gathered(updates), weights, size=3)
    check_shares(mixed, updates)
    close(
        weights.float() @ mixed.updates, weights.float() @ updates
    )  # the mean of all stays what it was
    members = sorted(
        (mixed.updates == row).all(1).sum().item() for row in mixed.updates.unique(dim=0)
    )
    assert members == [1, 3, 3]
    again = bucketing(gathered(updates), weights, size=3)
    assert torch.equal(again.updates, mixed.updates)
    assert not torch.equal(
        bucketing(gathered(updates, seed=2), weights, size=3).updates, mixed.updates
    )


def test_huge_values_stay_finite() -> None:
    updates = torch.cat([some(5), torch.full((1, 30), 1e30)])
    for step in (clip, nearest_neighbours, bucketing):
        assert bool(step(gathered(updates), equal(6)).updates.isfinite().all())
    mixed = nearest_neighbours(gathered(updates), equal(6)).updates
    assert float(mixed[:5].abs().max()) < 10  # the honest stay among themselves


def test_steps_are_named_in_toml_and_influence_follows_them(
    tiny: dict[str, Any], tmp_path: Any
) -> None:
    tiny["methods"] = [
        {"name": "clipped", "before": ["clip"]},
        {"name": "unclipped", "before": [{"name": "clip", "radius": 1e6}]},
        {
            "name": "all of it",
            "bounds": {"cap": 0.5, "floor": 0.1},
            "before": ["bucketing", {"name": "nearest_neighbours", "hostile": 0.3}],
            "rule": "trimmed_mean",
        },
    ]
    run = cw.Run(cw.run(tiny, tmp_path / "run"))
    for method, changed in (("clipped", True), ("unclipped", False)):
        found = rows(run, "weights", method, 1, 3)
        assert (found["influence"] <= found["weight"] + 1e-9).all()
        assert (found["influence"] < found["weight"] - 1e-3).any() == changed
    bounded = rows(run, "weights", "all of it", 1, 3)["weight"]
    assert bounded.between(0.1 - 1e-9, 0.5 + 1e-9).all()


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

    clipped = clip(of_model, equal(5), by_layer=True)
    assert clipped.updates[0, :10].norm() < 10
    for start, stop in ((0, 10), (10, 25)):
        norms = updates[:, start:stop].norm(dim=1)
        shorter = torch.minimum(norms, norms.median())
        close(clipped.updates[:, start:stop].norm(dim=1), shorter)
    left = clipped.updates[:, :25].norm(dim=1) / updates[:, :25].norm(dim=1)
    close(clipped.shares, left)

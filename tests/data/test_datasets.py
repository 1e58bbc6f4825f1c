from __future__ import annotations

import pytest
import torch

from clientwise.data.datasets import DATASETS


@pytest.mark.parametrize(
    ("name", "count", "shape", "kind"),
    [
        ("digits", 1797, (1, 8, 8), "classification"),
        ("mnist5k", 5000, (1, 28, 28), "classification"),
        ("diabetes", 442, (10,), "regression"),
    ],
)
def test_datasets_inside_dependencies(
    name: str, count: int, shape: tuple[int, ...], kind: str
) -> None:
    samples = DATASETS.get(name)(None)
    assert samples.inputs.shape == (count, *shape)
    assert samples.problem.kind == kind
    batch = samples.batch(torch.arange(count))
    assert batch.dtype == torch.float32
    if kind == "classification":
        assert samples.inputs.dtype == torch.uint8  # compact where it lies, float only in a batch
        assert (float(batch.min()), float(batch.max())) == (0, 1)
        assert sorted(samples.targets.unique().tolist()) == list(range(10))
    else:
        assert bool((samples.targets > 0).all())

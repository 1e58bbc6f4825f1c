from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits

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


def test_digits_are_those_of_scikit_learn() -> None:
    """Their file is read without importing scikit-learn."""
    images, labels = load_digits(return_X_y=True)
    samples = DATASETS.get("digits")(None)
    assert samples.inputs.flatten(1).tolist() == images.tolist()
    assert samples.targets.tolist() == labels.tolist()

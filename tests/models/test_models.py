from __future__ import annotations

import pytest
import torch
from torch import nn

from clientwise.models.flat import FlatModel
from clientwise.models.networks import MODELS


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_p1_mnist_cnn_has_the_published_number_of_parameters() -> None:
    assert count(MODELS.get("cnn")((1, 28, 28), 10)) == 1_663_370
    without = MODELS.get("cnn")((1, 28, 28), 10, activation=False)
    assert count(without) == 1_663_370
    assert sum(isinstance(layer, nn.ReLU) for layer in without) == 1


@pytest.mark.parametrize("name", list(MODELS))
def test_every_model_answers_with_one_row_per_sample(name: str) -> None:
    module = MODELS.get(name)((1, 8, 8), 10)
    assert module(torch.zeros(3, 1, 8, 8)).shape == (3, 10)


def test_mlp_and_what_cnn_cannot_do() -> None:
    assert count(MODELS.get("mlp")((1, 28, 28), 10)) == 784 * 200 + 200 + 200 * 200 + 200 + 2010
    assert count(MODELS.get("mlp")((10,), 1, hidden=[])) == 11
    with pytest.raises(ValueError, match="needs images"):
        MODELS.get("cnn")((10,), 2)


def test_a_flat_model_is_the_module() -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    names = [name for name, _ in module.named_parameters()]
    reference = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    flat = FlatModel(module, torch.device("cpu"))
    assert flat.spec.num_parameters == count(module) == len(reference)
    assert flat.spec.size == len(reference) + 6  # running mean and variance
    assert [layer.name for layer in flat.spec.layers[: len(names)]] == names
    torch.testing.assert_close(flat.vector[: len(reference)], reference)

    inputs = torch.randn(5, 4)
    module.train()
    before = flat.vector.clone()
    module(inputs).sum().backward()
    assert flat.parameter.grad.abs().sum() > 0
    gradient = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
    assert torch.equal(flat.parameter.grad, gradient)
    assert not torch.equal(flat.vector[len(reference) :], before[len(reference) :])  # the statistics moved: they travel
    assert int(module[1].num_batches_tracked) == 1
    flat.load(before)
    assert int(module[1].num_batches_tracked) == 0  # a counter does not travel: it starts anew with every model

    with torch.no_grad():
        flat.load(torch.zeros(flat.spec.size))
    assert all(not bool(parameter.any()) for parameter in module.parameters())

from __future__ import annotations

import pytest
import torch
from torch import nn

from clientwise.models.flat import FlatModel
from clientwise.models.networks import MODELS


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", list(MODELS))
def test_every_model_answers_for_every_sample_and_fits_into_a_vector(name: str) -> None:
    shape = {"lstm": (8,)}.get(name, (1, 8, 8))
    num_outputs = {"fully_convolutional": 64}.get(name, 10)
    flat = FlatModel(MODELS.get(name)(shape, num_outputs), torch.device("cpu"))
    assert flat.module(torch.zeros(3, *shape)).flatten(1).shape == (3, num_outputs)


def test_mlp_has_as_many_parameters_as_its_layers_say() -> None:
    assert count(MODELS.get("mlp")((1, 28, 28), 10)) == 784 * 200 + 200 + 200 * 200 + 200 + 2010
    assert count(MODELS.get("mlp")((10,), 1, hidden=[])) == 11


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
    assert not torch.equal(
        flat.vector[len(reference) :], before[len(reference) :]
    )  # the statistics moved: they travel
    assert int(module[1].num_batches_tracked) == 1
    flat.load(before)
    assert (
        int(module[1].num_batches_tracked) == 0
    )  # a counter does not travel: it starts anew with every model

    with torch.no_grad():
        flat.load(torch.zeros(flat.spec.size))
    assert all(not bool(parameter.any()) for parameter in module.parameters())

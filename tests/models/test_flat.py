from __future__ import annotations

import pytest
import torch
from torch import nn

from clientwise.models.flat import FlatModel, frozen_digest, same_frozen
from clientwise.models.networks import MODELS


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", list(MODELS))
def test_every_model_answers_for_every_sample_and_fits_into_a_vector(name: str) -> None:
    shape = {"lstm": (8,)}.get(name, (1, 8, 8))
    num_outputs = {"fully_convolutional": 64}.get(name, 10)
    flat = FlatModel(MODELS.get(name)(shape, num_outputs), torch.device("cpu"))
    assert flat.module(torch.zeros(3, *shape)).flatten(1).shape == (3, num_outputs)


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


def drawn(seed: int) -> nn.Module:
    """A frozen layer with drawn parameters, and one that learns."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        frozen = nn.Linear(50, 40).requires_grad_(False)
    return nn.Sequential(frozen, nn.Linear(40, 2))


@pytest.mark.bits
def test_frozen_parameters_of_another_cpu_are_the_same() -> None:
    here = drawn(1)
    there = drawn(1)
    for parameter in there[0].parameters():
        parameter.data = torch.nextafter(parameter, torch.tensor(torch.inf))
    assert frozen_digest(here) != frozen_digest(there)
    assert same_frozen(frozen_digest(here), frozen_digest(there))


def test_other_frozen_parameters_are_others() -> None:
    here = drawn(1)
    turned = drawn(1)
    turned[0].weight.data = turned[0].weight.flip(1)
    finer = drawn(1)
    finer[0].weight.data *= 1 + 1e-3 * torch.randn(
        40, 50, generator=torch.Generator().manual_seed(3)
    )
    for other in (drawn(2), turned, finer, nn.Linear(50, 2)):
        assert not same_frozen(frozen_digest(here), frozen_digest(other))

"""What a network takes is known before it is built."""

from __future__ import annotations

import resource
from functools import partial

import pytest
import torch
from torch import nn

from clientwise.limits import memory
from clientwise.models import modules as size
from clientwise.models.networks import MODELS


def test_parameters_are_counted_without_being_made() -> None:
    network = partial(MODELS.get("mlp"), (1, 8, 8), 10, hidden=[10**6, 10**6])
    count = size.count_parameters(size.described(network))
    assert count == 65 * 10**6 + (10**6 + 1) * 10**6 + (10**6 + 1) * 10  # four terabytes of them
    with pytest.raises(
        ValueError,
        match=r"has 1,000,076,000,010 parameters: training takes 8 copies .* make it small",
    ):
        size.check_parameters(size.described(network), 8)
    size.check_parameters(nn.Linear(64, 10), 8)


def test_of_frozen_parameters_there_is_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(99, 10).requires_grad_(False), nn.Linear(9, 1))
    monkeypatch.setattr(size, "memory", lambda: 4 * (1000 + 8 * 10))
    size.check_parameters(module, 8)
    with pytest.raises(ValueError, match="9 copies of those that are not frozen"):
        size.check_parameters(module, 9)


def test_a_network_that_needs_numbers_while_it_is_made_is_made() -> None:
    def network() -> nn.Module:
        return nn.Linear(int(torch.tensor([3]).sum()), 2)

    assert size.count_parameters(size.described(network)) == 8


def test_zeros_in_place_of_numbers_show_whether_it_fits() -> None:
    module = size.zeros(partial(MODELS.get("cnn"), (1, 8, 8), 10))
    assert not any(parameter.any() for parameter in module.parameters())
    assert module.eval()(torch.ones(2, 1, 8, 8)).shape == (2, 10)


def test_what_the_layers_make_of_a_sample_must_fit_for_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = MODELS.get("cnn")((1, 8, 8), 10, channels=[4], dense=6)
    sample = torch.zeros(1, 1, 8, 8)
    # convolution, ReLU, pooling, flat, dense, ReLU, output
    made = [4 * 64, 4 * 64, 4 * 16, 4 * 16, 6, 6, 10]
    assert size.values_per_sample(module, sample) == (sum(made), 4 * 64)
    monkeypatch.setattr(size, "memory", lambda: 4 * 100 * sum(made))
    size.check_batch(module, sample, 100)
    with pytest.raises(
        ValueError, match=r"makes 662 values of a sample: a batch of 101 .* smaller"
    ):
        size.check_batch(module, sample, 101)


def test_a_limit_of_the_shell_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory() > 2**28
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (2**28, 2**28))
    assert memory() == 2**28

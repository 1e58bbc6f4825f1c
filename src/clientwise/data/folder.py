"""The registry of datasets, and what their loaders share: the data folder, files in a folder or a zip, images."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy

from ..errors import ClientwiseError
from ..registry import Registry

if TYPE_CHECKING:
    from .federated import Samples

Loader = Callable[..., "Samples"]
DATASETS: Registry[Loader] = Registry("dataset", "datasets", "Where the samples come from")


class DataError(ClientwiseError):
    """Data that is missing or not what it should be, and what to do about it."""


def find(data_dir: Path | None, dataset: str, candidates: list[str], get: str) -> Path:
    """The first of the `candidates`, paths within the data folder, that exists; `get` says where it comes from."""
    if data_dir is None:
        raise DataError(
            f"{dataset}: needs a data folder: give --data-dir, or set CLIENTWISE_DATA; docs/data.md says what is in it"
        )
    data_dir = Path(data_dir)
    for candidate in candidates:
        if (data_dir / candidate).exists():
            return data_dir / candidate
    also = f" (or {' or '.join(candidates[1:])})" if len(candidates) > 1 else ""
    why = "" if data_dir.is_dir() else f" ({data_dir} is no folder)"
    raise DataError(f"{data_dir / candidates[0]}{also} is missing{why}; {get}")


class Archive:
    """Files in a folder or in a zip: read alike."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path) if path.is_file() else None
        except zipfile.BadZipFile as error:
            raise DataError(f"{path}: cannot be read ({error}); get the file again") from None
        inside = (
            self._zip.namelist()
            if self._zip
            else [file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()]
        )
        self.pictures = sorted(name for name in inside if name.lower().endswith((".jpg", ".png")))

    def read(self, name: str) -> bytes:
        """The content of a file."""
        try:
            return self._zip.read(name) if self._zip else (self.path / name).read_bytes()
        except (zipfile.BadZipFile, OSError) as error:
            raise DataError(f"{self.path}: {name} cannot be read ({error}); get it again") from None

    def places(self) -> dict[str, str]:
        """Where in the archive every picture lies, by its file name."""
        return {PurePosixPath(name).name: name for name in self.pictures}

    def image(self, name: str, size: int | None) -> numpy.ndarray:
        """A picture as colours [3, height, width] in bytes, resized to `size`×`size`."""
        from PIL import Image

        try:
            with Image.open(io.BytesIO(self.read(name))) as picture:
                colours = picture.convert("RGB")
        except (OSError, Image.DecompressionBombError) as error:  # Pillow's own errors are OSErrors
            raise DataError(f"{self.path}: {name} is no picture ({error}); get it again") from None
        if size is not None and colours.size != (size, size):
            colours = colours.resize((size, size))
        return numpy.asarray(colours).transpose(2, 0, 1)

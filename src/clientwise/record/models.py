"""Trained models as files: tensors by name, with what is needed to predict by them. Nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import Json, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..data.encoding import Encoding
from ..errors import ClientwiseError
from ..writing import write_atomically

ENDING = ".safetensors"


@dataclass(frozen=True)
class ModelHeader:
    """What the metadata of a file say about its model."""

    run: str
    method: str
    seed: Json[int]
    round: Json[int]
    model: str
    input_shape: Json[tuple[int, ...]]
    outputs: Json[int]
    input_scale: Json[float]
    network: Json[dict[str, Any] | None]  # as the config names it; None: passed in Python
    kind: str  # of problem
    table: Json[Encoding | None]
    named_shapes: Json[dict[str, tuple[int, ...]]] = field(default_factory=dict)
    frozen: str = ""  # the digest of the frozen parameters, which are not in the file

    def __post_init__(self) -> None:
        if self.table is not None and self.input_shape != (self.table.width,):
            raise ValueError(f"{self.table.width} inputs of columns, not {self.input_shape}")


_HEADER = TypeAdapter(ModelHeader)


def write_model(path: Path, tensors: Mapping[str, Tensor], header: ModelHeader) -> None:
    """Write a model; its metadata are texts, as safetensors asks for."""
    metadata = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in asdict(header).items()
    }
    write_atomically(path, save(dict(tensors), metadata))


def read_model(path: Path) -> tuple[ModelHeader, dict[str, Tensor]]:
    """A model that `write_model` wrote; ClientwiseError for any other file."""
    if path.is_dir():
        example = next(iter(sorted(path.glob(f"*{ENDING}"))), "FOLDER/MODEL.safetensors")
        raise ClientwiseError(
            f"{path}: is a folder; name a file that `clientwise export` wrote, such as {example}"
        )
    if not path.is_file():
        raise ClientwiseError(f"{path}: no such file; `clientwise export` writes models")
    try:
        metadata, tensors = read_tensors(path)
        header = _HEADER.validate_python(metadata)
    except ValidationError as error:
        first = error.errors()[0]
        what = ".".join(map(str, first["loc"])) or "metadata"
        raise _refused(path, f"{what}: {first['msg']}") from None
    except (SafetensorError, OSError) as error:
        raise _refused(path, str(error).splitlines()[0]) from None
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise _refused(path, "it has NaN or Inf")
    return header, tensors


def _refused(path: Path, reason: str) -> ClientwiseError:
    return ClientwiseError(
        f"{path}: not a model that `clientwise export` wrote ({reason}); export it again"
    )


def read_tensors(
    path: Path, device: torch.device | str = "cpu"
) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and the tensors of a file."""
    with safe_open(path, framework="pt", device=str(device)) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return file.metadata() or {}, tensors

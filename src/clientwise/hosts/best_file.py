"""The best model of another framework's run, as a file: tensors by name, and what it is the best by."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import Json, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..errors import RunError
from ..writing import make_folder, write_atomically

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Best:
    """Which model is kept, and why."""

    metric: str
    value: Json[float]
    round_num: Json[int]  # 0: the initial model
    lower: Json[bool]  # whether lower values are better


_BEST = TypeAdapter(Best)


def write_best(file: Path, tensors: Mapping[str, Tensor], best: Best) -> None:
    """Write a model. The old file stays until the new one is whole."""
    header = asdict(best)
    texts = {key: json.dumps(value) for key, value in header.items() if key != "metric"}
    make_folder(file.parent)
    write_atomically(file, save(dict(tensors), {"metric": best.metric, **texts}))


def read_best(file: Path) -> tuple[Best, Shapes]:
    """What a file says, and the shapes of its tensors; RunError for any other file."""
    try:
        with safe_open(file, framework="pt") as opened:
            best = _BEST.validate_python(opened.metadata() or {})
            shapes = {
                name: tuple(opened.get_slice(name).get_shape())
                for name in opened.keys()  # noqa: SIM118
            }
    except (SafetensorError, ValidationError, OSError):
        raise RunError(
            f"{file}: is not a model that keep_best wrote. Choose another file"
        ) from None
    return best, shapes

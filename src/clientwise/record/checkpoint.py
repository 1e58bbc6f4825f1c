"""A checkpoint: all that a lane needs to go on, in one safetensors file.

Tensors are tensors of the file, those that a part of the method keeps by the names `PART/NAME`. Scalars are JSON in
its header.

The header has a version. A file of another version is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from annotated_types import Ge, Le
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

from ..core.objective.loss import LossRecord
from ..core.types import Keeper, Memory, ServerState
from ..errors import RunError
from ..writing import write_atomically
from .models import read_tensors

CHECKPOINT_VERSION = 4
MODEL = "model"
ENGINE = "engine"
BEST = f"{ENGINE}.lane.best"  # the model of the best round, where `keep` says so
BEST_ROUND = f"{ENGINE}.lane.best_round"
# What these parts of a method keep has a row for each client
BY_CLIENT: tuple[Keeper, ...] = ("criteria", "evidence", "privacy")


@dataclass(frozen=True)
class _Scalars:
    """The part of a `ServerState` that is not tensors."""

    round_num: Annotated[int, Ge(0), Le(10**9)]
    loss: LossRecord
    priority: tuple[str, ...] | None
    quality: float | None


class _Content(NamedTuple):
    """The content of a checkpoint file."""

    owner: str
    scalars: _Scalars
    tensors: dict[str, Tensor]


_SCALARS = TypeAdapter(_Scalars)


def save_checkpoint(
    path: Path, state: ServerState, engine_state: Mapping[str, Tensor], owner: str = ""
) -> None:
    """Write the state of a lane and of its engine. The old file stays until the new is whole.

    Args:
        path: the checkpoint.
        state: of the lane.
        engine_state: of its engine.
        owner: the lane and its run.
    """
    of_engine = {f"{ENGINE}.{name}": tensor for name, tensor in engine_state.items()}
    tensors = _tensors(state) | of_engine
    content = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    scalars = _Scalars(state.round_num, state.loss.record(), state.priority, state.quality)
    text = json.dumps(asdict(scalars))
    header = {
        "version": str(CHECKPOINT_VERSION),
        "state": text,
        "fingerprint": _fingerprint(text, content),
        "owner": owner,
    }
    write_atomically(path, save(content, header))


def load_checkpoint(
    path: Path, first: ServerState, owner: str | None = None
) -> tuple[ServerState, dict[str, Tensor]]:
    """Read the state of a lane and of its engine.

    Args:
        path: the checkpoint.
        first: the state in which this lane began. The checkpoint has to fit it. Clients that have
            joined since the checkpoint keep their values from `first`.
        owner: the lane and its run; None: unknown.

    Returns:
        The state, and the tensors of the engine by name.
    """
    content = _checkpoint(path, first.model.device)
    if owner not in (None, content.owner):
        raise _refused(path, "the checkpoint of another run, method or seed")
    tensors = content.tensors
    for name, expected in _tensors(first).items():
        saved = tensors.get(name)
        if saved is None:
            misfit = f"{name} is missing, not of {list(expected.shape)}"
            raise _refused(path, f"not a checkpoint of this run ({misfit})")
        saved = saved.to(expected.device)
        alike = saved.dtype == expected.dtype and saved.shape[1:] == expected.shape[1:]
        if alike and saved.dim() and name.split("/")[0] in BY_CLIENT:  # clients may have joined
            saved = torch.cat([saved, expected[len(saved) :]])
        if not alike or saved.shape != expected.shape:
            misfit = f"{name} is of {list(saved.shape)}, not of {list(expected.shape)}"
            raise _refused(path, f"not a checkpoint of this run ({misfit})")
        tensors[name] = saved
    if sorted(content.scalars.priority or ()) != sorted(first.priority or ()):
        raise _refused(path, "not a checkpoint of this method (its criteria have other names)")
    kept = {name: one for name, one in tensors.items() if not name.startswith(f"{ENGINE}.")}
    model = kept.pop(MODEL)
    scalars: dict[str, Any] = vars(content.scalars)
    try:
        loss = content.scalars.loss.loss()
    except ValueError as error:
        raise _refused(path, f"not a checkpoint of this run ({error})") from None
    state = ServerState(model=model, memory=_nested(kept), **{**scalars, "loss": loss})
    prefix = f"{ENGINE}."
    own = {name: one for name, one in tensors.items() if name.startswith(prefix)}
    return state, {name.removeprefix(prefix): one for name, one in own.items()}


def load_model(path: Path) -> tuple[int, Tensor]:
    """Read the last round of a lane, or the best one where it keeps that, and the model [d] after it."""
    _, scalars, tensors = _checkpoint(path)
    if {BEST, BEST_ROUND} <= tensors.keys():
        return int(tensors[BEST_ROUND]), tensors[BEST]
    return scalars.round_num, tensors[MODEL]


def _checkpoint(path: Path, device: torch.device | str = "cpu") -> _Content:
    """The content of a checkpoint that is as it was written."""
    if not path.is_file():
        raise _refused(path, "not a file")
    try:
        header, tensors = read_tensors(path, device)
        scalars = _SCALARS.validate_json(header.get("state", ""), strict=True)
    except (SafetensorError, ValidationError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise _refused(path, f"not a checkpoint of clientwise ({reason})") from None
    if header.get("version") != str(CHECKPOINT_VERSION) or MODEL not in tensors:
        raise _refused(path, "not a checkpoint of this version of clientwise")
    if not bool(tensors[MODEL].isfinite().all()):
        raise _refused(path, "damaged (its model has NaN or Inf)")
    if header.get("fingerprint") != _fingerprint(header["state"], tensors):
        raise _refused(path, "damaged (it is not as it was written)")
    return _Content(header.get("owner", ""), scalars, tensors)


def _tensors(state: ServerState) -> dict[str, Tensor]:
    """The tensors of a state by their names in the file."""
    return {MODEL: state.model} | _flat(state.memory)


def _fingerprint(scalars: str, tensors: Mapping[str, Tensor]) -> str:
    """A digest that changes with every byte of the content."""
    digest = hashlib.sha256(scalars.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.cpu().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _flat(memory: Memory, path: str = "") -> dict[str, Tensor]:
    """The tensors of a memory, and of the memories in it, by their paths."""
    tensors: dict[str, Tensor] = {}
    for name, kept in memory.items():
        if isinstance(kept, Mapping):
            tensors |= _flat(kept, f"{path}{name}/")
        else:
            tensors[path + name] = kept
    return tensors


def _nested(tensors: Mapping[str, Tensor]) -> Memory:
    """The memory that `_flat` was given."""
    memory: dict[str, Any] = {}
    for path, tensor in tensors.items():
        *parts, name = path.split("/")
        place = memory
        for part in parts:
            place = place.setdefault(part, {})
        place[name] = tensor
    return memory


def _refused(path: Path, reason: str) -> RunError:
    return RunError(f"{path}: {reason}; delete it to start this lane again")

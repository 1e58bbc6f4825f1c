"""A checkpoint: all that a lane needs to go on, in one safetensors file.

Tensors are tensors of the file. Scalars are JSON in its header.

The header has a version. A file of another version is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
from annotated_types import Ge, Le
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..core.objective.loss import Loss, LossRecord
from ..core.types import ServerState
from ..errors import RunError
from ..writing import write_atomically

CHECKPOINT_VERSION = 2
BEST = "engine.lane.best"  # the model of the best round, where `keep` says so
BEST_ROUND = "engine.lane.best_round"
BY_CLIENT = ("memory.", "evidence.", "privacy.", "sampling.")  # a row for each client


@dataclass(frozen=True)
class _Scalars:
    """The part of a `ServerState` that is not tensors."""

    round_num: Annotated[int, Ge(0), Le(10**9)]
    loss: LossRecord
    priority: tuple[str, ...] | None
    quality: float | None


@dataclass(frozen=True)
class _Content:
    """The content of a checkpoint file, before it is checked."""

    header: dict[str, str]
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
    tensors = {**_tensors(state), **_prefixed("engine.", engine_state)}
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
    content = _read(path, first.model.device)
    tensors = content.tensors
    if owner is not None and content.header.get("owner") != owner:
        raise _refused(path, "the checkpoint of another run, method or seed")
    _refuse_misfits(path, content, first)
    _refuse_damage(path, content)
    for name, expected in _tensors(first).items():
        saved = tensors.get(name, expected).to(expected.device)
        tensors[name] = _with_joined(saved, expected)
    state = ServerState(
        round_num=content.scalars.round_num,
        model=tensors["model"],
        loss=_loss(path, content.scalars.loss),
        memory=_under("memory.", tensors),
        priority=content.scalars.priority,
        quality=content.scalars.quality,
        step_state=_under("step.", tensors),
        evidence=_under("evidence.", tensors),
        rule_state=_under("rule.", tensors),
        privacy=_under("privacy.", tensors),
        sampling=_under("sampling.", tensors),
    )
    return state, _under("engine.", tensors)


def _loss(path: Path, record: LossRecord) -> Loss:
    try:
        return record.loss()
    except ValueError as error:
        raise _refused(path, f"not a checkpoint of this run ({error})") from None


def load_model(path: Path, *, best: bool = False) -> tuple[int, Tensor]:
    """Read the last round of a lane, and the model [d] after it.

    With `best`, read the best round and its model, where the lane keeps it.
    """
    content = _read(path, torch.device("cpu"))
    tensors = content.tensors
    if "model" not in tensors:
        raise _refused(path, "not a checkpoint of clientwise (it has no model)")
    _refuse_damage(path, content)
    if best and {BEST, BEST_ROUND} <= tensors.keys():
        return int(tensors[BEST_ROUND]), tensors[BEST]
    return content.scalars.round_num, tensors["model"]


def _read(path: Path, device: torch.device) -> _Content:
    if not path.is_file():
        raise _refused(path, "not a file")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            header = file.metadata() or {}
            _refuse_other_version(path, header)
            scalars = _SCALARS.validate_json(header.get("state", ""), strict=True)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValidationError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise _refused(path, f"not a checkpoint of clientwise ({reason})") from None
    return _Content(header, scalars, tensors)


def _refuse_other_version(path: Path, header: Mapping[str, str]) -> None:
    text = header.get("version", "")
    is_number = text.isdecimal() and len(text) <= 9
    if is_number and int(text) > CHECKPOINT_VERSION:
        raise RunError(
            f"{path}: was written by a newer version of clientwise (checkpoint version {text}; "
            f"this version reads version {CHECKPOINT_VERSION}). Upgrade clientwise"
        )
    if text != str(CHECKPOINT_VERSION):
        raise _refused(path, f"not a checkpoint of clientwise (version {text[:20]!r})")


def _refuse_misfits(path: Path, content: _Content, first: ServerState) -> None:
    """RunError where a checkpoint is of another lane than the one that began with `first`."""
    for name, expected in _tensors(first).items():
        shape = list(expected.shape)
        if name not in content.tensors:
            misfit = f"{name} is missing, not of {shape}"
            raise _refused(path, f"not a checkpoint of this run ({misfit})")
        if not _fits(name, content.tensors[name], expected):
            misfit = f"{name} is of {list(content.tensors[name].shape)}, not of {shape}"
            raise _refused(path, f"not a checkpoint of this run ({misfit})")
    if sorted(content.scalars.priority or ()) != sorted(first.priority or ()):
        raise _refused(path, "not a checkpoint of this method (its criteria have other names)")


def _fits(name: str, saved: Tensor, expected: Tensor) -> bool:
    """Whether a tensor has the expected type and shape.

    One with a value per client may be shorter: clients may have joined since.
    """
    if name.startswith(BY_CLIENT) and saved.dim() > 0 and len(saved) < len(expected):
        expected = expected[: len(saved)]
    return saved.dtype == expected.dtype and saved.shape == expected.shape


def _with_joined(saved: Tensor, expected: Tensor) -> Tensor:
    """A tensor as it was saved, with the first values of clients that have joined since."""
    if saved.shape == expected.shape:
        return saved
    return torch.cat([saved, expected[len(saved) :]])


def _refuse_damage(path: Path, content: _Content) -> None:
    """RunError where a file is not as it was written."""
    if not bool(content.tensors["model"].isfinite().all()):
        raise _refused(path, "damaged (its model has NaN or Inf)")
    expected = _fingerprint(content.header["state"], content.tensors)
    if content.header.get("fingerprint") != expected:
        raise _refused(path, "damaged (it is not as it was written)")


def _tensors(state: ServerState) -> dict[str, Tensor]:
    """The tensors of a state by their names in the file."""
    return {
        "model": state.model,
        **_prefixed("memory.", state.memory),
        **_prefixed("step.", state.step_state),
        **_prefixed("evidence.", state.evidence),
        **_prefixed("rule.", state.rule_state),
        **_prefixed("privacy.", state.privacy),
        **_prefixed("sampling.", state.sampling),
    }


def _fingerprint(scalars: str, tensors: Mapping[str, Tensor]) -> str:
    """A digest that changes with every byte of the content."""
    digest = hashlib.sha256(scalars.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.cpu().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, without it."""
    named = [(name, tensor) for name, tensor in tensors.items() if name.startswith(prefix)]
    return {name.removeprefix(prefix): tensor for name, tensor in named}


def _refused(path: Path, reason: str) -> RunError:
    return RunError(f"{path}: {reason}; delete it to start this lane again")

"""A checkpoint: where a lane can go on. One file of tensors, with everything else as JSON beside them."""

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

from ..core.loss import LossRecord
from ..core.types import ServerState
from ..errors import RunError
from .files import write_atomically


@dataclass(frozen=True)
class _Scalars:
    """What of a `ServerState` is no tensor."""

    round_num: Annotated[int, Ge(0), Le(10**9)]
    loss: LossRecord
    priority: tuple[str, ...] | None
    quality: float | None


_SCALARS = TypeAdapter(_Scalars)


def save_checkpoint(path: Path, state: ServerState, engine_state: Mapping[str, Tensor]) -> None:
    """Write the state of a lane and of its engine. The old file is there until the new one is whole."""
    tensors = {**_tensors(state), **_prefixed("engine.", engine_state)}
    scalars = json.dumps(asdict(_Scalars(state.round_num, state.loss.record(), state.priority, state.quality)))
    content = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(content, {"state": scalars, "fingerprint": _fingerprint(scalars, content)}))


def load_checkpoint(path: Path, first: ServerState) -> tuple[ServerState, dict[str, Tensor]]:
    """The state of a lane and of its engine. It must fit the state in which this lane began.

    Of clients that joined since, it knows what `first` does.
    """
    about, scalars, tensors = _read(path, first.model.device)
    for name, expected in _tensors(first).items():
        if name not in tensors or not _fits(name, tensors[name], expected):
            found = f"of {list(tensors[name].shape)}" if name in tensors else "missing"
            raise _refused(path, f"not a checkpoint of this run ({name} is {found}, not of {list(expected.shape)})")
    if sorted(scalars.priority or ()) != sorted(first.priority or ()):
        raise _refused(path, "not a checkpoint of this method (its criteria have other names)")
    _check(path, about, tensors)
    for name, expected in _tensors(first).items():
        saved = tensors[name].to(expected.device)
        tensors[name] = saved if saved.shape == expected.shape else torch.cat([saved, expected[len(saved) :]])
    state = ServerState(
        round_num=scalars.round_num,
        model=tensors["model"],
        loss=scalars.loss.loss(),
        memory=_under("memory.", tensors),
        priority=scalars.priority,
        quality=scalars.quality,
        step_state=_under("step.", tensors),
        evidence=_under("evidence.", tensors),
        rule_state=_under("rule.", tensors),
    )
    return state, _under("engine.", tensors)


def _fits(name: str, saved: Tensor, expected: Tensor) -> bool:
    """Whether a tensor is one of this lane; of those with a value for every client, clients may have joined since."""
    if name.startswith(("memory.", "evidence.")) and saved.dim() > 0 and len(saved) < len(expected):
        expected = expected[: len(saved)]
    return saved.dtype == expected.dtype and saved.shape == expected.shape


def load_model(path: Path) -> tuple[int, Tensor]:
    """The last round of a lane, and the model [d] after it."""
    about, scalars, tensors = _read(path, torch.device("cpu"))
    if "model" not in tensors:
        raise _refused(path, "not a checkpoint of clientwise (it has no model)")
    _check(path, about, tensors)
    return scalars.round_num, tensors["model"]


def _read(path: Path, device: torch.device) -> tuple[dict[str, str], _Scalars, dict[str, Tensor]]:
    """What is in the file, as it says."""
    if not path.is_file():
        raise _refused(path, "not a file")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            about = file.metadata() or {}
            scalars = _SCALARS.validate_json(about.get("state", ""), strict=True)
            return about, scalars, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValidationError, OSError) as error:
        raise _refused(path, f"not a checkpoint of clientwise ({str(error).splitlines()[0]})") from None


def _check(path: Path, about: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    """Refuse what is not as it was written."""
    if not bool(tensors["model"].isfinite().all()):
        raise _refused(path, "damaged (its model has NaN or Inf)")
    if "fingerprint" in about and about["fingerprint"] != _fingerprint(about["state"], tensors):  # old files have none
        raise _refused(path, "damaged (it is not as it was written)")


def _tensors(state: ServerState) -> dict[str, Tensor]:
    """The tensors of a state by their names in the file."""
    return {
        "model": state.model,
        **_prefixed("memory.", state.memory),
        **_prefixed("step.", state.step_state),
        **_prefixed("evidence.", state.evidence),
        **_prefixed("rule.", state.rule_state),
    }


def _fingerprint(scalars: str, tensors: Mapping[str, Tensor]) -> str:
    """Tells a file that was changed in any place from the one that was written."""
    found = hashlib.sha256(scalars.encode())
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        found.update(tensor.cpu().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _refused(path: Path, reason: str) -> RunError:
    return RunError(f"{path}: {reason}; delete it to start this lane again")

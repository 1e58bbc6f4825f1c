"""What the numbers of a run come from: data, plugins, versions. A run goes on with the same, or says what changed."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from safetensors import safe_open

from ..data.federated import FederatedData
from ..errors import RunError
from ..runs.rows import Change
from ..runs.writer import Store
from .schema import Experiment

PACKAGES = ("clientwise", "torch", "numpy", "pydantic", "safetensors")
COMPARED = ("clientwise", "torch", "python")  # those that decide what a round computes
MOST_NAMED = 3  # clients in a message


@dataclass(frozen=True)
class Origin:
    """What the numbers of a run come from, as the run keeps it."""

    versions: dict[str, str]
    plugins: dict[str, str]  # the fingerprint of each one's code
    data: dict[int, list[str]]  # by seed, the fingerprint of what every client holds and, last, the server
    initial_model: str = ""  # the fingerprint of its file; "" is a random one
    left: list[str] = field(default_factory=list)  # members of a deployment that have


_ORIGIN = TypeAdapter(Origin)
_CHANGES = TypeAdapter(list[Change])


def versions() -> dict[str, str]:
    """What runs here."""
    found = {name: version(name) for name in PACKAGES}
    if "flwr" in sys.modules:
        found["flwr"] = version("flwr")
    return found | {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}


def check_origin(
    store: Store, experiment: Experiment, data: Mapping[int, FederatedData], *, accept_changes: bool
) -> None:
    """Keep what a run comes from; where it began with something else, RunError, or a line in its record."""
    now = Origin(
        versions(),
        {name: _code(name) for name in experiment.plugins},
        {seed: own.fingerprints() for seed, own in data.items()},
        _digest([Path(experiment.initial_model)]) if experiment.initial_model else "",
        experiment.flower.left,
    )
    before, changes = _kept(store)
    names = experiment.flower.clients
    members = [*_member_changes(before, now, names)] if before else []
    found = [*_differences(before, now, data, names)] if before else []
    if found and not accept_changes:
        raise RunError(
            f"{store.folder}: did not begin with this: {'; '.join(found)}. Put that back, choose another output "
            "folder, or go on with --accept-changes (in Python accept_changes=True), which its record will say"
        )
    if found or members:
        changes.append(Change(f"{datetime.now():%Y-%m-%d %H:%M}", store.rounds_done(), [*members, *found]))
        store.set_facts({"changes": changes})
    known = before.data if before else {}
    for seed, own in now.data.items():
        if known.get(seed) != own:
            # A run on two kinds of data has none in common with a run on either.
            first = [json.loads(store.fact(_key(seed)) or '""')] if seed in known else []
            whole = hashlib.blake2b("".join(own).encode(), digest_size=16).hexdigest()
            store.set_facts({_key(seed): " then ".join([*first, whole])})
    store.set_facts({"origin": asdict(replace(now, data=known | now.data))})
    if experiment.initial_model:
        store.keep_fact("initial model", _described(Path(experiment.initial_model), now.initial_model))


def _kept(store: Store) -> tuple[Origin | None, list[Change]]:
    """What a run began with, and what was changed since; runs of older versions do not know."""
    origin, changes = store.fact("origin"), store.fact("changes")
    try:
        return _ORIGIN.validate_json(origin) if origin else None, _CHANGES.validate_json(changes) if changes else []
    except ValidationError:
        raise RunError(f"{store.folder}: its database is damaged (its origin cannot be read)") from None


def _differences(before: Origin, now: Origin, data: Mapping[int, FederatedData], names: Sequence[str]) -> Iterator[str]:
    """In words: other data of whom, other code of which plugin, other versions."""
    seeds: dict[str, list[int]] = {}
    for seed in sorted(before.data.keys() & now.data.keys()):
        if before.data[seed] != now.data[seed] and not _joined(before.data[seed], now.data[seed], names):
            seeds.setdefault(_whose(before.data[seed], now.data[seed], data[seed]), []).append(seed)
    for whose, under in seeds.items():
        yield f"other data (seed {', '.join(map(str, under))}): {whose}"
    for name in sorted(before.plugins.keys() & now.plugins.keys()):
        if before.plugins[name] != now.plugins[name]:
            yield f"other code in the plugin {name}"
    if before.initial_model != now.initial_model:
        yield "another initial model"
    for name in COMPARED:
        if before.versions.get(name) != now.versions[name]:
            yield f"{name} {now.versions[name]}, not {before.versions.get(name)}"


def _member_changes(before: Origin, now: Origin, names: Sequence[str]) -> Iterator[str]:
    """Who joined, left or came back, which the config says of itself."""
    own = [(before.data.get(seed, []), holders) for seed, holders in now.data.items()]
    known = max((len(held) - 1 for held, holders in own if _joined(held, holders, names)), default=len(names))
    for what, who in {
        "joined": names[known:],
        "left": [name for name in now.left if name not in before.left],
        "came back": [name for name in before.left if name not in now.left],
    }.items():
        if who:
            yield f"{', '.join(who)} {what}"


def _joined(before: Sequence[str], now: Sequence[str], names: Sequence[str]) -> bool:
    """Whether everybody holds what they held, the server too, and the config names clients after the last."""
    same = 0 < len(before) < len(now) and [*before] == [*now[: len(before) - 1], now[-1]]
    return same and len(now) == len(names) + 1


def _whose(before: Sequence[str], now: Sequence[str], data: FederatedData) -> str:
    """Who has other data than before."""
    if len(before) != len(now):
        return f"{len(now) - 1} clients, not {len(before) - 1}"
    pairs = zip(before, now, strict=True)
    changed = [holder for holder, (old, new) in enumerate(pairs) if old != new]
    if len(changed) == len(now):
        return "everybody's"
    names = ["the server" if holder == data.num_clients else data.called(holder) for holder in changed]
    more = f" and {len(names) - MOST_NAMED} others" if len(names) > MOST_NAMED else ""
    return f"that of {', '.join(names[:MOST_NAMED])}{more}"


def _code(name: str) -> str:
    """The fingerprint of a plugin's own files, which was imported when the config was read."""
    module = sys.modules[name]
    folders = [Path(folder) for folder in getattr(module, "__path__", ())]
    files = sorted(path for folder in folders for path in folder.rglob("*.py")) or [Path(str(module.__file__))]
    return _digest(files)


def _described(path: Path, fingerprint: str) -> str:
    """A file with a model, and what it says about itself, where `clientwise export` wrote it."""
    with safe_open(path, framework="pt") as file:
        about = file.metadata() or {}
    came = (
        f"round {about['round']} of {about['method']} in {about['run']}, " if {"round", "run"} <= about.keys() else ""
    )
    return f"{path.name} ({came}fingerprint {fingerprint})"


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _key(seed: int) -> str:
    return f"data of seed {seed}"

"""The origin of a run's numbers: data, plugins, versions. A resumed run must have the same one."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from safetensors import safe_open

from ...data.federated import FederatedData
from ...errors import RunError
from ...models.flat import frozen_digest, same_frozen
from ...models.own import OwnModel
from ...record.facts import current_minute, recorded_fact
from ...record.reading.rows import Change
from ...record.writer import Store
from ..build.engine import build_module
from ..config.schema import Experiment
from .code import bound_values, function_code, network_code
from .machine import system

PACKAGES = ("clientwise", "torch", "numpy", "pydantic", "safetensors")
COMPARED = ("clientwise", "torch", "python")  # those that decide what a round computes
MOST_NAMED = 3  # clients in a message


@dataclass(frozen=True)
class Origin:
    """What the numbers of a run come from, as the run records it."""

    versions: dict[str, str]
    plugins: dict[str, str]  # the fingerprint of each one's code
    data: dict[int, list[str]]  # by seed: a fingerprint for each client and, last, the server
    initial_model: str = ""  # the fingerprint of its file; "" is a random one
    left: list[str] = field(default_factory=list)  # members that have left a deployment
    frozen: str = ""  # the digest of the network's frozen parameters; "" where it has none
    network: str = ""  # the fingerprint of a network that was given in Python; "" where none was
    # The fingerprints of functions that were given in Python instead of a name, by kind and name
    functions: dict[str, str] = field(default_factory=dict)
    # The fingerprints of the values that they are bound to; none in earlier records
    values: dict[str, str] = field(default_factory=dict)
    # The digest of the parameters that all seeds begin with, where a module was given; "" in earlier records
    parameters: str = ""


@dataclass(frozen=True)
class ComparedOrigin:
    """The origin now, what was recorded before, and how they differ."""

    now: Origin
    before: Origin | None
    changes: list[Change]  # accepted earlier
    differences: list[str]


_ORIGIN = TypeAdapter(Origin)
_CHANGES = TypeAdapter(list[Change])


_version = cache(version)  # each call reads and parses a file


def versions() -> dict[str, str]:
    """The versions of Python, of this package and of those it computes with."""
    found = {name: _version(name) for name in PACKAGES}
    if "flwr" in sys.modules:
        found["flwr"] = _version("flwr")
    found["python"] = platform.python_version()
    found["machine"] = system()
    return found


def compare_origin(
    folder: Path,
    experiment: Experiment,
    data: Mapping[int, FederatedData],
    *,
    accept_changes: bool,
) -> ComparedOrigin:
    """Compare with what the run recorded. RunError where they differ and that is not accepted.

    Args:
        folder: the run folder; none of its files changes.
        experiment: the experiment to run or to resume.
        data: the data of every seed.
        accept_changes: go on where data, code or versions differ.
    """
    now = _current(experiment, data)
    before, changes = _recorded(folder)
    if before is None:
        return ComparedOrigin(now, None, changes, [])
    names = experiment.flower.clients
    other_data = list(_other_data(before, now, data, names))
    found = [*other_data, *_differences(before, now)]
    if found and not accept_changes:
        raise RunError(
            f"{folder}: the run began with something else: {'; '.join(found)}. Restore it, choose "
            "another output folder, or go on with --accept-changes (in Python accept_changes=True), which "
            f"is recorded{_about_computed(before, now) if other_data else ''}"
        )
    differences = [*_member_changes(before, now, names), *found]
    return ComparedOrigin(now, before, changes, differences)


def _about_computed(before: Origin, now: Origin) -> str:
    """A hint where other data may be the same, computed on another machine before they were passed in."""
    if before.versions.get("machine") == now.versions["machine"]:
        return ""
    return (
        ". Arrays that you compute differ in their last bits between machines, and this one is another: copy the "
        "arrays, or set `Samples.given` to what they are computed from"
    )


def recorded_parameters(folder: Path) -> str | None:
    """The digest of the parameters that all seeds began with; None where nothing is recorded yet."""
    origin, _ = _recorded(folder)
    return origin.parameters if origin else None


def record_origin(store: Store, experiment: Experiment, compared: ComparedOrigin) -> None:
    """Record what a run comes from, and what has changed since it began."""
    if compared.differences:
        now = current_minute()
        change = Change(now, store.rounds_done(), compared.differences)
        store.set_facts({"changes": [*compared.changes, change]})
    known = compared.before.data if compared.before else {}
    for seed, own in compared.now.data.items():
        if known.get(seed) != own:
            store.set_facts({_key(seed): _whole(store, seed, own, is_changed=seed in known)})
    origin = replace(compared.now, data=known | compared.now.data)
    store.set_facts({"origin": vars(origin)})
    if experiment.functions:
        # Code that is run as a text may have no name of a module.
        given = {name: one.__module__ or "text" for name, one in experiment.functions.items()}
        store.set_facts({"functions": given})
    if experiment.initial_model:
        described = _described(Path(experiment.initial_model), origin.initial_model)
        store.keep_fact("initial model", described)


def _whole(store: Store, seed: int, own: Sequence[str], *, is_changed: bool) -> str:
    """One fingerprint for all data of a seed. Changed data have both: they pair with neither."""
    whole = hashlib.blake2b("".join(own).encode(), digest_size=16).hexdigest()
    if not is_changed:
        return whole
    first = json.loads(store.fact(_key(seed)) or '""')
    return f"{first} then {whole}"


def _current(experiment: Experiment, data: Mapping[int, FederatedData]) -> Origin:
    initial = experiment.initial_model
    frozen = ""
    network = ""
    if data:
        seed = experiment.seeds[0]
        module = build_module(experiment, data[seed].samples, seed)
        frozen = frozen_digest(module)
        network = network_code(module) if experiment.own_model else ""
    return Origin(
        versions=versions(),
        plugins={name: _code(name) for name in experiment.plugins},
        data={seed: own.fingerprints() for seed, own in data.items()},
        initial_model=_digest([Path(initial)]) if initial else "",
        left=experiment.flower.left,
        frozen=frozen,
        network=network,
        functions={name: function_code(one) for name, one in experiment.functions.items()},
        values={name: bound_values(one) for name, one in experiment.given.items()},
        parameters=_vector_digest(experiment.own_model),
    )


def _vector_digest(model: OwnModel | None) -> str:
    if model is None or model.start is None:
        return ""
    return hashlib.blake2b(model.start.numpy().data, digest_size=16).hexdigest()


def _recorded(folder: Path) -> tuple[Origin | None, list[Change]]:
    """What a run began with, None where it recorded nothing yet, and what changed since."""
    origin = recorded_fact(folder, "origin")
    changes = recorded_fact(folder, "changes")
    try:
        return (
            _ORIGIN.validate_json(origin) if origin else None,
            _CHANGES.validate_json(changes) if changes else [],
        )
    except ValidationError:
        hint = "its database is damaged (its origin cannot be read)"
        raise RunError(f"{folder}: {hint}") from None


def _other_data(
    before: Origin,
    now: Origin,
    data: Mapping[int, FederatedData],
    names: Sequence[str],
) -> Iterator[str]:
    """Other data, in words."""
    seeds: dict[str, list[str]] = {}
    for seed in sorted(before.data.keys() & now.data.keys()):
        old = before.data[seed]
        new = now.data[seed]
        if old != new and not _joined(old, new, names):
            seeds.setdefault(_whose(old, new, data[seed]), []).append(str(seed))
    for whose, under in seeds.items():
        yield f"other data (seed {', '.join(under)}): {whose}"


def _differences(before: Origin, now: Origin) -> Iterator[str]:
    """Other code of plugins, initial model, frozen parameters or versions, in words."""
    for name in sorted(before.plugins.keys() & now.plugins.keys()):
        if before.plugins[name] != now.plugins[name]:
            yield f"other code in the plugin {name}"
    for name in sorted(before.functions.keys() & now.functions.keys()):
        if before.functions[name] != now.functions[name]:
            yield f"other code in the function of the {name}"
        elif _differ(before.values.get(name), now.values.get(name)):
            yield f"other values in the function of the {name}"
    if before.initial_model != now.initial_model:
        yield "another initial model"
    if before.parameters and before.parameters != now.parameters:
        yield "other initial parameters of the network"
    if now.data and not same_frozen(before.frozen, now.frozen):
        yield "other frozen parameters of the network"
    if before.network and now.network and before.network != now.network:
        yield "other code or layers of the network"
    for name in COMPARED:
        if before.versions.get(name) != now.versions[name]:
            yield f"{name} {now.versions[name]}, not {before.versions.get(name)}"


def _differ(before: str | None, now: str | None) -> bool:
    """Whether two fingerprints differ; False where one is unknown."""
    return before is not None and now is not None and before != now


def _member_changes(before: Origin, now: Origin, names: Sequence[str]) -> Iterator[str]:
    """Members that joined, left or came back; the config says so itself."""
    grown = []
    for seed, holders in now.data.items():
        held = before.data.get(seed, [])
        if _joined(held, holders, names):
            grown.append(len(held) - 1)
    known = max(grown, default=len(names))
    members = {
        "joined": names[known:],
        "left": [name for name in now.left if name not in before.left],
        "came back": [name for name in before.left if name not in now.left],
    }
    for what, who in members.items():
        if who:
            yield f"{', '.join(who)} {what}"


def _joined(before: Sequence[str], now: Sequence[str], names: Sequence[str]) -> bool:
    """Whether the data are as before, except for new clients after the last one in the config."""
    if not 0 < len(before) < len(now):
        return False
    same = [*before] == [*now[: len(before) - 1], now[-1]]
    return same and len(now) == len(names) + 1


def _whose(before: Sequence[str], now: Sequence[str], data: FederatedData) -> str:
    """Which clients have other data than before."""
    if len(before) != len(now):
        return f"{len(now) - 1} clients, not {len(before) - 1}"
    pairs = zip(before, now, strict=True)
    changed = [holder for holder, (old, new) in enumerate(pairs) if old != new]
    if len(changed) == len(now):
        return "those of all clients"
    names = [_holder(holder, data) for holder in changed]
    text = ", ".join(names[:MOST_NAMED])
    if len(names) > MOST_NAMED:
        text += f" and {len(names) - MOST_NAMED} others"
    return f"those of {text}"


def _holder(holder: int, data: FederatedData) -> str:
    return "the server" if holder == data.num_clients else data.called(holder)


def _code(name: str) -> str:
    """The fingerprint of a plugin's own files; it was imported when the config was read."""
    module = sys.modules[name]
    files: list[Path] = []
    for folder in getattr(module, "__path__", ()):
        files += Path(folder).rglob("*.py")
    return _digest(sorted(files) or [Path(str(module.__file__))])


def _described(path: Path, fingerprint: str) -> str:
    """The file of a model, with the run it came from where `clientwise export` wrote that."""
    with safe_open(path, framework="pt") as file:
        about = file.metadata() or {}
    if not {"round", "run"} <= about.keys():
        return f"{path.name} (fingerprint {fingerprint})"
    came = f"round {about['round']} of {about['method']} in {about['run']}"
    return f"{path.name} ({came}, fingerprint {fingerprint})"


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _key(seed: int) -> str:
    return f"data of seed {seed}"

"""Where the numbers of a run come from: data, code, versions, machine. A resumed run must have the same.

Data, code and versions are compared as digests: a difference is refused unless it is accepted. Another machine
may change the last bits of later rounds; that is said and recorded.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from ...data.federated import FederatedData
from ...engine.device import thread_count
from ...engine.executor import DeviceExecutor
from ...errors import RunError
from ...models.flat import frozen_digest, same_frozen
from ...record.database import recorded_fact
from ...record.facts import Change, MachineRow, changed_facts, current_minute
from ...record.files import initial_path
from ...record.store import Store
from ..build.engine import build_module
from ..config.schema import Experiment

Origin = dict[str, str]  # what it is: its digest
PACKAGES = ("clientwise", "torch", "numpy", "pydantic", "safetensors")
COMPARED = ("clientwise", "torch", "python")  # versions that decide what a round computes
FROZEN = "frozen parameters of the network"
MACHINES = "machines"
_CPU = re.compile(r"^(?:model name|CPU part)\s*:\s*(.+)$", re.MULTILINE)
_version = cache(version)  # each call reads and parses a file


def versions() -> dict[str, str]:
    """The versions of Python, of this package and of those it computes with."""
    found = {name: _version(name) for name in PACKAGES}
    if "flwr" in sys.modules:
        found["flwr"] = _version("flwr")
    return found | {"python": platform.python_version(), "machine": system()}


def origin_of(experiment: Experiment, data: Mapping[int, FederatedData]) -> Origin:
    """The versions, and a digest of everything that was given: the data of every seed, code, parameters."""
    found: Origin = {f"data (seed {seed})": one.fingerprint() for seed, one in data.items()}
    for name in experiment.plugins:
        found[f"code in the plugin {name}"] = _digest(*_files_of(name))
    for name, (_, made) in experiment.given.items():
        found[f"code of the {name}"] = code_of(made.given)
    if experiment.initial_model:
        found["initial model"] = _digest(Path(experiment.initial_model).read_bytes())
    own = experiment.own_model
    if own is not None and own.start is not None:
        found["initial parameters of the network"] = _digest(own.start.numpy().data)
    if data:
        seed, first = next(iter(data.items()))
        module = build_module(experiment, first.samples, seed)
        found[FROZEN] = frozen_digest(module)
        if own is not None:
            found["code or layers of the network"] = network_code(module)
    used = versions()
    return found | {name: used[name] for name in COMPARED}


def compare_origin(
    folder: Path,
    experiment: Experiment,
    data: Mapping[int, FederatedData],
    *,
    accept_changes: bool,
) -> tuple[Origin, list[str]]:
    """The origin of what is to be run, and how it differs from what the run recorded.

    RunError where it differs and that is not accepted. No file of the folder changes.
    """
    now = origin_of(experiment, data)
    before: Origin = recorded_fact(folder, "origin") or {}
    found = list(_differences(before, now))
    if found and not accept_changes:
        raise RunError(
            f"{folder}: the run began with something else: {'; '.join(found)}. Restore it, choose "
            "another output folder, or go on with --accept-changes (in Python accept_changes=True), which is recorded"
        )
    return before | now, found


def record_origin(
    store: Store, experiment: Experiment, origin: Origin, changes: Sequence[str]
) -> None:
    """Record what a run comes from, and what has changed since it began."""
    before: Origin = store.fact("origin") or {}
    data: dict[str, str] = store.fact("data") or {}
    for seed in experiment.seeds:
        what = f"data (seed {seed})"
        if before.get(what) != origin[what]:
            first = data.get(str(seed))
            # Changed data have both digests: they pair with neither.
            data[str(seed)] = f"{first} then {origin[what]}" if first else origin[what]
    facts: dict[str, object] = {"origin": origin, "data": data}
    if changes:
        change = Change(current_minute(), store.rounds_done(), list(changes))
        facts["changes"] = [*(store.fact("changes") or ()), change]
    if experiment.given:
        # Code that is run as a text may have no name of a module.
        given = experiment.given.items()
        facts["functions"] = {name: made.source.__module__ or "text" for name, (_, made) in given}
    store.set_facts(facts)
    if experiment.initial_model:
        name = Path(experiment.initial_model).name
        store.keep_fact("initial_model", f"{name} (fingerprint {origin['initial model']})")


def with_initial_parameters(folder: Path, experiment: Experiment) -> tuple[Experiment, list[str]]:
    """The experiment with the parameters that its run began with, and a remark where others were given.

    All lanes of a module that was given in Python begin with its parameters. A script that is run again
    makes its module anew, with other random ones: lanes that begin now would not be comparable.
    """
    own = experiment.own_model
    if own is None or experiment.initial_model is not None:
        return experiment, []
    given = own.parameters()
    path = initial_path(folder)
    if path.exists():
        try:
            kept = load_file(path)["model"].float()
        except (OSError, SafetensorError, KeyError) as error:
            reason = str(error).splitlines()[0]
            hint = "restore it, or choose another output folder"
            raise RunError(f"{path}: damaged ({reason}); {hint}") from None
        if given is None or given.numel() == kept.numel():  # other layers are refused later
            is_same = given is not None and given.equal(kept)
            said = "goes on with the initial parameters that it began with, not those of the given network"
            remarks = [] if is_same else [f"{folder}: {said}"]
            return experiment.with_model(own.starting_from(kept)), remarks
    if given is None:
        return experiment, []
    return experiment.with_model(own.starting_from(given)), []


def _differences(before: Origin, now: Origin) -> Iterator[str]:
    """What differs, in words."""
    for what, digest in now.items():
        old = before.get(what, digest)
        if old == digest or (what == FROZEN and same_frozen(old, digest)):
            continue
        yield f"{what} {digest}, not {old}" if what in COMPARED else f"other {what}"


def _files_of(name: str) -> Iterator[bytes]:
    """The code of a plugin; it was imported when the config was read."""
    module = sys.modules[name]
    files = [
        file for folder in getattr(module, "__path__", ()) for file in Path(folder).rglob("*.py")
    ]
    for file in sorted(files) or [Path(str(module.__file__))]:
        yield file.read_bytes()


def _digest(*contents: Any) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


# Code that was given in Python, the same in every process ---------------------------------------------


def code_of(given: object) -> str:
    """The digest of the code of a function or of an object's class, without the values that it is bound to.

    >>> code_of(partial(code_of, 1)) == code_of(code_of)
    True
    """
    while isinstance(given, partial):
        given = given.func
    return _digest(_source(given).encode())


def network_code(module: nn.Module) -> str:
    """The digest of a network's layers, and of the code of its own classes."""
    kinds = {kind for layer in module.modules() for kind in type(layer).__mro__}
    own = [
        kind
        for kind in kinds
        if not kind.__module__.startswith(("torch.", "clientwise.", "builtins"))
    ]
    functions = [one for kind in own for one in vars(kind).values() if inspect.isfunction(one)]
    layers = re.sub(r" at 0x[0-9a-f]+", "", repr(module))  # addresses differ in every process
    return _digest("\n".join([layers, *sorted(map(_source, functions))]).encode())


def _source(value: object) -> str:
    """The source of a function, a class, or an object's class; its name where there is no source."""
    kind: Any = value if isinstance(value, FunctionType | MethodType | type) else type(value)
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # typed at a prompt
        return str(kind.__qualname__)


# The machine ------------------------------------------------------------------------------------------


def machine_facts(
    executor: DeviceExecutor | None = None, *, on_ray: bool = False
) -> dict[str, str]:
    """What the last bits depend on; without an executor, what is the same for all runs of this process."""
    facts = {
        "system": system(),
        "CPU": _cpu_model(),
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "MKL_CBWR": os.environ.get("MKL_CBWR", "not set"),
    }
    if executor is not None:
        on_gpu = executor.device.type == "cuda"
        facts["GPU"] = torch.cuda.get_device_name(executor.device) if on_gpu else "none"
        facts["threads"] = str(thread_count(executor.spec.num_parameters))
        facts["workers"] = "ray" if on_ray else str(executor.workers)
    return facts


def system() -> str:
    """The operating system and the kind of processor."""
    return f"{platform.system()} {platform.machine()}"


def record_machine(store: Store, facts: dict[str, str]) -> list[str]:
    """Record on which machine the next rounds are computed; returns what has changed since the last ones."""
    done = store.rounds_done()
    machines = [MachineRow(*one) for one in store.fact(MACHINES) or () if done]
    changes = changed_facts(machines[-1].facts, facts) if machines else []
    if not machines or machines[-1].facts != facts:
        machines.append(MachineRow(current_minute(), done, facts))
        store.set_facts({MACHINES: machines})
    store.set_machine(len(machines))
    return changes


def change_of_machine(folders: Iterable[Path]) -> list[str]:
    """What has changed since the last rounds in any of these run folders, of what this process knows."""
    found: dict[str, None] = {}
    for folder in folders:
        machines = recorded_fact(folder, MACHINES)
        if machines:
            last = MachineRow(*machines[-1])
            found |= dict.fromkeys(changed_facts(last.facts, machine_facts()))
    return list(found)


def other_machine(folder: Path, changes: Iterable[str]) -> str:
    """What a change of the machine means."""
    return (
        f"{folder}: the next rounds are computed under other conditions than those before: {'; '.join(changes)}. "
        "They may differ in their last bits from those of an uninterrupted run; metrics stay comparable. The record "
        "has the machine of every round"
    )


def _cpu_model() -> str:
    """The model of the CPU, where the system tells it."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if found := _CPU.search(text):
            return found[1].strip()
    return platform.processor() or "unknown"

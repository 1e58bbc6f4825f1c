"""The machine that computes a run: what the last bits of its results depend on."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError

from ...engine.device import thread_count
from ...engine.executor import DeviceExecutor
from ...errors import RunError
from ...record.database import recorded_fact
from ...record.facts import MachineRow, changed_facts, current_minute
from ...record.store import Store

FACT = "machines"
SETTINGS = (
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "OPENBLAS_CORETYPE",
)
_MACHINES = TypeAdapter(list[MachineRow])
_MODEL = re.compile(r"^(?:model name|CPU part)\s*:\s*(.+)$", re.MULTILINE)


def machine_facts() -> dict[str, str]:
    """What the last bits depend on, as far as it is the same for all runs of this process."""
    return {
        "system": system(),
        "CPU": _cpu_model(),
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "MKL": _on(torch.backends.mkl.is_available()),  # type: ignore[no-untyped-call]
        **{name: os.environ.get(name, "not set") for name in SETTINGS},
    }


def facts_of(executor: DeviceExecutor, *, on_ray: bool) -> dict[str, str]:
    """What the last bits of a run depend on."""
    gpu = "none"
    if executor.device.type == "cuda":
        gpu = torch.cuda.get_device_name(executor.device)
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return {
        **machine_facts(),
        "oneDNN": _on(has_onednn and bool(torch.backends.mkldnn.enabled)),
        "GPU": gpu,
        "threads": str(thread_count(executor.spec.num_parameters)),
        "workers": "ray" if on_ray else str(executor.workers),
    }


def system() -> str:
    """The operating system and the kind of processor."""
    return f"{platform.system()} {platform.machine()}"


def record_machine(store: Store, facts: Mapping[str, str]) -> list[str]:
    """Record on which machine the next rounds are computed; returns what has changed since the last ones.

    Args:
        store: the run folder.
        facts: about the machine.
    """
    done = store.rounds_done()
    machines = _recorded(store.folder, store.fact(FACT)) if done else []
    changes = changed_facts(machines[-1].facts, facts) if machines else []
    if not machines or machines[-1].facts != facts:
        machines.append(MachineRow(current_minute(), done, dict(facts)))
        store.set_facts({FACT: machines})
    store.set_machine(len(machines))
    return changes


def change_of_machine(folders: Iterable[Path]) -> list[str]:
    """What has changed since the last rounds in any of these run folders, of what this process knows."""
    now = machine_facts()
    found: dict[str, None] = {}
    for folder in folders:
        machines = _recorded(folder, recorded_fact(folder, FACT))
        if machines:
            found |= dict.fromkeys(changed_facts(machines[-1].facts, now))
    return list(found)


def in_words(changes: Sequence[str]) -> str:
    """What a change of the machine means."""
    return (
        f"the next rounds are computed under other conditions than those before: {'; '.join(changes)}. They may "
        "differ in their last bits from those of an uninterrupted run; metrics stay comparable. The record has "
        "the machine of every round"
    )


def _recorded(folder: Path, text: str | None) -> list[MachineRow]:
    if text is None:
        return []
    try:
        return _MACHINES.validate_json(text)
    except ValidationError:
        raise RunError(f"{folder}: its database is damaged (its machines cannot be read)") from None


def _cpu_model() -> str:
    """The model of the CPU, where the system tells it."""
    try:
        found = _MODEL.search(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or "unknown"


def _on(is_on: bool) -> str:
    return "on" if is_on else "off"

"""What was run: data, clients, model, training, methods, when, and on what; and in what two runs differ.

All of it is read from the run folder. Nothing that a config names is imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..experiment.config import read_written
from ..runs.files import read_whole
from ..runs.folder import RunFolder
from .chain import described
from .document import Section, Table, counted, table

SECTION = "about"
MOST_BYTES = 2**16  # of versions.json
MOST_TEXT = 300  # characters of a value of the config


def about_section(runs: Sequence[RunFolder]) -> Section:
    """What was run; of several runs in what they differ."""
    if len(runs) > 1:
        return Section(SECTION, "What was run", "", [differences(runs)])
    rows = [[*row] for row in about(runs[0])]
    facts = table("run", "What was run", ["what", "how"], rows, "", [False, False])
    return Section(SECTION, "What was run", "", [facts])


def config_section(runs: Sequence[RunFolder]) -> Section:
    """Every key of the resolved config."""
    rows = [[key, _text(value)] for key, value in flat(_config(runs[0])).items()] if len(runs) == 1 else []
    lead = "The resolved config, every default written out; methods by their names."
    return Section("config", "Config", lead, [table("config", "Config", ["key", "value"], rows, "", [False, False])])


def about(run: RunFolder) -> Iterator[tuple[str, str]]:
    """What was run, line by line."""
    config = _config(run)
    yield "data", _data(config)
    yield "clients", _clients(run, config)
    model = described(part) if (part := _mapping(config, "model")) else "of the user's own"
    yield "model", f"{model}, {run.model_bytes // 4:,} numbers"
    if run.initial_model:
        yield "began with", _text(run.initial_model)
    training = _mapping(config, "training")
    yield "training", ", ".join(f"{key} {value}" for key, value in training.items() if value)
    if devices := _mapping(config, "devices"):
        yield "devices", "; ".join(f"{key} {_drawn(value)}" for key, value in devices.items())
    yield "methods", ", ".join(run.methods)
    seeds = sorted({lane.seed for lane in run.lanes})
    yield "work", f"{counted(len(seeds), 'seed')} ({_ranges(seeds)}), {counted(run.rounds, 'round')}"
    yield "measured", f"{run.metric} on {run.reported_on}"
    if run.begun:
        yield "begun", run.begun
    yield "computed", ", ".join(filter(None, [run.computed, *_versions(run)]))
    for key in ("note", "tags"):
        if said := _text(config.get(key) or ""):
            yield key, said


def _drawn(value: Any) -> str:
    """A fact about devices: a number as such, a distribution with its options."""
    if not isinstance(value, Mapping):
        return _text(value)
    return _text(value["value"]) if value.keys() == {"name", "value"} else described(value)


def data_name(run: RunFolder) -> str:
    """The data in a word."""
    return _text(_mapping(_config(run), "data").get("name", "own arrays"))


def labels(run: RunFolder) -> tuple[str, str]:
    """The note and the tags that somebody gave a run."""
    config = _config(run)
    return _text(config.get("note") or ""), _text(config.get("tags") or "")


def differences(runs: Sequence[RunFolder]) -> Table:
    """The keys of config, versions and data in which runs differ, with what each says."""
    said = [flat(_config(run)) | _machine(run) | _fingerprints(run) for run in runs]
    for name in dict.fromkeys(method for run in runs for method in run.methods):
        if not all(name in run.methods for run in runs):  # one line, not all of its parts
            for run, one in zip(runs, said, strict=True):
                for key in [key for key in one if key.startswith(f"methods.{name}.")]:
                    del one[key]
                one[f"methods.{name}"] = "has it" if name in run.methods else "–"
    texts = {
        key: [_text(one.get(key, "–")) for one in said] for key in dict.fromkeys(key for one in said for key in one)
    }
    rows = [[key, *values] for key, values in texts.items() if len({*values}) > 1]
    note = "" if rows else "They differ in nothing: config, versions and data are the same."
    columns = ["key", *(run.id for run in runs)]
    return table("differences", "In what they differ", columns, rows, note, [False] * len(columns))


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config key by key; methods by their names, so that their order does not matter.

    >>> flat({"rounds": 3, "data": {"name": "digits"}, "methods": [{"name": "A", "rule": {"name": "mean"}}]})
    {'rounds': 3, 'data.name': 'digits', 'methods.A.name': 'A', 'methods.A.rule.name': 'mean'}
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        if key == "methods" and isinstance(value, list):
            value = {str(one.get("name")): one for one in value if isinstance(one, Mapping)}
        if isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
            value = {str(place): one for place, one in enumerate(value)}
        if isinstance(value, Mapping):
            found |= {f"{key}.{name}": one for name, one in flat(value).items()}
        else:
            found[str(key)] = value
    return found


def _config(run: RunFolder) -> dict[str, Any]:
    return read_written(run.folder / "config.toml")


def _data(config: Mapping[str, Any]) -> str:
    parts = [_mapping(config, key) for key in ("data", "features", "partition")]
    own = "the members' own" if _mapping(config, "flower").get("clients") else "arrays of the user's own"
    return "; ".join(described(part) for part in parts if part) or own


def _clients(run: RunFolder, config: Mapping[str, Any]) -> str:
    seed = min((lane.seed for lane in run.lanes), default=-1)
    sizes = [row.num_train for row in run.clients(seed)]
    hostile = len(run.hostile_clients(seed))
    asked = _mapping(config, "federation")
    cohort = asked.get("clients_per_round") or (f"{asked['fraction']} of them" if "fraction" in asked else "all")
    held = f"{min(sizes, default=0):,} to {max(sizes, default=0):,} training samples"
    held = held if any(sizes) else "data of their own, elsewhere"  # of a deployment
    return f"{len(sizes)} with {held}, {cohort} in a round" + (f", {hostile} hostile" if hostile else "")


def _machine(run: RunFolder) -> dict[str, str]:
    try:
        found: object = json.loads(read_whole(run.folder / "versions.json", MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return {f"versions.{name}": str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _versions(run: RunFolder) -> Iterator[str]:
    for name, value in _machine(run).items():
        name = name.removeprefix("versions.")
        yield value if name == "machine" else f"{name} {value}"


def _fingerprints(run: RunFolder) -> dict[str, str]:
    began = {"initial model": run.initial_model} if run.initial_model else {}
    return began | {f"data of seed {seed}": f"fingerprint {value[:8]}" for seed, value in sorted(run.data.items())}


def _mapping(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A table of a config that anybody may have written."""
    found = config.get(key)
    return found if isinstance(found, Mapping) else {}


def _ranges(seeds: Sequence[int]) -> str:
    whole = len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1
    return f"{seeds[0]}–{seeds[-1]}" if whole else ", ".join(map(str, seeds))


def _text(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} …"

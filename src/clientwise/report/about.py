"""What was run, and how several runs differ. All of it is read from the run folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..data.encoding import InputColumn
from ..experiment.checks.steps import steps_in_words
from ..record.files import VERSIONS, read_whole
from ..record.reading.config_view import RecordedConfig, recorded_config
from ..record.run import RunFolder
from ..registry import Part, listed
from .audit.parameters import described
from .document import (
    Content,
    Section,
    Table,
    counted,
    table,
)

SECTION = "about"
MOST_BYTES = 2**16  # of versions.json
MOST_TEXT = 300  # characters of a value of the config
ABSENT = "–"
UNKNOWN = "unknown"
NO_DIFFERENCE = "No differences: config, versions and data are the same."


def about_section(runs: Sequence[RunFolder]) -> Section:
    """What was run; of several runs, how they differ."""
    if len(runs) > 1:
        return Section(SECTION, "What was run", "", [differences(runs)])
    rows = [[*row] for row in about(runs[0])]
    facts = table("run", "What was run", ["setting", "value"], rows, "", [False, False])
    return Section(SECTION, "What was run", "", [facts])


def data_line(run: RunFolder) -> str:
    """The data in one line: clients, samples, classes, and what is held out."""
    seed = min((lane.seed for lane in run.lanes), default=-1)
    found = run.client_sizes(seed)
    facts = [counted(found.clients, "client")]
    if found.samples:
        facts.append(counted(found.samples, "training sample"))
    if run.num_classes:
        facts.append(counted(run.num_classes, "class", "classes"))
    held_out = []
    if run.weigh_samples:
        held_out.append(f"{run.weigh_samples:,} to weigh by")
    if run.report_samples:
        held_out.append(f"{run.report_samples:,} to report on")
    line = f"Data ({data_name(run)}): {', '.join(facts)}"
    return f"{line}; held-out samples: {', '.join(held_out)}" if held_out else line


def config_section(runs: Sequence[RunFolder]) -> Section:
    """Every key of the resolved config, where there is one run."""
    rows: list[list[Content]] = []
    if len(runs) == 1:
        config = recorded_config(runs[0].folder)
        rows = [[key, _text(value)] for key, value in config.flat().items()]
    lead = "The resolved config with all defaults. Methods are listed by name."
    keys = table("config", "Config", ["key", "value"], rows, "", [False, False])
    return Section("config", "Config", lead, [keys])


def about(run: RunFolder) -> Iterator[tuple[str, str]]:
    """What was run, line by line: (setting, value)."""
    config = recorded_config(run.folder)
    seeds = sorted({lane.seed for lane in run.lanes})
    yield "data", _data(config)
    yield from _table(run)
    yield "clients", _clients(run, config)
    yield "model", f"{_model(config)}, {run.model_bytes // 4:,} values"
    if run.initial_model:
        yield "warm start", _text(run.initial_model)
    yield "training", _options(config.training)
    if steps := steps_in_words(run.steps):
        yield "steps a round", steps
    if config.devices:
        yield "devices", "; ".join(f"{key} {_drawn(one)}" for key, one in config.devices.items())
    yield "methods", listed(run.methods)
    for name, module in run.functions.items():
        yield "function", _text(f"{name} was given in Python as a function of {module}")
    if tuning := tuning_in_words(config, run.methods):
        yield "tuning", tuning
    yield "seeds", _ranges(seeds)
    yield "rounds", f"{run.rounds:,}"
    yield from _best_rounds(run)
    yield "metric", f"{run.metric} on {run.reported_on}"
    if run.begun:
        yield "started", run.begun
    if run.computed:
        yield "backend", run.computed
    for warning in run.warnings:
        yield "warning", _text(warning)
    if versions := _versions(run):
        yield "versions", ", ".join(_version(name, value) for name, value in versions.items())
    if config.note:
        yield "note", _text(config.note)
    if config.tags:
        yield "tags", _text(config.tags)


def _best_rounds(run: RunFolder) -> Iterator[tuple[str, str]]:
    """Of which round the model of each lane is, where the best one is kept."""
    found = run.best_of_lanes
    for lane in run.lanes:
        if (best := found.get(lane.lane)) is None:
            continue
        name = f"{lane.method}, seed {lane.seed}"
        if best.kept and best.round is not None:
            yield "model kept", f"{name}: that of round {best.round}, by its held-out loss"


def tuning_in_words(config: RecordedConfig, methods: Sequence[str]) -> str:
    """What was tuned, over what, with how many trials on which seeds; "" where nothing was."""
    found = [(name, config.method(name)) for name in methods]
    tuned = {name: one.tuned for name, one in found if one is not None and one.tuned}
    if not tuned:
        return ""
    parts = [f"{name}: {_tuned(own)}" for name, own in tuned.items()]
    others = [name for name in methods if name not in tuned]
    if others:
        parts.append(f"not tuned: {listed(others)}")
    return "; ".join(parts)


def _tuned(own: Mapping[str, Any]) -> str:
    values = own.get("values")
    over = own.get("over")
    if not isinstance(values, Mapping) or not isinstance(over, Mapping):
        return UNKNOWN
    keys = [
        f"{key} = {_text(value)} of {_searched(over.get(key))}" for key, value in values.items()
    ]
    seeds = own.get("seeds")
    budget = f"{own.get('trials', UNKNOWN)} trials of {own.get('rounds', UNKNOWN)} rounds"
    return (
        f"{', '.join(keys)} ({budget} on seeds {_text(seeds)}, by the metric on "
        "held-back training samples)"
    )


def _searched(space: object) -> str:
    if isinstance(space, Mapping):
        return f"{space.get('low')} to {space.get('high')}"
    return _text(space)


def data_name(run: RunFolder) -> str:
    """The name of the dataset."""
    config = recorded_config(run.folder)
    return _text(config.data.name) if config.data else _passed_in(config, "data")


def labels(run: RunFolder) -> tuple[str, str]:
    """The note and the tags of a run."""
    config = recorded_config(run.folder)
    return _text(config.note), _text(config.tags)


def differences(runs: Sequence[RunFolder]) -> Table:
    """The keys of config, versions and data in which runs differ, with each run's value."""
    values = [_all_values(run) for run in runs]
    for method in _methods_not_in_all(runs):
        for run, own in zip(runs, values, strict=True):
            _replace_by_one_line(own, method, method in run.methods)
    rows = [row for row in _rows_of(values) if len({*row[1:]}) > 1]
    columns = ["key", *(run.id for run in runs)]
    note = "" if rows else NO_DIFFERENCE
    return table("differences", "Differences", columns, rows, note, [False] * len(columns))


def _all_values(run: RunFolder) -> dict[str, object]:
    """What a run's config, versions and data say, by key."""
    values: dict[str, object] = {**recorded_config(run.folder).flat()}
    values |= {f"versions.{name}": value for name, value in _versions(run).items()}
    if run.initial_model:
        values["initial model"] = run.initial_model
    for seed, fingerprint in sorted(run.data.items()):
        values[f"data of seed {seed}"] = f"fingerprint {fingerprint[:8]}"
    return values


def _methods_not_in_all(runs: Sequence[RunFolder]) -> list[str]:
    names: dict[str, None] = {}
    for run in runs:
        names |= dict.fromkeys(run.methods)
    return [name for name in names if not all(name in run.methods for run in runs)]


def _replace_by_one_line(values: dict[str, object], method: str, is_there: bool) -> None:
    """One line for a method that only some runs have, instead of one for each of its options."""
    for key in [key for key in values if key.startswith(f"methods.{method}.")]:
        del values[key]
    values[f"methods.{method}"] = "present" if is_there else ABSENT


def _rows_of(values: Sequence[Mapping[str, object]]) -> Iterator[list[str]]:
    keys: dict[str, None] = {}
    for own in values:
        keys |= dict.fromkeys(own)
    for key in keys:
        yield [key, *(_text(own.get(key, ABSENT)) for own in values)]


def _data(config: RecordedConfig) -> str:
    parts = [config.data, config.features, config.partition]
    known = [described(part) for part in parts if part]
    if known:
        return _text("; ".join(known))
    return "local data of the nodes" if config.is_deployment else _passed_in(config, "data")


def _table(run: RunFolder) -> Iterator[tuple[str, str]]:
    """The columns of the data, their missing values, and the classes, where the data are a table."""
    found = run.table()
    if found is not None:
        yield "columns", _text([_column(column) for column in found.columns])
        yield "target", _text(f"{found.target}: {', '.join(found.classes)}".removesuffix(": "))


def _column(column: InputColumn) -> str:
    facts = []
    if column.categories:
        facts.append(f"{len(column.categories)} categories")
    if column.missing:
        facts.append(f"{column.missing:.0%} missing")
    return f"{column.name} ({', '.join(facts)})" if facts else column.name


def _model(config: RecordedConfig) -> str:
    return _text(described(config.model)) if config.model else _passed_in(config, "model")


def _passed_in(config: RecordedConfig, key: str) -> str:
    return "passed in from Python" if config.leaves_out(key) else UNKNOWN


def _clients(run: RunFolder, config: RecordedConfig) -> str:
    seed = min((lane.seed for lane in run.lanes), default=-1)
    found = run.client_sizes(seed)
    held = "local data, sizes not recorded"  # a deployment
    if found.largest:
        held = f"{found.smallest:,} to {found.largest:,} training samples each"
    facts = [f"{found.clients} with {held}", f"cohort: {_cohort(config)}"]
    if hostile := len(run.hostile_clients(seed)):
        facts.append(f"{hostile} hostile")
    return "; ".join(facts)


def _cohort(config: RecordedConfig) -> str:
    if config.clients_per_round:
        return counted(config.clients_per_round, "client")
    if config.fraction is not None:
        if config.fraction == 1:
            return "all clients"
        return f"{config.fraction:g} of the clients"
    return "all clients" if config.is_known else UNKNOWN


def _options(values: Mapping[str, object]) -> str:
    """Options that are not zero or off."""
    return ", ".join(f"{key} {_text(value)}" for key, value in values.items() if value) or UNKNOWN


def _drawn(value: object) -> str:
    """A property of devices: a number, or a distribution with its options."""
    if isinstance(value, Part) and value.options.keys() == {"value"}:
        value = value.options["value"]
    if isinstance(value, Part):
        return described(value)
    if isinstance(value, float):
        return f"{value:,.10g}"
    return UNKNOWN if value is None else _text(value)


def _versions(run: RunFolder) -> dict[str, str]:
    """The versions that a run was computed with, by name; empty where they cannot be read."""
    try:
        found: object = json.loads(read_whole(run.folder / VERSIONS, MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(name): _text(value) for name, value in found.items()}


def _version(name: str, value: str) -> str:
    return value if name == "machine" else f"{name} {value}"


def _ranges(seeds: Sequence[int]) -> str:
    """Seeds, as a range where they are consecutive."""
    if len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds))


def _text(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} …"

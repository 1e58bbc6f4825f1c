"""What was run, and how several runs differ. All of it is read from the run folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..experiment.checks.steps_in_words import steps_in_words
from ..record.files import VERSIONS, read_whole
from ..record.frames_now import RunFolder
from ..record.toml_text import dotted_keys
from ..registry import listed
from .items import Item, Table, counted, section
from .results import Frame, Method, Results, has_hostile, seeds_of
from .verdict import best_rounds, keeps_best

MOST_BYTES = 2**16  # of versions.json
MOST_TEXT = 300  # characters of a value
NO_DIFFERENCE = "No differences: config, versions and data are the same."
PASSED_IN = "passed in from Python"


@section("What was run")
def what_was_run(results: Results) -> Iterator[Item]:
    """What was run; of several runs, how they differ."""
    if len(results.runs) > 1:
        yield differences(results.runs)
        return
    (run,) = results.runs
    yield Table("run", "What was run", Frame(about(run), columns=["setting", "value"]))


@section("Config")
def config(results: Results) -> Iterator[Item]:
    """Every key of the resolved config, where there is one run."""
    if len(results.runs) == 1:
        rows = [(key, in_words(value)) for key, value in _flat(results.runs[0]).items()]
        yield "The resolved config with all defaults. Methods are listed by name."
        yield Table("config", "Config", Frame(rows, columns=["key", "value"]))


def about(run: RunFolder) -> Iterator[tuple[str, str]]:
    """What was run, line by line: (setting, value)."""
    table, facts = run.config, run.facts
    parts = [in_words(table[key]) for key in ("data", "features", "partition") if table.get(key)]
    yield "data", "; ".join(parts) if table.get("data") else _absent(run)
    columns = run.table()
    if columns is not None:
        yield "columns", in_words([_column(one) for one in columns.columns])
        yield (
            "target",
            in_words(f"{columns.target}: {', '.join(columns.classes)}".removesuffix(": ")),
        )
    yield "clients", _clients(run)
    yield "model", f"{in_words(table.get('model') or PASSED_IN)}, {facts.model_bytes // 4:,} values"
    if facts.initial_model:
        yield "warm start", in_words(facts.initial_model)
    for key in ("training", "devices"):
        if table.get(key):
            yield key, in_words(table[key])
    if steps := steps_in_words(facts.steps):
        yield "steps a round", steps
    yield "methods", listed(run.methods)
    for name, module in facts.functions.items():
        yield "function", in_words(f"{name} was given in Python as a function of {module}")
    if tuning := tuning_in_words(run):
        yield "tuning", tuning
    yield "seeds", _ranges(sorted(set(run.lanes["seed"].tolist())))
    yield "rounds", f"{facts.rounds:,}"
    for name in run.methods:
        one = Method(name, run, name, tuple(seeds_of(run, name)))
        for seed, number in best_rounds(one).items() if keeps_best(one) else ():
            yield "model kept", f"{name}, seed {seed}: that of round {number}, by its held-out loss"
    yield "metric", f"{facts.metric} on {facts.reported_on}"
    optional = {"started": facts.begun, "backend": facts.computed, "versions": _versions(run)}
    optional |= {"note": table.get("note"), "tags": table.get("tags")}
    yield from ((name, in_words(value)) for name, value in optional.items() if value)
    for warning in facts.warnings:
        yield "warning", in_words(warning)


def in_words(value: object) -> str:
    """A value of a config: a part as `krum (hostile 0.3)`, a list with commas.

    >>> in_words({"name": "krum", "hostile": 0.3}), in_words([1, 2]), in_words({"epochs": 1})
    ('krum (hostile 0.3)', '1, 2', 'epochs 1')
    """
    if isinstance(value, Mapping):
        options = ", ".join(
            f"{key} {in_words(one)}"
            for key, one in value.items()
            if key != "name" and one is not False
        )
        name = value.get("name")
        text = options if name is None else f"{name} ({options})" if options else str(name)
    else:
        text = ", ".join(map(in_words, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} …"


def data_name(run: RunFolder) -> str:
    """The name of the dataset."""
    data = run.config.get("data")
    name = data.get("name") if isinstance(data, Mapping) else data
    return in_words(name) if name else _absent(run)


def _absent(run: RunFolder) -> str:
    """What is said of data that the config does not name."""
    if run.config.get("flower", {}).get("clients"):
        return "local data of the nodes"
    return PASSED_IN if run.config else "unknown"


def data_line(run: RunFolder) -> str:
    """The data in one line: clients, samples, classes, and what is held out."""
    clients, facts = _of_first_seed(run), run.facts
    known = [counted(len(clients), "client")]
    if total := int(clients["num_train"].fillna(0).sum()):
        known.append(counted(total, "training sample"))
    if facts.num_classes:
        known.append(counted(facts.num_classes, "class", "classes"))
    sizes = {"to weigh by": facts.weigh_samples, "to report on": facts.report_samples}
    held_out = [f"{size:,} {purpose}" for purpose, size in sizes.items() if size]
    line = f"Data ({data_name(run)}): {', '.join(known)}"
    return f"{line}; held-out samples: {', '.join(held_out)}" if held_out else line


def _of_first_seed(run: RunFolder) -> Frame:
    clients = run.frame("clients")
    return clients[clients["seed"] == run.lanes["seed"].min()]


def _clients(run: RunFolder) -> str:
    clients, federation = _of_first_seed(run), run.config.get("federation", {})
    sizes = clients["num_train"].fillna(0)
    held = "local data, sizes not recorded"  # a deployment
    if sizes.sum():
        held = f"{int(sizes.min()):,} to {int(sizes.max()):,} training samples each"
    text = f"{len(clients)} with {held}; cohort: {in_words(federation) or 'all clients'}"
    return f"{text}; {clients['hostile'].notna().sum()} hostile" if has_hostile(run) else text


def _column(column: Any) -> str:
    facts = [f"{len(column.categories)} categories"] if column.categories else []
    if column.missing:
        facts.append(f"{column.missing:.0%} missing")
    return f"{column.name} ({', '.join(facts)})" if facts else str(column.name)


def tuning_in_words(run: RunFolder) -> str:
    """What was tuned, over what, with how many trials on which seeds; "" where nothing was."""
    tuned = {name: own for name in run.methods if (own := run.about(name).tuned)}
    parts = []
    for name, own in tuned.items():
        values, over = own.get("values", {}), own.get("over", {})
        keys = [
            f"{key} = {in_words(value)} of {_searched(over.get(key))}"
            for key, value in values.items()
        ]
        budget = f"{own.get('trials')} trials of {own.get('rounds')} rounds on seeds {in_words(own.get('seeds'))}"
        how = f"by {own.get('by')} on held-back training samples, {own.get('sampler')}"
        parts.append(f"{name}: {', '.join(keys)} ({budget}, {how})")
    others = [name for name in run.methods if name not in tuned]
    if tuned and others:
        parts.append(f"not tuned: {listed(others)}")
    return "; ".join(parts)


def _searched(space: object) -> str:
    return (
        f"{space.get('low')} to {space.get('high')}"
        if isinstance(space, Mapping)
        else in_words(space)
    )


def differences(runs: Sequence[RunFolder]) -> Table:
    """The keys of config, versions and data in which runs differ, with each run's value."""
    values = [_all_values(run) for run in runs]
    for method in dict.fromkeys(name for run in runs for name in run.methods):
        if not all(
            method in run.methods for run in runs
        ):  # one line, instead of one for each of its options
            for run, own in zip(runs, values, strict=True):
                for key in [key for key in own if key.startswith(f"methods.{method}.")]:
                    del own[key]
                own[f"methods.{method}"] = "present" if method in run.methods else "–"
    keys = dict.fromkeys(key for own in values for key in own)
    rows = [(key, *(in_words(own.get(key, "–")) for own in values)) for key in keys]
    different = [row for row in rows if len({*row[1:]}) > 1]
    frame = Frame(different, columns=["key", *(run.id for run in runs)])
    return Table("differences", "Differences", frame, "" if different else NO_DIFFERENCE)


def _all_values(run: RunFolder) -> dict[str, object]:
    """What a run's config, versions and data say, by key."""
    values: dict[str, object] = _flat(run)
    values |= {f"versions.{name}": value for name, value in _versions(run).items()}
    if run.facts.initial_model:
        values["initial model"] = run.facts.initial_model
    for seed, fingerprint in sorted(run.facts.data.items()):
        values[f"data of seed {seed}"] = f"fingerprint {fingerprint[:8]}"
    return values


def _flat(run: RunFolder) -> dict[str, Any]:
    """Every value of the config by its dotted key; methods by name, so that their order does not matter."""
    table = dict(run.config)
    methods = table.get("methods")
    if isinstance(methods, list):
        table["methods"] = {
            str(one.get("name")): one for one in methods if isinstance(one, Mapping)
        }
    return dotted_keys(table, in_lists=True)


def _versions(run: RunFolder) -> dict[str, str]:
    """The versions by name; empty where they cannot be read."""
    try:
        found: object = json.loads(read_whole(run.folder / VERSIONS, MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return (
        {str(name): in_words(value) for name, value in found.items()}
        if isinstance(found, dict)
        else {}
    )


def _ranges(seeds: Sequence[int]) -> str:
    """Seeds, as a range where they are consecutive."""
    if len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds))

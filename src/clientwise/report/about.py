"""What was run, and how several runs differ. All of it is read from the run folder, which may be anybody's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pandas import DataFrame as Frame

from ..record.facts import steps_in_words
from ..record.files import VERSIONS, dotted_keys, read_whole
from ..record.run import RunFolder
from ..registry import listed
from .items import Item, Table, counted, section
from .results import Method, Results, encoding, seeds_of, stated
from .verdict import best_rounds, keeps_best

MOST_BYTES = 2**16  # of versions.json
MOST_TEXT = 300  # characters of a value
NO_DIFFERENCE = "No differences: config, versions and data are the same."


@section("What was run")
def what_was_run(results: Results) -> Iterator[Item]:
    """What was run; of several runs, how they differ."""
    if len(results.runs) > 1:
        yield differences(results.runs)
    else:
        yield Table(
            "run", "What was run", Frame(about(results.runs[0]), columns=["setting", "value"])
        )


@section("Config")
def config(results: Results) -> Iterator[Item]:
    """Every key of the resolved config, where there is one run."""
    if len(results.runs) == 1:
        rows = [(key, in_words(value)) for key, value in _flat(results.runs[0]).items()]
        yield "The resolved config with all defaults. Methods are listed by name."
        yield Table("config", "Config", Frame(rows, columns=["key", "value"]))


def about(run: RunFolder) -> Iterator[tuple[str, str]]:
    """What was run, line by line: (setting, value)."""
    facts = run.facts
    yield (
        "data",
        "; ".join(
            in_words(run.config[key])
            for key in ("data", "features", "partition")
            if run.config.get(key)
        )
        or data_name(run),
    )
    found = encoding(run)
    if found is not None:
        yield "columns", in_words([_column(one) for one in found.columns])
        yield "target", in_words(f"{found.target}: {', '.join(found.classes)}".removesuffix(": "))
    yield "clients", _clients(run)
    yield (
        "model",
        f"{in_words(run.config.get('model') or _absent(run))}, {facts.model_bytes // 4:,} values",
    )
    yield "training", in_words(stated(run, "training")) or _absent(run)
    yield "methods", listed(run.methods)
    for name, module in facts.functions.items():
        yield "function", in_words(f"{name} was given in Python as a function of {module}")
    yield "seeds", _ranges(sorted(set(run.lanes["seed"].tolist())))
    yield "rounds", f"{facts.rounds:,}"
    for name in run.methods:
        one = Method(name, run, name, tuple(seeds_of(run, name)))
        for seed, number in best_rounds(one).items() if keeps_best(one) else ():
            yield "model kept", f"{name}, seed {seed}: that of round {number}, by its held-out loss"
    yield "metric", f"{facts.metric} on {facts.reported_on}"
    optional = {
        "warm start": facts.initial_model,
        "devices": stated(run, "devices"),
        "steps a round": steps_in_words(facts.steps),
        "tuning": tuning_in_words(run),
        "started": facts.begun,
        "backend": facts.computed,
        "versions": _versions(run),
    }
    yield from ((name, in_words(value)) for name, value in optional.items() if value)
    yield from (("warning", in_words(warning)) for warning in facts.warnings)


def in_words(value: object) -> str:
    """A value of a config: a part as `krum (hostile 0.3)`, a list with commas; what is false or empty is left out.

    >>> in_words({"name": "krum", "hostile": 0.3}), in_words([1, 2]), in_words({"epochs": 1, "without": []})
    ('krum (hostile 0.3)', '1, 2', 'epochs 1')
    """
    if isinstance(value, Mapping):
        stated = {
            key: in_words(one)
            for key, one in value.items()
            if key != "name" and one not in (False, "", [], {})
        }
        options = ", ".join(f"{key} {text}" for key, text in stated.items())
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
    """What is said of data, or of a network, that the config does not name."""
    if stated(run, "flower").get("clients"):
        return "local data of the nodes"
    return "passed in from Python" if run.config else "unknown"


def data_line(run: RunFolder) -> str:
    """The data in one line: clients, samples, classes, and what is held out."""
    clients, facts = _of_first_seed(run), run.facts
    sizes = {
        "client": len(clients),
        "training sample": int(clients["num_train"].fillna(0).sum()),
        "class": facts.num_classes or 0,
    }
    known = [
        counted(size, noun, "classes" if noun == "class" else "")
        for noun, size in sizes.items()
        if size
    ]
    held_out = {"to weigh by": facts.weigh_samples, "to report on": facts.report_samples}
    said = [f"{size:,} {purpose}" for purpose, size in held_out.items() if size]
    line = f"Data ({data_name(run)}): {', '.join(known)}"
    return f"{line}; held-out samples: {', '.join(said)}" if said else line


def _of_first_seed(run: RunFolder) -> Frame:
    clients = run.frame("clients")
    return clients[clients["seed"] == run.lanes["seed"].min()]


def _clients(run: RunFolder) -> str:
    clients, federation = _of_first_seed(run), stated(run, "federation")
    sizes, hostile = clients["num_train"].fillna(0), int(clients["hostile"].notna().sum())
    held = (
        f"{sizes.min():,.0f} to {sizes.max():,.0f} training samples each"
        if sizes.sum()
        else "local data"
    )
    drawn = {
        key: value
        for key, value in federation.items()
        if key in ("clients_per_round", "fraction") and value != 1
    }
    text = f"{len(clients)} with {held}; cohort: {in_words(drawn) or 'all clients'}"
    return f"{text}; {hostile} hostile" if hostile else text


def _column(column: Any) -> str:
    facts = [f"{len(column.categories)} categories"] if column.categories else []
    if column.missing:
        facts.append(f"{column.missing:.0%} missing")
    return f"{column.name} ({', '.join(facts)})" if facts else str(column.name)


def tuning_in_words(run: RunFolder) -> str:
    """What was tuned, over what, with how many trials on which seeds; "" where nothing was."""
    tuned = {name: own for name in run.methods if (own := run.about(name).tuned)}
    parts = [f"{name}: {in_words(own)}" for name, own in tuned.items()]
    others = [name for name in run.methods if name not in tuned]
    return "; ".join([*parts, f"not tuned: {listed(others)}"] if parts and others else parts)


def differences(runs: Sequence[RunFolder]) -> Table:
    """The keys of config, versions and data in which runs differ, with each run's value."""
    values = [_all_values(run) for run in runs]
    shared = set.intersection(*(set(run.methods) for run in runs))
    for run, own in zip(runs, values, strict=True):
        for method in {
            name for one in runs for name in one.methods
        } - shared:  # one line, not one for each option
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
    versions = {f"versions.{name}": value for name, value in _versions(run).items()}
    data = {
        f"data of seed {seed}": f"fingerprint {print[:8]}"
        for seed, print in sorted(run.facts.data.items())
    }
    return {**_flat(run), **versions, "initial model": run.facts.initial_model, **data}


def _flat(run: RunFolder) -> dict[str, Any]:
    """Every value of the config by its dotted key; methods by name, so that their order does not matter."""
    methods = run.config.get("methods")
    listed_ones = (
        [one for one in methods if isinstance(one, Mapping)] if isinstance(methods, list) else []
    )
    named = {"methods": {str(one.get("name")): one for one in listed_ones}} if listed_ones else {}
    return dotted_keys({**run.config, **named}, in_lists=True)


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

"""What was run, how several runs differ, and how samples are divided. A run folder may be anybody's."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pandas import DataFrame as Frame

from ..errors import shortened
from ..record.facts import steps_in_words
from ..record.files import VERSIONS, dotted_keys, read_whole
from ..record.run import RunFolder
from ..registry import listed
from .items import Item, Table, counted, percent
from .results import Results, encoding, stated

if TYPE_CHECKING:
    from ..data.summary import DataSummary

MOST_BYTES = 2**16  # of versions.json
MOST_TEXT = 300  # characters of a value
MOST_ROWS = 24  # clients or columns of the data
MOST_CLASSES = 12  # with more of them, a client has only how many classes it holds
NO_DIFFERENCE = "No differences: config, versions and data are the same."


# A run --------------------------------------------------------------------------------------------


def what_was_run(results: Results) -> Iterator[Item]:
    """What was run; of several runs, how they differ."""
    if len(results.runs) > 1:
        yield differences(results.runs)
    else:
        rows = Frame(about(results.runs[0]), columns=["setting", "value"])
        yield Table("run", "What was run", rows)


def config(results: Results) -> Iterator[Item]:
    """Every key of the resolved config, where there is one run."""
    if len(results.runs) == 1:
        (run,) = results.runs
        values = _dotted(run, methods_of(run))
        rows = [(key, in_words(value)) for key, value in values.items()]
        yield "The resolved config with all defaults. Methods are listed by name."
        yield Table("config", "Config", Frame(rows, columns=["key", "value"]))


def about(run: RunFolder) -> Iterator[tuple[str, str]]:
    """What was run, line by line: (setting, value)."""
    facts, given = run.facts, run.config
    data = [in_words(given[key]) for key in ("data", "features", "partition") if given.get(key)]
    table = encoding(run)
    columns = target = ""
    if table is not None:
        columns = in_words([one.name for one in table.columns])
        target = in_words(f"{table.target}: {', '.join(table.classes)}".removesuffix(": "))
    model = in_words(given.get("model") or _absent(run))
    lines: list[tuple[str, Any]] = [
        ("data", "; ".join(data) or data_name(run)),
        ("columns", columns),
        ("target", target),
        ("clients", _clients(run)),
        ("model", f"{model}, {facts.model_bytes // 4:,} values"),
        ("training", in_words(stated(run, "training")) or _absent(run)),
        ("methods", listed(run.methods)),
        *(
            ("function", f"{name} was given in Python as a function of {module}")
            for name, module in facts.functions.items()
        ),
        ("seeds", in_words(sorted({*run.lanes["seed"]}))),
        ("rounds", f"{facts.rounds:,}"),
        ("metric", f"{facts.metric} on {facts.reported_on}"),
        ("warm start", facts.initial_model),
        ("devices", stated(run, "devices")),
        ("steps a round", steps_in_words(facts.steps)),
        ("tuning", tuning_in_words(run)),
        ("started", facts.begun),
        ("backend", facts.computed),
        ("versions", _versions(run)),
        *(("warning", warning) for warning in facts.warnings),
    ]
    yield from ((name, in_words(value)) for name, value in lines if value)


def in_words(value: object) -> str:
    """A value of a config: a part as `krum (hostile 0.3)`, a list with commas; what is false or empty is left out.

    >>> in_words({"name": "krum", "hostile": 0.3}), in_words([1, 2]), in_words({"epochs": 1, "without": []})
    ('krum (hostile 0.3)', '1, 2', 'epochs 1')
    """
    if isinstance(value, Mapping):
        known = {key: one for key, one in value.items() if one not in (False, "", [], {})}
        name = known.pop("name", None)
        options = ", ".join(f"{key} {in_words(one)}" for key, one in known.items())
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
    samples = int(clients["num_train"].fillna(0).sum())
    known = [counted(len(clients), "client")]
    if samples:
        known.append(counted(samples, "training sample"))
    if facts.num_classes:
        known.append(counted(facts.num_classes, "class", "classes"))
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
    held = "local data"
    if sizes.sum():
        held = f"{sizes.min():,.0f} to {sizes.max():,.0f} training samples each"
    cohort = {
        key: federation[key]
        for key in ("clients_per_round", "fraction")
        if federation.get(key, 1) != 1
    }
    text = f"{len(clients)} with {held}; cohort: {in_words(cohort) or 'all clients'}"
    return f"{text}; {hostile} hostile" if hostile else text


def tuning_in_words(run: RunFolder) -> str:
    """What was tuned, over what, with how many trials on which seeds; "" where nothing was."""
    tuned = {name: own for name in run.methods if (own := run.about(name).tuned)}
    parts = [f"{name}: {in_words(own)}" for name, own in tuned.items()]
    others = [name for name in run.methods if name not in tuned]
    return "; ".join([*parts, f"not tuned: {listed(others)}"] if parts and others else parts)


def differences(runs: Sequence[RunFolder]) -> Table:
    """The keys of config, versions and data in which runs differ, with each run's value."""
    shared = set.intersection(*({*run.methods} for run in runs))
    values = [_all_values(run, shared) for run in runs]
    keys = dict.fromkeys(key for own in values for key in own)
    rows = [(key, *(in_words(own.get(key, "–")) for own in values)) for key in keys]
    different = [row for row in rows if len({*row[1:]}) > 1]
    frame = Frame(different, columns=["key", *(run.id for run in runs)])
    return Table("differences", "Differences", frame, "" if different else NO_DIFFERENCE)


def _all_values(run: RunFolder, shared: Collection[str]) -> dict[str, object]:
    """What a run's config, versions and data say, by key; of a method that not all runs have, that it is there."""
    versions = {f"versions.{name}": value for name, value in _versions(run).items()}
    data = {
        f"data of seed {seed}": f"fingerprint {print[:8]}"
        for seed, print in sorted(run.facts.data.items())
    }
    tables = {
        name: table if name in shared else "present" for name, table in methods_of(run).items()
    }
    config = _dotted(run, tables)
    return {**config, **versions, "initial model": run.facts.initial_model, **data}


def methods_of(run: RunFolder) -> dict[str, Any]:
    """The tables of the methods by name; empty where the config cannot be read."""
    found = run.config.get("methods")
    tables = found if isinstance(found, list) else []
    return {str(one.get("name")): one for one in tables if isinstance(one, Mapping)}


def _dotted(run: RunFolder, methods: Mapping[str, Any]) -> dict[str, Any]:
    """Every value of the config by its dotted key; methods by name, so that their order does not matter."""
    named = {"methods": methods} if methods else {}
    return dotted_keys({**run.config, **named}, in_lists=True)


def _versions(run: RunFolder) -> dict[str, str]:
    """The versions by name; empty where they cannot be read."""
    try:
        found: object = json.loads(read_whole(run.folder / VERSIONS, MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    known = found if isinstance(found, dict) else {}
    return {str(name): in_words(value) for name, value in known.items()}


# How samples are divided among clients ------------------------------------------------------------


def data_items(summary: DataSummary, title: str, hostile: Sequence[int]) -> Iterator[Item]:
    """The samples of every client, remarks, and the columns of a table."""
    yield _by_client(summary, title)
    yield from _remarks(summary, hostile)
    if summary.table is not None:
        named = [
            (shortened(one.name, 40), _values(one), one.missing)
            for one in summary.table.columns[:MOST_ROWS]
        ]
        frame = Frame(named, columns=["column", "values", "missing"])
        more = len(summary.table.columns) - MOST_ROWS
        note = f"{more:,} more columns." if more > 0 else ""
        name = f"Columns to predict {summary.table.target} from"
        yield Table("columns", name, frame, note, formats={"missing": percent})


def _by_client(summary: DataSummary, title: str) -> Table:
    """Samples by client, and by class where there are few classes; of many clients, the largest ones."""
    sizes = {"training": summary.train.tolist(), "test": summary.test.tolist()}
    frame = Frame({"client": _names(summary), **sizes})
    if len(summary.class_names) > MOST_CLASSES:
        frame["classes"] = summary.classes_per_client.tolist()
    else:
        frame[summary.class_names] = summary.classes.tolist()
    note = ""
    if len(frame) > MOST_ROWS:
        note = f"The {MOST_ROWS} largest of {len(frame):,} clients."
        frame = frame.nlargest(MOST_ROWS, "training")
    formats = dict.fromkeys(frame.columns[1:], lambda number: f"{number:,}" if number else "·")
    return Table(
        "clients",
        f"{title}: samples, and training samples of each class",
        frame,
        note,
        formats=formats,
    )


def _values(column: Any) -> str:
    if column.categories:
        return shortened(f"categories: {', '.join(column.categories)}", 60)
    return f"numbers, mean {column.fill:.4g}"


def _remarks(summary: DataSummary, hostile: Sequence[int]) -> Iterator[str]:
    if summary.shared:
        yield f"Not disjoint: {summary.shared:,} training samples are held by more than one client."
    if summary.unused:
        yield f"Not used: {summary.unused:,} of {summary.num_samples:,} samples."
    if hostile:
        few = ", ".join(map(str, hostile[:10])) + " …" * (len(hostile) > 10)
        yield f"Hostile: {counted(len(hostile), 'client')} ({few}). The table shows their true classes."


def _names(summary: DataSummary) -> list[str]:
    numbers = [str(client) for client in range(len(summary.train))]
    if not summary.names:
        return numbers
    return [f"{number} {name}" for number, name in zip(numbers, summary.names, strict=True)]

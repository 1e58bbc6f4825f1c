"""Resume a run: what of its config may change, and what the run recorded of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import ConfigError, RunError
from ...record.database import is_finished, recorded_fact
from ...record.facts import BY_HOST
from ...record.files import CONFIG
from ...record.toml_text import dotted_keys, parse_toml, read_table
from ..config.schema import Experiment
from ..load import load_experiment
from .folders import modified

FACT = "config"  # the fact that holds the config of the rounds so far, as TOML

# Keys that may change when a run is resumed: where things are, how it is watched, how long the
# server waits. `workers` may change the last bits of later rounds (docs/performance.md).
MAY_CHANGE = frozenset(
    {
        "data_dir",
        "initial_model",
        "plugin_dir",
        "checkpoint_seconds",
        "keep_every",
        "trackers",
        "workers",
        "note",
        "tags",
        "flower.train_seconds",
        "flower.evaluate_seconds",
        "flower.grace_seconds",
        "flower.repeats",
        "flower.max_change",
        "flower.files",
        "flower.loader",
    }
)
MAY_GROW = frozenset({"rounds", "seeds", "methods", "flower.left"})  # see `extended`
MEMBERS = ("flower.clients", "flower.left")


def find_unfinished(experiment: Experiment, parent: Path = Path("runs")) -> Path:
    """The newest unfinished run folder in runs/ that was made by this config."""
    wanted = experiment.to_dict()
    found = list(parent.glob(f"*/{CONFIG}"))
    same_config = [path for path in found if not changed_keys(read_table(path), wanted)]
    written = [path for path in same_config if not is_finished(path.parent)]
    if not written:
        hint = "name its folder: clientwise run FOLDER --resume"
        raise RunError(f"{parent}/: no unfinished run of this config; {hint}")
    return max(written, key=modified).parent


def config_so_far(folder: Path) -> Experiment | None:
    """The config that the rounds in a run folder were run with; None where there is no run.

    It is recorded in the database. Where a run was interrupted before that, its file counts. A file
    that was edited since is refused.
    """
    path = folder / CONFIG
    if not path.is_file():
        return None
    refuse_run_of_host(folder)
    written = written_config(folder)
    text = recorded_fact(folder, FACT)
    if text is None:
        return written
    table = _recorded_table(folder, text)
    if table.get("plugins", []) != written.plugins:  # only plugins of the file are imported
        raise _edited(path, ["plugins"])
    table |= {"plugins": written.plugins, "plugin_dir": written.plugin_dir}
    table |= {"note": written.note, "tags": written.tags}  # which may be edited
    recorded = _recorded_experiment(folder, table)
    found = [one.sentence for one in refused_differences(recorded, written)]
    found += _removed(recorded, written)
    if found:
        raise _edited(path, found)
    return recorded


def written_config(folder: Path) -> Experiment:
    """The config in the file of a run folder."""
    return load_experiment(folder / CONFIG)


def refuse_run_of_host(folder: Path) -> None:
    """RunError where `cw.Aggregator` recorded the run: its clients are those of another program."""
    if recorded_fact(folder, "computed") == json.dumps(BY_HOST):
        raise RunError(
            f"{folder}: was recorded by cw.Aggregator or a strategy, and cannot be resumed. Start the program "
            "that trains its clients again, with a new folder"
        )


def extended(before: Experiment, experiment: Experiment) -> Experiment:
    """The experiment with the seeds, methods, note and tags that its run has: none is lost."""
    given = {method.name: method for method in experiment.methods}
    kept = []
    for method in before.methods:
        bounds = given.pop(method.name, method).bounds
        kept.append(method.model_copy(update={"bounds": bounds}))
    grown = {
        "seeds": list(dict.fromkeys([*before.seeds, *experiment.seeds])),
        "methods": [*kept, *given.values()],
        "note": before.note or experiment.note,
        "tags": before.tags or experiment.tags,
    }
    return experiment.model_copy(update=grown)


def refuse_other_config(folder: Path, before: Experiment, experiment: Experiment) -> None:
    """RunError where an experiment differs from its run in more than may change."""
    found = refused_differences(before, experiment)
    if not found:
        return
    hint = "Resume it with its own config, or choose another output folder"
    keys: set[str] = set()
    of_methods: set[str] = set()
    for one in found:
        keys.update(one.keys)
        if one.of_method:
            of_methods.update(one.keys)
    if of_methods:
        hint += "; give a changed method another name"
    if any(key.split(".")[0] == "bounds" for key in of_methods):
        hint += ", or say in a new bounds.note why its bounds change"
    if _counts_members(before) and not keys.isdisjoint(MEMBERS):
        hint += "; the ε of the rounds so far holds for the members so far"
    elif "flower.clients" in keys:
        hint += "; names may join flower.clients at its end"
    if experiment.rounds < before.rounds:
        hint += f"; its rounds may only grow: set rounds = {before.rounds} or more"
    differences = ", ".join(one.sentence for one in found)
    raise RunError(f"{folder}: was run with another config: {differences}. {hint}")


def changed_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The keys in which two resolved configs differ, except those that may change."""
    one = dotted_keys(before)
    other = dotted_keys(now)
    return sorted(key for key in {*one, *other} - MAY_CHANGE if one.get(key) != other.get(key))


def _recorded_table(folder: Path, text: str) -> dict[str, Any]:
    """The recorded config as a table; anybody may have made the database."""
    try:
        return parse_toml(json.loads(text))
    except (ValueError, TypeError, RecursionError):
        raise _damaged(folder) from None


def _recorded_experiment(folder: Path, table: Mapping[str, Any]) -> Experiment:
    try:
        return load_experiment(table)
    except ConfigError:
        raise _damaged(folder) from None


def _damaged(folder: Path) -> RunError:
    return RunError(f"{folder}: its database is damaged (its config cannot be read)")


def _edited(path: Path, differences: Sequence[str]) -> RunError:
    return RunError(
        f"{path}: changed since the run began: {', '.join(differences)}. "
        "Restore what it was, or start another run in another folder"
    )


class ConfigDifference(NamedTuple):
    """What differs between two configs and must not."""

    keys: tuple[str, ...]  # of a method: within its table
    sentence: str
    of_method: bool = False


def refused_differences(before: Experiment, now: Experiment) -> list[ConfigDifference]:
    """What differs between two configs and must not."""
    old = before.to_dict()
    new = now.to_dict()
    one = dotted_keys(old)
    other = dotted_keys(new)
    found: list[tuple[str, str]] = []
    for key in changed_keys(old, new):
        may_change = key in MAY_GROW or _only_joined(key, one, other)
        if not may_change or (key in MEMBERS and _counts_members(before)):
            found += _differences(key, one.get(key), other.get(key))
    if now.rounds < before.rounds:
        found += _differences("rounds", before.rounds, now.rounds)
    return [
        *(ConfigDifference((key,), words) for key, words in found),
        *_changed_methods(old["methods"], new["methods"]),
    ]


def _counts_members(experiment: Experiment) -> bool:
    """Whether a method has an ε that follows from the number of members."""
    return any(method.noises_mean for method in experiment.build_methods())


def _removed(recorded: Experiment, written: Experiment) -> list[str]:
    """Methods and seeds of a run that its own file no longer names."""
    names = {method.name for method in written.methods}
    gone = [f"no method {one.name!r}" for one in recorded.methods if one.name not in names]
    return [*gone, *(f"no seed {seed}" for seed in recorded.seeds if seed not in written.seeds)]


def _changed_methods(before: Iterable[Any], now: Iterable[Any]) -> list[ConfigDifference]:
    known = {method["name"]: method for method in before}
    changed = []
    for method in now:
        name = method["name"]
        old = dict(known.get(name, method))
        if _explains_policy(old, method):
            old["bounds"] = method["bounds"]
        found = dict(_differences("", old, method))
        if found:
            sentence = f"the method {name!r} differs ({', '.join(found.values())})"
            changed.append(ConfigDifference(tuple(found), sentence, of_method=True))
    return changed


def _explains_policy(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a method has a new note on its bounds: only then they may change."""
    note = now.get("bounds", {}).get("note")
    return bool(note) and note != before.get("bounds", {}).get("note")


def _differences(key: str, before: Any, now: Any) -> Iterator[tuple[str, str]]:
    """The keys that differ, also in tables and in lists of them; in words, with both values if short."""
    if before == now:
        return
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in sorted({*before, *now}):
            inner = f"{key}.{name}".removeprefix(".")
            yield from _differences(inner, before.get(name), now.get(name))
    elif _are_tables(before) and _are_tables(now) and len(before) == len(now):
        for index, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from _differences(f"{key}[{index}]", one, other)
    elif isinstance(before, list | dict) or isinstance(now, list | dict):
        yield key, key
    else:
        yield key, f"{key} = {_shown(now)} (was {_shown(before)})"


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, Mapping) for one in value)


def _shown(value: Any) -> str:
    return "none" if value is None else repr(value)


def _only_joined(key: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a key has a value for every client, and only clients at its end were added."""
    by_client = key == "flower.clients" or key.startswith("attributes.")
    one = before.get(key, [])
    other = now.get(key, [])
    return by_client and len(one) < len(other) and other[: len(one)] == one

"""Run folders: make, find and claim one; resume its run, of whose config some keys may change; run it once more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from ...errors import RunError
from ...record.database import recorded_fact
from ...record.facts import BY_HOST
from ...record.files import (
    BEST,
    CONFIG,
    LOCK,
    dotted_keys,
    parse_toml,
    plain_name,
)
from ...registry import suggest
from ...writing import ENDING, make_folder
from ..config.schema import Experiment
from ..config_file import read_source
from ..load import load_experiment, make_experiment

FACT = "config"  # the fact that holds the config of the rounds so far, as TOML

# Keys that may change when a run is resumed: where things are, how it is watched, how long the
# server waits. `workers` may change the last bits of later rounds (docs/performance.md).
MAY_CHANGE = frozenset(
    {
        "data_dir",
        "initial_model",
        "plugin_dir",
        "checkpoint_seconds",
        "trackers",
        "workers",
        "flower.reply_seconds",
    }
)


def new_folder(name: str, parent: Path = Path("runs")) -> Path:
    """Make a new folder runs/NAME-DATE-TIME; a number follows where that folder exists."""
    stem = f"{plain_name(name)}-{datetime.now():%Y%m%d-%H%M%S}"
    make_folder(parent)
    folder = parent / stem
    number = 2
    while True:
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            folder = parent / f"{stem}-{number}"
            number += 1


def claim(folder: Path, resume: bool) -> None:
    """Make the folder, so that it can be locked. A folder with other files is refused."""
    if is_new(folder, CONFIG, BEST) and resume and not any(folder.glob("*")):
        raise RunError(f"{folder}: there is no run here to resume")
    make_folder(folder)


def is_new(folder: Path, first: str, *others: str) -> bool:
    """Whether a folder lacks the file that is written `first`; one with anything but `others` is refused."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if (folder / first).is_file():  # looked for last: another process may be writing it
        return False
    # By its name: what another process is writing has become that file by the time of a second look
    begun = {name for name in names if name.endswith(ENDING) and name.startswith((first, *others))}
    if names - begun - {LOCK, *others}:
        raise RunError(f"{folder}: not empty, and not a run of clientwise (it has no {first})")
    return True


def config_so_far(folder: Path) -> Experiment | None:
    """The config that the rounds in a run folder were run with; None where there is no run.

    It is recorded in the database. Where a run was interrupted before that, its file counts. A file
    that was edited since is refused.
    """
    path = folder / CONFIG
    if not path.is_file():
        return None
    refuse_run_of_host(folder)
    written = load_experiment(path)
    text = recorded_fact(folder, FACT)
    if text is None:
        return written
    try:
        table = parse_toml(text)
        found = [] if table.get("plugins", []) == written.plugins else ["plugins"]
        if not found:  # else they would be imported
            recorded = load_experiment(table | {"plugin_dir": written.plugin_dir})
    except (ValueError, TypeError):  # a ConfigError is a ValueError
        raise RunError(f"{folder}: its database is damaged (its config cannot be read)") from None
    if not found:
        names = {method.name for method in written.methods}
        found = [*differences(recorded, written).values()]
        found += [f"no method {one.name!r}" for one in recorded.methods if one.name not in names]
        found += [f"no seed {seed}" for seed in recorded.seeds if seed not in written.seeds]
    if found:
        raise RunError(
            f"{path}: changed since the run began: {', '.join(found)}. "
            "Restore what it was, or start another run in another folder"
        )
    return recorded


def refuse_run_of_host(folder: Path) -> None:
    """RunError where `cw.Aggregator` recorded the run: its clients are those of another program."""
    if recorded_fact(folder, "computed") == BY_HOST:
        raise RunError(
            f"{folder}: was recorded by cw.Aggregator or a strategy, and cannot be resumed. Start the program "
            "that trains its clients again, with a new folder"
        )


def extended(before: Experiment, experiment: Experiment) -> Experiment:
    """The experiment with the seeds and methods that its run has: none is lost."""
    methods = {method.name: method for method in [*experiment.methods, *before.methods]}
    names = dict.fromkeys(method.name for method in [*before.methods, *experiment.methods])
    grown = {
        "seeds": list(dict.fromkeys([*before.seeds, *experiment.seeds])),
        "methods": [methods[name] for name in names],
    }
    return experiment.model_copy(update=grown)


def refuse_other_config(folder: Path, before: Experiment, experiment: Experiment) -> None:
    """RunError where an experiment differs from its run in more than may change."""
    found = differences(before, experiment)
    if not found:
        return
    hint = "Resume it with its own config, or choose another output folder"
    if any(key.startswith("methods.") for key in found):
        hint += "; give a changed method another name"
    if counts_members(before) and "flower.clients" in found:
        hint += "; the ε of the rounds so far holds for the members so far"
    elif "flower.clients" in found:
        hint += "; names may join flower.clients at its end"
    if "rounds" in found:
        hint += f"; its rounds may only grow: set rounds = {before.rounds} or more"
    raise RunError(f"{folder}: was run with another config: {', '.join(found.values())}. {hint}")


def differences(before: Experiment, now: Experiment) -> dict[str, str]:
    """What differs between two configs and must not: a sentence for every key.

    Rounds, seeds and methods may be added; clients of a deployment may join at the end, unless an ε follows from
    their number.
    """
    shared = {method.name for method in before.methods} & {method.name for method in now.methods}
    old = _keys(before, shared)
    new = _keys(now, shared)
    fixed = ("flower.clients",) if counts_members(before) else ()
    found: dict[str, str] = {}
    for key in sorted({*old, *new} - MAY_CHANGE - {"seeds"}):
        one = old.get(key)
        other = new.get(key)
        is_said = any(key.startswith(f"{table}.") for table in found)
        if one == other or is_said:
            continue
        if key in fixed or not _may_grow(key, one, other):
            is_list = isinstance(one, list) or isinstance(other, list)
            found[key] = key if is_list else f"{key} = {_shown(other)} (was {_shown(one)})"
    return found


def changed_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The keys in which two resolved configs differ, except those that may change."""
    one = dotted_keys(before)
    other = dotted_keys(now)
    return sorted(key for key in {*one, *other} - MAY_CHANGE if one.get(key) != other.get(key))


def member_changes(before: Experiment, now: Experiment) -> Iterator[str]:
    """Which clients of a deployment joined."""
    for name in now.flower.clients[len(before.flower.clients) :]:
        yield f"{name} joined"


def counts_members(experiment: Experiment) -> bool:
    """Whether a method has an ε that follows from the number of members."""
    return any(method.noises_mean for method in experiment.build_methods())


def _keys(experiment: Experiment, names: set[str]) -> dict[str, Any]:
    """The values of a config by dotted key; of the methods, those with these names."""
    table = {key: one for key, one in experiment.to_dict().items() if key not in MAY_CHANGE}
    methods = {method["name"]: method for method in table["methods"]}
    table["methods"] = {name: methods[name] for name in names}
    return dotted_keys(table, in_lists=True)


def _may_grow(key: str, one: Any, other: Any) -> bool:
    """Whether rounds or clients were only added."""
    if key == "rounds":
        return bool(other > one)
    if key == "flower.clients" or key.startswith("attributes."):
        known = one or []
        return len(known) < len(other or []) and known == other[: len(known)]
    return False


def _shown(value: Any) -> str:
    return "none" if value is None else repr(value)


# A finished run once more, with one thing changed: data, seeds, cohorts and batches stay the same, so both are paired


def without_client(folder: Path, client: str) -> Experiment:
    """The experiment of a run, never asking one client."""
    table = _config_of(folder, f"without {client}")
    left_out = {*table["federation"]["without"], _number_of(folder, client)}
    table["federation"]["without"] = sorted(left_out)
    return load_experiment(table)


def with_equal_weights(folder: Path) -> Experiment:
    """The experiment of a run, with equal weights within the same bounds."""
    table = _config_of(folder, "equal weights")
    for method in _weighing(table):
        for key in ("score", "normalise", "evidence", "adjust"):
            method.pop(key, None)
        method["criteria"] = ["uniform"]
    return load_experiment(table)


def with_policy(folder: Path, file: Path) -> Experiment:
    """The experiment of a run, with the bounds of a TOML file: the keys of [methods.bounds]."""
    table = _config_of(folder, f"policy {file.stem}")
    bounds = {key: value for key, value in read_source(file).table.items() if key != "name"}
    for method in _weighing(table):
        method["bounds"] = bounds
    return make_experiment(str(file), table)


def _weighing(table: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The methods; controls weigh nobody and stay as they are."""
    return (method for method in table["methods"] if "control" not in method)


def _config_of(folder: Path, what: str) -> dict[str, Any]:
    """The config of a run, with another name; RunError where it cannot be run again here."""
    before = config_so_far(folder)
    if before is None:
        raise RunError(f"{folder}: there is no run here")
    if before.data is None:
        raise RunError(
            f"{folder}: its samples are not here (a deployment, or arrays passed to `cw.run`). Start "
            "a run of its own with federation.without, another criterion or other bounds"
        )
    for method in before.methods:
        if method.privacy:
            raise RunError(
                f"{folder}: {method.name} uses differential privacy. The difference of two runs would "
                "tell about single clients, and no noise covers it"
            )
    return {**before.to_dict(), "name": f"{before.name}, {what}"}


def _number_of(folder: Path, client: str) -> int:
    """The number that a client has under all seeds."""
    from ...record.run import RunFolder  # pandas, which takes long to import

    clients = RunFolder(folder).frame("clients")
    numbers = clients["client"].astype(str)
    names = clients["name"].fillna(numbers)
    found = clients[(names == client) | (numbers == client)].drop_duplicates("seed")
    if found["seed"].nunique() < clients["seed"].nunique():
        raise RunError(f"{folder}: no client is called {client!r}{suggest(client, names)}")
    if found["client"].nunique() > 1:
        raise RunError(f"{folder}: {client!r} is another client number in every seed")
    return int(found["client"].iloc[0])

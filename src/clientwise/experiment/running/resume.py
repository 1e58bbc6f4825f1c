"""Run folders: make and claim one; resume its run, of whose config some keys may change; run it without a client."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import Any

from ...errors import RunError
from ...record.database import recorded_fact
from ...record.facts import BY_HOST
from ...record.files import (
    CONFIG,
    LOCK,
    dotted_keys,
    parse_toml,
    plain_name,
)
from ...registry import suggest
from ...writing import ENDING, make_folder
from ..config.schema import Experiment
from ..load import load_experiment

FACT = "config"  # the fact that holds the config of the rounds so far, as TOML

# Keys that may change when a run is resumed: where things are, how it is watched, how long the
# server waits. `workers` may change the last bits of later rounds (docs/performance.md).
MAY_CHANGE = (
    "data_dir",
    "initial_model",
    "plugin_dir",
    "checkpoint_seconds",
    "trackers",
    "workers",
    "flower.reply_seconds",
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


def claim(folder: Path) -> None:
    """Make the folder, so that it can be locked. A folder with other files is refused."""
    is_new(folder, CONFIG)
    make_folder(folder)


def is_new(folder: Path, first: str) -> bool:
    """Whether a folder lacks the file that is written `first`; one with anything else is refused."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if (folder / first).is_file():  # looked for last: another process may be writing it
        return False
    # By its name: what another process is writing has become that file by the time of a second look
    begun = {name for name in names if name.endswith(ENDING) and name.startswith(first)}
    if names - begun - {LOCK}:
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
    found = ["plugins"]
    try:
        table = parse_toml(text)
        if table.get("plugins", []) == written.plugins:  # else others would be imported
            recorded = load_experiment(table | {"plugin_dir": written.plugin_dir})
            found = _lost(recorded, written)
    except (ValueError, TypeError):  # a ConfigError is a ValueError
        raise RunError(f"{folder}: its database is damaged (its config cannot be read)") from None
    if found:
        raise RunError(
            f"{path}: changed since the run began: {', '.join(found)}. "
            "Restore what it was, or start another run in another folder"
        )
    return recorded


def _lost(recorded: Experiment, written: Experiment) -> list[str]:
    """What a file of a config does not have as it is recorded."""
    names = {method.name for method in written.methods}
    found = [*_differences(recorded, written).values()]
    found += [f"no method {one.name!r}" for one in recorded.methods if one.name not in names]
    return found + [f"no seed {seed}" for seed in recorded.seeds if seed not in written.seeds]


def refuse_run_of_host(folder: Path) -> None:
    """RunError where `cw.Aggregator` recorded the run: its clients are those of another program."""
    if recorded_fact(folder, "computed") == BY_HOST:
        raise RunError(
            f"{folder}: was recorded by cw.Aggregator or a strategy, and cannot be resumed. Start the program "
            "that trains its clients again, with a new folder"
        )


def extended(before: Experiment, experiment: Experiment) -> Experiment:
    """The experiment with the seeds and methods that its run has: none is lost."""
    methods = {method.name: method for method in before.methods}
    for method in experiment.methods:
        methods.setdefault(method.name, method)
    seeds = dict.fromkeys([*before.seeds, *experiment.seeds])
    return experiment.model_copy(update={"seeds": list(seeds), "methods": list(methods.values())})


def refuse_other_config(folder: Path, before: Experiment, experiment: Experiment) -> None:
    """RunError where an experiment differs from its run in more than may change."""
    found = _differences(before, experiment)
    if not found:
        return
    hint = "Resume it with its own config, or choose another output folder"
    if any(key.startswith("methods.") for key in found):
        hint += "; give a changed method another name"
    if "flower.clients" in found:
        hint += (
            "; names may join flower.clients at its end, unless an ε holds for the members so far"
        )
    if "rounds" in found:
        hint += f"; its rounds may only grow: set rounds = {before.rounds} or more"
    raise RunError(f"{folder}: was run with another config: {', '.join(found.values())}. {hint}")


def has_changed(before: Experiment, now: Experiment) -> bool:
    """Whether two configs differ in more than keys that may change at any time."""
    return _keys(before) != _keys(now)


def _differences(before: Experiment, now: Experiment) -> dict[str, str]:
    """What differs between two configs and must not: a text for every key.

    Rounds, seeds and methods may be added; clients of a deployment may join at the end, unless an ε follows from
    their number.
    """
    shared = {method.name for method in before.methods} & {method.name for method in now.methods}
    old = _keys(before, shared)
    new = _keys(now, shared)
    members_count = any(method.noises_mean for method in before.build_methods())
    found: dict[str, str] = {}
    for key in sorted({*old, *new} - {"seeds"}):
        one = old.get(key)
        other = new.get(key)
        is_said = any(key.startswith(f"{table}.") for table in found)
        is_fixed = key == "flower.clients" and members_count
        if one == other or is_said or (_has_grown(key, one, other) and not is_fixed):
            continue
        is_list = isinstance(one, list) or isinstance(other, list)
        found[key] = key if is_list else f"{key} = {_shown(other)} (was {_shown(one)})"
    return found


def _keys(experiment: Experiment, names: Collection[str] | None = None) -> dict[str, Any]:
    """The values of a config by dotted key, without those that may change; of the methods, those with these names."""
    table = experiment.to_dict()
    methods = {method["name"]: method for method in table["methods"]}
    table["methods"] = methods if names is None else {name: methods[name] for name in names}
    values = dotted_keys(table, in_lists=True)
    return {key: value for key, value in values.items() if not key.startswith(MAY_CHANGE)}


def _has_grown(key: str, one: Any, other: Any) -> bool:
    """Whether rounds or clients were only added."""
    if key == "rounds":
        return bool(other > one)
    if key == "flower.clients" or key.startswith("attributes."):
        known = one or []
        return len(known) < len(other or []) and known == other[: len(known)]
    return False


def _shown(value: Any) -> str:
    return "none" if value is None else repr(value)


# A finished run once more, without a client: data, seeds, cohorts and batches stay the same, so both are paired


def without_client(folder: Path, client: str) -> Experiment:
    """The experiment of a run, never asking one client; RunError where it cannot be run again here."""
    before = config_so_far(folder)
    if before is None:
        raise RunError(f"{folder}: there is no run here")
    if before.data is None:
        raise RunError(
            f"{folder}: its samples are not here (a deployment, or arrays passed to `cw.run`). Start "
            "a run of its own with federation.without"
        )
    for method in before.methods:
        if method.privacy:
            raise RunError(
                f"{folder}: {method.name} uses differential privacy. The difference of two runs would "
                "tell about single clients, and no noise covers it"
            )
    table = before.to_dict() | {"name": f"{before.name}, without {client}"}
    left_out = {*before.federation.without, _number_of(folder, client)}
    table["federation"]["without"] = sorted(left_out)
    return load_experiment(table)


def _number_of(folder: Path, client: str) -> int:
    """The number that a client has under all seeds."""
    from ...record.run import RunFolder  # pandas, which takes long to import

    clients = RunFolder(folder).frame("clients")
    numbers = clients["client"].astype(str)
    names = clients["name"].fillna(numbers).astype(object)  # takes text that is no UTF-8
    is_meant = [client in (name, number) for name, number in zip(names, numbers, strict=True)]
    found = clients[is_meant].drop_duplicates("seed")
    if found["seed"].nunique() < clients["seed"].nunique():
        raise RunError(f"{folder}: no client is called {client!r}{suggest(client, names)}")
    if found["client"].nunique() > 1:
        raise RunError(f"{folder}: {client!r} is another client number in every seed")
    return int(found["client"].iloc[0])

"""Methods by name, and presets: tables that change other tables.

methods = ["FedAvg", { name = "mine", like = "FedYogi", brake = 3 }]

[presets.quick]
rounds = 20
partition.clients = 30                  # the partition's other options stay
data = { name = "mnist5k" }             # another part: no option of the former one stays
methods = ["FedAvg", "AdaFed"]          # of the methods, only these
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from copy import deepcopy
from importlib.resources import files
from typing import Any

import tomli_w

from ...errors import ConfigError
from ...registry import suggest

_TABLES = tomllib.loads(files(__package__).joinpath("methods.toml").read_text("utf-8"))
METHODS: dict[str, str] = {name: table.pop("about") for name, table in _TABLES.items()}
_IN_ANY_CASE = {name.casefold(): name for name in METHODS}
# A resolved config states all of these: its methods are already written out.
_STATED_WHEN_RESOLVED = {"criteria", "score", "rule", "server_step"}


def method_toml(name: str) -> str:
    """The method that a name stands for, as TOML."""
    return tomli_w.dumps({"methods": [{"name": name, **_TABLES[name]}]})


def pick(methods: Any, chosen: Any, where: str) -> Any:
    """The methods after a preset or the command line: a list of names picks some of them.

    Args:
        methods: those of the config. Picked ones stay in its order: its first is the baseline.
        chosen: names of the config's methods or of `clientwise list methods`, also several in one
            text with commas; or new methods, which replace those of the config.
        where: the name of the config in messages.
    """
    if isinstance(chosen, str):
        chosen = [chosen]
    is_names = isinstance(chosen, list) and all(isinstance(name, str) for name in chosen)
    if chosen == methods or not is_names:
        return chosen
    known = {name_of(method): method for method in methods} if isinstance(methods, list) else {}
    names: list[str] = []
    for text in chosen:
        names += [text] if text in known else [name.strip() for name in text.split(",")]
    strange = [name for name in names if name not in known and _known(name) is None]
    if strange:
        every = {**known, **METHODS}
        raise ConfigError(where, [("methods", _unknown(name, every)) for name in strange])
    mine = [method for name, method in known.items() if name in names]
    others = [name for name in dict.fromkeys(names) if name not in known]
    return mine + others


def write_out(methods: Any) -> Any:
    """The methods with names and `like` written out.

    Anything but a list, and names that no method has, are left to the schema: see `unmeant`.
    """
    return [_written_out(one) for one in methods] if isinstance(methods, list) else methods


def unmeant(method: Any) -> tuple[str, str] | None:
    """Why a method that is not written out cannot be: a key of it, "" for all of it, and the reason."""
    if isinstance(method, str):
        return "", _unknown(method, METHODS)
    if not isinstance(method, Mapping):
        return None
    if "like" in method:
        return "like", _unknown(method["like"], METHODS)
    if method.keys() == {"name"} and _known(method["name"]) is None:  # it would be FedAvg
        own = 'to call FedAvg so, add like = "FedAvg"; a method of your own has other keys'
        return "name", f"{_unknown(method['name'], METHODS)} ({own})"
    return None


def name_of(method: Any) -> str:
    """The name of a method as a config has it: a text or a table."""
    if isinstance(method, Mapping):
        return str(method.get("name", method.get("like")))
    return str(method)


def _unknown(name: Any, known: Mapping[str, Any]) -> str:
    return f"there is no method {name!r}{suggest(str(name), known)}"


def _known(name: Any) -> str | None:
    """The method of this library that a name stands for, in upper or lower case."""
    return _IN_ANY_CASE.get(name.casefold()) if isinstance(name, str) else None


def _written_out(method: Any) -> Any:
    table = {"like": method} if isinstance(method, str) else method
    if not isinstance(table, Mapping):
        return method
    base = _known(table.get("like", table.get("name")))
    is_stated = "like" not in table and table.keys() >= _STATED_WHEN_RESOLVED
    if base is None or is_stated:
        return method
    changes = {option: value for option, value in table.items() if option != "like"}
    return merge({"name": base, **deepcopy(_TABLES[base])}, changes)  # `--set` changes the copy


def apply_preset(table: dict[str, Any], preset: str | None, where: str) -> dict[str, Any]:
    """The config without its presets, changed by one of them, whose name joins its own."""
    presets = table.get("presets", {})
    table = {key: value for key, value in table.items() if key != "presets"}
    is_tables = isinstance(presets, Mapping) and all(
        isinstance(value, Mapping) for value in presets.values()
    )
    if not is_tables:
        hint = "must be tables: [presets.quick] with the keys that differ"
        raise ConfigError(where, [("presets", hint)])
    if preset is None:
        return table
    if preset not in presets:
        known = suggest(preset, presets) or "; the config has no presets"
        raise ConfigError(where, [("presets", f"there is no preset {preset!r}{known}")])
    name = f"{table.get('name', 'experiment')}-{preset}"
    return merge({**table, "name": name}, presets[preset])


def merge(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables key by key. Parts of another name, and all other values, are replaced."""
    merged = dict(table)
    for key, value in changes.items():
        before = merged.get(key)
        if isinstance(before, str):
            before = {"name": before}
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            is_other_part = value.get("name", before.get("name")) != before.get("name")
            merged[key] = value if is_other_part else merge(before, value)
        else:
            merged[key] = value
    return merged

"""Presets: other sizes of one config. `[presets.quick]` holds the keys that differ.

[presets.quick]
rounds = 20
partition.clients = 30                  # the partition's other options stay
data = { name = "mnist5k" }             # another part: no option of the former one stays
methods = ["FedAvg", "AdaFed"]          # of the methods, only these
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from ...errors import ConfigError
from ...registry import suggest


def apply_preset(table: dict[str, Any], preset: str | None, where: str) -> dict[str, Any]:
    """The config without its presets, changed by one of them, whose name joins its own."""
    presets = table.get("presets", {})
    table = {key: value for key, value in table.items() if key != "presets"}
    if not _are_tables(presets):
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
        if isinstance(value, Mapping) and _is_same_part(before, value):
            merged[key] = merge(before, value)
        else:
            merged[key] = value
    return merged


def _are_tables(presets: Any) -> bool:
    if not isinstance(presets, Mapping):
        return False
    return all(isinstance(value, Mapping) for value in presets.values())


def _is_same_part(before: Any, after: Mapping[str, Any]) -> TypeGuard[Mapping[str, Any]]:
    """Whether a value is a table that `after` changes; a table with another name replaces it."""
    if not isinstance(before, Mapping):
        return False
    return "name" not in after or after["name"] == before.get("name")

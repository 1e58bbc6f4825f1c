"""Presets: a config that can be run in more than one size. `[presets.quick]` holds what is different then.

[presets.quick]
rounds = 20
partition.clients = 30                  # the partition's other options stay
data = { name = "mnist5k" }             # another part: nothing of the former one stays
methods = ["FedAvg", "AdaFed"]          # of the methods, only these
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from ..registry import suggest


def apply_preset(table: dict[str, Any], preset: str | None, where: str) -> dict[str, Any]:
    """The config without its presets, changed by the one that was asked for; its name then tells which."""
    presets = table.get("presets", {})
    table = {key: value for key, value in table.items() if key != "presets"}
    if not isinstance(presets, Mapping) or not all(isinstance(value, Mapping) for value in presets.values()):
        raise ConfigError(where, [("presets", "must be tables: [presets.quick] with the keys that differ")])
    if preset is None:
        return table
    if preset not in presets:
        known = suggest(preset, presets) or "; it has none"
        raise ConfigError(where, [("presets", f"there is no preset {preset!r}{known}")])
    return merge({**table, "name": f"{table.get('name', 'experiment')}-{preset}"}, presets[preset])


def merge(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key, but for parts of another name; everything else is replaced."""
    merged = dict(table)
    for key, value in changes.items():
        before = {"name": merged[key]} if isinstance(merged.get(key), str) else merged.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping) and not _is_other_part(before, value):
            merged[key] = merge(before, value)
        else:
            merged[key] = value
    return merged


def _is_other_part(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    return "name" in after and after["name"] != before.get("name")

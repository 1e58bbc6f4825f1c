"""Read the table of a config: TOML, a preset, `--set`, methods by name. Its errors need no PyTorch.

methods = ["FedAvg", { name = "mine", like = "FedYogi", rule = "median" }]

[presets.quick]                         # tables that change other tables
rounds = 20
partition.clients = 30                  # the partition's other options stay
data = { name = "mnist5k" }             # another part: no option of the former one stays
methods = ["FedAvg", "AdaFed"]          # of the methods, only these
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from ..errors import ConfigError, Problems
from ..record.files import DEEPEST, MOST_BYTES, parse_toml
from ..registry import suggest

PATHS = ("data_dir", "plugin_dir", "initial_model")  # keys that are paths


class Source(NamedTuple):
    """A config as it was read."""

    where: str  # its name in messages
    folder: Path  # relative paths start from it
    table: dict[str, Any]


def read_config(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    replaced: Mapping[str, Any] | None = None,
    preset: str | None = None,
) -> tuple[str, dict[str, Any]]:
    """The name of the source, and its table after all changes, with absolute paths."""
    where, folder, table = read_source(source)
    methods = table.get("methods")
    table = apply_preset(table, preset, where)
    if "methods" in table and overrides:  # written out, so that overrides can change their parts
        methods = write_out(pick(methods, table["methods"], where))
        table["methods"] = methods
    problems = Problems()
    for override in overrides:
        with problems.noted():
            _override(table, override)
    problems.refuse()
    table = _copy({**table, **(replaced or {})})
    if "methods" in table:
        table["methods"] = write_out(pick(methods, table["methods"], where))
    parts = [table, *_federations(table)]
    for part in parts:
        _make_paths_absolute(part, folder)
    if table.get("plugins") or any(isinstance(part.get("data"), dict) for part in parts):
        table.setdefault("plugin_dir", str(folder))  # `make_experiment` knows whether it is needed
    return where, table


def presets_of(source: str | Path) -> list[str]:
    """The names of a config's presets. None if they are no tables, which `apply_preset` refuses."""
    presets = read_source(source).table.get("presets")
    return list(presets) if isinstance(presets, Mapping) else []


def read_source(source: str | Path | Mapping[str, Any]) -> Source:
    """A config as it is written, without presets and named methods."""
    if isinstance(source, Mapping):
        where = "config" if source else ""  # keywords alone
        return Source(where, Path.cwd(), _copy(source))
    where = str(source)
    try:
        with Path(source).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise _refused(where, f"is larger than {MOST_BYTES:,} bytes: not a config")
        path = Path(source).resolve()
        table = parse_toml(content.decode())
    except FileNotFoundError:
        raise _refused(where, "no such file; `clientwise demo` runs without one") from None
    except IsADirectoryError:
        config = Path(source) / "config.toml"
        instead = f"; the config of the run in it is {config}" if config.is_file() else ""
        raise _refused(where, f"is a folder, not a TOML file{instead}") from None
    except OSError as error:
        raise _refused(where, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _refused(where, "is not UTF-8 text; save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        twice = _defined_twice(content.decode())
        raise _refused(where, f"not valid TOML: {twice or error}") from None
    if "matrix" not in table:  # a matrix has a name of its own
        table.setdefault("name", path.stem)
    return Source(where, path.parent, table)


def _defined_twice(text: str) -> str | None:
    """A message where a key of the top level has a value, and further down a table, too."""
    top, *_ = re.split(r"^\[", text, maxsplit=1, flags=re.MULTILINE)
    for key in re.findall(r"^(\w+)\s*=", top, re.MULTILINE):
        if table := re.search(rf"^\[+{key}\b.*?\]+", text, re.MULTILINE):
            return f"{key} is defined twice, as `{key} = ...` and as `{table[0]}`: join them in one"
    return None


def _refused(where: str, reason: str) -> ConfigError:
    """An error about the whole source."""
    return ConfigError(where, [("", reason)])


def _copy(value: Any) -> Any:
    """A copy of all tables and lists, so that overrides do not change the caller's config."""
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list | tuple) else value


def _federations(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What differs on the federations of a matrix; what is no table is left to the schema."""
    matrix = table.get("matrix")
    data = matrix.get("data") if isinstance(matrix, dict) else None
    found = data.values() if isinstance(data, dict) else ()
    return [changes for changes in found if isinstance(changes, dict)]


def _make_paths_absolute(table: dict[str, Any], folder: Path) -> None:
    """Relative paths start from the folder of the config."""
    for key in PATHS:
        if isinstance(table.get(key), str):
            table[key] = str(folder / table[key])


def _override(table: dict[str, Any], text: str) -> None:
    """Apply `training.learning_rate=0.05` or `methods.0.adjust="best_order"` to a table."""
    where = f"--set {text}"
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise _refused(where, "write key=value, for instance training.learning_rate=0.05")
    try:
        parsed = parse_toml(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()  # a bare word is a string: device=cpu
    set_value(table, tuple(key.split(".")), parsed, where)


def set_value(table: dict[str, Any], path: Sequence[str], value: Any, where: str) -> None:
    """Set a value in nested tables and lists; an entry of a list is a number, or its name."""
    if len(path) > DEEPEST:
        raise _refused(where, f"a key has more than {DEEPEST} parts")
    here: Any = table
    *tables, last = path
    try:
        for step in tables:
            here = here[_index_of(here, step)] if isinstance(here, list) else _inner(here, step)
        here[_index_of(here, last) if isinstance(here, list) else last] = value
    except (ValueError, IndexError, TypeError, AttributeError):
        raise _refused(where, f"there is no key {'.'.join(path)!r} in this config") from None


def _index_of(entries: list[Any], step: str) -> int:
    """The index of an entry by its number or name."""
    for index, entry in enumerate(entries):
        if isinstance(entry, Mapping) and entry.get("name") == step:
            return index
    return int(step)


def _inner(table: dict[str, Any], step: str) -> Any:
    """The table at a key; a part that is only a name becomes a table."""
    if isinstance(table.get(step), str):
        table[step] = {"name": table[step]}
    return table.setdefault(step, {})


# Methods by name, and presets --------------------------------------------------------------------------------

_TABLES = tomllib.loads(files(f"{__package__}.config").joinpath("methods.toml").read_text("utf-8"))
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

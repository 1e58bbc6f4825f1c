"""Read the table of a config: TOML, a preset, `--set`, named methods. Errors in the first three need no PyTorch."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ConfigError, Problems
from ..record.files import DEEPEST, INTEGERS, MOST_BYTES, parse_toml
from .config.messages import dotted
from .config.named import apply_preset, pick, write_out

PATHS = {  # keys that are paths, by table; "" has those at the top
    "": ("data_dir", "plugin_dir", "initial_model"),
    "devices": ("traces",),
}


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
    table = _copy({**table, **(replaced or {})}, where)
    if "methods" in table:
        table["methods"] = write_out(pick(methods, table["methods"], where))
    parts = [table, *_federations(table)]
    for part in parts:
        _make_paths_absolute(part, folder)
    if table.get("plugins") or any(isinstance(part.get("data"), dict) for part in parts):
        table.setdefault("plugin_dir", str(folder))  # `make_experiment` knows whether it is needed
    return where, table


def presets_of(source: str | Path) -> list[str]:
    """The names of a config's presets."""
    return list(read_source(source).table.get("presets", {}))


def given_methods(source: str | Path | Mapping[str, Any]) -> list[Any]:
    """The methods of a config as they are written there, names and tables."""
    methods = read_source(source).table.get("methods", [])
    return methods if isinstance(methods, list) else []


def read_source(source: str | Path | Mapping[str, Any]) -> Source:
    """A config as it is written, without presets and named methods."""
    if isinstance(source, Mapping):
        return Source("config", Path.cwd(), _copy(source, "config"))
    where = str(source)
    try:
        with Path(source).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise _refused(where, f"is larger than {MOST_BYTES:,} bytes: not a config")
        path = Path(source).resolve()
        table = _copy(parse_toml(content.decode()), where)
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
        raise _refused(where, f"not valid TOML: {error}") from None
    if "matrix" not in table:  # a matrix has a name of its own
        table.setdefault("name", path.stem)
    return Source(where, path.parent, table)


def _refused(where: str, reason: str) -> ConfigError:
    """An error about the whole source."""
    return ConfigError(where, [("", reason)])


def _copy(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A copy, so that overrides do not change the caller's config; its size is checked."""

    def copied(value: Any, path: tuple[Any, ...]) -> Any:
        if len(path) > DEEPEST:
            raise ConfigError(where, [(str(path[0]), f"is nested more than {DEEPEST} deep")])
        if isinstance(value, Mapping):
            return {key: copied(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [copied(item, (*path, index)) for index, item in enumerate(value)]
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ConfigError(where, [(dotted(path), f"is too large; {INTEGERS}")])
        return value

    return {key: copied(value, (key,)) for key, value in table.items()}


def _federations(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What differs on the federations of a matrix; what is no table is left to the schema."""
    matrix = table.get("matrix")
    data = matrix.get("data") if isinstance(matrix, dict) else None
    found = data.values() if isinstance(data, dict) else ()
    return [changes for changes in found if isinstance(changes, dict)]


def _make_paths_absolute(table: Mapping[str, Any], folder: Path) -> None:
    """Relative paths start from the folder of the config."""
    for name, keys in PATHS.items():
        inner = table.get(name) if name else table
        for key in keys:
            if isinstance(inner, dict) and isinstance(inner.get(key), str):
                inner[key] = str(folder / inner[key])


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

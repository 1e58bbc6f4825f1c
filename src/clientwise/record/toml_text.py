"""TOML of configs and run folders, with limits: anybody may have written the text."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .files import read_whole

MOST_BYTES = 2**20  # of a config file: reading one takes a second at most
DEEPEST = 32  # tables and lists within each other
INTEGERS = "the largest integer of a config is 9,223,372,036,854,775,807"
_KEY_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:{_KEY_PART}[ \t]*+\.[ \t]*+){{{DEEPEST}}}")


def read_table(path: Path) -> dict[str, Any]:
    """A config file as a plain table; empty where it cannot be read."""
    try:
        table = parse_toml(read_whole(path, MOST_BYTES).decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}
    return table if _is_plain(table, 0) else {}


def parse_toml(text: str) -> dict[str, Any]:
    """The table that a TOML text holds; TOMLDecodeError for whatever cannot be parsed.

    A byte order mark, which some editors of Windows write, is left out.
    `tomllib` fails in other ways on some texts, and takes minutes on keys of thousands of parts.
    """
    if _LONG_KEY.search(text):
        raise tomllib.TOMLDecodeError(f"a key of more than {DEEPEST} parts")
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except RecursionError:
        raise tomllib.TOMLDecodeError("brackets are nested too deep") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # Python reads no integers of thousands of digits
        raise tomllib.TOMLDecodeError(f"an integer of too many digits; {INTEGERS}") from None


def dotted_keys(table: Mapping[Any, Any], *, in_lists: bool = False) -> dict[str, Any]:
    """The values of a table and of the tables in it, by keys like `training.epochs`.

    Args:
        table: the table.
        in_lists: whether a list of tables counts as a table by place.

    >>> dotted_keys({"training": {"epochs": 1}, "hidden": [32, 16]})
    {'training.epochs': 1, 'hidden': [32, 16]}
    >>> dotted_keys({"criteria": [{"name": "trust"}]}, in_lists=True)
    {'criteria.0.name': 'trust'}
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        has_tables = isinstance(value, list) and any(isinstance(one, Mapping) for one in value)
        if in_lists and has_tables:
            value = dict(enumerate(value))
        if isinstance(value, Mapping):
            inner = dotted_keys(value, in_lists=in_lists)
            found |= {f"{key}.{name}": item for name, item in inner.items()}
        else:
            found[str(key)] = value
    return found


def _is_plain(value: object, depth: int) -> bool:
    """Whether a value is nested no deeper, and its integers no larger, than a config's may be."""
    if depth > DEEPEST:
        return False
    if isinstance(value, dict):
        return all(_is_plain(one, depth + 1) for one in value.values())
    if isinstance(value, list):
        return all(_is_plain(one, depth + 1) for one in value)
    return not isinstance(value, int) or -(2**63) <= value < 2**63

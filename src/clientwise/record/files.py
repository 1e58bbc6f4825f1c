"""The files of a run folder: their names, the lock (one process writes at a time), and reading the config.

Anybody may have written a config: what is read has limits.
"""

from __future__ import annotations

import errno
import re
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import RunError

CONFIG = "config.toml"
VERSIONS = "versions.json"
LOCK = ".lock"
TRIES = 4
SECONDS_BETWEEN = 0.05
MOST_BYTES = 2**20  # of a config file: reading one takes a second at most
DEEPEST = 32  # tables and lists within each other
INTEGERS = "the largest integer of a config is 9,223,372,036,854,775,807"
_KEY_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:{_KEY_PART}[ \t]*+\.[ \t]*+){{{DEEPEST}}}")
_held: set[Path] = set()  # the folders that this process has locked


def newest_run(parent: Path = Path("runs")) -> Path:
    """The newest run folder in runs/."""
    written = [*parent.glob(f"*/{CONFIG}"), *parent.glob("*/matrix.toml")]
    if not written:
        raise RunError(f"{parent}/: no run here yet; `clientwise demo` makes one")
    return max(written, key=lambda path: path.stat().st_mtime).parent


def plain_name(text: str) -> str:
    """Turn a name into one that a file can have.

    >>> plain_name("size/2, then loss")
    'size-2--then-loss'
    """
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in text)


def initial_path(folder: Path) -> Path:
    """The parameters that every seed began with, where a module was given in Python."""
    return folder / "checkpoints" / "initial.safetensors"


def checkpoint_path(folder: Path, lane: int) -> Path:
    """The checkpoint of a lane."""
    return folder / "checkpoints" / f"lane-{lane}.safetensors"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder for this process, so that no other writes into it."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: it has no such lock
        yield
        return
    with (folder / LOCK).open("wb") as file:
        for tries_left in reversed(range(TRIES)):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not tries_left:
                    message = "another clientwise process is writing to this run"
                    raise RunError(f"{folder}: {message}") from None
                time.sleep(SECONDS_BETWEEN)  # `is_locked` of another process holds it for a moment
        _held.add(folder.resolve())
        try:
            yield
        finally:
            _held.discard(folder.resolve())


def holds(folder: Path) -> bool:
    """Whether it is this process that has locked a folder."""
    return folder.resolve() in _held


def is_locked(folder: Path) -> bool:
    """Whether a process is writing to this run folder now."""
    try:
        import fcntl

        with (folder / LOCK).open("rb") as file:
            # Shared, so that processes that only look do not see each other.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):  # no such lock, or no such file
        return False
    return False


def read_whole(path: Path, most: int) -> bytes:
    """Read a regular file of at most `most` bytes; anything else, a pipe say, is an OSError."""
    if not path.is_file() or path.stat().st_size > most:
        raise OSError(errno.EFBIG, f"not a file of at most {most:,} bytes", str(path))
    return path.read_bytes()


def read_table(path: Path) -> dict[str, Any]:
    """A config file as a plain table; empty where it cannot be read."""
    try:
        return parse_toml(read_whole(path, MOST_BYTES).decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}


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

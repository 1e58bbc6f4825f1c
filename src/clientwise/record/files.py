"""The files of a run folder: their names, how they are read, and the lock: one process writes at a time."""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..errors import RunError

CONFIG = "config.toml"
VERSIONS = "versions.json"
TRIES = 4
SECONDS_BETWEEN = 0.05
BEST = "best.safetensors"  # the best model of another framework's run; see `hosts/record.py`


def newest_run(parent: Path = Path("runs")) -> Path:
    """The newest run folder in runs/."""
    written = [*parent.glob(f"*/{CONFIG}"), *parent.glob("*/matrix.toml")]
    if not written:
        raise RunError(f"{parent}/: no run here yet; `clientwise demo` makes one")
    return max(written, key=modified).parent


def modified(path: Path) -> float:
    """When a file was last written."""
    return path.stat().st_mtime


def plain_name(text: str) -> str:
    """Turn a name into one that a file can have.

    >>> plain_name("size/2, then loss")
    'size-2--then-loss'
    """
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in text)


def plain_names(texts: Iterable[str]) -> list[str]:
    """The same for several names, which stay different, also where a file system ignores case.

    >>> plain_names(["A/B", "a-b", "C"])
    ['A-B', 'a-b-2', 'C']
    """
    taken: set[str] = set()
    names = []
    for text in texts:
        plain = plain_name(text)
        name = plain
        count = 1
        while name.casefold() in taken:
            count += 1
            name = f"{plain}-{count}"
        taken.add(name.casefold())
        names.append(name)
    return names


def initial_path(folder: Path) -> Path:
    """The parameters that every seed began with, where a module was given in Python."""
    return folder / "checkpoints" / "initial.safetensors"


def checkpoint_path(folder: Path, lane: int) -> Path:
    """The checkpoint of a lane."""
    return folder / "checkpoints" / f"lane-{lane}.safetensors"


def kept_path(folder: Path, lane: int, round_num: int) -> Path:
    """The model of a lane after a round, where it is kept (`keep_every`)."""
    return folder / "checkpoints" / f"lane-{lane}-round-{round_num}.safetensors"


def kept_rounds(folder: Path, lane: int) -> list[int]:
    """The rounds of a lane whose models are kept."""
    pattern = re.compile(rf"lane-{lane}-round-([0-9]{{1,9}})\.safetensors")
    paths = (folder / "checkpoints").glob(f"lane-{lane}-round-*")
    matches = [pattern.fullmatch(path.name) for path in paths]
    return sorted(int(match[1]) for match in matches if match)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder for this process, so that no other writes into it."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: it has no such lock
        yield
        return
    with _opened(folder, os.O_WRONLY | os.O_CREAT) as file:
        for tries_left in reversed(range(TRIES)):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not tries_left:
                    message = "another clientwise process is writing to this run"
                    raise RunError(f"{folder}: {message}") from None
                time.sleep(SECONDS_BETWEEN)  # `is_locked` of another process holds it for a moment
        yield


def is_locked(folder: Path) -> bool:
    """Whether a process is writing to this run folder now."""
    try:
        import fcntl

        with _opened(folder, os.O_RDONLY) as file:
            # Shared, so that processes that only look do not see each other.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):  # no such lock, or no such file
        return False
    return False


def _opened(folder: Path, flags: int) -> IO[bytes]:
    """Open the lock file; a link to another place is refused, and a pipe does not wait."""

    def opener(path: str, _: int) -> int:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)

    mode = "wb" if flags & os.O_WRONLY else "rb"
    return open(folder / ".lock", mode, opener=opener)  # closes what it cannot use


def read_whole(path: Path, most: int) -> bytes:
    """Read a regular file of at most `most` bytes; anything else, a pipe say, is an OSError."""
    content = None
    with open(path, "rb", opener=_without_waiting) as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            content = file.read(most + 1)
    if content is None or len(content) > most:
        raise OSError(errno.EFBIG, f"not a file of at most {most:,} bytes", str(path))
    return content


def _without_waiting(path: str, flags: int) -> int:
    """Open a pipe at once; otherwise that waits until a process writes to it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))

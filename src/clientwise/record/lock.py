"""The lock of a run folder: one process writes at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..errors import RunError

TRIES = 4
SECONDS_BETWEEN = 0.05


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


def wait_until_free(folder: Path, seconds: float) -> None:
    """Wait until no process writes to this run folder, at most so many seconds."""
    end = time.monotonic() + seconds
    while is_locked(folder) and time.monotonic() < end:
        time.sleep(SECONDS_BETWEEN)


def _opened(folder: Path, flags: int) -> IO[bytes]:
    """Open the lock file; a link to another place is refused, and a pipe does not wait."""

    def opener(path: str, _: int) -> int:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)

    mode = "wb" if flags & os.O_WRONLY else "rb"
    return open(folder / ".lock", mode, opener=opener)  # closes what it cannot use

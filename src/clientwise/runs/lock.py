"""Who writes to a run folder: one process at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..errors import RunError


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder for this process, so that two do not write into it."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: nothing to hold it with
        yield
        return
    with _opened(folder, os.O_WRONLY | os.O_CREAT) as file:
        for last_try in (False, False, False, True):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if last_try:
                    raise RunError(f"{folder}: another clientwise process is writing to this run") from None
                time.sleep(0.05)  # it may only be somebody looking whether the run is going, see `is_locked`
        yield


def is_locked(folder: Path) -> bool:
    """Whether a process is writing to this run folder right now."""
    try:
        import fcntl

        with _opened(folder, os.O_RDONLY) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: those who look do not see each other
    except BlockingIOError:
        return True
    except (ImportError, OSError):  # nothing to tell it by, or no such file
        return False
    return False


def _opened(folder: Path, flags: int) -> IO[bytes]:
    """The file by which a folder is locked: not one elsewhere to which a link leads, nor a pipe that never opens."""

    def opener(path: str, _: int) -> int:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)

    return open(folder / ".lock", "wb" if flags & os.O_WRONLY else "rb", opener=opener)  # closes what it cannot use

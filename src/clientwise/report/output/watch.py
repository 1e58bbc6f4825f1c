"""Follow runs that go on: their report is written anew whenever a run folder has changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ...errors import NotBegunError
from ...record.database import DATABASE
from ...record.files import is_locked

SECONDS = 3.0  # between two looks at a run folder
REST = 10  # times as long as writing took: reading must not slow the run


def write_while_running(folders: Sequence[Path], write: Callable[[], None]) -> None:
    """Call `write` whenever a run has changed, and once after no process writes to a run any more.

    Ctrl-C between two calls ends it. A run that is just beginning is waited for.
    """
    seen = None
    pause = SECONDS
    while any(is_locked(folder) for folder in folders):
        now = [_size_and_time(folder) for folder in folders]
        if now != seen:
            began = time.monotonic()
            with suppress(NotBegunError):
                write()
            seen = now
            pause = max(SECONDS, REST * (time.monotonic() - began))
        try:
            time.sleep(pause)
        except KeyboardInterrupt:
            return
    write()


def _size_and_time(folder: Path) -> list[tuple[int, int]]:
    """Of the files that a run writes its rounds to."""
    found = []
    for name in (DATABASE, f"{DATABASE}-wal"):
        with suppress(OSError):
            facts = (folder / name).stat()
            found.append((facts.st_size, facts.st_mtime_ns))
    return found

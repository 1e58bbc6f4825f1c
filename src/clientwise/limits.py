"""How much memory there is: what cannot fit is refused before it is tried."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def memory() -> int:
    """The bytes this process can hope for: the machine's memory, or less where its container or shell says so."""
    if sys.platform == "win32":  # which says so in ways of its own; there a run finds out
        return sys.maxsize
    import resource

    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), resource.getrlimit(resource.RLIMIT_AS)[0]]
    group = Path("/sys/fs/cgroup/memory.max")
    if group.is_file() and (given := group.read_text().strip()).isdecimal():
        limits.append(int(given))
    return min(limit for limit in limits if limit > 0)  # no limit is negative


def gigabytes(count: float) -> str:
    """So many bytes, for a person.

    >>> gigabytes(1.5e9)
    '1.5 GB'
    """
    return f"{count / 1e9:,.1f} GB"

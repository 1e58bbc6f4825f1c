"""How much memory there is: what cannot fit is refused before it is tried."""

from __future__ import annotations

import os
import sys
from pathlib import Path

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def memory() -> int:
    """The bytes that this process can use: the machine's, its container's or its shell's limit."""
    if sys.platform == "win32":  # no limit is known there before it is reached
        return sys.maxsize
    import resource

    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        of_shell, _ = resource.getrlimit(kind)
        if of_shell > 0:  # negative: unlimited
            limits.append(of_shell)
    if CGROUP_LIMIT.is_file():
        of_container = CGROUP_LIMIT.read_text(encoding="ascii").strip()
        if of_container.isdecimal():  # "max": unlimited
            limits.append(int(of_container))
    return min(limits)


def gigabytes(count: float) -> str:
    """A number of bytes as text.

    >>> gigabytes(1.5e9)
    '1.5 GB'
    """
    return f"{count / 1e9:,.1f} GB"

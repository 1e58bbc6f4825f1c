"""A copy of a run that is small enough to be sent."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from .files import CONFIG, VERSIONS
from .schema import DATABASE


def pack(folder: Path, target: Path) -> None:
    """Copy a run without its models, and with the clients' own metrics of the last round only."""
    partial = target.with_name(f"{target.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name in (CONFIG, VERSIONS):
        shutil.copy(folder / name, partial)
    with closing(sqlite3.connect(folder / DATABASE)) as source:
        source.execute("VACUUM INTO ?", (str(partial / DATABASE),))
    with closing(sqlite3.connect(partial / DATABASE, isolation_level=None)) as copy:
        copy.execute(
            """DELETE FROM local WHERE round_num < (
                   SELECT MAX(round_num) FROM rounds
                   WHERE rounds.lane = local.lane AND reached IS NOT NULL)"""
        )
        copy.execute("VACUUM")
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)

"""A copy of a run that is small enough to be sent."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from .files import CONFIG, VERSIONS
from .schema import DATABASE


def pack(folder: Path, target: Path) -> None:
    """Copy a run without its models, and with the clients' own metrics of the last round only."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as temporary:
        whole = Path(temporary) / "run"
        whole.mkdir()
        for name in (CONFIG, VERSIONS):
            shutil.copy(folder / name, whole)
        with closing(sqlite3.connect(folder / DATABASE)) as source:
            source.execute("VACUUM INTO ?", (str(whole / DATABASE),))
        with closing(sqlite3.connect(whole / DATABASE, isolation_level=None)) as copy:
            copy.execute(
                """DELETE FROM local WHERE round_num < (
                       SELECT MAX(round_num) FROM rounds
                       WHERE rounds.lane = local.lane AND reached IS NOT NULL)"""
            )
            copy.execute("VACUUM")
        shutil.rmtree(target, ignore_errors=True)
        whole.rename(target)

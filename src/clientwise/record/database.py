"""The database of a run folder, and reading it: nothing is ever written to the file, and no PyTorch is needed.

None of the four tables changes when a value is added: the values of a round are a JSON object, a frame is bytes
(`frames.py`). What is recorded is said in `tables.py`.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from ..errors import RunError, shortened
from .files import is_locked

DATABASE = "run.sqlite"
VERSION = 12  # of the format; a database says its own in `PRAGMA user_version`
CLIENTS = "clients"  # a frame of a seed, which stands in the place of the lane; its round is 0
RIGHT = "right"  # a frame: the samples that the best model so far classifies correctly
SCHEMA = (
    """CREATE TABLE IF NOT EXISTS facts (  -- about the whole run; values are JSON
        key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS lanes (  -- one method with one seed
        lane INTEGER PRIMARY KEY, method TEXT, seed INTEGER,
        finished INTEGER,  -- its rounds, once it has ended
        UNIQUE (method, seed))""",
    """CREATE TABLE IF NOT EXISTS rounds (  -- values by name, as JSON
        lane INTEGER, round INTEGER, value TEXT,
        PRIMARY KEY (lane, round))""",
    """CREATE TABLE IF NOT EXISTS frames (
        lane INTEGER, round INTEGER, name TEXT, data BLOB,
        PRIMARY KEY (name, lane, round))""",
)
# What a damaged file raises; the second where SQLite's message quotes the damaged bytes.
DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)


@contextmanager
def reading(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open the database of a run for reading; nothing is ever written. RunError where it cannot be read."""
    try:
        refuse_links(folder)
        path = folder / DATABASE
        # SQLite needs files beside the database to read it, unless it is told that nobody writes.
        nobody_writes = not _has_log(path) and not is_locked(folder)
        mode = "immutable=1" if nobody_writes else "mode=ro"
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True)) as database:
            database.execute("BEGIN")  # all queries see the rounds that there are now
            refuse_other_format(folder, database)
            yield database
    except sqlite3.ProgrammingError:
        raise
    except (*DAMAGE, OSError) as error:
        raise RunError(
            f"{folder}: its database cannot be read ({error}); choose another folder"
        ) from None


def recorded_fact(folder: Path, key: str) -> str | None:
    """A fact about the whole run, as JSON; None where there is none."""
    if not (folder / DATABASE).exists():
        return None
    with reading(folder) as database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'facts'").fetchone():
            return None
        row = database.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def is_finished(folder: Path) -> bool:
    """Whether all lanes of a run have ended."""
    try:
        planned = int(recorded_fact(folder, "lanes") or -1)
        with reading(folder) as database:
            (ended,) = database.execute("SELECT COUNT(finished) FROM lanes").fetchone()
            return bool(ended == planned)
    except (RunError, ValueError):
        return False  # not begun, or damaged: resuming it says so


def refuse_damaged(folder: Path, lanes: Collection[tuple[str, int]]) -> None:
    """RunError where a finished run cannot be read, or lacks a lane or its rounds.

    Args:
        folder: the run folder.
        lanes: method and seed of every lane that it has to have.
    """
    with reading(folder) as database:
        (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
        rounds = "(SELECT COUNT(*) FROM rounds WHERE rounds.lane = lanes.lane)"
        rows = database.execute(f"SELECT method, seed, finished, {rounds} FROM lanes").fetchall()
    ended = {(method, seed): (finished, known) for method, seed, finished, known in rows}
    for method, seed in lanes:
        finished, known = ended.get((method, seed), (None, 0))
        if finished != known:
            found = f"{known} of {finished} rounds of {method}, seed {seed}"
    if found != "ok":
        raise RunError(f"{folder}: its database is damaged ({shortened(found, 200)})")


def refuse_other_format(folder: Path, database: sqlite3.Connection) -> None:
    """RunError for a database of another format than that of this version; one without tables has none yet."""
    database.execute("PRAGMA trusted_schema = OFF")  # a folder of others runs no program
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version not in (0, VERSION):
        raise RunError(
            f"{folder}: was written by another version of clientwise (format {version}; this version reads "
            f"format {VERSION}). Use that version, or run the experiment again in another folder"
        )


def refuse_links(folder: Path) -> None:
    """RunError where a file of the database is a link, a folder or a device.

    A link leads out of the folder, and a pipe has no end.
    """
    for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"):
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(folder / name).st_mode):
                reason = "it is a link, a folder or a device, not a file"
                raise RunError(f"{folder}: its {name} cannot be read ({reason})")


def _has_log(path: Path) -> bool:
    log = path.with_name(f"{path.name}-wal")
    return log.exists() and log.stat().st_size > 0

"""A node's own record of what its server asked for, and the daily summary for its operator.

`deploy/ledger.sh` prints, per day and approval, what was asked, refused and sent.

The file has one line of JSON per event: the operator's approval ("approved", see `approval.py`) and
its end ("withdrawn"), a request that was admitted ("asked"), the results of an evaluation
("measured"), a later step of secure aggregation ("step"), an answer ("answered"), a request that was
refused ("refused") or that failed ("failed"). It decides what the node still answers, so it is on the
disk before an answer leaves.

Beside it are a secret key of the node, from which its noise follows, and the number of entries: a
ledger that has lost some is not trusted. Only the node's user can read the three files.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ...writing import replace_file, sync_folder

log = logging.getLogger("flwr.clientwise")  # a child of Flower's logger: in the node's log
KEY_BYTES = 32
Entry = dict[str, Any]


@dataclass(frozen=True)
class Ledger:
    """The file of a node's approvals, requests and answers; it and its folder are created."""

    path: Path

    @contextmanager
    def locked(self) -> Iterator[list[Entry]]:
        """All entries, while no other process can add one. `add` appends to this list, too."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        is_new = not self.path.exists()
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if is_new:
                sync_folder(self.path.parent)
            os.fchmod(file, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
            yield read(self.path)
        finally:
            os.close(file)

    def add(self, entries: list[Entry], event: str, **facts: Any) -> Entry:
        """Add an entry to those of `locked`; it is on the disk when this returns."""
        now = f"{datetime.now().astimezone():%Y-%m-%dT%H:%M:%S%z}"
        entry = {"time": now, "event": event, **facts}
        append_line(self.path, json.dumps(entry))
        known = self._count()
        if known is not None:
            self._write(self._count_file, f"{max(known, len(entries)) + 1}\n".encode())
        entries.append(entry)
        log.info("ledger: %s", json.dumps({k: v for k, v in entry.items() if k not in BULKY}))
        return entry

    def missing(self, entries: list[Entry]) -> int:
        """How many entries were lost since `recount`; all of them if the count is lost."""
        known = self._count()
        if known is not None:
            return max(0, known - len(entries))
        was_counted = any(entry["event"] == "approved" for entry in entries)
        return len(entries) if was_counted else 0

    def recount(self, entries: list[Entry]) -> None:
        """From now on, an entry that gets lost is missing."""
        self._write(self._count_file, f"{len(entries)}\n".encode())

    def make_key(self) -> None:
        """Make the node's secret, if there is none."""
        with self.locked():
            if not self.has_key:
                self._write(self._beside("key"), secrets.token_bytes(KEY_BYTES))

    def key(self) -> bytes:
        """The node's secret, which `make_key` made. It must not leave the node."""
        path = self._beside("key")
        found = path.read_bytes()
        if len(found) != KEY_BYTES:
            raise ValueError(
                f"{path}: has {len(found)} bytes, a key has {KEY_BYTES}. Restore the file from a backup"
            )
        return found

    @property
    def has_key(self) -> bool:
        """Whether there is a secret: an approval makes it, and a ledger that is lost leaves it behind."""
        return self._beside("key").exists()

    @property
    def was_used(self) -> bool:
        """Whether this node was approved before, or has answered, as far as its files tell."""
        return self.has_key or any(entry["event"] == "asked" for entry in read(self.path))

    @property
    def _count_file(self) -> Path:
        return self._beside("count")

    def _count(self) -> int | None:
        try:
            return int(self._count_file.read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return None

    def _beside(self, ending: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{ending}")

    def _write(self, path: Path, content: bytes) -> None:
        """Replace a file that only the node's user may read."""
        fresh = path.with_name(f"{path.name}.new")
        fresh.unlink(missing_ok=True)
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _write_all(file, content)
        finally:
            os.close(file)
        replace_file(fresh, path)


def append_line(path: Path, text: str) -> None:
    """Append a line to a file that only its owner may read; it is on the disk when this returns."""
    is_new = not path.exists()
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(file).st_size
        # A line that a power cut or a full disk left unfinished ends here.
        is_unfinished = size > 0 and os.pread(file, 1, size - 1) != b"\n"
        begin = "\n" if is_unfinished else ""
        _write_all(file, f"{begin}{text}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)
    if is_new:
        sync_folder(path.parent)


def _write_all(file: int, content: bytes) -> None:
    """Write all bytes: one call may write fewer, as on a disk that fills up."""
    while content:
        content = content[os.write(file, content) :]


BULKY = ("approval", "models", "again", "answers", "time")  # in the file, not in the log


def read(path: Path) -> list[Entry]:
    """All entries of a ledger; a line that cannot be read is skipped."""
    entries = []
    # A damaged file may hold bytes that are no text.
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    for line in lines:
        if not line:
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if isinstance(entry, dict) and {"time", "event"} <= entry.keys():
            entries.append(entry)
        else:
            log.warning("%s: a line cannot be read: %r", path, line[:40])
    return entries


def summary(entries: Iterable[Entry]) -> list[str]:
    """Lines that say, per day and approval, what was asked, what was refused and what left."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        title = f"{entry['time'][:10]}  approval {entry['approval']}"
        if "run" in entry:
            title += f", Flower run {entry['run']}"
        groups.setdefault(title, []).append(entry)
    lines = []
    for title, some in groups.items():
        lines.append(title)
        told = _day(some) if "run" in some[0] else map(_decision, some)
        lines += [f"  {line}" for line in told]
    return lines or ["nothing was asked"]


def _decision(entry: Entry) -> str:
    """An operator's approval, or its end, with the operator's words."""
    why = f": {entry['words']}" if entry["words"] else ""
    if entry["event"] == "withdrawn":
        return f"withdrawn{why}"
    lost = f"; {entry['missing']} entries were missing" if entry["missing"] else ""
    what = f"{entry['trainings']} trainings and {entry['evaluations']} evaluations"
    return f"approved {what}{lost}{why}"


def _day(entries: list[Entry]) -> Iterator[str]:
    events = Counter(entry["event"] for entry in entries)
    messages = sum(events[event] for event in ("asked", "repeated", "step", "refused"))
    rounds = sorted({entry["round"] for entry in entries if entry.get("round") is not None})
    where = f", rounds {rounds[0]} to {rounds[-1]}" if rounds else ""
    yield f"messages: {messages}{where}"
    for kind, what in (("train", "trained"), ("evaluate", "evaluated")):
        mine = [entry for entry in entries if entry.get("kind") == kind]
        asked = [entry for entry in mine if entry["event"] == "asked"]
        repeated = sum(entry["event"] == "repeated" for entry in mine)
        models = sum(len(entry["models"]) for entry in asked)
        costs = sum(entry.get("cost", 0.0) for entry in asked)
        line = f"models {what}: {models}, {costs:.1%} of what a run may ask for"
        yield f"{line}; requests that repeated an earlier one: {repeated}"
    answered = [entry for entry in entries if entry["event"] == "answered"]
    sent = sum(entry["bytes"] for entry in answered)
    names = sorted({name for entry in answered for name in entry["left"]})
    yield f"left this node: {len(answered)} answers, {sent:,} bytes: {', '.join(names) or 'nothing'}"
    for event in ("refused", "failed"):
        reasons = Counter(entry["reason"] for entry in entries if entry["event"] == event)
        for reason, count in reasons.most_common():
            yield f"{event} {count} times: {reason}"


def main() -> None:
    """Print the summary of a ledger."""
    parser = argparse.ArgumentParser(prog="ledger")
    parser.add_argument("file", type=Path)
    parser.add_argument("--day", help="one day only, such as 2026-11-17")
    options = parser.parse_args()
    entries = read(options.file)
    if options.day:
        entries = [entry for entry in entries if entry["time"].startswith(options.day)]
    print("\n".join(summary(entries)))

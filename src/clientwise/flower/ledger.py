"""A node's own record of what its server asked for, and the daily summary for its operator.

`deploy/ledger.sh` prints, per day and approval, what was asked, refused and sent.

The file has one line of JSON per event: a request that was admitted ("asked"), a later step of
secure aggregation ("step"), its answer ("answered"), a request that was refused ("refused") or that
failed ("failed"). It decides what the node still answers, so it is flushed to disk before an answer
leaves. Beside it is the key of the node's noise. Only the node's user can read either.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
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

log = logging.getLogger("flwr.clientwise")  # a child of Flower's logger: in the node's log
KEY_BYTES = 32
Entry = dict[str, Any]


def approval(agreed: Path | None) -> str:
    """Names the node operator's present approvals: it changes whenever the file does.

    Every approval is worth one run, so requests are counted from one approval to the next.
    """
    if agreed is None or not agreed.exists():
        return "none"
    return hashlib.sha256(agreed.read_bytes()).hexdigest()[:12]


@dataclass(frozen=True)
class Ledger:
    """The file of a node's requests and answers.

    Args:
        path: the file; it and its folder are created.
        approval: the present one; see `approval`.
    """

    path: Path
    approval: str

    @contextmanager
    def locked(self) -> Iterator[list[Entry]]:
        """The entries since the present approval, while no other process can add one."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.fchmod(file, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
            entries = read(self.path)
            yield [entry for entry in entries if entry["approval"] == self.approval]
        finally:
            os.close(file)

    def add(self, event: str, **facts: Any) -> None:
        """Append an entry; it is on the disk when this returns."""
        now = f"{datetime.now().astimezone():%Y-%m-%dT%H:%M:%S%z}"
        entry = {"time": now, "approval": self.approval, "event": event, **facts}
        # A line that a power cut left unfinished ends here.
        line = f"\n{json.dumps(entry)}\n".encode()
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, line)
            os.fsync(file)
        finally:
            os.close(file)
        log.info("ledger: %s", json.dumps({k: v for k, v in entry.items() if k not in BULKY}))

    def key(self) -> bytes:
        """The secret of the node's noise, made at the first call. It must not leave the node."""
        path = self.path.with_name(f"{self.path.name}.key")
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            found = path.read_bytes()
            if len(found) != KEY_BYTES:
                raise ValueError(f"{path}: not a key of {KEY_BYTES} bytes: delete it") from None
            return found
        try:
            os.write(file, secrets.token_bytes(KEY_BYTES))
            os.fsync(file)
        finally:
            os.close(file)
        return path.read_bytes()


BULKY = ("approval", "models", "answers", "time")  # in the file, not in the log


def read(path: Path) -> list[Entry]:
    """All entries of a ledger; a line that cannot be read is skipped."""
    entries = []
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        if not line:
            continue
        try:
            entries.append(json.loads(line))
        except ValueError:
            log.warning("%s: a line cannot be read: %s", path, line[:40])
    return entries


def summary(entries: Iterable[Entry]) -> list[str]:
    """Lines that say, per day and approval, what was asked, what was refused and what left."""
    groups: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries:
        group = (entry["time"][:10], entry["approval"], str(entry.get("run", "?")))
        groups.setdefault(group, []).append(entry)
    lines = []
    for (day, approved, run), some in groups.items():
        lines.append(f"{day}  approval {approved}, Flower run {run}")
        lines += [f"  {line}" for line in _day(some)]
    return lines or ["nothing was asked"]


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

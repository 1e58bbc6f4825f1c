"""Receipts: the server sends every node what it recorded about it, and the node keeps that.

A round's receipt travels with a later request, usually the next. Those of the last round have a message of
their own, after which the run ends. `clientwise verify --receipts FILE` compares a record with the file that a node
kept; see `record/signed/chain.py`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from ...record.signed.keys import public_bytes, public_keys
from ...record.signed.receipts import is_valid_receipt, receipts_of_last_round
from ..flower.grids import pull_replies
from .ledger import append_line
from .signing import Signer

RECORD = "receipts"  # the record of a message that holds receipts
KIND = "query"  # of a message that holds nothing else
MOST_BYTES = 2**20  # of one receipt
MOST_KEPT = 2**28  # bytes of the file, which a server could fill else
LAST_SECONDS = 60.0  # for the nodes to confirm the last receipts
PAUSE = 0.5  # seconds between two looks for confirmations
log = logging.getLogger("flwr.clientwise")


class Outbox:
    """Receipts that wait for the next message to their client."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[str]] = {}

    def fill(self, folder: Path) -> None:
        """Take the receipts of the round that was recorded last."""
        for client, receipt in receipts_of_last_round(folder).items():
            self._waiting.setdefault(client, []).append(json.dumps(receipt))

    def attach(self, client: int, content: RecordDict) -> None:
        """Add the receipts of a client, if any are waiting, to a message."""
        receipts = self._waiting.pop(client, [])
        if receipts:
            content[RECORD] = ConfigRecord({"receipts": receipts})

    def send(self, grid: Grid, nodes: Mapping[int, int], signer: Signer) -> list[int]:
        """Send all receipts that are waiting, and wait for the nodes to confirm them.

        Args:
            grid: Flower's connection to the nodes.
            nodes: the node of every client that is connected now.
            signer: signs the messages.

        Returns:
            The clients that did not confirm theirs in time.
        """
        clients = sorted(self._waiting)
        messages = {}
        for client in [client for client in clients if client in nodes]:
            content = RecordDict()
            self.attach(client, content)
            message = Message(content, nodes[client], KIND, ttl=LAST_SECONDS, group_id=token_hex())
            messages[client] = signer.sign(message)
        if messages:
            grid.push_messages(list(messages.values()))  # gives every message its id
        waiting = {message.metadata.message_id: client for client, message in messages.items()}
        confirmed = set()
        deadline = time.monotonic() + LAST_SECONDS
        while waiting and time.monotonic() < deadline:
            for name, reply in pull_replies(grid, list(waiting), deadline, signer.open):
                client = waiting.pop(name)
                if not isinstance(reply, str):
                    confirmed.add(client)
            if waiting:
                time.sleep(PAUSE)
        return [client for client in clients if client not in confirmed]


def keep_receipts(content: RecordDict, settings: Mapping[str, Any]) -> None:
    """Append the receipts in a message to the node's file, which is beside its ledger.

    A receipt that is not valid, or that contradicts an earlier one, is logged as an error and kept:
    it shows what the server claimed.
    """
    record = content.config_records.get(RECORD)
    if record is None or "ledger" not in settings or "server-keys" not in settings:
        return
    ledger = Path(str(settings["ledger"]))
    file = ledger.with_name(f"{ledger.stem}-receipts.jsonl")
    trusted = [public_bytes(key) for key in public_keys(Path(str(settings["server-keys"])))]
    texts = record.get("receipts")
    for text in texts if isinstance(texts, list) else [""]:
        _keep(str(text), file, trusted)


def _keep(text: str, file: Path, trusted: Sequence[bytes]) -> None:
    if len(text) > MOST_BYTES:
        log.error("receipt: the server sent one of %d bytes; it is not kept", len(text))
        return
    before = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    receipt = _parsed(text)
    line = json.dumps(receipt)
    if not is_valid_receipt(receipt, trusted):
        log.error("receipt: NOT VALID: not signed by the server, or not about this record")
    elif line in before:  # a resumed run sends the last ones again
        return
    elif reason := _contradiction(receipt, before):
        log.error("receipt: CONTRADICTS an earlier one: %s", reason)
    if file.exists() and file.stat().st_size > MOST_KEPT:
        log.error("receipt: %s has %d bytes; nothing is added to it", file, MOST_KEPT)
        return
    append_line(file, line)


def _contradiction(receipt: Mapping[str, Any], before: Sequence[str]) -> str | None:
    """Why a receipt and an earlier one of the same run cannot both count; None if they can."""
    entry = _parsed(str(receipt.get("entry", "")))
    for line in before:
        other = _parsed(str(_parsed(line).get("entry", "")))
        if other.get("run") != entry.get("run"):
            continue
        if other.get("position") == entry.get("position"):
            return (
                f"the server wrote its record anew, from entry {entry.get('position')} on or before"
            )
        if all(other.get(key) == entry.get(key) for key in ("method", "seed", "round")):
            return (
                f"{entry.get('method')}, round {entry.get('round')} was recorded a second time. Ask "
                "the operator whether the run was interrupted then; `clientwise verify --receipts` "
                "shows what changed"
            )
    return None


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

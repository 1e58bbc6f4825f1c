"""Receipts: the server sends every node what it recorded about it, and the node keeps that.

A round's receipt travels with a later request to train, usually the next. `clientwise verify --receipts FILE` compares
a record with the file that a node kept; see `runs/signed.py`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from ..keys import public_bytes, public_keys
from ..runs.verify import is_valid_receipt, receipts_of_last_round

RECORD = "receipt"  # the record of a message that holds a receipt
MOST_BYTES = 2**20
log = logging.getLogger("flwr.clientwise")


class Outbox:
    """Receipts that wait for the next message to their client."""

    def __init__(self) -> None:
        self._waiting: dict[int, str] = {}

    def fill(self, folder: Path) -> None:
        """Take the receipts of the round that was recorded last."""
        for client, receipt in receipts_of_last_round(folder).items():
            self._waiting[client] = json.dumps(receipt)

    def attach(self, client: int, content: RecordDict) -> None:
        """Add the receipt of a client, if one is waiting, to a message."""
        receipt = self._waiting.pop(client, None)
        if receipt is not None:
            content[RECORD] = ConfigRecord({"receipt": receipt})


def keep_receipt(content: RecordDict, settings: Mapping[str, Any]) -> None:
    """Append the receipt in a message to the node's file, which is beside its ledger.

    A receipt that is not valid, or that contradicts an earlier one, is logged as an error and kept:
    it shows what the server claimed.
    """
    record = content.config_records.get(RECORD)
    if record is None or "ledger" not in settings or "server-keys" not in settings:
        return
    text = str(record.get("receipt", ""))
    if len(text) > MOST_BYTES:
        log.error("receipt: the server sent one of %d bytes; it is not kept", len(text))
        return
    ledger = Path(str(settings["ledger"]))
    file = ledger.with_name(f"{ledger.stem}-receipts.jsonl")
    trusted = [public_bytes(key) for key in public_keys(Path(str(settings["server-keys"])))]
    before = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    receipt = _parsed(text)
    if not is_valid_receipt(receipt, trusted):
        log.error("receipt: NOT VALID: not signed by the server, or not about this record")
    elif _contradicts(receipt, before):
        log.error("receipt: CONTRADICTS an earlier one: the server wrote its record anew")
    with file.open("a", encoding="utf-8") as opened:
        opened.write(f"{json.dumps(receipt)}\n")


def _contradicts(receipt: Mapping[str, Any], before: Sequence[str]) -> bool:
    """Whether an earlier receipt has another entry at the same position of the same run."""
    place = _place(receipt)
    for line in before:
        other = _parsed(line)
        if _place(other) == place and other.get("entry") != receipt.get("entry"):
            return True
    return False


def _place(receipt: Mapping[str, Any]) -> tuple[Any, Any]:
    entry = _parsed(str(receipt.get("entry", "")))
    return entry.get("run"), entry.get("position")


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

"""Time stamps (RFC 3161): a third party states that an entry of a signed record existed at a time.

The file `stamps.jsonl` of a run folder has one line per stamp: the position of the entry, and the
answer of the time stamping authority (TSA). An entry holds the hash of the entry before it. So the
stamp of an entry is also one of all entries before it. The package `rfc3161-client` is optional.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any
from urllib.request import Request, urlopen

from ...errors import RunError, plain
from ...writing import naming
from ..database import reading
from .chain import links

FILE = "stamps.jsonl"
SECONDS = 10.0  # for a TSA to answer
MOST_BYTES = 2**20  # of an answer
MOST_STAMPS_BYTES = 2**28  # of the file
TYPE = "application/timestamp-query"


@dataclass
class Stamped:
    """What the stamps of a record show."""

    stamps: int = 0
    until: int = 0  # the last entry with a valid stamp; it covers all entries before it
    time: datetime | None = None  # of that stamp
    faults: list[str] = field(default_factory=list)


def stamp_head(folder: Path, url: str) -> int:
    """Have the last entry of a record stamped by the TSA at `url`; returns the entry's position."""
    client = library()
    with reading(folder) as database:
        head = next(links(database, newest_first=True), None)
    if head is None:
        raise RunError(f"{folder}: its record is not signed, so there is nothing to stamp")
    builder = client.TimestampRequestBuilder().data(head.entry.encode())
    request = builder.hash_algorithm(client.base.HashAlgorithm.SHA256).build()
    answer = _ask(url, request.as_bytes())
    try:
        found = client.decode_timestamp_response(answer).tst_info
        is_right = found.message_imprint.message == request.message_imprint.message
    except ValueError:
        is_right = False
    if not is_right or found.nonce != request.nonce:
        raise RunError(f"{url}: its answer is not a time stamp of this record")
    file = folder / FILE
    with naming(file), file.open("a", encoding="utf-8") as opened:
        opened.write(json.dumps({"position": head.position, "answer": answer.hex()}) + "\n")
    return head.position


def count_stamps(folder: Path) -> int:
    """How many stamps a run folder has."""
    return sum(1 for _ in _read(folder))


def verify_stamps(folder: Path, certificates: Path) -> Stamped:
    """Check all stamps, without a network.

    Args:
        folder: the run folder.
        certificates: the certificates (PEM) of the TSA's root, and of those in between, if any.
    """
    client = library()
    from cryptography.x509 import load_pem_x509_certificates

    try:
        roots = load_pem_x509_certificates(certificates.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"{certificates}: no certificate can be read: {error}") from None
    verifier = client.VerifierBuilder(roots=roots).build()
    with reading(folder) as database:
        entries = {link.position: link.entry for link in links(database)}
    found = Stamped()
    for number, (position, answer) in enumerate(_read(folder), start=1):
        found.stamps += 1
        stamp = f"{FILE}, stamp {number}"
        if position not in entries:
            found.faults.append(f"{stamp}: the record ends before entry {position}: it was cut off")
            continue
        try:
            response = client.decode_timestamp_response(answer)
            verifier.verify_message(response, entries[position].encode())
        except Exception as error:  # of the parsers, too: anybody may have written the file
            found.faults.append(f"{stamp}: not a valid stamp of entry {position}: {error}")
            continue
        if position > found.until:
            found.until = position
            found.time = response.tst_info.gen_time
    return found


def _read(folder: Path) -> Iterator[tuple[int, bytes]]:
    """Positions and answers; anybody may have written them."""
    file = folder / FILE
    if not file.exists():
        return
    with naming(file):
        if file.stat().st_size > MOST_STAMPS_BYTES:
            raise RunError(f"{file}: too large for stamps")
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in lines:
        try:
            found = json.loads(line)
            yield int(found["position"]), bytes.fromhex(found["answer"])
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            yield 0, b""  # no entry has this position


def _ask(url: str, request: bytes) -> bytes:
    if not url.startswith(("http://", "https://")):
        raise RunError(f"{url}: the address of a TSA begins with http:// or https://")
    try:
        return _within(SECONDS, lambda: _fetch(url, request))
    except (OSError, HTTPException, ValueError) as error:
        reason = plain(str(getattr(error, "reason", error)))
        raise RunError(f"{url}: gave no time stamp ({reason})") from None


def _fetch(url: str, request: bytes) -> bytes:
    with urlopen(Request(url, request, {"Content-Type": TYPE}), timeout=SECONDS) as answer:
        content: bytes = answer.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError("it is too long")
    return content


def _within(seconds: float, fetch: Callable[[], bytes]) -> bytes:
    """The result of a function; TimeoutError where it takes longer.

    The timeout of a socket is one for every byte, and that of a header's bytes cannot be summed. A
    thread that is too slow is left behind: it ends with its connection, or with the process.
    """
    done: SimpleQueue[bytes | Exception] = SimpleQueue()

    def work() -> None:
        try:
            done.put(fetch())
        except Exception as error:
            done.put(error)

    Thread(target=work, daemon=True).start()
    try:
        found = done.get(timeout=seconds)
    except Empty:
        raise TimeoutError("it takes too long") from None
    if isinstance(found, Exception):
        raise found
    return found


def library() -> Any:
    """The package `rfc3161_client`; RunError where it is not installed."""
    try:
        import rfc3161_client
        import rfc3161_client.base
    except ImportError:
        raise RunError("time stamps need: pip install 'clientwise[stamps]'") from None
    return rfc3161_client

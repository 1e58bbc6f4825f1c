"""The coordinator's service: the library runs the experiment over sealed letters, and every round goes on record."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clientwise.core.types import RoundRecord
from clientwise.experiment.running.lanes import Progress
from clientwise.flower import server_app
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from flwr.app import Context, RecordDict, UserConfig

from .approval import Experiment
from .canonical import Row
from .grids import ALL, MaskedGrid, SealedGrid
from .keys import COORDINATOR, MEMBER, UntrustedError, listed, private_key
from .mailbox import server_task
from .post import Post
from .record import Record
from .session import ServerSide
from .settings import ServerSettings, credential

log = logging.getLogger("clientwise.consortium")


def masked_config(read: Experiment) -> dict[str, Any]:
    """The experiment that the library runs for a masked federation: one client, whose update is the mean."""
    table = read.for_library()
    return {**table, "flower": {**table["flower"], "clients": [ALL], "min_replies": 1}}


def line_of(
    progress: Progress, names: tuple[str, ...], grid: Any, post: Post
) -> tuple[Row, dict[str, Row]]:
    """What the record has of a round: for all, and about each member.

    Args:
        progress: the round that has ended.
        names: the library's clients, in their order.
        grid: has the criteria that members signed.
        post: has the lengths of their ledgers.
    """
    record = progress.record
    body = {
        "method": progress.method,
        "seed": progress.seed,
        "round": record.round_num,
        "criteria": list(record.criteria),
        "priority": list(record.priority) if record.priority else None,
        "kept": str(record.kept) if record.kept else None,
        "remarks": post.remarks[:],
        "ledgers": dict(post.lengths),
    }
    post.remarks.clear()
    rows: dict[str, Row] = {}
    for position, client in enumerate(record.client_ids):
        rows[names[client]] = _row(record, position, grid.claims.get(names[client], []))
    for refusal in record.refusals:
        rows.setdefault(names[refusal.client_id], {"refused": refusal.reason})
    return body, rows


def _row(record: RoundRecord, position: int, claims: list[Row]) -> Row:
    raw = dict(zip(record.criteria, record.raw[position].tolist(), strict=True))
    signed = [one for one in claims if one["claim"]["criteria"].items() <= raw.items()]
    return {
        "criteria": raw,
        "prior": float(record.prior[position]),
        "weight": float(record.weights[position]),
        "signed": signed[-1] if signed else None,
    }


def run(settings: ServerSettings) -> None:
    """Wait for `flwr run`, then run or resume the experiment."""
    key = private_key(credential("identity"))
    known = listed(settings.signers, COORDINATOR, [settings.coordinator])[settings.coordinator]
    if known.public_bytes_raw() != key.public_key().public_bytes_raw():
        raise UntrustedError("the coordinator's key is not the one in the signers file")
    content = settings.experiment.read_bytes()
    read = Experiment.read(content)
    members = listed(settings.signers, MEMBER, read.members)
    folder = settings.run.with_name(f"{settings.run.name}-record")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    record = Record(folder, key, _secret(folder))
    first = first_line(read, members)
    if not record.known("members"):
        record.round_done(first, {})
    lengths = (record.known("ledgers") or [{}])[-1]
    with server_task(settings.runtime, credential("runtime")) as flower:
        post = Post(flower, ServerSide(key, members), record.head, lengths)
        config = read.for_library()
        names: tuple[str, ...] = read.members
        grid: Any = SealedGrid(post, members, read.digest)
        if read.masked:
            config, names = masked_config(read), (ALL,)
            grid = MaskedGrid(post, read)

        def on_round(progress: Progress) -> None:
            record.round_done(*line_of(progress, names, grid, post))

        app = server_app(config, on_round=on_round)
        options: UserConfig = {"out": str(settings.run), "server-data": settings.server_data}
        app(grid, Context(1, 1, {}, RecordDict(), options))


def first_line(read: Experiment, members: Mapping[str, Ed25519PublicKey]) -> Row:
    """What a record begins with: the experiment and the members' keys."""
    return {
        "experiment": read.digest,
        "members": {name: key.public_bytes_raw().hex() for name, key in members.items()},
    }


def _secret(folder: Path) -> bytes:
    """What the salts follow from: made once for a run."""
    path = folder / "secret"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_bytes(secrets.token_bytes(32))
    return path.read_bytes()

"""The coordinator's service: the library runs the experiment over sealed letters, and every round goes on record."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas
from clientwise.experiment.trackers import Progress
from clientwise.flower import server_app
from clientwise.record.run import RunFolder
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from flwr.app import Context, RecordDict, UserConfig

from .approval import Experiment
from .canonical import Row
from .grids import ALL, MaskedGrid, SealedGrid
from .keys import COORDINATOR, MEMBER, UntrustedError, listed, private_key
from .mailbox import server_task
from .post import Grid, Post
from .record import Record
from .session import ServerSide
from .settings import ServerSettings, credential

log = logging.getLogger("clientwise.consortium")


def masked_config(read: Experiment) -> dict[str, Any]:
    """The experiment that the library runs for a masked federation: one client, whose update is the mean."""
    table = read.for_library()
    return {**table, "flower": {**table["flower"], "clients": [ALL], "min_replies": 1}}


def write_lines(
    run: Path, names: Sequence[str], record: Record, post: Post, now: tuple[Any, ...] = ()
) -> None:
    """Put a round on record; before it, those that are in the run folder alone.

    The library writes a round before it says that the round has ended. Where the coordinator was killed in between, the
    round's line is still missing.

    Args:
        run: the run folder.
        names: the library's clients, in their order.
        record: of the run.
        post: has remarks, and the states of the members' ledgers.
        now: method, seed and number of the round that has just ended; (): none.
    """
    folder = RunFolder(run)
    known = record.rounds()
    frames = [folder.frame(name) for name in ("weights", "criteria", "refusals")]
    for one in folder.frame("rounds").to_dict("records"):
        number = (one["method"], one["seed"], one["round"])
        if number in known and number != now:
            continue
        if number != now:
            post.remarks.append("the coordinator was interrupted before it signed this line")
        weights, criteria, refusals = (_of_round(frame, number) for frame in frames)
        rows: dict[str, Row] = {}
        for row in weights:
            if row["refusal"] is None:
                name = names[row["client"]]
                raw = {
                    part["criterion"]: part["raw"]
                    for part in criteria
                    if part["client"] == row["client"]
                }
                rows[name] = _row(row, raw, record.claims(name))
        for row in refusals:
            rows.setdefault(names[row["client"]], {"refused": row["reason"]})
        kept, priority = one.get("kept"), one.get("priority")
        body = {
            **dict(zip(("method", "seed", "round"), number, strict=True)),
            "criteria": list(dict.fromkeys(part["criterion"] for part in criteria)),
            "priority": priority if isinstance(priority, list) else None,
            "kept": " ".join(map(str, kept)) if isinstance(kept, list) else None,
            "remarks": post.remarks[:],
            "ledgers": dict(post.ledgers),
        }
        post.remarks.clear()
        record.round_done(body, rows)


def _of_round(frame: pandas.DataFrame, number: tuple[Any, ...]) -> list[dict[str, Any]]:
    method, seed, round_num = number
    own = (frame["method"] == method) & (frame["seed"] == seed) & (frame["round"] == round_num)
    return [
        {str(key): value for key, value in row.items()} for row in frame[own].to_dict("records")
    ]


def _row(weight: Row, raw: Row, claims: list[Row]) -> Row:
    """A member's row, with the claim that its criteria are from: of this round, or of one before if it was late."""
    signed = [
        one
        for one in claims
        if one["claim"]["seed"] == weight["seed"]
        and one["claim"]["round"] <= weight["round"]
        and one["claim"]["criteria"].items() <= raw.items()
    ]
    return {
        "criteria": raw,
        "prior": weight["prior"],
        "weight": weight["weight"],
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
    with server_task(settings.runtime, credential("runtime")) as flower:
        serve(flower, read, ServerSide(key, members), record, settings.run, settings.server_data)


def serve(
    flower: Grid, read: Experiment, side: ServerSide, record: Record, out: Path, server_data: str
) -> None:
    """Run or resume an experiment over a mailbox.

    Args:
        flower: the mailbox.
        read: the experiment.
        side: the coordinator's sessions.
        record: of the run.
        out: the run folder.
        server_data: the coordinator's own samples; "": none.
    """
    if not record.known("members"):
        record.round_done(first_line(read, side.members), {})
    post = Post(flower, side, record.head, (record.known("ledgers") or [{}])[-1])
    config = read.for_library()
    names: tuple[str, ...] = read.members
    grid: Any = SealedGrid(post, side.members, read.digest, record.keep_claim)
    if read.masked:
        config, names = masked_config(read), (ALL,)
        grid = MaskedGrid(post, read)

    def on_round(progress: Progress) -> None:
        now = (progress.method, progress.seed, progress.record.round_num)
        write_lines(out, names, record, post, now)

    # What is on record is never run again: a masked round could not be, and another answer would be another line.
    app = server_app({**config, "checkpoint_seconds": 0}, on_round=on_round)
    options: UserConfig = {"out": str(out), "server-data": server_data}
    app(grid, Context(1, 1, {}, RecordDict(), options))
    write_lines(out, names, record, post)  # of a run that had ended before it was resumed


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

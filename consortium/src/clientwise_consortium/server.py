"""The coordinator's service: the library runs the experiment over sealed letters, and every round goes on record."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from clientwise.core.types import RoundRecord, Updates
from clientwise.experiment.config.schema import Experiment
from clientwise.experiment.load import load_experiment
from clientwise.experiment.running.lanes import Progress
from clientwise.flower import server_app
from clientwise.hosts.flower.wire import ARRAYS, REQUEST, unpack, write_update
from clientwise.hosts.protocols import Void

from .approval import Experiment as ReadExperiment
from .canonical import Row, digest, encode
from .envelope import check
from .keys import COORDINATOR, MEMBER, UntrustedError, private_key, public_keys
from .mailbox import from_bytes, server_task, to_bytes
from .masked import CLAIM, Scoring, fixed_of
from .masks import Adder
from .node import criteria_of
from .post import Post, Reply
from .record import Record
from .session import ServerSide
from .settings import ServerSettings, credential

from flwr.app import Context, Error, Message, RecordDict

log = logging.getLogger("clientwise.consortium")
ALL = "all"  # the one client that a masked federation is to the library
RAISED = 2  # Flower's code for an app that raised


class SealedGrid:
    """The grid that the library sees: its messages are sealed letters.

    Args:
        post: the letters.
        members: the identities of all members.
        experiment: SHA-256 of the experiment's file.
    """

    def __init__(
        self, post: Post, members: Mapping[str, Ed25519PublicKey], experiment: str
    ) -> None:
        self._post = post
        self._members = members
        self._experiment = experiment
        self._asked: dict[str, Message] = {}
        self.claims: dict[str, list[Row]] = {name: [] for name in members}  # the last ones

    def get_nodes(self) -> Iterable[Any]:
        """The members that are connected."""
        return list(self._post.nodes().values())

    def get_node_ids(self) -> Iterable[int]:
        """Their numbers."""
        return [node.node_id for node in self.get_nodes()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send; the ids of the messages that were taken, which the messages get, too."""
        names = {node.node_id: name for name, node in self._post.nodes().items()}
        taken = []
        for message in messages:
            name = names.get(message.metadata.dst_node_id)
            if name is None:
                continue
            purpose = message.metadata.message_type
            sent = self._post.send(purpose, {name: to_bytes(message.content)})
            for letter in sent.values():
                message.metadata.__dict__["_message_id"] = letter
                self._asked[letter] = message
                taken.append(letter)
        return taken

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there, as the library knows them."""
        found = []
        for name, reply in self._post.receive(message_ids).items():
            asked = self._asked.pop(name)
            found.append(self._message(asked, reply))
        return found

    def _message(self, asked: Message, reply: Reply | str) -> Message:
        if isinstance(reply, str):
            return failed(asked, reply)
        if reply.refused is not None:
            return failed(asked, reply.refused)
        try:
            content = from_bytes(reply.content)
            if asked.metadata.message_type == "train":
                self._keep_claim(reply, content)
        except Exception as error:
            return failed(asked, f"{type(error).__name__}: {error}")
        return Message(content, reply_to=asked)

    def _keep_claim(self, reply: Reply, content: RecordDict) -> None:
        """The criteria that a member signed; UntrustedError where the message has others."""
        claim, signature = reply.facts["claim"], bytes.fromhex(reply.facts["signature"])
        check(self._members[reply.member], signature, CLAIM, reply.member, claim)
        if claim["experiment"] != self._experiment or claim["criteria"] != criteria_of(content):
            raise UntrustedError("its criteria are not those that it signed")
        kept = self.claims[reply.member]
        kept.append({"claim": claim, "signature": signature.hex()})
        del kept[:-100]


class MaskedGrid:
    """The grid of a masked federation: to the library, all members are one client, whose update is their mean.

    Args:
        post: the letters.
        experiment: the approved one.
        members: the names of all members.
    """

    def __init__(self, post: Post, experiment: Experiment, members: tuple[str, ...]) -> None:
        self._post = post
        self._members = members
        self._seconds = experiment.flower.train_seconds
        self._adder = Adder(frozenset(members))
        (method,) = experiment.build_methods()
        self._scoring = Scoring.of(method, experiment.flower.num_classes, len(members))
        self._asked: dict[str, Message] = {}
        self.claims: dict[str, list[Row]] = {}

    def get_nodes(self) -> Iterable[Any]:
        """One node, once all members are connected."""
        if set(self._post.nodes()) != set(self._members):
            return []
        return [SimpleNamespace(name=ALL, node_id=1, registered_at="")]

    def get_node_ids(self) -> Iterable[int]:
        """Its number."""
        return [node.node_id for node in self.get_nodes()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keep the request until its reply is asked for."""
        taken = []
        for message in messages:
            name = secrets.token_hex(16)
            message.metadata.__dict__["_message_id"] = name
            self._asked[name] = message
            taken.append(name)
        return taken

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The reply of all members together: it takes three exchanges."""
        found = []
        for name in message_ids:
            asked = self._asked.pop(name)
            try:
                if asked.metadata.message_type != "train":
                    raise Void("a masked federation evaluates with the server's samples alone")
                found.append(Message(self._round(asked.content), reply_to=asked))
            except Void as error:
                log.warning("the round is void: %s", error)
                self._post.remarks.append(f"void: {error}")
                found.append(failed(asked, f"the round is void: {error}"))
        return found

    def _round(self, request: RecordDict) -> RecordDict:
        """The mean update of all members, as one client's update; Void where a part is missing."""
        plain = json.loads(str(request.config_records[REQUEST]["json"]))
        number = {"seed": plain["seed"], "round": plain["task"]["round_num"]}
        keys = self._all("key", b"", number)
        roster = {name: key.hex() for name, key in keys.items()}
        content = to_bytes(request)
        parts = self._all("criteria", content, {"roster": roster})
        fixed = {name: fixed_of(part) for name, part in parts.items()}
        sums = self._scoring.sums.read_criteria(self._adder.total("criteria", fixed))
        parts = self._all("update", b"", {"roster": roster, "sums": sums})
        fixed = {name: fixed_of(part) for name, part in parts.items()}
        total = self._adder.total("update", fixed)
        model = unpack(request.array_records[ARRAYS])
        if len(total) != 1 + len(model):
            raise Void("the parts are not of the model's size")
        _, mean = self._scoring.sums.read_update(total)
        count = len(self._members)
        measured = {
            name: torch.tensor([value / count], dtype=torch.float64)
            for name, value in zip(self._scoring.names, sums, strict=True)
        }
        nothing = torch.zeros(1, dtype=torch.float64)
        models = (model.double() + mean).to(model.dtype)[None]
        return write_update(Updates((0,), models, measured, nothing, nothing), None)

    def _all(self, step: str, content: bytes, facts: Row) -> dict[str, bytes]:
        """Every member's reply to a step; Void where one is missing."""
        letters = dict.fromkeys(self._members, content)
        replies = self._post.exchange(step, letters, self._seconds, facts)
        found = {}
        for name in self._members:
            reply = replies.get(name, "no reply in time")
            reason = reply if isinstance(reply, str) else reply.refused
            if isinstance(reply, str) or reason is not None:
                raise Void(f"{step}: {name}: {reason}")
            found[name] = reply.content
        return found


def failed(asked: Message, reason: str) -> Message:
    """A reply without content."""
    return Message(Error(code=RAISED, reason=reason), reply_to=asked)


def masked_config(experiment: Experiment) -> dict[str, Any]:
    """The experiment that the library runs for a masked federation: one client, whose update is the mean."""
    table = experiment.to_dict()
    table["flower"] = {**table["flower"], "clients": [ALL], "left": [], "min_replies": 1}
    for method in table["methods"]:
        method.pop("secure_aggregation")
    return table


def line_of(progress: Progress, names: tuple[str, ...], grid: Any, post: Post) -> tuple[Row, dict[str, Row]]:
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
    listed = public_keys(settings.signers, COORDINATOR)[settings.coordinator]
    if listed.public_bytes_raw() != key.public_key().public_bytes_raw():
        raise UntrustedError("the coordinator's key is not the one in the signers file")
    content = settings.experiment.read_bytes()
    read = ReadExperiment.read(content)
    identities = public_keys(settings.signers, MEMBER)
    members = {name: identities[name] for name in read.members}
    folder = settings.run.with_name(f"{settings.run.name}-record")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    record = Record(folder, key, _secret(folder))
    first = first_line(read, members)
    if not record.known("members"):
        record.round_done(first, {})
    lengths = (record.known("ledgers") or [{}])[-1]
    experiment = load_experiment(settings.experiment)
    with server_task(settings.runtime, credential("runtime")) as flower:
        post = Post(flower, ServerSide(key, members), members, record.head, lengths)
        config: Any = settings.experiment
        names: tuple[str, ...] = read.members
        grid: Any = SealedGrid(post, members, read.digest)
        if read.masked:
            config, names = masked_config(experiment), (ALL,)
            grid = MaskedGrid(post, experiment, read.members)

        def on_round(progress: Progress) -> None:
            record.round_done(*line_of(progress, names, grid, post))

        app = server_app(config, on_round=on_round)
        options = {"out": str(settings.run), "server-data": settings.server_data}
        app(grid, Context(1, 1, {}, RecordDict(), options))


def first_line(read: ReadExperiment, members: Mapping[str, Ed25519PublicKey]) -> Row:
    """What a record begins with: the experiment and the members' keys."""
    return {
        "experiment": read.digest,
        "members": {name: key.public_bytes_raw().hex() for name, key in members.items()},
    }


def _secret(folder: Path) -> bytes:
    """What the salts follow from: made once for a run."""
    path = folder / "secret"
    if not path.exists():
        path.write_bytes(secrets.token_bytes(32))
        path.chmod(0o600)
    return path.read_bytes()


__all__ = ["MaskedGrid", "SealedGrid", "digest", "encode", "numpy", "run"]

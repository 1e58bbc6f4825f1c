"""Flower's grid as the library sees it: its messages are sealed letters, or masked sums of all members."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from clientwise.core.types import Updates
from clientwise.experiment.load import load_experiment
from clientwise.hosts.flower.wire import ARRAYS, REQUEST, read_request, unpack, write_update
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from flwr.app import Error, Message, RecordDict

from .approval import Experiment
from .canonical import Row
from .claims import read_claim
from .fixed_point import Void
from .keys import UntrustedError
from .mailbox import from_bytes, to_bytes
from .masked import Scoring, criteria_of, fixed_of
from .masks import Adder
from .post import Post, Reply

log = logging.getLogger("clientwise.consortium")
ALL = "all"  # the one client that a masked federation is to the library
RAISED = 2  # Flower's code for an app that raised


class SealedGrid:
    """The grid that the library sees: its messages are sealed letters.

    Args:
        post: the letters.
        members: the identities of all members.
        experiment: SHA-256 of the experiment's file.
        keep_claim: called with a member and the criteria that it signed.
    """

    def __init__(
        self,
        post: Post,
        members: Mapping[str, Ed25519PublicKey],
        experiment: str,
        keep_claim: Callable[[str, Row], None],
    ) -> None:
        self._post = post
        self._members = members
        self._experiment = experiment
        self._asked: dict[str, Message] = {}
        self._keep_claim = keep_claim

    def get_nodes(self) -> Iterable[Any]:
        """The members that are connected."""
        return [
            SimpleNamespace(name=name, node_id=node, registered_at="")
            for name, node in self._post.nodes().items()
        ]

    def get_node_ids(self) -> Iterable[int]:
        """Their numbers."""
        return [node.node_id for node in self.get_nodes()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send; the ids of the messages that were taken, which the messages get, too."""
        names = {node: name for name, node in self._post.nodes().items()}
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
                self._read_claim(reply, content, asked.content)
        except Exception as error:
            return failed(asked, f"{type(error).__name__}: {error}")
        return Message(content, reply_to=asked)

    def _read_claim(self, reply: Reply, content: RecordDict, asked: RecordDict) -> None:
        """The criteria that a member signed; UntrustedError where the message has others."""
        signed = reply.facts["signed"]
        claim = read_claim(signed, reply.member, self._members[reply.member], self._experiment)
        if claim["criteria"] != criteria_of(content):
            raise UntrustedError("its criteria are not those that it signed")
        # What is accepted here, and not by `verify`, would be a fault of the record.
        request, _ = read_request(asked)
        assert request.task is not None, "it is a request to train"
        if (claim["seed"], claim["round"]) != (request.seed, request.task.round_num):
            raise UntrustedError("its signature is of another round")
        if claim["criteria"].keys() != {part.called for part in request.task.criteria}:
            raise UntrustedError("it signed other criteria than it was asked for")
        self._keep_claim(reply.member, signed)


class MaskedGrid:
    """The grid of a masked federation: to the library, all members are one client, whose update is their mean.

    Args:
        post: the letters.
        read: the approved experiment.
    """

    def __init__(self, post: Post, read: Experiment) -> None:
        assert read.clip is not None, "the experiment has masked sums"
        members = read.members
        experiment = load_experiment(read.for_library())
        self._post = post
        self._members = members
        self._seconds = experiment.flower.reply_seconds
        self._adder = Adder(frozenset(members))
        self._scoring = Scoring.of(experiment, read.clip)
        self._asked: dict[str, Message] = {}

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
        return write_update(Updates((0,), models, measured, nothing, nothing))

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

"""A whole consortium in one process: coordinator, three sites, and a mailbox between them that may misbehave."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import tomli_w
from flwr.app import Message

from clientwise_consortium.approval import Experiment, propose
from clientwise_consortium.keys import public_keys
from clientwise_consortium.ledger import Ledger
from clientwise_consortium.mailbox import be_task, unwrapped, wrapped
from clientwise_consortium.node import Node
from clientwise_consortium.record import Record
from clientwise_consortium.server import serve
from clientwise_consortium.session import ServerSide, join, split
from clientwise_consortium.settings import NodeSettings
from conftest import NAMES, Keys

Change = Callable[[str, bytes, Callable[[bytes], bytes]], bytes | None]
TRAINING = {"epochs": 1, "batch_size": "full", "learning_rate": 0.3}
NOISE = {"sample_clip": 1.0, "sample_noise": 4.0}


def config(*, masked: bool = False, noise: bool = True, **changes: Any) -> dict[str, Any]:
    """An experiment of three sites on small images."""
    method: dict[str, Any] = {"name": "Sizes", "criteria": ["dataset_size"]}
    if masked:
        method["secure_aggregation"] = {"clip": 2.0, "bits": 64}
    return {
        "name": "trial",
        "engine": "flower",
        "rounds": 3,
        "seeds": [1],
        "model": "linear",
        "training": {**TRAINING, **(NOISE if noise else {})},
        "methods": [method],
        "evaluation": {"clients_every": 0},
        "flower": {
            "clients": NAMES,
            "input_shape": [4],
            "num_classes": 2,
            "reply_seconds": 20.0,
        },
    } | changes


def write_rows(path: Path, seed: int, parts: tuple[str, ...] = ("train", "test")) -> None:
    """Rows of two classes that a linear model can tell apart."""
    random = numpy.random.default_rng(seed)
    arrays = {}
    for part in parts:
        labels = numpy.arange(40 + 10 * seed) % 2
        inputs = random.normal(size=(len(labels), 4)) + labels[:, None]
        arrays |= {f"{part}_inputs": inputs.astype("f4"), f"{part}_targets": labels}
    numpy.savez(path, **arrays)


class Mailbox:
    """In the place of Flower's grid. `change` may read, drop, repeat and replace what it carries."""

    def __init__(self, sites: dict[str, Callable[[bytes], bytes]]) -> None:
        be_task(1, 1, 1)
        self.sites = sites
        self.carried: list[bytes] = []
        self.change: Change = lambda name, message, site: site(message)
        self._waiting: dict[str, Message] = {}

    def get_nodes(self) -> Iterable[Any]:
        return [SimpleNamespace(name="", node_id=number + 2) for number in range(len(self.sites))]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            name = f"message-{len(self.carried)}"
            message.metadata.__dict__["_message_id"] = name
            self.carried.append(unwrapped(message))
            self._waiting[name] = message
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = []
        for name in list(message_ids):
            message = self._waiting.pop(name, None)
            if message is None:
                continue
            site = list(self.sites)[message.metadata.dst_node_id - 2]
            reply = self.change(site, unwrapped(message), self.sites[site])
            if reply is not None:
                self.carried.append(reply)
                replies.append(Message(wrapped(reply), reply_to=message))
        return replies


class Federation:
    """The parties, with their files."""

    def __init__(self, folder: Path, keys: Keys, **changes: Any) -> None:
        self.folder, self.keys = folder, keys
        self.experiment = folder / "experiment.toml"
        self.experiment.write_text(tomli_w.dumps(config(**changes)))
        self.read = Experiment.read(self.experiment.read_bytes())
        self.members = public_keys(keys.signers, "clientwise-member")
        self.lock = folder / "requirements.lock"
        self.lock.write_text("clientwise==0.3.0 --hash=sha256:00\n")
        for number, name in enumerate(NAMES):
            write_rows(folder / f"{name}.npz", number)
            (folder / name).mkdir()
            Ledger(folder / name / "ledger.db", begin=True)
            self.approve(name)
        write_rows(folder / "server.npz", 7, ("report",))
        self.nodes: dict[str, Node] = {}
        for name in NAMES:
            self.restart(name)
        self.mailbox = Mailbox({name: self.carry(name) for name in NAMES})

    def approve(self, name: str, **changes: Any) -> None:
        """An approval by the site's approver."""
        reason = None if self.read.mu else "no patients in this test"
        about = {"site": name, "reason": "a test", "without_noise": reason, "evaluations": 0}
        about["lock"] = self.lock.read_bytes()
        approval = propose(self.read, **(about | {"cell": 5} | changes))
        path = self.folder / f"{name}.toml"
        path.write_text(approval.text())
        self.keys.sign(path, "doctor")

    def settings(self, name: str, **changes: Any) -> NodeSettings:
        paths = {
            "signers": self.keys.signers,
            "experiment": self.experiment,
            "approval": self.folder / f"{name}.toml",
            "lock": self.lock,
            "state": self.folder / name,
            "summary": self.folder / name / "summary.json",
            "data": str(self.folder / f"{name}.npz"),
        }
        about = {"site": name, "approver": "doctor", "most_mu": 10.0, "allow_no_noise": True}
        return NodeSettings(**(about | paths | changes))

    def restart(self, name: str, **changes: Any) -> None:
        self.nodes[name] = Node(self.settings(name, **changes), self.keys.private(name))

    def carry(self, name: str) -> Callable[[bytes], bytes]:
        return lambda message: self.nodes[name].answer(message)

    def ledger(self, name: str) -> Ledger:
        return Ledger(self.folder / name / "ledger.db")

    def events(self, name: str) -> list[str]:
        query = "SELECT event FROM events ORDER BY number"
        with closing(sqlite3.connect(self.folder / name / "ledger.db")) as database:
            return [event for (event,) in database.execute(query)]

    def ask(self, name: str, purpose: str, facts: dict[str, Any], content: bytes = b"") -> str:
        """What a site answers to an instruction that the coordinator signed, whatever its own code does."""
        side = ServerSide(self.keys.private("coordinator"), self.members)
        site = self.carry(name)
        side.greeted(site(side.hello()))
        number, sealed = side.instruction(name, purpose, join({"head": "0", **facts}, content))
        answer, _ = split(side.reply(name, number, purpose, site(sealed)))
        return str(answer.get("refused"))

    def serve(self, out: str = "run") -> Path:
        """Run or resume the experiment; the folder of the record."""
        folder = self.folder / f"{out}-record"
        folder.mkdir(exist_ok=True)
        key = self.keys.private("coordinator")
        record = Record(folder, key, b"s" * 32)
        side = ServerSide(key, self.members)
        data = str(self.folder / "server.npz")
        serve(self.mailbox, self.read, side, record, self.folder / out, data)
        return folder

    def heads(self) -> dict[str, list[str]]:
        return {name: self.ledger(name).questions("head") for name in NAMES}

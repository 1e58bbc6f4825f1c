"""Hostile parties, each as a process of its own. HOSTILE says what they do, by round; and what the mailbox does."""

from __future__ import annotations

import http.client
import http.server
import itertools
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import torch
from clientwise.hosts.flower.wire import ARRAYS, REQUEST, pack, unpack
from flwr.app import ConfigRecord
from flwr.proto.message_pb2 import PushObjectRequest

from clientwise_consortium.command import main
from clientwise_consortium.fixed_point import Sums
from clientwise_consortium.mailbox import ENVELOPE, from_bytes, to_bytes
from clientwise_consortium.masks import Masker
from clientwise_consortium.node import Node
from clientwise_consortium.post import Post
from clientwise_consortium.record import Record
from clientwise_consortium.session import split

AGAIN = Path("again.json")  # what the members said to an instruction that was given twice
LETTERS = Path("letters")  # what the mailbox read of sealed replies, in a file for each sender
READ = Path("read-by-the-mailbox")
DEATHS = Path("deaths")
DISTURBED = Path("disturbed.json")  # how often the mailbox did what
now: dict[str, Any] = {"round": 0}


def deed() -> str:
    """What is to be done in this round; "": nothing."""
    return str(json.loads(os.environ["HOSTILE"]).get(str(now["round"]), ""))


def dies(what: str) -> None:
    """This process, if it is the next of a series of deaths: its machine loses power."""
    for series in json.loads(os.environ["HOSTILE"]).get("deaths", []):
        left = [one for one in series if not (DEATHS / one).exists()]
        if left[:1] == [what]:
            DEATHS.mkdir(exist_ok=True)
            (DEATHS / what).touch()
            os.kill(os.getpid(), signal.SIGKILL)


def member() -> None:
    """A site with a good key and an approval. North dies; south sends what it should not."""
    {"north": mortal_member, "south": hostile_member}.get(os.environ["PARTY"], main)()
    sys.exit(main())


def mortal_member() -> None:
    """Dies in a step, after its work and before its reply."""
    act = Node._act

    def acts(self: Node, purpose: str, asked: Any, rest: bytes) -> Any:
        note_round(asked, rest)
        done = act(self, purpose, asked, rest)
        dies(f"north: {purpose}")
        return done

    Node._act = acts  # type: ignore[method-assign]


def hostile_member() -> None:
    """Its parts are random, 100-fold, those of an earlier round; or its letters are another member's."""
    update, masked, reply = Sums.update, Masker.masked, Node.answer
    act = Node._act
    sent: list[torch.Tensor] = []
    own: set[bytes] = set()

    def acts(self: Node, purpose: str, asked: Any, rest: bytes) -> Any:
        note_round(asked, rest)
        return act(self, purpose, asked, rest)

    def changed(self: Sums, score: float, change: torch.Tensor) -> torch.Tensor:
        values = update(self, score, change)
        if deed() == "random":
            return torch.randint(-(2**62), 2**62, values.shape)
        return 100 * values if deed() == "hundredfold" else values

    def replayed(self: Masker, purpose: str, roster: Any, told: Any, values: Any) -> torch.Tensor:
        part = masked(self, purpose, roster, told, values)
        if purpose == "update":
            sent.append(part)
            return sent[0] if deed() == "replayed" else part
        return part

    def answer(self: Node, message: bytes) -> bytes:
        found = reply(self, message)
        own.add(found)
        if deed() == "others" and split(message)[0].get("purpose") == "update":
            return min(
                path.read_bytes() for path in LETTERS.iterdir() if path.read_bytes() not in own
            )
        return found

    Masker.masked, Sums.update = replayed, changed  # type: ignore[method-assign]
    Node.answer, Node._act = answer, acts  # type: ignore[method-assign]


def note_round(asked: Any, rest: bytes) -> None:
    """Which round an instruction is of: the first one of a masked round says it, and every plain one."""
    if "round" in asked:
        now["round"] = asked["round"]
    elif rest and "roster" not in asked:
        now["round"] = round_of(rest)


def round_of(content: bytes) -> int:
    plain = json.loads(str(from_bytes(content).config_records[REQUEST]["json"]))
    return int((plain["task"] or plain)["round_num"])


def coordinator() -> None:
    """A coordinator with its good key, which tells north, or all, something else, or asks for more; and dies."""
    exchange, send, sign = Post.exchange, Post.send, Record.round_done
    asks_more = False

    def exchanged(self: Post, step: str, contents: Any, seconds: float, facts: Any) -> Any:
        now["round"] = facts.get("round", now["round"])
        if step == "criteria" and deed() == "roster":
            roster = {name: key for name, key in facts["roster"].items() if name != "south"}
            facts = {**facts, "roster": roster}
        if step == "criteria" and deed() == "noise":
            contents = {name: with_less_noise(one) for name, one in contents.items()}
        if step == "criteria" and deed() == "broadcast":
            contents = {**contents, "north": with_other_model(contents["north"], 1)}
        if step == "update" and deed() == "sums":
            north = {**facts, "sums": [2 * one for one in facts["sums"]]}
            found = exchange(self, step, {"north": contents["north"]}, seconds, north)
            others = {name: one for name, one in contents.items() if name != "north"}
            return found | exchange(self, step, others, seconds, facts)
        found = exchange(self, step, contents, seconds, facts)
        if step == "update" and deed() == "twice":
            replies = exchange(self, step, contents, seconds, facts)
            AGAIN.write_text(json.dumps({name: str(one.refused) for name, one in replies.items()}))
        if step == "criteria":
            dies("server: in the round")
        return found

    def sent(self: Post, purpose: str, contents: Any, facts: Any = None) -> Any:
        nonlocal asks_more
        if purpose != "train" or asks_more:
            return send(self, purpose, contents, facts)
        now["round"] = round_of(next(iter(contents.values())))
        if deed() == "noise":
            contents = {name: with_less_noise(one) for name, one in contents.items()}
        names = send(self, purpose, contents, facts)
        if deed() == "twice":
            asks_more = True
            for step in (0, 0, 1, 2):
                others = {name: with_other_model(one, step) for name, one in contents.items()}
                exchange(self, purpose, others, 12)
            asks_more = False
        return names

    def signed(self: Record, body: Any, rows: Any) -> None:
        if body.get("kept", "first") is None:  # of a round that was used
            dies("server: before it signs")
        sign(self, body, rows)

    Post.exchange, Post.send, Record.round_done = exchanged, sent, signed  # type: ignore[method-assign]
    sys.exit(main())


def with_less_noise(content: bytes) -> bytes:
    request = from_bytes(content)
    table = json.loads(str(request.config_records[REQUEST]["json"]))
    table["task"]["training"]["sample_noise"] = 0.01
    request[REQUEST] = ConfigRecord({"json": json.dumps(table)})
    return to_bytes(request)


def with_other_model(content: bytes, step: float) -> bytes:
    request = from_bytes(content)
    request[ARRAYS] = pack(unpack(request.array_records[ARRAYS]) + step)
    return to_bytes(request)


class Mailbox(http.server.BaseHTTPRequestHandler):
    """Between the sites and the SuperLink: keeps what it reads; drops, repeats and holds back messages."""

    protocol_version = "HTTP/1.1"
    to = 0
    disturbs = False
    chance = random.Random(1)
    numbers = itertools.count(1)
    done: ClassVar[Counter[str]] = Counter()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.keep(body)
        name = self.path.rsplit("/", 1)[-1]
        if name == "push-object":
            keep_letter(body)
        disturbed = self.disturbs and name in (
            "pull-messages",
            "push-messages",
            "pull-object",
            "push-object",
        )
        number = next(self.numbers) if disturbed else 1
        if disturbed and number % 3 == 0:
            time.sleep(self.chance.random())  # others overtake it
            self.note("held back")
        if number % 31 == 0:
            self.close_connection = True
            return self.note("requests dropped")
        status, content, headers = self.passed_on(body)
        if number % 7 == 0:
            status, content, headers = self.passed_on(body)
            self.note("repeated")
        if number % 41 == 0:
            self.close_connection = True
            return self.note("answers dropped")
        self.keep(content)
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def passed_on(self, body: bytes) -> tuple[int, bytes, list[tuple[str, str]]]:
        link = http.client.HTTPConnection("127.0.0.1", self.to, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        link.request("POST", self.path, body, headers)
        reply = link.getresponse()
        content = reply.read()
        link.close()
        return reply.status, content, reply.getheaders()

    def keep(self, content: bytes) -> None:
        with READ.open("ab") as file:
            file.write(content)

    def note(self, what: str) -> None:
        self.done[what] += 1
        DISTURBED.write_text(json.dumps(self.done))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def keep_letter(body: bytes) -> None:
    """Keep the last sealed reply of a node."""
    pushed = PushObjectRequest.FromString(body)
    try:
        record = ConfigRecord.inflate(pushed.object_content)
    except ValueError:  # another part of a message
        return
    content = record.get(ENVELOPE) or record.get("bytes")
    if isinstance(content, bytes) and split(content)[0].get("kind") == "sealed":
        LETTERS.mkdir(exist_ok=True)
        (LETTERS / str(pushed.node.node_id)).write_bytes(content)


def mailbox() -> None:
    """Listen at one port of this machine, and pass on to another."""
    own, Mailbox.to = int(sys.argv[1]), int(sys.argv[2])
    now["round"] = "mailbox"
    Mailbox.disturbs = deed() == "disturbs"
    http.server.ThreadingHTTPServer(("127.0.0.1", own), Mailbox).serve_forever()

"""Hostile parties, each as a process of its own: what they do in which round is in the variable HOSTILE."""

from __future__ import annotations

import http.client
import http.server
import itertools
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
from clientwise.hosts.flower.wire import ARRAYS, REQUEST, pack, unpack
from flwr.app import ConfigRecord

from clientwise_consortium.command import main
from clientwise_consortium.fixed_point import Sums
from clientwise_consortium.mailbox import from_bytes, to_bytes
from clientwise_consortium.masks import Masker
from clientwise_consortium.post import Post

PLAN = json.loads(os.environ.get("HOSTILE", "{}"))
DISTURBED = ("pull-messages", "push-messages", "pull-object", "push-object")
now: dict[str, Any] = {"round": 0}


def deed() -> str:
    """What is to be done in this round; "": nothing."""
    return str(PLAN.get(str(now["round"]), ""))


def member() -> None:
    """A site with a good key and an approval, whose parts are random, 100-fold, or those of an earlier round."""
    begin, update, masked = Masker.__init__, Sums.update, Masker.masked
    sent: list[torch.Tensor] = []

    def noting(self: Masker, name: str, identity: Any, members: Any, terms: Any) -> None:
        now["round"] = terms["round"]
        begin(self, name, identity, members, terms)

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

    Masker.__init__, Masker.masked, Sums.update = noting, replayed, changed  # type: ignore[method-assign]
    sys.exit(main())


def coordinator() -> None:
    """A coordinator with its good key: what it tells north, or all, is not what the others are told or approved."""
    honest = Post.exchange

    def exchange(self: Post, step: str, contents: Any, seconds: float, facts: Any) -> Any:
        now["round"] = facts.get("round", now["round"])
        if step == "criteria" and deed() == "roster":
            roster = {name: key for name, key in facts["roster"].items() if name != "south"}
            facts = {**facts, "roster": roster}
        if step == "criteria" and deed() == "noise":
            contents = {name: with_less_noise(one) for name, one in contents.items()}
        if step == "criteria" and deed() == "broadcast":
            contents = {**contents, "north": with_other_model(contents["north"])}
        if step == "update" and deed() == "sums":
            north = {**facts, "sums": [2 * one for one in facts["sums"]]}
            found = honest(self, step, {"north": contents["north"]}, seconds, north)
            others = {name: one for name, one in contents.items() if name != "north"}
            return found | honest(self, step, others, seconds, facts)
        if step == "update" and deed() == "twice":
            honest(self, step, contents, seconds, facts)
        return honest(self, step, contents, seconds, facts)

    Post.exchange = exchange  # type: ignore[method-assign]
    sys.exit(main())


def with_less_noise(content: bytes) -> bytes:
    request = from_bytes(content)
    plain = str(request.config_records[REQUEST]["json"])
    table = json.loads(plain)
    table["task"]["training"]["sample_noise"] = 0.01
    request[REQUEST] = ConfigRecord({"json": json.dumps(table)})
    return to_bytes(request)


def with_other_model(content: bytes) -> bytes:
    request = from_bytes(content)
    request[ARRAYS] = pack(unpack(request.array_records[ARRAYS]) + 1)
    return to_bytes(request)


class Mailbox(http.server.BaseHTTPRequestHandler):
    """Between the sites and the SuperLink: keeps what it reads; drops, repeats and holds back messages."""

    protocol_version = "HTTP/1.1"
    to = 0
    chance = random.Random(1)
    numbers = itertools.count(1)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.keep(body)
        disturbed = self.path.rsplit("/", 1)[-1] in DISTURBED and bool(deed())
        number = next(self.numbers) if disturbed else 1
        if disturbed:
            time.sleep(self.chance.random())  # others overtake it
        if number % 19 == 0:  # the request is lost
            self.close_connection = True
            return
        status, content, headers = self.passed_on(body)
        if number % 7 == 0:
            status, content, headers = self.passed_on(body)
        if number % 23 == 0:  # the answer is lost
            self.close_connection = True
            return
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
        with Path("read-by-the-mailbox").open("ab") as file:
            file.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def mailbox() -> None:
    """Listen at one port of this machine, and pass on to another."""
    own, Mailbox.to = int(sys.argv[1]), int(sys.argv[2])
    now["round"] = "all"
    http.server.ThreadingHTTPServer(("127.0.0.1", own), Mailbox).serve_forever()

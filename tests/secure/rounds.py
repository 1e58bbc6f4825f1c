"""Rounds of the protocol in this process, with parties that drop out or deviate."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy
import pytest

pytest.importorskip("Crypto", reason="needs clientwise[deployment]")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clientwise.secrecy.masks.client import SecureClient
from clientwise.secrecy.masks.primitives import Masked, value_type
from clientwise.secrecy.masks.server import SecureServer
from clientwise.secrecy.masks.terms import Message, Sum, Terms

SUMS = (Sum("criteria", 12, 64), Sum("vector", 20, 32))
# What happens to an answer: (step, client, message) -> the message, or None for a client that is gone
Interfere = Callable[[str, int, Any], Any]


def is_noise(total: Masked) -> bool:
    """Whether a sum looks random, where sums of the clients' values are below 2^16."""
    signed = total.view(f"<i{total.itemsize}").astype("float64")
    return float(numpy.median(numpy.abs(signed))) > 2.0 ** (8 * total.itemsize - 8)


def honest(step: str, client: int, message: Any) -> Any:
    return message


def some_terms(cohort: int = 5, threshold: int = 4, run: str = "run 1, seed 1, round 1") -> Terms:
    return Terms(run, "agreed", cohort, threshold, SUMS)


class Parties:
    """n clients and a server. Messages travel as JSON; a client's state, too."""

    def __init__(
        self,
        terms: Terms,
        replies: Interfere = honest,
        requests: Interfere = honest,
    ) -> None:
        keys = {client: Ed25519PrivateKey.generate() for client in range(terms.cohort)}
        self.identities = {
            client: key.public_key().public_bytes_raw() for client, key in keys.items()
        }
        self.clients = {
            client: SecureClient(terms, client, key, self.identities)
            for client, key in keys.items()
        }
        self.server = SecureServer(terms, self.identities)
        self.keys = keys
        self.terms = terms
        self.replies, self.requests = replies, requests
        self.score: Callable[[Any], int] = lambda told: (
            1
        )  # what a client's values are multiplied by
        self.gone: set[int] = set()
        self.refusals: dict[int, str] = {}  # by clients, of what the server asked
        self.values = {
            purpose.purpose: {
                client: numpy.random.default_rng(client)
                .integers(0, 1000, purpose.length)
                .astype(value_type(purpose.bits))
                for client in keys
            }
            for purpose in terms.sums
        }

    def ask(self, step: str, requests: dict[int, Message]) -> dict[int, Any]:
        answers = {}
        kind, _, purpose = step.partition(" ")
        for number, request in requests.items():
            if number in self.gone:
                continue
            request = self.requests(step, number, json.loads(json.dumps(request)))
            try:
                answer = self._answer(number, kind, purpose, request)
            except Exception as error:
                self.refusals[number] = str(error)
                self.gone.add(number)
                continue
            answer = self.replies(step, number, answer)
            if answer is None:
                self.gone.add(number)
            else:
                answers[number] = answer
        return answers

    def _answer(self, number: int, kind: str, purpose: str, request: Any) -> Message:
        client = self.clients[number]
        client.state = json.loads(json.dumps(client.state))
        if kind == "keys":
            return client.keys()
        if kind == "shares":
            return client.shares(request)
        if kind == "mask":
            values = self.values[purpose][number]
            one = values.dtype.type
            return client.masked(purpose, request, lambda told: values * one(self.score(told)))
        return (
            client.confirm(purpose, request)
            if kind == "confirm"
            else client.unmask(purpose, request)
        )

    def run(self) -> dict[str, tuple[list[int], Masked]]:
        """The clients in each sum, and the total."""
        server = self.server
        roster = server.take_keys(self.ask("keys", {client: {} for client in self.clients}))
        everyone = sorted(map(int, roster["roster"]))
        packets = server.take_shares(self.ask("shares", dict.fromkeys(everyone, roster)))
        found = {}
        for one in self.terms.sums:
            purpose = one.purpose
            request = server.begin_sum(purpose, {"told": purpose})
            asked = {client: {**packets.get(client, {}), **request} for client in packets}
            for client, reply in self.ask(f"mask {purpose}", asked).items():
                server.add(purpose, client, reply)
            listed = server.close_sum(purpose)
            present = dict.fromkeys(server.survivors, listed)
            signed = server.take_confirmed(purpose, self.ask(f"confirm {purpose}", present))
            confirmed = {int(client): signed for client in signed["signatures"]}
            total = server.take_unmasked(purpose, self.ask(f"unmask {purpose}", confirmed))
            found[purpose] = (server.survivors, total)
            packets = {client: {} for client in server.survivors}
        return found

    def plain_sum(self, purpose: str, clients: list[int]) -> Masked:
        return sum(self.values[purpose][client] for client in clients)  # type: ignore[return-value]

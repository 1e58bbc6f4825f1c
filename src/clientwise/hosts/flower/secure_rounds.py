"""The server's side of secure aggregation: one round, step by step, over any exchange of messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from flwr.app import RecordDict

from ...core.secrecy import SecretScores, SecretSum, sum_note
from ...core.types import Refusal
from ...secrecy.masks.primitives import Masked
from ...secrecy.masks.server import SecureServer
from ...secrecy.masks.terms import (
    CONFIRM,
    KEYS,
    MASK,
    SHARES,
    UNMASK,
    Message,
    Terms,
    VoidError,
    step_of,
)
from .replies import Content, why_unreadable
from .secure_wire import CRITERIA, VECTOR, Step, read_reply, write_step

# Sends requests by client; yields each client's reply, or a text that says why there is none
Exchange = Callable[[Mapping[int, RecordDict]], Iterator[tuple[int, Content]]]


class SecureRound:
    """One round.

    Args:
        scores: how clients score themselves.
        terms: the public facts of the round.
        identities: the public keys of all clients.
        exchange: sends requests and yields the replies.
        seed: of the lane.
        round_num: of the round.
    """

    def __init__(
        self,
        scores: SecretScores,
        terms: Terms,
        identities: Mapping[int, bytes],
        exchange: Exchange,
        *,
        seed: int,
        round_num: int,
    ) -> None:
        self._scores = scores
        self._terms = terms
        self._server = SecureServer(terms, identities)
        self._exchange = exchange
        self._seed = seed
        self._round = round_num
        self._gone: dict[int, str] = {}

    def run(self, trainings: Mapping[int, RecordDict], size: int) -> SecretSum:
        """All steps of the round.

        Args:
            trainings: the requests to train, by client.
            size: numbers in a model, d.
        """
        try:
            return self._run(trainings)
        except VoidError as reason:
            found = SecretSum.void(str(reason), self._scores, size, self._refusals(()))
            return _with_notes(found, self._server.notes)

    def _run(self, trainings: Mapping[int, RecordDict]) -> SecretSum:
        server = self._server
        keys = dict(self._ask(KEYS, {client: {} for client in trainings}, trainings))
        roster = server.take_keys(keys)
        present = sorted(map(int, roster["roster"]))
        packets = server.take_shares(dict(self._ask(SHARES, dict.fromkeys(present, roster))))
        sums = torch.ones(len(self._scores.method.criteria), dtype=torch.float64)
        if CRITERIA in self._terms.purposes:
            total = self._sum(CRITERIA, packets, None)
            sums = self._scores.decode_criteria(total).clamp(min=0)
            packets = {client: {} for client in server.survivors}
        total = self._sum(VECTOR, packets, sums.tolist())
        clients = server.survivors
        scores, update, error = self._scores.decode_vector(total, len(clients), sums)
        unknown = torch.full((len(clients),), torch.nan, dtype=torch.float64)
        found = SecretSum(
            client_ids=tuple(clients),
            raw=unknown[:, None].repeat(1, len(sums)),
            scores=unknown,
            sums=sums,
            total=scores,
            update=update,
            training_loss=unknown,
            seconds=unknown,
            refusals=self._refusals(clients),
            notes=(sum_note(len(clients), self._terms.cohort, error),),
        )
        return _with_notes(found, server.notes)

    def _sum(self, purpose: str, packets: Mapping[int, Message], broadcast: object) -> Masked:
        server = self._server
        request = server.begin_sum(purpose, broadcast)
        requests = {client: {**packet, **request} for client, packet in packets.items()}
        for client, reply in self._ask(step_of(MASK, purpose), requests):
            server.add(purpose, client, reply)  # as they arrive: the server keeps their sum
        listed = server.close_sum(purpose)
        survivors = dict.fromkeys(server.survivors, listed)
        signed = server.take_confirmed(
            purpose, dict(self._ask(step_of(CONFIRM, purpose), survivors))
        )
        confirmed = dict.fromkeys(map(int, signed["signatures"]), signed)
        return server.take_unmasked(purpose, dict(self._ask(step_of(UNMASK, purpose), confirmed)))

    def _ask(
        self,
        step: str,
        messages: Mapping[int, Message],
        contents: Mapping[int, RecordDict] | None = None,
    ) -> Iterator[tuple[int, Message]]:
        """Ask these clients for one step; their messages as they arrive."""
        requests = {}
        for client, message in messages.items():
            training = contents[client] if contents else None
            one = Step(client, self._seed, self._round, step, message)
            requests[client] = write_step(one, training)
        for client, content in self._exchange(requests):
            if isinstance(content, str):
                self._gone.setdefault(client, f"{step}: {content}")
                continue
            try:
                yield client, read_reply(content)
            except Exception as error:  # nothing a client sends ends the run
                self._gone.setdefault(client, f"{step}: {why_unreadable(error)}")

    def _refusals(self, clients: Sequence[int]) -> tuple[Refusal, ...]:
        """The clients that are not in the sum, with the reasons."""
        reasons = self._gone | self._server.dropped
        return tuple(
            Refusal(client, reason, was_sent=False)
            for client, reason in sorted(reasons.items())
            if client not in clients
        )


def _with_notes(found: SecretSum, notes: Sequence[str]) -> SecretSum:
    return replace(found, notes=(*found.notes, *notes))

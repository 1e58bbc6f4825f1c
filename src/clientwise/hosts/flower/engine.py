"""The server's side: `FlowerEngine` trains and evaluates on the nodes of a Flower grid.

A client that does not reply in time is refused, or counts in a later round.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from flwr.app import RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from ...core.clock import LATE, Pace
from ...core.criteria import is_fixed
from ...core.evaluation import LARGEST_LOSS
from ...core.reasons import Reason
from ...core.types import Evaluation, Refusal, Task, Updates
from ...engine.jobs import joined_evaluations
from ...engine.wrapping import EmbeddedEngine, WrappingEngine
from ...experiment.config.settings import FlowerSettings
from ..protocols import Request
from ..values import FirstClaims
from .exchange import NO_ANSWER, Connected, Content, pull_until, push, read_reply, wait_for
from .wire import check_size, pack, read_evaluation, read_update, write_request

log = logging.getLogger("flwr.clientwise")
TEST_SIZE = "test samples"  # what a client claims in its first evaluation
CLAIMS = "claims."  # begins the names of what a checkpoint keeps of the clients' claims

# Why a client has no part in a round.
NOT_TAKEN = Reason("the SuperLink did not accept the message", "unreachable")
NOT_CONNECTED = Reason("not connected", "not connected")
LOSS_TOO_LARGE = "its loss is not finite or too large"


@dataclass(frozen=True)
class _Asked:
    """A request to train: its round, the model [d] that was sent, and the time."""

    round_num: int
    model: Tensor
    at: float

    def now(self, update: Updates, model: Tensor, round_num: int) -> Updates:
        """The update with the server's time and its age in rounds.

        A late update is how far its client moved, added to the present model [d].
        """
        age = float(round_num - self.round_num)
        if update.models.shape[1] == len(model) and update.models.is_floating_point():
            sent = update.models.to(model)  # others are refused in any case
            update = replace(update, models=model + (sent - self.model) if age else sent)
        seconds = torch.tensor([time.monotonic() - self.at], dtype=torch.float64)
        return replace(update, seconds=seconds, ages=torch.tensor([age], dtype=torch.float64))


class FlowerEngine(WrappingEngine):
    """Trains and evaluates on Flower's nodes; the embedded engine does the server's own work.

    Args:
        local: the embedded engine, for the server's samples and the problem.
        grid: Flower's connection to the nodes.
        connected: returns the node of every connected client.
        settings: the config's `[flower]` table.
        is_deployment: compare what clients say about their data with what they said first.
        awaits_all: wait for every client to connect, and then as long for its reply. Under differential
            privacy, no client may decide whether another one is asked.
    """

    def __init__(
        self,
        local: EmbeddedEngine,
        grid: Grid,
        connected: Connected,
        *,
        settings: FlowerSettings,
        is_deployment: bool = False,
        awaits_all: bool = False,
    ) -> None:
        super().__init__(local)  # whose clock shows real time
        self._grid = grid
        self._connected = connected
        self._settings = settings
        self._claims = FirstClaims()
        self._claimed: dict[int, dict[str, float]] = {}  # in the present round, by client
        self._is_deployment = is_deployment
        self._awaits_all = awaits_all
        self._began = time.monotonic()
        self._asked: dict[int, _Asked] = {}  # clients that have not replied yet
        self._waiting: dict[str, int] = {}  # the same clients, by the ids of their messages
        self._round = 0  # the present one; nodes count what a round asks for
        self._outputs = local.problem.values_per_sample(local.data.samples.targets.shape[1:])

    def train(self, client_ids: Sequence[int], model: Tensor, task: Task) -> Iterator[Updates]:
        """See `core.engine.Engine`. With fewer replies than `min_replies` every update is refused.

        The round ends as the method's pace says. A later reply is refused, or counts in a later
        round.
        """
        self._round = task.round_num
        self._claimed = {}
        pace = self.clock.pace if self.clock else Pace()
        possible = len({*client_ids, *self._waiting.values()})
        needed = min(self._settings.min_replies, possible)
        enough = self.clock.enough(len(client_ids)) if self.clock else len(client_ids)
        least = len(client_ids) if self._awaits_all else min(needed, len(client_ids))
        patience = self._deadline()
        nodes = wait_for(self._connected, client_ids, least, patience)
        if self._awaits_all:
            patience = self._deadline()
        failures = [Refusal(client, NOT_CONNECTED) for client in client_ids if client not in nodes]
        failures += self._ask_to_train(nodes, model, task, patience)
        deadline = min(patience, time.monotonic() + (pace.deadline or torch.inf))
        awaited = client_ids if client_ids and pace.buffer is None else None
        held: list[Updates] = []
        arrived = 0
        for replies in pull_until(self._grid, self._waiting, deadline, enough, awaited):
            for client, content in replies:
                asked = self._asked.pop(client)
                update = self._read_update(client, content, task)
                if isinstance(update, Refusal):
                    failures.append(update)
                else:
                    held.append(asked.now(update, model, task.round_num))
                    arrived += 1
            if arrived >= needed:
                yield from _as_chunks(held)
                held.clear()
        if not pace.keeps_late:
            reason = LATE if arrived >= enough else NO_ANSWER
            failures += [Refusal(client, reason) for client in self._waiting.values()]
            self._waiting = {}
            self._asked = {}
        too_few = f"only {arrived} of {needed} required replies arrived"
        failures += [Refusal(update.client_ids[0], too_few) for update in held]
        if failures:
            yield Updates.failed(failures, model)
        if self.clock:
            self.clock.now = time.monotonic() - self._began
            self.clock.at_work = frozenset(self._waiting.values())

    def remember_claims(self, client_ids: Sequence[int]) -> None:
        """See `core.engine.RemembersClaims`."""
        for client in client_ids:
            for name, claimed in self._claimed.get(client, {}).items():
                self._claims.remember(client, name, claimed)

    def evaluate(self, client_ids: Sequence[int], models: Tensor) -> Evaluation:
        """See `core.engine.Engine`. A client that does not reply has zero samples and is missing.

        A loss above `LARGEST_LOSS` is the model's if every client has it, else the client's.
        """
        found: dict[int, Evaluation] = {}
        missing: list[Refusal] = []
        for client, one in self._evaluated(client_ids, models):
            if isinstance(one, Refusal):
                missing.append(one)
            else:
                found[client] = one
        # False for NaN
        usable = {
            client: one for client, one in found.items() if bool((one.losses < LARGEST_LOSS).all())
        }
        if usable:
            missing += [Refusal(one, LOSS_TOO_LARGE) for one in found if one not in usable]
            found = usable
        for client, one in found.items():
            self._claims.remember(client, TEST_SIZE, float(one.num_samples))
        problem = self.problem
        zeros = torch.zeros(len(models), 1, dtype=torch.float64)
        counts = torch.zeros(len(models), *problem.counts_shape, dtype=problem.counts_dtype)
        nothing = Evaluation(torch.zeros(1, dtype=torch.int64), zeros, zeros, counts)
        parts = [found.get(client, nothing) for client in client_ids]
        whole = joined_evaluations(parts, torch.arange(len(parts)))
        return replace(whole, missing=tuple(missing))

    def _evaluated(
        self, client_ids: Sequence[int], models: Tensor
    ) -> Iterator[tuple[int, Evaluation | Refusal]]:
        """The evaluation of each client, or why there is none."""
        deadline = self._deadline()
        nodes = wait_for(self._connected, client_ids, 1, deadline)
        packed = pack(models)
        requests = {client: write_request(self._request(client), packed) for client in nodes}
        for client in client_ids:
            if client not in nodes:
                yield client, Refusal(client, NOT_CONNECTED)
        waiting, not_taken = self._push("evaluate", requests, nodes, deadline)
        for client in not_taken:
            yield client, Refusal(client, NOT_TAKEN)
        for replies in pull_until(self._grid, waiting, deadline):
            for client, content in replies:
                read = partial(self._read_evaluation, client, len(models))
                yield client, read_reply(client, content, read)
        for client in waiting.values():
            yield client, Refusal(client, NO_ANSWER)

    def _deadline(self) -> float:
        """When an exchange that begins now ends at the latest."""
        return time.monotonic() + self._settings.reply_seconds

    def state(self) -> dict[str, Tensor]:
        """The clients' first claims, and the time.

        Not the clients at work: their replies to this process are lost with it, and a resumed run
        asks again.
        """
        state: dict[str, Tensor] = {}
        for (client, name), value in self._claims.first.items():
            state[f"{CLAIMS}{client} {name}"] = torch.tensor(value, dtype=torch.float64)
        if self.clock:
            state["clock"] = torch.tensor(self.clock.now, dtype=torch.float64)
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        for key, value in state.items():
            if key.startswith(CLAIMS):
                client, name = key.removeprefix(CLAIMS).split(" ", 1)
                self._claims.first[int(client), name] = float(value)
        if self.clock and "clock" in state:  # the time between the two processes does not count
            self.clock.now = float(state["clock"])
            self._began = time.monotonic() - self.clock.now

    def _request(self, client: int, task: Task | None = None) -> Request:
        """A request to train, or to evaluate where there is no task."""
        round_num = self._round if task is None else 0
        return Request(client, self.seed, task, round_num=round_num, frozen=self.frozen)

    def _ask_to_train(
        self, nodes: Mapping[int, int], model: Tensor, task: Task, patience: float
    ) -> list[Refusal]:
        """Send the requests of a round; the clients whose request was not accepted."""
        packed = pack(model)
        requests = {client: write_request(self._request(client, task), packed) for client in nodes}
        waiting, not_taken = self._push("train", requests, nodes, patience)
        asked = _Asked(task.round_num, model, time.monotonic())
        self._asked |= dict.fromkeys(waiting.values(), asked)
        self._waiting |= waiting
        return [Refusal(client, NOT_TAKEN) for client in not_taken]

    def _push(
        self,
        kind: str,
        requests: Mapping[int, RecordDict],
        nodes: Mapping[int, int],
        deadline: float,
    ) -> tuple[dict[str, int], list[int]]:
        """See `exchange.push`; what can be done while the nodes work is done then."""
        found = push(self._grid, kind, requests, nodes, deadline)
        if self.idle_work:
            self.idle_work()
        return found

    def _read_update(self, client: int, content: Content, task: Task) -> Updates | Refusal:
        def read(content: RecordDict) -> Updates:
            update = read_update(client, content, task.criteria)
            if self._is_deployment:
                fixed = [part.called for part in task.criteria if is_fixed(part)]
                sent = update.measurements
                claimed = {name: float(sent[name]) for name in fixed if name in sent}
                for name, value in claimed.items():
                    self._claims.compare(client, name, value)
                self._claimed[client] = claimed
            return update

        return read_reply(client, content, read)

    def _read_evaluation(self, client: int, num_candidates: int, content: RecordDict) -> Evaluation:
        """A client's evaluation, on a test set of the same size as its first one."""
        one = read_evaluation(content, num_candidates, self.problem, outputs=self._outputs)
        check_size(float(one.num_samples), self._claims.first.get((client, TEST_SIZE)))
        return one


def _as_chunks(updates: Sequence[Updates]) -> Iterator[Updates]:
    """Updates whose models and measurements have one form as one chunk; the guard refuses wrong forms."""
    chunks: dict[object, list[Updates]] = {}
    for update in updates:
        form = update.models.shape, update.models.dtype, frozenset(update.measurements)
        chunks.setdefault(form, []).append(update)
    yield from map(Updates.joined, chunks.values())

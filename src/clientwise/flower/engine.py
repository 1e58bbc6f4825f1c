"""The server's side: `FlowerEngine` asks clients over a Flower grid, and is patient with them only so long."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from ..core.clock import LATE, Pace
from ..core.problem import Problem
from ..core.round import LARGEST_LOSS
from ..core.types import Evaluation, Refusal, ServerPart, Task, Updates
from ..engine.local import LocalEngine
from ..experiment.settings import FlowerSettings
from .wire import Request, pack, read_evaluation, read_update, read_versions, write_request

CHUNK = 8  # answers fetched at a time: so many models the server holds at most
POLL = (0.05, 1.0)  # seconds between two looks for answers, at first and at most

NO_ANSWER, NOT_TAKEN = "no answer in time", "the SuperLink did not take the message"
NOT_CONNECTED = "not connected"

T = TypeVar("T")
Connected = Callable[[], Mapping[int, int]]  # which client is reached at which node right now


@dataclass(frozen=True)
class _Asked:
    """A client that was asked to train: in which round, from which model [d], and when."""

    round_num: int
    model: Tensor
    at: float

    def now(self, update: Updates, model: Tensor, round_num: int) -> Updates:
        """Its answer by our clock, not by its claim; of an earlier round, what it makes of the present model [d]."""
        age = float(round_num - self.round_num)
        if age and update.models.shape[1] == len(model):  # another size is refused in any case
            update = replace(update, models=model + (update.models.to(model) - self.model))
        seconds = torch.tensor([time.monotonic() - self.at], dtype=torch.float64)
        return replace(update, seconds=seconds, ages=torch.tensor([age], dtype=torch.float64))


class FlowerEngine:
    """Trains and evaluates on Flower's nodes; what the server holds itself is left to the embedded engine."""

    def __init__(
        self,
        local: LocalEngine,
        grid: Grid,
        connected: Connected,
        *,
        seed: int,
        settings: FlowerSettings,
        keepers: Collection[int] = (),
        on_versions: Callable[[int, Mapping[str, str]], None] = lambda client, versions: None,
    ) -> None:
        self.num_clients, self.problem, self.spec = local.num_clients, local.problem, local.spec
        self.initial_model, self.device = local.initial_model, local.device
        self.attributes: Mapping[str, Tensor] = local.attributes  # the server's own: no client is asked for them
        self.idle_work: Callable[[], None] | None = None
        self.clock = local.clock  # which shows real time
        self._began = time.monotonic()
        self._asked: dict[int, _Asked] = {}  # who has not answered yet
        self._waiting: dict[str, int] = {}  # the same clients, by the ids of their messages
        self._local, self._grid, self._connected, self._seed, self._settings = local, grid, connected, seed, settings
        self._on_versions = on_versions  # told what a client runs, with every update
        self._keepers = keepers  # simulated hostile clients that train a model of their own
        self._kept: dict[int, Tensor] = {}  # and that model, since nodes keep nothing
        self._test_sizes = torch.full((local.num_clients,), -1)  # of every client's first evaluation; −1: none yet
        self._outputs = local.problem.values_per_sample(local.data.samples.targets.shape[1:])

    def train(self, client_ids: Sequence[int], model: Tensor, task: Task) -> Iterator[Updates]:
        """See `core.types.Engine`. With fewer answers than `min_replies` nobody's update is handed on.

        The round ends as the method's pace says. What comes later is refused, or counts in a later round.
        """
        pace = self.clock.pace if self.clock else Pace()
        patience = time.monotonic() + self._settings.train_seconds
        needed = min(self._settings.min_replies, len(client_ids) + len(self._waiting))
        nodes = self._wait_for(client_ids, min(needed, len(client_ids)), patience)
        packed = pack(model)
        requests = {
            client: write_request(Request(client, self._seed, task), packed, self._kept.get(client)) for client in nodes
        }
        failures = [Refusal(client, NOT_CONNECTED) for client in client_ids if client not in nodes]
        waiting, not_taken = self._push("train", requests, nodes, patience)
        failures += [Refusal(client, NOT_TAKEN) for client in not_taken]
        self._asked |= dict.fromkeys(waiting.values(), _Asked(task.round_num, model, time.monotonic()))
        self._waiting |= waiting
        deadline = min(patience, time.monotonic() + (pace.deadline or torch.inf))
        held: list[Updates] = []
        arrived = 0
        enough = self.clock.enough(len(client_ids)) if self.clock else len(client_ids)
        awaited = client_ids if client_ids and pace.buffer is None else None
        for answers in self._pull_until(self._waiting, deadline, needed, enough, awaited):
            for client, content in answers:
                asked = self._asked.pop(client)
                answer = _read(client, content, partial(read_update, client))
                if isinstance(answer, Refusal):
                    failures.append(answer)
                    continue
                update, kept = answer
                if isinstance(content, RecordDict):
                    self._on_versions(client, read_versions(content))
                if kept is not None and client in self._keepers:
                    self._kept[client] = kept
                held.append(asked.now(update, model, task.round_num))
                arrived += 1
            if arrived >= needed:
                yield from _stacked(held, model)
                held.clear()
        too_few = f"only {arrived} of the {needed} answers that make a round arrived"
        failures += [Refusal(update.client_ids[0], too_few) for update in held]
        if not pace.keeps_late:
            reason = LATE if arrived >= enough else NO_ANSWER
            failures += [Refusal(client, reason) for client in self._waiting.values()]
            self._waiting, self._asked = {}, {}
        if failures:
            yield Updates.failed(failures, model)
        if self.clock:
            self.clock.now = time.monotonic() - self._began
            self.clock.at_work = frozenset(self._waiting.values())

    def evaluate(self, client_ids: Sequence[int], models: Tensor) -> Evaluation:
        """See `core.types.Engine`. Who does not answer has no say: zero samples, and a place among the missing."""
        deadline = time.monotonic() + self._settings.evaluate_seconds
        nodes = self._wait_for(client_ids, 1, deadline)
        packed = pack(models)
        requests = {client: write_request(Request(client, self._seed), packed) for client in nodes}
        found: dict[int, Evaluation] = {}
        missing = [
            Refusal(client, NOT_CONNECTED) for client in client_ids if client not in {*nodes, *self._settings.away}
        ]
        waiting, not_taken = self._push("evaluate", requests, nodes, deadline)
        missing += [Refusal(client, NOT_TAKEN) for client in not_taken]
        for answers in self._pull_until(waiting, deadline, self._settings.min_replies):
            for client, content in answers:
                one = _read(client, content, partial(self._read_evaluation, client, len(models)))
                if isinstance(one, Refusal):
                    missing.append(one)
                else:
                    found[client] = one
        missing += [Refusal(client, NO_ANSWER) for client in waiting.values()]
        return _merged(client_ids, found, tuple(missing), len(models), self.problem)

    def evaluate_server(self, models: Tensor, part: ServerPart) -> Evaluation | None:
        """See `core.types.Engine`."""
        return self._local.evaluate_server(models, part)

    def train_server(self, model: Tensor, task: Task) -> Tensor:
        """See `core.types.Engine`."""
        return self._local.train_server(model, task)

    def prefetch(self, client_ids: Sequence[int]) -> None:
        """See `core.types.Engine`: the clients hold their data themselves."""

    def state(self) -> dict[str, Tensor]:
        """What the simulated clients keep between rounds, how large everybody's test set is, and what time it is.

        Not who is at work: nobody hears of the answers to a process that is gone, and they will be asked again.
        """
        kept = {str(client): model for client, model in self._kept.items()}
        now = {"clock": torch.tensor(self.clock.now, dtype=torch.float64)} if self.clock else {}
        return kept | {"test_sizes": self._test_sizes.clone()} | now

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        known = state.get("test_sizes", self._test_sizes).cpu()
        self._test_sizes[: len(known)] = known  # who joined since has none yet
        self._kept = {int(client): model for client, model in state.items() if client not in ("test_sizes", "clock")}
        if self.clock and "clock" in state:  # the time in which nothing ran does not count
            self.clock.now = float(state["clock"])
            self._began = time.monotonic() - self.clock.now

    def _read_evaluation(self, client: int, num_candidates: int, content: RecordDict) -> Evaluation:
        """A client's evaluation; its test set stays as large as it was at first, or its say would grow at will."""
        most, outputs = self._settings.max_test_samples, self._outputs
        one = read_evaluation(content, num_candidates, self.problem, most_samples=most, outputs=outputs)
        size, first = int(one.num_samples), int(self._test_sizes[client])
        if first not in (-1, size):
            raise ValueError(f"{size} test samples, {first} in its first answer")
        self._test_sizes[client] = size
        return one

    def _wait_for(self, client_ids: Sequence[int], needed: int, deadline: float) -> dict[int, int]:
        """The nodes of these clients, as soon as enough are connected; what there is, when time is up."""
        while True:
            connected = self._connected()
            wanted = [client for client in client_ids if client not in self._settings.away]
            nodes = {client: connected[client] for client in wanted if client in connected}
            if len(nodes) >= needed or time.monotonic() >= deadline:
                return nodes
            time.sleep(0.5)

    def _push(
        self, kind: str, requests: Mapping[int, RecordDict], nodes: Mapping[int, int], deadline: float
    ) -> tuple[dict[str, int], list[int]]:
        """Send all requests: whom each message waits for, by its id, and those whose message was not taken."""
        ttl = 2 * max(1.0, deadline - time.monotonic())  # what arrives while the server is busy must not expire
        messages = {client: Message(content, nodes[client], kind, ttl=ttl) for client, content in requests.items()}
        taken = set(self._grid.push_messages(list(messages.values()))) if messages else set()  # all have their ids now
        if self.idle_work:
            self.idle_work()
        names = {message.metadata.message_id: client for client, message in messages.items()}
        waiting = {name: client for name, client in names.items() if name in taken}
        return waiting, [client for name, client in names.items() if name not in taken]

    def _pull_until(
        self,
        waiting: dict[str, int],
        deadline: float,
        few: int,
        enough: float = torch.inf,
        awaited: Collection[int] | None = None,
    ) -> Iterator[list[tuple[int, RecordDict | str]]]:
        """(client, answer or why there is none) in chunks as they arrive, until all or `enough` have answered.

        Only of those who are `awaited`, if given: others may answer meanwhile. Once there are a `few` answers, only
        `grace_seconds` are left. Who has not answered in the end is still in `waiting`.
        """
        pause, grace, answered = POLL[0], self._settings.grace_seconds, 0
        while answered < enough and any(awaited is None or client in awaited for client in waiting.values()):
            if grace is not None and answered >= few:
                deadline, grace = min(deadline, time.monotonic() + grace), None
            in_time = time.monotonic() < deadline
            arrived = False
            for names in _slices(list(waiting), CHUNK):
                answers = [(waiting.pop(name), content) for name, content in self._pull(names) if name in waiting]
                if answers:
                    arrived = True
                    counted = [content for client, content in answers if awaited is None or client in awaited]
                    answered += sum(not isinstance(content, str) for content in counted)
                    yield answers
            if not arrived and not in_time:
                return
            pause = POLL[0] if arrived else min(2 * pause, POLL[1])
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))

    def _pull(self, names: Sequence[str]) -> Iterable[tuple[str, RecordDict | str]]:
        """The answers that are there; by the message they answer, since a failed node's may carry another's id."""
        for message in self._grid.pull_messages(names):
            content = _why_failed(message) if message.has_error() else message.content
            yield message.metadata.reply_to_message_id, content


def _why_failed(message: Message) -> str:
    """Flower's error codes in words."""
    known = {
        3: NO_ANSWER,
        4: NO_ANSWER,
        5: "went away",
        7: "refused the app: its hospital did not agree to this version (deploy/agree.sh)",
        8: "its process died",
    }
    code, reason = message.error.code, message.error.reason or "failed"
    return known.get(code, reason)[:300]


def _read(client: int, content: RecordDict | str, read: Callable[[RecordDict], T]) -> T | Refusal:
    """What an answer says, or why it says nothing: nothing a client sends ends the run."""
    if isinstance(content, str):
        return Refusal(client, content)
    try:
        return read(content)
    except ValueError as error:
        reason = f"answer refused: {error}"
    except Exception as error:
        reason = f"answer cannot be read: {type(error).__name__}: {error}"
    return Refusal(client, " ".join(reason.split())[:300])


def _slices(names: list[str], size: int) -> Iterator[list[str]]:
    for first in range(0, len(names), size):
        yield names[first : first + size]


def _stacked(updates: Sequence[Updates], model: Tensor) -> Iterator[Updates]:
    """Updates of one shape and the same measurements as one chunk; odd ones alone, for the guard to see."""
    names = [tuple(sorted(update.measurements)) for update in updates]
    usual = max(names, key=names.count, default=())
    fits = [
        update.models.shape[1] == len(model) and update.models.is_floating_point() and name == usual
        for update, name in zip(updates, names, strict=True)
    ]
    alike = [update for update, fit in zip(updates, fits, strict=True) if fit]
    if alike:
        yield Updates(
            tuple(update.client_ids[0] for update in alike),
            torch.cat([update.models.to(model) for update in alike]),
            {name: torch.cat([update.measurements[name] for update in alike]) for name in usual},
            torch.cat([update.training_loss for update in alike]),
            torch.cat([update.seconds for update in alike]),
            ages=torch.cat([update.known_ages for update in alike]),
        )
    yield from (update for update, fit in zip(updates, fits, strict=True) if not fit)


def _merged(
    client_ids: Sequence[int],
    found: Mapping[int, Evaluation],
    missing: tuple[Refusal, ...],
    num_candidates: int,
    problem: Problem,
) -> Evaluation:
    """One evaluation over all clients, in their order, so that it does not depend on who answered first.

    A loss beyond all bounds is the model's fault where everybody has it, and the client's where others do not.
    """
    usable = {client for client, one in found.items() if bool((one.losses < LARGEST_LOSS).all())}  # NaN is not
    if usable:
        missing += tuple(Refusal(client, "its loss is beyond all bounds") for client in found if client not in usable)
        found = {client: one for client, one in found.items() if client in usable}
    counts = torch.zeros(num_candidates, *problem.counts_shape, dtype=problem.counts_dtype)
    num_samples = torch.zeros(len(client_ids), dtype=torch.int64)
    values = torch.zeros(num_candidates, len(client_ids), dtype=torch.float64)
    losses = torch.zeros_like(values)
    for place, client in enumerate(client_ids):
        if client in found:
            one = found[client]
            num_samples[place], values[:, place], losses[:, place] = (
                one.num_samples[0],
                one.values[:, 0],
                one.losses[:, 0],
            )
            counts += one.counts
    return Evaluation(num_samples, values, losses, counts, missing)

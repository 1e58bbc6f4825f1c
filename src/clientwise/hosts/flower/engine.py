"""The server's side: `FlowerEngine` trains and evaluates on the nodes of a Flower grid.

A client that does not reply in time is refused, or counts in a later round.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from flwr.app import RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from ...core.clock import LATE, Pace
from ...core.criteria import is_fixed
from ...core.types import Evaluation, Reason, Refusal, ServerPart, Task, Updates
from ...engine.wrapping import EmbeddedEngine
from ...errors import ClientwiseError
from ...experiment.config.settings import FlowerSettings
from ...registry import Part
from .exchange import NO_ANSWER, Connected, Content, Exchange, merged, read_reply, stacked
from .wire import Request, pack, read_evaluation, read_update, write_request

log = logging.getLogger("flwr.clientwise")
FIRST_REPEAT = 30.0  # seconds before a round is repeated; twice as long before the next repeat
LONGEST_REPEAT = 600.0
NO_TEST_SET = -1  # the size of a test set that is not known yet

# Why a client has no part in a round.
NOT_TAKEN = Reason("the SuperLink did not accept the message", "unreachable")
NOT_CONNECTED = Reason("not connected", "not connected")
OUT_OF_REACH = ("unreachable", "not connected")  # another attempt may succeed


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
        if age and update.models.shape[1] == len(model):  # another size is refused in any case
            moved = update.models.to(model) - self.model
            update = replace(update, models=model + moved)
        seconds = torch.tensor([time.monotonic() - self.at], dtype=torch.float64)
        return replace(update, seconds=seconds, ages=torch.tensor([age], dtype=torch.float64))


class TooFewRepliesError(ClientwiseError, RuntimeError):
    """A round that could not be repeated often enough to have the replies it needs."""


class FlowerEngine:
    """Trains and evaluates on Flower's nodes; the embedded engine does the server's own work.

    Args:
        local: the embedded engine, for the server's samples and the problem.
        grid: Flower's connection to the nodes.
        connected: returns the node of every connected client.
        seed: the lane's seed, sent with every request.
        settings: the config's `[flower]` table.
        keepers: simulated hostile clients that train a model of their own. Nodes keep nothing
            between messages, so the server keeps that model for them.
        claims: compares what clients say about their data with what they said first; None in a
            simulation.
        awaits_all: wait for every client to connect, and then as long for its reply. Under differential
            privacy, no client may decide whether another one is asked. No round is repeated then.
    """

    def __init__(
        self,
        local: EmbeddedEngine,
        grid: Grid,
        connected: Connected,
        *,
        seed: int,
        settings: FlowerSettings,
        keepers: Collection[int] = (),
        claims: Claims | None = None,
        awaits_all: bool = False,
    ) -> None:
        self.num_clients = local.num_clients
        self.problem = local.problem
        self.spec = local.spec
        self.initial_model = local.initial_model
        self.device = local.device
        # Known to the server, not asked of clients
        self.attributes: Mapping[str, Tensor] = local.attributes
        self.idle_work: Callable[[], None] | None = None
        self.clock = local.clock  # shows real time
        self._local = local
        self._exchange = Exchange(grid, connected, settings)
        self._seed = seed
        self._settings = settings
        self._claims = claims
        self._awaits_all = awaits_all
        # A round that is repeated for one client asks others again
        self._repeats = 0 if awaits_all else settings.repeats
        self._began = time.monotonic()
        self._asked: dict[int, _Asked] = {}  # clients that have not replied yet
        self._waiting: dict[str, int] = {}  # the same clients, by the ids of their messages
        self._keepers = keepers
        self._kept: dict[int, Tensor] = {}  # the keepers' models
        self._round = 0  # the present one; nodes count what a round asks for
        # Of every first evaluation
        self._test_sizes = torch.full((local.num_clients,), NO_TEST_SET)
        self._outputs = local.problem.values_per_sample(local.data.samples.targets.shape[1:])

    def train(self, client_ids: Sequence[int], model: Tensor, task: Task) -> Iterator[Updates]:
        """See `core.engine.Engine`. With fewer replies than `min_replies` every update is refused.

        The round ends as the method's pace says. A later reply is refused, or counts in a later
        round. Where too few replies arrive because clients cannot be reached, these clients are
        asked again.
        """
        self._round = task.round_num
        pace = self.clock.pace if self.clock else Pace()
        possible = len({*client_ids, *self._waiting.values()})
        needed = min(self._settings.min_replies, possible)
        enough = self.clock.enough(len(client_ids)) if self.clock else len(client_ids)
        held: list[Updates] = []
        failures: list[Refusal] = []
        notes: tuple[str, ...] = ()
        arrived = 0
        asking = client_ids
        for attempt in range(self._repeats + 1):
            patience = time.monotonic() + self._settings.train_seconds
            least = min(needed - arrived, len(asking))
            if self._awaits_all:
                least = len(set(asking) - set(self._settings.away))
            nodes = self._exchange.wait_for(asking, least, patience)
            if self._awaits_all:
                patience = time.monotonic() + self._settings.train_seconds
            failures += [Refusal(client, NOT_CONNECTED) for client in asking if client not in nodes]
            failures += self._ask_to_train(nodes, model, task, patience)
            deadline = min(patience, time.monotonic() + (pace.deadline or torch.inf))
            awaited = asking if asking and pace.buffer is None else None
            still = enough - arrived
            for replies in self._exchange.pull_until(
                self._waiting, deadline, needed - arrived, still, awaited
            ):
                for client, content in replies:
                    asked = self._asked.pop(client)
                    update = self._read_update(client, content, task)
                    if isinstance(update, Refusal):
                        failures.append(update)
                    else:
                        held.append(asked.now(update, model, task.round_num))
                        arrived += 1
                if arrived >= needed:
                    yield from stacked(held, model)
                    held.clear()
            if not pace.keeps_late:
                reason = LATE if arrived >= enough else NO_ANSWER
                failures += [Refusal(client, reason) for client in self._waiting.values()]
                self._waiting = {}
                self._asked = {}
            asking = self._ask_again(attempt, failures, arrived, needed)
            if not asking:
                break
            notes += (self._pause(attempt, failures, arrived, needed),)
            failures = [one for one in failures if one.kind not in OUT_OF_REACH]
        too_few = f"only {arrived} of {needed} required replies arrived"
        failures += [Refusal(update.client_ids[0], too_few) for update in held]
        if failures or notes:
            yield Updates.failed(failures, model, notes)
        if self.clock:
            self.clock.now = time.monotonic() - self._began
            self.clock.at_work = frozenset(self._waiting.values())

    def evaluate(self, client_ids: Sequence[int], models: Tensor) -> Evaluation:
        """See `core.engine.Engine`.

        A client that does not reply has zero samples and is listed as missing. Where no client
        replies because none can be reached, they are asked again.
        """
        found: dict[int, Evaluation] = {}
        missing: list[Refusal] = []
        for attempt in range(self._repeats + 1):
            missing = []
            for client, one in self._evaluated(client_ids, models):
                if isinstance(one, Refusal):
                    missing.append(one)
                else:
                    found[client] = one
            if not self._ask_again(attempt, missing, len(found), 1):
                break
            self._pause(attempt, missing, len(found), 1)
        return merged(client_ids, found, tuple(missing), len(models), self.problem)

    def _evaluated(
        self, client_ids: Sequence[int], models: Tensor
    ) -> Iterator[tuple[int, Evaluation | Refusal]]:
        """Ask these clients once; the evaluation of each, or why there is none."""
        deadline = time.monotonic() + self._settings.evaluate_seconds
        nodes = self._exchange.wait_for(client_ids, 1, deadline)
        packed = pack(models)
        requests = {}
        for client in nodes:
            request = self._request(client)
            requests[client] = write_request(request, packed)
        reachable = {*nodes, *self._settings.away}
        for client in client_ids:
            if client not in reachable:
                yield client, Refusal(client, NOT_CONNECTED)
        waiting, not_taken = self._push("evaluate", requests, nodes, deadline)
        for client in not_taken:
            yield client, Refusal(client, NOT_TAKEN)
        for replies in self._exchange.pull_until(waiting, deadline, self._settings.min_replies):
            for client, content in replies:
                read = partial(self._read_evaluation, client, len(models))
                yield client, read_reply(client, content, read)
        for client in waiting.values():
            yield client, Refusal(client, NO_ANSWER)

    def _ask_again(
        self, attempt: int, failures: Sequence[Refusal], arrived: int, needed: int
    ) -> list[int]:
        """The clients to ask again: none if there are enough replies, or cannot be.

        Raises `TooFewRepliesError` after the last repeat if too few clients can be reached. Replies
        that were refused count as reached: no member can stop a run with them.
        """
        lost = [one.client_id for one in failures if one.kind in OUT_OF_REACH]
        reached = arrived + len(failures) - len(lost)
        lost = [client for client in lost if client not in self._settings.away]
        if not arrived < needed <= arrived + len(lost) or not self._repeats:
            return []
        if attempt < self._repeats:
            return lost
        if reached >= needed:
            return []
        raise TooFewRepliesError(
            f"only {arrived} of {needed} required replies arrived ({_reasons(failures)}), also "
            f"after {attempt} repeats (flower.repeats). The finished rounds are kept: find out why "
            "clients cannot be reached, then resume the run"
        )

    def _pause(self, attempt: int, failures: Sequence[Refusal], arrived: int, needed: int) -> str:
        """Wait before a repeat, longer each time; a note for the record."""
        pause = min(LONGEST_REPEAT, FIRST_REPEAT * 2**attempt)
        note = (
            f"only {arrived} of {needed} required replies arrived ({_reasons(failures)}): asked "
            f"again after {pause:g} s, repeat {attempt + 1} of {self._repeats}"
        )
        log.warning("%s", note)
        time.sleep(pause)
        return note

    @property
    def train_sizes(self) -> Tensor | None:
        """See `core.engine.Engine`."""
        return self._local.train_sizes

    def evaluate_server(self, models: Tensor, part: ServerPart) -> Evaluation | None:
        """See `core.engine.Engine`."""
        return self._local.evaluate_server(models, part)

    def train_server(self, models: Tensor, task: Task) -> Tensor:
        """See `core.engine.Engine`."""
        return self._local.train_server(models, task)

    def server_gradients(self, model: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
        """See `core.engine.Engine`."""
        return self._local.server_gradients(model, groups)

    def prefetch(self, client_ids: Sequence[int]) -> None:
        """See `core.engine.Engine`. Nothing to do: the nodes hold the data."""

    def state(self) -> dict[str, Tensor]:
        """The keepers' models, the sizes of the test sets, the clients' claims, and the time.

        Not the clients at work: their replies to this process are lost with it, and a resumed run
        asks again.
        """
        state = {str(client): model for client, model in self._kept.items()}
        state["test_sizes"] = self._test_sizes.clone()
        if self._claims:
            state |= self._claims.state()
        if self.clock:
            state["clock"] = torch.tensor(self.clock.now, dtype=torch.float64)
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        known = state.get("test_sizes", self._test_sizes).cpu()
        self._test_sizes[: len(known)] = known  # clients that joined since have none yet
        if self._claims:
            self._claims.load_state(state)
        self._kept = {int(key): model for key, model in state.items() if key.isdigit()}
        if self.clock and "clock" in state:  # the time between the two processes does not count
            self.clock.now = float(state["clock"])
            self._began = time.monotonic() - self.clock.now

    def _request(self, client: int, task: Task | None = None) -> Request:
        """A request to train, or to evaluate where there is no task."""
        round_num = self._round if task is None else 0
        return Request(client, self._seed, task, round_num=round_num, frozen=self._local.frozen)

    def _ask_to_train(
        self, nodes: Mapping[int, int], model: Tensor, task: Task, patience: float
    ) -> list[Refusal]:
        """Send the requests of a round; the clients whose request was not accepted."""
        packed = pack(model)
        requests = {}
        for client in nodes:
            request = self._request(client, task)
            requests[client] = write_request(request, packed, self._kept.get(client))
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
        """See `Exchange.push`; what can be done while the nodes work is done then."""
        found = self._exchange.push(kind, requests, nodes, deadline)
        if self.idle_work:
            self.idle_work()
        return found

    def _read_update(self, client: int, content: Content, task: Task) -> Updates | Refusal:
        def read(content: RecordDict) -> tuple[Updates, Tensor | None]:
            update, kept = read_update(client, content, task.criteria)
            if self._claims:
                self._claims.check(client, task.criteria, update.measurements)
            return update, kept

        found = read_reply(client, content, read)
        if isinstance(found, Refusal):
            return found
        update, kept = found
        if kept is not None and client in self._keepers:
            self._kept[client] = kept
        return update

    def _read_evaluation(self, client: int, num_candidates: int, content: RecordDict) -> Evaluation:
        """A client's evaluation.

        Its test set keeps the size of the first one, which bounds its influence.
        """
        one = read_evaluation(
            content,
            num_candidates,
            self.problem,
            most_samples=self._settings.max_test_samples,
            outputs=self._outputs,
        )
        size = int(one.num_samples)
        first = int(self._test_sizes[client])
        if first not in (NO_TEST_SET, size):
            raise ValueError(f"{size} test samples, {first} in its first answer")
        self._test_sizes[client] = size
        return one


def _reasons(failures: Sequence[Refusal]) -> str:
    return ", ".join(sorted({one.reason for one in failures if one.kind in OUT_OF_REACH}))


STATE = "claims."  # prefix in a checkpoint


class Claims:
    """The values that clients stated first, and the range around each.

    A claim x is accepted if v/f ≤ x ≤ f·v, where v is the client's first claim.

    Args:
        max_change: f, at least 1.
    """

    def __init__(self, max_change: float) -> None:
        self._max_change = max_change
        self._first: dict[str, float] = {}  # by client and criterion

    def check(self, client: int, asked: Sequence[Part], measured: Mapping[str, Tensor]) -> None:
        """Compare an update's criteria with what the client said first; ValueError outside the range."""
        for part in asked:
            if is_fixed(part) and part.called in measured:
                self._compare(client, part.called, float(measured[part.called]))

    def _compare(self, client: int, name: str, value: float) -> None:
        if not 0 <= value < float("inf"):
            return  # the guard refuses it
        first = self._first.setdefault(f"{client} {name}", value)
        low = first / self._max_change
        high = first * self._max_change
        if not low <= value <= high:
            raise ValueError(
                f"{name} = {value:.12g}, at first {first:.12g}: {low:.6g} to {high:.6g} is allowed "
                f"(flower.max_change = {self._max_change:g})"
            )

    def state(self) -> dict[str, Tensor]:
        """The first claims, for a checkpoint."""
        return {
            STATE + key: torch.tensor(value, dtype=torch.float64)
            for key, value in self._first.items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        for key, value in state.items():
            if key.startswith(STATE):
                self._first[key.removeprefix(STATE)] = float(value)

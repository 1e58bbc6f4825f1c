"""`Aggregator`: a method for the rounds of any framework. Arrays by client in, the aggregate and the record out."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from ..core.guard import inspect_models
from ..core.method import Method, Plan
from ..core.reasons import Reason
from ..core.round import first_state, run_round
from ..core.types import Refusal, RoundRecord, ServerState, Updates
from ..core.weights.scores import Score
from ..errors import plain
from .engine import Arrays, HostEngine, Layout, Pair, server_engine
from .methods import build, settings_of
from .record import HostRecord, refuse_run
from .values import (
    WEIGHT,
    Client,
    ClientValues,
    Measure,
    ServerError,
    Weights,
    reason_of,
    require,
)

MAX_CLIENTS = 10_000  # that may take part, where no names are given
MAX_NAME = 100  # characters of a client's name
NOT_KNOWN = torch.tensor([math.nan], dtype=torch.float64)  # training loss and seconds
SIZE = "dataset_size"  # the value that the record shows as the size of a client's data


class AggregatorOptions(TypedDict, total=False):
    """Arguments of `Aggregator` that hosts pass on as they are."""

    num_classes: int | None
    learning_rate: float
    seed: int
    folder: str | Path | None
    weights: Weights | None


class Aggregator:
    """Weigh and aggregate the updates of any framework's clients by a clientwise method.

    A round is a call of `aggregate`; or of `begin`, of `accept` for every update, and of `finish`.
    Nothing that a client sends raises an error: an update that cannot be used is refused with the
    reason.

    Args:
        method: a name of `clientwise list methods`, or a table as in TOML with `name` and `like`.
        model: the network whose state the arrays are. Needed with `weigh` or `report`, and where a
            model has buffers (batch norm).
        weigh: (inputs, targets) by which the server weighs updates and fine-tunes.
        report: (inputs, targets) on which the server reports; `weigh` if None.
        criteria: instead of the method's own, the most important first: names of values that come
            with the updates, or built-in criteria.
        score: how `criteria` become one number; prioritized in their order if None.
        normalise: how each of `criteria` is scaled over the clients; the score's default if None.
        weights: instead of criteria: a weight by client, or a function of a client and of the values
            that came with its update. They are divided by the sum of those that are accepted. A
            client that a mapping does not name is refused.
        measured_here: functions of a client's arrays, by criterion, for what the server measures. A
            client's own value for such a criterion is ignored.
        clients: names of all clients. Others are refused. Needed for bounds that name clients.
        num_classes: number of classes over all clients; by default the largest label of the
            server's samples plus one.
        learning_rate: of fine-tuning.
        seed: of the order of samples in fine-tuning.
        folder: a new run folder for the record, which `clientwise show` and `report` read.
        rounds: how many rounds are planned, for the record.

    Attributes:
        round_num: the number of rounds so far.

    Example:
        >>> import numpy
        >>> aggregator = Aggregator("FedAvg")
        >>> sent = {"w": numpy.zeros(2)}
        >>> updates = {"north": {"w": numpy.ones(2)}, "south": {"w": numpy.array([5.0, numpy.nan])}}
        >>> done = aggregator.aggregate(sent, updates, {name: {"dataset_size": 40} for name in updates})
        >>> done.model["w"].tolist(), done.weights, done.refusals
        ([1.0, 1.0], {'north': 1.0}, {'south': 'model has NaN or Inf'})
    """

    def __init__(
        self,
        method: str | Mapping[str, Any] = "Recommended",
        *,
        model: nn.Module | None = None,
        weigh: Pair | None = None,
        report: Pair | None = None,
        criteria: Sequence[str] | None = None,
        score: Score | None = None,
        normalise: str | None = None,
        weights: Weights | None = None,
        measured_here: Mapping[str, Measure] | None = None,
        clients: Sequence[str] | None = None,
        num_classes: int | None = None,
        learning_rate: float = 0.01,
        seed: int = 1,
        folder: str | Path | None = None,
        rounds: int | None = None,
    ) -> None:
        self.round_num = 0
        functions = dict(measured_here or {})
        if weights is not None:
            if criteria is not None or score is not None or normalise is not None:
                raise ValueError("weights stand instead of criteria, score and normalise")
            criteria = [WEIGHT]
        self._settings = settings_of(method, criteria, score, normalise, functions)
        self._server, self._spec = server_engine(model, weigh, report, num_classes, seed)
        self._method = build(self._settings, learning_rate, weigh is not None)
        num_clients = MAX_CLIENTS if clients is None else len(clients)
        self._engine = HostEngine(num_clients, self._server, num_classes)
        self._values = ClientValues(self._method.criteria, functions, self._engine.problem, weights)
        # May be an array, which is neither true nor false
        named = () if clients is None else clients
        self._numbers: dict[Client, int] = {name: row for row, name in enumerate(named)}
        self._takes_new_clients = clients is None
        self._seed = seed
        self._folder = None if folder is None else Path(folder)
        if self._folder is not None:
            refuse_run(self._folder)  # before clients train for a round that cannot be recorded
        self._is_closed = False
        self._planned = rounds
        self._reported_on = "no samples: the server has none"
        if report is not None:
            self._reported_on = "held-out samples"
        elif weigh is not None:
            self._reported_on = "the server's samples, which weights are based on, too"
        self._layout: Layout | None = None
        self._state: ServerState
        self._record: HostRecord | None = None
        self._replies = _Replies()

    # Public: a round -----------------------------------------------------------------------------

    def aggregate(
        self,
        model: Arrays,
        updates: Mapping[Any, Arrays],
        values: Mapping[Any, Mapping[str, Any]] | None = None,
    ) -> Aggregate:
        """One round.

        Args:
            model: the global model that the clients were sent, as NumPy arrays or tensors by name.
            updates: the model of every client after its training, by client.
            values: what came with each update, by client: criteria such as `dataset_size`.
        """
        self.begin(model)
        for client, arrays in updates.items():
            self.accept(client, arrays, (values or {}).get(client, {}))
        return self.finish()

    def begin(self, model: Arrays) -> None:
        """Begin a round with the global model that clients are sent; an unfinished one is dropped."""
        if self._is_closed:
            raise RuntimeError("the aggregator is closed: make another one, with another folder")
        self._replies = _Replies()
        if self._layout is None:
            self._layout = Layout(model, self._spec)
            self._engine.begin(self._layout)
            self._state = first_state(self._engine.initial_model, self._method, self._engine)
        else:
            self._layout.renew(model)

    def accept(
        self, client: Client, arrays: Arrays, values: Mapping[str, Any]
    ) -> dict[str, Tensor] | None:
        """Take a client's update; see `aggregate`.

        Returns:
            The arrays with the names, the order and the types of the global model; None where the
            update is refused at once.
        """
        layout = self._begun()
        try:
            self._refuse_second(client)
            fitted = layout.fit(arrays)
            vector = layout.vector(fitted)
            require(inspect_models(vector[None]))  # before it takes memory, or a number
            measured = self._values.of(client, layout, fitted, values)
            number = self._number(client)
        except ServerError as error:
            raise error.reason from error
        except Exception as error:
            self.refuse(client, error)
            return None
        columns = {name: torch.tensor([one], dtype=torch.float64) for name, one in measured.items()}
        update = Updates((number,), vector[None], columns, NOT_KNOWN, NOT_KNOWN)
        self._replies.updates[client] = update
        return fitted

    def refuse(self, client: Client, reason: Exception | str) -> None:
        """Record that there is no usable update of a client; one that was accepted stays."""
        error = ValueError(reason) if isinstance(reason, str) else reason
        self._replies.refusals.setdefault(client, reason_of(error))

    def finish(self) -> Aggregate:
        """End the round: guard, weigh and aggregate what was accepted, and write the record."""
        layout = self._begun()
        began = time.perf_counter()
        replies = self._replies
        self._replies = _Replies()
        failures, without_row = self._failures(replies)
        self._engine.updates = Updates.failed(failures, self._engine.initial_model)
        if replies.updates:
            joined = Updates.joined([*replies.updates.values()])
            self._engine.updates = replace(joined, failures=tuple(failures))
        asked_now = {*replies.updates, *replies.refusals} & self._numbers.keys()
        client_of = {self._numbers[client]: client for client in asked_now}
        asked = tuple(sorted(client_of))
        plan = Plan(self._seed, len(asked), evaluate_clients_every=None, asks=asked)
        state = replace(self._state, model=layout.vector())
        self._state, record = run_round(state, self._named_method, plan, self._engine)
        self.round_num = record.round_num
        refusals = {client: str(reason) for client, reason in replies.refusals.items()}
        done = aggregate_of(record, layout.named(self._state.model), client_of, refusals)
        record = replace(record, notes=(*map(plain, without_row), *record.notes))
        self._values.remember(done.criteria)
        self._write(record, time.perf_counter() - began)
        return done

    def close(self) -> None:
        """End the run and close its folder."""
        self._is_closed = True
        if self._record is not None:
            self._record.close()
            self._record = None

    def __enter__(self) -> Aggregator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def criteria(self) -> tuple[str, ...]:
        """The names of the criteria."""
        return self._method.names

    @property
    def asks_for(self) -> tuple[str, ...]:
        """The values that must come with every update."""
        return self._values.asked

    # Updates -------------------------------------------------------------------------------------

    def _begun(self) -> Layout:
        """The layout of the global model; RuntimeError before the first round."""
        if self._layout is None:
            raise RuntimeError("no round has begun: call `begin` first")
        return self._layout

    def _refuse_second(self, client: Client) -> None:
        if client in self._replies.updates or client in self._replies.refusals:
            raise ValueError("second update of the same client")

    def _number(self, client: Client) -> int:
        """The number of a client, which a new one gets now; ValueError where it may not take part."""
        if client in self._numbers:
            return self._numbers[client]
        if not self._takes_new_clients:
            raise ValueError("unknown client")
        if len(self._numbers) >= self._engine.num_clients:
            raise ValueError(f"more than {self._engine.num_clients} clients have taken part")
        return self._numbers.setdefault(client, len(self._numbers))

    def _failures(self, replies: _Replies) -> tuple[list[Refusal], list[str]]:
        """The refusals by the clients' numbers, which refused clients get, too, so that the record has them.

        And notes on what it has no row for: clients that may not take part, and second updates.
        """
        failures = []
        notes = []
        for client, reason in replies.refusals.items():
            with contextlib.suppress(ValueError):
                self._number(client)
            if client in replies.updates or client not in self._numbers:
                notes.append(f"{_shown(client)} is refused: {reason}")
            else:
                failures.append(Refusal(self._numbers[client], reason))
        return failures, notes

    @property
    def _named_method(self) -> Method:
        """The method with the clients' names, for messages."""
        return self._method.for_clients([_shown(client) for client in self._numbers])

    # Results -------------------------------------------------------------------------------------

    def _write(self, record: RoundRecord, seconds: float) -> None:
        if self._folder is None:
            return
        if self._record is None:
            self._record = HostRecord(
                self._folder,
                self._settings,
                self._seed,
                self._engine.problem,
                self._reported_on,
                num_values=self._engine.spec.size,
                rounds=self._planned,
            )
        names = [_shown(client) for client in self._numbers]
        sizes = [int(self._values.first_claim(one, SIZE) or 0) for one in self._numbers]
        self._record.write(record, names, sizes, seconds)


class _Replies:
    """What arrived in a round so far."""

    def __init__(self) -> None:
        self.updates: dict[Client, Updates] = {}
        self.refusals: dict[Client, Reason | str] = {}


def _shown(client: Client) -> str:
    """A client's name for the record. Some hosts have numbers for their nodes instead."""
    if isinstance(client, int):
        return f"node {client}"
    return plain(client)[:MAX_NAME]


@dataclass(frozen=True)
class ClientWeight:
    """How a client's weight came about: score -> prior -> evidence -> bounds -> rule."""

    weight: float  # all weights of a round sum to 1
    score: float
    prior: float  # by the score alone
    z: float | None = None  # evidence against the client in standard errors; None: unknown
    posterior: float | None = None  # after the evidence
    influence: float | None = None  # share of the aggregate after the rule; None: its weight


@dataclass(frozen=True)
class Aggregate:
    """The model after a round, and how every client counted."""

    model: Mapping[str, Any]  # in the form of the global model
    is_new: bool  # False: the model stays as it was, and a remark says why
    weights: Mapping[Any, float]  # of the accepted clients
    criteria: Mapping[Any, Mapping[str, float]]  # of the same clients
    steps: Mapping[Any, ClientWeight]  # that led to their weights
    refusals: Mapping[Any, str]  # of the others, and of second updates, with the reason
    remarks: tuple[str, ...]  # what else the record says, such as criteria without effect


def aggregate_of(
    record: RoundRecord,
    model: Mapping[str, Any],
    client_of: Mapping[int, Any],
    refusals: Mapping[Any, str],
) -> Aggregate:
    """The result of a round.

    Args:
        record: what happened.
        model: the model after the round.
        client_of: the clients by the numbers that the record has.
        refusals: of updates that the record does not have.
    """
    accepted = [client_of[number] for number in record.client_ids]
    recorded = {client_of[one.client_id]: one.reason for one in record.refusals}
    criteria = {}
    for client, row in zip(accepted, record.raw.tolist(), strict=True):
        criteria[client] = dict(zip(record.criteria, row, strict=True))
    return Aggregate(
        model=model,
        is_new=record.kept is None,
        weights=dict(zip(accepted, record.weights.tolist(), strict=True)),
        criteria=criteria,
        steps=dict(zip(accepted, _steps(record), strict=True)),
        refusals={**refusals, **recorded},
        remarks=record.notes,
    )


def _steps(record: RoundRecord) -> list[ClientWeight]:
    columns = (
        record.weights,
        record.scores,
        record.prior,
        record.evidence.z,
        record.evidence.weights if record.posterior else None,
        record.influence,
    )
    count = len(record.client_ids)
    rows = zip(*(_known(column, count) for column in columns), strict=True)
    return [ClientWeight(*row) for row in rows]


def _known(column: Tensor | None, count: int) -> list[Any]:
    """The values of a column; None where there is none, or it is not known."""
    values = [math.nan] * count if column is None else column.tolist()
    return [None if math.isnan(value) else value for value in values]

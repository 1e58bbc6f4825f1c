"""`Aggregator`: a method for the rounds of any framework. Arrays by client in, the aggregate and the record out."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from ..core.criteria import CRITERIA, Criterion, is_fixed
from ..core.guard import inspect_models, inspect_values
from ..core.method import Method, Plan
from ..core.reasons import Reason
from ..core.round import first_state, run_round
from ..core.types import (
    Refusal,
    RoundRecord,
    ServerState,
    Updates,
)
from ..core.weights.scores import Score
from ..errors import plain
from ..models.flat import FlatModel
from .arrays import Arrays, Layout
from .engine import (
    HostEngine,
    Pair,
    ServerSamples,
    problem_of,
)
from .host_run import HostRecord, refuse_run
from .methods import (
    build,
    recorded_table,
    settings_of,
    with_criteria,
)

MAX_REASON = 300  # characters
MAX_NAME = 100  # characters of a client's name
SIZE = "dataset_size"  # the value that the record shows as the size of a client's data
Client = str | int
Measure = Callable[[dict[str, Any]], float]


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
    remarks: tuple[str, ...]  # what else the record says: ignored claims, criteria without effect


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
        measured_here: functions of a client's arrays, by criterion, for what the server measures. A
            client's own value for such a criterion is ignored.
        clients: names of all clients. Others are refused. Needed for bounds that name clients.
        num_classes: number of classes over all clients; by default the largest label of the
            server's samples plus one.
        learning_rate: of fine-tuning.
        seed: of the order of samples in fine-tuning.
        max_clients: clients that may take part, where `clients` does not name them.
        max_change: factor by which a client's claim about its data, such as `dataset_size`, may
            differ from its first claim.
        folder: a new run folder for the record, which `clientwise show`, `report` and `serve` read.
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
        measured_here: Mapping[str, Measure] | None = None,
        clients: Sequence[str] | None = None,
        num_classes: int | None = None,
        learning_rate: float = 0.01,
        seed: int = 1,
        max_clients: int = 10_000,
        max_change: float = 1.5,
        folder: str | Path | None = None,
        rounds: int | None = None,
    ) -> None:
        self.round_num = 0
        self._measured_here = dict(measured_here or {})
        settings = settings_of(method)
        self._table = recorded_table(settings, criteria, score, normalise)
        self._server, self._spec = _server_set(model, weigh, report, num_classes, seed)
        self._num_classes = num_classes
        self._method = build(settings, learning_rate, weigh is not None)
        if criteria is not None:
            self._method = with_criteria(
                self._method, criteria, score, normalise, self._measured_here, weigh is not None
            )
        for name in self._measured_here.keys() - {one.name for one in self._claimed}:
            raise ValueError(f"measured_here: {name} is none of the criteria that clients claim")
        self._num_clients = max_clients if clients is None else len(clients)
        self._numbers: dict[Client, int] = {}
        if clients is not None:
            self._numbers = {name: number for number, name in enumerate(clients)}
        self._takes_new_clients = clients is None
        self._method = _with_named_bounds(self._method, clients)
        self._max_change = max_change
        self._seed = seed
        self._folder = None if folder is None else Path(folder)
        if self._folder is not None:
            refuse_run(self._folder)  # before clients train for a round that cannot be recorded
        self._is_closed = False
        self._planned = rounds
        self._first_claims: dict[tuple[Client, str], float] = {}
        self._has_report_part = report is not None
        self._layout: Layout | None = None
        self._engine: HostEngine
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
            self._engine = HostEngine(
                self._layout.vector(),
                self._layout.spec,
                self._num_clients,
                self._server,
                self._num_classes,
            )
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
            _require(inspect_models(vector[None]))  # before it takes memory, or a number
            measured = self._values_of(client, fitted, values)
            self._number(client)
        except _ServerError as error:
            raise error.reason from error
        except Exception as error:
            reason = error.args[0] if isinstance(error, _RefusedError) else str(error)
            self.refuse(client, reason or type(error).__name__)
            return None
        self._replies.models[client] = vector
        self._replies.values[client] = measured
        return fitted

    def refuse(self, client: Client, reason: str) -> None:
        """Record that there is no usable update of a client; one that was accepted stays."""
        if not isinstance(reason, Reason):
            reason = plain(reason)[:MAX_REASON]
        self._replies.refusals.setdefault(client, reason)

    def finish(self) -> Aggregate:
        """End the round: guard, weigh and aggregate what was accepted, and write the record."""
        layout = self._begun()
        began = time.perf_counter()
        replies = self._replies
        self._replies = _Replies()
        without_row = self._number_refused(replies)
        self._engine.updates = self._updates(replies)
        asked = tuple(sorted(self._clients_of(replies)))
        plan = Plan(self._seed, len(asked), evaluate_clients_every=None, asks=asked)
        state = replace(self._state, model=layout.vector())
        self._state, record = run_round(state, self._method, plan, self._engine)
        self.round_num = record.round_num
        ignored = map(plain, self._ignored_claims(record, replies))
        record = replace(record, notes=(*ignored, *record.notes))
        done = self._result(record, replies)
        record = replace(record, notes=(*map(plain, without_row), *record.notes))
        self._remember_claims(done)
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
        return tuple(one.name for one in self._claimed if one.name not in self._measured_here)

    # Updates -------------------------------------------------------------------------------------

    def _begun(self) -> Layout:
        """The layout of the global model; RuntimeError before the first round."""
        if self._layout is None:
            raise RuntimeError("no round has begun: call `begin` first")
        return self._layout

    @property
    def _claimed(self) -> list[Criterion]:
        return [one for one in self._method.criteria if one.measured_by == "client"]

    def _refuse_second(self, client: Client) -> None:
        if client in self._replies.models or client in self._replies.refusals:
            raise ValueError("second update of the same client")

    def _number(self, client: Client) -> None:
        """Give a new client a number; ValueError where it may not take part."""
        if client in self._numbers:
            return
        if not self._takes_new_clients:
            raise ValueError("unknown client")
        if len(self._numbers) >= self._num_clients:
            raise ValueError(f"more than {self._num_clients} clients have taken part")
        self._numbers[client] = len(self._numbers)

    def _number_refused(self, replies: _Replies) -> list[str]:
        """Number refused clients, too, so that the record has them.

        Returns notes on what it has no row for: clients that may not take part, and second updates.
        """
        notes = []
        for client, reason in replies.refusals.items():
            with contextlib.suppress(ValueError):
                self._number(client)
            if client in replies.models or client not in self._numbers:
                notes.append(f"{_shown(client)} is refused: {reason}")
        return notes

    def _clients_of(self, replies: _Replies) -> dict[int, Client]:
        """The clients of a round that have a number, by number."""
        clients = {*replies.models, *replies.refusals}
        return {self._numbers[client]: client for client in clients if client in self._numbers}

    def _values_of(
        self, client: Client, tensors: Mapping[str, Tensor], values: Mapping[str, Any]
    ) -> dict[str, float]:
        """The client's criteria: as it claims, or measured here. ValueError where one is missing."""
        if not isinstance(values, Mapping):
            raise ValueError("does not hold values by name")
        found = {}
        for criterion in self._claimed:
            name = criterion.name
            if name not in self._measured_here:
                found[name] = _number_in(values, name)
                self._compare(client, criterion, found[name])
        for name in self._measured_here:
            found[name] = self._measure(name, tensors)
        ignored = values.keys() & set(self._method.names) - set(self.asks_for)
        self._replies.ignored[client] = {name: str(values[name])[:40] for name in ignored}
        return found

    def _compare(self, client: Client, criterion: Criterion, claimed: float) -> None:
        """ValueError where a fact of the client's data differs much from its first claim."""
        first = self._first_claims.get((client, criterion.name))
        if first is None:
            return
        low = first / self._max_change
        high = first * self._max_change
        if not low <= claimed <= high:
            raise ValueError(
                f"{criterion.name} = {claimed:.12g}, at first {first:.12g}: {low:.6g} to {high:.6g} is "
                f"allowed (max_change = {self._max_change:g})"
            )

    def _measure(self, name: str, tensors: Mapping[str, Tensor]) -> float:
        """The server's own measurement.

        If it fails for the global model too, the server is at fault: the round ends with its error.
        """
        layout = self._begun()
        try:
            return self._measured(name, layout.native(tensors))
        except Exception as error:
            try:
                self._measured(name, layout.named(layout.vector()))
            except Exception as own:
                raise _ServerError(own) from own
            raise ValueError(f"{name} of its model cannot be measured: {error}") from error

    def _measured(self, name: str, arrays: dict[str, Any]) -> float:
        value = float(self._measured_here[name](arrays))
        (criterion,) = (one for one in self._method.criteria if one.name == name)
        high = criterion.high(problem_of(self._server, self._num_classes))
        _require(inspect_values(name, torch.tensor([value], dtype=torch.float64), high))
        return value

    def _updates(self, replies: _Replies) -> Updates:
        """The replies as the core reads them, by the clients' numbers."""
        failures = []
        for client, reason in replies.refusals.items():
            if client in self._numbers and client not in replies.models:
                failures.append(Refusal(self._numbers[client], reason))
        if not replies.models:
            return Updates.failed(failures, self._engine.initial_model)
        unknown = torch.full((len(replies.models),), math.nan, dtype=torch.float64)
        names = [one.name for one in self._claimed]
        columns = {name: [one[name] for one in replies.values.values()] for name in names}
        return Updates(
            tuple(self._numbers[client] for client in replies.models),
            torch.stack(list(replies.models.values())),
            {name: torch.tensor(column, dtype=torch.float64) for name, column in columns.items()},
            training_loss=unknown,
            seconds=unknown,
            failures=tuple(failures),
        )

    # Results -------------------------------------------------------------------------------------

    def _result(self, record: RoundRecord, replies: _Replies) -> Aggregate:
        client_of = self._clients_of(replies)
        accepted = [client_of[number] for number in record.client_ids]
        refusals = dict(replies.refusals)
        refusals |= {client_of[one.client_id]: one.reason for one in record.refusals}
        criteria = {}
        for client, row in zip(accepted, record.raw.tolist(), strict=True):
            criteria[client] = dict(zip(record.criteria, row, strict=True))
        return Aggregate(
            model=self._begun().named(self._state.model),
            is_new=record.kept is None,
            weights=dict(zip(accepted, record.weights.tolist(), strict=True)),
            criteria=criteria,
            steps=dict(zip(accepted, _steps(record), strict=True)),
            refusals=refusals,
            remarks=record.notes,
        )

    def _ignored_claims(self, record: RoundRecord, replies: _Replies) -> list[str]:
        """A remark for every claim about a criterion that the server measures."""
        row_of = {number: row for row, number in enumerate(record.client_ids)}
        remarks = []
        for client, claims in replies.ignored.items():
            row = row_of.get(self._numbers.get(client, -1))
            for column, name in enumerate(record.criteria):
                if row is not None and name in claims:
                    measured = float(record.raw[row, column])
                    claim = f"{_shown(client)} claims {name} = {claims[name]}"
                    remarks.append(f"{claim}, which is measured here: {measured:g}")
        return remarks

    def _remember_claims(self, done: Aggregate) -> None:
        """Keep the first claim of every client about its data."""
        for criterion in self._claimed:
            if criterion.part.name not in CRITERIA or not is_fixed(criterion.part):
                continue
            for client, values in done.criteria.items():
                key = (client, criterion.name)
                if criterion.name not in self._measured_here:
                    self._first_claims.setdefault(key, values[criterion.name])

    def _write(self, record: RoundRecord, seconds: float) -> None:
        if self._folder is None:
            return
        if self._record is None:
            self._record = self._new_record(self._folder)
        names = [_shown(client) for client in self._numbers]
        sizes = [int(self._first_claims.get((one, SIZE), 0)) for one in self._numbers]
        self._record.write(record, names, sizes, seconds)

    def _new_record(self, folder: Path) -> HostRecord:
        if self._has_report_part:
            reported_on = "held-out samples"
        elif self._server is not None:
            reported_on = "the server's samples, which weights are based on, too"
        else:
            reported_on = "no samples: the server has none"
        config = {
            "name": folder.resolve().name,
            "seeds": [self._seed],
            "methods": [self._table],
        }
        return HostRecord(
            folder,
            config,
            self._engine.problem,
            reported_on,
            num_values=self._engine.spec.size,
            rounds=self._planned,
        )


class _Replies:
    """What arrived in a round so far."""

    def __init__(self) -> None:
        self.models: dict[Client, Tensor] = {}  # each [d]
        self.values: dict[Client, dict[str, float]] = {}
        self.refusals: dict[Client, str] = {}
        # What clients claim about criteria that the server measures
        self.ignored: dict[Client, dict[str, str]] = {}


class _RefusedError(ValueError):
    """An update that the guard refuses, with its reason."""


class _ServerError(Exception):
    """A measurement of the server that fails for its own model, too."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


def _server_set(
    model: nn.Module | None,
    weigh: Pair | None,
    report: Pair | None,
    num_classes: int | None,
    seed: int,
) -> tuple[ServerSamples | None, Any]:
    if model is None:
        if weigh is not None or report is not None:
            raise ValueError(
                "samples of the server need `model`, the network they are evaluated with"
            )
        return None, None
    if weigh is None and report is None:
        return None, FlatModel(deepcopy(model), torch.device("cpu")).spec
    server = ServerSamples(model, weigh, report, num_classes, seed)
    return server, server.spec


def _with_named_bounds(method: Method, clients: Sequence[str] | None) -> Method:
    """The method with numbers where its bounds name clients."""
    if method.bounds is None or method.bounds.is_plain:
        return method
    if clients is None:
        raise ValueError(
            f"{method.name}: bounds on single clients need the names of all: `clients`"
        )
    return method.for_clients(clients, len(clients))


def _require(reasons: Sequence[str | None]) -> None:
    """An error with the guard's reason, where it has one."""
    for reason in reasons:
        if reason is not None:
            raise _RefusedError(reason)


def _number_in(values: Mapping[str, Any], name: str) -> float:
    value = values.get(name)
    if value is None:
        raise ValueError(f"no metric {name}")
    if not isinstance(value, Real):
        raise ValueError(f"{name} is not one number")
    return float(value)


def _steps(record: RoundRecord) -> list[ClientWeight]:
    rows = []
    for row in range(len(record.client_ids)):
        rows.append(
            ClientWeight(
                weight=float(record.weights[row]),
                score=float(record.scores[row]),
                prior=float(record.prior[row]),
                z=_at(record.z, row),
                posterior=_at(record.posterior, row),
                influence=_at(record.influence, row),
            )
        )
    return rows


def _at(column: Tensor | None, row: int) -> float | None:
    """A value of a column; None where there is none, or it is not known."""
    if column is None or math.isnan(float(column[row])):
        return None
    return float(column[row])


def _shown(client: Client) -> str:
    """A client's name for the record. Some hosts have numbers for their nodes instead."""
    if isinstance(client, int):
        return f"node {client}"
    return plain(client)[:MAX_NAME]

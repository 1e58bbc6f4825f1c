"""The rows that are read from a run's database. Every value is checked against these types."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy
from annotated_types import Len, MinLen
from numpy.typing import NDArray
from pydantic import Json

from ...core.reasons import Cause, Kept
from ...data.encoding import Encoding

if TYPE_CHECKING:
    from torch import Tensor

Names = tuple[str, ...]
DECILES = tuple(range(10, 100, 10))
# Shares of the clients in percent: what each share reaches is kept (P1's tables; 75: P2's Table 1).
SHARES = (*DECILES, 75)
Reached = Annotated[tuple[float, ...], Len(len(SHARES), len(SHARES))]
PerClass = Annotated[tuple[float, ...], MinLen(1)]


class Change(NamedTuple):
    """A change of data, code or versions that was accepted when a run was resumed."""

    date: str
    rounds: int  # done by then, in all lanes
    what: list[str]


class MachineRow(NamedTuple):
    """A machine that computed rounds of a run, from a time on."""

    date: str  # "" where it is not known
    rounds: int  # done by then, in all lanes
    facts: dict[str, str]  # by name


def changed_facts(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The facts that differ, of those that both have.

    >>> changed_facts({"threads": "2", "CPU": "unknown"}, {"threads": "4", "GPU": "none"})
    ['threads 4, before 2']
    """
    return [
        f"{name} {value}, before {before[name]}"
        for name, value in now.items()
        if before.get(name, value) != value
    ]


class StepsRow(NamedTuple):
    """Training steps of a method in a round."""

    method: str
    least: int | None  # of a client; None where none trains, or its samples are elsewhere
    median: float | None
    most: int | None
    server: int  # on the server's own samples


class LaneRow(NamedTuple):
    """One method with one seed."""

    lane: int
    method: str
    seed: int


@dataclass(frozen=True)
class ModelFacts:
    """A network, and the tensors that its models (vectors [d]) consist of, in their order."""

    name: str
    input_shape: tuple[int, ...]  # of a sample
    outputs: int
    scale: float  # the model is given inputs · scale
    tensors: tuple[tuple[str, tuple[int, ...]], ...]  # name and shape
    kind: str  # of problem
    table: Encoding | None = None  # what the inputs are made from, where they come from a table
    # Of several inputs by name, where the network takes several; `input_shape` is that of their columns
    named_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    frozen: str = ""  # the digest of the frozen parameters, which are not among the tensors

    @property
    def network_shape(self) -> Any:
        """What the function that makes the network is given; see `Samples.input_shape`."""
        return self.named_shapes or self.input_shape

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """The tensors of a model [d] by their names."""
        sizes = [math.prod(shape) for _, shape in self.tensors]
        named = {}
        for (name, shape), part in zip(self.tensors, vector.split_with_sizes(sizes), strict=True):
            named[name] = part.reshape(shape).clone()
        return named


class LaneProgress(NamedTuple):
    """How far a lane is."""

    method: str
    seed: int
    finished: int  # 0 or 1
    rounds: int


class RoundRow(NamedTuple):
    """How the weights of a round came about."""

    priority: Json[Names] | None
    candidates: Json[tuple[tuple[Names, float], ...]] | None  # orders tried, and their metrics
    testing_rounds: int
    no_effect: Json[Names]  # criteria that were constant across clients
    notes: Json[Names]
    held_out_change: float | None = None  # of the loss by the round, where it is evidence
    cause: Cause | None = None  # why the round kept the model of the round before
    detail: str | None = None

    @property
    def kept(self) -> Kept | None:
        """Why the round kept the model of the round before; None: the model is new."""
        return None if self.cause is None else Kept(self.cause, self.detail or "")


class PolicyRow(NamedTuple):
    """The bounds on weights from a round on."""

    round_num: int
    policy: Json[Any]  # [methods.bounds]; None: no bounds
    note: str | None


class CounterfactualRow(NamedTuple):
    """What the updates of a round give with other weights; see `core/other_weights.py`."""

    round_num: int
    kind: str
    excluded: int  # the client that is left out; −1: none
    tested: int  # on whose test set; −1: on the samples that the run reports on
    metric: float | None
    loss: float | None
    reason: str | None  # why there is no such aggregate


class ContributionRow(NamedTuple):
    """The Shapley value of a client in a round."""

    round_num: int
    client: int
    shapley: float | None
    error: float | None  # its standard error; 0: all coalitions were evaluated


class ParticipantRow(NamedTuple):
    """A client whose update arrived in a round."""

    client: int
    hostile: str | None  # the name of its attack
    score: float | None
    prior: float | None  # the weight by the score alone; None where it equals `weight`
    z: float | None  # evidence against the client, in standard errors
    posterior: float | None  # the weight after the evidence
    weight: float | None  # after the bounds
    influence: float | None  # its share of the aggregate; None where the rule is the mean
    refusal: str | None  # None: accepted
    name: str | None  # of the client
    history_z: float | None = None  # against its own past, in standard errors
    copies: float | None = None  # updates that are almost equal to it, itself included
    harm: float | None = None  # by how much following it would raise the held-out loss
    harm_error: float | None = None  # its standard error


class OmittedRow(NamedTuple):
    """The participants of a round that have no rows; see the config's [record]."""

    accepted: int
    refusals: Json[tuple[tuple[str, int, int], ...]]  # reason, how many, how many of them honest
    weight: float  # theirs together
    scores: float  # the sum over all participants of the round
    scales: Json[tuple[float, ...]]  # what each criterion of the round is divided by

    @property
    def total(self) -> int:
        """How many they are."""
        return self.accepted + sum(count for _, count, _ in self.refusals)


class ClientMetric(NamedTuple):
    """An honest client's metric on its own test data, in the last round that evaluated it."""

    seed: int
    client: int
    name: str | None
    metric: float


class CriterionRow(NamedTuple):
    """One criterion of one client in a round."""

    client: int
    criterion: str
    raw: float
    normalised: float


class ClientRow(NamedTuple):
    """A client under a seed."""

    client: int
    name: str | None
    num_train: int
    num_test: int
    hostile: str | None  # the name of its attack


class ClientSizes(NamedTuple):
    """The clients of a seed, and the training samples that they hold."""

    clients: int
    smallest: int | None  # None without any client
    largest: int | None
    samples: int | None  # of all clients together


class LoweredRow(NamedTuple):
    """The effect of evidence on a client up to a round; see `ParticipantRow`."""

    client: int
    # Its weight was lowered in every round from this one on; None: not in the last one.
    since: int | None
    last: int | None  # the last round in which evidence was significant against it
    z: float | None  # in that round, like the rest
    harm: float | None
    harm_error: float | None
    history_z: float | None
    change: float | None  # of the held-out loss by the round


class FalseAlarms(NamedTuple):
    """Honest clients whose weight was lowered by evidence; see `WeightReader.false_alarms`."""

    lowered: int
    honest: int  # all of them that evidence was computed for

    @property
    def share(self) -> float | None:
        """Of the honest clients; None without any."""
        return self.lowered / self.honest if self.honest else None


class ClientRoundRow(NamedTuple):
    """A round in which a client took part; see `ParticipantRow`."""

    round_num: int
    score: float | None
    prior: float | None
    z: float | None
    posterior: float | None
    weight: float | None
    influence: float | None
    training_loss: float | None
    refusal: str | None
    history_z: float | None = None
    copies: float | None = None
    harm: float | None = None
    harm_error: float | None = None


class PriorityRow(NamedTuple):
    """The order of priority of a round, and how many testing rounds it took."""

    round_num: int
    priority: Json[Names]
    testing_rounds: int


class PrivacyRow(NamedTuple):
    """What a round with differential privacy released, and what all rounds so far spent."""

    round_num: int
    epsilon: float
    clip: float
    deviation: float


class StepRow(NamedTuple):
    """A server step that a round tried, and the loss of its model on the server's samples."""

    step: str
    loss: float
    used: int


class ReasonRow(NamedTuple):
    """How often updates were refused for a reason."""

    reason: str
    kind: str | None  # see `core/reasons.py`
    refused: int
    honest: int  # updates of honest clients


class ArrivedRow(NamedTuple):
    """How many updates of a method arrived in time, and how many were refused."""

    arrived: int
    refused: int
    refused_honest: int  # refused updates of honest clients
    usual: ReasonRow | None  # the most frequent reason for honest clients


class RefusalRow(NamedTuple):
    """How often updates of a client were refused for a reason."""

    reason: str
    client: int
    name: str | None  # of the client
    seed: int
    times: int
    first_round: int


class CostRow(NamedTuple):
    """The cost of a method, summed over its rounds and seeds."""

    seconds: float
    models_moved: float
    evaluations: float
    testing_rounds: float
    rounds: int


@dataclass(frozen=True)
class BestRow:
    """The round of a lane with the lowest held-out loss."""

    round: int | None  # None: no loss is known
    last: int  # the last round so far
    stopped: bool  # whether the lane stopped early
    kept: bool  # whether the best model is the one that is used


class BestRound(NamedTuple):
    """The round with the best reported accuracy, and the samples classified correctly in it."""

    round_num: int
    metric: float
    right: NDArray[numpy.bool_]


@dataclass(frozen=True)
class WeightGrid:
    """Weights of clients over rounds.

    A cell is the mean weight of one or several clients, in one round or the first of several.
    """

    rounds_per_cell: int
    clients_per_cell: int
    means: list[list[float | None]]  # [clients][rounds]; None: no participant
    totals: list[float]  # of each row

    @property
    def width(self) -> int:
        """Columns."""
        return len(self.means[0])


@dataclass(frozen=True)
class MethodSummary:
    """How one method did.

    Lists have one value per seed, in the order of `seeds`; None where there is no value.
    """

    method: str
    seeds: list[int]
    rounds: list[int]  # done so far
    ended: list[
        int
    ]  # the same; where training stopped early, all rounds of the run, since the model stays
    metric: list[float | None]  # at the last round, on the reporting set
    macro_f1: list[float | None]
    # Metrics on the honest clients' own test sets. Deciles need 20 clients or more.
    worst_client: list[float | None]
    worst_decile: list[float | None]  # a tenth of the clients are no better
    best_decile: list[float | None]  # a tenth of the clients are no worse
    rounds_to_target: list[int | None]
    # These two need a clock: seconds on the clients' clock, and bytes sent both ways.
    time_to_target: list[float | None]
    bytes_to_target: list[float | None]
    hostile_influence: list[float | None]  # of all hostile clients together, mean over the rounds
    attack_success: list[float | None]  # at the last round: share of triggers that work
    testing_rounds: list[int]
    refused: list[int]
    seconds: list[float]

    def only(self, seeds: Collection[int]) -> MethodSummary:
        """The summary of these seeds alone."""
        kept = [position for position, seed in enumerate(self.seeds) if seed in seeds]
        lists = {}
        for name, values in vars(self).items():
            if isinstance(values, list):
                lists[name] = [values[position] for position in kept]
        return MethodSummary(self.method, **lists)

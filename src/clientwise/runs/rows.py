"""What comes out of a run's database. `Run` checks every value against these types as it reads."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy
import torch
from annotated_types import Len, MinLen
from numpy.typing import NDArray
from pydantic import Json
from torch import Tensor

Names = tuple[str, ...]
DECILES = tuple(range(10, 100, 10))
SHARES = (*DECILES, 75)  # of the clients, in percent: what each of them reaches is kept (P1's tables; 75: P2's Table 1)
Reached = Annotated[tuple[float, ...], Len(len(DECILES), len(SHARES))]  # runs of old have the deciles alone
PerClass = Annotated[tuple[float, ...], MinLen(1)]


class Change(NamedTuple):
    """What was not as before when a run was resumed, and accepted."""

    date: str
    rounds: int  # of all lanes, done by then
    what: list[str]


class LaneRow(NamedTuple):
    """One method with one seed."""

    lane: int
    method: str
    seed: int


@dataclass(frozen=True)
class ModelFacts:
    """What a trained model is: its network, and the tensors that its vector consists of, one after the other."""

    name: str
    input_shape: tuple[int, ...]  # of a sample
    outputs: int
    scale: float  # inputs · scale is what the model was given
    tensors: tuple[tuple[str, tuple[int, ...]], ...]  # name and shape

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """The tensors of a model [d] by their names."""
        sizes = [math.prod(shape) for _, shape in self.tensors]
        parts = zip(self.tensors, torch.split(vector, sizes), strict=True)
        return {name: part.reshape(shape).clone() for (name, shape), part in parts}


class LaneProgress(NamedTuple):
    """How far a lane is."""

    method: str
    seed: int
    finished: int  # 0 or 1
    rounds: int


class RoundRow(NamedTuple):
    """How the weights of a round came about."""

    priority: Json[Names] | None
    candidates: Json[tuple[tuple[Names, float], ...]] | None  # orders tried, with the metric of each
    testing_rounds: int
    no_effect: Json[Names]  # criteria that were equal for all clients
    notes: Json[Names]


class ParticipantRow(NamedTuple):
    """A client whose update arrived in a round."""

    client: int
    hostile: str | None  # the name of its attack
    score: float | None
    prior: float | None  # the weight by the score alone; None where nothing moved it
    z: float | None  # what the evidence says against it, in standard errors
    posterior: float | None  # the weight after the evidence
    weight: float | None  # after the bounds
    influence: float | None  # what the rule made of it; None where it was the mean
    refusal: str | None  # None: accepted
    name: str | None  # of the client


class ClientMetric(NamedTuple):
    """How an honest client did on its own test data, in the last round in which it was asked."""

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


class LoweredRow(NamedTuple):
    """What evidence did to a client up to a round."""

    client: int
    since: int | None  # the first of the rounds, up to this one, that all lowered its weight; None: this one did not
    harmful: int | None  # the last round in which it spoke against the client
    z: float | None  # in that round


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


class PriorityRow(NamedTuple):
    """The order of priority of a round, and how many testing rounds it took."""

    round_num: int
    priority: Json[Names]
    testing_rounds: int


class ArrivedRow(NamedTuple):
    """How many updates of a method arrived in time, and what became of them."""

    arrived: int
    refused: int
    refused_honest: int  # of those refused, how many came from clients that are not hostile
    reason: str | None  # the most frequent one for which updates of honest clients were refused


class RefusalRow(NamedTuple):
    """A reason for which updates of a client were refused."""

    reason: str
    client: int
    name: str | None  # of the client
    seed: int
    times: int
    first_round: int


class CostRow(NamedTuple):
    """What a method took, summed over its rounds and seeds."""

    seconds: float
    models_moved: float
    evaluations: float
    testing_rounds: float
    rounds: int


class BestRound(NamedTuple):
    """The round with the best reported accuracy, and which samples were right in it."""

    round_num: int
    metric: float
    right: NDArray[numpy.bool_]


@dataclass(frozen=True)
class WeightGrid:
    """Weights of clients over rounds; a cell is one client in one round, or several clients in the first of several."""

    rounds_per_cell: int
    clients_per_cell: int
    means: list[list[float | None]]  # [rows of clients][columns of rounds]; None: nobody took part
    totals: list[float]  # of each row

    @property
    def width(self) -> int:
        """Columns."""
        return len(self.means[0])


@dataclass(frozen=True)
class MethodSummary:
    """How one method did. A list has one value per seed, in the order of the seeds; None where there is none."""

    method: str
    seeds: list[int]
    rounds: list[int]  # done so far
    metric: list[float | None]  # at the last round, on the server's reporting part
    macro_f1: list[float | None]
    worst_client: list[float | None]  # the lowest of the honest clients' own test sets; the highest, of errors
    worst_decile: list[float | None]  # what a tenth of them do no better than; None where they are too few
    best_decile: list[float | None]  # what a tenth of them do no worse than; likewise
    rounds_to_target: list[int | None]
    time_to_target: list[float | None]  # seconds on the clients' clock; None as well where they have none
    bytes_to_target: list[float | None]  # over the wire, both ways; likewise
    hostile_weight: list[float | None]  # mean over the rounds of the weight all hostile clients had together
    attack_success: list[float | None]  # at the last round: how often a backdoor's trigger works
    testing_rounds: list[int]
    refused: list[int]
    seconds: list[float]

    def only(self, seeds: Collection[int]) -> MethodSummary:
        """Of these seeds alone."""
        kept = [place for place, seed in enumerate(self.seeds) if seed in seeds]
        lists = {name: values for name, values in vars(self).items() if isinstance(values, list)}
        return MethodSummary(self.method, **{name: [own[place] for place in kept] for name, own in lists.items()})

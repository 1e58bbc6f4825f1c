"""Facts about a whole run, each by its key: of the run, of its methods, of the models of a seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, PositiveInt

from ..data.encoding import Encoding
from ..registry import listed

if TYPE_CHECKING:
    from torch import Tensor

    from ..core.objective.problem import Problem

BY_HOST = "by the host's clients"  # the fact `computed` of a run that `cw.Aggregator` recorded
MODEL_OF_SEED = "model of seed "  # before a seed: `ModelFacts`
FLOAT_BYTES = 4


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


class StepsRow(NamedTuple):
    """Training steps of a method in a round."""

    method: str
    least: int | None  # of a client; None where none trains, or its samples are elsewhere
    median: float | None
    most: int | None
    server: int  # on the server's own samples


@dataclass(frozen=True)
class MethodFacts:
    """What a method is, as readers need it: they import neither its parts nor its plugins."""

    name: str
    criteria: tuple[str, ...] = ()  # labels
    score: str | None = None
    rule: str | None = None
    evidence: str | None = None
    control: str | None = None  # see `MethodSettings`
    bounds: dict[str, Any] | None = None  # [methods.bounds]
    privacy: dict[str, Any] = field(default_factory=dict)  # [methods.privacy]; empty without
    tuned: dict[str, Any] = field(default_factory=dict)  # how its values were found
    has_rule: bool = False  # another than the mean
    is_control: bool = False  # only a reference: it uses who is hostile, or is not federated
    is_available: bool = True  # without knowing who is hostile, and without pooling all samples
    trains_on_server: bool = False  # on the server's samples, which other methods do not
    margin: float = (
        0.0  # how large a harm must be, as a share of what the round changed of the loss
    )
    threshold: float = math.inf  # the z above which evidence is significant against a client

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        table = asdict(self)
        if math.isinf(self.threshold):
            del table["threshold"]
        return table


class RunFacts(BaseModel, strict=True, frozen=True):
    """Facts about the whole run. Those without a default are there as soon as it has begun."""

    name: str
    metric: str
    higher_is_better: bool = True  # whether a larger metric is a better one
    is_share: bool = True  # whether the metric is shown in percent
    shows: list[str] = []  # values of this kind of problem: macro F1 is for classification alone
    target: float | None
    rounds: PositiveInt  # planned, per lane
    lanes: PositiveInt  # planned
    model_bytes: int = 0
    reported_on: str = "held-out samples"  # what the metric is about, in words
    report_samples: int | None = None  # their number; of the first seed
    report_rarest: int | None = None  # of the rarest class
    constant_metric: float | None = None  # of predicting the same for all samples
    weigh_samples: int | None = None  # held-out ones that weights may depend on
    num_classes: int | None = None  # None where it is not known, or has none
    changes: list[Change] = []  # of data, code or versions, accepted when it was resumed
    # That computed it; the value `machine` of a round counts them from 1
    machines: list[MachineRow] = []
    begun: str = ""  # date and time
    computed: str = ""  # how clients were trained, in words
    warnings: list[str] = []  # what was probably not meant, found when it began
    steps: list[StepsRow] = []  # of a round, by method; runs of `cw.Aggregator` have none
    methods: list[MethodFacts] = []
    initial_model: str = ""  # the file it came from; "" is a random model
    same_start: bool = False  # whether all seeds begin with a given network
    functions: dict[str, str] = {}  # parts given in Python, by kind and name: the module of each
    data: dict[int, str] = {}  # a fingerprint of the data by seed
    # By seed: rounds, and the honest clients with other data from then on
    new_data: dict[int, list[tuple[int, list[int]]]] = {}


def facts_of_run(name: str, problem: Problem, *, num_values: int, **others: Any) -> dict[str, Any]:
    """What is known of a run when it begins, by the keys of `RunFacts`.

    Args:
        name: of the experiment.
        problem: what the model predicts.
        num_values: size of a model.
        others: the other facts.
    """
    return {
        "name": name,
        "metric": problem.metric,
        "higher_is_better": problem.higher_is_better,
        "is_share": problem.is_share,
        "shows": list(problem.shows),
        "num_classes": problem.num_classes,
        "model_bytes": FLOAT_BYTES * num_values,
        "target": None,
        **others,
    }


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

    @property
    def size(self) -> int:
        """The length of the vector."""
        return sum(math.prod(shape) for _, shape in self.tensors)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """The tensors of a model [d] by their names."""
        parts = vector.split_with_sizes([math.prod(shape) for _, shape in self.tensors])
        return {
            name: part.reshape(shape).clone()
            for (name, shape), part in zip(self.tensors, parts, strict=True)
        }


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


def current_minute() -> str:
    """Date and time, as the facts have it."""
    return f"{datetime.now():%Y-%m-%d %H:%M}"


# What is said of steps ------------------------------------------------------------------------------------------

MUCH_MORE = 3  # times the steps of the median client


def steps_in_words(rows: Sequence[StepsRow]) -> str:
    """The steps of a round; methods are named where they differ.

    >>> rows = [StepsRow("FedAvg", 2, 4.0, 7, 0), StepsRow("ServerTuning", 2, 4.0, 7, 28)]
    >>> steps_in_words(rows)
    'client 2 to 7 (median 4); server 28 (ServerTuning)'
    """
    clients: dict[str, list[str]] = {}
    server: dict[str, list[str]] = {}
    for row in rows:
        if row.median is not None:
            text = f"{row.least:,}"
            if row.least != row.most:
                text += f" to {row.most:,} (median {row.median:,g})"
            clients.setdefault(text, []).append(row.method)
        if row.server:
            server.setdefault(f"{row.server:,}", []).append(row.method)
    parts = []
    if clients:
        parts.append(f"client {next(iter(clients)) if len(clients) == 1 else _named(clients)}")
    if server:
        parts.append(f"server {_named(server)}")
    return "; ".join(parts)


def _named(methods: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{text} ({listed(names)})" for text, names in methods.items())


def unequal_steps(rows: Sequence[StepsRow]) -> list[str]:
    """A warning for methods whose server trains much more than the median client does.

    >>> (line,) = unequal_steps([StepsRow("Recommended", 1, 1.0, 1, 8)])
    >>> line.partition(".")[0]
    "Recommended trains 8 steps a round on the server's samples, the median client 1"
    """
    alike: dict[tuple[int, float], list[str]] = {}
    for row in rows:
        if row.median is not None and row.server > MUCH_MORE * row.median:
            alike.setdefault((row.server, row.median), []).append(row.method)
    lines = []
    for (server, median), methods in alike.items():
        verb = "train" if len(methods) > 1 else "trains"
        lines.append(
            f"{' and '.join(methods)} {verb} {server:,} steps a round on the server's samples, the median client "
            f"{median:,g}. A lead may come from training more: give the clients more steps (training.epochs, "
            "training.batch_size). ServerTuning shows what training on the server's samples brings by itself."
        )
    return lines

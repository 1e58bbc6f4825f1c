"""The tables of the config that all methods share: training, clients, data of the server, hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

import torch
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ...attacks import ATTACKS
from ...core.clock import Seconds
from ...core.objective.loss import LOSSES
from ...core.objective.metrics import METRICS
from ...core.seeding import generator
from ...core.training import OPTIMIZERS, SCHEDULES, TRANSFORMS, ScheduleDeclaration, declared_of
from ...core.types import LocalTraining
from ...data.arrays import MOST_CLASSES
from ...data.devices import DEVICE_FACTS, DISTRIBUTIONS, DeviceFact
from ...data.division import OfficialTest
from ...registry import (
    NonNegativeFloat,
    OpenShare,
    Part,
    PositiveFloat,
    PositiveInt,
    Registry,
    Share,
    suggest,
)
from .messages import refuse
from .parts import DrawnFrom, PartOf, PlainPartOf, make, read_part, with_zeros, zeros_for
from .tables import (
    ConfigTable,
    Count,
    Fraction,
    SampleSize,
    fields_of,
    optional_fields_of,
    with_fields,
)


def _metric(name: str) -> str:
    if name not in METRICS:
        refuse([("", f"unknown metric {name!r}{suggest(name, METRICS)}")])
    return name


MetricName = Annotated[str, AfterValidator(_metric)]
_BATCH_SIZE = (  # TOML has no None
    PositiveInt | Literal["full"],
    Field(
        LocalTraining.batch_size,
        description='Batch size B. "full": all samples of a client in one batch, as in P1.',
    ),
)


T = TypeVar("T", bound="_TrainingTable")
_REGISTRIES: dict[str, Registry[Any]] = {  # by key of [training]
    "optimizer": OPTIMIZERS,
    "loss": LOSSES,
    "schedule": SCHEDULES,
    "transform": TRANSFORMS,
}
_LOCAL = fields_of(LocalTraining)
del _LOCAL["rate_factor"]  # follows from the schedule
_OTHER = {  # as TOML has them, and what `LocalTraining` does not have
    "batch_size": _BATCH_SIZE,
    "optimizer": (
        Annotated[str | Part, PlainPartOf(OPTIMIZERS)],
        _LOCAL["optimizer"][1],
    ),
    "learning_rate": (
        PositiveFloat | None,
        Field(
            None,
            description="Learning rate η of the clients. Default: the optimizer's own, 0.1 (sgd), 0.001 "
            "(adam, adamw) or that of the class of PyTorch. Typical values are 0.01 to 0.1.",
        ),
    ),
    "transform": (
        Annotated[Part, PartOf(TRANSFORMS)] | None,
        _LOCAL["transform"][1],
    ),
    "loss": (
        Annotated[Part, PartOf(LOSSES)] | None,
        Field(
            None,
            description="The loss that clients train with. Default: cross_entropy, mse (regression) or "
            "cox (survival). Evaluation always uses the default.",
        ),
    ),
    "schedule": (
        Annotated[str | Part, PlainPartOf(SCHEDULES)],
        Field("constant", description="The learning rate by round, as a factor on it."),
    ),
}


def _as_part(value: str | Part) -> Part:
    return Part(value, {}) if isinstance(value, str) else value


def _default_rate(optimizer: str | Part) -> float:
    """The learning rate of an optimizer where a table gives none; refused where it has no default."""
    rate = declared_of(optimizer).learning_rate
    if rate is None:
        name = _as_part(optimizer).name
        refuse([("learning_rate", f"is missing: the optimizer {name} has no default rate")])
    return rate


class _TrainingTable(ConfigTable):
    """[training], or changes of it."""

    @model_validator(mode="before")
    @classmethod
    def _with_given_zeros(cls, table: Any) -> Any:
        """A class of `torch.optim` may have another default than 0; a 0 beside it becomes its option."""
        if not isinstance(table, Mapping) or "optimizer" not in table:
            return table
        return {**table, "optimizer": with_zeros(table["optimizer"], table)}

    def parts(self) -> Iterator[tuple[Registry[Any], Part]]:
        """The parts that are named, each with its registry."""
        for key, registry in _REGISTRIES.items():
            value = getattr(self, key)
            if value is not None:
                yield registry, _as_part(value)

    def spanning(self: T, rounds: int) -> T:
        """The same with the rounds of the run, where a schedule spans all of them."""
        schedule = getattr(self, "schedule")  # noqa: B009  (a field of the subclass)
        if schedule is None:
            return self
        part = _as_part(schedule)
        declared = SCHEDULES.declared(part.name)
        spans = declared.spans if isinstance(declared, ScheduleDeclaration) else None
        if spans is None or part.options.get(spans) is not None:
            return self
        full = read_part(SCHEDULES, {"name": part.name, **part.options, spans: rounds})
        return self.model_copy(update={"schedule": full})


@with_fields(_LOCAL | _OTHER)
class Training(_TrainingTable):
    """How every client trains."""

    @model_validator(mode="after")
    def _with_rate(self) -> Self:
        """The default rate is stated, so that the recorded config says it."""
        if dict(self)["learning_rate"] is None:
            self.__dict__["learning_rate"] = _default_rate(dict(self)["optimizer"])  # frozen
        return self

    @property
    def has_default_rate(self) -> bool:
        """Whether the learning rate is that of the optimizer, not the user's."""
        return "learning_rate" not in self.model_fields_set

    def build(self, *changes: TrainingOverride) -> LocalTraining:
        """These options with changes, of which later ones win."""
        options = self.changed(*changes)
        if options["batch_size"] == "full":
            options["batch_size"] = None
        return LocalTraining(**{key: options[key] for key in _LOCAL})

    def changed(self, *changes: TrainingOverride) -> dict[str, Any]:
        """The keys of the table after changes."""
        options = dict(self)
        for change in changes:
            given = {key: value for key, value in change if value is not None}
            if _names_another(given.get("optimizer"), options["optimizer"]):
                given.setdefault("learning_rate", _default_rate(given["optimizer"]))
            options |= {key: value for key, value in given.items() if key in options}
            zeros = zeros_for(OPTIMIZERS.get(_as_part(options["optimizer"]).name), given)
            if zeros:
                part = read_part(OPTIMIZERS, options["optimizer"])
                options["optimizer"] = Part(part.name, {**part.options, **zeros})
        return options

    def schedule_part(self, *changes: TrainingOverride) -> Part:
        """The schedule after changes, by name."""
        return _as_part(self.changed(*changes)["schedule"])

    def schedule_of(self, *changes: TrainingOverride) -> Callable[[int], float] | None:
        """The factor of the learning rate by round; None where it is 1 in all rounds."""
        part = self.schedule_part(*changes)
        declared = SCHEDULES.declared(part.name)
        if isinstance(declared, ScheduleDeclaration) and declared.is_constant:
            return None
        made: Callable[[int], float] = make(SCHEDULES, part)
        return made


def _names_another(optimizer: str | Part | None, before: str | Part) -> bool:
    """Whether a change names another optimizer, to which the learning rate of the one before says nothing."""
    return optimizer is not None and _as_part(optimizer).name != _as_part(before).name


@with_fields(optional_fields_of(Training))
class TrainingOverride(_TrainingTable):
    """What one method trains differently; see [training]."""

    @model_validator(mode="after")
    def _has_rate(self) -> Self:
        """A rate must be known if the optimizer is another than in [training]; see `Training.changed`."""
        own = dict(self)
        if own["optimizer"] is not None and own["learning_rate"] is None:
            _default_rate(own["optimizer"])
        return self


class FineTune(TrainingOverride):
    """How the server's training differs from the clients', and how far it goes."""

    line_search: bool = Field(
        True,
        description="Compare five points between the mean and the trained model, and take the one "
        "with the lowest loss on the samples that were trained on.",
    )


class Cohorts(ConfigTable):
    """Which clients take part in a round: a fraction or a number, drawn at random."""

    fraction: OpenShare | None = Field(
        None, description="Fraction of all clients that a round asks. Default: all clients."
    )
    clients_per_round: PositiveInt | None = Field(
        None, description="Number of clients that a round asks, instead of `fraction`."
    )
    without: list[Count] = Field(
        [],
        description="Clients, by number, that are never asked. They keep their data, and evaluate.",
    )
    sampling: Literal["fixed", "poisson"] = Field(
        "fixed",
        description='"fixed": all cohorts have the same size. "poisson": each client is asked '
        "independently; `fraction` or `clients_per_round` is the mean.",
    )


class ServerSet(ConfigTable):
    """The server's held-out samples: some weigh clients, others report results."""

    source: Literal["held_out", "contributed", "clients"] = Field(
        "held_out",
        description='"held_out": the server has its own samples. "contributed": every client gives '
        'a small share. "clients": the cohort evaluates the models instead.',
    )
    fraction: Fraction = Field(
        0.2,
        description="Fraction of all samples that is held out for the server.",
    )
    report_fraction: Share = Field(
        0.5, description="Fraction of the held-out samples that reports results; the rest weighs."
    )
    shared_set: bool = Field(False, description="Weigh and report on the same samples, as P3 does.")
    contributed_fraction: OpenShare = Field(
        0.05,
        description='Share of training samples that a client gives, with source = "contributed".',
    )


class EvaluationSettings(ConfigTable):
    """What is measured during a run."""

    test_fraction: Fraction = Field(
        0.2, description="Fraction of a client's samples that is its own test set. 0: none."
    )
    official_test: OfficialTest = Field(
        "pooled",
        description='Use of the dataset\'s own test split. "pooled": joined with all other '
        'samples. "server": it is the server set (P3). "clients": it is divided into the '
        "clients' test sets (P1).",
    )
    metric: MetricName | None = Field(
        None,
        description="Metric for tables, targets, P2's search and `tune`. "
        "Default: accuracy, RMSE (regression), concordance (survival), average precision "
        "(multi-label) or Dice (segmentation).",
    )
    clients_every: Count = Field(
        1,
        description="Rounds between evaluations on all clients' test sets. 0: never.",
    )
    clients_sample: SampleSize | None = Field(
        None,
        description="Number of clients that evaluate, drawn at random in each round, the same for "
        "all methods. Default: all clients.",
    )
    counterfactuals: bool = Field(
        False,
        description="Also evaluate equal weights, weights by size, and the aggregate without each "
        "client (docs/reports.md).",
    )
    shapley: bool = Field(
        False,
        description="Compute the Shapley value of each client on the server's reporting samples: "
        "exact for up to ten clients in a round, else sampled.",
    )
    target: PositiveFloat | None = Field(
        None,
        description="Value of the metric for rounds-to-target. Default: not counted.",
    )
    client_targets: list[PositiveFloat] = Field(
        [],
        description="Values of the metric for P1's tables, which count the rounds until 10% to 90% "
        "of the clients reach them. Default: `target`.",
    )


class StopEarly(ConfigTable):
    """When a run ends before its last round: by the loss on the samples the server weighs by."""

    rounds: PositiveInt = Field(
        5, description="Stop after so many rounds in a row without a lower loss."
    )
    min_delta: NonNegativeFloat = Field(
        0.0, description="By how much a loss must be lower than the lowest one before."
    )


class RecordSettings(ConfigTable):
    """What a run writes about single clients."""

    clients: PositiveInt | None = Field(
        None,
        description="Number of clients, drawn by the seed, with rows of their own. Of the others, "
        "counts and sums are written. Default: all clients.",
    )

    def of(self, num_clients: int, seed: int) -> frozenset[int] | None:
        """The clients with rows of their own; None: all of them."""
        if self.clients is None or self.clients >= num_clients:
            return None
        order = torch.randperm(num_clients, generator=generator(seed, "record", 0))
        return frozenset(order[: self.clients].tolist())


def _drawn(fact: DeviceFact) -> Any:
    default = Part("constant", {"value": fact.default})
    kind = Annotated[Part, DrawnFrom(DISTRIBUTIONS)]
    return kind, Field(default, description=fact.meaning)


@with_fields({name: _drawn(fact) for name, fact in DEVICE_FACTS.items()})
class DeviceSettings(ConfigTable):
    """The clients' devices: rounds take time on a virtual clock; see docs/devices.md.

    A fact is a number, the same for all clients, or a distribution that every seed draws from.
    """

    traces: str | None = Field(
        None,
        description="CSV file with a device per line, facts as columns, instead of distributions.",
    )


class FlowerSettings(ConfigTable):
    """Clients reached through Flower (engine = "flower"): see docs/flower.md."""

    train_seconds: Seconds = Field(
        600.0, description="Longest time that the server waits for trained models."
    )
    evaluate_seconds: Seconds = Field(
        300.0, description="Longest time that the server waits for evaluations."
    )
    min_replies: PositiveInt = Field(
        1, description="Least number of answers. With fewer, a round leaves the model unchanged."
    )
    grace_seconds: Seconds | None = Field(
        None,
        description="Time to wait for other clients after `min_replies` answers. Default: no limit "
        "of its own.",
    )
    repeats: Annotated[int, Field(ge=0, le=100)] = Field(
        5,
        description="How often a round is repeated because clients cannot be reached; then the run "
        "stops and can be resumed. 0: the round counts and leaves the model unchanged. Always 0 "
        "with noise of the server (`privacy`).",
    )
    max_test_samples: PositiveInt = Field(
        100_000, description="Evaluations on more test samples than this are refused."
    )
    max_change: Annotated[float, Field(ge=1, le=1e6)] = Field(
        1.5,
        description="Deployment: the factor by which a client's claims about its data may differ "
        "from what it declared.",
    )
    clients: list[str] = Field(
        [],
        description="Deployment: the names of the registered nodes. The first is client 0.",
    )
    left: list[str] = Field(
        [],
        description="Deployment: clients that left. They are not asked, and keep their numbers.",
    )
    input_shape: Annotated[list[PositiveInt], Field(max_length=8)] = Field(
        [], description="Deployment: the shape of a sample."
    )
    num_classes: Annotated[int, Field(ge=0, le=MOST_CLASSES)] = Field(
        0, description="Deployment: the number of classes. 0: regression."
    )

    @property
    def away(self) -> tuple[int, ...]:
        """The numbers of the clients that have left."""
        return tuple(client for client, name in enumerate(self.clients) if name in self.left)


def _as_list(value: Any) -> Any:
    """One part where several may stand."""
    return value if isinstance(value, list) else [value]


Attacks = Annotated[
    list[Annotated[Part, PartOf(ATTACKS)]],
    BeforeValidator(_as_list),
    Field(min_length=1),
]


class HostileClients(ConfigTable):
    """A group of hostile or faulty clients; see docs/attacks.md."""

    clients: PositiveInt | list[int | str] | None = Field(
        None,
        description="How many clients (drawn by the seed), or which: a list of numbers or names.",
    )
    share: Share | None = Field(
        None,
        description="Instead of `clients`: the share of all clients that is hostile.",
    )
    attack: Attacks = Field(
        description="The attack, or a list of attacks that act one after the other."
    )
    ignore_global: bool = Field(
        False,
        description="Train their own model instead of the global one (P3 1.C).",
    )
    from_round: PositiveInt = Field(
        1,
        description="The first round in which they attack; they are honest before it.",
    )
    probability: Share = Field(
        1.0,
        description="Probability with which each of them attacks in a round. 1: always.",
    )
    collude: bool = Field(
        False,
        description="Draw the same noise, and attack in the same rounds.",
    )

    def wanted(self, num_clients: int, names: Sequence[str]) -> int | list[int]:
        """How many clients are hostile, or which; ValueError for a name that no client has."""
        if self.clients is None:
            return round(num_clients * (self.share or 0))
        if isinstance(self.clients, int):
            return self.clients
        return [_number_of(client, names) for client in self.clients]


def _number_of(client: int | str, names: Sequence[str]) -> int:
    if isinstance(client, int):
        return client
    if client not in names:
        raise ValueError(f"no client is called {client!r}{suggest(client, names)}")
    return names.index(client)

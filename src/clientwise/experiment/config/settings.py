"""The tables of the config that all methods share: training, clients, data of the server, hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from ...attacks import ATTACKS
from ...core.clock import Seconds
from ...core.objective.loss import LOSSES
from ...core.objective.metrics import METRICS
from ...core.training import (
    OPTIMIZERS,
    SCHEDULES,
    TRANSFORMS,
    ScheduleDeclaration,
    declared_of,
    part_of,
)
from ...core.types import LocalTraining
from ...data.arrays import MOST_CLASSES
from ...data.devices import DEVICE_FACTS, DISTRIBUTIONS, DeviceFact
from ...data.division import OfficialTest
from ...registry import (
    OpenShare,
    Part,
    PositiveFloat,
    PositiveInt,
    Share,
    options_of,
    suggest,
)
from .parts import DrawnFrom, NameOf, PartOf, PlainPartOf, make
from .tables import (
    ConfigTable,
    Count,
    Fraction,
    PartOfAll,
    fields_of,
    optional_fields_of,
    refuse,
    with_fields,
)

_LOCAL = [option for option in options_of(LocalTraining) if option.name != "rate_factor"]


def _default_rate(optimizer: str | Part) -> float:
    """The learning rate of an optimizer where a table gives none; refused where it has no default."""
    rate = declared_of(optimizer).learning_rate
    if rate is None:
        name = part_of(optimizer).name
        refuse([("learning_rate", f"is missing: the optimizer {name} has no default rate")])
    return rate


class _OwnKeys(ConfigTable):
    """The keys of [training] that TOML has in another form than `LocalTraining`, or that it lacks."""

    batch_size: PositiveInt | Literal["full"] = 32
    """Batch size B. "full": all samples."""

    optimizer: Annotated[str | Part, PlainPartOf(OPTIMIZERS)] = "sgd"
    """The clients' optimizer. Its state ends with the round."""

    learning_rate: PositiveFloat | None = None
    """Learning rate η. Default: that of the optimizer, 0.1 for sgd, 0.001 for adam and adamw, and 1 for
    adadelta. Typical values are 0.01 to 0.1."""

    transform: Annotated[Part, PartOf(TRANSFORMS)] | None = None
    """Data augmentation: a random change of every training batch."""

    loss: Annotated[Part, PartOf(LOSSES)] | None = None
    """Loss to train with. Default: that of the problem, with which models are evaluated."""

    schedule: Annotated[str | Part, PlainPartOf(SCHEDULES)] = "constant"
    """A factor on the learning rate, by round."""


@with_fields(fields_of(one for one in _LOCAL if one.name not in _OwnKeys.model_fields))
class Training(_OwnKeys):
    """How every client trains."""

    @model_validator(mode="after")
    def _with_rate(self) -> Self:
        """The default rate is stated, so that the recorded config says it."""
        if self.learning_rate is None:
            self.__dict__["learning_rate"] = _default_rate(self.optimizer)  # frozen
        return self

    def build(self, *changes: TrainingOverride) -> LocalTraining:
        """These options with changes, of which later ones win."""
        options = self.changed(*changes)
        if options["batch_size"] == "full":
            options["batch_size"] = None
        return LocalTraining(**{one.name: options[one.name] for one in _LOCAL})

    def changed(self, *changes: TrainingOverride) -> dict[str, Any]:
        """The keys of the table after changes."""
        options = dict(self)
        for change in changes:
            given = {key: value for key, value in change if value is not None}
            optimizer = given.get("optimizer", options["optimizer"])
            if part_of(optimizer).name != part_of(options["optimizer"]).name:
                # The rate of the optimizer before says nothing to another
                given.setdefault("learning_rate", _default_rate(optimizer))
            options |= {key: value for key, value in given.items() if key in options}
        return options

    def schedule_of(self, *changes: TrainingOverride) -> Callable[[int], float] | None:
        """The factor of the learning rate by round; None where it is 1 in all rounds."""
        part = part_of(self.changed(*changes)["schedule"])
        declared = SCHEDULES.declared(part.name)
        if isinstance(declared, ScheduleDeclaration) and declared.is_constant:
            return None
        made: Callable[[int], float] = make(SCHEDULES, part)
        return made


@with_fields(optional_fields_of(Training))
class TrainingOverride(ConfigTable):
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

    line_search: bool = True
    """Take the best of five points from the model before this training to that after it, by the loss on
    the same samples."""


class Cohorts(ConfigTable):
    """Which clients a round asks: a fraction or a number, drawn at random."""

    fraction: OpenShare | None = None
    """Fraction of all clients. Default: all."""

    clients_per_round: PositiveInt | None = None
    """Number of clients, instead of `fraction`."""

    without: list[Count] = []
    """Numbers of clients that are never asked. They still evaluate."""

    sampling: Literal["fixed", "poisson"] = "fixed"
    """"fixed": all cohorts have the same size. "poisson": each client is asked independently."""


class ServerSet(ConfigTable):
    """The server's held-out samples: some weigh clients, others report results."""

    source: Literal["held_out", "contributed", "clients"] = "held_out"
    """The samples to weigh by: the server's ("held_out"), or a share of every client's
    ("contributed"). "clients": the cohort evaluates the models instead."""

    fraction: Fraction = 0.2
    """Fraction of all samples."""

    report_fraction: Share = 0.5
    """Fraction of these that reports results; the rest weighs."""

    shared_set: bool = False
    """Weigh and report on the same samples (P3)."""

    contributed_fraction: OpenShare = 0.05
    """Share of its training samples that a client contributes."""


class EvaluationSettings(ConfigTable):
    """What is measured."""

    test_fraction: Fraction = 0.2
    """Fraction of a client's samples that is its test set."""

    held_back: Fraction = 0.0
    """Fraction of its training samples on which a client evaluates instead; see `clientwise tune`."""

    official_test: OfficialTest = "pooled"
    """The dataset's own test split: joined with the other samples, the server's set, or the
    clients' test sets."""

    metric: Annotated[str, NameOf(METRICS)] | None = None
    """Metric of results and searches. Default: accuracy, RMSE (regression), concordance (survival),
    average precision (multi-label) or Dice (segmentation)."""

    clients_every: Count = 1
    """Rounds between evaluations on all clients' test sets. 0: never."""

    target: PositiveFloat | None = None
    """Value of the metric for rounds-to-target."""


def _drawn(fact: DeviceFact) -> Any:
    default = Part("constant", {"value": fact.default})
    kind = Annotated[Part, DrawnFrom(DISTRIBUTIONS)]
    return kind, Field(default, description=fact.meaning)


@with_fields({name: _drawn(fact) for name, fact in DEVICE_FACTS.items()})
class DeviceSettings(ConfigTable):
    """Simulated devices (docs/devices.md). A value is a number for all clients, or a distribution."""


class FlowerSettings(ConfigTable):
    """Clients reached through Flower (docs/frameworks.md)."""

    reply_seconds: Seconds = 600.0
    """Longest time to wait for trained models, and again for evaluations."""

    min_replies: PositiveInt = 1
    """With fewer answers, a round leaves the model unchanged."""

    clients: list[str] = []
    """Deployment: the names of the nodes; the first is client 0."""

    input_shape: Annotated[list[PositiveInt], Field(max_length=8)] = []
    """Deployment: the shape of a sample."""

    num_classes: Annotated[int, Field(ge=0, le=MOST_CLASSES)] = 0
    """Deployment: the number of classes. 0: regression."""


MOST_ATTACKS = 100  # that a client applies one after the other


def _as_list(value: Any) -> Any:
    """One part where several may stand; too many are not even read."""
    if not isinstance(value, list):
        return [value]
    if len(value) > MOST_ATTACKS:
        raise PydanticCustomError("attacks", f"must have at most {MOST_ATTACKS} attacks")
    return value


Attacks = Annotated[
    list[Annotated[Part, PartOf(ATTACKS)]],
    BeforeValidator(_as_list),
    Field(min_length=1, max_length=MOST_ATTACKS),
]


class HostileClients(ConfigTable):
    """A group of hostile or faulty clients (docs/rules.md)."""

    clients: PositiveInt | PartOfAll | list[int | str]
    """A number or share of clients, drawn by the seed; or a list of numbers or names."""

    attack: Attacks
    """One attack, or several in this order."""

    ignore_global: bool = False
    """Train their own models further (P3)."""

    from_round: PositiveInt = 1
    """First round of the attack."""

    probability: Share = 1.0
    """Probability of an attack, for each client and round."""

    def wanted(self, num_clients: int, names: Sequence[str]) -> int | list[int]:
        """How many clients are hostile, or which; ValueError for a share of none or all, and for an unknown name."""
        if isinstance(self.clients, int):
            return self.clients
        if isinstance(self.clients, float):
            count = round(num_clients * self.clients)
            if count in (0, num_clients):
                raise ValueError(
                    f"is {count} of {num_clients} clients: give another share, or a number"
                )
            return count
        for client in self.clients:
            if isinstance(client, str) and client not in names:
                raise ValueError(f"no client is called {client!r}{suggest(client, names)}")
        return [one if isinstance(one, int) else names.index(one) for one in self.clients]

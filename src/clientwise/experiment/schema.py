"""What an experiment consists of: one class per table of the TOML file. docs/config.md is generated from this."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NoReturn

import tomli_w
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    create_model,
)
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_plain_validator_function

from ..attacks import ATTACKS
from ..core.adapt_loss import LOSS_ADAPTERS
from ..core.before import BEFORE
from ..core.bounds import Bounds
from ..core.clock import Pace
from ..core.criteria import CRITERIA, Fact, fact_columns, make_criterion
from ..core.evidence import EVIDENCE
from ..core.method import Control, Method
from ..core.metrics import METRICS
from ..core.priority import ADJUSTMENTS
from ..core.rules import RULES
from ..core.scores import SCORES, Score
from ..core.server_step import SERVER_STEPS
from ..core.types import LocalTraining
from ..core.weighting import NORMALISERS
from ..data.datasets import DATASETS
from ..data.devices import DISTRIBUTIONS
from ..data.features import FEATURES
from ..data.federated import MOST_CLASSES, Samples
from ..data.partition import PARTITIONS, OfficialTest
from ..models.networks import MODELS
from ..models.own import OwnModel
from ..registry import NonNegativeFloat, Part, PositiveFloat, PositiveInt, Registry, Share, suggest
from ..trackers import TRACKERS
from .messages import issues_of


def read_part(registry: Registry[Any], value: Any) -> Part:
    """A part named in TOML, its options checked against its own signature, defaults filled in."""
    if isinstance(value, Part):
        return value
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        _raise([("", f"name a {registry.kind}, or give a table with its name and options{suggest('', registry)}")])
    name = table["name"]
    if name not in registry:
        place = "name" if isinstance(value, Mapping) else ""
        _raise([(place, f"unknown {registry.kind} {name!r}{suggest(name, registry)}")])
    table_of_options = _table_of_options(registry, name, registry.get(name))
    given = {key: option for key, option in table.items() if key != "name"}
    label = given.pop("as", "") if registry is CRITERIA else ""
    if not isinstance(label, str):
        _raise([("as", f"must be a name, got {label!r}")])
    try:
        options = table_of_options.model_validate(given)
    except ValidationError as error:
        _raise(issues_of(error, {(): list(table_of_options.model_fields)}))
    for option in registry.options(name):
        named, chosen = option.names_part_of, getattr(options, option.name)
        if named is not None and chosen is not None and chosen not in named:
            _raise([(option.name, f"unknown {named.kind} {chosen!r}{suggest(chosen, named)}")])
    return Part(name, {option: getattr(options, option) for option in table_of_options.model_fields}, label)


@functools.cache  # made in milliseconds, and a config may name a part a thousand times
def _table_of_options(registry: Registry[Any], name: str, part: Any) -> type[Section]:
    """The options of a part as a table of the config; `part` is what the name stands for now."""
    fields: dict[str, Any] = {
        option.name: (option.type, ... if option.required else option.default) for option in registry.options(name)
    }
    return create_model(name, __base__=Section, **fields)


def make(registry: Registry[Any], part: Part) -> Any:
    """Call or bind a part: classes are constructed, functions wait for what the library passes in."""
    found = registry.get(part.name)
    constructed = inspect.isclass(found) and not registry.passes
    return found(**part.options) if constructed else partial(found, **part.options)


def _raise(issues: list[tuple[str, str]]) -> NoReturn:
    raise PydanticCustomError("part", "part", {"issues": issues})


@dataclass(frozen=True)
class _part:  # noqa: N801  (reads like a function where it annotates)
    """Marks a key that takes a part of a kind."""

    registry: Registry[Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return no_info_plain_validator_function(partial(read_part, self.registry))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        """A name, or a table with a name and the options of that part."""
        registry, names = self.registry, list(self.registry)
        return {"anyOf": [{"enum": names}, *(_table_schema(registry, name) for name in names)]}


def _table_schema(registry: Registry[Any], name: str) -> dict[str, Any]:
    """A part with its options, for editors."""
    schema = _table_of_options(registry, name, registry.get(name)).model_json_schema()
    properties = {"name": {"const": name}, **schema.get("properties", {})}
    for option in registry.options(name):
        if option.names_part_of is not None:
            properties[option.name] = {"enum": list(option.names_part_of)}
    if registry is CRITERIA:
        properties["as"] = {"type": "string", "description": "what this one is called"}
    about = {"type": "object", "description": registry.describe(name), "properties": properties}
    return {**about, "required": ["name", *schema.get("required", [])], "additionalProperties": False}


class _drawn(_part):  # noqa: N801
    """Marks a fact about devices: a distribution, or a number, which is the same for all."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return no_info_plain_validator_function(lambda value: read_part(self.registry, _as_constant(value)))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        """A number as well."""
        part = super().__get_pydantic_json_schema__(schema, handler)
        return {"anyOf": [{"type": "number"}, *part["anyOf"]]}


def _as_constant(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"name": "constant", "value": float(value)} if is_number else value


def _as_list(value: Any) -> Any:
    """One part where several may stand."""
    return value if isinstance(value, list) else [value]


def _name(text: str) -> str:
    """Folders, tables and figures are called by it."""
    if not 0 < len(text.encode()) <= 200 or any(letter < " " for letter in text):
        raise PydanticCustomError("name", "a name has 1 to 200 bytes, and no control characters")
    return text


def _device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,2})?", name):
        raise PydanticCustomError("device", 'use "auto", "cpu", "cuda", or "cuda:1" for the second GPU')
    return name


def _metric(name: str) -> str:
    if name not in METRICS:
        _raise([("", f"unknown metric {name!r}{suggest(name, METRICS)}")])
    return name


Fraction = Annotated[float, Field(ge=0, lt=1)]


def _facts(attributes: dict[str, list[Fact]]) -> dict[str, list[Fact]]:
    try:
        fact_columns(attributes)
    except ValueError as error:
        _raise([("", str(error))])
    return attributes


Name = Annotated[str, AfterValidator(_name)]
Note = Annotated[str, Field(max_length=2_000)]
Tags = Annotated[list[Name], Field(max_length=100)]
Epochs = Annotated[int, Field(gt=0, le=10_000)]
MOST_SEEDS, MOST_PLUGINS = 10_000, 100
Seconds = Annotated[float, Field(gt=0, le=10**8)]  # three years: clocks count no further


class Section(BaseModel):
    """A table of the config. Unknown keys are errors."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )

    def to_dict(self) -> dict[str, Any]:
        """The table as plain values: every default written out, nothing left to the version."""
        plain = to_plain(self)
        assert isinstance(plain, dict)
        return plain


class Training(Section):
    """How every client trains."""

    epochs: Epochs = Field(1, description="local epochs E")
    batch_size: PositiveInt | Literal["full"] = Field(
        "full", description='batch size B; "full" is one batch of everything'
    )
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="new every round: clients keep nothing between rounds")
    learning_rate: PositiveFloat = Field(0.1, description="learning rate η of the clients")
    momentum: Fraction = Field(0.0, description="of sgd")
    weight_decay: NonNegativeFloat = Field(0.0, description="L2 penalty on the weights")
    proximal: NonNegativeFloat = Field(0.0, description="FedProx's μ: (μ/2)·‖Θ_a − Θ‖² is added to the loss")
    control_variates: bool = Field(
        False, description="SCAFFOLD: gradients are corrected by what all clients, and this one, found before"
    )


class TrainingOverride(Section):
    """What one method trains differently; see [training]."""

    epochs: Epochs | None = None
    batch_size: PositiveInt | Literal["full"] | None = None
    optimizer: Literal["sgd", "adam"] | None = None
    learning_rate: PositiveFloat | None = None
    momentum: Fraction | None = None
    weight_decay: NonNegativeFloat | None = None
    proximal: NonNegativeFloat | None = None
    control_variates: bool | None = None


class FineTune(TrainingOverride):
    """What the server trains unlike the clients, and how far it goes."""

    line_search: bool = Field(
        True,
        description="of five points on the way from the mean to what training made of it, take the one with the least "
        "loss on the samples it trained on",
    )


class Cohorts(Section):
    """Who takes part in a round: a fraction of the clients or a number of them, drawn uniformly, seeded per round."""

    fraction: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="share of all clients; default: all of them"
    )
    clients_per_round: PositiveInt | None = Field(None, description="number of clients, instead of a fraction")


class ServerSet(Section):
    """The samples AdaFed weighs by, and the samples every method is reported on."""

    source: Literal["held_out", "contributed", "clients"] = Field(
        "held_out",
        description='"held_out": the server has its own samples; "contributed": every client gives a small share; '
        '"clients": the cohort evaluates the models and the results are averaged',
    )
    fraction: Fraction = Field(
        0.2,
        description="share of all samples held out before the clients get theirs; "
        'of no account with evaluation.official_test = "server"',
    )
    report_fraction: Share = Field(0.5, description="share of the held-out samples that report; the others weigh")
    shared_set: bool = Field(False, description="weigh and report on the same samples, as P3 does")
    contributed_fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        0.05, description='share of a client\'s training samples it gives; with source = "contributed"'
    )


class EvaluationSettings(Section):
    """What is measured along the way."""

    test_fraction: Fraction = Field(0.2, description="share of a client's samples that is its own test set; 0: none")
    official_test: OfficialTest = Field(
        "pooled",
        description='the dataset\'s own test split: "pooled" with all other samples; "server": it is the server set, '
        'as in P3; "clients": it is dealt out as their test sets, alike to their training sets, as in P1',
    )
    metric: Annotated[str, AfterValidator(_metric)] | None = Field(
        None,
        description="what models are scored with: tables, targets, P2's search and `tune` follow it, AdaFed's criteria "
        "do not; default: accuracy, MAPE (regression) or concordance (survival)",
    )
    clients_every: Annotated[int, Field(ge=0)] = Field(
        1, description="rounds between evaluations on all clients' test sets; 0: never"
    )
    target: PositiveFloat | None = Field(
        None,
        description="rounds-to-target counts the rounds until the reported metric gets there: see `metric`",
    )
    client_targets: list[PositiveFloat] = Field(
        [],
        description="rounds until 10 ... 90% of the clients reach each of these on their own test data (P1's tables); "
        "default: `target`",
    )


Drawn = Annotated[Part, _drawn(DISTRIBUTIONS)]


def _constant(value: float) -> Part:
    return Part("constant", {"value": value})


class DeviceSettings(Section):
    """What the clients' devices can do, so that rounds take time, on a virtual clock: see docs/devices.md.

    A fact is a number, the same for all, or a distribution that every seed draws from.
    """

    speed: Drawn = Field(_constant(100.0), description="training samples per second")
    up: Drawn = Field(_constant(1e6), description="bytes per second to the server")
    down: Drawn = Field(_constant(1e6), description="bytes per second from the server")
    available_from: Drawn = Field(_constant(0.0), description="the hour of the day from which on a client can be asked")
    available_hours: Drawn = Field(_constant(24.0), description="for how many hours it can be; 24: always")
    dropout: Drawn = Field(_constant(0.0), description="the chance that a client is asked and never answers")
    battery: Drawn = Field(_constant(1.0), description="what is left of it, a share; for the criterion `battery_level`")
    traces: str | None = Field(
        None, description="a CSV file with a device per line and these facts as columns, instead of distributions"
    )


class FlowerSettings(Section):
    """Clients reached through Flower (engine = "flower"): see docs/flower.md."""

    train_seconds: Seconds = Field(600.0, description="how long the server waits for trained models")
    evaluate_seconds: Seconds = Field(300.0, description="how long it waits for evaluations")
    min_replies: PositiveInt = Field(1, description="with fewer answers a round leaves the model as it was")
    grace_seconds: Seconds | None = Field(
        None, description="how long the others are waited for once so many have answered; default: as long as above"
    )
    max_test_samples: PositiveInt = Field(100_000, description="evaluations on more test samples are not believed")
    clients: list[str] = Field(
        [], description="deployment: the names under which the nodes are registered; the first is client 0"
    )
    left: list[str] = Field(
        [], description="deployment: those of them who have left; they are not asked, and keep their numbers"
    )
    input_shape: Annotated[list[PositiveInt], Field(max_length=8)] = Field(
        [], description="deployment: the shape of a sample"
    )
    num_classes: Annotated[int, Field(ge=0, le=MOST_CLASSES)] = Field(
        0, description="deployment: number of classes; 0 is regression"
    )
    files: str | None = Field(
        None,
        description="to try a deployment on one machine, instead of `data`: a folder with a file or folder for each of "
        "`clients`, and server.npz for the server",
    )
    loader: str | None = Field(
        None, description="likewise: the Python file whose `load` reads them; default: they are NumPy files"
    )

    @property
    def away(self) -> tuple[int, ...]:
        """The numbers of those who have left."""
        return tuple(client for client, name in enumerate(self.clients) if name in self.left)


class HostileClients(Section):
    """A group of hostile or faulty clients; see docs/attacks.md."""

    clients: PositiveInt | list[int | str] | None = Field(
        None, description="how many (chosen by the seed), or which, by number or name"
    )
    share: Share | None = Field(
        None, description="instead: the share of all clients; those of a small share are among those of a larger one"
    )
    attack: Annotated[list[Annotated[Part, _part(ATTACKS)]], BeforeValidator(_as_list), Field(min_length=1)] = Field(
        description="what they do: one attack, or several in a list, which act one after the other"
    )
    ignore_global: bool = Field(
        False, description="they keep training a model of their own instead of the global one (P3 1.C)"
    )
    from_round: PositiveInt = Field(1, description="the first round in which they attack; honest before")
    probability: Share = Field(1.0, description="with which each of them attacks in a round")
    collude: bool = Field(
        False, description="they draw the same random numbers: the same noise, and attacks in the same rounds"
    )

    def wanted(self, num_clients: int, names: Sequence[str]) -> int | list[int]:
        """How many clients are hostile, or which; ValueError for a name that nobody has."""
        if self.clients is None:
            return round(num_clients * (self.share or 0))
        if isinstance(self.clients, int):
            return self.clients
        if unknown := [client for client in self.clients if isinstance(client, str) and client not in names]:
            raise ValueError(f"no client is called {unknown[0]!r}{suggest(str(unknown[0]), names)}")
        return [names.index(client) if isinstance(client, str) else client for client in self.clients]


class PaceSettings(Section):
    """When a round ends, where clients take time. Default: when all who were asked have answered."""

    extra: Annotated[float, Field(ge=0, le=10)] = Field(
        0.0, description="over-selection: 0.3 asks 30% more clients, and the first to answer make the round"
    )
    deadline: Seconds | None = Field(None, description="a round ends after so many seconds at the latest")
    late: Literal["refuse", "keep"] = Field(
        "refuse", description='what comes later; "keep": it counts in the round in which it comes, with its age'
    )
    buffer: PositiveInt | None = Field(
        None,
        description="asynchronous: a round ends when so many updates are there, whoever they are from; who is still at "
        "work goes on, and with the next round others are asked until as many are at work as a round has clients",
    )


class WeightBounds(Section):
    """Bounds on any client's share of the weight."""

    cap: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="the largest share")
    floor: Fraction = Field(0.0, description="the smallest share of an accepted client")


class MethodSettings(Section):
    """One way to weigh clients. With nothing but a name it is FedAvg."""

    name: Name = Field(description="what tables and figures call it")
    criteria: Annotated[list[Annotated[Part, _part(CRITERIA)]], Field(min_length=1, max_length=64)] = Field(
        [Part("dataset_size", {})], description="what is measured about a client"
    )
    score: Annotated[Part, _part(SCORES)] = Field(
        Part("prioritized", {}), description="how the criteria become one number"
    )
    normalise: Annotated[Part, _part(NORMALISERS)] | None = Field(
        None, description='default: "sum", but "none" for the score "product"'
    )
    evidence: Annotated[Part, _part(EVIDENCE)] | None = Field(
        None, description="what moves the weights by what the updates do to data nobody trained on"
    )
    bounds: WeightBounds | None = Field(None, description="bounds on any client's share of the weight")
    before: Annotated[list[Annotated[Part, _part(BEFORE)]], Field(max_length=16)] = Field(
        [], description="what happens to the updates before the rule, in this order"
    )
    rule: Annotated[Part, _part(RULES)] = Field(Part("mean", {}), description="how the weighted updates become one")
    adjust: Annotated[Part, _part(ADJUSTMENTS)] | None = Field(
        None, description="online adjustment of the order of priority (P2)"
    )
    adapt_loss: Annotated[Part, _part(LOSS_ADAPTERS)] | None = Field(
        None, description="how the loss of the next round changes (P3)"
    )
    server_step: Annotated[Part, _part(SERVER_STEPS)] = Field(
        Part("replace", {}), description="what the server makes of the weighted mean"
    )
    training: TrainingOverride = Field(TrainingOverride(), description="what this method trains differently")
    fine_tune: FineTune | None = Field(
        None, description="the server trains the mean on the samples it weighs by; what it does unlike the clients"
    )
    brake: Annotated[float, Field(gt=0, le=100)] | None = Field(
        None,
        description="the old model stays where the new one is worse by so many standard errors, on the samples the "
        "server weighs by; 3 stops an attack and hardly anything else",
    )
    control: Control | None = Field(
        None,
        description='no federated learning, to compare with: "pooled" trains on all clients\' samples in one place, '
        '"server_only" on those the server weighs by; "alone": every client keeps a model of its own, and reported is '
        "the mean over the honest clients' models",
    )
    pace: PaceSettings | None = Field(None, description="when a round ends, where clients take time")

    def unlike_fedavg(self) -> list[str]:
        """The keys that change something."""
        mine, fedavg = to_plain(self), to_plain(MethodSettings(name=self.name))
        return sorted(key for key in {*mine, *fedavg} if mine.get(key) != fedavg.get(key))

    def parts(self) -> Iterator[tuple[str, Registry[Any], Part]]:
        """The parts that may need something, each with its key and its registry."""
        yield from ((f"criteria[{index}]", CRITERIA, part) for index, part in enumerate(self.criteria))
        yield from ((f"before[{index}]", BEFORE, part) for index, part in enumerate(self.before))
        yield "rule", RULES, self.rule
        if self.evidence:
            yield "evidence", EVIDENCE, self.evidence
        if self.adapt_loss:
            yield "adapt_loss", LOSS_ADAPTERS, self.adapt_loss

    def build(self, training: Training) -> Method:
        """The method's parts, put together. ValueError where they do not fit."""
        score: Score = make(SCORES, self.score)
        normalise = self.normalise or Part(score.default_normaliser, {})
        return Method(
            name=self.name,
            criteria=tuple(make_criterion(part.name, part.label, **part.options) for part in self.criteria),
            normaliser=make(NORMALISERS, normalise),
            score=score,
            evidence=make(EVIDENCE, self.evidence) if self.evidence else None,
            bounds=Bounds(self.bounds.cap, self.bounds.floor) if self.bounds else None,
            before=tuple(make(BEFORE, part) for part in self.before),
            rule=make(RULES, self.rule) if "models" in RULES.needs(self.rule) else None,
            adjust=make(ADJUSTMENTS, self.adjust) if self.adjust else None,
            adapt_loss=make(LOSS_ADAPTERS, self.adapt_loss) if self.adapt_loss else None,
            server_step=make(SERVER_STEPS, self.server_step),
            training=_local_training(training, self.training),
            control=self.control,
            brake=self.brake,
            fine_tune=None if self.fine_tune is None else _local_training(training, self.training, self.fine_tune),
            line_search=self.fine_tune is not None and self.fine_tune.line_search,
            pace=Pace(**self.pace.model_dump()) if self.pace else Pace(),
        )


def _local_training(training: Training, *changes: TrainingOverride) -> LocalTraining:
    """The experiment's training with what a method changes, later changes last."""
    options = training.model_dump()
    for change in changes:
        options |= {key: value for key, value in change.model_dump().items() if key in options and value is not None}
    return LocalTraining(**options | {"batch_size": None if options["batch_size"] == "full" else options["batch_size"]})


class Experiment(Section):
    """Everything about an experiment. Methods of one seed share data, partition, initial model and cohorts."""

    name: Name = Field(description="names the run folder")
    rounds: PositiveInt = Field(description="rounds of federated learning, per method and seed")
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1, max_length=MOST_SEEDS)] = Field(
        [1], description="one repetition each"
    )
    note: Note = Field("", description="what you want to remember of it")
    tags: Tags = Field([], description="words to find it by")
    plugins: Annotated[list[str], Field(max_length=MOST_PLUGINS)] = Field(
        [], description="your own modules, imported first so that their parts are known; found beside the file"
    )
    plugin_dir: str | None = Field(None, description="where they lie; default: the folder of the config")
    engine: Literal["local", "flower"] = Field(
        "local", description='where the clients live: "local" in this process, "flower" in Flower\'s simulation'
    )
    checkpoint_seconds: NonNegativeFloat = Field(
        10.0, description="at least this long between two checkpoints; 0: one after every round"
    )
    keep_every: Annotated[int, Field(ge=0)] = Field(
        0, description="rounds between models that are kept for good, beside the best so far; 0: only the last is kept"
    )
    initial_model: str | None = Field(
        None, description="begin with the model in this file, as `clientwise export` writes it; default: a random one"
    )
    device: Annotated[str, AfterValidator(_device)] = Field(
        "auto",
        description='"cpu", "cuda", or "auto": the GPU where there is one',
    )
    mode: Literal["auto", "loop", "graph", "stacked"] = Field(
        "auto",
        description='how clients are trained: one after the other ("loop"; "graph" records its steps on a GPU), or '
        'many at once ("stacked"); "auto" takes what is fastest for the network and the device',
    )
    precision: Literal["auto", "float32", "tf32", "bf16"] = Field(
        "auto", description='what products are computed in; "auto": float32 on a CPU, tf32 on a GPU'
    )
    workers: Annotated[int, Field(gt=0, le=1024)] | Literal["auto", "ray"] = Field(
        "auto",
        description='CPU cores that train clients side by side; "auto": as many as PyTorch has threads; '
        '"ray": methods and seeds are spread over Ray (`clientwise[ray]`)',
    )
    data_dir: str | None = Field(
        None, description="folder with the datasets in their published layouts; better given as --data-dir"
    )
    trackers: Annotated[list[Annotated[Part, _part(TRACKERS)]], Field(max_length=100)] = Field(
        [], description="where else the run can be followed; nothing is sent anywhere by default"
    )
    data: Annotated[Part, _part(DATASETS)] | None = Field(
        None, description="where the samples come from; left out when arrays are handed to `cw.run`"
    )
    features: Annotated[Part, _part(FEATURES)] | None = Field(
        None, description="a frozen network whose features the model sees instead of the images; computed once and kept"
    )
    partition: Annotated[Part, _part(PARTITIONS)] | None = Field(
        None, description="how they are spread over the clients; left out likewise"
    )
    attributes: Annotated[dict[str, list[Fact]], AfterValidator(_facts)] = Field(
        {},
        description="facts about the clients, one value each: numbers, true or false, or words; for the criteria "
        "`attribute` and `is_one_of` and your own",
    )
    model: Annotated[Part, _part(MODELS)] | None = Field(
        None, description="the network every client trains; left out when one is handed to `cw.run`"
    )
    training: Training = Field(Training(), description="how every client trains")
    federation: Cohorts = Field(Cohorts(), description="who takes part in a round")
    server_set: ServerSet = Field(ServerSet(), description="what the server weighs by and reports on")
    evaluation: EvaluationSettings = Field(EvaluationSettings(), description="what is measured along the way")
    devices: DeviceSettings | None = Field(
        None, description="what the clients' devices can do; without it all are alike, and time is counted in rounds"
    )
    flower: FlowerSettings = Field(FlowerSettings(), description="clients reached through Flower")
    hostile: Annotated[list[HostileClients], Field(max_length=1_000)] = Field(
        [], description="hostile or faulty clients"
    )
    methods: Annotated[list[MethodSettings], Field(min_length=1, max_length=1_000)] = Field(
        [MethodSettings(name="FedAvg")],
        description="what is compared; default: `Recommended`, or `RecommendedJudged` where clients judge "
        '(server_set.source = "clients"), or `FedAvg` where there are no samples to judge by',
    )

    _source: str = PrivateAttr("config")
    _names_methods: bool = PrivateAttr(True)
    _own_model: OwnModel | None = PrivateAttr(None)
    _own_samples: Samples | None = PrivateAttr(None)

    @property
    def source(self) -> str:
        """What messages call the config: its file."""
        return self._source

    @property
    def own_model(self) -> OwnModel | None:
        """The network that was handed over, which no config can hold."""
        return self._own_model

    def with_model(self, model: OwnModel) -> Experiment:
        """The same with a network of the user's own instead of one by name."""
        changed = self.model_copy(update={"model": None})
        changed._own_model = model
        return changed

    def with_method(self, method: Mapping[str, Any]) -> Experiment:
        """The same with this method, where the config names none."""
        changed = self.model_copy(update={"methods": [MethodSettings.model_validate(method)]})
        changed._names_methods = False
        return changed

    def for_data(self, weigh: object | None) -> Experiment:
        """The same for data of the user's own: without samples to weigh by, who names no method gets FedAvg."""
        no_samples = weigh is None and self.server_set.source == "held_out" and not self.server_set.shared_set
        return self.with_method({"name": "FedAvg"}) if no_samples and not self._names_methods else self

    @property
    def own_samples(self) -> Samples | None:
        """The samples that were handed over instead of a dataset by name."""
        return self._own_samples

    def with_samples(self, samples: Samples) -> Experiment:
        """The same with samples of the user's own; by default everybody holds what is theirs."""
        partition = self.partition or read_part(PARTITIONS, "by_id")
        changed = self.model_copy(update={"data": None, "partition": partition})
        changed._own_samples = samples
        return changed

    @property
    def reads_files(self) -> bool:
        """Whether its samples are the members' files (`flower.files`), no dataset that is dealt out."""
        return self.data is None and self._own_samples is None and self.flower.files is not None

    @property
    def model_name(self) -> str:
        """What the network is called."""
        return self.own_model.name if self.own_model else self.model.name if self.model else "none"

    @property
    def server_holds_samples(self) -> bool:
        """Whether samples are set aside for the server."""
        return self.evaluation.official_test == "server" or self.server_set.fraction > 0

    @property
    def recommended(self) -> str:
        """The method for whoever names none: the best that the samples to judge by allow (docs/evidence.md)."""
        if self.server_set.source == "clients":
            return "RecommendedJudged"
        return "Recommended" if self.server_holds_samples or self.server_set.source == "contributed" else "FedAvg"

    @property
    def clients_test(self) -> bool:
        """Whether clients have test sets of their own."""
        return self.evaluation.official_test == "clients" or self.evaluation.test_fraction > 0

    def build_methods(self) -> list[Method]:
        """All methods, ready to run."""
        return [method.build(self.training) for method in self.methods]

    def to_toml(self) -> str:
        """The resolved config as TOML."""
        return tomli_w.dumps(self.to_dict())


def to_plain(value: Any) -> Any:
    """A value of a config as plain ones, as TOML and JSON know them."""
    if isinstance(value, Part):
        label = {"as": value.label} if value.label else {}
        options = {key: to_plain(option) for key, option in value.options.items() if option is not None}
        return {"name": value.name, **label, **options}
    if isinstance(value, BaseModel):
        return {
            key: to_plain(getattr(value, key)) for key in type(value).model_fields if getattr(value, key) is not None
        }
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value

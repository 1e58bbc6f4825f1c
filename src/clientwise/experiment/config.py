"""One TOML per experiment, validated before anything runs: every error at once, with the key and what to do."""

from __future__ import annotations

import importlib
import inspect
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, PrivateAttr, ValidationError, create_model
from pydantic_core import PydanticCustomError

from ..attacks import ATTACKS
from ..core.aggregate import SERVER_STEPS
from ..core.criteria import CRITERIA, make_criterion
from ..core.loss import LOSS_ADAPTERS
from ..core.method import Method
from ..core.priority import ADJUSTMENTS, MAX_CRITERIA
from ..core.scores import SCORES, Prioritized, Score
from ..core.types import LocalTraining
from ..core.weighting import NORMALISERS
from ..data.datasets import DATASETS
from ..data.partition import PARTITIONS
from ..errors import ClientwiseError
from ..models.networks import MODELS
from ..registry import NonNegativeFloat, Part, PositiveFloat, PositiveInt, Registry, Share, suggest
from ..trackers import TRACKERS


class ConfigError(ClientwiseError, ValueError):
    """Everything that is wrong with a config: one line per problem, with file, key and what to do."""

    def __init__(self, source: str, issues: Iterable[tuple[str, str]]) -> None:
        self.issues = list(issues)
        super().__init__(
            "\n".join(f"{source}: {key}: {message}" if key else f"{source}: {message}" for key, message in self.issues)
        )


# Parts: `score = "mean"` or `score = { name = "owa", quantifier = "most" }` -------------------------------------------


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
    fields: dict[str, Any] = {
        option.name: (option.type, ... if option.required else option.default) for option in registry.options(name)
    }
    given = {key: option for key, option in table.items() if key != "name"}
    label = given.pop("as", "") if registry is CRITERIA else ""
    if not isinstance(label, str):
        _raise([("as", f"must be a name, got {label!r}")])
    try:
        options = create_model(name, __base__=Section, **fields).model_validate(given)
    except ValidationError as error:
        _raise(_issues(error, {(): list(fields)}))
    return Part(name, {option: getattr(options, option) for option in fields}, label)


def make(registry: Registry[Any], part: Part) -> Any:
    """Call or bind a part: classes are constructed, functions wait for what the library passes in."""
    found = registry.get(part.name)
    return found(**part.options) if inspect.isclass(found) else partial(found, **part.options)


def _raise(issues: list[tuple[str, str]]) -> NoReturn:
    raise PydanticCustomError("part", "part", {"issues": issues})


def _part(registry: Registry[Any]) -> Any:
    return PlainValidator(partial(read_part, registry))


Fraction = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A table of the config. Unknown keys are errors."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )


class Training(Section):
    """How every client trains."""

    epochs: PositiveInt = Field(1, description="local epochs E")
    batch_size: PositiveInt | Literal["full"] = Field(
        "full", description='batch size B; "full" is one batch of everything'
    )
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="new every round: clients keep nothing between rounds")
    learning_rate: PositiveFloat = Field(0.1, description="learning rate η of the clients")
    momentum: Fraction = Field(0.0, description="of sgd")
    weight_decay: NonNegativeFloat = Field(0.0, description="L2 penalty on the weights")
    proximal: NonNegativeFloat = Field(0.0, description="FedProx's μ: (μ/2)·‖Θ_a − Θ‖² is added to the loss")


class TrainingOverride(Section):
    """What one method trains differently; see [training]."""

    epochs: PositiveInt | None = None
    batch_size: PositiveInt | Literal["full"] | None = None
    optimizer: Literal["sgd", "adam"] | None = None
    learning_rate: PositiveFloat | None = None
    momentum: Fraction | None = None
    weight_decay: NonNegativeFloat | None = None
    proximal: NonNegativeFloat | None = None


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
    fraction: Fraction = Field(0.2, description="share of all samples held out before the clients get theirs")
    report_fraction: Share = Field(0.5, description="share of the held-out samples that report; the others weigh")
    shared_set: bool = Field(False, description="weigh and report on the same samples, as P3 does")
    contributed_fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        0.05, description='share of a client\'s training samples it gives; with source = "contributed"'
    )


class EvaluationSettings(Section):
    """What is measured along the way."""

    test_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="share of a client's samples that is its own test set"
    )
    clients_every: Annotated[int, Field(ge=0)] = Field(
        1, description="rounds between evaluations on all clients' test sets; 0: never"
    )
    target: PositiveFloat | None = Field(
        None, description="rounds-to-target counts the rounds until the reported accuracy (regression: MAPE) gets there"
    )


class HostileClients(Section):
    """A group of hostile or faulty clients."""

    clients: PositiveInt | list[int] = Field(description="how many (chosen by the seed), or which")
    attack: Annotated[Part, _part(ATTACKS)] = Field(description="what they do")
    ignore_global: bool = Field(
        False, description="they keep training a model of their own instead of the global one (P3 1.C)"
    )


class MethodSettings(Section):
    """One way to weigh clients. With nothing but a name it is FedAvg."""

    name: Annotated[str, Field(min_length=1)] = Field(description="what tables and figures call it")
    criteria: Annotated[list[Annotated[Part, _part(CRITERIA)]], Field(min_length=1)] = Field(
        [Part("dataset_size", {})], description="what is measured about a client"
    )
    score: Annotated[Part, _part(SCORES)] = Field(
        Part("prioritized", {}), description="how the criteria become one number"
    )
    normalise: Annotated[Part, _part(NORMALISERS)] | None = Field(
        None, description='default: "sum", but "none" for the score "product"'
    )
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

    def build(self, training: Training) -> Method:
        """The method's parts, put together. ValueError where they do not fit."""
        given = {key: value for key, value in self.training.model_dump().items() if value is not None}
        local = {**training.model_dump(), **given}
        if local["batch_size"] == "full":
            local["batch_size"] = None
        score: Score = make(SCORES, self.score)
        normalise = self.normalise or Part(score.default_normaliser, {})
        return Method(
            name=self.name,
            criteria=tuple(make_criterion(part.name, part.label, **part.options) for part in self.criteria),
            normaliser=make(NORMALISERS, normalise),
            score=score,
            adjust=make(ADJUSTMENTS, self.adjust) if self.adjust else None,
            adapt_loss=make(LOSS_ADAPTERS, self.adapt_loss) if self.adapt_loss else None,
            server_step=make(SERVER_STEPS, self.server_step),
            training=LocalTraining(**local),
        )


class Experiment(Section):
    """Everything about an experiment. Methods of one seed share data, partition, initial model and cohorts."""

    name: Annotated[str, Field(min_length=1)] = Field(description="names the run folder")
    rounds: PositiveInt = Field(description="rounds of federated learning, per method and seed")
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1)] = Field(
        [1], description="one repetition each"
    )
    plugins: list[str] = Field(
        [], description="your own modules, imported first so that their parts are known; found beside the file"
    )
    plugin_dir: str | None = Field(None, description="where they lie; default: the folder of the config")
    engine: Literal["local"] = Field("local", description="where the clients live")
    checkpoint_seconds: NonNegativeFloat = Field(
        10.0, description="at least this long between two checkpoints; 0: one after every round"
    )
    device: str = Field(
        "auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description='"cpu", "cuda", or "auto": the GPU where there is one'
    )
    data_dir: str | None = Field(
        None, description="folder with the datasets in their published layouts; better given as --data-dir"
    )
    trackers: list[Annotated[Part, _part(TRACKERS)]] = Field(
        [], description="where else the run can be followed; nothing is sent anywhere by default"
    )
    data: Annotated[Part, _part(DATASETS)] | None = Field(
        None, description="where the samples come from; left out when arrays are handed to `cw.run`"
    )
    partition: Annotated[Part, _part(PARTITIONS)] | None = Field(
        None, description="how they are spread over the clients; left out likewise"
    )
    attributes: dict[str, list[float]] = Field(
        {}, description="facts about the clients, one value each, for the criterion `attribute` and your own"
    )
    model: Annotated[Part, _part(MODELS)] = Field(description="the network every client trains")
    training: Training = Field(Training(), description="how every client trains")
    federation: Cohorts = Field(Cohorts(), description="who takes part in a round")
    server_set: ServerSet = Field(ServerSet(), description="what the server weighs by and reports on")
    evaluation: EvaluationSettings = Field(EvaluationSettings(), description="what is measured along the way")
    hostile: list[HostileClients] = Field([], description="hostile or faulty clients")
    methods: Annotated[list[MethodSettings], Field(min_length=1)] = Field(
        [MethodSettings(name="FedAvg")], description="what is compared"
    )

    _source: str = PrivateAttr("config")

    @property
    def source(self) -> str:
        """What messages call the config: its file."""
        return self._source

    def build_methods(self) -> list[Method]:
        """All methods, ready to run."""
        return [method.build(self.training) for method in self.methods]

    def to_dict(self) -> dict[str, Any]:
        """The resolved config as plain values: every default written out, nothing left to the version."""
        plain = _plain(self)
        assert isinstance(plain, dict)
        return plain

    def to_toml(self) -> str:
        """The resolved config as TOML."""
        return tomli_w.dumps(self.to_dict())


# Reading ------------------------------------------------------------------------------------------------------------


def load_experiment(
    source: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), replaced: Mapping[str, Any] | None = None
) -> Experiment:
    """Read and validate a TOML file, or a dictionary of the same shape.

    `overrides` are texts `key=value` as in `--set`; `replaced` are values for keys of the top level.
    """
    where, folder, table = _read(source)
    for override in overrides:
        _override(table, override)
    table |= replaced or {}
    if isinstance(table.get("data_dir"), str):
        table["data_dir"] = str(folder / table["data_dir"])
    issues = []
    if table.get("plugins"):
        # Written into the resolved config, so that a run can be resumed from its own folder.
        table.setdefault("plugin_dir", str(folder))
        issues = _load_plugins(table["plugins"], str(table["plugin_dir"]))
    try:
        experiment = Experiment.model_validate(table)
    except ValidationError as error:
        raise ConfigError(where, issues + _issues(error, _KNOWN_KEYS)) from None
    issues += _impossible(experiment)
    if issues:
        raise ConfigError(where, issues)
    experiment._source = where
    return experiment


def _read(source: str | Path | Mapping[str, Any]) -> tuple[str, Path, dict[str, Any]]:
    """What to call the source in messages, the folder its relative paths start from, and what it says."""
    if isinstance(source, Mapping):
        return "config", Path.cwd(), _copy(source)
    where = str(source)
    try:
        return where, Path(source).resolve().parent, tomllib.loads(Path(source).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(where, [("", "no such file; `clientwise demo` runs without one")]) from None
    except IsADirectoryError:
        raise ConfigError(where, [("", "is a folder, not a TOML file")]) from None
    except OSError as error:
        raise ConfigError(where, [("", f"cannot be read: {error.strerror}")]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(where, [("", f"not valid TOML: {error}")]) from None


def _load_plugins(names: Any, folder: str) -> list[tuple[str, str]]:
    issues = []
    if folder not in sys.path:
        sys.path.append(folder)  # last: a file beside a config must not stand in for an installed package
    for index, name in enumerate(names if isinstance(names, list) else []):
        key = f"plugins[{index}]"
        try:
            importlib.import_module(str(name))
        except ModuleNotFoundError as error:
            issues.append((key, f"cannot import {name!r}: {error}; put {name}.py beside the config or install it"))
        except Exception as error:  # whatever a user's module raises while it is imported is theirs to know
            issues.append((key, f"importing {name!r} failed: {type(error).__name__}: {error}"))
    return issues


def _override(table: dict[str, Any], text: str) -> None:
    """Apply `training.learning_rate=0.05` or `methods.0.adjust="best_order"` to a table."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text}", [("", "write key=value, for instance training.learning_rate=0.05")])
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()  # a bare word is a string: device=cpu
    *path, last = key.strip().split(".")
    here: Any = table
    try:
        for step in path:
            here = here[int(step)] if isinstance(here, list) else here.setdefault(step, {})
        here[int(last) if isinstance(here, list) else last] = parsed
    except (ValueError, IndexError, TypeError, AttributeError):
        raise ConfigError(f"--set {text}", [("", f"there is no place {key.strip()!r} in this config")]) from None


def _impossible(experiment: Experiment) -> list[tuple[str, str]]:
    """Combinations that cannot work, found before anything runs."""
    issues: list[tuple[str, str]] = []
    names = [method.name for method in experiment.methods]
    for name in sorted({name for name in names if names.count(name) > 1}):
        issues.append(("methods", f"two methods are called {name!r}; tables could not tell them apart"))
    if len(set(experiment.seeds)) < len(experiment.seeds):
        issues.append(("seeds", "a seed is listed twice; it would repeat the same run"))
    if experiment.federation.fraction is not None and experiment.federation.clients_per_round is not None:
        issues.append(("federation", "give either fraction or clients_per_round"))
    server = experiment.server_set
    if not server.fraction and not experiment.evaluation.clients_every:
        issues.append(("evaluation.clients_every", "0 with no held-out samples: nothing would be measured"))
    weighs = server.source != "held_out" or (server.fraction > 0 and (server.shared_set or server.report_fraction < 1))
    for index, settings in enumerate(experiment.methods):
        key = f"methods[{index}]"
        issues += [
            (f"{key}.{part}" if part else key, message)
            for part, message in _impossible_method(settings, experiment.training)
        ]
        needs = [part.name for part in settings.criteria if part.name == "server_performance"]
        if (needs or settings.adapt_loss) and not weighs:
            issues.append(
                (
                    key,
                    "needs samples to weigh by: set server_set.fraction above 0 and report_fraction below 1",
                )
            )
    return issues


def _impossible_method(settings: MethodSettings, training: Training) -> list[tuple[str, str]]:
    issues: list[tuple[str, str]] = []
    names = [part.called for part in settings.criteria]
    for name in sorted({name for name in names if names.count(name) > 1}):
        issues.append(("criteria", f"{name} is listed twice; give one of them another name with `as`"))
    try:
        method = settings.build(training)
        method.score.check(names)
    except ValueError as error:
        return [*issues, ("score", str(error))]
    if method.training.optimizer == "adam" and method.training.momentum:
        issues.append(("training.momentum", 'goes with optimizer = "sgd"; adam has its own'))
    try:
        method.score.check_normaliser(
            settings.normalise.name if settings.normalise else method.score.default_normaliser
        )
    except ValueError as error:
        issues.append(("normalise", str(error)))
    if method.adjust:
        if not isinstance(method.score, Prioritized):
            issues.append(("adjust", 'adjusts an order of priority: use score = "prioritized"'))
        if not 2 <= len(names) <= MAX_CRITERIA:
            issues.append(("adjust", f"needs 2 to {MAX_CRITERIA} criteria to put in order, got {len(names)}"))
    return issues


# Messages -----------------------------------------------------------------------------------------------------------

_KNOWN_KEYS: dict[tuple[str, ...], list[str]] = {
    (): list(Experiment.model_fields),
    ("training",): list(Training.model_fields),
    ("federation",): list(Cohorts.model_fields),
    ("server_set",): list(ServerSet.model_fields),
    ("evaluation",): list(EvaluationSettings.model_fields),
    ("hostile",): list(HostileClients.model_fields),
    ("methods",): list(MethodSettings.model_fields),
    ("methods", "training"): list(TrainingOverride.model_fields),
}


def _issues(error: ValidationError, known: Mapping[tuple[str, ...], list[str]]) -> list[tuple[str, str]]:
    """Pydantic's errors as (key, message) in our words."""
    found: list[tuple[str, str]] = []
    wrong: dict[str, tuple[list[str], Any]] = {}  # a union fails once per alternative: one message for all of them
    for detail in error.errors():
        # Pydantic ends the place of a failed union with the name of the type it tried: not a key of the config.
        *path, last = detail["loc"]
        place = [step for step in path if not (isinstance(step, str) and ("[" in step or step in _TYPE_TAGS))]
        if detail["type"] in ("extra_forbidden", "missing") or not (
            isinstance(last, str) and ("[" in last or last in _TYPE_TAGS)
        ):
            place.append(last)
        key = _dotted(place)
        if detail["type"] == "part":
            found += [(f"{key}.{inner}" if inner else key, message) for inner, message in detail["ctx"]["issues"]]
        elif detail["type"] == "extra_forbidden":
            siblings = known.get(tuple(step for step in place[:-1] if isinstance(step, str)), [])
            found.append((key, f"unknown option{suggest(str(place[-1]), siblings)}"))
        elif detail["type"] == "missing":
            found.append((key, "is missing"))
        else:
            message = detail["msg"][0].lower() + detail["msg"][1:]
            wrong.setdefault(key, ([], detail["input"]))[0].append(message)
    found += [
        (key, f"{' or '.join(dict.fromkeys(messages))}, got {given!r}") for key, (messages, given) in wrong.items()
    ]
    return found


_TYPE_TAGS = {"int", "float", "str", "constrained-int", "constrained-float", "function-plain"}


def _dotted(place: Sequence[int | str]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).lstrip(".")


def _plain(value: Any) -> Any:
    if isinstance(value, Part):
        label = {"as": value.label} if value.label else {}
        options = {key: _plain(option) for key, option in value.options.items() if option is not None}
        return {"name": value.name, **label, **options}
    if isinstance(value, BaseModel):
        return {key: _plain(getattr(value, key)) for key in type(value).model_fields if getattr(value, key) is not None}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _copy(value: Any) -> Any:
    """A deep copy of dictionaries and lists, so that overrides do not reach the caller's."""
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, (list, tuple)) else value

"""Parts as the config names them: `score = "mean"`, or a table with a name and options."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from types import FunctionType
from typing import Annotated, Any, Literal

import torch
from pydantic import (
    BaseModel,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    create_model,
)
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_plain_validator_function
from torch import Tensor
from torch.nn import functional

from ...core.criteria import CRITERIA, Arrivals, ClientFacts, CriterionDeclaration
from ...core.objective.loss import LOSSES, UNREDUCED, FunctionLoss, Loss
from ...core.training import OPTIMIZERS, SCHEDULES, TRANSFORMS, OptimizerDeclaration
from ...core.types import LocalTraining
from ...core.weights.scores import SCORES, Score, score_by
from ...registry import Declaration, Need, Part, Registry, suggest
from .messages import issues_of, refuse
from .tables import CHECKED


def read_part(registry: Registry[Any], value: Any) -> Part:
    """Read a part: its options are checked against its signature, defaults are filled in."""
    if isinstance(value, Part):
        return value
    value = named(registry, value)
    table = {"name": value} if isinstance(value, str) else value
    if isinstance(table, Mapping) and callable(table.get("name")):
        table = {**table, "name": named(registry, table["name"])}
    name = _name_of(registry, table, is_table=table is value)
    given = {key: option for key, option in table.items() if key != "name"}
    label = given.pop("as", "") if registry is CRITERIA else ""
    if not isinstance(label, str):
        refuse([(f"as = {label!r}", "must be a string")])
    model = table_of_options(registry, name)
    try:
        options = model.model_validate(given)
    except ValidationError as error:
        refuse(issues_of(error, model))
    values = {option: getattr(options, option) for option in model.model_fields}
    _refuse_unknown_names(registry, name, values)
    return Part(name, values, label)


def read_recorded(registry: Registry[Any], value: Any) -> Part:
    """Read a part that a file names; ValueError that says what is wrong."""
    try:
        return read_part(registry, value)
    except PydanticCustomError as error:
        issues = (error.context or {})["issues"]
        raise ValueError("; ".join(f"{key}: {message}" for key, message in issues)) from None


def make(registry: Registry[Any], part: Part) -> Any:
    """Construct a class, or bind the options of a function that the library calls later."""
    found = registry.get(part.name)
    if inspect.isclass(found) and not registry.passes:
        return found(**part.options)
    return partial(found, **part.options)


def make_if_named(registry: Registry[Any], part: Part | None) -> Any:
    """The part; None where the config names none."""
    return None if part is None else make(registry, part)


@dataclass(frozen=True)
class PartOf:
    """Marks a key that takes a part of a kind: `Annotated[Part, PartOf(SCORES)]`."""

    registry: Registry[Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        """A name, or a table with a name and the options of that part."""
        names = list(self.registry)
        tables = [_table_schema(self.registry, name) for name in names]
        return {"anyOf": [{"enum": names}, *tables]}

    def read(self, value: Any) -> Part:
        """The part that a value names."""
        return read_part(self.registry, value)


class PlainPartOf(PartOf):
    """Marks a key that takes a part, which stays a name where it has no options of its own."""

    def read(self, value: Any) -> str | Part:  # type: ignore[override]
        """The name, or the part where an option differs from its default."""
        part = read_part(self.registry, value)
        defaults = {option.name: option.default for option in self.registry.options(part.name)}
        return part.name if part.options == defaults else part


class DrawnFrom(PartOf):
    """Marks a key that takes a distribution, or a number: the same value for all clients."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        """A number as well."""
        part = super().__get_pydantic_json_schema__(schema, handler)
        return {"anyOf": [{"type": "number"}, *part["anyOf"]]}

    def read(self, value: Any) -> Part:
        """The distribution that a value names."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number:
            value = {"name": "constant", "value": float(value)}
        return read_part(self.registry, value)


def _name_of(registry: Registry[Any], table: Any, *, is_table: bool) -> str:
    """The name of a part that is registered; anything else is refused."""
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        hint = "by a text, or by a table with its name and options"
        refuse([("", f"must name the {registry.kind}, {hint}{suggest('', registry)}")])
    name = str(table["name"])
    if name not in registry:
        key = "name" if is_table else ""
        refuse([(key, f"unknown {registry.kind} {name!r}{suggest(name, registry)}")])
    return name


def _refuse_unknown_names(registry: Registry[Any], name: str, values: Mapping[str, Any]) -> None:
    """Options that name a part of another kind must name one that is registered."""
    for option in registry.options(name):
        named = option.names_part_of
        chosen = values[option.name]
        if named is not None and chosen is not None and chosen not in named:
            message = f"unknown {named.kind} {chosen!r}{suggest(chosen, named)}"
            refuse([(option.name, message)])


def _table_schema(registry: Registry[Any], name: str) -> dict[str, Any]:
    """A part with its options, for editors."""
    schema = table_of_options(registry, name).model_json_schema()
    properties = {"name": {"const": name}, **schema.get("properties", {})}
    for option in registry.options(name):
        if option.names_part_of is not None:
            properties[option.name] = {"enum": list(option.names_part_of)}
    if registry is CRITERIA:
        properties["as"] = {"type": "string", "description": "another name for this criterion"}
    return {
        "type": "object",
        "description": registry.describe(name),
        "properties": properties,
        "required": ["name", *schema.get("required", [])],
        "additionalProperties": False,
    }


MOST_LISTED = 16  # parts that an option may list


def table_of_options(registry: Registry[Any], name: str) -> type[BaseModel]:
    """The options of a part as a pydantic model."""
    return _table_of_options(registry, name, registry.get(name))


@cache  # takes milliseconds; a config may name a part a thousand times, a report has as many audits
def _table_of_options(registry: Registry[Any], name: str, part: object) -> type[BaseModel]:
    """See `table_of_options`; `part` is what the name stands for now."""
    fields: dict[str, Any] = {}
    for option in registry.options(name):
        kind = option.type
        if option.lists_parts_of is not None:
            kind = _list_of_parts(option.lists_parts_of)
        fields[option.name] = (kind, ... if option.required else option.default)
    return create_model(name, __config__=CHECKED, **fields)


def _list_of_parts(registry: Registry[Any]) -> Any:
    """The type of an option that lists parts; see `registry.Lists`."""
    item = {"anyOf": [{"enum": list(registry)}, {"type": "object", "required": ["name"]}]}
    schema = {"type": "array", "items": item, "maxItems": MOST_LISTED}
    read = PlainValidator(partial(_read_parts, registry))
    return Annotated[tuple[Part, ...], read, WithJsonSchema(schema)]


def _read_parts(registry: Registry[Any], value: Any) -> tuple[Part, ...]:
    """Parts as a file lists them, each by its name or a table; ValueError says what is wrong."""
    if not isinstance(value, list | tuple) or len(value) > MOST_LISTED:
        raise _refusal(f"must be a list of at most {MOST_LISTED} {registry.plural}")
    return tuple(_read_listed(registry, one) for one in value)


def _refusal(reason: str) -> PydanticCustomError:
    return PydanticCustomError("listed_part", "{reason}", {"reason": reason})


def _read_listed(registry: Registry[Any], value: Any) -> Part:
    if isinstance(value, Part):
        return value
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, dict) or not isinstance(table.get("name"), str):
        raise _refusal(f"each must name a {registry.kind}, or be a table with its name")
    name = table["name"]
    if name not in registry:
        raise _refusal(f"unknown {registry.kind} {name!r}{suggest(name, registry)}")
    given = {key: option for key, option in table.items() if key != "name"}
    try:
        options = table_of_options(registry, name).model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(key) for key in first["loc"])
        raise _refusal(f"{name}: {where}: {first['msg']}") from None
    return Part(name, dict(options))


# What a function of `Arrivals` needs, by the attributes that it reads.
NEEDED_BY: dict[str, Need] = {
    "evaluation": "server_set",
    "judge": "server_set",
    "server_update": "server_samples",
}

# Losses of PyTorch that have a name here. They would average over the batch.
OF_TORCH: dict[Any, str] = {
    functional.cross_entropy: "cross_entropy",
    functional.binary_cross_entropy_with_logits: "binary_cross_entropy",
    functional.mse_loss: "mse",
    functional.l1_loss: "mae",
    functional.huber_loss: "huber",
}

# Keys of [training] that classes of `torch.optim` take as options
SHARED = ("momentum", "weight_decay")


@dataclasses.dataclass(frozen=True)
class GivenPart:
    """A part that was made of an object, by the name under which it is registered."""

    registry: Registry[Any]
    name: str
    part: Any
    declared: Declaration
    given: object

    def register(self) -> None:
        """Let the name stand for this part; ValueError where a plugin has the name."""
        self.registry.adopt(self.name, self.part, self.declared)


# What names stand for in the config that is being read, by kind and name
_given: ContextVar[dict[str, GivenPart] | None] = ContextVar("_given", default=None)


@contextmanager
def one_object_per_name() -> Iterator[dict[str, GivenPart]]:
    """A context for one config: objects of the same name that do not do the same are refused.

    Its value are the parts that were made of objects, by kind and name.
    """
    parts: dict[str, GivenPart] = {}
    token = _given.set(parts)
    try:
        yield parts
    finally:
        _given.reset(token)


def named(registry: Registry[Any], given: object) -> Any:
    """What a config would say for a part that is given as an object: a name, or a table.

    A plain function becomes a part of its own name. What is no part is returned as it is.
    """
    if isinstance(given, str | Mapping):
        return given
    for name in registry:
        part = registry.get(name)
        if part is given:
            return name
        if isinstance(part, type) and type(given) is part:
            return {"name": name, **_options(given)}
    if isinstance(given, Score) and registry is SCORES:
        _adopt(registry, type(given).__name__, type(given), Declaration(), type(given))
        return {"name": type(given).__name__, **_options(given)}
    if registry is OPTIMIZERS:
        return _optimizer(given)
    if registry is LOSSES and inspect.isroutine(given) and given in OF_TORCH:
        return OF_TORCH[given]
    if registry in (LOSSES, SCHEDULES, TRANSFORMS) and callable(given):
        return _callable(registry, given)
    return _adopted(registry, given) if inspect.isroutine(given) else given


def loss_with(option: str) -> str | None:
    """The first loss that has an option of this name."""
    for name in LOSSES:
        known = inspect.signature(LOSSES.get(name)).parameters.get(option)
        if known is not None and known.kind is known.KEYWORD_ONLY:
            return name
    return None


def with_zeros(optimizer: Any, table: Mapping[str, Any]) -> Any:
    """An optimizer with the zeros of its table as options, where it is given as a class or `partial`."""
    zeros = zeros_for(optimizer, table)
    return partial(optimizer, **zeros) if zeros else optimizer


def zeros_for(optimizer: Any, table: Mapping[str, Any]) -> dict[str, float]:
    """The keys that a table sets to 0 and that a class of `torch.optim` has as options.

    Args:
        optimizer: the class, a `partial` of it, or what was registered for it.
        table: [training], or changes of it.
    """
    made = getattr(optimizer, "function", optimizer)
    made = made.func if isinstance(made, partial) else made
    if not _is_optimizer(made):
        return {}
    known = inspect.signature(made).parameters
    return {key: 0.0 for key in SHARED if table.get(key) == 0 and key in known}


def _is_optimizer(given: object) -> bool:
    return isinstance(given, type) and issubclass(given, torch.optim.Optimizer)


def _optimizer(given: object) -> Any:
    """A class of `torch.optim`, or a `partial` of one with its options, as a name and options."""
    found = given.func if isinstance(given, partial) else given
    if not _is_optimizer(found):
        if isinstance(found, torch.optim.Optimizer):
            hint = f"every client has its own: pass the class, torch.optim.{type(found).__name__}"
            refuse([("", hint)])
        return given
    made: Any = found  # the arguments of a class are its own
    options = dict(given.keywords) if isinstance(given, partial) else {}
    if "lr" in options or (isinstance(given, partial) and given.args):
        refuse([("", f"{made.__name__}: pass the rate as learning_rate=, and options by name")])
    try:
        parameter = torch.nn.Parameter(torch.ones(2))
        parameter.grad = torch.ones(2)
        made([parameter], lr=0.1, **options).step()
    except Exception as error:  # a class of a user may raise anything
        reason = " ".join(str(error).split())
        refuse([("", f"{made.__name__} cannot be used: {type(error).__name__}: {reason}")])

    def make(parameters: Any, rate: Any, training: LocalTraining, **others: Any) -> Any:
        shared = {key: getattr(training, key) for key in SHARED}
        set_there = {key: value for key, value in shared.items() if value}
        plain = {key: tuple(one) if isinstance(one, list) else one for key, one in others.items()}
        return made(parameters, lr=rate, **{**plain, **set_there})

    known = list(inspect.signature(made).parameters.values())[1:]  # the first are the parameters
    kept = [
        one.replace(kind=one.KEYWORD_ONLY, annotation=Any)
        for one in known
        if one.name != "lr" and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    make.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
    make.function = made  # type: ignore[attr-defined]
    rates = [one.default for one in known if one.name == "lr"]
    rate = next((rate for rate in rates if isinstance(rate, int | float)), None)
    _adopt(OPTIMIZERS, made.__name__, make, OptimizerDeclaration(learning_rate=rate), made)
    plain = {key: list(one) if isinstance(one, tuple) else one for key, one in options.items()}
    return {"name": made.__name__, **plain}


def _callable(registry: Registry[Any], given: Callable[..., Any]) -> str:
    """A function, a `partial` or an object that can be called, as a loss, schedule or transform."""
    if isinstance(given, type):
        made = f"a function, or an object, as {given.__name__}(...)"
        if given.__module__ == "torch.nn.modules.loss":
            made = f'nn.{given.__name__}(reduction="none")'
        elif registry is SCHEDULES:
            made = "a function of the round's number"
        refuse([("", f"{given.__name__} is a class: pass {made}")])
    name = _called(registry, given)
    as_given = given
    source = given.func if isinstance(given, partial) else given
    if not inspect.isroutine(source):
        source = type(source)
    if registry is LOSSES:
        _refuse_reduced(given)
        given = copy.deepcopy(given)  # a module follows the data to their device
    by_sample = source.__module__ == "torch.nn.modules.loss"

    def make_loss(counts: Any) -> Loss:
        return FunctionLoss(name, given, compares_samples=not by_sample)

    def apply(argument: Any) -> Any:
        return given(argument)

    part: Any = make_loss if registry is LOSSES else apply
    part.function = source
    part.__doc__ = inspect.getdoc(source) or name
    _adopt(registry, name, part, Declaration(), as_given)
    return name


def _called(registry: Registry[Any], given: Callable[..., Any]) -> str:
    """The name of a function or object, with the plain options that it was made with."""
    if isinstance(given, partial):
        inner = _called(registry, given.func)
        return f"{inner}({_listed(given.keywords)})" if given.keywords else inner
    if inspect.isroutine(given):
        name = given.__name__
        if not name.isidentifier():
            hint = f"a lambda has no name for the record: write the {registry.kind} with def"
            refuse([("", hint)])
        return name
    options = {key: one for key, one in vars(given).items() if not key.startswith("_")}
    if isinstance(given, torch.nn.Module):
        del options["training"]
        options |= dict(given.state_dict())
    listed = _listed(options)
    return f"{type(given).__name__}({listed})" if listed else type(given).__name__


def _listed(options: Mapping[str, Any]) -> str:
    """Options in the name of a part: numbers, texts, and the digests of tensors."""
    plain = {}
    for key, one in options.items():
        if isinstance(one, str | int | float):
            plain[key] = str(one)
        elif isinstance(one, Tensor):
            content = one.detach().cpu().contiguous().numpy().tobytes()
            plain[key] = hashlib.blake2b(content, digest_size=4).hexdigest()
    return ", ".join(f"{key}={one}" for key, one in plain.items())


def _refuse_reduced(given: object) -> None:
    """A loss that averages over the batch: shares of samples and class weights need each sample's loss."""
    reduction = getattr(given, "reduction", UNREDUCED)
    if reduction != UNREDUCED:
        name = type(given).__name__
        hint = f'needs a loss per sample: pass nn.{name}(reduction="none")'
        refuse([("", f"reduction = {reduction!r} of {name}: {hint}")])


def _options(given: object) -> dict[str, Any]:
    """The options that an object was made with."""
    if not dataclasses.is_dataclass(given):
        if inspect.signature(type(given)).parameters:
            hint = "its options are not known: make it a dataclass, or pass its name and options"
            refuse([("", f"{type(given).__name__}: {hint}")])
        return {}
    found = {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in found.items()
        if value is not None
    }


def _adopted(registry: Registry[Any], function: Callable[..., Any]) -> str:
    """The name under which a plain function is registered."""
    name = function.__name__
    if not name.isidentifier():
        refuse([("", f"a lambda has no name for the record: write the {registry.kind} with def")])
    if registry is CRITERIA:
        measured_by = _measured_by(function)
        read = getattr(getattr(function, "__code__", None), "co_names", ())
        needs = frozenset(NEEDED_BY[one] for one in read if one in NEEDED_BY)
        declared = CriterionDeclaration(needs, measured_by=measured_by)
        _adopt(registry, name, function, declared, function)
    elif registry is SCORES:
        _adopt(registry, name, score_by(function), Declaration(), function)
    else:
        how = f"register it as a {registry.kind} (docs/own-criterion.md)"
        refuse([("", f"{name} is a function that is not registered: {how}")])
    return name


def _adopt(
    registry: Registry[Any], name: str, part: Any, declared: Declaration, given: object
) -> None:
    """Register what was made of a given object; within `one_object_per_name`, refuse another of its name."""
    made = GivenPart(registry, name, part, declared, given)
    known = _given.get()
    if known is not None:
        first = known.setdefault(f"{registry.kind} {name}", made)
        if not do_the_same(first.given, given):
            hint = "give one of them another name"
            refuse([("", f"two different objects are called {name!r}: {hint}")])
    try:
        made.register()
    except ValueError as error:
        refuse([("", f"{error}; give your own another name")])


def _measured_by(function: Callable[..., Any]) -> Literal["client", "server"]:
    """Who measures a criterion, by the function's first argument: its type, or its name."""
    first = next(iter(inspect.signature(function).parameters), "")
    try:
        kind = typing.get_type_hints(function).get(first)
    except NameError:  # a type that only the type checker imports
        kind = None
    if kind is ClientFacts or (kind is not Arrivals and first == "clients"):
        return "client"
    if kind is Arrivals or first == "arrivals":
        return "server"
    how = "`clients` (the client measures it, cw.ClientFacts) or `arrivals` (the server does, cw.Arrivals)"
    refuse([("", f"{function.__name__}({first}): call its first argument {how}")])


def do_the_same(one: Any, other: Any) -> bool:
    """Whether two functions or objects have the same code and values; False where that cannot be known.

    >>> do_the_same(partial(round, ndigits=1), partial(round, ndigits=1))
    True
    """
    try:
        return _same(one, other)
    except Exception:  # values of a user may refuse to be compared, or refer to each other
        return False


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if hasattr(one, "tolist"):  # tensors and arrays
        return one.dtype == other.dtype and bool(one.tolist() == other.tolist())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(_same, one.values(), other.values()))
    if isinstance(one, FunctionType):
        return one.__code__ is other.__code__ and _same(_bound(one), _bound(other))
    if isinstance(one, partial):
        return _same((one.func, one.args, one.keywords), (other.func, other.args, other.keywords))
    if isinstance(one, type) or not hasattr(one, "__dict__"):
        return bool(one == other)
    return _same(vars(one), vars(other))


def _bound(function: FunctionType) -> tuple[Any, ...]:
    """The values that a function has beside its code."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return cells, function.__defaults__, function.__kwdefaults__

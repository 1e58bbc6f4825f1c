"""Parts in a config: a name, a table with a name and options, or in Python the function, class or object itself."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, Field, ValidationError, WithJsonSchema, create_model
from pydantic_core import CoreSchema
from pydantic_core.core_schema import with_info_plain_validator_function

from ...core.criteria import CRITERIA, CriterionDeclaration
from ...core.objective.loss import LOSSES, FunctionLoss
from ...core.training import (
    OPTIMIZERS,
    SCHEDULES,
    TRANSFORMS,
    OptimizerDeclaration,
    ScheduleDeclaration,
)
from ...core.weights.scores import SCORES, Score, score_by
from ...registry import Adopted, Declaration, Lists, Names, Part, Registry, suggest
from .tables import MADE, ConfigTable, fields_of, issues_of, refuse

MOST_LISTED = 16  # parts that an option may list
Given = dict[str, tuple[Registry[Any], Adopted]]  # in Python instead of a name, by kind and name
Made = tuple[str, Adopted, dict[str, Any]]  # a part that was made of an object: name, part, options


def read_part(registry: Registry[Any], value: Any, config: Reading | None = None) -> Part:
    """Read a part: its options are checked against its signature, defaults are filled in.

    Args:
        registry: of its kind.
        value: a name, a table, or what is given in Python.
        config: the config that it is read from.
    """
    if isinstance(value, Part):
        return value
    table = as_table(registry, value)
    if isinstance(table, Mapping) and callable(table.get("name")):
        table = {**table, **as_table(registry, table["name"])}
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        hint = "by a text, or by a table with its name and options"
        refuse([("", f"must name the {registry.kind}, {hint}{suggest('', registry)}")])
    options = dict(table)
    name = options.pop("name")
    if name not in registry:
        key = "name" if isinstance(value, Mapping) else ""
        refuse([(key, f"unknown {registry.kind} {name!r}{suggest(name, registry)}")])
    label = options.pop("as", "") if registry is CRITERIA else ""
    if not isinstance(label, str):
        refuse([(f"as = {label!r}", "must be a string")])
    if config is not None:
        options = config.spanning(registry, name) | options
        config.keep_given(registry, name)
    model = table_of_options(registry, name)
    try:
        return Part(name, dict(model.model_validate(options)), label)
    except ValidationError as error:
        refuse(issues_of(error, model))


@dataclass(frozen=True)
class Reading:
    """A config while it is read."""

    rounds: object = None  # as the config has them
    given: Given = field(default_factory=dict)

    def spanning(self, registry: Registry[Any], name: str) -> dict[str, Any]:
        """The rounds of the run as an option of a schedule that spans all of them."""
        declared = registry.declared(name)
        spans = declared.spans if isinstance(declared, ScheduleDeclaration) else None
        return {spans: self.rounds} if spans and isinstance(self.rounds, int) else {}

    def keep_given(self, registry: Registry[Any], name: str) -> None:
        """Keep what a name stands for; refused where it already stands for another object."""
        made = registry.adopted(name)
        if made is None:
            return
        _, first = self.given.setdefault(f"{registry.kind} {name}", (registry, made))
        if first.given is not made.given:
            hint = "pass the same object to both, or give one of them another name"
            refuse([("", f"two different objects are called {name!r}: {hint}")])


def make(registry: Registry[Any], part: Part) -> Any:
    """Construct a class, or bind the options of a function that the library calls later."""
    found = registry.get(part.name)
    if inspect.isclass(found) and not registry.passes:
        return found(**part.options)
    return partial(found, **part.options)


def make_if_named(registry: Registry[Any], part: Part | None) -> Any:
    """The part; None where the config names none."""
    return None if part is None else make(registry, part)


# The types of keys ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartOf:
    """Marks a key that takes a part of a kind: `Annotated[Part, PartOf(SCORES)]`."""

    registry: Registry[Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return with_info_plain_validator_function(
            lambda value, info: self.read(value, info.context)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        """A name, or a table with a name and the options of that part."""
        tables = [options_schema(self.registry, name) for name in self.registry]
        return {"$comment": "part", "anyOf": [{"enum": list(self.registry)}, *tables]}

    def read(self, value: Any, config: Reading | None) -> Any:
        """The part that a value names."""
        return read_part(self.registry, value, config)


class PlainPartOf(PartOf):
    """Marks a key that takes a part, which stays a name where it has no options of its own."""

    def read(self, value: Any, config: Reading | None) -> Any:
        """The name, or the part where an option differs from its default."""
        part = read_part(self.registry, value, config)
        defaults = {option.name: option.default for option in self.registry.options(part.name)}
        return part.name if part.options == defaults else part


class DrawnFrom(PartOf):
    """Marks a key that takes a distribution, or a number: the same value for all clients."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        """A number as well."""
        part = super().__get_pydantic_json_schema__(schema, handler)
        return part | {"anyOf": [{"type": "number"}, *part["anyOf"]]}

    def read(self, value: Any, config: Reading | None) -> Any:
        """The distribution that a value names."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        constant = {"name": "constant", "value": float(value)} if is_number else value
        return super().read(constant, config)


class NameOf(PartOf):
    """Marks a key that names a part without options: `Annotated[str, NameOf(METRICS)]`."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        """A name."""
        return {"$comment": f"name of a {self.registry.kind}", "enum": list(self.registry)}

    def read(self, value: Any, config: Reading | None) -> str | None:
        """The name, if there is such a part."""
        return None if value is None else read_part(self.registry, value).name


class _AnyOptions(ConfigTable):
    """Of a function with `**options`."""

    model_config = {"extra": "allow"}


def table_of_options(registry: Registry[Any], name: str) -> type[ConfigTable]:
    """The options of a part as a table: its signature says names, types, bounds and defaults."""
    return _table_of_options(registry, name, registry.get(name))


@functools.cache  # takes milliseconds, and a config may name a part a thousand times
def _table_of_options(registry: Registry[Any], name: str, part: object) -> type[ConfigTable]:
    """See `table_of_options`; `part` is what the name stands for now."""
    fields = fields_of(registry.options(name))
    for option in registry.options(name):
        default = fields[option.name][1]
        if (named := option.registry(Names)) is not None:
            fields[option.name] = (Annotated[option.type, NameOf(named)], default)
        if (listed := option.registry(Lists)) is not None:
            fields[option.name] = (_list_of_parts(listed), default)
    base = _AnyOptions if registry.takes_any_option(name) else ConfigTable
    return create_model(name, __base__=base, __cls_kwargs__=MADE, **fields)


def options_schema(registry: Registry[Any], name: str) -> dict[str, Any]:
    """A part with its options as a JSON schema, for editors and the reference."""
    schema = table_of_options(registry, name).model_json_schema()
    properties = {"name": {"const": name}, **schema["properties"]}
    if registry is CRITERIA:
        properties["as"] = {"type": "string", "description": "another name for this criterion"}
    return {
        "type": "object",
        "description": registry.describe(name),
        "properties": properties,
        "required": ["name", *schema.get("required", [])],
        "additionalProperties": schema["additionalProperties"],
    }


def _list_of_parts(registry: Registry[Any]) -> Any:
    """The type of an option that lists parts; see `registry.Lists`."""
    # Not the options of each, since a part may list parts of its own kind
    item = {"anyOf": [{"enum": list(registry)}, {"type": "object", "required": ["name"]}]}
    comment = f"list of {registry.plural}"
    schema = {"$comment": comment, "type": "array", "items": item, "maxItems": MOST_LISTED}
    parts = Annotated[list[Annotated[Part, PartOf(registry)]], Field(max_length=MOST_LISTED)]
    return Annotated[parts, AfterValidator(tuple), WithJsonSchema(schema)]


# What is given in Python ------------------------------------------------------------------------------------------


def as_table(registry: Registry[Any], given: object) -> Any:
    """The table that a config would have for a part: its name and options.

    A function becomes a part of its own name. A table, and what is no part, is returned as it is.
    """
    if isinstance(given, Mapping):
        return given
    if isinstance(given, str):
        return {"name": given}
    for name in registry:
        part = registry.get(name) if registry.adopted(name) is None else None
        if part is given:
            return {"name": name}
        if isinstance(part, type) and type(given) is part:
            return {"name": name, **_options(given)}
    made = _made_of(registry, given)
    if made is None:
        return given
    name, adopted, options = made
    try:
        registry.adopt(name, adopted)
    except ValueError as error:
        refuse([("", f"{error}; give your own another name")])
    return {"name": name, **options}


def _made_of(registry: Registry[Any], given: Any) -> Made | None:
    """The part that an object becomes; None for what is no part."""
    if registry is OPTIMIZERS:
        return _optimizer(given)
    if registry in (LOSSES, SCHEDULES, TRANSFORMS) and callable(given):
        return _callable(registry, given)
    if registry is SCORES and isinstance(given, Score):
        kind = type(given)
        return kind.__name__, Adopted(kind, Declaration(), kind, kind), _options(given)
    if not inspect.isroutine(given):
        return None
    name = _name_of_function(registry, given)
    if registry is CRITERIA:
        return name, Adopted(given, _measurement(given), given, given), {}
    if registry is SCORES:
        return name, Adopted(score_by(given), Declaration(), given, given), {}
    how = f"register it as a {registry.kind} (docs/parts.md)"
    refuse([("", f"{name} is a function that is not registered: {how}")])


def part_with(option: str) -> tuple[str, str] | None:
    """The first loss or optimizer that has an option of this name: its kind, and its own name."""
    for registry in (LOSSES, OPTIMIZERS):
        for name in registry:
            if option in {one.name for one in registry.options(name)}:
                return registry.kind, name
    return None


def _optimizer(given: Any) -> Made | None:
    """A class of `torch.optim`, or a `partial` of one with its options."""
    made = given.func if isinstance(given, partial) else given
    if isinstance(made, torch.optim.Optimizer):
        hint = f"every client has its own: pass the class, torch.optim.{type(made).__name__}"
        refuse([("", hint)])
    if not isinstance(made, type) or not issubclass(made, torch.optim.Optimizer):
        return None
    options = dict(given.keywords) if isinstance(given, partial) else {}
    if "lr" in options or (isinstance(given, partial) and given.args):
        refuse([("", f"{made.__name__}: pass the rate as learning_rate=, and options by name")])
    rate = inspect.signature(made).parameters["lr"].default
    is_number = isinstance(rate, int | float)
    declared = OptimizerDeclaration(learning_rate=rate if is_number else None)

    def optimizer(parameters: Any, rate: Any, **options: Any) -> Any:
        own: Any = made  # the base class takes other arguments than its subclasses
        return own(parameters, lr=rate, **options)

    plain = {key: _as_list(one) for key, one in options.items()}
    return made.__name__, Adopted(optimizer, declared, made, made), plain


def _callable(registry: Registry[Any], given: Any) -> Made:
    """A function, a `partial` or an object that can be called, as a loss, schedule or transform."""
    if isinstance(given, type):
        hint = f"pass a function, or an object as {given.__name__}(...)"
        refuse([("", f"{given.__name__} is a class: {hint}")])
    name = _called(registry, given)
    source = given.func if isinstance(given, partial) else given
    source = source if inspect.isroutine(source) else type(source)
    part: Any = lambda argument: given(argument)  # noqa: E731  (its options are not those of `given`)
    if registry is LOSSES:
        by_sample = source.__module__ == "torch.nn.modules.loss"
        own = copy.deepcopy(given)  # a module follows the data to their device
        loss = FunctionLoss(kind=name, function=own, compares_samples=not by_sample)
        part = lambda: loss  # noqa: E731
    part.__doc__ = inspect.getdoc(source) or name
    return name, Adopted(part, Declaration(), given, source), {}


def _called(registry: Registry[Any], given: Any) -> str:
    """The name of a function or object, with the numbers and texts that it was made with."""
    if inspect.isroutine(given):
        return _name_of_function(registry, given)
    if isinstance(given, partial):
        name, options = _called(registry, given.func), given.keywords
    else:
        name, options = type(given).__name__, vars(given)
    plain = {key: one for key, one in options.items() if key[0] != "_" and key != "training"}
    shown = [f"{key}={one}" for key, one in plain.items() if isinstance(one, str | int | float)]
    return f"{name}({', '.join(shown)})" if shown else name


def _name_of_function(registry: Registry[Any], function: Any) -> str:
    name: str = function.__name__
    if not name.isidentifier():
        refuse([("", f"a lambda has no name for the record: write the {registry.kind} with def")])
    return name


def _options(given: Any) -> dict[str, Any]:
    """The options that an object was made with."""
    if not dataclasses.is_dataclass(given):
        if inspect.signature(type(given)).parameters:
            hint = "its options are not known: make it a dataclass, or pass its name and options"
            refuse([("", f"{type(given).__name__}: {hint}")])
        return {}
    found = {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    return {key: _as_list(value) for key, value in found.items() if value is not None}


def _as_list(value: Any) -> Any:
    """A tuple as TOML has it."""
    return list(value) if isinstance(value, tuple) else value


def _measurement(function: Callable[..., Any]) -> CriterionDeclaration:
    """Who measures a criterion, by the name of the function's first argument."""
    first = next(iter(inspect.signature(function).parameters), "")
    if first == "clients":
        return CriterionDeclaration(measured_by="client")
    if first == "arrivals":  # it may evaluate models: what a function reads is not known
        return CriterionDeclaration(frozenset({"server_set"}), measured_by="server")
    how = "`clients` (the client measures it, cw.parts.ClientFacts) or `arrivals` (the server does, cw.parts.Arrivals)"
    refuse([("", f"{function.__name__}({first}): call its first argument {how}")])

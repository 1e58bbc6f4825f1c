"""Parts as the config names them: `score = "mean"`, or a table with a name and options."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import ValidationError
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_plain_validator_function

from ...core.criteria import CRITERIA
from ...registry import Part, Registry, suggest
from .messages import issues_of, refuse
from .objects import named
from .options import table_of_options


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

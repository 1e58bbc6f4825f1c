"""Options of parts, checked by their signatures: in the same way for a config and for a run folder."""

from __future__ import annotations

from functools import cache, partial
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    create_model,
)
from pydantic_core import PydanticCustomError

from ...registry import Part, Registry, suggest

MOST_LISTED = 16  # parts that an option may list

CHECKED = ConfigDict(
    extra="forbid",
    strict=True,
    frozen=True,
    arbitrary_types_allowed=True,
    allow_inf_nan=False,
)


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

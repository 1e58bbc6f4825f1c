"""Tables of the config as pydantic models, some made from the fields of other classes."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from annotated_types import DocInfo
from pydantic import BaseModel, ConfigDict, Field, create_model

from ...registry import Part

T = TypeVar("T", bound="ConfigTable")
Fields = Mapping[str, Any]  # by name: a type and a pydantic field, as `create_model` takes them


class ConfigTable(BaseModel):
    """A table of the config. Unknown keys are errors."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        arbitrary_types_allowed=True,
        allow_inf_nan=False,
    )

    def to_dict(self) -> dict[str, Any]:
        """The table as plain values, with every default written out."""
        plain = to_plain(self)
        assert isinstance(plain, dict)
        return plain


def to_plain(value: Any) -> Any:
    """A value of a config as TOML and JSON have it; keys without a value are left out."""
    if isinstance(value, Part):
        return _plain_part(value)
    if isinstance(value, BaseModel):
        items = {key: getattr(value, key) for key in type(value).model_fields}
        return {key: to_plain(item) for key, item in items.items() if item is not None}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def _plain_part(part: Part) -> dict[str, Any]:
    plain = {"name": part.name}
    if part.label:
        plain["as"] = part.label
    options = {key: to_plain(value) for key, value in part.options.items() if value is not None}
    return plain | options


def with_fields(fields: Fields) -> Callable[[type[T]], type[T]]:
    """Class decorator: add these fields to a table."""

    def decorate(table: type[T]) -> type[T]:
        return create_model(
            table.__name__,
            __base__=table,
            __module__=table.__module__,
            __doc__=table.__doc__,
            **fields,
        )

    return decorate


def fields_of(source: type[Any]) -> dict[str, Any]:
    """The fields of a dataclass with their types, bounds, defaults and meanings.

    A meaning is stated as `Annotated[int, doc("Local epochs.")]`.
    """
    types = typing.get_type_hints(source, include_extras=True)
    fields = {}
    for one in dataclasses.fields(source):
        default = ... if one.default is dataclasses.MISSING else one.default
        meaning = _meaning(types[one.name])
        fields[one.name] = (types[one.name], Field(default, description=meaning))
    return fields


def optional_fields_of(table: type[ConfigTable]) -> dict[str, Any]:
    """The fields of a table, each of which may be left out."""
    fields: dict[str, Any] = {}
    for name, field in table.model_fields.items():
        kind: Any = field.annotation
        for mark in field.metadata:
            kind = Annotated[kind, mark]
        fields[name] = (kind | None, Field(None, description=field.description))
    return fields


def _meaning(kind: Any) -> str | None:
    marks = getattr(kind, "__metadata__", ())
    return next((mark.documentation for mark in marks if isinstance(mark, DocInfo)), None)

"""Tables of the config as pydantic models, some made from the fields of other classes."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from annotated_types import DocInfo, MaxLen
from pydantic import BaseModel, Field, create_model
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function

from ...registry import Part
from .options import CHECKED

T = TypeVar("T", bound="ConfigTable")
S = TypeVar("S")
MOST_ENTRIES = 1_000  # of a list
Fields = Mapping[str, Any]  # by name: a type and a pydantic field, as `create_model` takes them


class ConfigTable(BaseModel):
    """A table of the config. Unknown keys are errors."""

    model_config = CHECKED

    def to_dict(self) -> dict[str, Any]:
        """The table as plain values, with every default written out."""
        plain = to_plain(self)
        assert isinstance(plain, dict)
        return plain


def to_plain(value: Any) -> Any:
    """A value of a config as TOML and JSON have it; keys without a value are left out."""
    if isinstance(value, Part):
        return _plain_part(value)
    if isinstance(value, BaseModel) or dataclasses.is_dataclass(value):
        items = dict(value) if isinstance(value, BaseModel) else vars(value)
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


@dataclass(frozen=True)
class TableOf(Generic[S]):
    """Marks a key that takes a dataclass, as a table: `Annotated[Pace, TableOf(Pace)]`.

    Args:
        source: the dataclass. The keys of the table are its fields, see `fields_of`.
        about: what the table is for; by default the first line of the dataclass's docstring.
    """

    source: type[S]
    about: str = ""

    @property
    def table(self) -> type[ConfigTable]:
        """The table that the config's checks, messages and reference know."""
        source: Any = self.source  # mypy takes a class of any type for one that has no hash
        return _table_of(source, self.about)

    def read(self, value: Any) -> S:
        """The object that a table describes; pydantic's ValidationError where it is wrong."""
        return self._build(self.table.model_validate(value))

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return no_info_after_validator_function(self._build, handler.generate_schema(self.table))

    def _build(self, table: ConfigTable) -> S:
        values = {}
        for key, value in table:
            values[key] = tuple(value) if isinstance(value, list) else value
        return self.source(**values)


@functools.cache  # every key of this type has the same table
def _table_of(source: type[Any], about: str) -> type[ConfigTable]:
    fields: dict[str, Any] = {}
    for name, (kind, field) in fields_of(source).items():
        fields[name] = (_in_toml(kind), field)
    text = about or (inspect.getdoc(source) or "").splitlines()[0]
    return create_model(source.__name__, __base__=ConfigTable, __doc__=text, **fields)


def _in_toml(kind: Any) -> Any:
    """A type as a config has it: a list instead of a tuple, a table instead of a dataclass."""
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return Annotated[kind, TableOf(kind)]
    if origin is Annotated:
        return Annotated[_in_toml(arguments[0]), *arguments[1:]]
    if origin is tuple:
        return Annotated[list[_in_toml(arguments[0])], MaxLen(MOST_ENTRIES)]  # type: ignore[misc]
    if origin in (types.UnionType, typing.Union):
        return typing.Union[tuple(map(_in_toml, arguments))]  # noqa: UP007
    return kind


def table_in(kind: Any) -> type[BaseModel] | None:
    """The table in a type such as `list[Annotated[MethodSettings, ...]] | None`."""
    if isinstance(kind, TableOf):
        return kind.table
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    tables = [table_in(argument) for argument in typing.get_args(kind)]
    return next((table for table in tables if table is not None), None)


def _meaning(kind: Any) -> str | None:
    marks = getattr(kind, "__metadata__", ())
    return next((mark.documentation for mark in marks if isinstance(mark, DocInfo)), None)

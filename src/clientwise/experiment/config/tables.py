"""Tables of the config as pydantic models, some made from the fields of other classes."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from annotated_types import DocInfo, MaxLen
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_after_validator_function

from ...registry import Part

CHECKED = ConfigDict(
    extra="forbid",
    strict=True,
    frozen=True,
    arbitrary_types_allowed=True,
    allow_inf_nan=False,
)
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


MOST_SEEDS = 10_000
MOST_PLUGINS = 100


def _name(text: str) -> str:
    """Folders, tables and figures are called by it."""
    has_control = any(letter < " " for letter in text)
    if not 0 < len(text.encode()) <= 200 or has_control:
        raise PydanticCustomError("name", "must have 1 to 200 bytes and no control characters")
    return text


def _device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,2})?", name):
        allowed = 'must be "auto", "cpu", "cuda", or "cuda:1" for the second GPU'
        raise PydanticCustomError("device", allowed)
    return name


def parse_seeds(text: str) -> list[int]:
    """Seeds from "1, 2, 3", "1-5" or "1-5, 9"; ValueError for any other text.

    >>> parse_seeds("7, 1-3")
    [7, 1, 2, 3]
    """
    ranges = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*([0-9]{1,19})\s*(?:-\s*([0-9]{1,19})\s*)?", part)
        if ends is None or int(ends[1]) > int(ends[2] or ends[1]):
            raise ValueError("write 1,2,3 or 1-5")
        ranges.append(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    count = sum(one.stop - one.start for one in ranges)
    if count > MOST_SEEDS:
        raise ValueError(f"{count:,} seeds; {MOST_SEEDS:,} at most")
    return [seed for one in ranges for seed in one]


def _seeds(value: Any) -> Any:
    """A text becomes a list; anything else is left to the checks of a list."""
    if not isinstance(value, str):
        return value
    try:
        return parse_seeds(value)
    except ValueError as error:
        raise PydanticCustomError("seeds", "{reason}", {"reason": str(error)}) from None


Fraction = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=0)]
SampleSize = Annotated[int, Field(ge=2)]  # a standard error needs two
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Seeds = Annotated[list[Seed], Field(min_length=1, max_length=MOST_SEEDS), BeforeValidator(_seeds)]
Name = Annotated[str, AfterValidator(_name)]
Note = Annotated[str, Field(max_length=2_000)]
Tags = Annotated[list[Name], Field(max_length=100)]
DeviceName = Annotated[str, AfterValidator(_device)]

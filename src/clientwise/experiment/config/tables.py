"""Tables of the config as pydantic models, and the types of single values. Nothing here needs PyTorch."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from annotated_types import DocInfo, MaxLen
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_after_validator_function

from ...registry import Option, Part, options_of

T = TypeVar("T", bound="ConfigTable")
S = TypeVar("S")
MOST_ENTRIES = 1_000  # of a list
MOST_SEEDS = 10_000
MOST_PLUGINS = 100


class ConfigTable(BaseModel):
    """A table of the config: unknown keys are errors, and the text beneath a key says what it means."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        arbitrary_types_allowed=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        for (
            field
        ) in cls.model_fields.values():  # in one line, as the reference and messages have it
            field.description = " ".join((field.description or "").split()) or None

    def to_dict(self) -> dict[str, Any]:
        """The table as plain values, with every default written out."""
        plain: dict[str, Any] = to_plain(self)
        return plain


def to_plain(value: Any) -> Any:
    """A value of a config as TOML and JSON have it; keys without a value are left out."""
    if isinstance(value, Part):
        label = {"as": value.label} if value.label else {}
        return {"name": value.name, **label, **_plain_items(value.options)}
    if isinstance(value, BaseModel):
        return _plain_items(dict(value))
    if dataclasses.is_dataclass(value):
        return _plain_items(vars(value))
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _plain_items(items: Mapping[str, Any]) -> dict[str, Any]:
    return {key: to_plain(item) for key, item in items.items() if item is not None}


def with_fields(fields: Mapping[str, Any]) -> Callable[[type[T]], type[T]]:
    """Class decorator: add these fields, as `create_model` takes them, to a table."""

    def decorate(table: type[T]) -> type[T]:
        name, module, about = table.__name__, table.__module__, table.__doc__
        return create_model(name, __base__=table, __module__=module, __doc__=about, **fields)

    return decorate


def fields_of(options: Iterable[Option]) -> dict[str, Any]:
    """Options of a function or class as fields: their types, bounds, defaults and meanings.

    A meaning is stated as `Annotated[int, doc("Local epochs.")]`.
    """
    fields = {}
    for one in options:
        marks = getattr(one.type, "__metadata__", ())
        meanings = [mark.documentation for mark in marks if isinstance(mark, DocInfo)]
        default = ... if one.required else one.default
        field = Field(default, description=meanings[0] if meanings else None)
        fields[one.name] = (_in_toml(one.type), field)
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
    """Marks a key that takes a dataclass, as a table with its fields: `Annotated[Pace, TableOf(Pace)]`."""

    source: type[S]

    @property
    def table(self) -> type[ConfigTable]:
        """The table that the config's checks, messages and reference know."""
        return _table_of(self.source)  # type: ignore[arg-type]  # mypy: a class of any type has no hash

    def read(self, value: Any) -> S:
        """The object that a table describes; pydantic's ValidationError where it is wrong."""
        return self._build(self.table.model_validate(value))

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return no_info_after_validator_function(self._build, handler.generate_schema(self.table))

    def _build(self, table: ConfigTable) -> S:
        values = {key: tuple(one) if isinstance(one, list) else one for key, one in table}
        return self.source(**values)


@functools.cache  # every key of this type has the same table
def _table_of(source: type[Any]) -> type[ConfigTable]:
    about = (inspect.getdoc(source) or "").partition("\n")[0]
    fields = fields_of(options_of(source))  # type: ignore[arg-type]  # as above
    return create_model(source.__name__, __base__=ConfigTable, __doc__=about, **fields)


def _in_toml(kind: Any) -> Any:
    """A type as a config has it: a list instead of a tuple, a text as path."""
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is Annotated:
        return Annotated[_in_toml(arguments[0]), *arguments[1:]]
    if typing.get_origin(kind) is tuple:
        return Annotated[list[arguments[0]], MaxLen(MOST_ENTRIES)]  # type: ignore[valid-type]
    return Annotated[Path, Field(strict=False)] if kind is Path else kind


def table_in(kind: Any) -> type[BaseModel] | None:
    """The table in a type such as `list[Annotated[MethodSettings, ...]] | None`."""
    if isinstance(kind, TableOf):
        return kind.table
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    tables = [table_in(argument) for argument in typing.get_args(kind)]
    return next((table for table in tables if table is not None), None)


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


Fraction = Annotated[float, Field(ge=0, lt=1)]
PartOfAll = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Seeds = Annotated[list[Seed], Field(min_length=1, max_length=MOST_SEEDS), BeforeValidator(_seeds)]
Name = Annotated[str, AfterValidator(_name)]
DeviceName = Annotated[str, AfterValidator(_device)]

"""Tables of the config as pydantic models, the types of single values, and what validation errors say.

`training.learning_rate = -1: must be greater than 0.` Nothing here needs PyTorch.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, NoReturn, TypeVar

from annotated_types import DocInfo, MaxLen
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError
from pydantic_core.core_schema import no_info_after_validator_function

from ...errors import ConfigError, shortened
from ...registry import Option, Part, closest, options_of, suggest

T = TypeVar("T", bound="ConfigTable")
S = TypeVar("S")
MOST_ENTRIES = 1_000  # of a list
MOST_SEEDS = 10_000
MOST_PLUGINS = 100
# A table made here has no docstrings of attributes, for whose source Pydantic would look in every frame of the stack
MADE = {"use_attribute_docstrings": False}


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
    name, base = source.__name__, ConfigTable
    return create_model(name, __base__=base, __doc__=about, __cls_kwargs__=MADE, **fields)


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


# Messages ----------------------------------------------------------------------------------------------------

Issue = tuple[str, str]  # the key, with its value where it is wrong; and what is wrong with it
ConfigPath = list[int | str]
MOST_ISSUES = 100  # in one message
LONGEST_VALUE = 80  # characters

# What pydantic adds to a path: the types of a union
_TYPE_TAGS = {
    "bool",
    "int",
    "float",
    "str",
    "constrained-int",
    "constrained-float",
    "function-plain",
}
_WORDS = {  # of pydantic's messages, in those of TOML
    "Input should": "must",
    "List should": "must",
    "a valid integer": "an integer",
    "a valid dictionary": "a table",
    "a valid boolean": "true or false",
    "a valid": "a",
}


def issues_of(error: ValidationError, table: type[BaseModel]) -> list[Issue]:
    """Pydantic's errors as (key, message).

    Args:
        error: what validation raised.
        table: the class that was validated, for suggestions and typical values.
    """
    details = error.errors(include_url=False)
    found: list[Issue] = []
    wrong: dict[str, list[str]] = {}  # a union fails once per alternative: one message for all
    typical: dict[str, str] = {}
    meant: set[str] = set()  # keys that are misspelt, and so not missing
    for detail in details[:MOST_ISSUES]:
        path = _key_path(detail)
        if detail["type"] == "part":  # what a validator of ours refused
            inner = detail["ctx"]["issues"]
            found += [(f"{dotted(path)}.{key}".strip("."), reason) for key, reason in inner]
        elif detail["type"] == "missing":
            found.append((dotted(path), "is missing"))
        elif detail["type"] == "extra_forbidden":
            *parent, unknown = path
            known = _keys_at(table, parent)
            meant.add(dotted([*parent, closest(str(unknown), known) or ""]))
            hint = suggest(str(unknown), known)
            if parent and unknown in table.model_fields:
                hint = "; it is an option of the experiment, outside of all tables"
            found.append((dotted(path), f"unknown option{hint}"))
        elif not path:
            rule = _rule(detail, path)
            found.append(("", f"{rule}, got {_shown(detail['input'])}"))
        else:
            shown = f"{dotted(path)} = {_shown(detail['input'])}"
            wrong.setdefault(shown, []).append(_rule(detail, path))
            typical[shown] = _typical_values(table, path)
    found = [one for one in found if one[0] not in meant or one[1] != "is missing"]
    for shown, rules in wrong.items():
        found.append((shown, f"{_either(rules)}.{typical.get(shown, '')}"))
    if len(details) > MOST_ISSUES:
        found.append(("", f"and {len(details) - MOST_ISSUES:,} more like these"))
    return found


def read_table(kind: type[T], table: object, key: str, where: str) -> T:
    """A table that is validated by itself; ConfigError with all that is wrong in it.

    Args:
        kind: its class.
        table: as the config has it.
        key: where the config has it.
        where: the name of the config in messages.
    """
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        issues = issues_of(error, kind)
        found = [(f"{key}.{inner}".strip("."), message) for inner, message in issues]
        raise ConfigError(where, found) from None


def refuse(issues: Sequence[Issue]) -> NoReturn:
    """Within a validator: refuse a value for these reasons, each with a key inside of it."""
    text = "; ".join(f"{key}: {message}" for key, message in issues)
    raise PydanticCustomError("part", "{text}", {"text": text, "issues": list(issues)})


def dotted(key_path: Iterable[int | str]) -> str:
    """A path in the config as one key.

    >>> dotted(["methods", 0, "name"])
    'methods[0].name'
    """
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in key_path]
    return "".join(steps).removeprefix(".")


def _key_path(detail: ErrorDetails) -> ConfigPath:
    """Where an error is, without the types of a union that pydantic adds to the path."""
    path = list(detail["loc"])
    key = [path.pop()] if detail["type"] in ("extra_forbidden", "missing") else []
    return [step for step in path if not _is_type(step)] + key


def _is_type(step: int | str) -> bool:
    return isinstance(step, str) and ("[" in step or step in _TYPE_TAGS)


def _rule(detail: ErrorDetails, path: ConfigPath) -> str:
    """What a value must be."""
    kind, value = detail["type"], detail["input"]
    if kind in ("list_type", "sequence_str") or detail.get("ctx", {}).get("class") == "Sequence":
        if isinstance(value, dict) and path and not _is_type(detail["loc"][-1]):
            return f"must be a list of tables: write [[{path[-1]}]] instead of [{path[-1]}]"
        is_number = isinstance(value, int | float)
        return f"must be a list: [{_shown(value)}]" if is_number else "must be a list"
    if kind in ("model_type", "is_instance_of"):
        return "must be a table"
    text = detail["msg"]
    for theirs, ours in _WORDS.items():
        text = text.replace(theirs, ours)
    return text


def _either(rules: Sequence[str]) -> str:
    """One sentence of all rules, of which one must hold."""
    first, *others = dict.fromkeys(rules)
    return " or ".join([first, *(rule.removeprefix("must be ") for rule in others)])


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return shortened(repr(value), LONGEST_VALUE)


def _keys_at(table: type[BaseModel], path: ConfigPath) -> list[str]:
    """The keys that are known at a path."""
    found = _table_at(table, path)
    if found is None:
        return []
    return [*found.model_fields, *getattr(found, "other_keys", ())]


def _typical_values(table: type[BaseModel], path: ConfigPath) -> str:
    """The sentence in a key's description about its typical values, with a space before it."""
    found = _table_at(table, path[:-1])
    field = found.model_fields.get(str(path[-1])) if found else None
    text = (field.description if field else None) or ""
    _, typical, values = text.partition(" Typical values")
    return f"{typical}{values}"


def _table_at(table: type[BaseModel] | None, path: ConfigPath) -> type[BaseModel] | None:
    """The class of the table at a path of the config."""
    for step in path:
        if table is not None and not isinstance(step, int):
            field = table.model_fields.get(step)
            table = table_in(field.annotation) if field else None
    return table

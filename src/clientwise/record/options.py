"""Options of parts, checked by their signatures: in the same way for a config and for a run folder."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

from ..registry import Part, Registry

CHECKED = ConfigDict(
    extra="forbid",
    strict=True,
    frozen=True,
    arbitrary_types_allowed=True,
    allow_inf_nan=False,
)


def build(registry: Registry[Any], part: Part) -> Any:
    """The object that a recorded part names, with its options.

    None where the part is not of this library, or does not take these options.
    """
    if part.name not in registry:
        return None
    try:
        return with_options(registry, part)()
    except ValueError:  # pydantic's ValidationError is one
        return None


def with_options(registry: Registry[Any], part: Part) -> partial[Any]:
    """What a recorded part of this library names, with its options; ValueError for others."""
    options = table_of_options(registry, part.name).model_validate(part.options)
    return partial(registry.get(part.name), **dict(options))


def table_of_options(registry: Registry[Any], name: str) -> type[BaseModel]:
    """The options of a part as a pydantic model."""
    return _table_of_options(registry, name, registry.get(name))


@cache  # takes milliseconds; a config may name a part a thousand times, a report has as many audits
def _table_of_options(registry: Registry[Any], name: str, part: object) -> type[BaseModel]:
    """See `table_of_options`; `part` is what the name stands for now."""
    fields: dict[str, Any] = {}
    for option in registry.options(name):
        fields[option.name] = (option.type, ... if option.required else option.default)
    return create_model(name, __config__=CHECKED, **fields)

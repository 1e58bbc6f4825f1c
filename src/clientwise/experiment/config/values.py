"""Types of single values in the config."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

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

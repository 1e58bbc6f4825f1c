"""Validation errors in the words of the config: the key, what is wrong with it, and what was meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from ..registry import suggest

MOST_ISSUES = 100  # that are told at once


def issues_of(error: ValidationError, known: Mapping[tuple[str, ...], list[str]]) -> list[tuple[str, str]]:
    """Pydantic's errors as (key, message) in our words."""
    found: list[tuple[str, str]] = []
    wrong: dict[str, tuple[list[str], Any]] = {}  # a union fails once per alternative: one message for all of them
    details = error.errors(include_url=False)
    for detail in details[:MOST_ISSUES]:
        # Pydantic ends the place of a failed union with the name of the type it tried: not a key of the config.
        *path, last = detail["loc"] or ("",)  # nothing: all of it
        place = [step for step in path if not (isinstance(step, str) and ("[" in step or step in _TYPE_TAGS))]
        if detail["type"] in ("extra_forbidden", "missing") or not (
            isinstance(last, str) and ("[" in last or last in _TYPE_TAGS)
        ):
            place.append(last)
        key = dotted(place)
        if detail["type"] == "part":
            found += [(f"{key}.{inner}" if inner else key, message) for inner, message in detail["ctx"]["issues"]]
        elif detail["type"] == "extra_forbidden":
            siblings = known.get(tuple(step for step in place[:-1] if isinstance(step, str)), [])
            found.append((key, f"unknown option{suggest(str(place[-1]), siblings)}"))
        elif detail["type"] == "missing":
            found.append((key, "is missing"))
        elif detail["type"] == "too_short":
            found.append((key, f"must have at least {detail['ctx']['min_length']} of them, got {detail['input']!r}"))
        else:
            message = detail["msg"][0].lower() + detail["msg"][1:]
            wrong.setdefault(key, ([], detail["input"]))[0].append(message)
    found += [
        (key, f"{' or '.join(dict.fromkeys(messages))}, got {given!r}") for key, (messages, given) in wrong.items()
    ]
    if len(details) > MOST_ISSUES:
        found.append(("", f"and {len(details) - MOST_ISSUES:,} more like these"))
    return found


_TYPE_TAGS = {"bool", "int", "float", "str", "constrained-int", "constrained-float", "function-plain"}


def dotted(place: Sequence[int | str]) -> str:
    """A place in the config as one writes it: methods[0].name."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).lstrip(".")

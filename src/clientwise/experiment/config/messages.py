"""Validation errors as messages: `training.learning_rate = -1: must be greater than 0.`"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from ...errors import shortened
from ...registry import closest, suggest
from .tables import table_in

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
_RULES = {  # pydantic's error types; the words in braces are its context
    "bool_type": "must be true or false",
    "dict_type": "must be a table",
    "finite_number": "must be finite",
    "float_type": "must be a number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": "must be an integer",
    "int_type": "must be an integer",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "mapping_type": "must be a table",
    "model_type": "must be a table",
    "path_type": "must be a path",
    "sequence_str": "must be a list",
    "string_too_long": "must have at most {max_length} characters",
    "string_type": "must be a string",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have at least {min_length} entries",
}
_RANGES = {"greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"}


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
            rule = _rule(detail, path, table)
            found.append(("", f"{rule}, got {_shown(detail['input'])}"))
        else:
            shown = f"{dotted(path)} = {_shown(detail['input'])}"
            wrong.setdefault(shown, []).append(_rule(detail, path, table))
            if detail["type"] in _RANGES:
                typical[shown] = _typical_values(table, path)
    found = [one for one in found if one[0] not in meant or one[1] != "is missing"]
    for shown, rules in wrong.items():
        found.append((shown, f"{_either(rules)}.{typical.get(shown, '')}"))
    if len(details) > MOST_ISSUES:
        found.append(("", f"and {len(details) - MOST_ISSUES:,} more like these"))
    return found


def refuse(issues: Sequence[Issue]) -> NoReturn:
    """Within a validator: refuse a value for these reasons, each with a key inside of it."""
    raise PydanticCustomError("part", "part", {"issues": list(issues)})


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


def _rule(detail: ErrorDetails, path: ConfigPath, table: type[BaseModel]) -> str:
    """What a value must be."""
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "too_short" and context["min_length"] == 1:
        return "must not be empty"
    if kind == "list_type" or context.get("class") == "Sequence":
        if isinstance(value, dict) and path and not _is_type(detail["loc"][-1]):
            return f"must be a list of tables: write [[{path[-1]}]] instead of [{path[-1]}]"
        is_number = isinstance(value, int | float)
        return f"must be a list: [{_shown(value)}]" if is_number else "must be a list"
    if kind == "is_instance_of":
        return "must be a table"
    rule = _RULES.get(kind)
    if rule is None:
        return detail["msg"][0].lower() + detail["msg"][1:]
    limits = {key: _limit(limit) for key, limit in context.items()}
    keys = _keys_at(table, path) if kind == "model_type" and path else []
    return rule.format(**limits) + (f" with the options {', '.join(keys)}" if keys else "")


def _limit(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


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

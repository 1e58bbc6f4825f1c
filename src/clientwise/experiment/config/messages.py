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
    "is_instance_of": "must be a {class}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "mapping_type": "must be a table",
    "model_type": "must be a table",
    "sequence_str": "must be a list",
    "string_too_long": "must have at most {max_length} characters",
    "string_type": "must be a string",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have at least {min_length} entries",
}
_IN_TOML = {"Mapping": "table", "Sequence": "list"}
_ABOUT_KEYS = {"missing", "extra_forbidden", "part"}
_RANGES = {"greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"}


def issues_of(error: ValidationError, table: type[BaseModel] | None = None) -> list[Issue]:
    """Pydantic's errors as (key, message).

    Args:
        error: what validation raised.
        table: the class that was validated, for suggestions and typical values.
    """
    found: list[Issue] = []
    wrong: dict[str, list[str]] = {}  # a union fails once per alternative: one message for all
    typical: dict[str, str] = {}
    details = error.errors(include_url=False)
    misspelt = _misspelt_keys(details[:MOST_ISSUES], table)
    for detail in details[:MOST_ISSUES]:
        key_path = _key_path(detail)
        key = dotted(key_path)
        if detail["type"] == "missing" and key in misspelt:
            continue
        if detail["type"] in _ABOUT_KEYS:
            found += _issues_about_keys(detail, key_path, table)
            continue
        if not key:
            found.append(("", f"{_rule(detail)}, got {_shown(detail['input'])}"))
            continue
        shown = f"{key} = {_shown(detail['input'])}"
        rule = _rule(detail)
        options = _keys_at(table, key_path) if detail["type"] == "model_type" else []
        if options:
            rule += f" with the options {', '.join(options)}"
        wrong.setdefault(shown, []).append(rule)
        if detail["type"] in _RANGES:
            typical[shown] = _typical_values(table, key_path)
    for shown, rules in wrong.items():
        found.append((shown, f"{_either(rules)}.{typical.get(shown, '')}"))
    if len(details) > MOST_ISSUES:
        found.append(("", f"and {len(details) - MOST_ISSUES:,} more like these"))
    return found


def _misspelt_keys(details: Sequence[ErrorDetails], table: type[BaseModel] | None) -> set[str]:
    """The keys that unknown ones are probably meant to be."""
    found = set()
    for detail in details:
        if detail["type"] == "extra_forbidden":
            *parent, unknown = _key_path(detail)
            meant = closest(str(unknown), _keys_at(table, parent))
            if meant is not None:
                found.add(dotted([*parent, meant]))
    return found


def _issues_about_keys(
    detail: ErrorDetails, key_path: ConfigPath, table: type[BaseModel] | None
) -> list[Issue]:
    """Keys that are missing or unknown, and what a validator of ours refused."""
    key = dotted(key_path)
    if detail["type"] == "missing":
        return [(key, "is missing")]
    if detail["type"] == "extra_forbidden":
        *parent, unknown = key_path
        hint = suggest(str(unknown), _keys_at(table, parent))
        if parent and unknown in _keys_at(table, []):
            hint = "; it is an option of the experiment, outside of all tables"
        return [(key, f"unknown option{hint}")]
    return [(_joined(key, inner), message) for inner, message in detail["ctx"]["issues"]]


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
    if not detail["loc"]:
        return [""]
    *path, last = detail["loc"]
    key_path = [step for step in path if not _is_type(step)]
    if detail["type"] in ("extra_forbidden", "missing") or not _is_type(last):
        key_path.append(last)
    return key_path


def _is_type(step: int | str) -> bool:
    return isinstance(step, str) and ("[" in step or step in _TYPE_TAGS)


def _joined(key: str, inner: str) -> str:
    return f"{key}.{inner}" if inner else key


def _rule(detail: ErrorDetails) -> str:
    """What a value must be."""
    if detail["type"] == "too_short" and detail["ctx"]["min_length"] == 1:
        return "must not be empty"
    if detail["type"] == "list_type" or detail.get("ctx", {}).get("class") == "Sequence":
        return _list_instead_of(detail["input"], detail["loc"][-1])
    rule = _RULES.get(detail["type"])
    if rule is None:
        return detail["msg"][0].lower() + detail["msg"][1:]
    context = {key: _limit(value) for key, value in detail.get("ctx", {}).items()}
    return rule.format(**context)


def _list_instead_of(value: Any, key: int | str) -> str:
    if isinstance(value, dict) and not _is_type(key):
        return f"must be a list of tables: write [[{key}]] instead of [{key}]"
    if isinstance(value, (int, float)):
        return f"must be a list: [{_shown(value)}]"
    return "must be a list"


def _limit(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int):
        return f"{value:,}"
    return _IN_TOML.get(str(value), str(value))


def _either(rules: Sequence[str]) -> str:
    """One sentence of all rules, of which one must hold."""
    first, *others = dict.fromkeys(rules)
    return " or ".join([first, *(rule.removeprefix("must be ") for rule in others)])


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return shortened(repr(value), LONGEST_VALUE)


def _keys_at(table: type[BaseModel] | None, key_path: ConfigPath) -> list[str]:
    """The keys that are known at a path."""
    found = _table_at(table, key_path)
    if found is None:
        return []
    return [*found.model_fields, *getattr(found, "other_keys", ())]


def _typical_values(table: type[BaseModel] | None, key_path: ConfigPath) -> str:
    """The sentence in a key's description about its typical values, with a space before it."""
    found = _table_at(table, key_path[:-1])
    field = found.model_fields.get(str(key_path[-1])) if found else None
    text = (field.description if field else None) or ""
    _, typical, values = text.partition(" Typical values")
    return f"{typical}{values}"


def _table_at(table: type[BaseModel] | None, key_path: ConfigPath) -> type[BaseModel] | None:
    """The class of the table at a path of the config."""
    for step in key_path:
        if table is None or isinstance(step, int):
            continue
        field = table.model_fields.get(step)
        table = table_in(field.annotation) if field else None
    return table

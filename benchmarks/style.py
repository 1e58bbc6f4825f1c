"""How dense code and prose are: the table of CONTRIBUTING.md, for any source tree.

    python benchmarks/style.py                        # clientwise
    python benchmarks/style.py ../httpx/httpx   # other packages: wheels or checkouts

Tests (`test_*.py`, `*_test.py`, folders `test` and `tests`) and generated files (`*_pb2*.py`) do
not count. A README is looked for in the folder and in the two above it; an unpacked wheel has its
README in METADATA.
"""

from __future__ import annotations

import argparse
import ast
import email
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COLUMNS = (
    "lines",
    "tokens per line",
    "ternaries per 1,000 lines",
    "tuple assignments per 1,000 lines",
    "functions with complexity > 10",
    "docstrings",
    "comments",
    "README words",
)
COMPLEX = 10  # a function with more branches than this is hard to follow (McCabe, 1976)
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.Assert,
    ast.match_case,
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Counts:
    """What is counted in source files; counts of several files add up."""

    lines: int = 0  # physical lines, empty ones included
    tokens: int = 0  # names, numbers, strings, operators; not comments, line ends and indentation
    ternaries: int = 0  # a if b else c
    tuple_assignments: int = 0  # a, b = c, d
    functions: int = 0
    complex_functions: int = 0
    docstring_lines: int = 0
    comment_lines: int = 0

    def __add__(self, other: Counts) -> Counts:
        mine = vars(self)
        theirs = vars(other)
        return Counts(**{name: mine[name] + theirs[name] for name in mine})


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for every folder."""
    parser = argparse.ArgumentParser(description="Print how dense the code in folders is.")
    parser.add_argument("folders", nargs="*", type=Path, default=[ROOT / "src" / "clientwise"])
    print(f"| | {' | '.join(COLUMNS)} |")
    print(f"|---|{len(COLUMNS) * '--:|'}")
    for folder in parser.parse_args(arguments).folders:
        print(row(folder))


def row(folder: Path) -> str:
    """A folder's measures as a row of a Markdown table."""
    counts = sum(
        (count(path.read_text(encoding="utf-8")) for path in source_files(folder)), Counts()
    )
    if counts.lines == 0:
        raise SystemExit(f"{folder}: has no Python files")
    words = readme_words(folder)
    cells = [
        folder.resolve().name,
        f"{counts.lines:,}",
        f"{counts.tokens / counts.lines:.1f}",
        f"{1000 * counts.ternaries / counts.lines:.1f}",
        f"{1000 * counts.tuple_assignments / counts.lines:.1f}",
        f"{counts.complex_functions / max(1, counts.functions):.1%}",
        f"{counts.docstring_lines / counts.lines:.0%}",
        f"{counts.comment_lines / counts.lines:.0%}",
        "–" if words is None else f"{words:,}",
    ]
    return f"| {' | '.join(cells)} |"


def source_files(folder: Path) -> Iterator[Path]:
    """The Python files in a folder that people wrote and that are not tests."""
    for path in sorted(folder.rglob("*.py")):
        inside = path.relative_to(folder)
        is_test = path.name.startswith("test_") or path.name.endswith("_test.py")
        in_tests = not {"test", "tests"}.isdisjoint(inside.parts)
        if not is_test and not in_tests and "_pb2" not in path.name:
            yield path


def count(text: str) -> Counts:
    """Count in one file.

    >>> count("a, b = 1, 2  # two\\n").tokens
    7
    """
    found = Counts(lines=len(text.splitlines()))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        found.tokens += token.type not in NOT_CODE
        found.comment_lines += token.type == tokenize.COMMENT
    for node in ast.walk(ast.parse(text)):
        found.ternaries += isinstance(node, ast.IfExp)
        found.tuple_assignments += is_tuple_assignment(node)
        if isinstance(node, FUNCTIONS):
            found.functions += 1
            found.complex_functions += complexity(node) > COMPLEX
        if isinstance(node, DOCUMENTED):
            found.docstring_lines += docstring_lines(node)
    return found


def is_tuple_assignment(node: ast.AST) -> bool:
    """Whether a node is `a, b = c, d`; unpacking a call's result is none."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    return any(isinstance(target, ast.Tuple) for target in node.targets)


def complexity(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Cyclomatic complexity: 1 + the number of branches; functions inside count for themselves."""
    found = 1
    waiting: list[ast.AST] = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            continue
        if isinstance(node, BRANCHES):
            found += 1
        elif isinstance(node, ast.BoolOp):
            found += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            found += 1 + len(node.ifs)
        waiting += ast.iter_child_nodes(node)
    return found


def docstring_lines(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> int:
    """Lines of a node's docstring; 0 without one."""
    if ast.get_docstring(node, clean=False) is None:
        return 0
    docstring = node.body[0]
    assert docstring.end_lineno is not None
    return docstring.end_lineno - docstring.lineno + 1


def readme_words(folder: Path) -> int | None:
    """Words of the README, code blocks left out; None where there is no README."""
    text = readme(folder.resolve())
    if text is None:
        return None
    return len(re.sub("```.*?```", "", text, flags=re.DOTALL).split())


def readme(folder: Path) -> str | None:
    """The README of a package."""
    for place in (folder, *folder.parents[:2]):
        if (place / "README.md").is_file():
            return (place / "README.md").read_text(encoding="utf-8")
        for metadata in place.glob("*.dist-info/METADATA"):
            return str(
                email.message_from_string(metadata.read_text(encoding="utf-8")).get_payload()
            )
    return None


if __name__ == "__main__":
    main()

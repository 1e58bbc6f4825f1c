"""How large the project is, and the limits that `make test` holds it to.

    python lab/size.py

Code is counted in tokens: names, numbers, strings and operators. Comments, docstrings, line ends and
indentation do not count, so that a long line is no shorter than two. Text is counted in words.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Folder: the most tokens and files. Who adds code beyond these deletes some first.
LIMITS = {"src": (225_000, 180), "tests": (270_000, None), "consortium/src": (25_000, 40)}
README_WORDS = 550
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def main() -> None:
    """Print a line for every folder of code, and the words of README and manual."""
    for name, (most_tokens, most_files) in LIMITS.items():
        tokens, files = size(ROOT / name)
        limits = f"at most {most_tokens:,} tokens"
        if most_files is not None:
            limits += f" in {most_files} files"
        print(f"{name}: {tokens:,} tokens in {files} files ({limits})")
    manual = sum(words(path) for path in (ROOT / "docs").glob("*.md"))
    laboratory = sum(words(path) for path in (ROOT / "docs" / "results").rglob("*.md"))
    print(f"README: {words(ROOT / 'README.md'):,} words without code (at most {README_WORDS})")
    print(f"manual: {manual:,} words; results: {laboratory:,} words")


def size(folder: Path) -> tuple[int, int]:
    """Tokens and files of the Python code in a folder."""
    files = sorted(folder.rglob("*.py"))
    return sum(count(path.read_text(encoding="utf-8")) for path in files), len(files)


def count(text: str) -> int:
    """Tokens of a file.

    >>> count("a, b = 1, 2  # two")
    7
    >>> count('"A module."' + chr(10) + "x = 1")
    3
    """
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    docstrings = 0
    for node in ast.walk(ast.parse(text)):
        docstrings += isinstance(node, DOCUMENTED) and ast.get_docstring(node, False) is not None
    return sum(token.type not in NOT_CODE for token in tokens) - docstrings


def words(path: Path) -> int:
    """Words of a text, code blocks left out."""
    text = path.read_text(encoding="utf-8")
    return len(re.sub("```.*?```", "", text, flags=re.DOTALL).split())


if __name__ == "__main__":
    main()

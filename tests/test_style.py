"""The measures of CONTRIBUTING.md, against values counted by hand."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import style

SAMPLE = '''"""A module.

Two more lines.
"""

import os  # why


def choose(a, b):
    """One line."""
    first, second = a, b
    both, other = os.path.split(a)
    # a comment
    return first if second else both
'''
BRANCHING = """
def many(values):
    def inner(value):
        return value if value else 0
    for value in values:
        if value and value > 1 or value < -1:
            yield [x for x in value if x]
    try:
        assert values
    except ValueError:
        pass
"""


def test_counts_are_those_of_the_hand() -> None:
    found = style.count(SAMPLE)
    assert found == style.Counts(
        lines=14,
        # docstring 1; import os 2; def choose(a, b): 8; docstring 1; first, second = a, b 7;
        # both, other = os.path.split(a) 12; return first if second else both 6
        tokens=1 + 2 + 8 + 1 + 7 + 12 + 6,
        ternaries=1,
        tuple_assignments=1,
        functions=1,
        complex_functions=0,
        docstring_lines=5,
        comment_lines=2,
    )


def test_complexity_is_one_and_the_branches() -> None:
    (many,) = ast.parse(BRANCHING).body
    assert isinstance(many, ast.FunctionDef)
    # for, if, and, or, comprehension and its if, assert, except; inner functions count themselves
    assert style.complexity(many) == 1 + 8
    assert isinstance(many.body[0], ast.FunctionDef)
    assert style.complexity(many.body[0]) == 1 + 1


def test_a_row_for_every_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = tmp_path / "wheel" / "sample"
    (package / "tests").mkdir(parents=True)
    for name in ("choose.py", "tests/helper.py", "choose_test.py", "wire_pb2.py"):
        (package / name).write_text(SAMPLE)
    info = tmp_path / "wheel" / "sample-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Name: sample\n\n# Sample\n\nThree more words.\n```\nno words\n```\n"
    )
    style.main([str(package)])
    *_, row = capsys.readouterr().out.splitlines()
    assert row == "| sample | 14 | 2.6 | 71.4 | 71.4 | 0.0% | 36% | 14% | 5 |"

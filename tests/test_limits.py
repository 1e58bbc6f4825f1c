"""The project stays small enough for one person: `lab/size.py` counts, and has the limits."""

from __future__ import annotations

import pytest
import size

SAMPLE = '''"""A module."""

import os  # why


def choose(a, b):
    """One line."""
    # a comment
    return a if b else os.path.join(a, b)
'''


def test_tokens_are_those_counted_by_hand() -> None:
    # import os 2; def choose(a, b): 8; return a if b else 5; os.path.join(a, b) 10
    assert size.count(SAMPLE) == 2 + 8 + 5 + 10


@pytest.mark.parametrize("name", size.LIMITS)
def test_a_folder_of_code_is_within_its_limits(name: str) -> None:
    tokens, files = size.size(size.ROOT / name)
    most_tokens, most_files = size.LIMITS[name]
    assert tokens <= most_tokens, f"{name}/ has grown: delete something first"
    assert most_files is None or files <= most_files


def test_the_readme_is_short() -> None:
    assert size.words(size.ROOT / "README.md") <= size.README_WORDS

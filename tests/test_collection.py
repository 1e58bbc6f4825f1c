"""Any test folders can be collected together."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import processes

ROOT = Path(__file__).parents[1]
PYTEST = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"


def test_every_module_beside_the_tests_has_a_name_of_its_own() -> None:
    """Files in `tests` and `benchmarks` are in no package, so they are imported by their names alone."""
    modules = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/*.py")]
    names = Counter(path.name for path in modules if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_all_folders_are_collected_together() -> None:
    """Folders that are arguments: pytest loads each `conftest.py` before it collects the first.

    The tests themselves are left out, because their imports take seconds.
    """
    folders = sorted({path.parent for path in ROOT.glob("tests/*/test_*.py")})
    options = ["--collect-only", "-p", "no:cacheprovider", "--ignore-glob=*/test_*.py"]
    options += ["-W", "ignore:Module already imported"]  # by the fork server
    done = processes.run(PYTEST, *options, *folders, cwd=ROOT)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout

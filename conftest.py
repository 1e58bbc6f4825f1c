"""Settings of PyTorch for tests, what pytest leaves out, and the option `--shuffle`."""

import gc
import hashlib
import os
from importlib.util import find_spec

import pytest

# Test processes share the cores: PyTorch's threads must not spin while they wait. Read when PyTorch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# What collection imports stays until the end. The garbage collector need not look through it, then or in a test.
gc.disable()


def pytest_collection_finish() -> None:
    """From here on it looks at what tests leave."""
    gc.freeze()
    gc.enable()


collect_ignore = [
    "tests/base_install.py",  # a program of test_base_install.py
]
if find_spec("flwr") is None:
    collect_ignore += [f"src/clientwise/{name}" for name in ("flower", "hosts/flower")]
# `--doctest-modules` would import each of these as `conftest`, and fail at the second one.
collect_ignore_glob = ["*/conftest.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that shows whether a test depends on those before it."""
    parser.addoption(
        "--shuffle", metavar="SEED", help="run files in a random order, and the tests of each"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle files, and tests within a file: those of a file share its fixtures."""
    seed = config.getoption("shuffle")
    if seed is None:
        return

    def place(name: object) -> bytes:
        return hashlib.sha256(f"{seed} {name}".encode()).digest()

    items.sort(key=lambda item: (place(item.path), place(item.nodeid)))

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


@pytest.fixture(scope="session")
def run_of_examples(tmp_path_factory: pytest.TempPathFactory) -> object:
    """The run that the examples of `Run` are about."""
    from sklearn.datasets import load_digits
    from torch import nn

    import clientwise as cw

    inputs, labels = load_digits(return_X_y=True)
    starts = range(0, 1200, 200)
    parts = [(inputs[at : at + 200] / 16, labels[at : at + 200]) for at in starts]
    sites = dict(zip(["north", "east", "south", "west"], parts, strict=False))
    sites["west"] = (parts[3][0], 9 - parts[3][1])
    folder = tmp_path_factory.mktemp("examples") / "run"
    network = nn.Linear(64, 10)
    return cw.fit(network, sites, held_out=parts[4], test=parts[5], rounds=5, out=folder)


@pytest.fixture(autouse=True)
def _examples_of_runs(request: pytest.FixtureRequest, doctest_namespace: dict[str, object]) -> None:
    if request.node.name.startswith("clientwise.results.Run"):
        doctest_namespace["run"] = request.getfixturevalue("run_of_examples")

"""Settings of PyTorch for tests, the option `--shuffle`, and what many tests need."""

from __future__ import annotations

import copy
import gc
import hashlib
import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

# Test processes share the cores: PyTorch's threads must not spin while they wait. Read when PyTorch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# A test that starts Ray must not join the cluster of a test beside it, which soon ends.
os.environ.setdefault("RAY_ADDRESS", "local")

import pytest
import torch
from hypothesis import settings

from clientwise.core.method import Method, Plan
from clientwise.data.datasets import digits
from clientwise.data.partition import dirichlet
from clientwise.engine.hostile import HostileEngine
from clientwise.engine.local import LocalEngine
from clientwise.engine.wrapping import EmbeddedEngine
from clientwise.experiment.reference import KINDS
from clientwise.models.networks import linear
from dividing import federate

collect_ignore = ["base_install.py"]  # a program of test_base_install.py

# What collection imports stays until the end. The garbage collector need not look through it, then or in a test.
gc.disable()


def pytest_collection_finish() -> None:
    """From here on it looks at what tests leave."""
    gc.freeze()
    gc.enable()


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


# The same examples every time, and no deadline: the machines that run this are shared.
settings.register_profile("clientwise", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("clientwise")

TINY: dict[str, Any] = {
    "name": "tiny",
    "rounds": 3,
    "device": "cpu",
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 6, "concentration": 0.5},
    "model": "linear",
    "training": {"epochs": 1, "batch_size": 20, "learning_rate": 0.1},
    "federation": {"fraction": 0.5},
    "evaluation": {"target": 0.5},
    "methods": [
        {"name": "FedAvg"},
        {
            "name": "all of it",
            "criteria": ["server_performance", "label_diversity", "dataset_size"],
            "adjust": "first_improvement",
            "adapt_loss": "class_weights",
        },
    ],
}

THREADS = torch.get_num_threads()
BESIDE_OTHERS = "PYTEST_XDIST_WORKER" in os.environ


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Beside other test processes, a test has one thread, as its network is small; one about threads has all.

    Threads that wait for each other take a fifth of the processor time of a run.
    """
    if BESIDE_OTHERS:
        torch.set_num_threads(THREADS if item.get_closest_marker("bits") else 1)
    return (yield)


@pytest.fixture(autouse=True)
def _registries_as_they_were() -> Iterator[None]:
    """What a test registers is gone after it, and its plugins are imported anew by the next."""
    before = {name: dict(registry._parts) for name, registry in KINDS.items()}
    imported = set(sys.modules)
    yield
    for name, registry in KINDS.items():
        for part in set(registry._parts.values()) - set(before[name].values()):
            if part.__module__ not in imported:  # a part may be made by functools, for one
                sys.modules.pop(part.__module__, None)
        registry._parts = before[name]


@pytest.fixture(autouse=True, scope="session")
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The user's cache folder stays as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLIENTWISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def published() -> Callable[[str], Path]:
    """The data folder, if it has these files; the test is skipped otherwise."""

    def having(part: str) -> Path:
        folder = os.environ.get("CLIENTWISE_DATA")
        if folder is None or not (Path(folder) / part).exists():
            pytest.skip(f"CLIENTWISE_DATA names no folder with {part}")
        return Path(folder)

    return having


@pytest.fixture
def tiny() -> dict[str, Any]:
    """A small real experiment as a config: digits, six clients, two methods."""
    return copy.deepcopy(TINY)


@pytest.fixture
def make_engine() -> Callable[..., EmbeddedEngine]:
    """Makes a small real engine: digits over eight clients of unequal size, a linear model; they arrive together."""

    def make(hostile: Any = None, **options: Any) -> EmbeddedEngine:
        samples = digits(None)
        split = {"test_fraction": 0.2, "server_fraction": 0.2, "report_fraction": 0.5}
        data = federate(
            samples,
            lambda targets, seed: dirichlet(targets, seed, clients=8, concentration=0.5),
            1,
            **split,
        )
        torch.manual_seed(0)
        engine = LocalEngine(data, linear((1, 8, 8), 10), seed=1, **{"chunk_size": 16} | options)
        return HostileEngine(engine, hostile) if hostile else engine

    return make


@pytest.fixture
def plan() -> Plan:
    return Plan(seed=1, cohort_size=5)


@pytest.fixture
def fedavg() -> Method:
    return Method()

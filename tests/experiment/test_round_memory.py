"""The memory that `check` foretells for a round, beside what it takes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import method_memory
import run_memory
from clientwise.core.method import Method, Plan
from clientwise.core.types import ModelSpec
from clientwise.experiment.config import load_experiment
from clientwise.experiment.round_memory import (
    BLOCKS,
    DOUBLE_BYTES,
    round_bytes,
)

pytestmark = pytest.mark.bits
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")

CLIENTS = 1_000
SPEC = ModelSpec((), 200, 200)
CONFIG = {
    "name": "memory",
    "rounds": 1,
    "data": "digits",
    "partition": {"name": "iid", "clients": 10},
    "model": "linear",
}
# Of the process that measures: the blocks, and beyond what is foretold a chunk of clients, a batch, and what libraries
# allocate for themselves. Without them measured values differ by less than 1 MiB from one time to the next.
MARGIN = BLOCKS * DOUBLE_BYTES * method_memory.AT_ONCE + 6 * 2**20


def foretold(table: str | dict[str, Any], spec: ModelSpec = SPEC, clients: int = CLIENTS) -> int:
    experiment = load_experiment(CONFIG | {"methods": [table]})
    (method,) = experiment.build_methods()
    return bytes_of(method, spec, clients)


def bytes_of(method: Method, spec: ModelSpec, clients: int) -> int:
    data = method_memory.federated(clients)
    return round_bytes(method, Plan(1, clients), data, spec)


# Many small models, whose pairs would take most; and few larger ones, whose copies take most
@needs_proc
@pytest.mark.parametrize(("clients", "hidden"), [(800, 20), (120, 400)])
def test_every_method_takes_what_is_foretold(clients: int, hidden: int) -> None:
    found = method_memory.measure_all([], clients, hidden)
    assert {one["method"] for one in found} >= set(method_memory.METHODS)
    wrong = [
        one
        for one in found
        if one["measured"] > one["foretold"] + MARGIN
        or one["foretold"] > 2 * one["measured"] + MARGIN
    ]
    assert not wrong


@needs_proc
@pytest.mark.alone
def test_a_run_takes_what_is_foretold_with_the_allocator_that_it_sets() -> None:
    command = [sys.executable, run_memory.__file__]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["measured"] <= found["foretold"]
    # An allocator that has returned nothing yet counts as needed: no less than what is live was measured
    assert found["foretold"] - found["fixed"] <= 2 * found["measured"]

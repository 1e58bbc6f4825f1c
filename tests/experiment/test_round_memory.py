"""The memory that `check` foretells for a round, beside what it takes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

import method_memory
import run_memory
from clientwise.core.method import Method, Plan
from clientwise.core.types import FLOAT_BYTES, Layer, ModelSpec
from clientwise.errors import ConfigError
from clientwise.experiment.checks import against_data
from clientwise.experiment.checks.against_data import (
    BLOCKS,
    DOUBLE_BYTES,
    FACTOR_COPIES,
    STACKED_COPIES,
    UPDATE_COPIES,
    largest_round,
    round_bytes,
)
from clientwise.experiment.checks.describe import describe
from clientwise.experiment.config.methods import PAIR_MATRICES
from clientwise.experiment.load import load_experiment

pytestmark = pytest.mark.bits
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")

CLIENTS = 1_000
SPEC = ModelSpec((), 200, 200)
CONFIG = {
    "name": "memory",
    "rounds": 1,
    "device": "cpu",
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


# A method of every kind: sums, kept models, copies of updates, pairs, evidence
FEW = [
    "FedAvg",
    "sorting score",
    "Krum",
    "DnC",
    "FoolsGold",
    "Recommended",
]


# Many small models, whose pairs would take most; and few larger ones, whose copies take most
@needs_proc
@pytest.mark.parametrize(("clients", "hidden"), [(800, 20), (120, 400)])
@pytest.mark.parametrize("names", [FEW, pytest.param([], marks=pytest.mark.slow)], ids=["", "all"])
def test_every_method_takes_what_is_foretold(names: list[str], clients: int, hidden: int) -> None:
    found = method_memory.measure_all(names, clients, hidden)
    assert {one["method"] for one in found} >= {*(names or method_memory.METHODS)}
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


def test_folded_models_take_a_sum_for_every_term_and_no_more() -> None:
    assert foretold("FedAvg") == DOUBLE_BYTES * SPEC.size
    assert foretold("FedAvg", clients=10 * CLIENTS) == foretold("FedAvg")


def test_scores_that_cannot_be_folded_keep_models() -> None:
    assert (
        foretold(method_memory.OTHERS["sorting score"] | {"name": "sorting"})
        == STACKED_COPIES * FLOAT_BYTES * CLIENTS * SPEC.size
    )


def test_only_a_part_that_declares_pairs_takes_the_square_of_the_clients() -> None:
    copies = UPDATE_COPIES * FLOAT_BYTES * CLIENTS * SPEC.size
    assert foretold("Median") == copies
    assert foretold("DnC") == copies + PAIR_MATRICES["pairs"] * DOUBLE_BYTES * CLIENTS**2


def test_too_many_kept_models_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(against_data, "memory", lambda: 1000)
    with pytest.raises(ConfigError, match="ask fewer clients in a round"):
        describe(load_experiment(CONFIG | {"methods": ["Recommended"]}))


def test_models_that_are_kept_for_products_of_adapters_are_counted() -> None:
    layers = (Layer("lora_A", (2, 50), 0, 100), Layer("lora_B", (30, 2), 100, 160))
    spec = ModelSpec(layers, 200, 200)
    (products,) = load_experiment(CONFIG | {"methods": ["FedAvg"]}).build_methods()
    kept = FLOAT_BYTES * CLIENTS * (UPDATE_COPIES * 200 + FACTOR_COPIES * 160)
    assert bytes_of(products, spec, CLIENTS) == kept
    factors = replace(products, adapters="factors")
    assert bytes_of(factors, spec, CLIENTS) == DOUBLE_BYTES * spec.size


def test_lanes_that_run_side_by_side_are_added_up() -> None:
    given = {"seeds": [1, 2], "methods": ["FedAvg", "Krum", "FoolsGold"]}
    experiment = load_experiment(CONFIG | given)
    data = method_memory.federated(CLIENTS)
    folded, krum, fools = (foretold(name) for name in given["methods"])
    most = sorted(2 * [folded, krum, fools])
    for lanes in (1, 3, 5, 99):
        assert largest_round(experiment, data, SPEC, lanes) == sum(most[-lanes:])


def test_check_says_what_rounds_take_with_their_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clientwise.experiment.checks.describe.WORTH_SAYING", 0)
    seeds = {"mode": "stacked", "workers": 1, "methods": ["Krum"]}
    one, three = (
        next(line for line in describe(load_experiment(config)) if line.startswith("memory"))
        for config in (CONFIG | seeds, CONFIG | seeds | {"seeds": [1, 2, 3]})
    )
    assert re.fullmatch(r"memory +up to 0\.3 GB for a round, 0\.0 GB of them for models", one)
    assert three.endswith("for 3 rounds side by side, 0.0 GB of them for models")

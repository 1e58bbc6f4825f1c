"""The memory that `check` foretells for a round with evidence, beside what a run takes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from clientwise.core.types import Layer, ModelSpec
from clientwise.errors import ConfigError
from clientwise.experiment import round_memory
from clientwise.experiment.config import load_experiment
from clientwise.experiment.describe import describe
from clientwise.experiment.round_memory import (
    FACTOR_COPIES,
    FLOAT_BYTES,
    KEPT_COPIES,
    round_bytes,
)

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "evidence_memory.py"
CLIENTS = 10_000
SIZE = 20 * 64 + 64 + 64 * 10 + 10  # the model of the script
SPEC = ModelSpec((), SIZE, SIZE)
SAMPLES = 200
CONFIG = {
    "name": "memory",
    "rounds": 1,
    "data": "digits",
    "partition": {"name": "iid", "clients": 10},
    "model": "linear",
}


@pytest.mark.alone
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_a_round_of_ten_thousand_clients_takes_what_is_foretold() -> None:
    (method,) = load_experiment(CONFIG | {"methods": ["Recommended"]}).build_methods()
    foretold = round_bytes(method, CLIENTS, SPEC, SAMPLES) / 2**20
    command = [sys.executable, str(SCRIPT), "--cohort", str(CLIENTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout.splitlines()[-1])["mib"]
    assert measured <= foretold
    # Memory that the first round has left to the allocator is not counted: 0.2 to 0.55 were seen.
    assert measured >= 0.1 * foretold


def test_folded_models_take_nothing_and_too_many_kept_ones_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = CONFIG | {"methods": ["FedAvg"]}
    (folded,) = load_experiment(config).build_methods()
    assert round_bytes(folded, CLIENTS, SPEC, SAMPLES) == 0
    monkeypatch.setattr(round_memory, "memory", lambda: 1000)
    with pytest.raises(ConfigError, match="ask fewer clients in a round"):
        describe(load_experiment(config | {"methods": ["Recommended"]}))


def test_models_that_are_kept_for_products_of_adapters_are_counted() -> None:
    layers = (Layer("lora_A", (2, 50), 0, 100), Layer("lora_B", (30, 2), 100, 160))
    spec = ModelSpec(layers, 200, 200)
    (products,) = load_experiment(CONFIG | {"methods": ["FedAvg"]}).build_methods()
    kept = FLOAT_BYTES * CLIENTS * (KEPT_COPIES * 200 + FACTOR_COPIES * 160)
    assert round_bytes(products, CLIENTS, spec, SAMPLES) == kept
    factors = replace(products, adapters="factors")
    assert round_bytes(factors, CLIENTS, spec, SAMPLES) == 0

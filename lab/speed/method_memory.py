"""Memory of a round of every method: what `clientwise check` foretells beside what it takes.

python lab/speed/method_memory.py [METHOD ...] [--clients 1000] [--hidden 20]

Methods run one after the other in a process of its own, whose allocator returns what is freed at once: so the largest
resident size is what was needed. Blocks and chunks of clients are small there, so that they hide nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clientwise.core.aggregation import robust
from clientwise.core.aggregation.before import BEFORE
from clientwise.core.aggregation.rules import RULES
from clientwise.core.evidence import EVIDENCE
from clientwise.core.objective.problem import Classification
from clientwise.core.round import first_state, run_round
from clientwise.data.federated import FederatedData, Holdings, Samples
from clientwise.engine import jobs
from clientwise.engine.device import threads_for
from clientwise.engine.jobs import TrainJob, TrainResult
from clientwise.engine.local import LocalEngine
from clientwise.engine.stacked import backend
from clientwise.experiment.build.data import build_data
from clientwise.experiment.build.engine import build_engine, build_executor, build_plan
from clientwise.experiment.checks.against_data import round_bytes
from clientwise.experiment.config_file import METHODS
from clientwise.experiment.load import load_experiment

# glibc, and mimalloc in PyTorch for ARM: nothing that is freed is kept
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_TOP_PAD_": "0",
    "MIMALLOC_PURGE_DELAY": "0",
    "MIMALLOC_ARENA_EAGER_COMMIT": "0",
}
FEATURES, CLASSES, HELD_OUT = 20, 10, 200
# What does not grow with the clients is small here, so that it hides nothing
AT_ONCE = 2**16  # values in a block
BATCH = 1024  # samples times models in one pass
CHUNK = 16  # clients that train, or models that are evaluated, at once
WARM_UP = 12  # clients of a first run, for what libraries load and keep
ROUNDS = 2

# Fewer steps than by default, which take no other memory
QUICK: dict[str, dict[str, Any]] = {
    "GeometricMedian": {"rule": {"name": "geometric_median", "steps": 2}},
    "RecommendedDataFree": {"rule": {"name": "geometric_median", "steps": 2}},
}
SURROUNDINGS: dict[str, dict[str, Any]] = {
    "FedBuff": {"devices": {"speed": {"name": "lognormal", "median": 200.0, "sigma": 1.0}}},
    "RecommendedJudged": {"server_set": {"source": "clients"}},
}
# What no method by name has
OTHERS: dict[str, dict[str, Any]] = {
    "bounds": {"bounds": {"cap": 0.5}},
    "sorting score": {
        "criteria": ["dataset_size", "label_diversity"],
        "score": {"name": "owa", "quantifier": "most"},
    },
    "trust": {"criteria": ["dataset_size", "trust"]},
    "two steps": {"before": ["clip", "nearest_neighbours"], "rule": "median"},
    "judged at once": {"criteria": ["server_performance"], "rule": "krum"},
    "privacy": {
        "bounds": {"cap": 0.5},
        "privacy": {"clip": 1.0, "delta": 1e-5, "noise_multiplier": 1.0},
    },
}


def tables() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every method by name, every part that none of them has, and some more, as [[methods]] would hold them."""
    for name in METHODS:
        yield name, {"name": name, "like": name} | QUICK.get(name, {})
    experiment = load_experiment(_config([*METHODS]) | {"devices": {}})
    used = {part.name for method in experiment.methods for _, _, part in method.parts()}
    for key, registry in {"rule": RULES, "evidence": EVIDENCE, "before": BEFORE}.items():
        for part in registry:
            if part not in used:
                yield f"{key} {part}", {"name": part, key: [part] if key == "before" else part}
    for name, table in OTHERS.items():
        yield name, {"name": name} | table


def _config(methods: list[Any], hidden: int = 1) -> dict[str, Any]:
    return {
        "name": "memory",
        "rounds": ROUNDS,
        "device": "cpu",
        "workers": 1,
        "model": {"name": "mlp", "hidden": [hidden]},
        "training": {"epochs": 1, "batch_size": 2, "learning_rate": 0.1},
        "evaluation": {"clients_every": 0},
        "methods": methods,
    }


def federated(clients: int) -> FederatedData:
    """Clients with one to three samples each and one to test on; a server with samples to weigh by."""
    sizes = torch.arange(clients) % 3 + 1
    total = int(sizes.sum()) + HELD_OUT
    inputs = torch.rand(total, FEATURES, generator=torch.Generator().manual_seed(0))
    labels = inputs[:, :CLASSES].argmax(1)
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    train = Holdings(torch.arange(ends[-1]), labels[: ends[-1]], ends)
    test = Holdings(train.indices[:clients], labels[:clients], torch.arange(clients + 1))
    held_out = Holdings.of([(torch.arange(int(ends[-1]), total), labels[ends[-1] :])])
    samples = Samples(inputs, labels, Classification(CLASSES))
    return FederatedData(samples, train, test, held_out, held_out)


def drawn_models(jobs: Iterable[TrainJob]) -> Iterator[TrainResult]:
    """Instead of training, which is not measured here: random models near those that clients are sent."""
    for job in jobs:
        noise = torch.randn(job.starts.shape)
        yield TrainResult(noise.mul_(0.01).add_(job.starts), torch.ones(len(job)))


def memory(kind: str) -> int:
    """Bytes of this process, now (VmRSS) or at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(kind))


def measure(name: str, table: dict[str, Any], clients: int, hidden: int) -> dict[str, Any]:
    """Bytes that rounds of a method take beyond what was there before them, and those that are foretold."""
    config = _config([table], hidden) | SURROUNDINGS.get(name, {})
    experiment = load_experiment(config)
    given = federated(clients)
    data, hostile = build_data(experiment, given.samples, 1, given)
    executor = build_executor(experiment, data.samples, torch.device("cpu"))
    (method,) = experiment.build_methods()
    make = partial(LocalEngine, chunk_size=CHUNK)
    engine = build_engine(experiment, data, hostile, 1, executor, method, make)
    plan = build_plan(experiment, data.num_clients, 1, method.control)
    executor.train = drawn_models
    state = first_state(engine.initial_model, method, engine)
    kept: Mapping[str, Tensor] = {}
    gc.collect()
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    with threads_for(engine.spec.size):
        for _ in range(ROUNDS):
            state, _ = run_round(state, method, plan, engine)
            kept = engine.state()  # as a lane keeps it for its checkpoint
    peak = memory("VmHWM")
    del kept
    return {
        "method": name,
        "measured": peak - before,
        "foretold": round_bytes(method, plan, data, engine.spec),
    }


def measure_all(names: list[str], clients: int, hidden: int) -> list[dict[str, Any]]:
    """The methods with these names, or all of them, in a process of its own."""
    command = [sys.executable, __file__, *names, "--alone"]
    command += ["--clients", str(clients), "--hidden", str(hidden)]
    done = subprocess.run(command, env=os.environ | ALLOCATOR, stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> None:
    """A table, or lines of JSON with `--alone`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("methods", nargs="*", metavar="METHOD")
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--hidden", type=int, default=20)
    parser.add_argument("--alone", action="store_true", help="in this process, printing JSON")
    given = parser.parse_args()
    if not given.alone:
        for found in measure_all(given.methods, given.clients, given.hidden):
            sizes = [f"{key} {found[key] / 2**20:6.1f} MiB" for key in ("measured", "foretold")]
            print(f"{found['method']:26}", *sizes)
        return
    robust.AT_ONCE = AT_ONCE
    jobs.BATCH = BATCH
    backend.MAX_EVALUATED = CHUNK
    gc.freeze()  # so that every collection takes little time
    for name, table in tables():
        if not given.methods or name in given.methods:
            measure(name, table, WARM_UP, given.hidden)
            print(json.dumps(measure(name, table, given.clients, given.hidden)), flush=True)


if __name__ == "__main__":
    main()

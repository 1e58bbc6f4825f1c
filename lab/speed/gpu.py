"""Time the works on one GPU, in every precision, beside the plain loop; and six candidates on 10,000 test images.

The last line is W3 with 100,000 clients in a round.

python lab/speed/gpu.py [--rounds 20] [--out lab/results/speed/gpu.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clientwise.data.federated import Holdings
from clientwise.engine.executor import DeviceExecutor
from clientwise.engine.local import LocalEngine
from clientwise.models.networks import cnn, mlp
from ours import federated, seconds_per_round
from works import WORKS, Work, make_data

SIX_CANDIDATES = "six candidates on 10,000 images"
LARGE = "W3, 100,000 clients in a round"


def network(work: Work) -> nn.Module:
    """The work's network."""
    return (
        mlp(work.shape, 10, hidden=list(work.layers[1:-1])) if work.layers else cnn(work.shape, 10)
    )


def plain_loop(work: Work, rounds: int, warmup: int = 2) -> list[float]:
    """What a person would write first: no federated machinery, data on the GPU, TF32 allowed."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    inputs, labels = (torch.from_numpy(part).cuda() for part in make_data(work))
    module = network(work).cuda()
    optimizer = torch.optim.SGD(module.parameters(), work.rate)
    took = []
    for round_num in range(rounds + warmup):
        began = time.perf_counter()
        for client in range(round_num, round_num + work.cohort):
            for _ in range(work.epochs):
                for first in range(0, work.samples, work.batch):
                    batch = slice(first, first + work.batch)
                    optimizer.zero_grad()
                    output = module(inputs[client % work.clients, batch])
                    nn.functional.cross_entropy(
                        output, labels[client % work.clients, batch]
                    ).backward()
                    optimizer.step()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    return took[warmup:]


def six_candidates(precision: Any, repeats: int) -> list[float]:
    """Six models on the test sets of 100 clients, 100 images each."""
    data = federated(WORKS["W1"])
    tests = Holdings(
        data.train.indices[:10_000], data.train.targets[:10_000], torch.arange(101) * 100
    )
    module = network(WORKS["W1"])
    executor = DeviceExecutor(data.samples, module, torch.device("cuda"), precision=precision)
    engine = LocalEngine(replace(data, test=tests), module, seed=1, executor=executor)
    models = engine.initial_model.repeat(6, 1)
    took = []
    for _ in range(repeats + 3):
        began = time.perf_counter()
        engine.evaluate(range(100), models)
        took.append(time.perf_counter() - began)
    return took[3:]


def large_cohort(rounds: int) -> list[float]:
    """100,000 clients like those of W3, all of them in every round; a hundred clients each have the same samples."""
    work = replace(WORKS["W3"], cohort=100_000)
    data = federated(work)
    copies = work.cohort // work.clients
    train = Holdings(
        data.train.indices.repeat(copies),
        data.train.targets.repeat(copies),
        torch.arange(work.cohort + 1) * work.samples,
    )
    test = replace(data.test, offsets=torch.arange(work.cohort + 1).clamp(max=1))
    data = replace(data, train=train, test=test)
    return seconds_per_round(work, rounds, warmup=1, data=data, device="cuda")


def main() -> None:
    """Everything, as a table and as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("lab/results/speed/gpu.json"))
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no GPU here; lab/speed/compare.py is for CPUs")
    results: dict[str, dict[str, float]] = {}

    def note(work: str, how: str, seconds: list[float]) -> None:
        results.setdefault(work, {})[how] = round(1000 * statistics.median(seconds), 2)
        print(f"{work:32} {how:12} {results[work][how]:9.1f} ms", flush=True)
        torch.cuda.empty_cache()

    for work in [WORKS[name] for name in ("W1", "W2", "W3", "W4")]:
        note(work.name, "plain loop", plain_loop(work, 2, warmup=1))
        for precision in ("tf32", "bf16", "float32"):
            took = seconds_per_round(
                work, given.rounds, warmup=10, device="cuda", precision=precision
            )
            note(work.name, precision, took)
    for precision in ("tf32", "bf16", "float32"):
        note(SIX_CANDIDATES, precision, six_candidates(precision, given.rounds))
    note(LARGE, "tf32", large_cohort(2))
    machine = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "unit": "milliseconds per round, median",
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(
        json.dumps({"machine": machine, "results": results}, indent=2) + "\n", encoding="utf-8"
    )
    print(f"\n{machine['gpu']}, PyTorch {machine['torch']}: {given.out}")


if __name__ == "__main__":
    main()

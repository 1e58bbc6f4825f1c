"""Where the processor time of a round goes, and how far it is from the bare products of its layers.

python lab/speed/round_profile.py [W1 W2 W3 W4] [--rounds 2] [--cohort CLIENTS] [--out FILE]

P1's three criteria, guard, weights and record, on one core: with one worker everything runs in the thread that is
profiled. Times are processor time per round, so that a busy machine adds little. The profiler itself adds some per
cent to what takes many calls.

The floor is the matrix products and convolutions of the same training alone, with the same shapes: forward pass,
gradient by the weights, and by the inputs for all layers but the first. Dense networks are stacked as the engine stacks
them; of a convolutional network one client trains after the other.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import clientwise as cw  # before PyTorch, whose allocator it sets (docs/performance.md, "Kept memory")

# isort: split
import torch
from torch import Tensor, nn

from clientwise.engine.executor import AT_ONCE_BYTES, FLOAT_BYTES
from clientwise.experiment.build.engine import build_module
from compare import machine
from ours import config, federated
from works import WARMUP, WORKS, Work

# Functions whose whole time is the part's, by file and name. A part inside another one is taken out of it.
PARTS = {
    "training steps": [("executor.py", "_train")],
    "drawing batches": [("batches.py", "of"), ("batches.py", "draw"), ("local.py", "_train_job")],
    "guard": [("guard.py", "inspect_updates"), ("guard.py", "inspect_measurements")],
    "criteria": [("local.py", "_updates"), ("cohort.py", "_measure")],
    "aggregate": [("sums.py", "add"), ("round.py", "aggregate_cohort")],
    "record": [("store.py", "write_round"), ("checkpoint.py", "save_checkpoint")],
}
INSIDE_STEPS = PARTS["drawing batches"][:2]
REPEATS = 5  # of a product; the best counts

METHOD = {
    "name": "prioritized",
    "criteria": ["dataset_size", "label_diversity", "model_divergence"],
    "score": "prioritized",
}


def profile(work: Work, rounds: int) -> dict[str, float]:
    """Seconds of processor time per round, by part."""
    profiler = cProfile.Profile(time.process_time)
    ended = 0

    def note(*_: object) -> None:
        nonlocal ended
        ended += 1
        if ended == WARMUP:
            profiler.enable()
        if ended == WARMUP + rounds:
            profiler.disable()

    settings = config(work, rounds + WARMUP + 1, device="cpu", workers=1, methods=[METHOD])
    with tempfile.TemporaryDirectory() as folder:
        cw.run(settings, Path(folder) / "run", data=federated(work), on_round=note)
    return by_part(profiler, rounds)


def by_part(profiler: cProfile.Profile, rounds: int) -> dict[str, float]:
    """Seconds per round of every part, of everything else, and in total."""
    profiler.create_stats()
    own_seconds = 0.0
    took: defaultdict[tuple[str, str], float] = defaultdict(float)
    for (file, _, name), (_, _, own, whole, _) in profiler.stats.items():
        own_seconds += own
        took[Path(file).name, name] += whole / rounds
    parts = {part: sum(took[one] for one in functions) for part, functions in PARTS.items()}
    parts["training steps"] -= sum(took[one] for one in INSIDE_STEPS)
    total = own_seconds / rounds
    return {**parts, "other": total - sum(parts.values()), "total": total}


def floor(work: Work) -> float:
    """Seconds of processor time of a round's bare products and convolutions."""
    samples = federated(work).samples
    module = build_module(cw.load(config(work, 1)), samples, 1)
    size = sum(parameter.numel() for parameter in module.parameters())
    models = 1
    if work.layers:
        models = max(1, min(work.cohort, AT_ONCE_BYTES // (FLOAT_BYTES * size)))
    batch = min(work.batch, work.samples)
    steps = work.epochs * -(-work.samples // work.batch)
    products = products_of(module, samples.batch(torch.arange(batch)), models)
    return sum(map(best_seconds, products)) * steps * work.cohort / models


def products_of(module: nn.Module, inputs: Tensor, models: int) -> list[Callable[[], object]]:
    """The products of one step of `models` clients, each with a batch of the shape of `inputs`."""
    products: list[Callable[[], object]] = []

    def add(layer: nn.Module, given: tuple[Tensor], outputs: Tensor) -> None:
        is_first = not products
        if isinstance(layer, nn.Linear):
            products.extend(dense(layer, given[0], outputs, models, is_first))
        elif isinstance(layer, nn.Conv2d):
            products.extend(convolutions(layer, given[0], outputs, is_first))

    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.register_forward_hook(add)
    with torch.no_grad():
        module(inputs)
    return products


def dense(
    layer: nn.Linear, inputs: Tensor, outputs: Tensor, models: int, is_first: bool
) -> list[Callable[[], object]]:
    """x·Wᵀ, gᵀ·x and g·W of many models."""
    rows, slopes, weights = (
        values.detach().expand(models, -1, -1).clone() for values in (inputs, outputs, layer.weight)
    )
    found: list[Callable[[], object]] = [
        partial(torch.bmm, rows, weights.transpose(1, 2)),
        partial(torch.bmm, slopes.transpose(1, 2), rows),
    ]
    return found if is_first else [*found, partial(torch.bmm, slopes, weights)]


def convolutions(
    layer: nn.Conv2d, inputs: Tensor, outputs: Tensor, is_first: bool
) -> list[Callable[[], object]]:
    """The convolution, and both of its gradients."""
    weights = layer.weight.detach()
    padding = [(outputs.shape[2] + size - 1 - inputs.shape[2]) // 2 for size in layer.kernel_size]
    settings = (layer.stride, padding, (1, 1), False, (0, 0), 1)
    wanted = (not is_first, True, False)
    backward = torch.ops.aten.convolution_backward
    return [
        partial(torch.convolution, inputs, weights, None, *settings),
        partial(backward, outputs, inputs, weights, None, *settings, wanted),
    ]


def best_seconds(product: Callable[[], object]) -> float:
    """Processor time of the best of a few calls."""
    product()
    took = []
    for _ in range(REPEATS):
        began = time.process_time()
        product()
        took.append(time.process_time() - began)
    return min(took)


def main() -> None:
    """A line for every work; the file keeps what other works have in it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("works", nargs="*", metavar="WORK", default=["W1", "W2", "W3", "W4"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cohort", type=int, help="clients in a round; W2 takes long with its ten")
    parser.add_argument("--out", type=Path, default=Path("lab/results/speed/round_profile.json"))
    given = parser.parse_args()
    unknown = [name for name in given.works if name not in WORKS]
    if unknown:
        parser.error(f"no such work: {', '.join(unknown)}; there are {', '.join(WORKS)}")
    torch.set_num_threads(1)
    results = json.loads(given.out.read_text())["works"] if given.out.exists() else {}
    for name in given.works:
        work = WORKS[name]
        if given.cohort is not None:
            work = replace(work, cohort=given.cohort)
        found = profile(work, given.rounds)
        found["floor"] = floor(work)
        results[name] = {**found, "cohort": work.cohort}
        total = found["total"]
        shares = [f"{part} {100 * found[part] / total:.1f}%" for part in (*PARTS, "other")]
        print(
            f"{name}: {total:.3f} s of processor time per round: {', '.join(shares)}; "
            f"floor {found['floor']:.3f} s: {total / found['floor']:.2f} times the floor",
            flush=True,
        )
        given.out.parent.mkdir(parents=True, exist_ok=True)
        written = {"machine": machine(), "works": dict(sorted(results.items()))}
        given.out.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Time aggregation rules beside ByzFL's: 100 clients with 1.7 million parameters each.

python lab/speed/rules.py [--device cuda] [--clients 100] [--parameters 1700000] [--turns 3] [--only krum ...]

On a CPU the seconds are those that one core worked, which hold on a busy machine, too; on a GPU those that passed.
Turn by turn, the best of each. "weighted" is ours with unequal weights, which ByzFL does not have. ByzFL's nearest
neighbours copy every client's neighbours, n·(n − f)·d values: left out where there is no memory for that.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import oracles
from clientwise.core.aggregation.before import BEFORE
from clientwise.core.aggregation.rules import RULES
from clientwise.core.types import Gathered, ModelSpec
from clientwise.limits import memory

HOSTILE = 0.2
ByzFL = Callable[[int], Any]  # for f hostile clients


def theirs() -> dict[str, ByzFL]:
    """ByzFL's rules by our names."""
    byzfl = oracles.byzfl("aggregators")
    if byzfl is None:
        raise SystemExit(
            "ByzFL is not installed: pip install --no-deps --requirement .ci/oracles.txt"
        )
    return {
        "mean": lambda f: byzfl.Average(),
        "median": lambda f: byzfl.Median(),
        "trimmed_mean": lambda f: byzfl.TrMean(f),
        "geometric_median": lambda f: byzfl.GeometricMedian(),
        "krum": lambda f: byzfl.Krum(f),
        "multi_krum": lambda f: byzfl.MultiKrum(f),
        "centred_clipping": lambda f: byzfl.CenteredClipping(),
        "nearest_neighbours": lambda f: byzfl.NNM(f),
    }


def ours(name: str, updates: Tensor, weights: Tensor) -> Callable[[], object]:
    """One of our rules, or steps before one, ready to be called."""
    if name in RULES:
        return lambda: RULES.get(name)(updates, weights, {})
    clients, size = updates.shape
    gathered = Gathered(
        client_ids=tuple(range(clients)),
        updates=updates,
        global_model=torch.zeros(size, device=updates.device),
        spec=ModelSpec((), size, size),
        criteria={},
        judge=lambda models: None,
        train_server=lambda model: model,
    )
    return lambda: BEFORE.get(name)(gathered, weights)


def seconds(call: Callable[[], object], device: str) -> float:
    """How long one call takes: the processor's time, or on a GPU what passes."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    start = clock()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def measure(
    name: str, updates: Tensor, oracle: ByzFL | None, turns: int
) -> tuple[float, float, float | None]:
    """The best seconds of ours with equal weights, of ours with unequal ones, and of ByzFL's."""
    clients, device = len(updates), updates.device.type
    equal = torch.full((clients,), 1 / clients, dtype=torch.float64)
    unequal = torch.arange(1, clients + 1).double()
    calls = [ours(name, updates, equal), ours(name, updates, unequal / unequal.sum())]
    if oracle is not None:
        calls.append(lambda: oracle(round(HOSTILE * clients))(updates))
    if device == "cuda":
        for call in calls:  # what a GPU does once only
            call()
    times = [[seconds(call, device) for call in calls] for _ in range(turns)]
    best = [min(column) for column in zip(*times, strict=True)]
    return best[0], best[1], best[2] if oracle is not None else None


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--parameters", type=int, default=1_700_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", nargs="*", metavar="NAME")
    given = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    updates = (torch.randn(given.clients, given.parameters, generator=generator) * 0.01).to(
        given.device
    )
    oracles_by_name = theirs()
    room = torch.cuda.mem_get_info()[0] if given.device == "cuda" else memory()
    if (1 - HOSTILE) * given.clients**2 * given.parameters * 4 > room / 2:
        del oracles_by_name["nearest_neighbours"]
    print("| rule | seconds | weighted | ByzFL | ByzFL / ours |\n|---|---|---|---|---|")
    steps = [
        name for name in BEFORE if not BEFORE.declared(name).needs
    ]  # the others ask for criteria or a server set
    for name in given.only or [*RULES, *steps]:
        own, weighted, other = measure(name, updates, oracles_by_name.get(name), given.turns)
        compared = f"{other:.3g} | {other / own:.1f}" if other is not None else "– | –"
        print(f"| {name} | {own:.3g} | {weighted:.3g} | {compared} |", flush=True)


if __name__ == "__main__":
    main()

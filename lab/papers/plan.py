"""Say what runs would take on this machine, before they start; and which are quick.

    python lab/papers/plan.py RUNS p3-1a p3-1b:quick --data-dir DATA

Without names: the papers' experiments (lab/results/papers/claims.toml), at the size of the paper and as quick presets.
Nothing is run: the data are read and divided, and some steps of the network are timed. The time of the run follows from
the number of steps, on a machine that does nothing else. On a GPU it is an upper bound: there, clients train at once.
"""

from __future__ import annotations

import argparse
import math
import os
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import torch

import clientwise as cw
from clientwise.core.sampling import cohort_size
from clientwise.data.federated import FederatedData
from clientwise.data.folder import DataError
from clientwise.experiment.build.data import build_data, load_samples
from clientwise.experiment.build.engine import build_module
from clientwise.experiment.config.schema import Experiment
from clientwise.models.modules import outputs_of
from clientwise.record.run import is_finished
from clientwise.report.items import in_time

HERE = Path(__file__).parent
CLAIMS = HERE.parent / "results" / "papers" / "claims.toml"
QUICK = 5 * 60  # seconds
TIMED_SAMPLES = 64  # of a step, at most
TIMED_SECONDS = 0.5
FORWARD = 1 / 3  # of the time of a training step
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Size:
    """What a run consists of."""

    lanes: int  # methods times seeds
    rounds: int
    clients: int  # in a round
    samples: float  # of a client, on average
    epochs: int
    evaluated: int  # samples on which a round's model is evaluated

    def seconds(self, per_sample: float) -> float:
        """Of the whole run, where training on a sample takes so long.

        >>> Size(lanes=2, rounds=10, clients=5, samples=60, epochs=3, evaluated=300).seconds(0.01)
        200.0
        """
        trained = self.clients * self.samples * self.epochs
        passes = trained + FORWARD * self.evaluated
        return self.lanes * self.rounds * passes * per_sample


def main() -> None:
    """Read the command line and print the plan."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, help="where the run folders are, or will be")
    parser.add_argument("names", nargs="*", help="experiments, NAME or NAME:PRESET")
    parser.add_argument("--data-dir", type=Path, help="default: $CLIENTWISE_DATA")
    options = parser.parse_args()
    total = 0.0
    for name in options.names or papers():
        said, seconds = plan(name, options.runs, options.data_dir)
        total += seconds
        print(f"{name:30} {said}", flush=True)
    print(f"{'all that can start':30} about {in_time(total)}")
    if not options.names:
        print("Nothing is run: make lab ONLY='p3-1a:quick p3-1b:quick' runs what it names.")


def papers() -> list[str]:
    """The runs of the inventory, then the quick presets of their files."""
    rows = tomllib.loads(CLAIMS.read_text(encoding="utf-8"))["inventory"]
    runs = [row["run"] for row in rows if "run" in row]
    quick = [f"{run.partition(':')[0]}:quick" for run in runs]
    return list(dict.fromkeys([*runs, *quick]))


def plan(name: str, runs: Path, data_dir: Path | None) -> tuple[str, float]:
    """What a run would take, in words and in seconds; none if it is finished or cannot start."""
    file, _, preset = name.partition(":")
    if is_finished(runs / name.replace(":", "-")):
        return "finished", 0.0
    given = {"data_dir": str(data_dir.resolve())} if data_dir else {}
    experiment = cw.load(HERE / f"{file}.toml", [], given, preset or None)
    if experiment.features is not None:
        return "not estimated: it computes the features of a frozen network first", 0.0
    seed = experiment.seeds[0]
    try:
        data, _ = build_data(experiment, load_samples(experiment), seed)
    except DataError as error:
        return f"cannot start: {error}", 0.0
    size = size_of(experiment, data)
    seconds = size.seconds(seconds_per_sample(experiment, data, seed))
    work = f"{size.lanes} lanes × {size.rounds} rounds × {size.clients} clients"
    mark = ", quick" if seconds <= QUICK else ""
    return f"about {in_time(seconds)}{mark} ({work})", seconds


def size_of(experiment: Experiment, data: FederatedData) -> Size:
    """The size of an experiment on its data."""
    federation = experiment.federation
    sizes = data.train.sizes
    every = experiment.evaluation.clients_every
    tested = int(data.test.sizes.sum()) / every if every else 0
    reported = sum(len(part.indices) for part in (data.weigh, data.report) if part is not None)
    return Size(
        lanes=len(experiment.methods) * len(experiment.seeds),
        rounds=experiment.rounds,
        clients=cohort_size(
            len(sizes),
            fraction=federation.fraction,
            clients_per_round=federation.clients_per_round,
        ),
        samples=float(sizes.double().mean()),
        epochs=experiment.training.epochs,
        evaluated=round(tested) + reported,
    )


def seconds_per_sample(experiment: Experiment, data: FederatedData, seed: int) -> float:
    """The time of a forward and a backward pass of a sample on this machine, in batches of the experiment.

    On a CPU, every core trains a client: the processor time of one core, divided by the number of cores.
    """
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    module = build_module(experiment, data.samples, seed).to(device)
    batch_size = experiment.build_methods()[0].training.batch_size
    count = min(batch_size or TIMED_SAMPLES, TIMED_SAMPLES)
    clock = time.perf_counter if on_gpu else time.process_time

    def spent(samples: int) -> float:
        """Seconds of a step with so many samples: the best of some, or the only one where it is slow."""
        inputs = data.samples.network_inputs(data.train.indices[:samples].to(device))
        best = math.inf
        until = clock() + TIMED_SECONDS
        while best == math.inf or clock() < until:
            began = clock()
            outputs_of(module, inputs).float().square().mean().backward()
            if on_gpu:
                torch.cuda.synchronize()
            best = min(best, clock() - began)
        return best

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds = spent(1)
    if seconds < TIMED_SECONDS:  # else a batch would take minutes
        seconds = spent(count) / count
    torch.set_num_threads(threads)
    return seconds / (1 if on_gpu else CORES)


if __name__ == "__main__":
    main()

"""What the machinery costs: a whole round against its training alone, and the way from the command to the first round.

python benchmarks/overhead.py [--work W1] [--rounds 5] [--starts 3]

Whole rounds (P1's three criteria, guard, weights, record, a checkpoint after each, progress) and the bare training of
the same clients take turns in one process. The best of each are compared, since what else the machine does only adds
to them. Where times differ by more than the machinery takes, its own processor time is the better measure: workers
train, and the thread that runs the rounds does everything else. Targets: under 3% of W1's round; the first round has
ended within 5 s of the command.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tomli_w
import torch
from rich.console import Console

import clientwise as cw
from clientwise.core.types import Task
from clientwise.experiment.build.engine import build_engine, build_executor
from clientwise.experiment.running.lanes import Progress
from clientwise.report.progress import show_progress
from ours import config, federated
from works import WARMUP, WORKS, Work

METHOD = {
    "name": "prioritized",
    "criteria": ["dataset_size", "label_diversity", "model_divergence"],
    "score": "prioritized",
}
SMALL = {
    "name": "small",
    "rounds": 1,
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 10},
    "model": "linear",
    "methods": [{"name": "FedAvg"}],
}


Took = tuple[float, float]  # seconds on the clock, and of this thread's processor time


def now() -> Took:
    """Both clocks."""
    return time.perf_counter(), time.thread_time()


def since(began: Took) -> Took:
    """What has gone by on both clocks."""
    return time.perf_counter() - began[0], time.thread_time() - began[1]


def compare_rounds(work: Work, rounds: int) -> tuple[list[Took], list[Took]]:
    """What whole rounds took, and the bare training of the same clients right after each."""
    data = federated(work)
    experiment = cw.load(config(work, rounds + WARMUP, checkpoint_seconds=0, methods=[METHOD]))
    executor = build_executor(experiment, data.samples, torch.device("cpu"))
    engine = build_engine(experiment, data, {}, experiment.seeds[0], executor)
    training, loss = experiment.build_methods()[0].training, engine.problem.loss
    whole: list[Took] = []
    bare: list[Took] = []
    began = now()

    def take_turns(_: cw.Run, progress: Progress) -> None:
        nonlocal began
        show(progress)
        whole.append(since(began))
        began = now()
        for _ in engine.train(
            progress.record.client_ids, engine.initial_model, Task(1, training, loss, ())
        ):
            pass
        bare.append(since(began))
        began = now()

    with tempfile.TemporaryDirectory() as folder, show_progress(Console(stderr=True)) as show:
        cw.run(experiment, Path(folder) / "run", data=data, on_round=take_turns)
    return whole[WARMUP:], bare[WARMUP:]


def start_up() -> float:
    """Seconds from `clientwise run` to the line that says that the only round of a small experiment has ended."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "small.toml"
        file.write_text(tomli_w.dumps(SMALL))
        began = time.perf_counter()
        command = [sys.executable, "-m", "clientwise", "run", str(file), "--out", f"{folder}/run"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if "round 1/1" in line:
                    took = time.perf_counter() - began
                    process.communicate()
                    return took
        raise RuntimeError(
            f"clientwise run ended with status {process.returncode} before its first round did"
        )


def main() -> None:
    """Both, as lines and as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", choices=WORKS, default="W1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--starts", type=int, default=3)
    given = parser.parse_args()
    whole, bare = compare_rounds(WORKS[given.work], given.rounds)
    percent, training = {}, min(took[0] for took in bare)
    for clock, name in enumerate(("wall clock", "processor time of the thread that trains nobody")):
        round_took, bare_took = (min(took[clock] for took in rounds) for rounds in (whole, bare))
        percent[name] = 100 * (round_took - bare_took) / training
        print(
            f"{given.work}, {name}: {round_took:.3f} s a round, {bare_took:.3f} s where it only trains: ",
            end="",
        )
        print(f"{percent[name]:.1f}% of the training for the machinery (target: under 3% on W1)")
    starts = [start_up() for _ in range(given.starts)]
    print(
        f"from command to the end of the first round: {statistics.median(starts):.2f} s (target: under 5 s)"
    )
    print(
        json.dumps(
            {
                "work": given.work,
                "whole": whole,
                "bare": bare,
                "percent": percent,
                "start_up": starts,
            }
        )
    )


if __name__ == "__main__":
    main()

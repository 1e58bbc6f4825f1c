"""Plain PyTorch without any federated machinery: as many batches as a round has, one model. The limit for big networks.

With several processes each does its part of the cohort; they wait for each other at the end of a round.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from torch import multiprocessing

from peers.in_torch import final_loss, network, set_up, tensors, train
from peers.shared import Clock, arguments
from works import cohort


def run(given: argparse.Namespace, place: int, wait: Callable[[], object]) -> None:
    """The rounds of one process; the first one measures."""
    set_up(given.threads)
    inputs, labels = tensors(given.work)
    model, clock = network(given.work), Clock()
    for round_num in range(given.total):
        for client in cohort(given.work, round_num)[place :: given.processes]:
            train(model, given.work, inputs[client], labels[client])
        wait()
        clock.round_ended()
    if place == 0:
        clock.report("plain loop", given.work, "torch", loss=final_loss(model, inputs, labels))


def main() -> None:
    """Start the other processes and be the first."""
    given = arguments()
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(given.processes)
    others = [
        context.Process(target=run, args=(given, place, barrier.wait))
        for place in range(1, given.processes)
    ]
    for process in others:
        process.start()
    run(given, 0, barrier.wait)
    for process in others:
        process.join()


if __name__ == "__main__":
    main()

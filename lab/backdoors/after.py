"""Defences after the training: fine-pruning and universal adversarial training, on the final models of a matrix.

    CLIENTWISE_DATA=DATA python lab/backdoors/after.py lab/results/backdoors-after.csv FOLDER [METHOD]

They use the server's weighing samples alone. Accuracy and success are those on its reporting samples.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pandas
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import clientwise as cw
from clientwise.data.federated import FederatedData
from clientwise.experiment.build.data import build_data, load_samples
from clientwise.experiment.matrix.grid import open_matrix

EPOCHS = 20  # on the server's samples, after pruning or of adversarial training
BATCH = 20
RATE = 0.05
ALLOWED = 0.04  # accuracy on the server's samples that pruning may cost, as in the paper
BOUND = 0.3  # norm of the universal change, in units of the median norm of the inputs
STEPS = 20  # of its search, each a tenth of the bound
Samples = tuple[Tensor, Tensor]


def main(target: Path, folder: Path, method: str = "Recommended") -> None:
    """Write a row for each cell, seed and defence."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as processes:
        cells = range(len(open_matrix(folder).cells))
        found = processes.map(partial(cell_rows, folder, method), cells)
        rows = [row for rows in found for row in rows]
    pandas.DataFrame(rows).to_csv(target, index=False, float_format="%.6g")


def cell_rows(folder: Path, method: str, number: int) -> list[dict[str, object]]:
    """The final models of a method in a cell, as they are and after each defence."""
    torch.set_num_threads(1)
    cell = open_matrix(folder).cells[number]
    run = cw.load(folder / cell.folder)
    samples = load_samples(cell.experiment)
    rows = []
    for seed in cell.experiment.seeds:
        data, _ = build_data(cell.experiment, samples, seed)
        trained = run.model(method, seed)
        for name, defence in DEFENCES.items():
            torch.manual_seed(seed)
            after = defence(copy.deepcopy(trained), weighing(data))
            place = {"federation": cell.data, "attack": cell.attack, "share": cell.share}
            rows.append(place | {"seed": seed, "defence": name} | measured(after, data))
    return rows


def weighing(data: FederatedData) -> Samples:
    """The server's samples that weigh."""
    held = data.weigh
    assert held is not None
    inputs = data.samples.network_inputs(held.indices)
    assert isinstance(inputs, Tensor)
    return inputs, held.targets


def measured(network: nn.Module, data: FederatedData) -> dict[str, float]:
    """Accuracy on the server's reporting samples, and success of the trigger."""
    found = {}
    for name, held in (("metric", data.report), ("success", data.triggered)):
        if held is not None:
            inputs = data.samples.network_inputs(held.indices)
            assert isinstance(inputs, Tensor)
            found[name] = accuracy(network, inputs, held.targets)
    return found


@torch.no_grad()
def accuracy(network: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """Share of the inputs that the network predicts as the targets."""
    return float((network(inputs).argmax(1) == targets).float().mean())


def fine_pruned(network: nn.Module, samples: Samples) -> nn.Module:
    """Without the last hidden units that the server's samples activate least, then fine-tuned (Liu et al., RAID 2018).

    Units are removed while accuracy on these samples stays within four points.
    """
    last = [one for one in network.modules() if isinstance(one, nn.Linear)][-1]
    seen: list[Tensor] = []
    hook = last.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    start = accuracy(network, *samples)
    hook.remove()
    removed = torch.zeros(last.in_features, dtype=torch.bool)
    weights = last.weight.detach().clone()
    for unit in seen[0].abs().mean(0).argsort().tolist():
        removed[unit] = True
        last.weight.data = weights.masked_fill(removed, 0.0)
        if accuracy(network, *samples) < start - ALLOWED:
            removed[unit] = False
            break
    last.weight.data = weights.masked_fill(removed, 0.0)

    def keep_removed() -> None:
        last.weight.data.masked_fill_(removed, 0.0)

    return _trained(network, samples, lambda _: None, keep_removed)


def adversarially_trained(network: nn.Module, samples: Samples) -> nn.Module:
    """Trained against a common change of all inputs (I-BAU without its implicit gradient, Zeng et al., ICLR 2022).

    Every epoch searches the change of bounded norm with the largest loss, then trains with and without it.
    """
    inputs, targets = samples
    bound = BOUND * inputs.flatten(1).norm(dim=1).median()

    def worst_change(network: nn.Module) -> Tensor:
        change = torch.zeros_like(inputs[0])
        for _ in range(STEPS):
            change.requires_grad_(True)
            loss = cross_entropy(network(inputs + change), targets)
            (gradient,) = torch.autograd.grad(loss, change)
            moved = change.detach() + 0.1 * bound * gradient / gradient.norm().clamp(min=1e-12)
            change = moved * (bound / moved.norm().clamp(min=1e-12)).clamp(max=1)
        return change

    return _trained(network, samples, worst_change)


def _trained(
    network: nn.Module,
    samples: Samples,
    worst_change: Callable[[nn.Module], Tensor | None],
    after_step: Callable[[], None] = lambda: None,
) -> nn.Module:
    optimizer = torch.optim.SGD(network.parameters(), RATE)
    inputs, targets = samples
    for _ in range(EPOCHS):
        change = worst_change(network)
        for rows in torch.randperm(len(inputs)).split(BATCH):
            loss = cross_entropy(network(inputs[rows]), targets[rows])
            if change is not None:
                loss = (loss + cross_entropy(network(inputs[rows] + change), targets[rows])) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            after_step()
    return network


DEFENCES: dict[str, Callable[[nn.Module, Samples], nn.Module]] = {
    "none": lambda network, samples: network,
    "fine-pruning": fine_pruned,
    "universal adversarial training": adversarially_trained,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])

"""What a node says about its patients' rows, beside the models it trains: one rule for all of it.

With a smallest cell of k > 1:

- A node trains, measures and tests on whole groups of k samples per class. Facts that do not
  depend on a model (sizes, classes, criteria) are about these groups. Which samples are left out,
  and the order of the others, follow from the samples and a key of the node, not from its loader.
- Training losses and seconds are withheld; criteria have two significant digits.
- Results of a model on the test set have Gaussian noise, and counts are multiples of k. The noise
  is such that all results of a run together are μ-Gaussian differentially private with μ = 1
  (Dong, Roth and Su, 2022): whoever sees all of them, and knows all other rows, tells two possible
  rows of one patient apart with a probability of at most Φ(μ/2) = 69%, where guessing has 50%.

The noise of a model's results follows from the model, the test set and a key of the node. Asking again
gives the same results.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch
from torch import Tensor

from ...core.evidence.agnostic import onto_simplex
from ...core.objective.metrics import METRICS, measured
from ...core.objective.problem import Problem
from ...core.types import Evaluation, Updates
from ..flower.data import OwnData, by_class, dividing_by, row_draws

MU = 1.0  # of all results of one run
USUAL_CELL = 5
LARGEST_SAMPLE_LOSS = 3.0  # of one sample, in units of the loss of guessing, ln C
STATISTICS = 2  # of a model: counts and loss, which get equal shares of the noise
LOSS_DIGITS = 3  # after the point


@dataclass(frozen=True)
class Release:
    """The rule of one node and one run.

    Args:
        cell: the smallest cell k; 1: everything is exact.
        models: number of models that are evaluated in the run at most.
        key: the secret that the noise follows from.
    """

    cell: int
    models: int
    key: bytes

    def why_not(self, problem: Problem) -> str | None:
        """Why results for this problem cannot be released by the rule; None if they can."""
        if self.cell == 1 or is_bounded(problem.num_classes, problem.metric):
            return None
        return (
            f"results in {problem.metric} have no bound per sample: a node evaluates models "
            "by classes, or with SMALLEST_CELL=1, which gives exact results"
        )

    def evaluation(self, exact: Evaluation, problem: Problem, names: list[str]) -> Evaluation:
        """What may be said of the results of c models on this node's test set.

        Args:
            exact: with the losses of all samples, [c, N].
            problem: one that `why_not` accepts.
            names: a name for every model; the same name has the same noise.
        """
        if self.cell == 1 or not int(exact.num_samples):
            return exact
        assert exact.sample_losses is not None
        share = _share(self.models)
        losses = []
        counts = []
        for model, name in enumerate(names):
            noise = self._noise(name)
            losses.append(self._noisy_loss(exact.sample_losses[model], problem, noise))
            counts.append(self._noisy_counts(exact.counts[model], share, noise))
        together = torch.stack(counts)
        values = METRICS.get(problem.metric)(together.double())[:, None]
        return replace(exact, counts=together, values=values, losses=torch.stack(losses)[:, None])

    def update(self, updates: Updates) -> Updates:
        """An update whose criteria, other than whole ones, have two significant digits.

        The training loss is withheld: two digits of it tell an attribute of a patient, with a model
        made for this. The seconds are withheld, too: the server has a clock of its own.
        """
        if self.cell == 1:
            return updates
        return replace(
            updates,
            measurements={name: _coarse(values) for name, values in updates.measurements.items()},
            training_loss=torch.full_like(updates.training_loss, math.nan),
            seconds=torch.zeros_like(updates.seconds),
        )

    def _noise(self, name: str) -> Callable[[float, tuple[int, ...]], Tensor]:
        """Draws Gaussian noise of a standard deviation and shape; the same for the same name."""
        seed = int.from_bytes(hmac.digest(self.key, name.encode(), "sha256"), "big")
        generator = numpy.random.Generator(numpy.random.PCG64(seed))

        def draw(deviation: float, shape: tuple[int, ...]) -> Tensor:
            return torch.from_numpy(numpy.asarray(generator.normal(0.0, deviation, shape)))

        return draw

    def _noisy_loss(
        self,
        losses: Tensor,
        problem: Problem,
        noise: Callable[[float, tuple[int, ...]], Tensor],
    ) -> Tensor:
        """Mean of losses [N], each cut at a multiple of the loss of guessing."""
        most = _largest_loss(problem.num_classes)
        cut = losses.double().nan_to_num(nan=most).clamp(0, most)
        deviation = loss_deviation(problem.num_classes, len(losses), self.models)
        return (cut.mean() + noise(deviation, ())).clamp(0, most).round(decimals=LOSS_DIGITS)

    def _noisy_counts(
        self, exact: Tensor, share: float, noise: Callable[[float, tuple[int, ...]], Tensor]
    ) -> Tensor:
        """A confusion matrix [C, C] in multiples of the cell, with the exact number of each class.

        Another row of the same class moves one count to another cell: √2 in Euclidean distance.
        """
        deviation = math.sqrt(2) / share
        noisy = exact.double() + noise(deviation, tuple(exact.shape))
        totals = exact.sum(1, keepdim=True)
        rows = []
        for row, total in zip(noisy, totals.flatten().tolist(), strict=True):
            rows.append(onto_simplex(row / total) * total if total else torch.zeros_like(row))
        return in_cells(torch.stack(rows), totals, self.cell)


def is_bounded(num_classes: int, metric: str | None) -> bool:
    """Whether one sample changes results by a bounded amount, so that noise can hide it.

    Args:
        num_classes: 0 where the targets are not classes.
        metric: None for the usual one.
    """
    return num_classes > 0 and not (metric and measured(metric).from_scores)


def read_own(load: Callable[[str], OwnData], path: str, cell: int, secret: bytes) -> OwnData:
    """A node's data, as it trains and tests on them."""
    with dividing_by(hmac.digest(secret, b"test rows", "sha256")):
        own = load(path)
    if cell == 1:
        return own
    return in_groups(arranged(own, hmac.digest(secret, b"order of rows", "sha256")), cell)


def arranged(own: OwnData, secret: bytes) -> OwnData:
    """The same rows in an order that follows from their content and a secret.

    A loader may return rows in any order: batches, and the rows that `in_groups` leaves out, are the
    same. Another row in the place of one has a place that tells nothing of it.
    """
    facts = list(own.sample_attributes.values())
    train = _order([*own.train, *facts], secret)
    test = _order(own.test, secret)
    return _picked(own, train, test)


def in_groups(own: OwnData, cell: int) -> OwnData:
    """Of every class the first samples, a multiple of `cell`; the others are not used."""
    if cell == 1:
        return own
    return _picked(own, _whole_groups(own.train[1], cell), _whole_groups(own.test[1], cell))


def in_cells(counts: Tensor, totals: Tensor, cell: int) -> Tensor:
    """Counts [C, C] in multiples of `cell`, each row with its total [C, 1], a multiple of `cell`."""
    cells = (counts / cell).floor()
    rest = counts / cell - cells
    missing = totals / cell - cells.sum(1, keepdim=True)
    ranks = rest.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return ((cells + (ranks < missing.round())) * cell).long()


def loss_deviation(num_classes: int, samples: int, models: int) -> float:
    """Standard deviation of the noise in a model's mean loss on a node's test set.

    Args:
        num_classes: C.
        samples: in the node's test set.
        models: number of models that are evaluated in the run at most.
    """
    return _largest_loss(num_classes) / samples / _share(models)


def _largest_loss(num_classes: int) -> float:
    """At which a sample's loss is cut."""
    return LARGEST_SAMPLE_LOSS * math.log(max(2, num_classes))


def _share(models: int) -> float:
    """The μ of one statistic of one model."""
    return MU / math.sqrt(STATISTICS * models)


def _coarse(values: Tensor) -> Tensor:
    """Values [n] with two significant digits; whole numbers as they are, and NaN for the guard."""
    rounded = []
    for value in values.tolist():
        is_whole = math.isfinite(value) and value == round(value)
        rounded.append(value if is_whole else float(f"{value:.2g}"))
    return torch.tensor(rounded, dtype=values.dtype)


def _order(columns: Sequence[Any], secret: bytes) -> list[int]:
    draws = row_draws(columns, secret)
    return sorted(range(len(draws)), key=draws.__getitem__)


def _whole_groups(targets: Any, cell: int) -> list[int]:
    """Positions of the samples that are kept, in their order."""
    kept = []
    for members in by_class(targets):
        kept += members[: len(members) // cell * cell]
    return sorted(kept)


def _picked(own: OwnData, train: list[int], test: list[int]) -> OwnData:
    """Samples by their positions."""
    attributes = {name: torch.as_tensor(one)[train] for name, one in own.sample_attributes.items()}
    inputs, targets = own.train
    test_inputs, test_targets = own.test
    return OwnData(
        (inputs[train], targets[train]), (test_inputs[test], test_targets[test]), attributes
    )

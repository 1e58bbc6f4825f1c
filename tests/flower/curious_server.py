"""A changed server that reads patients' rows from evaluations of models it makes up.

A linear model with huge weights splits the patients of a node at a threshold of a projection w·x.
Counts say how many are above it, by class. A patient of class 0 above it adds its projection to the
loss, one of class 1 below it as well, so that losses at two thresholds with one patient between
them differ by that patient's projection. Thirteen slightly turned projections give its attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

STEEP = 3e4  # length of the weights: patients are on one side of a threshold or the other
TURN = 5e-4  # how far a projection is turned towards an attribute
NEAR = 0.02  # of a standard deviation: an attribute counts as read


@dataclass(frozen=True)
class Told:
    """What a node said of c models: number of patients, losses [c], confusion matrices [c, 2, 2]."""

    patients: int
    losses: numpy.ndarray
    counts: numpy.ndarray


Ask = Callable[[Tensor], Told]  # of models [c, d]


def linear_model(weights: numpy.ndarray, threshold: float, outputs: int) -> Tensor:
    """A flat linear model whose logit of class 1 is STEEP · (w·x − threshold)."""
    matrix = numpy.zeros((outputs, len(weights)))
    bias = numpy.zeros(outputs)
    matrix[-1] = STEEP * weights
    bias[-1] = -STEEP * threshold
    return torch.from_numpy(numpy.concatenate([matrix.ravel(), bias]).astype("float32"))


def read_patients(ask: Ask, attributes: int, outputs: int) -> Tensor:
    """Rows [m, attributes + 1] that the attack believes to be patients', the last column the class.

    Args:
        ask: evaluates models.
        attributes: of a patient.
        outputs: of the model.
    """
    chance = numpy.random.default_rng(3)
    direction = chance.normal(size=attributes)
    direction /= numpy.linalg.norm(direction)
    server = _Server(ask, direction, outputs)
    cuts = server.all_cuts()
    rows = []
    sums = [server.sums(cut, attributes) for cut in cuts]
    for (low, above), (high, below) in zip(cuts[1:], cuts, strict=False):
        mine, others = sums[cuts.index((low, above))], sums[cuts.index((high, below))]
        projections = mine - others
        values = (projections[1:] - projections[0]) / TURN
        is_ill = above[1] - below[1]  # one patient more above the lower threshold
        rows.append([*values, float(is_ill)])
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, attributes + 1)


def how_many_are_right(found: Tensor, inputs: Tensor, targets: Tensor) -> int:
    """Patients with all attributes and the class among the rows that were found."""
    truth = torch.cat([inputs.double(), targets.double()[:, None]], 1)
    if not len(found):
        return 0
    near = (found[:, None] - truth[None]).abs().amax(2) < NEAR  # [found, patients]
    return int(near.any(0).sum())


Above = tuple[int, int]  # patients above a threshold, by class
Cut = tuple[float, Above]


class _Server:
    """Asks for thresholds along one direction."""

    def __init__(self, ask: Ask, direction: numpy.ndarray, outputs: int) -> None:
        self._ask = ask
        self._direction = direction
        self._outputs = outputs

    def all_cuts(self) -> list[Cut]:
        """Thresholds from high to low, with one patient between two of them, by one message."""
        grid = numpy.linspace(8, -8, 15_000)
        told = self._ask(torch.stack([self._model(self._direction, one) for one in grid]))
        above = [(int(matrix[0, 1]), int(matrix[1, 1])) for matrix in told.counts]
        cuts: list[Cut] = []
        for found in dict.fromkeys(above):
            first = above.index(found)
            last = len(above) - above[::-1].index(found) - 1
            cuts.append((float(grid[first] + grid[last]) / 2, found))
        return cuts

    def sums(self, cut: Cut, attributes: int) -> numpy.ndarray:
        """Projections of class 0 above the threshold less those of class 1 below it.

        The first along the direction, the others along it turned towards each attribute.
        """
        turned = [self._direction]
        for one in range(attributes):
            turned.append(self._direction + TURN * numpy.eye(attributes)[one])
        told = self._ask(torch.stack([self._model(weights, cut[0]) for weights in turned]))
        above_0 = cut[1][0]
        below_1 = int(told.counts[0, 1].sum()) - cut[1][1]
        return told.losses * told.patients / STEEP + cut[0] * (above_0 - below_1)

    def _model(self, weights: numpy.ndarray, threshold: float) -> Tensor:
        return linear_model(weights, threshold, self._outputs)


def trap_model(direction: numpy.ndarray, thresholds: numpy.ndarray) -> Tensor:
    """A flat network with one hidden layer, whose units are active above thresholds of a projection."""
    units = len(thresholds)
    first = numpy.tile(direction, units)
    return torch.from_numpy(
        numpy.concatenate([first, -thresholds, numpy.ones(units), [0.0]]).astype("float32")
    )


def patients_in_traps(change: Tensor, units: int) -> Tensor:
    """Rows [m, attributes + 1] between neighbouring thresholds, the last column the class.

    A sample changes the weights of an active unit by a multiple of itself, and its bias by the same
    multiple. Units with one patient between their thresholds differ by that patient alone.

    Args:
        change: of a `trap_model` by training [d].
        units: in the hidden layer.
    """
    rows = []
    biases = change[-2 * units - 1 : -units - 1].double()
    weights = change[: -2 * units - 1].reshape(units, -1).double()
    for unit in range(units - 1):
        multiple = biases[unit] - biases[unit + 1]
        if abs(multiple) < 1e-7:
            continue
        row = (weights[unit] - weights[unit + 1]) / multiple
        rows.append(torch.cat([row, (multiple > 0)[None].double()]))
    return torch.stack(rows) if rows else torch.zeros(0, weights.shape[1] + 1)

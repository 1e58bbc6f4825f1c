"""What a site says about its patients' rows beside the models it trains: one rule, with a smallest cell of k > 1.

- It trains and tests on whole groups of k rows per class. Which rows are left out, and the order of the others, follow
  from the rows and a key of the site, not from how its file was written.
- Training losses and seconds are withheld. Criteria that are no whole numbers have two significant digits.
- Results of a model on the test rows have discrete Gaussian noise, and counts are multiples of k. All results under
  one approval together spend `RESULTS_MU`. The noise is drawn once: the ledger keeps the answer.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
from clientwise.core.objective.metrics import METRICS, measured
from clientwise.core.objective.problem import Problem
from clientwise.core.types import Evaluation, Updates
from clientwise.hosts.protocols import OwnData
from torch import Tensor

from .approval import RESULTS_MU
from .gaussian import discrete_gaussian

LARGEST_LOSS = 3.0  # of one sample, in units of the loss of guessing, ln C
LOSS_STEPS = 1000  # a sample's loss is one of so many steps
STATISTICS = 2  # of a model: counts and loss, which spend the same


def has_bound(problem: Problem) -> bool:
    """Whether one row changes results by a bounded amount, so that noise can hide it."""
    return problem.num_classes > 0 and not measured(problem.metric).from_scores


def coarse_update(updates: Updates) -> Updates:
    """An update without training loss and seconds; criteria as `_two_digits` has them. The model is not changed."""
    return replace(
        updates,
        measurements={name: _two_digits(values) for name, values in updates.measurements.items()},
        training_loss=torch.full_like(updates.training_loss, math.nan),
        seconds=torch.zeros_like(updates.seconds),
    )


def noisy_evaluation(exact: Evaluation, problem: Problem, models: int, cell: int) -> Evaluation:
    """Results of c models with noise.

    Args:
        exact: with the losses of all samples [c, N], of one site.
        problem: of classes, with a metric that follows from counts.
        models: the most models that are evaluated under the approval.
        cell: counts are multiples of it.
    """
    if not int(exact.num_samples.sum()):
        return exact
    assert exact.sample_losses is not None, "the site evaluates its own samples"
    share = Fraction(RESULTS_MU**2) / (STATISTICS * models)  # μ² of one statistic of one model
    counts = torch.stack([_noisy_counts(one, share, cell) for one in exact.counts])
    largest = LARGEST_LOSS * math.log(max(2, problem.num_classes))
    losses = [_noisy_loss(one, share, largest) for one in exact.sample_losses]
    return replace(
        exact,
        counts=counts,
        values=METRICS.get(problem.metric)(counts.double())[:, None],
        losses=torch.tensor(losses, dtype=torch.float64)[:, None],
        right=None,
        sample_losses=None,
    )


def in_groups(own: OwnData, cell: int, secret: bytes) -> OwnData:
    """The rows in an order that follows from their content and a secret; of every class a multiple of `cell`."""
    facts = list(own.sample_attributes.values())
    train = _kept(own.train[1], _order([*own.train, *facts], secret), cell)
    test = _kept(own.test[1], _order(own.test, secret), cell)
    attributes = {name: torch.as_tensor(one)[train] for name, one in own.sample_attributes.items()}
    return OwnData(_picked(own.train, train), _picked(own.test, test), attributes)


def rows_digest(own: OwnData, secret: bytes) -> str:
    """Names rows in their order by a secret: with a public hash, a row could be guessed and confirmed."""
    named = hmac.new(secret, digestmod="sha256")
    for values in (*own.train, *own.test, *own.sample_attributes.values()):
        array = torch.as_tensor(values).contiguous().numpy()
        named.update(repr((array.dtype.str, array.shape)).encode())
        named.update(array.tobytes())
    return named.hexdigest()


def _noisy_loss(losses: Tensor, share: Fraction, largest: float) -> float:
    """The mean of losses [N], each cut at `largest`. Another row moves the sum by at most all steps."""
    cut = losses.double().nan_to_num(nan=largest).clamp(0, largest)
    total = int((cut / largest * LOSS_STEPS).round().sum())
    total += discrete_gaussian(LOSS_STEPS**2 / share)
    most = LOSS_STEPS * len(losses)
    return largest * min(max(total, 0), most) / most


def _noisy_counts(exact: Tensor, share: Fraction, cell: int) -> Tensor:
    """A confusion matrix [C, C] in multiples of the cell, with the exact number of each class.

    Another row of the same class moves one count to another place: √2 in Euclidean distance.
    """
    rows = []
    for counts in exact.tolist():
        total = int(sum(counts))
        noisy = [max(0, int(one) + discrete_gaussian(2 / share)) for one in counts]
        rows.append(_in_cells(noisy if any(noisy) else [1] * len(noisy), total, cell))
    return torch.tensor(rows, dtype=exact.dtype)


def _in_cells(parts: Sequence[int], total: int, cell: int) -> list[int]:
    """Multiples of `cell` in proportion to the parts, by the largest remainders; their sum is `total`."""
    cells = total // cell
    exact = [Fraction(cells * part, sum(parts)) for part in parts]
    whole = [math.floor(one) for one in exact]
    by_rest = sorted(range(len(parts)), key=lambda index: whole[index] - exact[index])
    for index in by_rest[: cells - sum(whole)]:
        whole[index] += 1
    return [cell * one for one in whole]


def _two_digits(values: Tensor) -> Tensor:
    """Values [n] with two significant digits; whole numbers as they are, and NaN for the server's guard."""
    rounded = []
    for value in values.tolist():
        is_whole = math.isfinite(value) and value == round(value)
        rounded.append(value if is_whole else float(f"{value:.2g}"))
    return torch.tensor(rounded, dtype=values.dtype)


def _order(columns: Sequence[Any], secret: bytes) -> list[int]:
    """The rows by a keyed hash of their content."""
    arrays = [torch.as_tensor(one).contiguous().numpy() for one in columns]
    names = []
    for row in range(len(arrays[0])):
        content = b"".join(array[row].tobytes() for array in arrays)
        names.append((hmac.digest(secret, content, "sha256"), row))
    return [row for _, row in sorted(names)]


def _kept(targets: Any, order: Sequence[int], cell: int) -> list[int]:
    """Of every class the first rows, a multiple of the cell, in the order that is given."""
    by_class: dict[float, list[int]] = {}
    labels = torch.as_tensor(targets).tolist()
    for row in order:
        by_class.setdefault(labels[row], []).append(row)
    kept = {row for rows in by_class.values() for row in rows[: len(rows) // cell * cell]}
    return [row for row in order if row in kept]


def _picked(pair: tuple[Any, Any], rows: Sequence[int]) -> tuple[Any, Any]:
    inputs, targets = pair
    return torch.as_tensor(inputs)[list(rows)], torch.as_tensor(targets)[list(rows)]

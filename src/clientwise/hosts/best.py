"""The best model so far by a metric: a safetensors file, which holds the round and the value as well."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from ..core.criteria import ANY
from ..core.objective.metrics import METRICS, measured
from ..errors import RunError
from ..record.best_file import Best, Shapes, read_best, write_best
from ..record.files import BEST
from ..registry import suggest
from .values import MAX_LISTED

KeepBest = str | Mapping[str, Any]
KEYS = ("metric", "lower", "file")
HIGHER = {"accuracy", "acc", "auc", "auroc", "precision", "recall", "iou", "dice", "bleu", "r2"}
LOWER = {"loss", "error", "perplexity", "rmse"}


class BestModel:
    """Keeps the best model in a file. Of equal values, the first is kept.

    A file of an earlier run is continued: only a better model replaces it.

    Args:
        wanted: the metric's name, or a table: `metric`, `lower` (lower values are better; needed
            where the name does not tell) and `file`.
        folder: of the record. Without `file`, the model is `best.safetensors` there.
    """

    def __init__(self, wanted: KeepBest, folder: str | Path | None) -> None:
        table = {"metric": wanted} if isinstance(wanted, str) else dict(wanted)
        for key in table.keys() - set(KEYS):
            raise ValueError(f"keep_best: unknown key {key!r}{suggest(str(key), KEYS)}")
        metric = table.get("metric")
        if not isinstance(metric, str) or not metric:
            raise ValueError('keep_best must name a metric, such as "accuracy"')
        self.metric = metric
        lower = table.get("lower")
        if lower is None:
            lower = _is_lower_better(self.metric)
        if not isinstance(lower, bool):
            raise ValueError(f"keep_best: lower = {lower!r}: must be true or false")
        self.lower = lower
        file = table.get("file")
        if file is None and folder is None:
            raise ValueError("keep_best needs a place: give `folder`, or `file` in its table")
        self.file = Path(file) if file is not None else Path(str(folder)) / BEST
        self.best: Best | None = None
        self._shapes: Shapes | None = None  # of the model in the file
        if self.file.exists():
            self.best, self._shapes = read_best(self.file)
            self._refuse_other(self.best)

    def offer(self, model: Mapping[str, Any], value: float, round_num: int) -> bool:
        """Keep a model where it is the best so far; whether it is.

        Args:
            model: NumPy arrays or tensors by name.
            value: of the metric. NaN is never kept.
            round_num: the round after which it is the global model.
        """
        tensors = {name: _tensor(array) for name, array in model.items()}
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if self._shapes is not None and shapes != self._shapes:
            raise RunError(
                f"{self.file}: has a model of other names or shapes. Choose another file"
            )
        if not self._is_better(value):
            return False
        found = Best(self.metric, float(value), round_num, self.lower)
        write_best(self.file, tensors, found)
        self.best = found
        self._shapes = shapes
        return True

    def _is_better(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        if self.best is None:
            return True
        return value < self.best.value if self.lower else value > self.best.value

    def _refuse_other(self, best: Best) -> None:
        if best.metric != self.metric or best.lower != self.lower:
            order = "lowest" if best.lower else "highest"
            raise RunError(
                f"{self.file}: has the model with the {order} {best.metric}. Choose another file"
            )


def _is_lower_better(metric: str) -> bool:
    """Whether lower values are better, by the name; ValueError where it does not tell."""
    if metric in METRICS:
        return measured(metric).is_error
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    known = {name: measured(name).is_error for name in METRICS}
    higher = bool(words & (HIGHER | {name for name, is_error in known.items() if not is_error}))
    lower = bool(words & (LOWER | {name for name, is_error in known.items() if is_error}))
    if higher == lower:
        table = f'{{"metric": {metric!r}, "lower": True}}'
        raise ValueError(f"keep_best: say whether a lower {metric} is better, such as {table}")
    return lower


def is_share(metric: str) -> bool:
    """Whether values of a metric are known to be in [0, 1]."""
    if metric not in METRICS:
        return False
    declared = measured(metric)
    return declared.is_share and not declared.is_error


def in_bounds(metric: str, value: Any) -> bool:
    """Whether a client's value of a metric can be true."""
    if not isinstance(value, Real):
        return False
    try:
        number = float(value)
    except OverflowError:
        return False
    if is_share(metric):
        return 0 <= number <= 1
    return abs(number) <= ANY  # false for NaN


def mean_of_claims(
    metric: str, claims: Mapping[Any, Any], weights: Mapping[Any, float]
) -> tuple[float | None, list[str]]:
    """The mean of a metric over the clients that sent a usable value, by their weights; and remarks.

    >>> mean_of_claims("accuracy", {"a": 0.5, "b": 7.0}, {"a": 0.4, "b": 0.6})
    (0.5, ['keep_best: no usable accuracy from b'])
    """
    usable = {client: value for client, value in claims.items() if in_bounds(metric, value)}
    others = [str(client)[:40] for client in claims if client not in usable]
    remarks = []
    if others:
        remarks.append(f"keep_best: no usable {metric} from {', '.join(others)}"[:MAX_LISTED])
    total = sum(weights[client] for client in usable)
    if not total:
        return None, remarks
    return sum(weights[client] * float(usable[client]) for client in usable) / total, remarks


def _tensor(array: Any) -> Tensor:
    """A copy: tensors of a state may share memory, which a safetensors file cannot."""
    if isinstance(array, Tensor):
        return array.detach().cpu().clone().contiguous()
    return torch.from_numpy(numpy.array(array, order="C"))

"""The registry of datasets."""

from __future__ import annotations

from collections.abc import Callable

from ..registry import Registry
from .federated import Samples

Loader = Callable[..., Samples]
DATASETS: Registry[Loader] = Registry("dataset", "datasets", "Sources of samples")

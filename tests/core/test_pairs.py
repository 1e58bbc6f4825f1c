"""Parts that compare all pairs of clients do so in blocks: no matrix [n, n], and the same result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from clientwise.core.aggregation import robust
from clientwise.core.aggregation.before import BEFORE
from clientwise.core.aggregation.rules import RULES
from clientwise.core.evidence import EVIDENCE
from clientwise.core.types import Gathered, ModelSpec

pytestmark = pytest.mark.bits
CLIENTS, SIZE = 80, 10
BLOCK = 4 * CLIENTS  # values: four clients at a time


class Largest(TorchDispatchMode):
    """The largest tensor that is made meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.values = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **kwargs or {})
        if isinstance(result, Tensor):
            self.values = max(self.values, result.numel())
        return result


def gathered(updates: Tensor) -> Gathered:
    def nobody(models: Tensor) -> Any:
        raise AssertionError("these parts neither judge nor train")

    size = updates.shape[1]
    spec = ModelSpec((), size, size)
    ids = tuple(range(len(updates)))
    return Gathered(ids, updates, torch.zeros(size), spec, {}, nobody, nobody, 1)


def by_rule(name: str) -> Callable[[Tensor, Tensor], list[Tensor]]:
    def compute(updates: Tensor, weights: Tensor) -> list[Tensor]:
        ruled = RULES.get(name)(updates, weights, {})
        return [ruled.update, ruled.influence]

    return compute


def by_step(name: str) -> Callable[[Tensor, Tensor], list[Tensor]]:
    def compute(updates: Tensor, weights: Tensor) -> list[Tensor]:
        mixed = BEFORE.get(name)(gathered(updates), weights)
        return [mixed.updates, mixed.passed_on(weights)]

    return compute


def by_evidence(name: str) -> Callable[[Tensor, Tensor], list[Tensor]]:
    def compute(updates: Tensor, weights: Tensor) -> list[Tensor]:
        return [EVIDENCE.get(name)()(gathered(updates), weights, {}).weights]

    return compute


PARTS = {
    "krum": by_rule("krum"),
    "multi_krum": by_rule("multi_krum"),
    "geometric_median": by_rule("geometric_median"),
    "nearest_neighbours": by_step("nearest_neighbours"),
    "bucketing": by_step("bucketing"),
    "foolsgold": by_evidence("foolsgold"),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("weighted", [False, True])
def test_blocks_give_what_the_whole_matrix_gives(
    name: str, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = torch.Generator().manual_seed(3)
    updates = torch.randn(CLIENTS, SIZE, generator=random) + 0.5
    updates[7] = updates[70]  # in two blocks
    weights = torch.ones(CLIENTS, dtype=torch.float64)
    if weighted:
        weights = torch.rand(CLIENTS, generator=random).double()
        weights[9] = 0
    weights /= weights.sum()
    whole = PARTS[name](updates, weights)
    monkeypatch.setattr(robust, "AT_ONCE", BLOCK)
    with Largest() as largest:
        blocks = PARTS[name](updates, weights)
    assert largest.values <= max(BLOCK, CLIENTS * SIZE)
    torch.testing.assert_close(blocks, whole, rtol=1e-5, atol=1e-7)

"""A dataset divided and handed out in one call, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from clientwise.data.division import OfficialTest, divide, hand_out
from clientwise.data.federated import FederatedData, Samples
from clientwise.data.partition import Pool


def federate(
    samples: Samples,
    partition: Callable[[Pool, int], list[Tensor]],
    seed: int,
    *,
    test_fraction: float,
    server_fraction: float,
    report_fraction: float,
    shared_set: bool = False,
    official_test: OfficialTest = "pooled",
    **handed: Any,
) -> FederatedData:
    """`divide` and then `hand_out`, which takes the other options."""
    division = divide(
        samples,
        partition,
        seed,
        test_fraction=test_fraction,
        server_fraction=server_fraction,
        report_fraction=report_fraction,
        shared_set=shared_set,
        official_test=official_test,
    )
    return hand_out(samples, division, seed, **handed)

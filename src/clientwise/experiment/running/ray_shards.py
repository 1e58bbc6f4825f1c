"""Lanes whose cohorts are cut into shards over Ray: rounds that take more than one machine or GPU.

This process runs the rounds and writes the record; the clients train in the shards (`engine.shards`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from ...core.method import Method, Plan
from ...data.federated import FederatedData
from ...engine.device import pick_device
from ...engine.local import LocalEngine
from ...engine.shards import ShardedEngine, Shards, Slot
from ..build.engine import build_executor, build_honest, build_plan
from ..load import load_experiment


def can_be_sharded(method: Method) -> bool:
    """Whether a round has several clients: a control with all samples in one place has one."""
    return method.control in (None, "alone")


@contextmanager
def sharded(
    data: FederatedData, config: Mapping[str, Any], method: str, seed: int, where: Sequence[Slot]
) -> Iterator[Callable[..., LocalEngine]]:
    """What makes the honest engine of a lane, whose clients are in shards, one for each place."""
    build = partial(_build, dict(config), method, seed)
    shards = Shards(data, build, where[: data.num_clients])
    try:
        yield partial(ShardedEngine, shards=shards)
    finally:
        shards.close()


def _build(
    config: Mapping[str, Any], name: str, seed: int, data: FederatedData, cores: int
) -> tuple[LocalEngine, Method, Plan]:
    """What trains the clients of a shard, made in its own process."""
    experiment = load_experiment({**config, "workers": cores})
    executor = build_executor(experiment, data.samples, pick_device(experiment.device))
    (method,) = (one for one in experiment.build_methods() if one.name == name)
    method = method.for_clients(data.names)
    engine = build_honest(experiment, data, seed, executor, method)
    return engine, method, build_plan(experiment, data.num_clients, seed)

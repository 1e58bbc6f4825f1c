"""Lanes whose cohorts are cut into shards over Ray: rounds that take more than one machine or GPU.

This process runs the rounds and writes the record; the clients train in the shards (`engine.shards`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..core.engine import Engine
from ..core.method import Method, Plan
from ..data.federated import FederatedData
from ..engine.device import pick_device
from ..engine.local import LocalEngine
from ..engine.shards import Place, ShardedEngine
from ..engine.wrapping import EmbeddedEngine
from .build import build_engine, build_executor, build_plan
from .config import load_experiment


def can_be_sharded(method: Method, engine: EmbeddedEngine) -> bool:
    """Whether clients train without each other, and keep nothing from round to round."""
    if method.control or method.secure or method.training.control_variates:
        return False
    return isinstance(engine, LocalEngine)


@contextmanager
def sharded(
    engine: EmbeddedEngine, config: Mapping[str, Any], method: str, places: Sequence[Place]
) -> Iterator[ShardedEngine]:
    """The engine of a lane with its clients in shards, one for each place."""
    assert isinstance(engine, LocalEngine)
    build = partial(_build, dict(config), method, engine.seed)
    there = ShardedEngine(engine, build, places)
    try:
        yield there
    finally:
        there.close()


def _build(
    config: Mapping[str, Any], name: str, seed: int, data: FederatedData, cores: int
) -> tuple[Engine, Method, Plan]:
    """What trains the clients of a shard, made in its own process."""
    experiment = load_experiment({**config, "workers": cores})
    executor = build_executor(experiment, data.samples, pick_device(experiment.device))
    (method,) = (one for one in experiment.build_methods() if one.name == name)
    method = method.for_clients(data.names, data.num_clients)
    engine = build_engine(experiment, data, {}, seed, executor, method)
    assert isinstance(engine, LocalEngine)
    engine.is_part = True
    return engine, method, build_plan(experiment, data.num_clients, seed)

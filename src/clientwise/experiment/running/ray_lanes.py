"""Lanes distributed over Ray: more cores, GPUs or machines.

Lanes compute in actors, or their cohorts are cut into shards (`engine.shards`); the driver, this process,
writes the record.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

from torch import Tensor

from ...core.method import Method, Plan
from ...core.types import ServerState
from ...data.federated import FederatedData
from ...engine.device import pick_device
from ...engine.executor import DeviceExecutor
from ...engine.local import LocalEngine
from ...engine.shards import ShardedEngine, Shards, Slot, answers
from ...engine.wrapping import EmbeddedEngine
from ...errors import ClientwiseError, needing
from ..build.data import build_data, load_samples
from ..build.engine import build_engine, build_executor, build_honest, build_plan
from ..config.schema import Experiment
from ..load import load_experiment
from .lanes import Lane, LaneState, begun, compute_round

CONNECT_SECONDS = 10


class Remote:
    """The engine of one lane in an actor of Ray, built from the config."""

    def __init__(
        self, config: Mapping[str, Any], own_data: FederatedData | None, method: str, seed: int
    ) -> None:
        self._given = config, own_data, method, seed

    @cached_property  # not made before: Ray would report an error of the constructor as the death of the actor
    def _built(self) -> tuple[Method, Plan, EmbeddedEngine, bool]:
        return _build(*self._given)

    def next_round(self, state: ServerState, engine_state: Mapping[str, Tensor]) -> LaneState:
        """Run a round from the state that the driver has of this lane."""
        method, plan, engine, watched = self._built
        engine.load_state(engine_state)
        return compute_round(state, method, plan, engine, watched=watched)


def _build(
    config: Mapping[str, Any], own_data: FederatedData | None, name: str, seed: int
) -> tuple[Method, Plan, EmbeddedEngine, bool]:
    """What runs a lane, made in its own process."""
    experiment = load_experiment(config)
    samples = own_data.samples if own_data else load_samples(experiment)
    data, hostile = build_data(experiment, samples, seed, own_data)
    executor, method = _executor_and_method(experiment, name, data)
    engine = build_engine(experiment, data, hostile, seed, executor, method)
    plan = build_plan(experiment, data.num_clients, seed, method.control)
    return method, plan, engine, experiment.keep == "best"


def _executor_and_method(
    experiment: Experiment, name: str, data: FederatedData
) -> tuple[DeviceExecutor, Method]:
    executor = build_executor(experiment, data.samples, pick_device(experiment.device))
    (method,) = (one for one in experiment.build_methods() if one.name == name)
    return executor, method.for_clients(data.names)


def run_on_ray(
    lanes: Sequence[Lane],
    config: Mapping[str, Any],
    own_data: FederatedData | None,
) -> None:
    """Run all remaining rounds of the lanes: actors compute, this process records. No lane waits for others."""
    import ray

    on_gpu = any(lane.engine.device.type == "cuda" for lane in lanes)
    actor: Any = ray.remote(num_cpus=1, num_gpus=int(on_gpu))(Remote)
    data = ray.put(own_data)
    pending: dict[Any, tuple[Lane, Any]] = {}

    def ask(lane: Lane, remote: Any) -> None:
        if lane.is_done:
            ray.kill(remote)  # frees its cores for a lane that waits
        else:
            coming = remote.next_round.remote(lane.state.server, lane.state.engine)
            pending[coming] = lane, remote

    with begun(lanes):
        for lane in lanes:
            ask(lane, actor.remote(dict(config), data, lane.method.name, lane.seed))
        while pending:
            (ready,), _ = ray.wait(list(pending), num_returns=1)
            lane, remote = pending.pop(ready)
            (done,) = answers([ready])
            lane.keep(lane.accounted(lane.state, done))
            ask(lane, remote)


# Shards -----------------------------------------------------------------------------------------------


@contextmanager
def sharded(
    data: FederatedData, config: Mapping[str, Any], method: str, seed: int, where: Sequence[Slot]
) -> Iterator[Callable[..., LocalEngine]]:
    """What makes the honest engine of a lane, whose clients are in shards, one for each place."""
    build = partial(_build_shard, dict(config), method, seed)
    shards = Shards(data, build, where[: data.num_clients])
    try:
        yield partial(ShardedEngine, shards=shards)
    finally:
        shards.close()


def _build_shard(
    config: Mapping[str, Any], name: str, seed: int, data: FederatedData, cores: int
) -> tuple[LocalEngine, Method, Plan]:
    """What trains the clients of a shard, made in its own process."""
    experiment = load_experiment({**config, "workers": cores})
    executor, method = _executor_and_method(experiment, name, data)
    engine = build_honest(experiment, data, seed, executor, method)
    return engine, method, build_plan(experiment, data.num_clients, seed)


# The cluster ------------------------------------------------------------------------------------------


@contextmanager
def connected_to_ray() -> Iterator[None]:
    """A context within which this process is connected to a cluster of Ray, perhaps its own."""
    with needing("ray", "workers = 'ray'"):
        import ray
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS", "")  # `ray.init` reads it
    handler = signal.getsignal(signal.SIGTERM)
    try:
        _refuse_silent(address)
        ray.init(log_to_driver=False, include_dashboard=False)
    except (ConnectionError, ValueError, OSError, OverflowError) as error:
        if not address:
            raise ClientwiseError(f"Ray cannot be started on this machine: {error}") from None
        raise ClientwiseError(
            f"RAY_ADDRESS = {address!r}: no Ray cluster answers there ({error}). Start one (ray start --head),"
            " correct the address (HOST:PORT), or unset RAY_ADDRESS to use this machine; then continue"
            " with --resume (resume=True in Python)"
        ) from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray's aborts; a run saves before it stops
    try:
        yield
    finally:
        ray.shutdown()


def _refuse_silent(address: str) -> None:
    """OSError where nothing listens at HOST:PORT. Ray itself tried for eight minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():  # not another form, such as "auto"
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()

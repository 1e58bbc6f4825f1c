"""Lanes whose cohorts are cut into shards (`engine.shards`), and the connection to a cluster of Ray."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from ...core.method import Method, Plan
from ...data.federated import FederatedData
from ...engine.device import pick_device
from ...engine.local import LocalEngine
from ...engine.shards import ShardedEngine, Shards, Slot
from ...errors import ClientwiseError, needing
from ..build.engine import build_executor, build_honest, build_plan
from ..load import load_experiment

CONNECT_SECONDS = 10


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
    executor = build_executor(experiment, data.samples, pick_device(experiment.device))
    (method,) = (one for one in experiment.build_methods() if one.name == name)
    method = method.for_clients(data.names)
    engine = build_honest(experiment, data, seed, executor, method)
    return engine, method, build_plan(experiment, data.num_clients, seed)


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

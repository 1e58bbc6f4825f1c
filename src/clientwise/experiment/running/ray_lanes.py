"""Lanes distributed over Ray: more cores, GPUs or machines.

Lanes compute in actors; the driver, this process, writes the record.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from ...core.method import Method, Plan
from ...core.types import RoundRecord, ServerState
from ...data.federated import FederatedData
from ...engine.device import pick_device
from ...engine.ray.shards import answers
from ...engine.wrappers.engine import EmbeddedEngine
from ...errors import ClientwiseError, needing
from ..build.data import build_data, load_samples
from ..build.engine import build_engine, build_executor, build_plan
from ..load import load_experiment
from ..trackers import Trackers
from .held_out import HeldOut
from .lanes import Lane, Round

CONNECT_SECONDS = 10


class Remote:
    """The engine of one lane in an actor of Ray, built from the config."""

    def __init__(
        self, config: Mapping[str, Any], own_data: FederatedData | None, method: str, seed: int
    ) -> None:
        self._given = config, own_data, method, seed
        self._built: tuple[Method, Plan, EmbeddedEngine, bool] | None = None

    def next_round(self, state: ServerState, engine_state: Mapping[str, Tensor]) -> Round:
        """Run a round from the state that the driver has of this lane."""
        # Not before: Ray would report an error of the constructor as the death of the actor
        if self._built is None:
            self._built = _build(*self._given)
        method, plan, engine, watched = self._built
        engine.load_state(engine_state)
        return Round.run(state, method, plan, engine, watched=watched)


def _build(
    config: Mapping[str, Any], own_data: FederatedData | None, name: str, seed: int
) -> tuple[Method, Plan, EmbeddedEngine, bool]:
    """What runs a lane, made in its own process."""
    experiment = load_experiment(config)
    samples = own_data.samples if own_data else load_samples(experiment)
    data, hostile = build_data(experiment, samples, seed, own_data)
    executor = build_executor(experiment, data.samples, pick_device(experiment.device))
    (built,) = (one for one in experiment.build_methods() if one.name == name)
    method = built.for_clients(data.names, data.num_clients)
    engine = build_engine(experiment, data, hostile, seed, executor, method)
    plan = build_plan(experiment, data.num_clients, seed, method.control)
    return method, plan, engine, HeldOut(experiment).is_used


@contextmanager
def connected_to_ray() -> Iterator[None]:
    """A context within which this process is connected to a cluster of Ray, perhaps its own."""
    with needing("ray", "workers = 'ray'"):
        import ray
    started = not ray.is_initialized()
    if started:
        address = os.environ.get("RAY_ADDRESS", "")  # `ray.init` reads it
        _refuse_silent(address)
        try:
            with _signals_kept():
                ray.init(log_to_driver=False, include_dashboard=False)
        except (ConnectionError, ValueError) as error:
            raise _no_cluster(address, str(error)) from None
    try:
        yield
    finally:
        if started:
            ray.shutdown()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the SIGTERM handler, which Ray replaces by one that aborts: a run saves before it stops."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def _refuse_silent(address: str) -> None:
    """ClientwiseError where nothing listens at HOST:PORT. Ray itself tried for eight minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # another form, such as "auto"
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from None


def _no_cluster(address: str, why: str) -> ClientwiseError:
    """What to do where no cluster is found."""
    if not address:
        return ClientwiseError(f"Ray cannot be started on this machine: {why}")
    return ClientwiseError(
        f"RAY_ADDRESS = {address!r}: no Ray cluster answers there ({why}). Start one (ray start --head),"
        " correct the address (HOST:PORT), or unset RAY_ADDRESS to use this machine; then continue"
        " with --resume (resume=True in Python)"
    )


def run_on_ray(
    lanes: Sequence[Lane],
    config: Mapping[str, Any],
    own_data: FederatedData | None,
    trackers: Trackers,
    on_round: Callable[[Lane, RoundRecord], None],
) -> None:
    """Run all remaining rounds of the lanes; a lane does not wait for the others."""
    import ray

    on_gpu = any(lane.engine.device.type == "cuda" for lane in lanes)
    actor: Any = ray.remote(num_cpus=1, num_gpus=int(on_gpu))(Remote)
    data = ray.put(own_data)
    begun: list[Lane] = []
    try:
        for lane in lanes:
            lane.begin(trackers)
            begun.append(lane)
        remotes = [actor.remote(dict(config), data, lane.method.name, lane.seed) for lane in lanes]
        _run_rounds(list(zip(lanes, remotes, strict=True)), on_round)
    finally:
        for lane in begun:
            lane.end()


def _run_rounds(
    lanes: Sequence[tuple[Lane, Any]], on_round: Callable[[Lane, RoundRecord], None]
) -> None:
    """Round after round of every lane: its actor computes, this process records."""
    import ray

    pending = {}

    def ask(lane: Lane, remote: Any) -> None:
        if lane.is_done:
            ray.kill(remote)  # frees its cores for a lane that waits
            return
        reply = remote.next_round.remote(lane.state, lane.engine_state)
        pending[reply] = lane, remote

    for lane, remote in lanes:
        ask(lane, remote)
    while pending:
        (ready,), _ = ray.wait(list(pending), num_returns=1)
        lane, remote = pending.pop(ready)
        (round_,) = answers([ready])
        done = lane.accounted(round_)
        lane.keep(done)
        on_round(lane, done.record)
        ask(lane, remote)

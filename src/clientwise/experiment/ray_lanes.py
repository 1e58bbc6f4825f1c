"""Lanes distributed over Ray: more cores, GPUs or machines.

Lanes compute in actors; the driver, this process, writes the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from ..core.types import RoundRecord, ServerState
from ..data.federated import FederatedData
from ..engine.device import pick_device
from ..errors import ClientwiseError
from ..trackers import Trackers
from .build import build_data, build_engine, build_executor, build_plan, load_samples
from .config import load_experiment
from .lanes import Lane, Round


class Remote:
    """The engine of one lane in an actor of Ray, built from the config."""

    def __init__(
        self, config: Mapping[str, Any], own_data: FederatedData | None, method: str, seed: int
    ) -> None:
        experiment = load_experiment(config)
        samples = own_data.samples if own_data else load_samples(experiment)
        data, hostile = build_data(experiment, samples, seed, own_data)
        executor = build_executor(experiment, data.samples, pick_device(experiment.device))
        (built,) = (one for one in experiment.build_methods() if one.name == method)
        self._method = built.for_clients(data.names, data.num_clients)
        self._engine = build_engine(experiment, data, hostile, seed, executor, self._method)
        self._plan = build_plan(experiment, data.num_clients, seed, self._method.control)

    def next_round(self, state: ServerState, engine_state: Mapping[str, Tensor]) -> Round:
        """Run a round from the state that the driver has of this lane."""
        self._engine.load_state(engine_state)
        return Round.run(state, self._method, self._plan, self._engine)


@contextmanager
def connected_to_ray() -> Iterator[None]:
    """A context within which this process is connected to a cluster of Ray, perhaps its own."""
    try:
        import ray
    except ImportError:
        raise ClientwiseError("workers = 'ray' needs Ray: pip install clientwise[ray]") from None
    started = not ray.is_initialized()
    if started:
        ray.init(log_to_driver=False, include_dashboard=False)  # RAY_ADDRESS names a cluster
    try:
        yield
    finally:
        if started:
            ray.shutdown()


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
        done = lane.accounted(ray.get(ready))
        lane.keep(done)
        on_round(lane, done.record)
        ask(lane, remote)

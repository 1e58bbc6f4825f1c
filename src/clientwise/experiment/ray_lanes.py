"""Lanes spread over Ray: more cores, GPUs or machines. Every lane computes in an actor; the driver keeps the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    """One lane's engine, wherever Ray has put it: it builds its own from the config."""

    def __init__(self, config: Mapping[str, Any], own_data: FederatedData | None, method: str, seed: int) -> None:
        experiment = load_experiment(config)
        samples = own_data.samples if own_data else load_samples(experiment)
        data, hostile = build_data(experiment, samples, seed, own_data)
        executor = build_executor(experiment, data.samples, pick_device(experiment.device))
        (self._method,) = (one for one in experiment.build_methods() if one.name == method)
        self._engine = build_engine(experiment, data, hostile, seed, executor, self._method)
        self._plan = build_plan(experiment, data.num_clients, seed, self._method.control)

    def next_round(self, state: ServerState, engine_state: Mapping[str, Tensor]) -> Round:
        """A round from where the driver says the lane stands."""
        self._engine.load_state(engine_state)
        return Round.run(state, self._method, self._plan, self._engine)


def run_on_ray(
    lanes: Sequence[Lane],
    config: Mapping[str, Any],
    own_data: FederatedData | None,
    trackers: Trackers,
    on_round: Callable[[Lane, RoundRecord], None],
) -> None:
    """All rounds that are still to do, every lane at its own pace."""
    try:
        import ray
    except ImportError:
        raise ClientwiseError("workers = 'ray' needs Ray: pip install clientwise[ray]") from None
    started = not ray.is_initialized()
    if started:
        ray.init(log_to_driver=False, include_dashboard=False)  # finds a cluster by RAY_ADDRESS, or starts here
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
        if started:
            ray.shutdown()


def _run_rounds(lanes: Sequence[tuple[Lane, Any]], on_round: Callable[[Lane, RoundRecord], None]) -> None:
    """Round after round of every lane, computed by its actor and written down here."""
    import ray

    pending = {}

    def ask(lane: Lane, remote: Any) -> None:
        if lane.is_done:
            ray.kill(remote)  # makes room for a lane that waits
        else:
            pending[remote.next_round.remote(lane.state, lane.engine_state)] = lane, remote

    for lane, remote in lanes:
        ask(lane, remote)
    while pending:
        (ready,), _ = ray.wait(list(pending), num_returns=1)
        lane, remote = pending.pop(ready)
        done = ray.get(ready)
        lane.keep(done)
        on_round(lane, done.record)
        ask(lane, remote)

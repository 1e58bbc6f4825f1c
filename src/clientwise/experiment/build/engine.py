"""What runs the clients of an experiment: executor, engine, and the plan of rounds."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

import torch

from ...attacks import Hostile
from ...core.clock import Clock, Pace
from ...core.method import Control, Method, Plan
from ...core.sampling import cohort_size
from ...data.federated import FederatedData, Samples
from ...engine.executor import DeviceExecutor, Executor
from ...engine.hostile import HostileEngine
from ...engine.local import LocalEngine
from ...engine.timed import TimedEngine
from ...engine.wrapping import AloneEngine, EmbeddedEngine
from ..config.schema import Experiment
from .network import build_module


def build_executor(
    experiment: Experiment, samples: Samples, device: torch.device, *, to_try: bool = False
) -> DeviceExecutor:
    """The executor that all lanes train and evaluate with."""
    module = build_module(experiment, samples, experiment.seeds[0], to_try=to_try)
    workers = experiment.workers if isinstance(experiment.workers, int) else 0
    return DeviceExecutor(
        samples,
        module,
        device,
        mode=experiment.mode,
        precision=experiment.precision,
        workers=workers,
    )


def lanes_that_fit(experiment: Experiment, data: FederatedData, executor: DeviceExecutor) -> int:
    """How many lanes can train their cohorts as one batched computation."""
    if executor.mode != "stacked":
        return 1
    plan = build_plan(experiment, data.num_clients, experiment.seeds[0])
    largest = int(data.train.sizes.max())
    trainings = [method.training for method in experiment.build_methods()]
    fitting = [executor.clients_at_once(training, largest) for training in trainings]
    return max(1, min(fitting) * executor.workers // plan.cohort_size)


def build_engine(
    experiment: Experiment,
    data: FederatedData,
    hostile: Mapping[int, Hostile],
    seed: int,
    executor: Executor,
    method: Method | None = None,
    make: Callable[..., LocalEngine] = LocalEngine,
) -> EmbeddedEngine:
    """An engine with the initial model of this seed. In a control no client sends anything, so none attacks.

    The honest engine, around which the others are built, is what `make` makes.
    """
    control = method.control if method else None
    if control is not None and control != "alone":
        data = data.centralised(control)
        return build_honest(experiment, data, seed, executor, method, make)
    honest = build_honest(experiment, data, seed, executor, method, make)
    if control is not None:
        return AloneEngine(honest, hostile)
    engine: EmbeddedEngine = HostileEngine(honest, hostile) if hostile else honest
    if data.devices is not None:
        return TimedEngine(engine, method.pace if method else Pace())
    if method and experiment.engine == "flower":  # where clients take the time they take
        engine.clock = Clock(engine.num_clients, method.pace)
    return engine


def build_honest(
    experiment: Experiment,
    data: FederatedData,
    seed: int,
    executor: Executor,
    method: Method | None = None,
    make: Callable[..., LocalEngine] = LocalEngine,
) -> LocalEngine:
    """The clients of a seed, all of them honest and without a clock, with the initial model of this seed."""
    module = build_module(experiment, data.samples, seed)
    engine = make(data, module, seed=seed, executor=executor)
    if method and method.privacy and method.privacy.secret:
        engine.noise_key = secrets.token_bytes(32)
    return engine


def build_plan(
    experiment: Experiment,
    num_clients: int,
    seed: int,
    control: Control | None = None,
    *,
    secret: bool = False,
) -> Plan:
    """What all methods of a seed share. A control with all samples in one place has one client.

    With `secret`, cohorts and noise follow from a new key of the operating system.
    """
    cohorts = experiment.federation
    away = {
        client for client in (*experiment.flower.away, *cohorts.without) if client < num_clients
    }
    members = num_clients - len(away)
    size = cohort_size(
        members,
        fraction=cohorts.fraction,
        clients_per_round=cohorts.clients_per_round,
    )
    probability = None
    if cohorts.sampling == "poisson":
        wanted = cohorts.clients_per_round
        probability = min(1.0, wanted / members) if wanted else cohorts.fraction or 1.0
    return Plan(
        seed=seed,
        cohort_size=size,
        judged_by="clients" if experiment.server_set.source == "clients" else "server",
        evaluate_clients_every=experiment.evaluation.clients_every,
        evaluate_clients_sample=experiment.evaluation.clients_sample,
        rounds=experiment.rounds,
        asks=(0,) if control in ("pooled", "server_only") else None,
        away=tuple(sorted(away)),
        probability=probability,
        secret=secrets.token_bytes(32) if secret else None,
        counterfactuals=experiment.evaluation.counterfactuals and control is None,
        shapley=experiment.evaluation.shapley and control is None,
    )

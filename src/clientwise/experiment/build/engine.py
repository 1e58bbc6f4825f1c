"""The network of an experiment, what runs its clients (executor and engine), and the plan of rounds."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from ...attacks import Hostile
from ...core.clock import Clock, Pace
from ...core.method import Control, Method, Plan
from ...core.sampling import cohort_size
from ...data.arrays import shape_hint
from ...data.federated import FederatedData, Samples
from ...engine.executor import DeviceExecutor, Executor
from ...engine.hostile import HostileEngine
from ...engine.local import LocalEngine
from ...engine.timed import TimedEngine
from ...engine.wrapping import AloneEngine, EmbeddedEngine
from ...errors import ConfigError
from ...models.flat import fill, fill_flat
from ...models.modules import check_parameters, count_parameters, described, zeros
from ...models.networks import MODELS, initialised
from ..config.parts import make
from ..config.schema import Experiment

LARGE = 2**24  # parameters
# Of a model while it is trained: the global one, the workers' with their gradients, the updates.
COPIES = 8


def build_module(
    experiment: Experiment, samples: Samples, seed: int, *, to_try: bool = False
) -> nn.Module:
    """The network, initialised by the seed. A large one that is only `to_try` is left at zeros."""
    network = _network(experiment, samples)
    try:
        sketch = described(network)
        check_parameters(sketch, COPIES)
        if to_try and count_parameters(sketch) > LARGE:
            return _filled(experiment, zeros(network).float())
        module = initialised(network, seed)
        return _filled(experiment, module.float())  # models are vectors of float32
    except ConfigError:
        raise
    except Exception as error:  # a user's own network may raise anything
        why = _why_not(experiment, samples, error)
        raise ConfigError(experiment.source, [("model", why)]) from error


def _why_not(experiment: Experiment, samples: Samples, error: Exception) -> str:
    """Why the network cannot be built."""
    why = [str(error).partition("\n")[0]]
    if not isinstance(error, ValueError | RuntimeError | MemoryError):  # not from us or PyTorch
        why = [f"{experiment.model_name} cannot be built: {type(error).__name__}: {why[0]}"]
        if experiment.own_model is not None:
            shapes = f"{samples.input_shape}, {count_outputs(samples)}"
            why.append(f"with two arguments, it is called with {shapes}")
        if samples.parts:
            names = ", ".join(part.name for part in samples.parts)
            first = "the first argument is their shapes by name"
            why.append(f"the samples have several inputs ({names}): {first}")
    if hint := shape_hint(samples.inputs):
        why.append(hint)
    return "; ".join(why)


def _filled(experiment: Experiment, module: nn.Module) -> nn.Module:
    """The network with the parameters of the config's `initial_model`, or those that its run began with."""
    own = experiment.own_model
    path = experiment.initial_model
    if path is None:
        return module if own is None or own.start is None else fill_flat(module, own.start)
    try:
        if not Path(path).is_file():
            raise ValueError("no such file")
        tensors = load_file(path)
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise ValueError("it has NaN or Inf")
        return fill(module, tensors)
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        message = f"{path}: not a model for this network ({reason})"
        raise ConfigError(experiment.source, [("initial_model", message)]) from None


def _network(experiment: Experiment, samples: Samples) -> Callable[[], nn.Module]:
    """A function that builds the network for these samples."""
    shapes = (samples.input_shape, count_outputs(samples))
    if experiment.own_model is not None:
        return partial(experiment.own_model, *shapes)
    if experiment.model is None:
        hint = "is missing: name one, or pass a module to `cw.run`"
        raise ConfigError(experiment.source, [("model", hint)])
    return partial(make(MODELS, experiment.model), *shapes)


def count_outputs(samples: Samples) -> int:
    """The number of outputs that the network must have."""
    return samples.problem.num_outputs(samples.targets.shape[1:])


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
    cohorts, evaluation = experiment.federation, experiment.evaluation
    away = {*cohorts.without} & {*range(num_clients)}
    members = num_clients - len(away)
    wanted = cohorts.clients_per_round
    probability = min(1.0, wanted / members) if wanted else cohorts.fraction or 1.0
    return Plan(
        seed=seed,
        cohort_size=cohort_size(members, fraction=cohorts.fraction, clients_per_round=wanted),
        judged_by="clients" if experiment.server_set.source == "clients" else "server",
        evaluate_clients_every=evaluation.clients_every,
        rounds=experiment.rounds,
        asks=(0,) if control in ("pooled", "server_only") else None,
        away=tuple(sorted(away)),
        probability=probability if cohorts.sampling == "poisson" else None,
        secret=secrets.token_bytes(32) if secret else None,
    )

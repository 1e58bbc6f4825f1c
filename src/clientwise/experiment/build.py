"""From a validated experiment to the things that run: data, hostile clients, engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..attacks import ATTACKS, Hostile, Several
from ..attacks.backdoors import plant
from ..core.clock import Clock, Devices, Pace
from ..core.criteria import fact_columns
from ..core.method import Control, Method, Plan
from ..core.sampling import cohort_size
from ..core.seeding import generator, seeded_default_generator
from ..data.datasets import DATASETS, DataError
from ..data.devices import DISTRIBUTIONS, RANGES, draw_devices
from ..data.features import with_features
from ..data.federated import FederatedData, Samples, Shares
from ..data.partition import PARTITIONS, Division, client_names, contribute, divide, hand_out
from ..engine.alone import AloneEngine
from ..engine.device import pick_device
from ..engine.executor import DeviceExecutor, Executor
from ..engine.local import LocalEngine
from ..engine.timed import TimedEngine
from ..errors import ClientwiseError, ConfigError
from ..models.flat import fill
from ..models.networks import MODELS
from ..models.size import check_parameters, count_parameters, described, zeros
from ..trackers import TRACKERS, Tracker, Trackers, check_tracker
from .schema import Experiment, make

Relabel = Callable[[int, Tensor], Tensor]
LARGE = 2**24  # parameters
COPIES = 8  # of a model while it is trained: the global one, workers' models with their gradients, what they send


def load_samples(experiment: Experiment) -> Samples:
    """The dataset, before anyone holds it."""
    if experiment.own_samples is not None:
        return scored(experiment, experiment.own_samples)
    missing = [key for key in ("data", "partition") if getattr(experiment, key) is None]
    if missing or experiment.data is None:
        hint = "is missing (only `cw.run` with arrays of your own goes without)"
        raise ConfigError(experiment.source, [(key, hint) for key in missing])
    given = experiment.data_dir or os.environ.get("CLIENTWISE_DATA")
    folder = Path(given) if given else None
    load: Callable[[], Samples] = partial(make(DATASETS, experiment.data), folder)
    try:
        if experiment.features is None:
            return scored(experiment, load())
        device = pick_device(experiment.device)
        return scored(experiment, with_features(experiment.data, experiment.features, folder, device, load))
    except DataError as error:  # it names the file; this is who asks for it
        raise DataError(f"{experiment.source}: data: {error}") from None
    except (ClientwiseError, OSError, MemoryError):
        raise
    except Exception as error:  # whatever a user's own dataset raises is theirs to know
        hint = "; it was given no data folder: is --data-dir missing?" if folder is None else ""
        message = f"{experiment.source}: data: {experiment.data.name}: {type(error).__name__}: {error}{hint}"
        raise DataError(message) from error


def scored(experiment: Experiment, samples: Samples) -> Samples:
    """The samples with the metric that the experiment asks for."""
    metric = experiment.evaluation.metric
    if metric in (None, samples.problem.usual_metric):
        return samples
    return replace(samples, problem=replace(samples.problem, scored_by=metric))


def build_trackers(experiment: Experiment) -> Trackers:
    """The trackers, before the run begins: a missing package or a wrong option is known at once."""
    trackers: list[tuple[str, Tracker]] = []
    for index, part in enumerate(experiment.trackers):
        try:
            tracker = TRACKERS.get(part.name)(**part.options)
            check_tracker(tracker)
            trackers.append((part.name, tracker))
        except ClientwiseError as error:
            raise ConfigError(experiment.source, [(f"trackers[{index}]", str(error))]) from None
        except Exception as error:  # whatever a user's own tracker raises is theirs to know
            raise ConfigError(
                experiment.source, [(f"trackers[{index}]", f"{part.name}: {type(error).__name__}: {error}")]
            ) from error
    return Trackers(trackers)


def choose_hostile(
    experiment: Experiment, num_clients: int, seed: int, names: Sequence[str] = ()
) -> dict[int, Hostile]:
    """Which clients are hostile: those listed, or as many as asked for, drawn by the seed among the others."""
    wanted = [group.wanted(num_clients, names) for group in experiment.hostile]
    listed = {client for members in wanted if isinstance(members, list) for client in members}
    chosen: dict[int, Hostile] = {}
    for index, group in enumerate(experiment.hostile):
        members = wanted[index]
        if isinstance(members, int):
            free = [client for client in range(num_clients) if client not in chosen and client not in listed]
            draw = torch.randperm(len(free), generator=generator(seed, "hostile", index))[:members]
            members = [free[place] for place in draw.tolist()]
        attacks = [make(ATTACKS, part) for part in group.attack]
        hostile = Hostile(
            attacks[0] if len(attacks) == 1 else Several(attacks),
            group.ignore_global,
            name=", ".join(part.name for part in group.attack),
            needs=frozenset(need for part in group.attack for need in ATTACKS.needs(part)),
            from_round=group.from_round,
            probability=group.probability,
            leader=min(members) if group.collude and members else None,
        )
        chosen |= dict.fromkeys(members, hostile)
    return chosen


def build_data(
    experiment: Experiment, samples: Samples, seed: int, divided: FederatedData | Division | None = None
) -> tuple[FederatedData, dict[int, Hostile]]:
    """Who holds which samples under this seed, and who is hostile; hostile clients may call their samples otherwise.

    `divided` are arrays of the user's own, or a division that is already known.
    """
    divided = divided or divide_samples(experiment, samples, seed)
    hostile = choose_hostile(experiment, len(divided.train), seed, names_of(divided, samples))

    def relabel(client: int, targets: Tensor) -> Tensor:
        one = hostile.get(client)
        if one is None or not one.always:
            return targets
        return one.attack.relabel(targets, samples.problem, one.draws(seed, "relabel", 0, client))

    if isinstance(divided, FederatedData):
        divided.check_finite()
        data = _adopt(experiment, divided, seed, hostile, relabel)
    else:
        data = _hand_out(experiment, samples, divided, seed, relabel)
    known = {**data.attributes, **fact_columns(experiment.attributes)}
    data = replace(data, attributes=known, devices=build_devices(experiment, data, seed))
    return plant(data, hostile, seed), hostile


def build_devices(experiment: Experiment, data: FederatedData, seed: int) -> Devices | None:
    """What the clients' devices can do under this seed; None where all are alike."""
    settings = experiment.devices
    if settings is None:
        return None
    distributions = {name: make(DISTRIBUTIONS, getattr(settings, name)) for name in RANGES}
    traces = Path(settings.traces) if settings.traces else None
    try:
        return draw_devices(data.num_clients, seed, distributions, traces)
    except DataError as error:
        raise ConfigError(experiment.source, [("devices", str(error))]) from None


def names_of(divided: FederatedData | Division, samples: Samples) -> tuple[str, ...]:
    """What the clients are called, where they have names."""
    return divided.names if isinstance(divided, FederatedData) else client_names(samples, divided.train)


def count_clients(experiment: Experiment) -> int:
    """How many clients there are, under the seed that has most."""
    if experiment.reads_files:
        return len(experiment.flower.clients)
    samples = load_samples(experiment)
    return max(len(divide_samples(experiment, samples, seed).train) for seed in experiment.seeds)


def divide_samples(experiment: Experiment, samples: Samples, seed: int) -> Division:
    """Who gets which samples under this seed."""
    assert experiment.partition is not None
    wanted = experiment.partition.options.get("clients") or 0
    if wanted > len(samples.targets):  # said before anything of that size is made
        message = f"{wanted} clients are too many for {len(samples.targets)} samples"
        raise ConfigError(experiment.source, [("partition.clients", message)])
    official = experiment.evaluation.official_test
    if official != "pooled" and samples.test_from is None:
        message = f'this dataset has no official test split: "{official}" must be "pooled"'
        raise ConfigError(experiment.source, [("evaluation.official_test", message)])
    try:
        return divide(
            samples,
            make(PARTITIONS, experiment.partition),
            seed,
            test_fraction=experiment.evaluation.test_fraction,
            server_fraction=experiment.server_set.fraction,
            official_test=official,
        )
    except ValueError as error:
        raise ConfigError(experiment.source, [("partition", str(error))]) from None


def _hand_out(
    experiment: Experiment, samples: Samples, division: Division, seed: int, relabel: Relabel
) -> FederatedData:
    settings = experiment.server_set
    return hand_out(
        samples,
        division,
        seed,
        report_fraction=1.0 if settings.source == "clients" else settings.report_fraction,
        shared_set=settings.shared_set,
        contributed_fraction=settings.contributed_fraction if settings.source == "contributed" else None,
        relabel=relabel,
    )


def _adopt(
    experiment: Experiment, data: FederatedData, seed: int, hostile: Iterable[int], relabel: Relabel
) -> FederatedData:
    """Arrays of the user's own, in which hostile clients call their samples otherwise."""

    def relabelled(shares: Shares) -> Shares:
        targets = shares.targets.clone()
        for client in hostile:
            mine = shares.slice(client)
            targets[mine] = relabel(client, targets[mine])
        return replace(shares, targets=targets)

    train, settings = relabelled(data.train), experiment.server_set
    weigh = data.report if settings.shared_set else data.weigh
    if settings.source == "contributed":
        weigh = contribute(train, settings.contributed_fraction, seed)
    return replace(data, train=train, test=relabelled(data.test), weigh=weigh)


def build_executor(
    experiment: Experiment, samples: Samples, device: torch.device, *, to_try: bool = False
) -> DeviceExecutor:
    """What all lanes train and evaluate with."""
    module = build_module(experiment, samples, experiment.seeds[0], to_try=to_try)
    workers = experiment.workers if isinstance(experiment.workers, int) else 0
    return DeviceExecutor(
        samples, module, device, mode=experiment.mode, precision=experiment.precision, workers=workers
    )


def build_engine(
    experiment: Experiment,
    data: FederatedData,
    hostile: Mapping[int, Hostile],
    seed: int,
    executor: Executor,
    method: Method | None = None,
) -> LocalEngine:
    """An engine with the initial model of this seed. In a control nobody sends anything, so nobody attacks."""
    module = build_module(experiment, data.samples, seed)
    control = method.control if method else None
    if control is None and data.devices is not None:
        pace = method.pace if method else Pace()
        return TimedEngine(data, module, seed=seed, executor=executor, hostile=hostile, pace=pace)
    if control is None:
        engine = LocalEngine(data, module, seed=seed, executor=executor, hostile=hostile)
        if method and experiment.engine == "flower":  # where clients take the time they take
            engine.clock = Clock(engine.num_clients, method.pace)
        return engine
    if control == "alone":
        return AloneEngine(data, module, seed=seed, executor=executor, hostile=hostile)
    return LocalEngine(data.in_one_place(control), module, seed=seed, executor=executor)


def build_module(experiment: Experiment, samples: Samples, seed: int, *, to_try: bool = False) -> nn.Module:
    """The network, initialised by the seed; one that is only `to_try` is left at zeros where drawing takes seconds."""
    network = _network(experiment, samples)
    try:
        count = count_parameters(described(network))
        check_parameters(count, COPIES)
        if to_try and count > LARGE:
            return _filled(experiment, zeros(network))
        with seeded_default_generator(seed, "initial model"):
            return _filled(experiment, network())
    except ConfigError:
        raise
    except (ValueError, RuntimeError, MemoryError) as error:
        raise ConfigError(experiment.source, [("model", str(error).splitlines()[0])]) from None
    except Exception as error:  # whatever a user's own network raises is theirs to know
        message = f"{experiment.model_name} cannot be made: {type(error).__name__}: {error}"
        raise ConfigError(experiment.source, [("model", message)]) from error


def _filled(experiment: Experiment, module: nn.Module) -> nn.Module:
    """The network with the numbers that the config says it begins with."""
    if experiment.initial_model is None:
        return module
    try:
        if not Path(experiment.initial_model).is_file():
            raise ValueError("no such file")
        tensors = load_file(experiment.initial_model)
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise ValueError("it has NaN or Inf")
        return fill(module, tensors)
    except (OSError, ValueError, SafetensorError) as error:
        message = f"{experiment.initial_model}: not a model for this network ({str(error).splitlines()[0]})"
        raise ConfigError(experiment.source, [("initial_model", message)]) from None


def _network(experiment: Experiment, samples: Samples) -> Callable[[], nn.Module]:
    """What makes the network for these samples."""
    shapes = tuple(samples.inputs.shape[1:]), count_outputs(samples)
    if experiment.own_model is not None:
        return partial(experiment.own_model, *shapes)
    if experiment.model is None:
        hint = "is missing: name one, or hand a module to `cw.run`"
        raise ConfigError(experiment.source, [("model", hint)])
    return partial(make(MODELS, experiment.model), *shapes)


def count_outputs(samples: Samples) -> int:
    """How many numbers the network is to give for a sample."""
    return samples.problem.num_outputs(samples.targets.shape[1:])


def build_plan(experiment: Experiment, num_clients: int, seed: int, control: Control | None = None) -> Plan:
    """What all methods of a seed share; a control with all samples in one place asks nobody else."""
    cohorts = experiment.federation
    away = tuple(client for client in experiment.flower.away if client < num_clients)
    members = num_clients - len(away)
    return Plan(
        seed=seed,
        cohort_size=cohort_size(members, fraction=cohorts.fraction, clients_per_round=cohorts.clients_per_round),
        judged_by="clients" if experiment.server_set.source == "clients" else "server",
        evaluate_clients_every=experiment.evaluation.clients_every,
        rounds=experiment.rounds,
        asks=(0,) if control in ("pooled", "server_only") else None,
        away=away,
    )

"""Build what an experiment runs with: data, hostile clients, network, engine."""

from __future__ import annotations

import os
import secrets
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
from ..attacks.new_data import swap
from ..core.clock import Clock, Pace
from ..core.criteria import fact_columns
from ..core.method import Control, Method, Plan
from ..core.sampling import cohort_size
from ..core.seeding import generator
from ..data.arrays import channels_last_hint
from ..data.datasets import DATASETS, DataError
from ..data.devices import (
    DEVICE_FACTS,
    DISTRIBUTIONS,
    draw_devices,
    read_traces,
)
from ..data.division import Division, client_names, contribute, divide, hand_out
from ..data.features import with_features
from ..data.federated import FederatedData, Holdings, Samples
from ..data.partition import PARTITIONS
from ..engine.device import pick_device
from ..engine.executor import DeviceExecutor, Executor
from ..engine.local import LocalEngine
from ..engine.wrappers.alone import AloneEngine
from ..engine.wrappers.engine import EmbeddedEngine
from ..engine.wrappers.hostile import HostileEngine
from ..engine.wrappers.timed import TimedEngine
from ..errors import ClientwiseError, ConfigError
from ..models.flat import fill
from ..models.networks import MODELS, initialised
from ..models.size import (
    check_parameters,
    count_parameters,
    described,
    zeros,
)
from ..registry import Need, Part
from .config.parts import make
from .config.schema import Experiment
from .config.settings import HostileClients
from .trackers import (
    TRACKERS,
    Tracker,
    Trackers,
    check_tracker,
)

MISSING = {
    "data": "is missing; it may be left out only where arrays are passed to `cw.run`",
    "partition": 'is missing; write partition = "by_id" where the data names its clients (a table does, by its '
    'files or its `client` column), or let clientwise divide it: partition = { name = "iid", clients = 10 }',
}
Relabel = Callable[[int, Tensor], Tensor]
LARGE = 2**24  # parameters
# Of a model while it is trained: the global one, the workers' with their gradients, the updates.
COPIES = 8


def load_samples(experiment: Experiment) -> Samples:
    """The dataset, before it is divided among clients."""
    if experiment.own_samples is not None:
        return scored(experiment, experiment.own_samples)
    missing = [key for key in MISSING if getattr(experiment, key) is None]
    if missing or experiment.data is None:
        raise ConfigError(experiment.source, [(key, MISSING[key]) for key in missing])
    folder = data_folder(experiment)
    where = f"{experiment.source}: data"
    try:
        samples = _loaded(experiment, experiment.data, folder)
        if samples.after_partition is None:
            samples.check_finite()
        return scored(experiment, samples)
    except DataError as error:  # it names the file, but not the config
        raise DataError(f"{where}: {error}{_beside_config(experiment)}") from None
    except (ClientwiseError, OSError, MemoryError):
        raise
    except Exception as error:  # a user's own dataset may raise anything
        message = f"{where}: {experiment.data.name}: {type(error).__name__}: {error}"
        if folder is None:
            message += (
                "; no data folder is set: `data_dir` in the config, --data-dir or CLIENTWISE_DATA"
            )
        raise DataError(message) from error


def data_folder(experiment: Experiment) -> Path | None:
    """The data folder, if one is set."""
    given = experiment.data_dir or os.environ.get("CLIENTWISE_DATA")
    return Path(given) if given else None


def _beside_config(experiment: Experiment) -> str:
    """What to do where the files are not in the data folder, but beside the config."""
    files = experiment.data.options.get("files") if experiment.data else None
    if not isinstance(files, str) or not Path(experiment.source).is_file():
        return ""
    folder = Path(experiment.source).parent
    searched = data_folder(experiment) or Path()
    if _matches(searched, files) or not _matches(folder, files):
        return ""
    return f'; {folder / files} is beside the config: add data_dir = "." to it'


def _matches(folder: Path, pattern: str) -> bool:
    """Whether a folder has files of this pattern; not where it is an absolute path, or no pattern."""
    try:
        return any(folder.glob(pattern))
    except (ValueError, NotImplementedError, OSError):
        return False


def _loaded(experiment: Experiment, data: Part, folder: Path | None) -> Samples:
    load: Callable[[], Samples] = partial(make(DATASETS, data), folder)
    if experiment.features is None:
        return load()
    return with_features(data, experiment.features, folder, pick_device(experiment.device), load)


def scored(experiment: Experiment, samples: Samples) -> Samples:
    """The samples with the metric that the experiment asks for."""
    metric = experiment.evaluation.metric
    if metric in (None, samples.problem.usual_metric):
        return samples
    return replace(samples, problem=replace(samples.problem, scored_by=metric))


def build_trackers(experiment: Experiment) -> Trackers:
    """The trackers, made before the run begins: a missing package or a wrong option is an error."""
    trackers: list[tuple[str, Tracker]] = []
    for index, part in enumerate(experiment.trackers):
        key = f"trackers[{index}]"
        try:
            tracker = TRACKERS.get(part.name)(**part.options)
            check_tracker(tracker)
            trackers.append((part.name, tracker))
        except ClientwiseError as error:
            raise ConfigError(experiment.source, [(key, str(error))]) from None
        except Exception as error:  # a user's own tracker may raise anything
            message = f"{part.name}: {type(error).__name__}: {error}"
            raise ConfigError(experiment.source, [(key, message)]) from error
    return Trackers(trackers)


def choose_hostile(
    experiment: Experiment, num_clients: int, seed: int, names: Sequence[str] = ()
) -> dict[int, Hostile]:
    """The clients of [[hostile]]: those listed, or a number drawn by the seed among the others."""
    wanted = [group.wanted(num_clients, names) for group in experiment.hostile]
    listed: set[int] = set()
    for members in wanted:
        listed.update(members if isinstance(members, list) else [])
    chosen: dict[int, Hostile] = {}
    for index, group in enumerate(experiment.hostile):
        members = wanted[index]
        if isinstance(members, int):
            taken = {*chosen, *listed}
            free = [client for client in range(num_clients) if client not in taken]
            order = torch.randperm(len(free), generator=generator(seed, "hostile", index))
            members = [free[position] for position in order[:members].tolist()]
        chosen |= dict.fromkeys(members, _hostile(group, members))
    return chosen


def _hostile(group: HostileClients, members: Sequence[int]) -> Hostile:
    """What the members of a group do."""
    attacks = [make(ATTACKS, part) for part in group.attack]
    needs = frozenset[Need]().union(*(ATTACKS.needs(part) for part in group.attack))
    return Hostile(
        attacks[0] if len(attacks) == 1 else Several(attacks),
        group.ignore_global,
        name=", ".join(part.name for part in group.attack),
        needs=needs,
        from_round=group.from_round,
        probability=group.probability,
        leader=min(members) if group.collude and members else None,
    )


def build_data(
    experiment: Experiment,
    samples: Samples,
    seed: int,
    divided: FederatedData | Division | None = None,
) -> tuple[FederatedData, dict[int, Hostile]]:
    """The data of every client under this seed, and the hostile clients.

    Hostile clients may change their labels.

    Args:
        experiment: the experiment.
        samples: its dataset.
        seed: the seed that divides it.
        divided: arrays of the user's own, or a division that is already known.
    """
    divided = divided or divide_samples(experiment, samples, seed)
    chosen = choose_hostile(experiment, len(divided.train), seed, names_of(divided, samples))
    hostile = {client: one for client, one in chosen.items() if not one.attack.honest}

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
    data = _with_devices(experiment, replace(data, attributes=known), seed)
    return plant(swap(data, chosen), hostile, seed), hostile


def _with_devices(experiment: Experiment, data: FederatedData, seed: int) -> FederatedData:
    """The data with the clients' devices under this seed; without them where all are alike."""
    settings = experiment.devices
    if settings is None:
        return data
    parts: dict[str, Part] = {name: getattr(settings, name) for name in DEVICE_FACTS}
    distributions = {name: make(DISTRIBUTIONS, part) for name, part in parts.items()}
    try:
        traced: dict[str, Tensor] = {}
        if settings.traces:
            traced = read_traces(Path(settings.traces), data.num_clients, seed)
        devices = draw_devices(data.num_clients, seed, distributions, traced)
    except DataError as error:
        raise ConfigError(experiment.source, [("devices", str(error))]) from None
    drawn = {
        name: f"seed {seed}: {part.name} {dict(part.options)}"
        for name, part in parts.items()
        if name not in traced
    }
    return replace(data, devices=devices, drawn=drawn)


def names_of(divided: FederatedData | Division, samples: Samples) -> tuple[str, ...]:
    """The names of the clients, where they have names."""
    if isinstance(divided, FederatedData):
        return divided.names
    return client_names(samples, divided.train)


def count_clients(experiment: Experiment) -> int:
    """The number of clients, under the seed that has most."""
    if experiment.reads_files:
        return len(experiment.flower.clients)
    samples = load_samples(experiment)
    return max(len(divide_samples(experiment, samples, seed).train) for seed in experiment.seeds)


def divide_samples(experiment: Experiment, samples: Samples, seed: int) -> Division:
    """Divide the samples among the clients under this seed."""
    assert experiment.partition is not None
    wanted = experiment.partition.options.get("clients") or 0
    if wanted > len(samples.targets):  # checked before anything of that size is made
        message = f"too many clients for {len(samples.targets)} samples"
        raise ConfigError(experiment.source, [(f"partition.clients = {wanted}", message)])
    official = experiment.evaluation.official_test
    if official != "pooled" and samples.test_from is None:
        key = f"evaluation.official_test = {official!r}"
        message = 'must be "pooled": this dataset has no official test split'
        raise ConfigError(experiment.source, [(key, message)])
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
    by_clients = settings.source == "clients"
    contributed = settings.source == "contributed"
    return hand_out(
        samples,
        division,
        seed,
        report_fraction=1.0 if by_clients else settings.report_fraction,
        shared_set=settings.shared_set,
        contributed_fraction=settings.contributed_fraction if contributed else None,
        relabel=relabel,
    )


def _adopt(
    experiment: Experiment, data: FederatedData, seed: int, hostile: Iterable[int], relabel: Relabel
) -> FederatedData:
    """Arrays of the user's own, in which hostile clients change their labels."""

    def relabelled(holdings: Holdings) -> Holdings:
        targets = holdings.targets.clone()
        for client in hostile:
            mine = holdings.slice(client)
            targets[mine] = relabel(client, targets[mine])
        return replace(holdings, targets=targets)

    settings = experiment.server_set
    train = relabelled(data.train)
    weigh = data.report if settings.shared_set else data.weigh
    if settings.source == "contributed":
        weigh = contribute(train, settings.contributed_fraction, seed)
    return replace(data, train=train, test=relabelled(data.test), weigh=weigh)


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
    except (ValueError, RuntimeError, MemoryError) as error:
        message = str(error).splitlines()[0]
        if hint := channels_last_hint(samples.inputs.shape[1:]):
            message += f"; {hint}"
        raise ConfigError(experiment.source, [("model", message)]) from None
    except Exception as error:  # a user's own network may raise anything
        message = f"{experiment.model_name} cannot be built: {type(error).__name__}: {error}"
        if samples.parts:
            names = ", ".join(part.name for part in samples.parts)
            message += f". The samples have several inputs ({names}): the first argument is their shapes by name"
        raise ConfigError(experiment.source, [("model", message)]) from error


def foreign_types(experiment: Experiment, samples: Samples) -> list[str]:
    """The types of the network's parameters that are not float32, as it is given."""
    parameters = described(_network(experiment, samples)).parameters()
    found = {str(one.dtype).removeprefix("torch.") for one in parameters}
    return sorted(found - {"float32"})


def _filled(experiment: Experiment, module: nn.Module) -> nn.Module:
    """The network with the parameters of the config's `initial_model`."""
    path = experiment.initial_model
    if path is None:
        return module
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

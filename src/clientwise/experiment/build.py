"""From a validated experiment to the things that run: data, hostile clients, engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ..attacks import ATTACKS, Hostile
from ..core.method import Federation
from ..core.metrics import ERROR_METRICS, METRICS
from ..core.sampling import cohort_size
from ..core.seeding import generator, seeded_default_generator
from ..core.types import Problem
from ..data.datasets import DATASETS, DataError
from ..data.features import with_features
from ..data.federated import FederatedData, Samples, Shares
from ..data.partition import PARTITIONS, Division, contribute, divide, hand_out
from ..engine.compute import Compute, Computing, pick_device
from ..engine.evaluation import BATCH
from ..engine.local import LocalEngine
from ..errors import ClientwiseError, ConfigError
from ..limits import gigabytes, memory
from ..models.networks import MODELS
from ..models.size import check_batches, check_parameters, count_parameters, described, zeros
from ..registry import suggest
from ..trackers import TRACKERS, Tracker, Trackers
from .schema import Experiment, make

Relabel = Callable[[int, Tensor], Tensor]
LARGE = 2**24  # parameters
COPIES = 8  # of a model while it is trained: the global one, workers' models with their gradients, what they send


def load_samples(experiment: Experiment) -> Samples:
    """The dataset, before anyone holds it."""
    missing = [key for key in ("data", "partition") if getattr(experiment, key) is None]
    if missing or experiment.data is None:
        hint = "is missing (only `cw.run` with arrays of your own goes without)"
        raise ConfigError(experiment.source, [(key, hint) for key in missing])
    given = experiment.data_dir or os.environ.get("CLIENTWISE_DATA")
    folder = Path(given) if given else None
    load: Callable[[], Samples] = partial(make(DATASETS, experiment.data), folder)
    try:
        if experiment.features is None:
            return load()
        return with_features(experiment.data, experiment.features, folder, pick_device(experiment.device), load)
    except DataError as error:  # it names the file; this is who asks for it
        raise DataError(f"{experiment.source}: data: {error}") from None


def build_trackers(experiment: Experiment) -> Trackers:
    """The trackers, before the run begins: a missing package or a wrong option is known at once."""
    trackers: list[tuple[str, Tracker]] = []
    for index, part in enumerate(experiment.trackers):
        try:
            trackers.append((part.name, TRACKERS.get(part.name)(**part.options)))
        except ClientwiseError as error:
            raise ConfigError(experiment.source, [(f"trackers[{index}]", str(error))]) from None
        except Exception as error:  # whatever a user's own tracker raises is theirs to know
            raise ConfigError(
                experiment.source, [(f"trackers[{index}]", f"{part.name}: {type(error).__name__}: {error}")]
            ) from error
    return Trackers(trackers)


def validate(experiment: Experiment, own_data: FederatedData | None) -> Samples:
    """Everything about an experiment that only its data can tell, checked before anything runs."""
    samples = own_data.samples if own_data else load_samples(experiment)
    seed = experiment.seeds[0]
    divided = own_data or divide_samples(experiment, samples, seed)
    issues = [*_problem_issues(experiment, samples.problem), *_client_issues(experiment, len(divided.train))]
    if not issues:
        data, hostile = build_data(experiment, samples, seed, divided)
        module = build_module(experiment, data.samples, seed, to_try=True)
        issues = [*_size_issues(experiment, module, data)]
    if not issues:
        # Two samples show whether the model fits, also where the clients test nothing.
        data = replace(data, test=Shares.of([(data.train.numbers[:2], data.train.targets[:2])]))
        compute = Compute(data.samples, module, torch.device("cpu"), mode="loop", precision="float32")
        engine = LocalEngine(data, module, seed=seed, compute=compute, hostile=hostile)
        issues = [*_engine_issues(experiment, engine)]
    if issues:
        raise ConfigError(experiment.source, issues)
    return samples


def _problem_issues(experiment: Experiment, problem: Problem) -> Iterator[tuple[str, str]]:
    """Parts that do not fit what is to be learned."""
    regression = problem.kind == "regression"
    if not regression and (experiment.evaluation.target or 0) > 1:
        yield "evaluation.target", f"an accuracy is at most 1, got {experiment.evaluation.target}"
    if not regression and max(experiment.evaluation.client_targets, default=0) > 1:
        yield "evaluation.client_targets", f"an accuracy is at most 1, got {experiment.evaluation.client_targets}"
    for index, method in enumerate(experiment.methods):
        for place, part in enumerate(method.criteria):
            key = f"methods[{index}].criteria[{place}]"
            metric = part.options.get("metric") if part.name == "server_performance" else None
            if metric is not None and metric not in METRICS:
                yield f"{key}.metric", f"unknown metric {metric!r}{suggest(metric, METRICS)}"
            elif metric is not None and (metric in ERROR_METRICS) != regression:
                yield f"{key}.metric", f"{metric} does not measure {problem.kind}"
            if regression and part.name in ("label_diversity", "class_balance"):
                yield key, f"{part.name} needs classes, this is regression"
        if method.adapt_loss and method.adapt_loss.name == ("class_weights" if regression else "robust_shape"):
            fitting = "robust_shape" if regression else "class_weights"
            yield f"methods[{index}].adapt_loss", f"this is {problem.kind}: use {fitting!r}"


def _client_issues(experiment: Experiment, num_clients: int) -> Iterator[tuple[str, str]]:
    """What does not fit the number of clients."""
    wanted = experiment.federation.clients_per_round
    if wanted is not None and wanted > num_clients:
        yield "federation.clients_per_round", f"{wanted} in a round, but there are only {num_clients} clients"
    for name, values in experiment.attributes.items():
        if len(values) != num_clients:
            yield f"attributes.{name}", f"{len(values)} values for {num_clients} clients"
    taken: set[int] = set()
    count = 0
    for index, group in enumerate(experiment.hostile):
        key = f"hostile[{index}].clients"
        members = group.clients if isinstance(group.clients, list) else []
        wrong = [client for client in members if client in taken or not 0 <= client < num_clients]
        if wrong:
            yield key, f"{wrong} are not clients, or in two groups: there are 0 to {num_clients - 1}"
        taken |= set(members)
        count += group.clients if isinstance(group.clients, int) else len(members)
        if count > num_clients:
            yield key, f"{count} hostile clients of {num_clients}: too many"


def _size_issues(experiment: Experiment, module: nn.Module, data: FederatedData) -> Iterator[tuple[str, str]]:
    """What takes more memory than there is."""
    if not len(data.samples.inputs):  # a server whose clients are elsewhere
        return
    largest, weighing = int(data.train.sizes.max()), len(data.weigh.numbers) if data.weigh else 0
    batch = 0
    for index, method in enumerate(experiment.build_methods()):
        for key, training, count in (("training", method.training, largest), ("fine_tune", method.fine_tune, weighing)):
            if training is None:
                continue
            batch = max(batch, min(training.batch_size or count, count))
            if (needed := 16 * training.epochs * count) > memory():  # which sample comes when
                message = f"the order of {count:,} samples in {training.epochs:,} epochs takes {gigabytes(needed)}"
                yield f"methods[{index}].{key}.epochs", f"{message}; ask for fewer"
    try:
        check_batches(module, data.samples.batch(torch.zeros(1, dtype=torch.int64)), trained=batch, answered=BATCH)
    except (RuntimeError, ValueError, IndexError) as error:
        yield "model", f"does not fit these samples: {error}"


def _engine_issues(experiment: Experiment, engine: LocalEngine) -> Iterator[tuple[str, str]]:
    """What shows when a client and a model are tried: networks that do not fit, criteria that cannot be measured."""
    try:
        engine.evaluate([0], engine.initial_model[None])
    except (RuntimeError, ValueError, IndexError) as error:
        yield "model", f"does not fit these samples: {error}"
    facts = engine.facts([0], torch.zeros(1))
    for index, method in enumerate(experiment.build_methods()):
        for place, criterion in enumerate(method.criteria):
            key = f"methods[{index}].criteria[{place}]"
            if criterion.measured_by == "server" or not len(facts.owner):  # nobody's samples are here to try it on
                continue
            try:
                shape = tuple(criterion.measure(facts).shape)
                if shape != (1,):
                    yield key, f"{criterion.name} must give one value per client, gave {shape} for one client"
            except Exception as error:  # a user's own criterion may raise anything
                yield key, str(error.args[0]) if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        judged = method.adapt_loss or any(criterion.part.name == "server_performance" for criterion in method.criteria)
        if (judged or method.fine_tune) and engine.data.weigh is None and experiment.server_set.source != "clients":
            yield f"methods[{index}]", "there are no samples to weigh by: enlarge server_set.fraction, or give `weigh`"


def choose_hostile(experiment: Experiment, num_clients: int, seed: int) -> dict[int, Hostile]:
    """Which clients are hostile: those listed, or as many as asked for, drawn by the seed among the others."""
    listed = {client for group in experiment.hostile if isinstance(group.clients, list) for client in group.clients}
    chosen: dict[int, Hostile] = {}
    for index, group in enumerate(experiment.hostile):
        members = group.clients
        if isinstance(members, int):
            free = [client for client in range(num_clients) if client not in chosen and client not in listed]
            draw = torch.randperm(len(free), generator=generator(seed, "hostile", index))[:members]
            members = [free[place] for place in draw.tolist()]
        hostile = Hostile(make(ATTACKS, group.attack), group.ignore_global, group.attack.name)
        chosen |= dict.fromkeys(members, hostile)
    return chosen


def build_data(
    experiment: Experiment, samples: Samples, seed: int, divided: FederatedData | Division | None = None
) -> tuple[FederatedData, dict[int, Hostile]]:
    """Who holds which samples under this seed, and who is hostile; hostile clients may call their samples otherwise.

    `divided` are arrays of the user's own, or a division that is already known.
    """
    divided = divided or divide_samples(experiment, samples, seed)
    hostile = choose_hostile(experiment, len(divided.train), seed)

    def relabel(client: int, targets: Tensor) -> Tensor:
        if client not in hostile:
            return targets
        return hostile[client].attack.relabel(targets, samples.problem, generator(seed, "relabel", 0, client))

    if isinstance(divided, FederatedData):
        data = _adopt(experiment, divided, seed, hostile, relabel)
    else:
        data = _hand_out(experiment, samples, divided, seed, relabel)
    given = {name: torch.tensor(values, dtype=torch.float64) for name, values in experiment.attributes.items()}
    return replace(data, attributes={**data.attributes, **given}), hostile


def count_clients(experiment: Experiment) -> int:
    """How many clients there are, under the seed that has most."""
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


def build_compute(experiment: Experiment, samples: Samples, device: torch.device, *, to_try: bool = False) -> Compute:
    """What all lanes train and evaluate with."""
    module = build_module(experiment, samples, experiment.seeds[0], to_try=to_try)
    workers = experiment.workers if isinstance(experiment.workers, int) else 0
    return Compute(samples, module, device, mode=experiment.mode, precision=experiment.precision, workers=workers)


def build_engine(
    experiment: Experiment, data: FederatedData, hostile: Mapping[int, Hostile], seed: int, compute: Computing
) -> LocalEngine:
    """An engine with the initial model of this seed."""
    return LocalEngine(data, build_module(experiment, data.samples, seed), seed=seed, compute=compute, hostile=hostile)


def build_module(experiment: Experiment, samples: Samples, seed: int, *, to_try: bool = False) -> nn.Module:
    """The network, initialised by the seed; one that is only `to_try` is left at zeros where drawing takes seconds."""
    network = _network(experiment, samples)
    try:
        count = count_parameters(described(network))
        check_parameters(count, COPIES)
        if to_try and count > LARGE:
            return zeros(network)
        with seeded_default_generator(seed, "initial model"):
            return network()
    except (ValueError, RuntimeError, MemoryError) as error:
        raise ConfigError(experiment.source, [("model", str(error).splitlines()[0])]) from None


def _network(experiment: Experiment, samples: Samples) -> Callable[[], nn.Module]:
    """What makes the network for these samples."""
    problem = samples.problem
    if problem.kind == "regression":
        num_outputs = samples.targets.shape[1:].numel()
    else:  # two classes take one output, the logit of the second (`core.loss.class_scores`), as P1's CelebA network has
        num_outputs = 1 if problem.num_classes == 2 else problem.num_classes
    return partial(make(MODELS, experiment.model), tuple(samples.inputs.shape[1:]), num_outputs)


def build_federation(experiment: Experiment, num_clients: int, seed: int) -> Federation:
    """What all methods of a seed share."""
    cohorts = experiment.federation
    return Federation(
        seed=seed,
        cohort_size=cohort_size(num_clients, fraction=cohorts.fraction, clients_per_round=cohorts.clients_per_round),
        judged_by="clients" if experiment.server_set.source == "clients" else "server",
        evaluate_clients_every=experiment.evaluation.clients_every,
        rounds=experiment.rounds,
    )


def describe(experiment: Experiment) -> list[str]:
    """What an experiment would run, found out by building its first seed."""
    samples = validate(experiment, None)
    assert experiment.data is not None
    seed = experiment.seeds[0]
    data, hostile = build_data(experiment, samples, seed)
    sizes = data.train.sizes
    cohort = build_federation(experiment, data.num_clients, seed).cohort_size
    parts = ((data.weigh, "weigh by"), (data.report, "report on"))
    server = [f"{len(part.numbers):,} samples to {verb}" for part, verb in parts if part]
    device = pick_device(experiment.device)
    compute = build_compute(experiment, data.samples, device, to_try=True)
    seeds = f"{len(experiment.seeds)} seed{'s' if len(experiment.seeds) > 1 else ''}"
    return [
        f"data        {experiment.data.name}: {len(samples.targets):,} samples, {samples.problem.kind}",
        f"clients     {data.num_clients} with {sizes.min()} to {sizes.max()} training samples each, "
        f"{cohort} in a round, {len(hostile)} hostile",
        f"server set  {', '.join(server) or 'none'}"
        + ("; the cohort judges" if experiment.server_set.source == "clients" else ""),
        f"model       {experiment.model.name}: {compute.spec.num_parameters:,} parameters",
        f"device      {device}: {compute}",
        f"methods     {', '.join(method.name for method in experiment.methods)}",
        f"work        {len(experiment.methods)} methods × {seeds} × {experiment.rounds} rounds",
    ]

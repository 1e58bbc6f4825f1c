"""From a validated experiment to the things that run: data, hostile clients, engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ..attacks import ATTACKS, Hostile
from ..core.method import Federation
from ..core.metrics import ERROR_METRICS
from ..core.sampling import cohort_size
from ..core.seeding import generator, seeded_default_generator
from ..core.types import Problem
from ..data.datasets import DATASETS
from ..data.federated import FederatedData, Samples, Shares
from ..data.partition import PARTITIONS, federate
from ..engine.local import LocalEngine
from ..errors import ClientwiseError
from ..models.flat import FlatModel
from ..models.networks import MODELS
from ..trackers import TRACKERS, Tracker, Trackers
from .config import ConfigError, Experiment, make


def load_samples(experiment: Experiment) -> Samples:
    """The dataset, before anyone holds it."""
    missing = [key for key in ("data", "partition") if getattr(experiment, key) is None]
    if missing or experiment.data is None:
        hint = "is missing (only `cw.run` with arrays of your own goes without)"
        raise ConfigError(experiment.name, [(key, hint) for key in missing])
    folder = experiment.data_dir or os.environ.get("CLIENTWISE_DATA")
    samples: Samples = make(DATASETS, experiment.data)(Path(folder) if folder else None)
    check_problem(experiment, samples.problem)
    return samples


def build_trackers(experiment: Experiment) -> Trackers:
    """The trackers, before the run begins: a missing package or a wrong option is known at once."""
    trackers: list[tuple[str, Tracker]] = []
    for index, part in enumerate(experiment.trackers):
        try:
            trackers.append((part.name, TRACKERS.get(part.name)(**part.options)))
        except ClientwiseError as error:
            raise ConfigError(experiment.name, [(f"trackers[{index}]", str(error))]) from None
        except Exception as error:  # whatever a user's own tracker raises is theirs to know
            raise ConfigError(
                experiment.name, [(f"trackers[{index}]", f"{part.name}: {type(error).__name__}: {error}")]
            ) from error
    return Trackers(trackers)


def check_problem(experiment: Experiment, problem: Problem) -> None:
    """Parts that do not fit what is to be learned: known once the data is."""
    issues = []
    regression = problem.kind == "regression"
    for index, method in enumerate(experiment.methods):
        for place, part in enumerate(method.criteria):
            metric = part.options.get("metric") if part.name == "server_performance" else None
            if metric is not None and (metric in ERROR_METRICS) != regression:
                issues.append(
                    (f"methods[{index}].criteria[{place}].metric", f"{metric} does not measure {problem.kind}")
                )
            if regression and part.name in ("label_diversity", "class_balance"):
                issues.append((f"methods[{index}].criteria[{place}]", f"{part.name} needs classes, this is regression"))
        if method.adapt_loss and (method.adapt_loss.name == "robust_shape") != regression:
            fitting = "robust_shape" if regression else "class_weights"
            issues.append((f"methods[{index}].adapt_loss", f"this is {problem.kind}: use {fitting!r}"))
    if issues:
        raise ConfigError(experiment.name, issues)


def choose_hostile(experiment: Experiment, num_clients: int, seed: int) -> dict[int, Hostile]:
    """Which clients are hostile: those listed, or as many as asked for, drawn by the seed."""
    chosen: dict[int, Hostile] = {}
    for index, group in enumerate(experiment.hostile):
        key = f"hostile[{index}].clients"
        free = [client for client in range(num_clients) if client not in chosen]
        if isinstance(group.clients, int):
            if group.clients > len(free):
                raise ConfigError(experiment.name, [(key, f"{group.clients} of {len(free)} clients left: too many")])
            draw = torch.randperm(len(free), generator=generator(seed, "hostile", index))[: group.clients]
            members = [free[place] for place in draw.tolist()]
        else:
            members = group.clients
            wrong = [client for client in members if client not in free]
            if wrong:
                raise ConfigError(
                    experiment.name,
                    [(key, f"{wrong} are not clients, or in two groups: there are 0 to {num_clients - 1}")],
                )
        hostile = Hostile(make(ATTACKS, group.attack), group.ignore_global, group.attack.name)
        chosen |= dict.fromkeys(members, hostile)
    return chosen


def build_data(experiment: Experiment, samples: Samples, seed: int) -> tuple[FederatedData, dict[int, Hostile]]:
    """Who holds which samples under this seed, and who is hostile; hostile clients may call their samples otherwise."""
    assert experiment.partition is not None
    hostile = choose_hostile(experiment, int(experiment.partition.options["clients"]), seed)
    settings = experiment.server_set
    try:
        data = federate(
            samples,
            make(PARTITIONS, experiment.partition),
            seed,
            test_fraction=experiment.evaluation.test_fraction,
            server_fraction=settings.fraction,
            report_fraction=1.0 if settings.source == "clients" else settings.report_fraction,
            shared_set=settings.shared_set,
            contributed_fraction=settings.contributed_fraction if settings.source == "contributed" else None,
            relabel=partial(_relabel, hostile, samples.problem, seed),
        )
    except ValueError as error:
        raise ConfigError(experiment.name, [("partition", str(error))]) from None
    return data, hostile


def adopt_data(experiment: Experiment, data: FederatedData, seed: int) -> tuple[FederatedData, dict[int, Hostile]]:
    """Arrays of the user's own, in which the clients chosen to be hostile call their samples otherwise."""
    hostile = choose_hostile(experiment, data.num_clients, seed)

    def relabelled(shares: Shares) -> Shares:
        targets = shares.targets.clone()
        for client in hostile:
            mine = shares.slice(client)
            targets[mine] = _relabel(hostile, data.samples.problem, seed, client, targets[mine])
        return replace(shares, targets=targets)

    return replace(data, train=relabelled(data.train), test=relabelled(data.test)), hostile


def _relabel(hostile: Mapping[int, Hostile], problem: Problem, seed: int, client: int, targets: Tensor) -> Tensor:
    if client not in hostile:
        return targets
    return hostile[client].attack.relabel(targets, problem, generator(seed, "relabel", 0, client))


def build_engine(
    experiment: Experiment, data: FederatedData, hostile: Mapping[int, Hostile], seed: int, device: torch.device
) -> LocalEngine:
    """An engine with the initial model of this seed."""
    return LocalEngine(data, build_module(experiment, data.samples, seed), seed=seed, device=device, hostile=hostile)


def build_module(experiment: Experiment, samples: Samples, seed: int) -> nn.Module:
    """The network, initialised by the seed."""
    problem = samples.problem
    num_outputs = problem.num_classes if problem.kind == "classification" else max(1, samples.targets[0].numel())
    with seeded_default_generator(seed, "initial model"):
        try:
            module: nn.Module = make(MODELS, experiment.model)(tuple(samples.inputs.shape[1:]), num_outputs)
        except ValueError as error:
            raise ConfigError(experiment.name, [("model", str(error))]) from None
    return module


def build_federation(experiment: Experiment, num_clients: int, seed: int) -> Federation:
    """What all methods of a seed share."""
    cohorts = experiment.federation
    return Federation(
        seed=seed,
        cohort_size=cohort_size(num_clients, fraction=cohorts.fraction, clients_per_round=cohorts.clients_per_round),
        judged_by="clients" if experiment.server_set.source == "clients" else "server",
        evaluate_clients_every=experiment.evaluation.clients_every,
    )


def describe(experiment: Experiment) -> list[str]:
    """What an experiment would run, found out by building its first seed."""
    samples = load_samples(experiment)
    assert experiment.data is not None
    seed = experiment.seeds[0]
    data, hostile = build_data(experiment, samples, seed)
    spec = FlatModel(build_module(experiment, samples, seed), torch.device("cpu")).spec
    sizes = data.train.sizes
    cohort = build_federation(experiment, data.num_clients, seed).cohort_size
    server = [
        f"{len(part.numbers):,} to {verb}"
        for part, verb in ((data.weigh, "weigh by"), (data.report, "report on"))
        if part
    ]
    return [
        f"data        {experiment.data.name}: {len(samples.targets):,} samples, {samples.problem.kind}",
        f"clients     {data.num_clients} with {sizes.min()} to {sizes.max()} training samples each, "
        f"{cohort} in a round, {len(hostile)} hostile",
        f"server set  {', '.join(server) or 'none'}",
        f"model       {experiment.model.name}: {spec.num_parameters:,} parameters",
        f"methods     {', '.join(method.name for method in experiment.methods)}",
        f"work        {len(experiment.methods)} methods × {len(experiment.seeds)} seeds × {experiment.rounds} rounds",
    ]

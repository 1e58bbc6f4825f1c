"""A config against its data, before anything runs. `trial.py` tries a client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ...attacks import ATTACKS, Hostile
from ...core.method import Method
from ...core.objective.loss import LOSSES
from ...core.objective.metrics import METRICS, measured
from ...core.objective.problem import Problem
from ...core.other_weights import MOST_CLIENTS
from ...core.training import TRANSFORMS, TransformDeclaration
from ...core.types import ModelSpec
from ...core.weights.bounds import InfeasibleError
from ...data.federated import FederatedData, Holdings, Samples
from ...engine.device import pick_device, refuse_impossible
from ...engine.executor import DeviceExecutor
from ...engine.hostile import HostileEngine
from ...engine.local import LocalEngine
from ...errors import ConfigError, Problems
from ...registry import Part, Registry
from ..build.data import build_data, divide_samples, load_samples, names_of
from ..build.engine import build_module, build_plan
from ..config.messages import Issue
from ..config.parts import make
from ..config.schema import Experiment
from ..config.settings import HostileClients
from .adapters import adapter_issues
from .combinations import needs_server_set
from .privacy import cohort_privacy_issues, private_data_issues
from .schedules import schedule_issues
from .secure import secure_data_issues
from .trial import engine_issues, size_issues

TRIED_CLASSES = 10  # of a metric
EXACT = 1e-6  # what a share may be beyond 1 by rounding


def validate(experiment: Experiment, own_data: FederatedData | None) -> Samples:
    """Check device, data, one client and the model.

    Args:
        experiment: a config that passed `config_issues`.
        own_data: arrays of the user's own; None: the dataset that the config names.

    Returns:
        The samples. ConfigError with all that is wrong otherwise.
    """
    problems = Problems()
    with problems.noted():
        device = pick_device(experiment.device)
        refuse_impossible(experiment.mode, experiment.precision, device)
    with problems.noted():
        samples = own_data.samples if own_data else load_samples(experiment)
        _check_against(samples, experiment, own_data, problems)
    problems.refuse()
    return samples


def _check_against(
    samples: Samples, experiment: Experiment, own_data: FederatedData | None, problems: Problems
) -> None:
    """Note what does not fit the samples, the clients and the network; if all does, a client is tried."""
    seed = experiment.seeds[0]
    about_samples = [
        *dict.fromkeys(schedule_issues(experiment)),
        *_problem_issues(experiment, samples),
        *dict.fromkeys(_transform_issues(experiment, samples)),
        *private_data_issues(experiment, samples),
    ]
    if not any(key.startswith("hostile") for key, _ in about_samples):
        about_samples += _attack_issues(experiment, samples)
    with problems.noted():
        _refuse(experiment, about_samples)
    with problems.noted():
        divided = own_data or divide_samples(experiment, samples, seed)
        names = names_of(divided, samples)
        about_clients = list(_client_issues(experiment, len(divided.train), names))
        about_clients += secure_data_issues(experiment, samples.problem, len(divided.train))
        _refuse(experiment, about_clients)
    if not problems.lines:
        data, hostile = build_data(experiment, samples, seed, divided)
        _refuse(experiment, _model_issues(experiment, data, hostile))
    elif samples.after_partition is None:
        with problems.noted():
            build_module(experiment, samples, seed, to_try=True)


def _refuse(experiment: Experiment, issues: list[Issue]) -> None:
    if issues:
        raise ConfigError(experiment.source, issues)


def _model_issues(
    experiment: Experiment, data: FederatedData, hostile: Mapping[int, Hostile]
) -> list[Issue]:
    """The issues of the first of these steps that finds any; later ones rely on earlier ones."""
    seed = experiment.seeds[0]
    module = build_module(experiment, data.samples, seed, to_try=True)
    if issues := list(size_issues(experiment, module, data)):
        return issues
    # Two samples show whether the model fits, also where the clients have no test sets.
    tested = Holdings.of([(data.train.indices[:2], data.train.targets[:2])])
    data = replace(data, test=tested)
    cpu = torch.device("cpu")
    executor = DeviceExecutor(data.samples, module, cpu, mode="loop", precision="float32")
    about_model = [
        *_unnoised(experiment, executor.spec, data),
        *adapter_issues(experiment, executor.spec),
    ]
    if about_model:
        return about_model
    engine = HostileEngine(LocalEngine(data, module, seed=seed, executor=executor), hostile)
    without_set = _without_server_set(experiment, engine)
    tried = [place for place in range(len(experiment.methods)) if place not in without_set]
    return [*without_set.values(), *engine_issues(experiment, engine, tried)]


def _unnoised(experiment: Experiment, spec: ModelSpec, data: FederatedData) -> Iterator[Issue]:
    """What the noise of differential privacy would not cover, as the model and the data show."""
    statistics = "the model has statistics of the clients' data (batch norm), which get no noise:"
    statistics += " use a network without them"
    for index, settings in enumerate(experiment.methods):
        if settings.build(experiment.training).training.sample_clip:
            place = f"methods[{index}].training.sample_clip"
            if spec.size > spec.num_parameters:
                yield place, statistics
            if data.samples.problem.loss.compares_samples:
                yield place, "the loss compares samples, so that no gradient is one sample's"
        if settings.privacy is None:
            continue
        if spec.size > spec.num_parameters:
            yield f"methods[{index}].privacy", statistics
        if data.report is None:
            hint = (
                "there are no held-out samples to report on, and those of the clients get no noise"
            )
            yield f"methods[{index}].privacy", hint


def _without_server_set(experiment: Experiment, engine: HostileEngine) -> dict[int, Issue]:
    """By place in the config: methods that need a server set where the data have none."""
    if engine.data.weigh is not None or experiment.server_set.source == "clients":
        return {}
    hint = "enlarge server_set.fraction, give `weigh`, or name methods that need none (FedAvg)"
    if experiment.flower.clients and experiment.data is None:
        hint = "give the server's own (start.sh SERVER_DATA, check --server-data)"
        hint += ", or name methods that need none"
    return {
        place: (f"methods[{place}]", f"there are no samples to weigh by: {hint}")
        for place, settings in enumerate(experiment.methods)
        if needs_server_set(settings)
    }


def _problem_issues(experiment: Experiment, samples: Samples) -> Iterator[Issue]:
    """Targets, metrics and parts that do not fit the problem."""
    problem = samples.problem
    evaluation = experiment.evaluation
    targets = {"target": [evaluation.target or 0], "client_targets": evaluation.client_targets}
    for key, values in targets.items():
        highest = max(values, default=0)
        if problem.higher_is_better and problem.is_share and highest > 1:
            yield f"evaluation.{key} = {highest}", f"{problem.metric} is at most 1"
    yield from _metric_issues(samples)
    for index, method in enumerate(experiment.methods):
        for key, registry, part in method.parts():
            yield from _unfit(f"methods[{index}].{key}", registry, part, samples)
    yield from dict.fromkeys(_loss_issues(experiment, samples))
    for index, group in enumerate(experiment.hostile):
        for part in group.attack:
            yield from _unfit(f"hostile[{index}].attack", ATTACKS, part, samples)


def _loss_issues(experiment: Experiment, samples: Samples) -> Iterator[Issue]:
    """Losses that do not fit the problem, and class weights for another number of classes."""
    for index, method in enumerate(experiment.methods):
        key = "training.loss"
        if dict(method.training)["loss"] is not None:
            key = f"methods[{index}].training.loss"
        part = experiment.training.changed(method.training)["loss"]
        if part is None:
            continue
        unfit = list(_unfit(key, LOSSES, part, samples))
        yield from unfit
        weights = part.options.get("class_weights")
        if unfit or not isinstance(weights, list):
            continue
        if len(weights) != samples.problem.num_classes:
            counts = f"has {len(weights)} weights for {samples.problem.num_classes} classes"
            yield f"{key}.class_weights", counts
        elif min(weights) <= 0:
            message = "every weight must be greater than 0"
            yield f"{key}.class_weights = {min(weights):g}", message


def _transform_issues(experiment: Experiment, samples: Samples) -> Iterator[Issue]:
    """Transforms that move pixels where there are none, or where the targets would have to move, too."""
    for method in experiment.build_methods():
        part = method.training.transform
        declared = TRANSFORMS.declared(part.name) if part else None
        if part is None or not isinstance(declared, TransformDeclaration):
            continue
        if declared.moves_pixels and samples.inputs.ndim < 3:
            yield (
                "training.transform",
                f"{part.name} needs images, and a sample is a row of numbers",
            )
        elif declared.moves_pixels and samples.targets.ndim > 2:
            yield (
                "training.transform",
                f"{part.name} moves the inputs, and the targets are images, too",
            )


def _metric_issues(samples: Samples) -> Iterator[Issue]:
    key = "evaluation.metric"
    problem = samples.problem
    unfit = list(_unfit(key, METRICS, Part(problem.metric, {}), samples))
    if unfit:
        yield from unfit
    elif (value := _beyond_one(problem)) is not None:
        hint = "a metric in percent must be in [0, 1]: declare cw.measure(..., is_share=False)"
        yield key, f"{problem.metric} is {value:g} for some models: {hint}"


def _beyond_one(problem: Problem) -> float | None:
    """A value of the metric that is no share, of a perfect or an always wrong model; None if both are shares."""
    declared = measured(problem.metric)
    if (
        not problem.num_classes
        or declared.from_scores
        or declared.is_error
        or not declared.is_share
    ):
        return None
    perfect = 10 * torch.eye(min(problem.num_classes, TRIED_CLASSES), dtype=torch.int64)
    values = METRICS.get(problem.metric)(torch.stack([perfect, perfect.roll(1, 0)]))
    return next((value for value in values.tolist() if not -EXACT <= value <= 1 + EXACT), None)


def _unfit(key: str, registry: Registry[Any], part: Part, samples: Samples) -> Iterator[Issue]:
    """What a part, or a part that its options name, needs and these samples do not have."""
    problem = samples.problem
    for option in registry.options(part.name):
        named = option.names_part_of
        value = part.options.get(option.name)
        if named is not None and value is not None:
            yield from _unfit(f"{key}.{option.name}", named, Part(value, {}), samples)
    lacking = problem.lacks(registry.declared(part.name).needs)
    if not lacking:
        if registry is METRICS and (why := problem.unfit_for(part.name, samples.targets)):
            yield key, why
        return
    fitting = [name for name in registry if problem.predicts in registry.declared(name).needs]
    instead = f"; use {' or '.join(map(repr, fitting))}" if fitting else ""
    yield key, f"{part.name} needs {lacking} to predict, and this is {problem.kind}{instead}"


def _attack_issues(experiment: Experiment, samples: Samples) -> Iterator[Issue]:
    """Attacks that these samples do not allow."""
    for index, group in enumerate(experiment.hostile):
        for part in group.attack:
            try:
                make(ATTACKS, part).check(samples)
            except ValueError as error:
                yield f"hostile[{index}].attack", f"{part.name}: {error}"


def _client_issues(
    experiment: Experiment, num_clients: int, names: Sequence[str]
) -> Iterator[Issue]:
    """What does not fit the number of clients."""
    wanted = experiment.federation.clients_per_round
    if wanted is not None and wanted > num_clients:
        key = f"federation.clients_per_round = {wanted}"
        yield key, f"there are only {num_clients} clients"
    left_out = experiment.federation.without
    if unknown := [client for client in left_out if client >= num_clients]:
        yield "federation.without", f"{unknown} are not clients: there are 0 to {num_clients - 1}"
        return
    plan = build_plan(experiment, num_clients, experiment.seeds[0])
    if not plan.members(num_clients):
        yield "federation.without", "lists all clients: no client can be asked"
        return
    if (plan.counterfactuals or plan.shapley) and plan.cohort_size > MOST_CLIENTS:
        message = f"one more model for each of {plan.cohort_size} clients in a round: at most "
        yield (
            "evaluation.counterfactuals",
            f"{message}{MOST_CLIENTS}; ask fewer (clients_per_round)",
        )
    for index, method in enumerate(experiment.build_methods()):
        place = f"methods[{index}]"
        yield from _bounds_issues(place, method, plan.cohort_size)
        yield from _buffer_issues(place, method, plan.cohort_size)
        yield from cohort_privacy_issues(place, method, plan, num_clients, experiment.rounds)
    for name, values in experiment.attributes.items():
        if len(values) != num_clients:
            yield f"attributes.{name}", f"has {len(values)} values for {num_clients} clients"
    yield from _group_issues(experiment.hostile, num_clients, names)


def _bounds_issues(place: str, method: Method, size: int) -> Iterator[Issue]:
    """Bounds that no weights of a cohort of this size meet."""
    if method.bounds is None or method.control:
        return
    try:
        method.bounds.check(size)
    except InfeasibleError as error:
        yield f"{place}.bounds", f"{error}; a round has {size} clients"


def _buffer_issues(place: str, method: Method, size: int) -> Iterator[Issue]:
    """Buffers that a cohort of this size cannot fill."""
    buffer = method.pace.buffer or 0
    at_work = method.pace.asks(size, 0)
    if buffer > at_work:
        message = f"must be at most {at_work}, the number of clients at work at a time"
        yield f"{place}.pace.buffer = {buffer}", message


def _group_issues(
    groups: Sequence[HostileClients], num_clients: int, names: Sequence[str]
) -> Iterator[Issue]:
    """Groups of hostile clients that are empty, overlap, or have too many members."""
    listed: set[int] = set()
    count = 0
    for index, group in enumerate(groups):
        key = f"hostile[{index}].{'share' if group.clients is None else 'clients'}"
        try:
            hostile = group.wanted(num_clients, names)
        except ValueError as error:
            yield key, str(error)
            continue
        if group.share and group.share < 1 and hostile in (0, num_clients):
            message = f"is {hostile} of {num_clients} clients: give another share, or clients"
            yield f"{key} = {group.share:g}", message
        members = hostile if isinstance(hostile, list) else []
        outside = [client for client in members if not 0 <= client < num_clients]
        if outside:
            yield key, f"{outside} are not clients: there are 0 to {num_clients - 1}"
        if repeated := [client for client in members if client in listed]:
            yield key, f"{repeated} are in two groups"
        listed.update(members)
        count += hostile if isinstance(hostile, int) else len(members)
        if count > num_clients:
            yield key, f"{count} hostile clients of {num_clients}: too many"

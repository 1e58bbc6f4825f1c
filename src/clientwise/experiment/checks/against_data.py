"""A config against its data and the memory there is, before anything runs. `trial.py` tries a round."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...attacks import ATTACKS
from ...core.aggregation import robust
from ...core.aggregation.sums import pairs_of
from ...core.cohort import folded_terms
from ...core.method import Method, Plan, accountant_of
from ...core.objective.loss import LOSSES
from ...core.objective.metrics import METRICS
from ...core.objective.problem import Problem
from ...core.training import TRANSFORMS, TransformDeclaration
from ...core.types import FLOAT_BYTES, ModelSpec
from ...core.weights.weighting import InfeasibleError
from ...data.federated import FederatedData, Samples
from ...engine.device import KEPT_BYTES, pick_device, refuse_impossible
from ...errors import ConfigError, Problems
from ...limits import gigabytes, memory
from ...models.flat import spec_of
from ...registry import Names, Part, Registry
from ..build.data import build_data, choose_hostile, divide_samples, load_samples, names_of
from ..build.engine import build_module, build_plan
from ..config.parts import make
from ..config.schema import Experiment
from ..config.tables import Issue
from .combinations import needs_server_set
from .trial import network_issues, trial_issues

TRIED_ROUNDS = 10_000  # of a schedule
FACTORS = 'freeze lora_A, so that all clients share it, or set adapters = "factors"'


def validate(experiment: Experiment, own_data: FederatedData | None) -> Samples:
    """Check device, data, one round and the model.

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
    """Note what does not fit the samples, the clients and the network; if all does, a round is tried."""

    def refuse(issues: Iterable[Issue]) -> None:
        if found := list(dict.fromkeys(issues)):
            raise ConfigError(experiment.source, found)

    seed = experiment.seeds[0]
    with problems.noted():
        refuse([*_schedule_issues(experiment), *_sample_issues(experiment, samples)])
    with problems.noted():
        divided = own_data or divide_samples(experiment, samples, seed)
        names = names_of(divided, samples)
        refuse(_client_issues(experiment, samples.problem, len(divided.train), names))
    if not problems.lines:
        data, _ = build_data(experiment, samples, seed, divided)
        refuse(_model_issues(experiment, data))
    elif samples.after_partition is None:
        with problems.noted():
            build_module(experiment, samples, seed, to_try=True)


# The samples ------------------------------------------------------------------------------------------------


def _sample_issues(experiment: Experiment, samples: Samples) -> Iterator[Issue]:
    """Targets, metrics and parts that do not fit the problem."""
    problem = samples.problem
    evaluation = experiment.evaluation
    target = evaluation.target or 0
    if problem.higher_is_better and problem.is_share and target > 1:
        yield f"evaluation.target = {target}", f"{problem.metric} is at most 1"
    yield from _unfit("evaluation.metric", METRICS, Part(problem.metric, {}), samples)
    for index, settings in enumerate(experiment.methods):
        place = f"methods[{index}]"
        for key, registry, part in settings.parts():
            yield from _unfit(f"{place}.{key}", registry, part, samples)
        method = settings.build(experiment.training)
        own = f"{place}." if dict(settings.training)["loss"] is not None else ""
        if method.loss is not None:
            yield from _unfit(f"{own}training.loss", LOSSES, method.loss, samples)
            weights = method.loss.options.get("class_weights")
            if isinstance(weights, list) and len(weights) != problem.num_classes:
                counts = f"has {len(weights)} weights for {problem.num_classes} classes"
                yield f"{own}training.loss.class_weights", counts
        yield from _transform_issues(method, samples)
        if settings.privacy and samples.after_partition and not samples.each_alone:
            name = experiment.data.name if experiment.data else "the dataset"
            hint = f"{name} prepares its inputs by the samples of all clients (means, categories,"
            yield f"{place}.privacy", f"{hint} words), and these get no noise: use prepared numbers"
    for index, group in enumerate(experiment.hostile):
        for part in group.attack:
            key = f"hostile[{index}].attack"
            if unfit := list(_unfit(key, ATTACKS, part, samples)):
                yield from unfit
                continue
            try:
                make(ATTACKS, part).check(samples)
            except ValueError as error:
                yield key, f"{part.name}: {error}"


def _unfit(key: str, registry: Registry[Any], part: Part, samples: Samples) -> Iterator[Issue]:
    """What a part, or a part that its options name, needs and these samples do not have."""
    problem = samples.problem
    for option in registry.options(part.name):
        named = option.registry(Names)
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


def _transform_issues(method: Method, samples: Samples) -> Iterator[Issue]:
    """A transform that moves pixels where there are none, or where the targets would have to move, too."""
    part = method.training.transform
    declared = TRANSFORMS.declared(part.name) if part else None
    if part and isinstance(declared, TransformDeclaration) and declared.moves_pixels:
        key = "training.transform"
        if samples.inputs.ndim < 3:
            yield key, f"{part.name} needs images, and a sample is a row of numbers"
        elif samples.targets.ndim > 2:
            yield key, f"{part.name} moves the inputs, and the targets are images, too"


def _schedule_issues(experiment: Experiment) -> Iterator[Issue]:
    """Rounds whose learning rate is no number above 0; a user's own function may return or raise anything."""
    rounds = experiment.rounds
    for index, settings in enumerate(experiment.methods):
        schedule = experiment.training.schedule_of(settings.training)
        if schedule is None:
            continue
        own = f"methods[{index}]." if dict(settings.training)["schedule"] is not None else ""
        for number in sorted({*range(1, min(rounds, TRIED_ROUNDS) + 1), rounds}):
            try:
                factor = float(schedule(number))
            except Exception as error:
                message = f"failed for round {number}: {type(error).__name__}: {error}"
            else:
                if 0 < factor < math.inf:
                    continue
                message = f"is {factor:g} in round {number} of {rounds}: must be above 0 in all of them. A schedule "
                message += "that spans the run names its rounds; a run that has begun keeps its schedule, so go on "
                message += "in another folder"
            yield f"{own}training.schedule", message
            break


# The clients ------------------------------------------------------------------------------------------------


def _client_issues(
    experiment: Experiment, problem: Problem, num_clients: int, names: Sequence[str]
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
    for index, method in enumerate(experiment.build_methods()):
        place = f"methods[{index}]"
        try:
            if method.bounds and not method.control:
                method.bounds.check(plan.cohort_size)
        except InfeasibleError as error:
            yield f"{place}.bounds", f"{error}; a round has {plan.cohort_size} clients"
        for criterion in method.criteria:
            high = criterion.high(problem)
            for client, value in enumerate(experiment.attributes.get(criterion.fact, ())):
                if not 0 <= value <= high:
                    message = f"must be finite and not negative, and at most {high:g} (`high` of the criterion)"
                    yield f"attributes.{criterion.fact}[{client}] = {value:g}", message
        at_work = method.pace.asks(plan.cohort_size, 0)
        if (method.pace.buffer or 0) > at_work:
            message = f"must be at most {at_work}, the number of clients at work at a time"
            yield f"{place}.pace.buffer = {method.pace.buffer}", message
        yield from _epsilon_issues(place, method, plan, num_clients, experiment.rounds)
    for name, values in experiment.attributes.items():
        if len(values) != num_clients:
            yield f"attributes.{name}", f"has {len(values)} values for {num_clients} clients"
    try:
        choose_hostile(experiment, num_clients, experiment.seeds[0], names)
    except ConfigError as error:
        yield from error.issues


def _epsilon_issues(
    place: str, method: Method, plan: Plan, num_clients: int, rounds: int
) -> Iterator[Issue]:
    """What of differential privacy depends on the number of clients."""
    privacy = method.privacy
    accountant = accountant_of(method, plan, num_clients)
    if privacy is None or accountant is None:
        return
    members = accountant.num_clients
    if privacy.delta >= 1 / members:
        hint = f"must be below 1/n = {1 / members:.3g} for n = {members} clients: otherwise"
        hint += " a mechanism that publishes one client's update in full would pass"
        yield f"{place}.privacy.delta = {privacy.delta:g}", hint
    elif privacy.epsilon is None:
        return
    elif privacy.noise_multiplier is None:
        found = accountant.noise_for(privacy.epsilon, rounds)
        hint = f"is missing: {found:.3f} spends" if found else "is missing: no multiplier spends"
        hint += f" epsilon = {privacy.epsilon:g} at delta = {privacy.delta:g} in {rounds} rounds"
        yield f"{place}.privacy.noise_multiplier", hint
    elif (once := accountant.epsilon(1)) > privacy.epsilon:
        hint = f"the first round alone spends {once:.3g}: raise epsilon or noise_multiplier"
        yield f"{place}.privacy.epsilon = {privacy.epsilon:g}", hint


# The network ------------------------------------------------------------------------------------------------


def _model_issues(experiment: Experiment, data: FederatedData) -> list[Issue]:
    """The issues of the first of these steps that finds any; later ones rely on earlier ones."""
    module = build_module(experiment, data.samples, experiment.seeds[0], to_try=True)
    spec = spec_of(module)
    if len(data.samples.inputs):  # else a server whose clients are elsewhere
        needed = largest_round(experiment, data, spec)
        if needed > memory():
            what = f"the models of a round take {gigabytes(needed)}, and there are {gigabytes(memory())}"
            return [("federation", f"{what}; ask fewer clients in a round (clients_per_round)")]
        batches = [method.training.batch_size for method in experiment.build_methods()]
        largest = int(data.train.sizes.max())
        batch = max(min(size or largest, largest) for size in batches)
        if issues := list(network_issues(module, data.samples, batch)):
            return issues
    if issues := list(_spec_issues(experiment, spec, data)):
        return issues
    without_set = _without_server_set(experiment, data)
    tried = [place for place in range(len(experiment.methods)) if place not in without_set]
    found = list(without_set.values())
    if len(data.train.indices):
        found += trial_issues(experiment, data, module, tried)
    return found


def _spec_issues(experiment: Experiment, spec: ModelSpec, data: FederatedData) -> Iterator[Issue]:
    """What the model's layout and the held-out samples rule out: noise that does not cover all, and adapters."""
    has_statistics = spec.size > spec.num_parameters
    statistics = "the model has statistics of the clients' data (batch norm), which get no noise:"
    statistics += " use a network without them"
    for index, settings in enumerate(experiment.methods):
        place = f"methods[{index}]"
        method = settings.build(experiment.training)
        if method.training.sample_clip:
            key = f"{place}.training.sample_clip"
            if has_statistics:
                yield key, statistics
            if data.samples.problem.loss.compares_samples:
                yield key, "the loss compares samples, so that no gradient is one sample's"
        if method.privacy and has_statistics:
            yield f"{place}.privacy", statistics
        if method.privacy and data.report is None:
            hint = "there are no held-out samples to report on, and those of the clients get no"
            yield f"{place}.privacy", f"{hint} noise"
        if settings.adapters == "products" and pairs_of(spec):
            for key, registry, part in settings.parts():
                if "single_values" in registry.needs(part):
                    reason = f"{part.name} combines single values of updates, and of LoRA adapters"
                    yield f"{place}.{key}", f"{reason} the products B·A count: {FACTORS}"
            if method.noises_mean:
                reason = "has no sensitivity for a mean of products B·A (LoRA adapters)"
                yield f"{place}.privacy", f"{reason}: {FACTORS}"


def _without_server_set(experiment: Experiment, data: FederatedData) -> Mapping[int, Issue]:
    """By place in the config: methods that need a server set where the data have none."""
    if data.weigh is not None or experiment.server_set.source == "clients":
        return {}
    hint = "enlarge server_set.fraction, give `weigh` (in a deployment: --server-data), or name methods that need "
    hint += "none (FedAvg)"
    return {
        place: (f"methods[{place}]", f"there are no samples to weigh by: {hint}")
        for place, settings in enumerate(experiment.methods)
        if needs_server_set(settings)
    }


# Memory ----------------------------------------------------------------------------------------------------

DOUBLE_BYTES = 8
# tests/experiment/test_round_memory.py compares these numbers with what every method takes.
# Copies of a model: kept beside others in one matrix; where a part computes with its update
STACKED_COPIES = 2
UPDATE_COPIES = 4
KEPT_COPIES = 3  # between rounds: of the last one, of this one, and while it is renewed
FACTOR_COPIES = 10  # of the factors of an adapted layer, in float64, with their QR decompositions
BLOCKS = 12  # of `robust.AT_ONCE` values that a part works on at once, in float64
SAMPLE_BYTES = 64  # results of a model on a sample


def round_bytes(method: Method, plan: Plan, data: FederatedData, spec: ModelSpec) -> int:
    """Bytes of a round that grow with its clients; `fixed_bytes` are those that do not.

    For n clients in a round, K clients in all, d numbers in a model, N held-out samples, up to

    - 4·copies·n·d for the models of a round that are kept, or 8·t·d for t sums over them;
    - 4·3·k·K·d for k models that are kept of every client from round to round;
    - 8·p·n² for a part that holds p matrices of all pairs of clients;
    - 64·N·n where n models are judged at once, on the server's samples or by the clients of a round.

    Args:
        method: whose rounds.
        plan: of its rounds.
        data: of its clients, and of the server.
        spec: the layout of a model.
    """
    clients = plan.cohort_size if plan.asks is None else len(plan.asks)
    sums = len(folded_terms(method, plan, spec, data.samples.problem, clients))
    pairs = method.averaged_pairs(spec)  # of LoRA adapters
    copies = 0 if sums else STACKED_COPIES
    if method.evidence or method.before or method.rule or method.memories or method.noises_mean:
        copies = UPDATE_COPIES + len(method.before)
    if pairs:
        copies = UPDATE_COPIES + len(method.before)
    if data.devices is not None and method.pace.keeps_late:
        copies += KEPT_COPIES
    factors = max((math.prod(a.shape) + math.prod(b.shape) for a, b in pairs), default=0)
    models = copies * clients + KEPT_COPIES * method.client_models * data.num_clients
    needed = spec.size * (FLOAT_BYTES * models + DOUBLE_BYTES * sums)
    needed += FLOAT_BYTES * FACTOR_COPIES * clients * factors
    needed += DOUBLE_BYTES * method.pair_matrices * clients**2
    judged = data.num_clients if method.control == "alone" else 0
    if method.evidence or (method.needs("server_set") and method.sees_whole_cohort):
        judged = clients
    samples = max(len(held.indices) if held else 0 for held in (data.weigh, data.report))
    if plan.judged_by == "clients":
        samples = int(data.test.sizes.sort(descending=True).values[:clients].sum())
    return needed + judged * SAMPLE_BYTES * samples * data.samples.problem.values_kept


def largest_round(
    experiment: Experiment, data: FederatedData, spec: ModelSpec, lanes: int = 1
) -> int:
    """Bytes of the rounds of so many lanes, side by side, that need most together."""
    needed = []
    for method in experiment.build_methods():
        plan = build_plan(experiment, data.num_clients, experiment.seeds[0], method.control)
        needed.append(round_bytes(method, plan, data, spec))
    return sum(sorted(needed * len(experiment.seeds))[-lanes:])


def fixed_bytes(workers: int) -> int:
    """Bytes of rounds that do not grow with their clients: blocks, and what a chunk of clients has freed."""
    return BLOCKS * DOUBLE_BYTES * robust.AT_ONCE + workers * KEPT_BYTES

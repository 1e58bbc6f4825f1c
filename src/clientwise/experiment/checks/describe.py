"""What an experiment would run, in a few lines, for `clientwise check`."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...core.aggregation.sums import pairs_of
from ...core.criteria import is_claimed
from ...core.method import Plan, accountant_of
from ...core.privacy import gaussian_epsilon
from ...core.training import declared_of, part_of
from ...data.federated import FederatedData
from ...data.summary import column_hints, summarise
from ...engine.device import memory_errors_explained, pick_device
from ...engine.executor import DeviceExecutor
from ...limits import gigabytes
from ...models.modules import count_parameters
from ...registry import listed
from ..build.data import build_data
from ..build.engine import build_executor, build_plan, lanes_that_fit
from ..config.schema import Experiment
from .against_data import validate
from .doubts import doubts
from .memory import fixed_bytes, largest_round
from .steps import count_steps, steps_in_words, unequal_steps

WORTH_SAYING = 10**8  # bytes
ROW_DELTA = 1e-5  # at which ε of a training sample is given
TITLE = 12  # characters of a line's title


@memory_errors_explained()
def describe(
    experiment: Experiment,
    own_data: FederatedData | None = None,
    columns: Mapping[str, float] | None = None,
) -> list[str]:
    """What an experiment would run, found by building its first seed; see `validate`.

    Args:
        experiment: of a matrix, the one in the first column.
        own_data: samples of the user's own.
        columns: of a matrix, the share of hostile clients by column.
    """
    samples = validate(experiment, own_data)
    seed = experiment.seeds[0]
    data, hostile = build_data(experiment, samples, seed, own_data)
    device = pick_device(experiment.device)
    executor = build_executor(experiment, data.samples, device, to_try=True)
    plan = build_plan(experiment, data.num_clients, seed)
    steps = count_steps(experiment, [data])
    lines = {
        "data": _data(experiment, data),
        "clients": _clients(data, plan.cohort_size, None if columns else len(hostile)),
        "matrix": _hostile_by_column(columns or {}, data.num_clients),
        "server set": _server_set(experiment, data),
        "model": _model(experiment, executor),
        "device": f"{device}: {executor}",
        "optimizer": optimizers_in_words(experiment),
        "memory": _memory(experiment, data, executor),
        "methods": listed(method.name for method in experiment.methods),
        "criteria": _criteria(experiment),
        "steps/round": steps_in_words(steps),
        "privacy": _privacy(experiment, data, plan),
        "work": _work(experiment),
    }
    found = [(title, text) for title, text in lines.items() if text]
    warnings = column_hints(samples) + doubts(experiment, data, hostile, executor)
    found += [("warning", text) for text in [*warnings, *unequal_steps(steps)]]
    return [f"{title:<{TITLE}}{text}" for title, text in found]


def optimizers_in_words(experiment: Experiment) -> str:
    """The clients' optimizers with their learning rates, and of which methods where these differ."""

    methods: dict[str, list[str]] = {}
    for method in experiment.build_methods():
        training = method.training
        text = f"{part_of(training.optimizer).name}, learning rate {training.learning_rate:g}"
        if training.learning_rate == declared_of(training.optimizer).learning_rate:
            text += " (its default)"
        methods.setdefault(text, []).append(method.name)
    if len(methods) == 1:
        return next(iter(methods))
    return "; ".join(f"{text}: {listed(names)}" for text, names in methods.items())


def _data(experiment: Experiment, data: FederatedData) -> str:
    source = "the members' files" if _has_client_data(data) else "the server's file"
    if experiment.data:
        source = experiment.data.name
    text = f"{source}: {len(data.samples.targets):,} samples, {data.samples.problem.kind}"
    if unused := summarise(data).unused:
        left_out = "clients with fewer than partition.minimum samples are left out"
        text += f"; {unused:,} of them unused ({left_out})"
    return text


def _has_client_data(data: FederatedData) -> bool:
    """Whether the clients' samples are here; the server of a deployment has none of them."""
    return bool(data.train.sizes.any())


def _clients(data: FederatedData, cohort: int, hostile: int | None) -> str:
    sizes = data.train.sizes
    held = "data of their own, elsewhere"
    if _has_client_data(data):
        held = f"{sizes.min()} to {sizes.max()} training samples each"
    text = f"{data.num_clients} with {held}, {cohort} in a round"
    return text if hostile is None else f"{text}, {hostile} hostile"


def _hostile_by_column(columns: Mapping[str, float], clients: int) -> str:
    """The numbers of hostile clients in a matrix, each with its columns."""
    found: dict[int, list[str]] = {}
    for name, share in columns.items():
        found.setdefault(round(clients * share), []).append(name)
    return "; ".join(f"{count} hostile: {listed(names)}" for count, names in found.items())


def _server_set(experiment: Experiment, data: FederatedData) -> str:
    held = {"weigh by": data.weigh, "report on": data.report}
    parts = [f"{len(one.indices):,} samples to {use}" for use, one in held.items() if one]
    text = ", ".join(parts) or "none"
    by_clients = experiment.server_set.source == "clients"
    return text + "; the cohort evaluates models" * by_clients


def _model(experiment: Experiment, executor: DeviceExecutor) -> str:
    """The network, and how much of it is trained where that is not all."""
    parameters = count_parameters(executor.flat.module)
    text = f"{experiment.model_name}: {parameters:,} parameters"
    trained = executor.spec.num_parameters
    if trained < parameters:
        text += f"; {trained:,} of them are trained and sent"
    if pairs := len(pairs_of(executor.spec)):
        text += f", LoRA adapters of {pairs} layers among them"
    return text


def _memory(experiment: Experiment, data: FederatedData, executor: DeviceExecutor) -> str:
    """What the rounds take, where that is much."""
    all_lanes = len(experiment.seeds) * len(experiment.methods)
    lanes = min(all_lanes, lanes_that_fit(experiment, data, executor))
    models = largest_round(experiment, data, executor.spec, lanes)
    if models < WORTH_SAYING:
        return ""
    needed = gigabytes(models + fixed_bytes(executor.workers))
    rounds = "a round" if lanes == 1 else f"{lanes} rounds side by side"
    return f"up to {needed} for {rounds}, {gigabytes(models)} of them for models"


def _criteria(experiment: Experiment) -> str:
    """What the weights are based on: what clients say about themselves, and what the server measures."""
    methods = [method for method in experiment.build_methods() if method.control is None]
    found = {one.name: is_claimed(one.part) for method in methods for one in method.criteria}
    kinds = {"claimed by the clients": True, "measured by the server": False}
    parts = []
    for kind, claimed in kinds.items():
        names = [name for name, one in found.items() if one == claimed]
        if names:
            parts.append(f"{kind}: {', '.join(names)}")
    return "; ".join(parts)


def _privacy(experiment: Experiment, data: FederatedData, plan: Plan) -> str:
    """What noise promises: of clients by the accountant; of single samples, each in one batch an epoch."""
    rounds = experiment.rounds
    found = []
    for method in experiment.build_methods():
        accountant = accountant_of(method, plan, data.num_clients)
        privacy, training = method.privacy, method.training
        if privacy is not None and accountant is not None:
            spent = accountant.epsilon(rounds)
            text = f"ε = {spent:.3g} after {rounds} rounds"
            if privacy.epsilon is not None and spent > privacy.epsilon:
                text = f"stops before ε = {privacy.epsilon:g} (all {rounds} rounds would spend {spent:.3g})"
            where = "noise of the clients" if privacy.local else "noise of the server"
            drawn = "secret noise" if privacy.secret else "simulated noise, known from the seed"
            what = f"{accountant.relation}; training samples alone, not the server's"
            text += f" at δ = {privacy.delta:g} ({what}; {where}; {drawn})"
            found.append(f"{method.name}: {text}")
        if training.sample_noise is not None:  # every step is 1/z-Gaussian differentially private
            mu = math.sqrt(rounds * training.epochs) / training.sample_noise
            text = f"μ = {mu:.2g}, ε = {gaussian_epsilon(mu, ROW_DELTA):.2g} at δ = {ROW_DELTA:g}"
            text += f" for one training sample, given its class, after {rounds} rounds"
            found.append(f"{method.name}: {text}")
    return f"\n{'':<{TITLE}}".join(found)


def _work(experiment: Experiment) -> str:
    counts = {
        "method": len(experiment.methods),
        "seed": len(experiment.seeds),
        "round": experiment.rounds,
    }
    return " × ".join(_counted(count, what) for what, count in counts.items())


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"

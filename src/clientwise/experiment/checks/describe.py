"""What an experiment would run, in a few lines, for `clientwise check`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import torch

from ...core.aggregation.sums import pairs_of
from ...core.cohort import count_sums_of_parts
from ...core.criteria import is_claimed
from ...core.method import Plan
from ...core.training import declared_of, part_of
from ...core.types import FLOAT_BYTES, ModelSpec
from ...data.federated import FederatedData, Samples
from ...data.summary import column_hints, summarise
from ...engine.device import gpu_memory, memory_errors_explained, pick_device
from ...engine.executor import DeviceExecutor, why_alone
from ...limits import gigabytes
from ...models.modules import count_parameters
from ...registry import listed
from ..build.data import build_data
from ..build.engine import build_executor, build_plan, lanes_that_fit
from ..config.schema import Experiment
from ..running.ray_lanes import can_be_sharded
from .against_data import validate
from .doubts import doubts
from .privacy import describe_privacy, describe_sample_noise, held_out_doubts
from .round_memory import fixed_bytes, gpu_bytes, largest_round
from .steps import count_steps, total_steps
from .steps_in_words import steps_in_words, unequal_steps

SUM_BYTES = 8  # of a float64
WORTH_SAYING = 10**8  # bytes
MANY_ROWS = 10**6
MOST_NAMED = 8  # columns or classes


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
    names = [method.name for method in experiment.methods]
    steps = count_steps(experiment, [data])
    lines = {
        "data": _data(experiment, samples, data),
        "columns": _columns(data.samples),
        "classes": _classes(data.samples),
        "clients": _clients(data, plan.cohort_size, None if columns else len(hostile)),
        "matrix": _hostile_by_column(columns or {}, data.num_clients),
        "devices": _response_times(experiment, data, executor.spec.size),
        "server set": _server_set(experiment, data),
        "model": _model(experiment, executor),
        "device": f"{device}: {executor}",
        "optimizer": optimizers_in_words(experiment),
        "training": _training(experiment, executor),
        "on Ray": _travels(experiment, data, plan, executor.spec, bool(hostile)),
        "memory": _memory(experiment, data, executor),
        "methods": listed(names),
        "criteria": _criteria(experiment),
        "steps/round": steps_in_words(steps),
        "schedule": _schedules(experiment),
        "stop early": _stop_early(experiment),
        "keep": "the model with the lowest held-out loss" if experiment.keep == "best" else "",
        "privacy": _privacy(experiment, data, plan),
        "record": _record(experiment, data, plan),
        "work": _work(experiment),
        "cost": _cost(experiment, data, plan, executor.spec),
    }
    found = [(title, text) for title, text in lines.items() if text]
    warnings = column_hints(samples) + doubts(experiment, data, hostile, executor)
    warnings += held_out_doubts(experiment, samples)
    found += [("warning", text) for text in [*warnings, *unequal_steps(steps)]]
    return [f"{title:<12}{text}" for title, text in found]


def _model(experiment: Experiment, executor: DeviceExecutor) -> str:
    """The network, and how much of it is trained where that is not all."""
    parameters = count_parameters(executor.flat.module)
    text = f"{experiment.model_name}: {parameters:,} parameters"
    trained = executor.spec.num_parameters
    if trained == parameters:
        return text
    text += f"; {trained:,} of them are trained and sent"
    if pairs := len(pairs_of(executor.spec)):
        text += f", LoRA adapters of {pairs} layers among them"
    return text


def _training(experiment: Experiment, executor: DeviceExecutor) -> str:
    """Which methods train one client after the other, where the network would allow more at once."""
    if executor.mode != "stacked":
        return ""
    problem = executor.samples.problem
    counts = torch.ones(problem.num_classes)  # the values of class weights do not matter here
    reasons: dict[str, list[str]] = {}
    for method in experiment.build_methods():
        loss = method.first_loss(problem, counts)
        if (why := why_alone(method.training, loss)) is not None:
            reasons.setdefault(why, []).append(method.name)
    lines = []
    for why, names in reasons.items():
        of = "" if len(names) == len(experiment.methods) else f" ({listed(names)})"
        lines.append(f"one client after the other{of}: {why}")
    return f"\n{'':<12}".join(lines)


def _data(experiment: Experiment, samples: Samples, data: FederatedData) -> str:
    problem = samples.problem.kind
    text = f"{_source(experiment, data)}: {len(samples.targets):,} samples, {problem}"
    unused = summarise(data).unused
    if unused:
        left_out = "clients with fewer than partition.minimum samples are left out"
        text += f"; {unused:,} of them unused ({left_out})"
    return text


def _columns(samples: Samples) -> str:
    """The columns of a table, and which of them lack values most often."""
    if samples.table is None:
        return ""
    columns = samples.table.columns
    of_categories = sum(bool(column.categories) for column in columns)
    text = f"{len(columns) - of_categories} of numbers, {of_categories} of categories"
    gaps = sorted(columns, key=lambda column: -(column.missing or 0))[:MOST_NAMED]
    shares = [f"{column.name} {column.missing:.0%}" for column in gaps if column.missing]
    return f"{text}; missing: {', '.join(shares) or 'no value'}"


def _classes(samples: Samples) -> str:
    if samples.table is None or not samples.table.classes:
        return ""
    names = samples.table.classes
    more = f" and {len(names) - MOST_NAMED} others" if len(names) > MOST_NAMED else ""
    return f"of {samples.table.target}: {', '.join(names[:MOST_NAMED])}{more}"


def _source(experiment: Experiment, data: FederatedData) -> str:
    if experiment.data:
        return experiment.data.name
    return "the members' files" if _has_client_data(data) else "the server's file"


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


def _response_times(experiment: Experiment, data: FederatedData, size: int) -> str:
    """How long clients take to respond; nothing where they take no time."""
    if data.devices is None:
        return ""
    samples = experiment.training.build().epochs * data.train.sizes.double()
    seconds = data.devices.seconds(samples, FLOAT_BYTES * size).tolist()
    low = f"{min(seconds):.3g} s"
    middle = f"{statistics.median(seconds):.3g} s"
    high = f"{max(seconds):.3g} s"
    return f"response time {low} to {high}, median {middle}"


def _server_set(experiment: Experiment, data: FederatedData) -> str:
    parts = []
    if data.weigh:
        parts.append(f"{len(data.weigh.indices):,} samples to weigh by")
    if data.report:
        parts.append(f"{len(data.report.indices):,} samples to report on")
    text = ", ".join(parts) or "none"
    if experiment.server_set.source == "clients":
        text += "; the cohort evaluates models"
    return text


def _memory(experiment: Experiment, data: FederatedData, executor: DeviceExecutor) -> str:
    """What a run takes of a GPU; on a CPU what its rounds take, where that is much."""
    if executor.device.type == "cuda":
        expected = gigabytes(gpu_bytes(experiment, data, executor))
        return f"about {expected} of the GPU; {gigabytes(gpu_memory(executor.device))} are free"
    all_lanes = len(experiment.seeds) * len(experiment.methods)
    lanes = min(all_lanes, lanes_that_fit(experiment, data, executor))
    models = largest_round(experiment, data, executor.spec, lanes)
    if models < WORTH_SAYING:
        return ""
    needed = gigabytes(models + fixed_bytes(executor.workers))
    rounds = "a round" if lanes == 1 else f"{lanes} rounds side by side"
    return f"up to {needed} for {rounds}, {gigabytes(models)} of them for models"


def _travels(
    experiment: Experiment, data: FederatedData, plan: Plan, spec: ModelSpec, has_hostile: bool
) -> str:
    """What shards of a cohort send to this process, by method; nothing without Ray."""
    if experiment.workers != "ray":
        return ""
    every_model = FLOAT_BYTES * plan.cohort_size * spec.size
    found = []
    for method in experiment.build_methods():
        sums = count_sums_of_parts(method, plan, spec, data.samples.problem, plan.cohort_size)
        if not can_be_sharded(method):
            how = "not in shards: one client holds all samples"
        elif method.control or method.training.control_variates:
            how = f"shards gather every model: {_megabytes(every_model)} a round, and as much is sent to them"
        elif sums and not has_hostile and data.devices is None:
            folded = SUM_BYTES * sums * spec.size
            how = f"shards fold models into sums: {_megabytes(folded)} a round from each shard"
        else:
            how = f"shards gather every model: {_megabytes(every_model)} a round"
        found.append(f"{method.name}: {how}")
    return f"\n{'':<12}".join(found)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.2f} MB"


def _criteria(experiment: Experiment) -> str:
    """What the weights are based on: what clients say about themselves, and what the server measures."""
    claimed: dict[str, None] = {}
    measured: dict[str, None] = {}
    for method in experiment.build_methods():
        if method.control:
            continue
        for criterion in method.criteria:
            found = claimed if is_claimed(criterion.part) else measured
            found[criterion.name] = None
    parts = []
    if claimed:
        parts.append(f"claimed by the clients: {', '.join(claimed)}")
    if measured:
        parts.append(f"measured by the server: {', '.join(measured)}")
    return "; ".join(parts)


def optimizers_in_words(experiment: Experiment) -> str:
    """The clients' optimizers with their learning rates, and of which methods where these differ."""
    methods: dict[str, list[str]] = {}
    for method in experiment.build_methods():
        training = method.training
        text = f"{part_of(training.optimizer).name}, learning rate {training.learning_rate:g}"
        if training.learning_rate == declared_of(training.optimizer).learning_rate:
            text += " (its default)"
        methods.setdefault(text, []).append(method.name)
    return _of_methods(methods, len(experiment.methods))


def _of_methods(methods: Mapping[str, Sequence[str]], count: int) -> str:
    """Texts, each with the methods that it is about, where these are not all."""
    found = []
    for text, names in methods.items():
        of = "" if len(names) == count else f": {listed(names)}"
        found.append(f"{text}{of}")
    return "; ".join(found)


def _schedules(experiment: Experiment) -> str:
    """The learning rates by round, and of which methods; nothing where they are constant."""
    methods: dict[str, list[str]] = {}
    for settings in experiment.methods:
        part = experiment.training.schedule_part(settings.training)
        options = ", ".join(f"{key} {value}" for key, value in part.options.items())
        text = f"{part.name} ({options})" if options else part.name
        if experiment.training.schedule_of(settings.training) is not None:
            methods.setdefault(text, []).append(settings.name)
    return _of_methods(methods, len(experiment.methods))


def _stop_early(experiment: Experiment) -> str:
    stop = experiment.stop_early
    if stop is None:
        return ""
    lower = f"lower by more than {stop.min_delta:g}" if stop.min_delta else "lower"
    return f"after {_counted(stop.rounds, 'round')} whose held-out loss is not {lower}"


def _privacy(experiment: Experiment, data: FederatedData, plan: Plan) -> str:
    promises = []
    for method in experiment.build_methods():
        promises.append(describe_privacy(method, plan, data.num_clients, experiment.rounds))
        promises.append(describe_sample_noise(method, experiment.rounds))
    on_flower = experiment.engine == "flower" or experiment.flower.clients
    if on_flower and any(method.noises_mean for method in experiment.build_methods()):
        promises.append("with noise of the server, no round is repeated: flower.repeats is 0")
    return f"\n{'':<12}".join(promise for promise in promises if promise)


def _record(experiment: Experiment, data: FederatedData, plan: Plan) -> str:
    """Which clients get rows of their own; nothing where all do, unless these are many."""
    rounds = len(experiment.methods) * len(experiment.seeds) * experiment.rounds
    participants = rounds * plan.cohort_size
    if experiment.record.of(data.num_clients, experiment.seeds[0]) is not None:
        kept = experiment.record.clients or 0
        rows = participants * kept // data.num_clients
        return (
            f"rows of {kept:,} of {data.num_clients:,} clients: {rows:,} of "
            f"{participants:,} participants; counts and sums of the others"
        )
    if participants < MANY_ROWS:
        return ""
    return f"{participants:,} rows of participants; record.clients writes those of some clients"


def _work(experiment: Experiment) -> str:
    counts = {
        "method": len(experiment.methods),
        "seed": len(experiment.seeds),
        "round": experiment.rounds,
    }
    return " × ".join(_counted(count, what) for what, count in counts.items())


def _cost(experiment: Experiment, data: FederatedData, plan: Plan, spec: ModelSpec) -> str:
    """What the run takes in all, whatever the machine; nothing where the samples are elsewhere."""
    if not _has_client_data(data):
        return ""
    rounds = len(experiment.methods) * len(experiment.seeds) * experiment.rounds
    steps = total_steps(experiment, data, plan.cohort_size)
    federated = [method for method in experiment.build_methods() if method.control is None]
    cohorts = len(federated) * len(experiment.seeds) * experiment.rounds
    sent = _megabytes(cohorts * plan.cohort_size * FLOAT_BYTES * spec.size)
    models = f"{sent} of models to the clients and as much back"
    return f"{_counted(rounds, 'round')} in all: about {steps:,} training steps, {models}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"

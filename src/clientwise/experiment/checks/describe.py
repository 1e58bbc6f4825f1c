"""What an experiment would run, and what of it is doubtful, in a few lines for `clientwise check`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Iterator

import torch
from torch import Tensor, nn

from ...core.aggregation.sums import pairs_of
from ...core.criteria import is_claimed
from ...core.method import Method, Plan, accountant_of
from ...core.privacy import gaussian_epsilon
from ...core.training import declared_of, part_of
from ...data.arrays import first_few
from ...data.federated import FederatedData
from ...data.summary import summarise, uncovered
from ...engine.device import memory_errors_explained, pick_device
from ...engine.executor import DeviceExecutor
from ...limits import gigabytes
from ...models.modules import count_parameters, outputs_of
from ...record.facts import StepsRow, steps_in_words, unequal_steps
from ...registry import listed
from ..build.data import build_data
from ..build.engine import build_executor, build_plan, lanes_that_fit
from ..config.methods import MethodSettings
from ..config.schema import Experiment
from ..config_file import METHODS, write_out
from .against_data import fixed_bytes, largest_round, validate
from .combinations import needs_server_set

WORTH_SAYING = 10**8  # bytes
ROW_DELTA = 1e-5  # at which ε of a training sample is given
TITLE = 12  # characters of a line's title


@memory_errors_explained()
def describe(experiment: Experiment, own_data: FederatedData | None = None) -> list[str]:
    """What an experiment would run, found by building its first seed; see `validate`.

    Args:
        experiment: of a matrix, the one in the first column.
        own_data: samples of the user's own.
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
        "clients": _clients(data, plan.cohort_size, len(hostile)),
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
    warnings = doubts(experiment, data, hostile, executor)
    found += [("warning", text) for text in [*warnings, *unequal_steps(steps)]]
    return [f"{title:<{TITLE}}{text}" for title, text in found]


def optimizers_in_words(experiment: Experiment) -> str:
    """The clients' optimizers with their learning rates, and of which methods where these differ."""
    methods: dict[str, list[str]] = {}
    for method in experiment.build_methods():
        optimizer, rate = method.training.optimizer, method.training.learning_rate
        default = " (its default)" if rate == declared_of(optimizer).learning_rate else ""
        text = f"{part_of(optimizer).name}, learning rate {rate:g}{default}"
        methods.setdefault(text, []).append(method.name)
    if len(methods) == 1:
        return next(iter(methods))
    return "; ".join(f"{text}: {listed(names)}" for text, names in methods.items())


def _data(experiment: Experiment, data: FederatedData) -> str:
    source = "the members' files" if _has_client_data(data) else "the server's file"
    if experiment.data:
        source = experiment.data.name
    text = f"{source}: {len(data.samples.targets):,} samples, {data.samples.problem.described}"
    if unused := summarise(data).unused:
        left_out = "clients with fewer than partition.minimum samples are left out"
        text += f"; {unused:,} of them unused ({left_out})"
    return text


def _has_client_data(data: FederatedData) -> bool:
    """Whether the clients' samples are here; the server of a deployment has none of them."""
    return bool(data.train.sizes.any())


def _clients(data: FederatedData, cohort: int, hostile: int) -> str:
    sizes = data.train.sizes
    held = "data of their own, elsewhere"
    if _has_client_data(data):
        held = f"{sizes.min()} to {sizes.max()} training samples each"
    return f"{data.num_clients} with {held}, {cohort} in a round, {hostile} hostile"


def _server_set(experiment: Experiment, data: FederatedData) -> str:
    held = {"weigh by": data.weigh, "report on": data.report}
    parts = [f"{len(one.indices):,} samples to {use}" for use, one in held.items() if one]
    text = ", ".join(parts) or "none"
    return text + "; the cohort evaluates models" * (experiment.server_set.source == "clients")


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
    kinds: dict[str, dict[str, None]] = {"claimed by the clients": {}, "measured by the server": {}}
    claimed, measured = kinds.values()
    for method in experiment.build_methods():
        for criterion in method.criteria if method.control is None else ():
            (claimed if is_claimed(criterion.part) else measured)[criterion.name] = None
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names)


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
            found.append(
                f"{method.name}: {text} at δ = {privacy.delta:g} ({what}; {where}; {drawn})"
            )
        if training.sample_noise is not None:  # every step is 1/z-Gaussian differentially private
            mu = math.sqrt(rounds * training.epochs) / training.sample_noise
            text = f"μ = {mu:.2g}, ε = {gaussian_epsilon(mu, ROW_DELTA):.2g} at δ = {ROW_DELTA:g}"
            of = f"for one training sample, given its class, after {rounds} rounds"
            found.append(f"{method.name}: {text} {of}")
    return f"\n{'':<{TITLE}}".join(found)


def _work(experiment: Experiment) -> str:
    counts = {
        "method": len(experiment.methods),
        "seed": len(experiment.seeds),
        "round": experiment.rounds,
    }
    return " × ".join(f"{count:,} {what}{'s' * (count > 1)}" for what, count in counts.items())


# What runs, but gives results that are wrong in silence --------------------------------------------------

MOST_VALUES = 2**22  # of inputs that are compared: larger data need not fit into memory
MOST_ROWS = 100_000  # likewise: a run with more must not begin later
NOTABLE = 0.01  # share of rows from which equal ones are worth a line
MOST_NUMBERS = 20  # different targets of a regression that may be classes
MOST_DIGITS = 10  # integer classes of a smaller range are not doubted
FEWEST_TO_WEIGH = 20  # held-out samples
TRIED = 100  # samples
ROUNDING = 1e-4  # of probabilities that sum to 1


def doubts(
    experiment: Experiment,
    data: FederatedData,
    hostile: Collection[int],
    executor: DeviceExecutor,
) -> list[str]:
    """What is probably not meant, found by the data and the network of one seed."""
    found = list(_about_methods(experiment, data))
    if len(hostile) == data.num_clients:
        found.append(f"all {data.num_clients} clients are hostile: no honest update is sent")
    if not len(data.train.indices):  # the server of a deployment
        return found
    if lacking := uncovered(data, data.weigh):
        found.append(lacking)
    found += _about_equal_rows(data)
    found += _about_targets(data)
    for settings in experiment.methods:
        evidence = settings.evidence
        if evidence and evidence.options.get("backdoors") and executor.samples.integers:
            found.append(f"{settings.name}: no scan for backdoors: the inputs are token ids")
    found += _about_network(data, executor)
    return found


def _about_methods(experiment: Experiment, data: FederatedData) -> Iterator[str]:
    weighing = len(data.weigh.targets) if data.weigh is not None else 0
    for settings in experiment.methods:
        name = settings.name
        if name in METHODS:
            named = MethodSettings.model_validate(write_out([name])[0])
            own = {part.name for *_, part in settings.parts()}
            if added := own - {part.name for *_, part in named.parts()}:
                said = f"has {', '.join(sorted(added))} of its own, and tables call it {name}"
                yield f"the method {name!r} {said}: give it another name, with like = {name!r}"
        if experiment.keep == "best" and settings.trains_model_on_server:
            said = "the held-out loss (keep) is a training loss: the server trains on"
            yield f"{name}: {said} these samples"
        if needs_server_set(settings) and 0 < weighing < FEWEST_TO_WEIGH:
            said = f"the server weighs by {weighing} held-out samples, fewer than {FEWEST_TO_WEIGH}"
            said += ": weights then depend on chance"
            if settings.fine_tune is not None:
                said += ", and fine_tune trains the model on them: FedAvg may be better"
            yield f"{name}: {said}. Give or hold out more samples"
        if settings.privacy and data.samples.ids is not None:
            said = "the server's held-out samples are of the same ids as the clients' and get no"
            yield f"{name}: {said} noise: ε covers the clients' training samples alone (docs/privacy.md)"


def _about_equal_rows(data: FederatedData) -> Iterator[str]:
    """Samples to test on, or to weigh by, that are also training samples."""
    inputs = data.samples.inputs
    if inputs.numel() > MOST_VALUES or len(inputs) > MOST_ROWS:
        return
    tested = [data.test.indices]
    if data.report is not None:
        tested.append(data.report.indices)
    held = {"training": data.train.indices, "test": torch.cat(tested)}
    pairs = [("test", "training", "the reported results are too good")]
    if data.weigh is not None:
        held["held-out"] = data.weigh.indices
        pairs.append(("held-out", "training", "the weights favour the clients that have them"))
        pairs.append(("test", "held-out", "the reported results are too good"))
    for kind, other, so in pairs:
        # The same samples by number are meant (`server_set.source`)
        rows = _rows(data, held[kind][~torch.isin(held[kind], held[other])])
        known = {*_rows(data, held[other])}
        equal = sum(row in known for row in rows)
        if equal > NOTABLE * len(rows):
            said = f"{equal:,} of {len(rows):,} {kind} samples are also {other} samples"
            yield f"{said} (same inputs and target): if these are the same cases, {so}"


def _rows(data: FederatedData, indices: Tensor) -> list[bytes]:
    """Inputs and target of every sample, as bytes."""
    rows = indices.cpu()
    inputs = data.samples.inputs[rows].cpu().numpy()
    targets = data.samples.targets[rows].numpy()
    return [row.tobytes() + target.tobytes() for row, target in zip(inputs, targets, strict=True)]


def _about_targets(data: FederatedData) -> Iterator[str]:
    """Numbers to predict that are probably classes, or masks; classes that are probably numbers."""
    samples = data.samples
    predicted = samples.problem.predicts
    if predicted not in ("numbers", "classes"):
        return
    values, counts = torch.unique(samples.targets, return_counts=True)
    if predicted == "classes":
        if samples.table is not None:
            try:
                values = torch.tensor([float(name) for name in samples.table.classes])
            except ValueError:  # words
                return
        width = values[-1] - values[0]
        has_rare = len(values) <= width or bool((counts == 1).any())
        if len(values) < 3 or width < MOST_DIGITS or not has_rare:
            return
        hint = 'For counts or measurements, problem = "regression"; in a config with a table, kind = "regression"'
    else:
        if len(values) > MOST_NUMBERS or bool((values % 1).any()):
            return
        hint = (
            "For classes or masks give integers (a column of a frame: astype(int)); in a config with a table, kind = "
            '"classification"'
        )
    shown = first_few([f"{one:g}" for one in values.tolist()])
    yield f"targets have {len(values)} different values ({shown}) and are predicted as {predicted}. {hint}"


def _about_network(data: FederatedData, executor: DeviceExecutor) -> Iterator[str]:
    """Probabilities where the loss needs logits."""
    if data.samples.problem.predicts not in ("classes", "labels", "masks"):
        return
    module = executor.flat.module.eval()
    inputs = executor.samples.network_inputs(data.train.indices[:TRIED].to(executor.device))
    with torch.no_grad():
        outputs = outputs_of(module, inputs).float()
    is_softmax = outputs.ndim > 1 and outputs.shape[1] > 1 and bool((outputs >= 0).all())
    is_softmax = is_softmax and bool(((outputs.sum(1) - 1).abs() < ROUNDING).all())
    if is_softmax or isinstance(list(module.modules())[-1], nn.Sigmoid):
        yield (
            "the network ends in a softmax or sigmoid: the loss applies it again, and training is slow. Return "
            "logits, without that layer"
        )


# Steps ----------------------------------------------------------------------------------------------------


def count_steps(experiment: Experiment, data: Iterable[FederatedData]) -> list[StepsRow]:
    """The steps of every method in a round, over the data of all seeds.

    The control "pooled" is left out: it has neither clients nor a server.
    """
    held = list(data)
    found = []
    for settings in experiment.methods:
        method = settings.build(experiment.training)
        if method.control == "pooled":
            continue
        steps: list[int] = []
        if method.control in (None, "alone"):  # else no client trains by itself
            for one in held:
                sizes = one.train.sizes
                steps += method.training.num_steps(sizes[sizes > 0]).tolist()
        server = max(_server_steps(settings, method, one) for one in held)
        middle = statistics.median(steps) if steps else None
        least, most = min(steps, default=None), max(steps, default=None)
        found.append(StepsRow(method.name, least, middle, most, server))
    return found


def _server_steps(settings: MethodSettings, method: Method, data: FederatedData) -> int:
    """Steps on the server's samples; evidence that needs them learns weights, not a model."""
    training = method.fine_tune
    if training is None and settings.trains_model_on_server:
        training = method.training
    if training is None or data.weigh is None:
        return 0
    return int(training.num_steps(data.weigh.sizes))

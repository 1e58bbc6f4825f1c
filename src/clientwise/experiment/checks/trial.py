"""Try one client and the model before a run: networks that do not fit, parts that do not work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ...core.aggregation.rules import Rule, fault_in
from ...core.criteria import Arrivals, ClientFacts, Criterion
from ...core.method import Method
from ...core.objective.problem import Problem
from ...core.seeding import client_keys
from ...core.training import is_elementwise
from ...core.types import Evaluation, LocalTraining
from ...data.arrays import NamedInput, shape_hint
from ...data.federated import FederatedData, Samples
from ...engine.executor import DeviceExecutor
from ...engine.jobs import TrainJob
from ...engine.probes import with_input_type
from ...engine.wrapping import EmbeddedEngine, WrappingEngine
from ...limits import gigabytes, memory
from ...models.flat import spec_of
from ...models.modules import check_batch, outputs_of
from ..build.engine import count_outputs
from ..config.messages import Issue
from ..config.schema import Experiment
from .round_memory import memory_issues

SCHEDULE_BYTES = 16  # per sample and epoch: which sample comes when
MOVED = 0.9  # what the models of the later clients are scaled by
TRIED_UPDATES = 3  # of a rule
TRIED_SAMPLES = 8  # in the step that a client trains


def size_issues(experiment: Experiment, module: nn.Module, data: FederatedData) -> Iterator[Issue]:
    """What takes more memory than there is, and a model that does not take the samples."""
    if not len(data.samples.inputs):  # a server whose clients are elsewhere
        return
    batch = 0
    for key, training, count in _trainings(experiment, data):
        batch = max(batch, min(training.batch_size or count, count))
        needed = SCHEDULE_BYTES * training.epochs * count
        if needed > memory():
            order = f"the order of {count:,} samples in that many epochs"
            message = f"{order} takes {gigabytes(needed)} of memory; ask for fewer epochs"
            yield f"{key}.epochs = {training.epochs}", message
    yield from memory_issues(experiment, data, spec_of(module))
    yield from _output_issues(module, data, batch)


def _trainings(
    experiment: Experiment, data: FederatedData
) -> Iterator[tuple[str, LocalTraining, int]]:
    """Every training of the experiment: its key, its options, its largest number of samples."""
    largest = int(data.train.sizes.max())
    everything = len(data.train.indices)
    weighing = len(data.weigh.indices) if data.weigh else 0
    for index, method in enumerate(experiment.build_methods()):
        pooled = method.control == "pooled"
        yield f"methods[{index}].training", method.training, everything if pooled else largest
        if method.fine_tune is not None:
            count = everything if pooled else weighing
            yield f"methods[{index}].fine_tune", method.fine_tune, count


def _output_issues(module: nn.Module, data: FederatedData, batch: int) -> Iterator[Issue]:
    """What is wrong with the model, and with its output for one sample."""
    if issues := list(_parameter_issues(module)):
        yield from issues
        return
    samples = with_input_type(data.samples, module)
    sample = samples.network_inputs(_largest(samples))
    try:
        check_batch(module, sample, batch)
        with torch.no_grad():
            output = outputs_of(module.eval(), sample)
    except (ValueError, TypeError) as error:  # ours, or about what `forward` takes or returns
        yield "model", str(error).splitlines()[0]
        return
    except Exception as error:  # PyTorch's, or whatever a user's own network raises
        yield "model", f"does not take samples {_described(samples)} ({_explained(error, samples)})"
        return
    wanted = count_outputs(samples)
    shape = output.shape[1:] if output.ndim > 1 else output.shape
    if not samples.problem.takes(shape, samples.targets.shape[1:]):
        returned = f"{output.numel()} number{'s' * (output.numel() != 1)}"
        needed = f"{wanted} {'is' if wanted == 1 else 'are'} needed"
        if output.numel() == wanted:
            returned = f"numbers of shape {tuple(shape)}"
            needed = "another shape is needed"
        why = samples.problem.why_outputs(samples.targets, output.numel())
        yield "model", f"returns {returned} for a sample; {needed}: {why}"


def _parameter_issues(module: nn.Module) -> Iterator[Issue]:
    """Networks without parameters to train, or with parameters that are no numbers."""
    parameters = dict(module.named_parameters())
    if not any(one.requires_grad for one in parameters.values()):
        yield "model", "has no parameters to train"
    for name, one in parameters.items():
        if not one.is_meta and not bool(one.isfinite().all()):
            yield "model", f"its parameter {name} has NaN or Inf before training"
            return


def _largest(samples: Samples) -> Tensor:
    """The index [1] of a sample: of integers, the one with the largest, which an embedding may not have."""
    row = 0
    if samples.integers or samples.parts:
        row = int(samples.inputs.flatten(1).amax(1).argmax())
    return torch.tensor([row])


def _described(samples: Samples) -> str:
    """Shape and type of a sample, as the network is given it."""
    if samples.parts:
        return "with " + ", ".join(_input_described(part) for part in samples.parts)
    kind = "integers" if samples.integers else "float32"
    return f"of shape {samples.input_shape} ({kind})"


def _input_described(part: NamedInput) -> str:
    return f"{part.name} {part.shape} ({'integers' if part.is_integer else 'float32'})"


def _explained(error: Exception, samples: Samples) -> str:
    """An error in one line, with what to do where it is known."""
    text = _first_line(error)
    if isinstance(error, IndexError) and (samples.integers or samples.parts):
        largest = int(samples.inputs.max())
        text += f"; the largest number is {largest}: an nn.Embedding for it needs num_embeddings > {largest}"
    if hint := shape_hint(samples.inputs, samples.targets):
        text += f"; {hint}"
    elif samples.inputs.ndim == 1:
        text += "; a sample is one number: for a row of one column, pass inputs[:, None]"
    return text


def engine_issues(
    experiment: Experiment, engine: EmbeddedEngine, methods: Sequence[int]
) -> Iterator[Issue]:
    """What evaluating a model and measuring criteria shows, for the methods at these places."""
    try:
        engine.evaluate([0], engine.initial_model[None])
    except (RuntimeError, ValueError, IndexError) as error:
        yield "model", f"does not fit these samples ({_explained(error, engine.data.samples)})"
        return
    built = experiment.build_methods()
    if issues := list(_training_issues(built, engine)):
        yield from issues
        return
    for index in methods:
        yield from _method_issues(f"methods[{index}]", built[index], engine)


def _training_issues(methods: Sequence[Method], engine: EmbeddedEngine) -> Iterator[Issue]:
    """What one training step of one client shows."""
    executor = _executor(engine)
    if executor.pairs:
        for index, method in enumerate(methods):
            if method.training.batch_size == 1:
                message = "must be at least 2: batch norm cannot train on one sample"
                yield f"methods[{index}].training.batch_size = 1", message
    held = engine.data.train
    client = int(held.sizes.argmax())
    mine = held.slice(client)
    count = min(
        TRIED_SAMPLES, methods[0].training.batch_size or TRIED_SAMPLES, int(held.sizes.max())
    )
    if not count:  # no client's samples are here
        return
    job = TrainJob(
        starts=engine.initial_model[None],
        indices=held.indices[mine][:count],
        targets=held.targets[mine][:count],
        sizes=torch.tensor([count]),
        keys=client_keys(engine.seed, "training", 1, [client]),
        training=LocalTraining(learning_rate=methods[0].training.learning_rate),
        losses=[engine.problem.loss],
    )
    (result,) = executor.train([job])
    who = engine.data.called(client)
    if isinstance(result, Exception):
        reason = _explained(result, executor.samples)
        if "does not require grad" in reason:
            reason += (
                "; no output depends on a parameter: remove detach() and no_grad() from `forward`"
            )
        yield "model", f"cannot be trained on {count} samples of {who} ({reason})"
        return
    is_finite = bool(result.models.isfinite().all())
    for key, one in _with_options(methods, engine, job).items():
        (result,) = executor.train([one])
        if isinstance(result, Exception):
            reason = _first_line(result)
            yield key, f"fails on {count} samples of {who} ({reason})"
        elif is_finite and not bool(result.models.isfinite().all()):
            yield (
                key,
                f"gives NaN or Inf: after one step on {count} samples of {who}, so does the model",
            )


def _with_options(
    methods: Sequence[Method], engine: EmbeddedEngine, job: TrainJob
) -> dict[str, TrainJob]:
    """The job with each loss, transform and optimizer that a user may have written, by key."""
    jobs: dict[str, TrainJob] = {}
    for index, method in enumerate(methods):
        training = method.training
        place = f"methods[{index}].training"
        if method.loss is not None:
            counts = engine.label_counts if method.counts_labels else None
            loss = method.first_loss(engine.problem, counts)
            jobs[f"{place}.loss"] = replace(job, losses=[loss])
        if training.transform is not None:
            transformed = replace(job.training, transform=training.transform)
            jobs[f"{place}.transform"] = replace(job, training=transformed)
        if not is_elementwise(training.optimizer):
            optimized = replace(job.training, optimizer=training.optimizer)
            jobs[f"{place}.optimizer"] = replace(job, training=optimized)
    return jobs


def _executor(engine: EmbeddedEngine) -> DeviceExecutor:
    while isinstance(engine, WrappingEngine):
        engine = engine.inner
    assert isinstance(engine.executor, DeviceExecutor)
    return engine.executor


def _method_issues(method_key: str, method: Method, engine: EmbeddedEngine) -> Iterator[Issue]:
    tried = list(range(min(2, engine.num_clients)))  # two, so that one value for all is noticed
    facts = _facts(tried, method, engine)
    for index, criterion in enumerate(method.criteria):
        key = f"{method_key}.criteria[{index}]"
        if criterion.measured_by == "server":
            together = _arrivals(tried, method, engine)
            alone = _arrivals(tried[:1], method, engine)
            yield from _criterion_issues(key, criterion, together, alone, engine.problem)
        elif len(facts.owner):  # else no client's samples are here
            one = _facts(tried[:1], method, engine)
            yield from _criterion_issues(key, criterion, facts, one, engine.problem)
    if method.rule is not None:
        yield from _rule_issues(f"{method_key}.rule", method.rule, engine.spec.size)


def _facts(clients: Sequence[int], method: Method, engine: EmbeddedEngine) -> ClientFacts:
    """Clients as they see themselves, before any training."""
    losses = torch.zeros(len(clients))
    facts = engine.facts(list(clients), losses, engine.initial_model, method.training)
    return replace(facts, seconds=torch.ones(len(clients)))


def _arrivals(clients: Sequence[int], method: Method, engine: EmbeddedEngine) -> Arrivals:
    """Clients as the server sees them: the first sends the initial model, others a changed one."""

    def judge(models: Tensor) -> Evaluation:
        evaluation = engine.evaluate_server(models, "weigh")
        return engine.evaluate([0], models) if evaluation is None else evaluation

    rows = list(clients)
    models = engine.initial_model.repeat(len(rows), 1)
    models[1:] *= MOVED
    return Arrivals(
        tuple(clients),
        models,
        engine.initial_model,
        engine.spec,
        judge,
        memory={name: one.first(engine.num_clients)[rows] for name, one in method.memories.items()},
        attributes={name: values[rows] for name, values in engine.attributes.items()},
        server_update=lambda: torch.zeros_like(engine.initial_model),
        metric=engine.problem.weighed_by,
        seconds=torch.ones(len(rows), dtype=torch.float64),
        ages=torch.zeros(len(rows), dtype=torch.float64),
    )


def _criterion_issues(
    key: str,
    criterion: Criterion,
    seen: ClientFacts | Arrivals,
    alone: ClientFacts | Arrivals,
    problem: Problem,
) -> Iterator[Issue]:
    """What is wrong with a criterion on the first clients; `alone` is the first of them."""
    name = criterion.name
    count = len(seen.num_samples) if isinstance(seen, ClientFacts) else len(seen.client_ids)
    try:
        values = criterion.measure(seen)
        single = None if "whole_cohort" in criterion.needs else criterion.measure(alone)
        fault = criterion.fault_in(values, count, problem)
    except Exception as error:  # a user's own criterion may raise anything
        yield key, _reason(criterion, error)
        return
    if fault:
        yield key, f"{name} {fault}"
    elif single is not None and _differs(single, values):
        hint = "declare needs={'whole_cohort'}"
        if criterion.measured_by == "client":
            hint = "measure it on the server (measured_by='server', needs={'whole_cohort'})"
        yield key, f"{name} depends on the other clients: {hint}"


def _differs(alone: Tensor, together: Tensor) -> bool:
    """Whether the first client's value changes with others beside it, by more than rounding."""
    return not torch.allclose(alone[:1].double(), together[:1].double(), rtol=0.05, atol=1e-6)


def _rule_issues(key: str, rule: Rule, size: int) -> Iterator[Issue]:
    count = TRIED_UPDATES
    weights = torch.full((count,), 1 / count, dtype=torch.float64)
    try:
        fault = fault_in(rule(torch.zeros(count, size), weights, {}), count, size)
    except Exception as error:  # a user's own rule may raise anything
        fault = f"{type(error).__name__}: {error}"
    if fault:
        yield key, fault


def _reason(criterion: Criterion, error: Exception) -> str:
    missing = error.args[0] if isinstance(error, KeyError) and error.args else None
    if missing is None:
        return f"{criterion.name} failed: {type(error).__name__}: {error}"
    if str(missing).isidentifier():
        return f"{criterion.name}: clients have no attribute {missing!r}; add it to [attributes]"
    return str(missing)  # a message of ours


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"

"""What runs, but is probably not meant: a line for each, in `check` and when a run begins."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...data.arrays import shape_hint
from ...data.federated import FederatedData
from ...engine.executor import DeviceExecutor
from ...models.modules import outputs_of
from ..build.engine import build_plan, foreign_types
from ..config.methods import MethodSettings
from ..config.named import METHODS, near_miss, own_keys, write_out
from ..config.schema import Experiment
from .adapters import adapter_doubts
from .combinations import needs_server_set
from .data_doubts import data_doubts
from .schedules import schedule_doubts

MOST_VALUES = 20  # different targets of a regression that may be classes
FEW_SAMPLES = 10  # of a class
MOST_NAMED = 3  # of clients, in a line
TRIED_SAMPLES = 16  # that the network predicts
TRIED_PIXELS = 100  # samples
WHITE = 255
ROUNDING = 1e-4  # of probabilities that sum to 1
FEWEST_TO_WEIGH = 20  # held-out samples
ABOUT_METHODS = ("name", "tuned")  # what a method is called and where it is from, not what it does


def doubts(
    experiment: Experiment,
    data: FederatedData,
    hostile: Collection[int],
    executor: DeviceExecutor,
) -> list[str]:
    """What is probably not meant, found by the data and the network of one seed."""
    found = list(_about_names(experiment.methods))
    found += _about_sampling(experiment, data.num_clients)
    found += _about_equal_methods(experiment.methods)
    found += schedule_doubts(experiment)
    found += _about_selection(experiment)
    if len(hostile) == data.num_clients:
        found.append(f"all {data.num_clients} clients are hostile: no honest update is sent")
    if not len(data.train.indices):  # the server of a deployment
        return found
    return [
        *found,
        *data_doubts(data),
        *_about_targets(data),
        *_about_clients(data),
        *_about_weighing(experiment, data),
        *_about_shapes(data),
        *_about_pixels(data, executor),
        *_about_types(experiment, executor),
        *_about_outputs(data, executor),
        *_about_single_samples(experiment, data, executor),
        *adapter_doubts(experiment, executor.spec),
    ]


def _about_sampling(experiment: Experiment, num_clients: int) -> Iterator[str]:
    """Methods that draw clients by their scores: what that does to the model."""
    plan = build_plan(experiment, num_clients, experiment.seeds[0])
    for method in experiment.build_methods():
        if method.sampling is None:
            continue
        if plan.cohort_size >= plan.members(num_clients):
            said = "a round asks all clients, so none is drawn by its score"
            yield f"{method.name}: {said}. Set federation.fraction, or remove sampling"
        elif method.sampling.averages_equally:
            said = "clients with higher scores are drawn more often: the model favours their data"
            yield f"{method.name}: {said} (docs/methods.md)"
        else:
            said = "clients with higher scores are drawn more often and weigh more"
            yield f'{method.name}: {said}: a criterion counts twice. Set sampling.average = "uniform"'


def _about_names(methods: Sequence[MethodSettings]) -> Iterator[str]:
    """Methods whose names are nearly those of others, or are of others."""
    names = [method.name for method in methods]
    for name, method in zip(names, methods, strict=True):
        changed = _changed_from(name, method)
        if changed:
            said = (
                f"the method {name!r} has its own {', '.join(changed)}, and tables call it {name}"
            )
            yield f"{said}: give it another name, with like = {name!r}"
        meant = near_miss(name)
        if meant and not own_keys(meant) <= {*method.unlike_fedavg()}:
            yield f"the method {name!r} is your own, and not {meant}: start from it with like = {meant!r}"
    spelt: dict[str, str] = {}
    for name in names:
        other = spelt.setdefault(name.casefold(), name)
        if other != name:
            yield f"the methods {other!r} and {name!r} differ in upper and lower case alone"


def _changed_from(name: str, method: MethodSettings) -> list[str]:
    """What makes a method another one than the method of the library that has its name.

    Options and settings of the training may be anybody's own, and some of its criteria be left out.
    """
    if name not in METHODS:
        return []
    (table,) = write_out([name])
    named = MethodSettings.model_validate(table)
    changed = []
    promised = {part.name for part in named.criteria}
    if not {part.name for part in method.criteria} <= promised:
        changed.append("criteria")
    for key in ("evidence", "rule", "server_step"):
        mine, theirs = getattr(method, key), getattr(named, key)
        if (mine and mine.name) != (theirs and theirs.name):
            changed.append(key)
    return changed


def _about_equal_methods(methods: Sequence[MethodSettings]) -> Iterator[str]:
    """Methods with the same settings under two names."""
    known: list[tuple[str, dict[str, Any]]] = []
    for method in methods:
        settings = {key: one for key, one in method.to_dict().items() if key not in ABOUT_METHODS}
        other = next((name for name, same in known if same == settings), None)
        if other is not None:
            yield f"the methods {other!r} and {method.name!r} have the same settings: they give the same results"
        known.append((method.name, settings))


def _about_selection(experiment: Experiment) -> Iterator[str]:
    """A round that is chosen by the loss on samples that the server trains on."""
    chosen = {
        "stop_early": experiment.stop_early is not None,
        'keep = "best"': experiment.keep == "best",
    }
    keys = " and ".join(key for key, is_set in chosen.items() if is_set)
    names = [method.name for method in experiment.methods if method.trains_model_on_server]
    if keys and names:
        said = f"the held-out loss ({keys}) is a training loss: the server trains on these samples"
        yield f"{', '.join(names)}: {said}"


def _about_weighing(experiment: Experiment, data: FederatedData) -> Iterator[str]:
    """Too few held-out samples for methods that use them."""
    count = len(data.weigh.targets) if data.weigh is not None else 0
    using = [method.name for method in experiment.methods if needs_server_set(method)]
    if using and 0 < count < FEWEST_TO_WEIGH:
        said = f"{', '.join(using[:MOST_NAMED])}: the server weighs by {count} held-out samples"
        yield f"{said}, fewer than {FEWEST_TO_WEIGH}: weights then depend on chance. Give or hold out more samples"


def _about_targets(data: FederatedData) -> Iterator[str]:
    targets = data.samples.targets
    if data.samples.problem.num_classes:
        least = int(targets.min())
        if least > 0:
            said = f"labels begin at {least}: no sample has a lower one, and the network has outputs for them"
            yield f"{said}. Subtract {least} from all labels"
        if data.samples.table and _may_be_numbers(data.samples.table.classes, len(targets)):
            classes = len(data.samples.table.classes)
            said = f"the target has {classes} different numbers, and each of them is a class"
            yield f'{said}. To predict a number: kind = "regression" (a column of a frame: astype(float))'
        return
    if data.samples.problem.predicts != "numbers":
        return
    if targets.ndim == 2 and targets.shape[1] > 1 and _are_probabilities(targets):
        said = f"targets of shape {tuple(targets.shape)} sum to 1 like probabilities, and are predicted as numbers"
        yield f"{said}. For classes give integers: targets.argmax(1)"
    if targets.ndim > 2 and bool(((targets == 0) | (targets == 1)).all()):
        said = (
            f"targets of shape {tuple(targets.shape)} are all 0 or 1, and are predicted as numbers"
        )
        yield f"{said}. For masks give integers: targets.long()"
    if targets.ndim > 1:
        return
    values = sorted(set(targets.tolist()))
    if len(values) <= MOST_VALUES and all(value.is_integer() for value in values):
        shown = ", ".join(f"{value:g}" for value in values[:MOST_NAMED])
        more = ", ..." if len(values) > MOST_NAMED else ""
        said = f"targets have {len(values)} different values ({shown}{more}) and are predicted as numbers"
        yield (
            f"{said}. For classes give integers (a column of a frame: astype(int)); in a config with "
            'a table, kind = "classification"'
        )


def _are_probabilities(rows: Tensor) -> bool:
    sums = rows.sum(1)
    return bool((rows >= 0).all()) and bool(((sums - 1).abs() < ROUNDING).all())


def _may_be_numbers(classes: Sequence[str], samples: int) -> bool:
    """Whether classes are many numbers: with decimals, or with few samples each."""
    try:
        numbers = [float(name) for name in classes]
    except ValueError:
        return False
    if len(numbers) <= MOST_VALUES:
        return False
    has_decimals = not all(number.is_integer() for number in numbers)
    return has_decimals or samples < FEW_SAMPLES * len(numbers)


def _about_clients(data: FederatedData) -> Iterator[str]:
    """Clients whose training samples have one label."""
    if not data.samples.problem.num_classes:
        return
    sizes = data.train.sizes
    owner = torch.repeat_interleave(torch.arange(data.num_clients), sizes)
    labels = data.train.targets.cpu()
    nothing = torch.zeros(data.num_clients, dtype=labels.dtype)
    lowest, highest = (
        nothing.scatter_reduce(0, owner, labels, extreme, include_self=False)
        for extreme in ("amin", "amax")
    )
    alone = ((lowest == highest) & (sizes > 0)).nonzero().flatten().tolist()
    if alone:
        counted = f"{len(alone)} of {data.num_clients} clients"
        yield f"{counted} train on samples of one class only: {_listed(alone, data)}"


def _about_shapes(data: FederatedData) -> Iterator[str]:
    hint = shape_hint(data.samples.inputs, data.samples.targets)
    if hint and not data.samples.parts:
        yield hint


def _about_pixels(data: FederatedData, executor: DeviceExecutor) -> Iterator[str]:
    """Pixels from 0 to 255 as they are: networks learn little from inputs as large as these."""
    samples = data.samples
    if samples.scale != 1 or samples.parts or samples.table or executor.samples.integers:
        return
    some = samples.inputs[data.train.indices[:TRIED_PIXELS].to(samples.inputs.device)]
    if some.dtype != torch.uint8 and some.ndim < 3:
        return
    largest = some.max()
    if WHITE / 2 < largest <= WHITE and some.min() >= 0 and not (some % 1).any():
        said = f"inputs are whole numbers up to {int(largest)}, like pixels: divide them by {WHITE}"
        yield f"{said} (scale = 0.0039 of the dataset `arrays`), unless the network does"


def _about_types(experiment: Experiment, executor: DeviceExecutor) -> Iterator[str]:
    if types := foreign_types(experiment, executor.samples):
        yield f"the network has parameters of {', '.join(types)}: they are trained as float32"


def _about_outputs(data: FederatedData, executor: DeviceExecutor) -> Iterator[str]:
    """Probabilities where the loss needs logits: it applies a softmax or sigmoid itself."""
    instead = "the loss applies it again, and training is slow. Return logits, without that layer"
    if data.samples.problem.predicts in ("labels", "masks"):
        last = list(executor.flat.module.modules())[-1]
        if isinstance(last, nn.Sigmoid | nn.Softmax | nn.Softmax2d):
            yield f"the network ends in a {type(last).__name__.lower()}: {instead}"
    if not data.samples.problem.num_classes:
        return
    outputs = _outputs(data, executor)
    if outputs.shape[-1] > 1:
        sums = outputs.sum(-1)
        if bool((outputs >= 0).all()) and bool(((sums - 1).abs() < ROUNDING).all()):
            yield f"the network ends in a softmax (its outputs sum to 1): {instead}"
    elif isinstance(list(executor.flat.module.modules())[-1], nn.Sigmoid):
        yield f"the network ends in a sigmoid: {instead}"


@torch.no_grad()
def _outputs(data: FederatedData, executor: DeviceExecutor) -> Tensor:
    """What the network predicts for some training samples, [n, outputs]."""
    indices = data.train.indices[:TRIED_SAMPLES].to(executor.device)
    inputs = executor.samples.network_inputs(indices)
    return outputs_of(executor.flat.module.eval(), inputs).float()


def _about_single_samples(
    experiment: Experiment, data: FederatedData, executor: DeviceExecutor
) -> Iterator[str]:
    """Batches of one sample, on which batch norm cannot train."""
    if not executor.pairs:
        return
    sizes = data.train.sizes
    single = (sizes == 1).nonzero().flatten().tolist()
    if single:
        yield f"batch norm cannot train on one sample: no update is sent by {_listed(single, data)}"
    batches = {method.training.batch_size for method in experiment.build_methods()} - {None}
    ending = [client for client, size in enumerate(sizes.tolist()) if _ends_alone(size, batches)]
    if ending:
        said = "an epoch ends with a batch of one sample, which batch norm cannot train on"
        yield f"{said}: a sample of the batch before is added to it, for {_listed(ending, data)}"


def _ends_alone(size: int, batches: Collection[int | None]) -> bool:
    return any(size > batch and size % batch == 1 for batch in batches if batch)


def _listed(clients: Sequence[int], data: FederatedData) -> str:
    """Clients in a line: the first ones, and how many more."""
    named = ", ".join(data.called(client) for client in clients[:MOST_NAMED])
    more = len(clients) - MOST_NAMED
    return f"{named} and {more} more" if more > 0 else named

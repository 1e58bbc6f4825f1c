"""What runs, but gives results that are wrong in silence: a line for each, in `check` and when a run begins."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import Tensor, nn

from ...data.arrays import first_few
from ...data.federated import FederatedData
from ...data.summary import uncovered
from ...engine.executor import DeviceExecutor
from ...models.modules import outputs_of
from ..config.methods import MethodSettings
from ..config.named import METHODS, write_out
from ..config.schema import Experiment
from .combinations import needs_server_set

MOST_VALUES = 2**22  # of inputs that are compared: larger data need not fit into memory
MOST_ROWS = 100_000  # likewise: a run with more must not begin later
NOTABLE = 0.01  # share of rows from which equal ones are worth a line
MOST_NUMBERS = 20  # different targets of a regression that may be classes
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
        found.append(lacking.in_words(data))
    found += _about_equal_rows(data)
    found += _about_targets(data)
    found += _about_network(data, executor)
    return found


def _about_methods(experiment: Experiment, data: FederatedData) -> Iterator[str]:
    chooses = experiment.stop_early is not None or experiment.keep == "best"
    weighing = len(data.weigh.targets) if data.weigh is not None else 0
    for settings in experiment.methods:
        name = settings.name
        if name in METHODS:
            named = MethodSettings.model_validate(write_out([name])[0])
            own = {part.name for *_, part in settings.parts()}
            if added := own - {part.name for *_, part in named.parts()}:
                said = f"has {', '.join(sorted(added))} of its own, and tables call it {name}"
                yield f"the method {name!r} {said}: give it another name, with like = {name!r}"
        if chooses and settings.trains_model_on_server:
            said = "the held-out loss (stop_early, keep) is a training loss: the server trains on"
            yield f"{name}: {said} these samples"
        if needs_server_set(settings) and 0 < weighing < FEWEST_TO_WEIGH:
            said = f"the server weighs by {weighing} held-out samples, fewer than {FEWEST_TO_WEIGH}"
            yield f"{name}: {said}: weights then depend on chance. Give or hold out more samples"
        if settings.privacy and data.samples.ids is not None:
            said = "the server's held-out samples are of the same ids as the clients' and get no"
            yield f"{name}: {said} noise: ε covers the clients' training samples alone (docs/privacy.md)"


def _about_equal_rows(data: FederatedData) -> Iterator[str]:
    """Samples to test on, or to weigh by, that are also training samples."""
    inputs = data.samples.inputs
    if inputs.numel() > MOST_VALUES or len(inputs) > MOST_ROWS:
        return
    train, test = data.train.indices, data.test.indices
    if data.report is not None:
        test = torch.cat([test, data.report.indices])
    pairs = [("test", test, "training", train, "the reported results are too good")]
    if data.weigh is not None:
        weigh = data.weigh.indices
        favour = "the weights favour the clients that have them"
        pairs.append(("held-out", weigh, "training", train, favour))
        pairs.append(("test", test, "held-out", weigh, "the reported results are too good"))
    for kind, indices, other, others, so in pairs:
        # The same samples by number are meant (`server_set.source`)
        rows = _rows(data, indices[~torch.isin(indices, others)])
        known = {*_rows(data, others)}
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
    """Numbers to predict that are probably classes, or masks."""
    targets = data.samples.targets
    if data.samples.problem.predicts != "numbers":
        return
    values = torch.unique(targets)
    if len(values) > MOST_NUMBERS or bool((values % 1).any()):
        return
    said = (
        f"targets have {len(values)} different values ({first_few([f'{one:g}' for one in values])})"
    )
    yield (
        f"{said} and are predicted as numbers. For classes or masks give integers (a column of a frame: astype(int)); "
        'in a config with a table, kind = "classification"'
    )


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

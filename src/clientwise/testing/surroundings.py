"""Checks of what surrounds the formula: metrics, models, datasets and attacks."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..attacks import (
    ATTACKS,
    Attack,
    Honest,
    Knowledge,
)
from ..core.objective.metrics import (
    METRICS,
    Measure,
    confusion,
    error_sums,
    label_counts,
    measured,
    pair_counts,
    pixel_counts,
)
from ..core.objective.problem import PREDICTED, Classification, Problem
from ..core.seeding import seeded_default_generator
from ..core.types import Evaluation
from ..data.datasets import DATASETS
from ..data.division import federate
from ..data.federated import FederatedData, Samples
from ..data.partition import iid
from ..models.modules import outputs_of
from ..models.networks import MODELS
from .formula import CLASSES, SIZE

SAMPLES = 30
VALUES = 12  # of a model that is attacked
NUM_HONEST = 5
EXACT = 1e-6


def check_metric(name: str, **options: Any) -> None:
    """Check a registered metric on four models, from perfect to as bad as can be.

    It must declare what is predicted, give one finite value per model, the same for a model alone and among others,
    and the best value for the perfect model. A metric with `is_share` must be in [0, 1], an error excepted, which may
    be larger. A client without samples must have a finite value.

    Args:
        name: the registered name.
        options: the options of the metric.

    Raises:
        AssertionError: where it fails; the message says why.

    Example:
        >>> check_metric("macro_f1")
    """
    declared = measured(name)
    predicted = [need for need in PREDICTED if need in declared.needs]
    assert len(predicted) == 1, (
        f"{name}: must declare what is predicted: cw.METRICS.register({name!r}, cw.measure('classes')), "
        f"or one of {', '.join(PREDICTED)}; it declares {sorted(declared.needs)}"
    )
    if declared.from_scores:
        scores, targets = _scores(predicted[0])
        counts: tuple[Tensor, ...] = (scores, targets)
    else:
        counts = (_counts(predicted[0]),)

    def measure(rows: slice | int) -> Tensor:
        first, *others = counts
        value = METRICS.get(name)(first[rows], *others, **options)
        assert isinstance(value, Tensor), (
            f"{name}: must return a tensor, got {type(value).__name__}"
        )
        return value.double()

    values = measure(slice(None))
    shown = [round(value, 6) for value in values.flatten().tolist()]
    shape = tuple(values.shape)
    assert shape == (4,), f"{name}: needs one value per model: expected shape (4,), got {shape}"
    assert bool(values.isfinite().all()), f"{name}: values must be finite, got {shown}"
    alone = torch.stack([measure(row) for row in range(4)])
    torch.testing.assert_close(
        alone, values, msg=f"{name}: the value of a model depends on the other models"
    )
    _check_declared_range(name, declared, values)
    if not declared.from_scores:
        nothing = METRICS.get(name)(torch.zeros_like(counts[0]), **options)
        assert bool(nothing.isfinite().all()), f"{name}: must be finite without samples"


def _check_declared_range(name: str, declared: Measure, values: Tensor) -> None:
    """The values of four models, from perfect to as bad as can be, against what a metric declares."""
    shown = [round(value, 6) for value in values.tolist()]
    best = values[0]
    worst = values[3]
    is_better = best < worst if declared.is_error else best > worst
    direction = "lowest" if declared.is_error else "highest"
    assert is_better, (
        f"{name}: the perfect model must have the {direction} value, got {shown} from perfect to worst; "
        "errors are declared with cw.measure(..., is_error=True)"
    )
    if declared.is_share and not declared.is_error:
        assert bool(((values >= 0) & (values <= 1 + EXACT)).all()), (
            f"{name}: {shown} is not in [0, 1], and would be printed as percentages; "
            "declare it with cw.measure(..., is_share=False)"
        )


def _targets(problem: str) -> Tensor:
    random = torch.Generator().manual_seed(1)
    if problem in ("classes", "masks"):  # a mask of one pixel
        return torch.arange(SAMPLES) % CLASSES
    if problem == "labels":
        return (torch.arange(SAMPLES)[:, None] % torch.arange(2, 2 + CLASSES) == 0).float()
    return 1 + torch.rand(SAMPLES, generator=random)


def _counts(predicted: str) -> Tensor:
    """Counts [4, ...] of four models, the first perfect, the last wrong everywhere."""
    targets = _targets(predicted)
    wrong = torch.tensor([0, SAMPLES // 3, 2 * SAMPLES // 3, SAMPLES])
    is_wrong = torch.arange(SAMPLES) < wrong[:, None]  # [4, N]
    if predicted == "classes":
        predictions = torch.where(is_wrong, (targets + 1) % CLASSES, targets)
        return confusion(targets.expand(4, -1), predictions, CLASSES)
    if predicted == "numbers":
        predictions = torch.where(is_wrong, 3 * targets, targets)
        return error_sums(targets.expand(4, -1), predictions)
    if predicted == "labels":
        signs = torch.where(is_wrong, -1.0, 1.0)[..., None]
        return label_counts(targets, signs * (2 * targets - 1))
    if predicted == "masks":
        predictions = torch.where(is_wrong, (targets + 1) % CLASSES, targets)
        return pixel_counts(targets.expand(4, -1), predictions, CLASSES)
    risks = torch.where(is_wrong, targets, -targets)  # the higher, the sooner
    return pair_counts(targets, risks)


def _scores(predicted: str) -> tuple[Tensor, Tensor]:
    """Logits [4, N, C] of four models, the first perfect, the last the opposite, and the classes [N] or labels."""
    targets = _targets(predicted)
    is_class = targets.ndim == 1
    right = (nn.functional.one_hot(targets, CLASSES) if is_class else targets).double()
    noise = torch.rand(SAMPLES, CLASSES, generator=torch.Generator().manual_seed(2)).double()
    return torch.stack([right, right + noise, noise, -right]), targets


def check_model(
    name: str,
    *,
    input_shape: Any = (1, SIZE, SIZE),
    num_outputs: int = CLASSES,
    inputs: Any = None,
    **options: Any,
) -> None:
    """Check a registered model on four samples.

    It must have parameters that learn, give `num_outputs` finite numbers per sample, the same for a sample alone and
    among others in evaluation, and the same initial model from the same seed. A training step must change it.

    Args:
        name: the registered name.
        input_shape: of a sample, or the shapes of several inputs by name.
        num_outputs: of a sample.
        inputs: four samples [4, ...], or several inputs by name; by default random numbers. Give token ids here.
        options: the options of the model.

    Raises:
        AssertionError: where it fails; the message says why.

    Example:
        >>> check_model("mlp", hidden=[16])
        >>> check_model("lstm", input_shape=(6,), inputs=torch.randint(0, 50, (4, 6)), words=50)
    """

    def make() -> nn.Module:
        with seeded_default_generator(1, "initial model"):
            made = MODELS.get(name)(input_shape, num_outputs, **options)
        assert isinstance(made, nn.Module), (
            f"{name}: must return a torch.nn.Module, got {type(made).__name__}"
        )
        return made

    module = make()
    samples = _random_inputs(input_shape) if inputs is None else inputs
    learning = [one for one in module.parameters() if one.requires_grad]
    assert learning, f"{name}: has no parameters to train"
    again = make()
    for (key, one), other in zip(
        module.state_dict().items(), again.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), f"{name}: {key} differs between two models of one seed"
    with torch.no_grad():
        outputs = outputs_of(module.eval(), samples)
        alone = torch.cat(
            [outputs_of(module, _rows(samples, slice(row, row + 1))) for row in range(4)]
        )
    count = outputs[0].numel()
    assert len(outputs) == 4, f"{name}: 4 samples, but outputs of shape {tuple(outputs.shape)}"
    assert count == num_outputs, f"{name}: {num_outputs} numbers are needed per sample, got {count}"
    assert bool(outputs.isfinite().all()), f"{name}: outputs must be finite"
    torch.testing.assert_close(
        alone, outputs, rtol=1e-3, atol=1e-4,
        msg=f"{name}: in evaluation, the output for a sample depends on the other samples",
    )  # fmt: skip
    _check_gradients(name, module, samples)


def _check_gradients(name: str, module: nn.Module, samples: Any) -> None:
    twin = copy.deepcopy(module).train()
    loss = outputs_of(twin, samples).square().mean()
    assert loss.requires_grad, f"{name}: the outputs do not depend on the parameters"
    loss.backward()  # type: ignore[no-untyped-call]
    moved = [one.grad is not None and bool(one.grad.any()) for one in twin.parameters()]
    assert any(moved), f"{name}: a training step changes nothing: all gradients are zero"


def _random_inputs(shape: Any) -> Any:
    random = torch.Generator().manual_seed(1)
    if isinstance(shape, Mapping):
        return {name: torch.rand(4, *one, generator=random) for name, one in shape.items()}
    return torch.rand(4, *shape, generator=random)


def _rows(inputs: Any, rows: slice) -> Any:
    if isinstance(inputs, Mapping):
        return {name: values[rows] for name, values in inputs.items()}
    return inputs[rows]


def check_dataset(name: str, data_dir: str | Path | None = None, **options: Any) -> None:
    """Check a registered dataset by loading it twice and dividing it among two clients.

    Samples must have one target and one value of every attribute each, targets that fit the problem, and finite
    inputs once clients hold them. Loading must give the same samples every time.

    Args:
        name: the registered name.
        data_dir: the data folder that the dataset is given.
        options: the options of the dataset.

    Raises:
        AssertionError: where it fails; the message says why.

    Example:
        >>> check_dataset("digits")
    """
    folder = Path(data_dir) if data_dir else None
    samples = DATASETS.get(name)(folder, **options)
    assert isinstance(samples, Samples), (
        f"{name}: must return cw.Samples, got {type(samples).__name__}"
    )
    count = len(samples.targets)
    assert count > 1, f"{name}: has {count} samples"
    assert len(samples.inputs) == count, f"{name}: {len(samples.inputs)} inputs, {count} targets"
    for attribute, values in samples.sample_attributes.items():
        assert len(values) == count, (
            f"{name}: {attribute} has {len(values)} values for {count} samples"
        )
    if samples.ids is not None:
        assert len(samples.ids) == count, f"{name}: {len(samples.ids)} ids for {count} samples"
        most = int(samples.ids.max())
        assert not samples.names or most < len(samples.names), (
            f"{name}: id {most} has no name: there are {len(samples.names)} names"
        )
    _check_targets(name, samples)
    again = DATASETS.get(name)(folder, **options)
    same = torch.equal(again.targets, samples.targets) and torch.equal(
        again.inputs.nan_to_num(), samples.inputs.nan_to_num()
    )
    assert same, f"{name}: loading it twice gives different samples"
    try:
        _divided(samples)
    except Exception as error:
        raise AssertionError(f"{name}: cannot be divided among two clients: {error}") from error


def _check_targets(name: str, samples: Samples) -> None:
    targets, classes = samples.targets, samples.problem.num_classes
    if not classes:
        assert targets.dtype == torch.float32, (
            f"{name}: targets must be float32, are {targets.dtype}"
        )
        return
    assert targets.dtype == torch.int64, f"{name}: class numbers must be int64, are {targets.dtype}"
    low, high = int(targets.min()), int(targets.max())
    assert 0 <= low <= high < classes, (
        f"{name}: labels must be 0 to {classes - 1}, go from {low} to {high}"
    )


def _divided(samples: Samples) -> FederatedData:
    return federate(
        samples,
        lambda pool, seed: iid(pool, seed, clients=2),
        1,
        test_fraction=0.2,
        server_fraction=0.2,
        report_fraction=0.5,
    )


def check_attack(name: str, *, samples: Samples | None = None, **options: Any) -> None:
    """Check a registered attack on a model of twelve values and thirty images.

    It must leave what it is given unchanged, do the same with the same random numbers, and use of the other clients
    only what it declares (`needs`). Labels must be classes, a forged model a vector of floats, claims as many as the
    measurements.

    Args:
        name: the registered name.
        samples: of the kind that the attack is for; by default 30 images of three classes.
        options: the options of the attack.

    Raises:
        AssertionError: where it fails; the message says why.

    Example:
        >>> check_attack("sign_flip")
    """
    attack = ATTACKS.get(name)(**options)
    assert isinstance(attack, Attack), f"{name}: must be a cw.Attack, is {type(attack).__name__}"
    declared = ATTACKS.declared(name).needs
    samples = samples or _images()
    try:
        attack.check(samples)
    except ValueError as error:
        raise AssertionError(f"{name}: does not fit the samples, give others: {error}") from error
    _check_labels(name, attack, samples)
    _check_trigger(name, attack, samples)
    _check_forged(name, attack, frozenset(declared))
    _check_judgements(name, attack, "judgements" in declared, samples.problem)


def _images() -> Samples:
    random = torch.Generator().manual_seed(1)
    inputs = torch.randint(0, 256, (SAMPLES, 1, SIZE, SIZE), dtype=torch.uint8, generator=random)
    groups = {"green": (torch.arange(SAMPLES) % 2).double()}
    return Samples(
        inputs, torch.arange(SAMPLES) % CLASSES, Classification(CLASSES), 1 / 255, groups
    )


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def _check_labels(name: str, attack: Attack, samples: Samples) -> None:
    targets = samples.targets.clone()
    labels = attack.relabel(targets, samples.problem, _generator())
    assert torch.equal(targets, samples.targets), (
        f"{name}: relabel must not change the given targets"
    )
    shape = tuple(labels.shape)
    assert (shape, labels.dtype) == (tuple(targets.shape), targets.dtype), (
        f"{name}: relabel must return {tuple(targets.shape)} {targets.dtype}, got {shape} {labels.dtype}"
    )
    classes = samples.problem.num_classes
    assert not classes or bool(((labels >= 0) & (labels < classes)).all()), (
        f"{name}: relabel must return labels 0 to {classes - 1}"
    )
    again = attack.relabel(targets, samples.problem, _generator())
    assert torch.equal(again, labels), f"{name}: relabel must draw from the given generator only"


def _check_trigger(name: str, attack: Attack, samples: Samples) -> None:
    indices = torch.arange(len(samples.targets))
    before = samples.inputs.clone()
    found = attack.trigger(samples, indices, samples.targets, _generator())
    assert torch.equal(before, samples.inputs), f"{name}: trigger must not change the samples"
    if found is None:
        return
    expected = (len(found.positions), *samples.inputs.shape[1:])
    shape = tuple(found.inputs.shape)
    assert shape == expected, f"{name}: trigger: expected inputs of shape {expected}, got {shape}"
    assert len(found.targets) == len(found.positions), (
        f"{name}: trigger: {len(found.positions)} positions, {len(found.targets)} targets"
    )


def _check_forged(name: str, attack: Attack, declared: frozenset[str]) -> None:
    random = torch.Generator().manual_seed(1)
    model = torch.randn(VALUES, generator=random)
    honest = Honest(
        torch.randn(NUM_HONEST, VALUES, generator=random),
        {"a criterion": torch.arange(1.0, NUM_HONEST + 1)},
        {"a criterion": math.inf},
        num_hostile=2,
        judge=_judge,
    )
    known = Knowledge(
        model.clone(),
        torch.zeros(VALUES),
        _generator(),
        last_model=torch.ones(VALUES) if "last_model" in declared else None,
        cohort=honest if "whole_cohort" in declared else None,
        active_rounds=1,
    )
    try:
        forged = attack.forge(known)
        unchanged = torch.equal(known.model, model)
        again = attack.forge(replace(known, model=model.clone(), random=_generator()))
        claims = attack.claim({"a criterion": torch.tensor([4.0])}, known)
    except (RuntimeError, AttributeError, TypeError) as error:
        raise AssertionError(
            f"{name}: forge or claim fails with what it declares ({', '.join(sorted(declared)) or 'nothing'}): {error}"
        ) from error
    assert unchanged, f"{name}: forge must not change the given model"
    assert isinstance(forged, Tensor), f"{name}: forge must return a tensor"
    assert (forged.ndim, forged.is_floating_point()) == (1, True), (
        f"{name}: forge must return a vector of floats, got {tuple(forged.shape)} {forged.dtype}"
    )
    assert torch.equal(forged.nan_to_num(), again.nan_to_num()), (
        f"{name}: forge must draw from `known.random` only"
    )
    assert {key: tuple(value.shape) for key, value in claims.items()} == {"a criterion": (1,)}, (
        f"{name}: claim must return the measurements that it is given, one value each"
    )


def _judge(models: Tensor) -> Evaluation:
    """An evaluation of models [c, d]: the smaller a model's norm, the better."""
    values = 1 / (1 + models.double().norm(dim=1, keepdim=True))
    right = (values * SAMPLES).long()
    counts = torch.eye(CLASSES, dtype=torch.int64) * right[:, :, None]
    losses = (1 - values).expand(-1, SAMPLES)
    is_right = torch.arange(SAMPLES) < right
    sizes = torch.tensor([SAMPLES])
    return Evaluation(sizes, values, 1 - values, counts, right=is_right, sample_losses=losses)


def _check_judgements(name: str, attack: Attack, declares: bool, problem: Problem) -> None:
    truth = _judge(torch.eye(4, VALUES))
    own = torch.tensor([True, False, False, True])
    told = attack.judge(truth, own, problem)
    changed = not torch.equal(told.values, truth.values) or not torch.equal(
        told.counts, truth.counts
    )
    assert declares or not changed, (
        f"{name}: changes how the client judges models without needs('judgements')"
    )
    assert told.values.shape == truth.values.shape, f"{name}: judge must evaluate every model"

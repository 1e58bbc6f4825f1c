"""Checks that every criterion, score, rule, metric and attack must pass.

The tests of clientwise run them on all of its parts. Run them on yours:

    from clientwise.testing import check_criterion

    def test_battery():
        check_criterion("battery", attributes={"battery": [0.9, 0.1, 0.5]})

A check raises an AssertionError that says what is wrong. It compares what a part declares (who
measures it, its largest value, what it needs) with what it does, so that a wrong declaration fails
here and not in the first round of a run. `clientwise check` tries datasets and networks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from .attacks import ATTACKS, Attack, Honest, Knowledge
from .core.aggregation.rules import RULES, Ruled
from .core.clock import Devices
from .core.criteria import HONEST, Arrivals, ClientFacts, Criterion, make_criterion
from .core.objective.metrics import (
    METRICS,
    confusion,
    error_sums,
    label_counts,
    measured,
    pair_counts,
    pixel_counts,
)
from .core.objective.problem import PREDICTED, Classification
from .core.types import Evaluation, Layer, LocalTraining, ModelSpec
from .core.weights.scores import Score
from .data.federated import Samples

__all__ = ["check_attack", "check_criterion", "check_metric", "check_rule", "check_score"]

CLIENTS = 3
CLASSES = 3
SIZE = 8  # images are SIZE × SIZE
SAMPLES = 30
VALUES = 12  # of a model that is attacked
NUM_HONEST = 5
EXACT = 1e-6
DEVICES = [  # a row for every client: the facts of `core.clock.Devices`
    [2000.0, 1e5, 1e6, 0.0, 24.0, 0.0, 1.0],
    [50.0, 1e4, 1e5, 8.0, 6.0, 0.1, 0.5],
    [300.0, 1e7, 1e7, 0.0, 1.0, 0.5, 0.0],
]


def check_criterion(
    name: str,
    *,
    attributes: Mapping[str, Sequence[float]] | None = None,
    sample_attributes: Mapping[str, Sequence[float]] | None = None,
    **options: Any,
) -> None:
    """Check a registered criterion on three clients with four, two and three samples.

    It must give one finite value per client, between 0 and its declared maximum, the same every
    time. Unless it declares `needs("whole_cohort")`, a client's value must not depend on the other
    clients.

    Args:
        name: the registered name.
        attributes: three values for every client attribute that the criterion reads.
        sample_attributes: nine values for every sample attribute that it reads.
        options: the options of the criterion.

    Raises:
        AssertionError: where it fails; the message says why.

    Example:
        >>> check_criterion("dataset_size")
        >>> check_criterion("attribute", of="premium", attributes={"premium": [1.0, 0.0, 0.5]})
    """
    criterion = make_criterion(name, **options)
    by_client = {key: torch.tensor(one).double() for key, one in (attributes or {}).items()}
    by_sample = {key: torch.tensor(one) for key, one in (sample_attributes or {}).items()}

    def measure(rows: list[int]) -> Tensor:
        seen: ClientFacts | Arrivals = _arrivals(criterion, rows, by_client)
        if criterion.measured_by == "client":
            seen = _clients(rows, by_client, by_sample)
        try:
            return criterion.column(seen, len(rows))
        except TypeError as error:
            raise AssertionError(str(error)) from error

    everybody = list(range(CLIENTS))
    values = measure(everybody)
    high = criterion.high(Classification(CLASSES))
    fits = values.isfinite() & (values >= 0)
    assert bool(fits.all()), f"{name} must be finite and not negative, is {values.tolist()}"
    assert float(values.max()) <= high, f"{name} = {values.max():g}, above its bound {high:g}"
    assert_close(measure(everybody), values, msg=f"{name}: two measurements differ")
    if "whole_cohort" in criterion.needs:
        return
    alone = torch.cat([measure([row]) for row in everybody])
    hint = "measure it on the server with needs={'whole_cohort'}"
    said = f"together {values.tolist()}, one by one {alone.tolist()}"
    depends = f"{name}: a client's value depends on the other clients; {hint} ({said})"
    assert_close(alone, values, msg=depends)


def check_score(score: Score, names: Sequence[str] = ("a", "b", "c")) -> None:
    """Check a score on twenty clients with random criteria.

    It must be finite, 0 or more, independent of the order of the clients, and must not fall when a
    criterion rises (P1 Eq. 7). Where it has terms, they must add up to it.

    Args:
        score: the score.
        names: names of criteria that it accepts.

    Raises:
        AssertionError: where it fails; the message says why.

    Example:
        >>> import clientwise as cw
        >>> check_score(cw.parts.weighted_mean({"size": 2.0, "age": 1.0}), ["size", "age"])
    """
    label = type(score).__name__
    score.check(names)
    values = torch.rand(20, len(names), dtype=torch.float64, generator=_generator())
    scores = score(names, values)
    shape = tuple(scores.shape)
    assert shape == (20,), f"{label}: needs one score per client: expected shape (20,), got {shape}"
    fits = scores.isfinite() & (scores >= 0)
    assert bool(fits.all()), f"{label}: scores must be finite and 0 or more"
    backwards = score(names, values.flip(0)).flip(0)
    assert_close(backwards, scores, msg=f"{label}: scores depend on the order of the clients")
    for column, name in enumerate(names):
        for client in range(len(values)):
            more = values.clone()
            more[client, column] += 0.1
            risen = score(names, more)[client]
            assert risen >= scores[client] - 1e-9, f"{label}: the score falls when {name} rises"
    order = score.order(names)
    is_order = order is None or sorted(order) == sorted(names)
    assert is_order, f"{label}: `order` must contain every criterion once, got {order}"
    terms = score.terms(names)
    if terms is None:
        return
    # Models are folded by the terms alone
    exponents = torch.tensor([term.exponents for term in terms], dtype=torch.float64)  # [t, m]
    coefficients = torch.tensor([term.coefficient for term in terms], dtype=torch.float64)
    by_terms = score.prepare(names, values)[:, None].pow(exponents).prod(-1) @ coefficients
    assert_close(by_terms, scores, msg=f"{label}: the terms do not add up to the scores")


def check_rule(name: str, **options: Any) -> None:
    """Check a registered rule on seven random updates.

    The result must be finite and independent of the order of the clients. A client must count by
    its weight alone: not at all with weight 0, and like two clients of half its weight. Equal
    updates must give that update. Influences must be between 0 and 1, and 0 without a weight.

    Args:
        name: the registered name.
        options: the options of the rule.

    Raises:
        AssertionError: where it fails; the message says why.

    Example:
        >>> check_rule("median")
    """
    random = _generator()
    updates = torch.randn(7, 40, generator=random)
    weights = torch.rand(7, generator=random, dtype=torch.float64)
    weights /= weights.sum()

    def rule(updates: Tensor, weights: Tensor) -> Ruled:
        ruled = RULES.get(name)(updates, weights, {}, **options)
        assert isinstance(ruled, Ruled), f"{name} must return a Ruled, returned {type(ruled)}"
        shapes = tuple(ruled.update.shape), tuple(ruled.influence.shape)
        wanted = (updates.shape[1],), (len(updates),)
        assert shapes == wanted, f"{name} must return shapes {wanted}, returned {shapes}"
        return ruled

    result = rule(updates, weights).update
    kinds = f"{name}: must keep the type {updates.dtype}, got {result.dtype}"
    assert result.dtype == updates.dtype, kinds
    assert bool(result.isfinite().all()), f"{name}: the result of finite updates must be finite"
    stranger = 1e6 * torch.ones(1, 40)
    unheard = rule(torch.cat([updates, stranger]), torch.cat([weights, torch.zeros(1).double()]))
    halves = rule(torch.cat([updates, updates]), torch.cat([weights, weights]) / 2)
    equal = rule(updates[:1].expand(7, -1).clone(), weights)
    for found, expected, message in (
        (
            rule(updates.flip(0), weights.flip(0)),
            result,
            "the result depends on the clients' order",
        ),
        (halves, result, "a client of weight w must count like two clients of weight w/2"),
        (unheard, result, "a client with weight 0 must not change the result"),
        (equal, updates[0], "equal updates must give that update"),
    ):
        assert_close(found.update, expected, rtol=1e-5, atol=1e-6, msg=f"{name}: {message}")
    influence = unheard.influence
    fits = (influence >= 0) & (influence < 1 + 1e-9)
    said = f"{name}: an influence must be between 0 and 1, got {influence.tolist()}"
    assert bool(fits.all()), said
    assert influence[7] == 0, f"{name}: the influence of a client with weight 0 must be 0"


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
    hint = f"cw.parts.METRICS.register({name!r}, cw.parts.measure('classes')), or one of {', '.join(PREDICTED)}"
    said = f"{name}: must declare what is predicted: {hint}; it declares {sorted(declared.needs)}"
    assert len(predicted) == 1, said
    counts, *targets = _counts(predicted[0], from_scores=declared.from_scores)

    def measure(counts: Tensor) -> Tensor:
        value = METRICS.get(name)(counts, *targets, **options)
        assert isinstance(value, Tensor), f"{name}: must return a tensor, got {type(value)}"
        return value.double()

    values = measure(counts)
    shape = tuple(values.shape)
    assert shape == (4,), f"{name}: needs one value per model: expected shape (4,), got {shape}"
    shown = [round(value, 6) for value in values.tolist()]
    assert bool(values.isfinite().all()), f"{name}: values must be finite, got {shown}"
    alone = torch.stack([measure(one) for one in counts])
    assert_close(alone, values, msg=f"{name}: the value of a model depends on the other models")
    is_better = values[0] < values[3] if declared.is_error else values[0] > values[3]
    direction = "lowest" if declared.is_error else "highest"
    said = f"the perfect model must have the {direction} value, got {shown} from perfect to worst"
    assert is_better, (
        f"{name}: {said}; errors are declared with cw.parts.measure(..., is_error=True)"
    )
    if declared.is_share and not declared.is_error:
        said = f"{name}: {shown} is not in [0, 1], and would be printed as percentages; declare it"
        fits = (values >= 0) & (values <= 1 + EXACT)
        assert bool(fits.all()), f"{said} with cw.parts.measure(..., is_share=False)"
    if not declared.from_scores:
        nothing = measure(torch.zeros_like(counts))
        assert bool(nothing.isfinite().all()), f"{name}: must be finite without samples"


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
    assert isinstance(attack, Attack), (
        f"{name}: must be a cw.parts.Attack, is {type(attack).__name__}"
    )
    samples = samples or _images()
    try:
        attack.check(samples)
    except ValueError as error:
        raise AssertionError(f"{name}: does not fit the samples, give others: {error}") from error
    declared = ATTACKS.declared(name).needs
    _check_labels(name, attack, samples)
    _check_forged(name, attack, declared)
    truth = _judged(torch.eye(4, VALUES))
    told = attack.judge(truth, torch.tensor([True, False, False, True]), samples.problem)
    assert told.values.shape == truth.values.shape, f"{name}: judge must evaluate every model"
    is_honest = torch.equal(told.values, truth.values) and torch.equal(told.counts, truth.counts)
    said = f"{name}: changes how the client judges models without needs('judgements')"
    assert is_honest or "judgements" in declared, said


def _check_labels(name: str, attack: Attack, samples: Samples) -> None:
    targets = samples.targets.clone()
    inputs = samples.inputs.clone()
    labels = attack.relabel(targets, samples.problem, _generator())
    unchanged = torch.equal(targets, samples.targets)
    assert unchanged, f"{name}: relabel must not change the given targets"
    given, wanted = (labels.shape, labels.dtype), (targets.shape, targets.dtype)
    assert given == wanted, f"{name}: relabel must return {wanted}, got {given}"
    classes = samples.problem.num_classes
    fits = not classes or bool(((labels >= 0) & (labels < classes)).all())
    assert fits, f"{name}: relabel must return labels 0 to {classes - 1}"
    again = attack.relabel(targets, samples.problem, _generator())
    assert torch.equal(again, labels), f"{name}: relabel must draw from the given generator only"
    found = attack.trigger(samples, torch.arange(len(targets)), targets, _generator())
    assert torch.equal(inputs, samples.inputs), f"{name}: trigger must not change the samples"
    if found is not None:
        sizes = {len(found.positions), len(found.inputs), len(found.targets)}
        assert len(sizes) == 1, f"{name}: trigger: {sizes} positions, inputs and targets"


def _check_forged(name: str, attack: Attack, declared: frozenset[str]) -> None:
    random = _generator()
    model = torch.randn(VALUES, generator=random)
    honest = Honest(
        torch.randn(NUM_HONEST, VALUES, generator=random),
        {"a criterion": torch.arange(1.0, NUM_HONEST + 1)},
        {"a criterion": math.inf},
        num_hostile=2,
        judge=_judged,
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
        needs = ", ".join(sorted(declared)) or "nothing"
        raise AssertionError(
            f"{name}: forge or claim fails with what it declares ({needs}): {error}"
        ) from error
    assert unchanged, f"{name}: forge must not change the given model"
    is_vector = isinstance(forged, Tensor) and forged.is_floating_point() and forged.ndim == 1
    assert is_vector, f"{name}: forge must return a vector of floats"
    is_same = torch.equal(forged.nan_to_num(), again.nan_to_num())
    assert is_same, f"{name}: forge must draw from `known.random` only"
    shapes = {key: tuple(value.shape) for key, value in claims.items()}
    said = f"{name}: claim must return the measurements that it is given, one value each"
    assert shapes == {"a criterion": (1,)}, said


# What parts are tried on ------------------------------------------------------------------------------------


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _images() -> Samples:
    inputs = torch.randint(0, 256, (SAMPLES, 1, SIZE, SIZE), generator=_generator()).byte()
    groups = {"green": (torch.arange(SAMPLES) % 2).double()}
    targets = torch.arange(SAMPLES) % CLASSES
    return Samples(inputs, targets, Classification(CLASSES), 1 / 255, groups)


def _clients(
    rows: list[int], attributes: Mapping[str, Tensor], sample_attributes: Mapping[str, Tensor]
) -> ClientFacts:
    """Some of three clients with 4, 2 and 3 samples of three classes."""
    sizes = torch.tensor([4, 2, 3])
    owner = torch.repeat_interleave(torch.arange(CLIENTS), sizes)
    held = torch.isin(owner, torch.tensor(rows))
    images = torch.rand(9, 1, SIZE, SIZE, generator=_generator())
    return ClientFacts(
        num_samples=sizes[rows],
        label_counts=torch.tensor([[2, 1, 1], [2, 0, 0], [1, 1, 1]])[rows],
        training_loss=torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)[rows],
        attributes={name: values[rows] for name, values in attributes.items()},
        sample_attributes={name: values[held] for name, values in sample_attributes.items()},
        load_inputs=lambda: images[held],
        training=LocalTraining(epochs=2, batch_size=3),
        load_start_loss=lambda: torch.tensor([0.5, 2.0, 1.0])[rows],
        device=Devices(*torch.tensor(DEVICES, dtype=torch.float64)[rows].T),
    )


def _arrivals(criterion: Criterion, rows: list[int], attributes: Mapping[str, Tensor]) -> Arrivals:
    """Some of three models: a copy of the global one, one that moved a little, one that moved far."""
    layers = (Layer("kernel", (2, 2), 0, 4), Layer("bias", (2,), 4, 6), Layer("buffer", (1,), 6, 7))
    models = torch.zeros(CLIENTS, 7)
    models[1, :4] = 0.5
    models[2, 4] = 8.0
    models[:, 6] = 100.0
    memory = {}
    if criterion.memory:
        memory[criterion.part.name] = criterion.memory.first(CLIENTS)[rows]
    facts = {HONEST: torch.tensor([1.0, 0.0, 1.0]), **attributes}
    return Arrivals(
        tuple(rows),
        models[rows],
        torch.zeros(7),
        ModelSpec(layers, 6, 7),
        _judged,
        memory,
        {name: values[rows] for name, values in facts.items()},
        lambda: torch.ones(7),
        seconds=torch.tensor([0.5, 60.0, 3600.0], dtype=torch.float64)[rows],
        ages=torch.tensor([0.0, 1.0, 10.0], dtype=torch.float64)[rows],
    )


def _judged(models: Tensor) -> Evaluation:
    """An evaluation of models [c, d]: the smaller a model's norm, the better."""
    values = 1 / (1 + models.double().norm(dim=1, keepdim=True))
    right = (values * SAMPLES).long()
    counts = torch.eye(CLASSES, dtype=torch.int64) * right[:, :, None]
    losses = (1 - values).expand(-1, SAMPLES)
    is_right = torch.arange(SAMPLES) < right
    sizes = torch.tensor([SAMPLES])
    return Evaluation(sizes, values, 1 - values, counts, right=is_right, sample_losses=losses)


def _counts(predicted: str, *, from_scores: bool) -> tuple[Tensor, ...]:
    """Counts [4, ...] of four models, the first perfect, the last wrong everywhere; or their scores and the targets."""
    targets = torch.arange(SAMPLES) % CLASSES  # also of masks of one pixel
    if predicted == "labels":
        targets = (torch.arange(SAMPLES)[:, None] % torch.arange(2, 2 + CLASSES) == 0).float()
    elif predicted not in ("classes", "masks"):
        targets = 1 + torch.rand(SAMPLES, generator=_generator())
    if from_scores:
        right = targets if targets.ndim > 1 else nn.functional.one_hot(targets, CLASSES)
        noise = torch.rand(SAMPLES, CLASSES, generator=_generator()).double()
        scores = [right.double(), right + noise, noise, -right.double()]
        return torch.stack(scores), targets
    wrong = torch.tensor([0, SAMPLES // 3, 2 * SAMPLES // 3, SAMPLES])
    is_wrong = torch.arange(SAMPLES) < wrong[:, None]  # [4, N]
    every = targets.expand(4, *targets.shape)
    if predicted in ("classes", "masks"):
        count = confusion if predicted == "classes" else pixel_counts
        return (count(every, torch.where(is_wrong, (targets + 1) % CLASSES, targets), CLASSES),)
    if predicted == "numbers":
        return (error_sums(every, torch.where(is_wrong, 3 * targets, targets)),)
    if predicted == "labels":
        signs = torch.where(is_wrong, -1.0, 1.0)[..., None]
        return (label_counts(targets, signs * (2 * targets - 1)),)
    return (
        pair_counts(targets, torch.where(is_wrong, targets, -targets)),
    )  # risks: higher, sooner

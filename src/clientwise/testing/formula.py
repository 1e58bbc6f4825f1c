"""Checks of the parts of the formula, criteria, scores and rules, and of engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..core.aggregation.rules import RULES, fault_in
from ..core.clock import Devices
from ..core.criteria import (
    HONEST,
    Arrivals,
    ClientFacts,
    Criterion,
    make_criterion,
)
from ..core.engine import Engine
from ..core.objective.problem import Classification
from ..core.types import (
    Evaluation,
    Layer,
    LocalTraining,
    ModelSpec,
    Task,
    Updates,
)
from ..core.weights.scores import Score
from ..registry import Part

# The small federation that criteria are tried on; its images are SIZE × SIZE.
CLIENTS = 3
CLASSES = 3
SIZE = 8
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
    seen = _example_of(criterion, attributes or {}, sample_attributes or {})
    try:
        values = criterion.column(seen, CLIENTS)
    except TypeError as error:
        raise AssertionError(str(error)) from None
    assert bool((values.isfinite() & (values >= 0)).all()), (
        f"{name} must be finite and not negative, is {values.tolist()}"
    )
    high = criterion.high(Classification(CLASSES))
    assert float(values.max()) <= high, (
        f"{name} = {float(values.max()):g}, above its bound {high:g}"
    )
    torch.testing.assert_close(
        _measured(criterion, seen),
        values,
        msg=f"{name}: two measurements of the same clients differ",
    )
    if "whole_cohort" in criterion.needs:
        return
    alone = torch.cat([_measured(criterion, _only(seen, row)) for row in range(CLIENTS)])
    depends = (
        f"{name}: a client's value depends on the other clients; measure it on the server with "
        "needs={'whole_cohort'} "
        f"(together {values.tolist()}, one by one {alone.tolist()})"
    )
    torch.testing.assert_close(alone, values, msg=depends)


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
        >>> check_score(cw.weighted_mean({"size": 2.0, "age": 1.0}), ["size", "age"])
    """
    label = type(score).__name__
    score.check(names)
    random = torch.Generator().manual_seed(1)
    values = torch.rand(20, len(names), dtype=torch.float64, generator=random)
    scores = score(names, values)
    shape = tuple(scores.shape)
    assert shape == (20,), f"{label}: needs one score per client: expected shape (20,), got {shape}"
    assert bool((scores.isfinite() & (scores >= 0)).all()), (
        f"{label}: scores must be finite and 0 or more"
    )
    order = torch.randperm(20, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(
        score(names, values[order]),
        scores[order],
        msg=f"{label}: scores depend on the order of the clients",
    )
    _check_monotone(score, names, values)
    priority = score.order(names)
    assert priority is None or sorted(priority) == sorted(names), (
        f"{label}: `order` must contain every criterion once, got {priority}"
    )
    _check_terms(score, names, values)


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
    random = torch.Generator().manual_seed(1)
    updates = torch.randn(7, 40, generator=random)
    weights = torch.rand(7, generator=random, dtype=torch.float64)
    weights /= weights.sum()

    def rule(updates: Tensor, weights: Tensor) -> Tensor:
        return RULES.get(name)(updates, weights, {}, **options).update

    fault = fault_in(RULES.get(name)(updates, weights, {}, **options), 7, 40)
    assert fault is None, f"{name} {fault}"
    result = rule(updates, weights)
    assert result.dtype == updates.dtype, (
        f"{name}: must keep the type {updates.dtype}, got {result.dtype}"
    )
    assert bool(result.isfinite().all()), f"{name}: the result of finite updates must be finite"
    order = torch.randperm(7, generator=random)
    _agree(
        rule(updates[order], weights[order]),
        result,
        f"{name}: the result depends on the order of the clients",
    )
    twice = torch.cat([updates, updates])
    halves = torch.cat([weights, weights]) / 2
    _agree(
        rule(twice, halves),
        result,
        f"{name}: a client of weight w must count like two clients of weight w/2",
    )
    one_more = torch.cat([updates, 1e6 * torch.ones(1, 40)])
    without_weight = torch.cat([weights, torch.zeros(1).double()])
    _agree(
        rule(one_more, without_weight),
        result,
        f"{name}: a client with weight 0 must not change the result",
    )
    equal = updates[:1].expand(7, -1).clone()
    _agree(rule(equal, weights), updates[0], f"{name}: equal updates must give that update")
    _check_influence(name, RULES.get(name)(one_more, without_weight, {}, **options).influence)


def _check_influence(name: str, influence: Tensor) -> None:
    """Influences of eight clients, the last of which has no weight."""
    assert bool(((influence >= 0) & (influence < 1 + 1e-9)).all()), (
        f"{name}: an influence must be between 0 and 1, got {influence.tolist()}"
    )
    assert influence[7] == 0, (
        f"{name}: the influence of a client with weight 0 must be 0, got {float(influence[7]):g}"
    )


def check_engine(engine: Engine, training: LocalTraining | None = None) -> None:
    """Check an engine on its first clients.

    It must train the clients that it is asked to, once each, and give the same models from the same
    state. It must evaluate every model on every client.

    Args:
        engine: the engine.
        training: how clients train; by default one epoch in batches of 20.

    Raises:
        AssertionError: where it fails; the message says why.
    """
    training = training or LocalTraining(epochs=1, batch_size=20, learning_rate=0.1)
    task = Task(1, training, engine.problem.loss, (Part("dataset_size", {}),))
    asked = tuple(range(min(3, engine.num_clients)))
    model = engine.initial_model
    kept = dict(engine.state())
    updates = _trained(engine, asked, model, task)
    assert sorted(updates.client_ids) == sorted(asked), (
        f"train: asked clients {asked}, got updates of {updates.client_ids}"
    )
    expected = (len(asked), engine.spec.size)
    shape = tuple(updates.models.shape)
    assert shape == expected, f"train: expected models of shape {expected}, got {shape}"
    assert bool(updates.models.isfinite().all()), "train: a model has NaN or infinite values"
    for part in task.criteria:
        assert part.called in updates.measurements, f"train: the criterion {part.called} is missing"
    assert not torch.equal(updates.models[0], model), "train: the model did not change"
    engine.load_state(kept)
    again = _trained(engine, asked, model, task)
    assert torch.equal(again.models, updates.models), (
        "train: the same task from the same state gave different models"
    )
    _check_evaluation(engine, torch.stack([model, updates.models[0]]))
    for name, values in engine.attributes.items():
        assert len(values) == engine.num_clients, (
            f"attributes: {name} has {len(values)} values for {engine.num_clients} clients"
        )


def _check_monotone(score: Score, names: Sequence[str], values: Tensor) -> None:
    label = type(score).__name__
    scores = score(names, values)
    for column, name in enumerate(names):
        for client in range(len(values)):
            more = values.clone()
            more[client, column] += 0.1
            risen = score(names, more)[client]
            assert risen >= scores[client] - 1e-9, f"{label}: the score falls when {name} rises"


def _check_terms(score: Score, names: Sequence[str], values: Tensor) -> None:
    """Models are folded by the terms of a score alone, so that they must add up to it."""
    terms = score.terms(names)
    if terms is None:
        return
    exponents = torch.tensor([term.exponents for term in terms], dtype=torch.float64)  # [t, m]
    coefficients = torch.tensor([term.coefficient for term in terms], dtype=torch.float64)
    prepared = score.prepare(names, values)
    by_terms = prepared[:, None].pow(exponents).prod(-1) @ coefficients
    torch.testing.assert_close(
        by_terms,
        score(names, values),
        msg=f"{type(score).__name__}: the terms do not add up to the scores",
    )


def _check_evaluation(engine: Engine, models: Tensor) -> None:
    found = engine.evaluate(range(engine.num_clients), models)
    expected = (len(models), engine.num_clients)
    for name, values in (("values", found.values), ("losses", found.losses)):
        shape = tuple(values.shape)
        assert shape == expected, f"evaluate: expected {name} of shape {expected}, got {shape}"
    assert found.num_samples.shape == (engine.num_clients,), (
        "evaluate: num_samples needs one number per client"
    )
    if engine.problem.num_classes:
        counted = found.counts.sum((-2, -1))
        assert bool((counted == found.num_samples.sum()).all()), (
            "evaluate: the counts do not add up to the number of samples"
        )


def _trained(engine: Engine, asked: Sequence[int], model: Tensor, task: Task) -> Updates:
    chunks = []
    for chunk in engine.train(asked, model, task):
        if chunk.client_ids:
            chunks.append(replace(chunk, failures=()))
    return Updates.joined(chunks).by_client()


def _agree(found: Tensor, expected: Tensor, message: str) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, msg=message)


def _example_of(
    criterion: Criterion,
    attributes: Mapping[str, Sequence[float]],
    sample_attributes: Mapping[str, Sequence[float]],
) -> ClientFacts | Arrivals:
    """What the criterion measures: facts about clients, or what arrives at the server."""
    by_client = {
        name: torch.tensor(values, dtype=torch.float64) for name, values in attributes.items()
    }
    if criterion.measured_by != "client":
        return _some_arrivals(criterion, by_client)
    by_sample = {name: torch.tensor(values) for name, values in sample_attributes.items()}
    return _some_clients(by_client, by_sample)


def _measured(criterion: Criterion, seen: ClientFacts | Arrivals) -> Tensor:
    return criterion.measure(seen).double().cpu()


def _some_clients(
    attributes: Mapping[str, Tensor], sample_attributes: Mapping[str, Tensor]
) -> ClientFacts:
    """Three clients with 4, 2 and 3 samples of three classes."""
    images = torch.rand(9, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    return ClientFacts(
        num_samples=torch.tensor([4, 2, 3]),
        label_counts=torch.tensor([[2, 1, 1], [2, 0, 0], [1, 1, 1]]),
        training_loss=torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64),
        attributes=attributes,
        sample_attributes=sample_attributes,
        load_inputs=lambda: images,
        training=LocalTraining(epochs=2, batch_size=3),
        load_start_loss=lambda: torch.tensor([0.5, 2.0, 1.0]),
        device=Devices(*torch.tensor(DEVICES, dtype=torch.float64).T),
    )


def _some_arrivals(criterion: Criterion, attributes: Mapping[str, Tensor]) -> Arrivals:
    """Three models: a copy of the global one, one that moved a little, one that moved far."""
    kernel = Layer("kernel", (2, 2), 0, 4)
    bias = Layer("bias", (2,), 4, 6)
    buffer = Layer("buffer", (1,), 6, 7)
    models = torch.zeros(CLIENTS, 7)
    models[1, :4] = 0.5
    models[2, 4] = 8.0
    models[:, 6] = 100.0
    memory = {}
    if criterion.memory:
        memory[criterion.part.name] = criterion.memory.first(CLIENTS)
    return Arrivals(
        tuple(range(CLIENTS)),
        models,
        torch.zeros(7),
        ModelSpec((kernel, bias, buffer), 6, 7),
        lambda judged: _judged(models, judged),
        memory,
        {HONEST: torch.tensor([1.0, 0.0, 1.0]), **attributes},
        lambda: torch.ones(7),
        seconds=torch.tensor([0.5, 60.0, 3600.0], dtype=torch.float64),
        ages=torch.tensor([0.0, 1.0, 10.0], dtype=torch.float64),
    )


def _judged(models: Tensor, judged: Tensor) -> Evaluation:
    """An evaluation of some of the models: the same result for a model alone or among others."""
    rows = [int((models == model).all(1).nonzero()[0]) for model in judged]
    right = torch.tensor([9, 5, 0])[rows]  # of ten samples of a class
    counts = torch.stack([torch.eye(CLASSES, dtype=torch.int64) * count for count in right])
    counts[:, 0, 1] = 10 - right
    values = (right / 10).double()[:, None]
    return Evaluation(torch.tensor([30]), values, 1 - values, counts)


def _only(seen: ClientFacts | Arrivals, row: int) -> ClientFacts | Arrivals:
    """One of the clients, alone."""
    if isinstance(seen, Arrivals):
        return _only_arrival(seen, slice(row, row + 1))
    return _only_client(seen, row)


def _only_arrival(seen: Arrivals, this: slice) -> Arrivals:
    return replace(
        seen,
        client_ids=seen.client_ids[this],
        models=seen.models[this],
        memory={name: values[this] for name, values in seen.memory.items()},
        attributes={name: values[this] for name, values in seen.attributes.items()},
        seconds=None if seen.seconds is None else seen.seconds[this],
        ages=None if seen.ages is None else seen.ages[this],
        _cache=[],
    )


def _only_client(seen: ClientFacts, row: int) -> ClientFacts:
    this = slice(row, row + 1)
    samples = seen.owner == row
    start_loss = seen.load_start_loss
    return ClientFacts(
        num_samples=seen.num_samples[this],
        label_counts=seen.label_counts[this],
        training_loss=seen.training_loss[this],
        attributes={name: values[this] for name, values in seen.attributes.items()},
        sample_attributes={
            name: values[samples] for name, values in seen.sample_attributes.items()
        },
        load_inputs=lambda: seen.inputs[samples],
        training=seen.training,
        load_start_loss=(lambda: start_loss()[this]) if start_loss else None,
        device=seen.device.of([row]) if seen.device else None,
    )

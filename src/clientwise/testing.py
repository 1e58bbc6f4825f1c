"""Checks for parts: every criterion, score and rule must pass its check.

The tests of clientwise run them on all of its parts. Run them on yours:

    from clientwise.testing import check_criterion

    def test_battery():
        check_criterion("battery", attributes={"battery": [0.9, 0.1, 0.5]})

A check raises an AssertionError that says what is wrong. It compares what a part declares (who
measures it, its largest value, what it needs) with what it does, so that a wrong declaration fails
here and not in the first round of a run. `clientwise check` tries a round of every method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from .core.aggregation.rules import RULES, Ruled
from .core.clock import Devices
from .core.criteria import Arrivals, Criterion, make_criterion
from .core.objective.problem import (
    Classification,
)
from .core.types import LocalTraining
from .core.weights.scores import Score
from .data.federated import FederatedData, Holdings, Samples
from .engine.local import LocalEngine

__all__ = ["check_criterion", "check_rule", "check_score"]

CLIENTS = 3
CLASSES = 3
SIZE = 8  # images are SIZE × SIZE
NONE: Mapping[str, Tensor] = {}


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
        TypeError: where it does not return one value per client.

    Example:
        >>> check_criterion("dataset_size")
        >>> check_criterion("attribute", of="premium", attributes={"premium": [1.0, 0.0, 0.5]})
    """
    criterion = make_criterion(name, **options)
    by_client = {key: torch.tensor(one).double() for key, one in (attributes or {}).items()}
    by_sample = {key: torch.tensor(one) for key, one in (sample_attributes or {}).items()}
    engine = _clients(by_client, by_sample)

    def measure(*rows: int) -> Tensor:
        if criterion.measured_by == "server":
            return criterion.column(_arrivals(engine, criterion, rows), len(rows))
        losses = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)[list(rows)]
        training = LocalTraining(epochs=2, batch_size=3)
        return criterion.column(
            engine.facts(rows, losses, engine.initial_model, training), len(rows)
        )

    everybody = range(CLIENTS)
    values = measure(*everybody)
    high = criterion.high(engine.problem)
    is_number = bool((values.isfinite() & (values >= 0)).all())
    assert is_number, f"{name} must be finite and not negative, is {values.tolist()}"
    assert float(values.max()) <= high, f"{name} = {values.max():g}, above its bound {high:g}"
    assert_close(measure(*everybody), values, msg=f"{name}: two measurements differ")
    if "whole_cohort" in criterion.needs:
        return
    alone = torch.cat([measure(row) for row in everybody])
    depends = f"{name}: a client's value depends on the other clients"
    hint = "measure it on the server with needs={'whole_cohort'}"
    assert_close(alone, values, msg=f"{depends}; {hint} ({values.tolist()}, {alone.tolist()})")


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
    is_score = bool((scores.isfinite() & (scores >= 0)).all())
    assert is_score, f"{label}: scores must be finite and 0 or more"
    backwards = score(names, values.flip(0)).flip(0)
    assert_close(backwards, scores, msg=f"{label}: scores depend on the order of the clients")
    for column, name in enumerate(names):
        for client in range(len(values)):
            more = values.clone()
            more[client, column] += 0.1
            risen = score(names, more)[client]
            assert risen >= scores[client] - 1e-9, f"{label}: the score falls when {name} rises"
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
        shape = tuple(ruled.influence.shape)
        assert shape == (len(updates),), f"{name}: needs one influence per client, returned {shape}"
        return ruled

    def same(found: Ruled, expected: Tensor, message: str) -> None:
        assert_close(found.update, expected, rtol=1e-5, atol=1e-6, msg=f"{name}: {message}")

    equal = rule(updates[:1].expand(7, -1).clone(), weights)
    same(equal, updates[0], "equal updates must give that update, of the same shape and type")
    result = rule(updates, weights).update
    assert bool(result.isfinite().all()), f"{name}: the result of finite updates must be finite"
    backwards = rule(updates.flip(0), weights.flip(0))
    same(backwards, result, "the result depends on the clients' order")
    halves = rule(torch.cat([updates, updates]), torch.cat([weights, weights]) / 2)
    same(halves, result, "a client of weight w must count like two clients of weight w/2")
    stranger = 1e6 * torch.ones(1, 40)
    unheard = rule(torch.cat([updates, stranger]), torch.cat([weights, torch.zeros(1).double()]))
    same(unheard, result, "a client with weight 0 must not change the result")
    *others, of_stranger = unheard.influence.tolist()
    fits = all(0 <= one < 1 + 1e-9 for one in others)
    assert fits, f"{name}: an influence must be between 0 and 1, got {others}"
    assert of_stranger == 0, f"{name}: the influence of a client with weight 0 must be 0"


# What parts are tried on ------------------------------------------------------------------------------------


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=_generator())


def _clients(
    attributes: Mapping[str, Tensor] = NONE, sample_attributes: Mapping[str, Tensor] = NONE
) -> LocalEngine:
    """Three clients with 4, 2 and 3 samples of three classes."""
    inputs = torch.rand(9, 1, SIZE, SIZE, generator=_generator())
    targets = torch.tensor([0, 0, 1, 2, 0, 0, 0, 1, 2])
    samples = Samples(inputs, targets, Classification(CLASSES), sample_attributes=sample_attributes)
    held = Holdings(torch.arange(9), targets, torch.tensor([0, 4, 6, 9]))
    devices = Devices(*torch.rand(6, CLIENTS, generator=_generator()).double())
    data = FederatedData(samples, held, held, None, None, attributes=attributes, devices=devices)
    network = nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, CLASSES), nn.BatchNorm1d(CLASSES))
    for weights in network.parameters():
        nn.init.normal_(weights, generator=_generator())
    return LocalEngine(data, network, seed=1)


def _arrivals(engine: LocalEngine, criterion: Criterion, rows: Sequence[int]) -> Arrivals:
    """Some of three models: a copy of the global one, one that moved a little, one that moved far."""
    clients = list(rows)
    model = engine.initial_model
    direction = torch.rand(len(model), generator=_generator())
    models = model + torch.tensor([0.0, 0.5, 8.0])[:, None] * direction
    memory = {}
    if criterion.memory:
        memory[criterion.part.name] = criterion.memory.first(CLIENTS)[clients]
    return Arrivals(
        tuple(rows),
        models[clients],
        model,
        engine.spec,
        partial(engine.evaluate, [0]),
        memory,
        {name: values[clients] for name, values in engine.attributes.items()},
        lambda: torch.ones_like(model),
        seconds=torch.tensor([0.5, 60.0, 3600.0], dtype=torch.float64)[clients],
        ages=torch.tensor([0.0, 1.0, 10.0], dtype=torch.float64)[clients],
    )

"""Checks that every part must pass. clientwise's own tests run them over all of its parts; run them over yours.

    from clientwise.testing import check_criterion

    def test_battery():
        check_criterion("battery", attributes={"battery": [0.9, 0.1, 0.5]})

Each raises an AssertionError that says what is wrong. What a part declares (who measures it, its largest value, what it
needs) is checked against what it does, so that a wrong declaration shows here and not in the first round of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .core.clock import Devices
from .core.criteria import HONEST, Arrivals, ClientFacts, Criterion, make_criterion
from .core.problem import Classification
from .core.rules import RULES
from .core.scores import Score
from .core.types import Engine, Evaluation, Layer, LocalTraining, ModelSpec, Task, Updates
from .registry import Part

__all__ = ["check_criterion", "check_engine", "check_rule", "check_score"]

CLIENTS, CLASSES, SIZE = 3, 3, 8  # of the small federation that criteria are tried on; images are SIZE × SIZE
DEVICES = [  # of its clients: the facts of `core.clock.Devices`
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
    """A registered criterion gives one finite value per client in its range, whoever else is in the batch.

    `attributes` are facts about the three clients it is tried on, `sample_attributes` about their nine samples.
    """
    one = make_criterion(name, **options)
    problem = Classification(CLASSES)
    known = {key: torch.tensor(values, dtype=torch.float64) for key, values in (attributes or {}).items()}
    per_sample = {key: torch.tensor(values) for key, values in (sample_attributes or {}).items()}
    seen = _some_clients(known, per_sample) if one.measured_by == "client" else _some_arrivals(one, known)
    values = _measured(one, seen)
    assert values.shape == (CLIENTS,), f"{name}: one value per client, got shape {tuple(values.shape)} for {CLIENTS}"
    assert bool(values.isfinite().all()), f"{name}: not finite: {values.tolist()}"
    assert bool((values >= 0).all()), f"{name}: negative: {values.tolist()}; the larger the better, from 0 up"
    high = one.high(problem)
    assert bool((values <= high).all()), f"{name}: {values.tolist()} is above its declared upper bound {high:g}"
    torch.testing.assert_close(_measured(one, seen), values, msg=f"{name}: measured twice, it gives two answers")
    if "whole_cohort" in one.needs:
        return
    alone = torch.cat([_measured(one, _only(seen, row)) for row in range(CLIENTS)])
    message = (
        f"{name}: depends on who else is in the batch; declare needs={{'whole_cohort'}} (got {alone.tolist()} alone)"
    )
    torch.testing.assert_close(alone, values, msg=message)


def _measured(one: Criterion, seen: ClientFacts | Arrivals) -> Tensor:
    return one.measure(seen).double().cpu()


def _some_clients(attributes: Mapping[str, Tensor], sample_attributes: Mapping[str, Tensor]) -> ClientFacts:
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


def _some_arrivals(one: Criterion, attributes: Mapping[str, Tensor]) -> Arrivals:
    """Three models: a copy of the global one, one that moved a little, one that moved far."""
    spec = ModelSpec((Layer("kernel", (2, 2), 0, 4), Layer("bias", (2,), 4, 6), Layer("buffer", (1,), 6, 7)), 6, 7)
    models = torch.zeros(CLIENTS, 7)
    models[1, :4], models[2, 4], models[:, 6] = 0.5, 8.0, 100.0
    right = torch.tensor([9, 5, 0])

    def judge(judged: Tensor) -> Evaluation:
        rows = [int((models == model).all(1).nonzero()[0]) for model in judged]  # the same answer alone or together
        counts = torch.stack([torch.eye(CLASSES, dtype=torch.int64) * right[row] for row in rows])
        counts[:, 0, 1] = torch.tensor([10 - int(right[row]) for row in rows])
        values = (right[rows] / 10).double()[:, None]
        return Evaluation(torch.tensor([30]), values, 1 - values, counts)

    memory = {one.part.name: one.memory.first(CLIENTS)} if one.memory else {}
    known = {HONEST: torch.tensor([1.0, 0.0, 1.0]), **attributes}
    return Arrivals(
        tuple(range(CLIENTS)),
        models,
        torch.zeros(7),
        spec,
        judge,
        memory,
        known,
        lambda: torch.ones(7),
        seconds=torch.tensor([0.5, 60.0, 3600.0], dtype=torch.float64),
        ages=torch.tensor([0.0, 1.0, 10.0], dtype=torch.float64),
    )


def _only(seen: ClientFacts | Arrivals, row: int) -> ClientFacts | Arrivals:
    """One of the clients, alone."""
    this = slice(row, row + 1)
    if isinstance(seen, Arrivals):
        memory = {name: values[this] for name, values in seen.memory.items()}
        attributes = {name: values[this] for name, values in seen.attributes.items()}
        mine, models = seen.client_ids[this], seen.models[this]
        seconds, ages = (values if values is None else values[this] for values in (seen.seconds, seen.ages))
        own = replace(seen, client_ids=mine, models=models, memory=memory, attributes=attributes, _cache=[])
        return replace(own, seconds=seconds, ages=ages)
    samples, start_loss = seen.owner == row, seen.load_start_loss
    return ClientFacts(
        num_samples=seen.num_samples[this],
        label_counts=seen.label_counts[this],
        training_loss=seen.training_loss[this],
        attributes={name: values[this] for name, values in seen.attributes.items()},
        sample_attributes={name: values[samples] for name, values in seen.sample_attributes.items()},
        load_inputs=lambda: seen.inputs[samples],
        training=seen.training,
        load_start_loss=(lambda: start_loss()[this]) if start_loss else None,
        device=seen.device.of([row]) if seen.device else None,
    )


def check_score(score: Score, names: Sequence[str] = ("a", "b", "c")) -> None:
    """A score is finite, zero or more, grows with every criterion (P1 Eq. 7), and its terms say what it does."""
    label = type(score).__name__
    score.check(names)
    values = torch.rand(20, len(names), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    scores = score(names, values)
    assert scores.shape == (20,), f"{label}: one score per client, got shape {tuple(scores.shape)} for 20 clients"
    assert bool((scores.isfinite() & (scores >= 0)).all()), f"{label}: scores must be finite, zero or more"
    order = torch.randperm(20, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(
        score(names, values[order]), scores[order], msg=f"{label}: depends on the clients' order"
    )
    for column, name in enumerate(names):
        for client in range(len(values)):
            more = values.clone()
            more[client, column] += 0.1
            assert score(names, more)[client] >= scores[client] - 1e-9, f"{label}: falls when {name} rises"
    priority = score.order(names)
    assert priority is None or sorted(priority) == sorted(names), f"{label}: its order leaves out criteria"
    terms = score.terms(names)
    if terms is not None:  # models are then folded by the terms alone
        exponents = torch.tensor([term.exponents for term in terms], dtype=torch.float64)  # [t, m]
        coefficients = torch.tensor([term.coefficient for term in terms], dtype=torch.float64)
        by_terms = score.prepare(names, values)[:, None].pow(exponents).prod(-1) @ coefficients
        torch.testing.assert_close(by_terms, scores, msg=f"{label}: its terms do not add up to its scores")


def check_rule(name: str, **options: Any) -> None:
    """A registered rule counts a client by its weight alone, ignores who has none, and says what came from whom."""
    random = torch.Generator().manual_seed(1)
    updates = torch.randn(7, 40, generator=random)
    weights = torch.rand(7, generator=random, dtype=torch.float64)
    weights /= weights.sum()

    def rule(updates: Tensor, weights: Tensor) -> Tensor:
        return RULES.get(name)(updates, weights, {}, **options).update

    result = rule(updates, weights)
    assert result.shape == (40,), f"{name}: one update [d], got shape {tuple(result.shape)}"
    assert result.dtype == updates.dtype, f"{name}: must keep the type {updates.dtype}, got {result.dtype}"
    assert bool(result.isfinite().all()), f"{name}: not finite on finite updates"
    order = torch.randperm(7, generator=random)
    _agree(rule(updates[order], weights[order]), result, f"{name}: depends on the clients' order")
    halves = torch.cat([updates, updates]), torch.cat([weights, weights]) / 2
    _agree(rule(*halves), result, f"{name}: a client of weight w must count as two of weight w/2")
    with_nobody = torch.cat([updates, 1e6 * torch.ones(1, 40)]), torch.cat([weights, torch.zeros(1).double()])
    _agree(rule(*with_nobody), result, f"{name}: a client without weight must not count")
    same = rule(updates[:1].expand(7, -1).clone(), weights)
    _agree(same, updates[0], f"{name}: clients that agree must get what they agree on")
    influence = RULES.get(name)(*with_nobody, {}, **options).influence
    assert influence.shape == (8,), f"{name}: one influence per client, got shape {tuple(influence.shape)} for 8"
    assert bool(((influence >= 0) & (influence < 1 + 1e-9)).all()), f"{name}: an influence is between 0 and 1"
    assert influence[7] == 0, f"{name}: a client without weight must have no influence, got {float(influence[7]):g}"


def _agree(found: Tensor, expected: Tensor, message: str) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, msg=message)


def check_engine(engine: Engine, training: LocalTraining | None = None) -> None:
    """An engine trains whom it is asked to, once each and the same every time; evaluates; continues from its state."""
    training = training or LocalTraining(epochs=1, batch_size=20, learning_rate=0.1)
    task = Task(1, training, engine.problem.loss, (Part("dataset_size", {}),))
    asked = tuple(range(min(3, engine.num_clients)))
    model, kept = engine.initial_model, dict(engine.state())
    updates = _trained(engine, asked, model, task)
    assert sorted(updates.client_ids) == sorted(asked), f"asked {asked} to train, got {updates.client_ids}"
    assert updates.models.shape == (len(asked), engine.spec.size), f"models of shape {tuple(updates.models.shape)}"
    assert bool(updates.models.isfinite().all()), "a trained model has NaN or Inf"
    assert all(part.called in updates.measurements for part in task.criteria), "a criterion was asked for in vain"
    assert not torch.equal(updates.models[0], model), "training left the model as it was"
    engine.load_state(kept)
    again = _trained(engine, asked, model, task)
    assert torch.equal(again.models, updates.models), "the same task from the same state gives other models"
    everybody = engine.evaluate(range(engine.num_clients), torch.stack([model, updates.models[0]]))
    shape = (2, engine.num_clients)
    assert everybody.values.shape == everybody.losses.shape == shape, f"evaluations of shape {shape} were asked for"
    assert everybody.num_samples.shape == (engine.num_clients,), "an evaluation tells how many samples each client has"
    if engine.problem.num_classes:
        counted = everybody.counts.sum((-2, -1))
        assert bool((counted == everybody.num_samples.sum()).all()), "the counts are not of all samples"
    for values in engine.attributes.values():
        assert len(values) == engine.num_clients, "attributes have one value per client"


def _trained(engine: Engine, asked: Sequence[int], model: Tensor, task: Task) -> Updates:
    chunks = [replace(chunk, failures=()) for chunk in engine.train(asked, model, task) if chunk.client_ids]
    return Updates.joined(chunks).by_client()

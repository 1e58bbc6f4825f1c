"""Clients evaluated by sampling: the sample, the standard error, and no effect on training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from clientwise.core.method import Method, Plan
from clientwise.core.round import first_state, run_round
from clientwise.core.types import Evaluation
from clientwise.engine.local import LocalEngine

CLIENTS = 60
DRAWN = 30


@pytest.fixture
def everyone() -> Evaluation:
    """Clients of unequal size, of which a fifth has no test data; larger ones have better values."""
    random = torch.Generator().manual_seed(1)
    sizes = torch.randint(1, 40, (CLIENTS,), generator=random)
    sizes[::5] = 0
    noise = 0.1 * torch.randn(1, CLIENTS, generator=random, dtype=torch.float64)
    values = 0.4 + 0.01 * sizes + noise
    return Evaluation(sizes, values, values, torch.zeros(1, 2, 2))


def sampled(everyone: Evaluation, clients: list[int]) -> Evaluation:
    part = Evaluation(
        everyone.num_samples[clients],
        everyone.values[:, clients],
        everyone.losses[:, clients],
        everyone.counts,
    )
    return part.as_sample(clients, CLIENTS)


def test_the_standard_error_is_the_spread_over_samples(everyone: Evaluation) -> None:
    means = []
    errors = []
    random = torch.Generator().manual_seed(2)
    for _ in range(3000):
        order = torch.randperm(CLIENTS, generator=random)
        found = sampled(everyone, order[:DRAWN].tolist())
        error = found.sampling_error()
        assert error is not None
        means.append(float(found.overall()[0]))
        errors.append(float(error[0]))
    spread = torch.tensor(means)
    assert float(spread.mean()) == pytest.approx(float(everyone.overall()[0]), abs=0.003)
    assert sum(errors) / len(errors) == pytest.approx(float(spread.std()), rel=0.05)


def test_the_sample_follows_from_seed_and_round() -> None:
    plan = Plan(seed=1, cohort_size=5, evaluate_clients_sample=10)
    clients = plan.evaluating(100, 3)
    assert len(set(clients)) == 10
    assert clients == replace(plan, cohort_size=7).evaluating(100, 3)
    assert clients != plan.evaluating(100, 4)
    assert clients != replace(plan, seed=2).evaluating(100, 3)
    assert clients != replace(plan, cohort_size=10).cohort(100, 3)
    assert plan.evaluating(10, 3) == range(10)


def test_training_does_not_depend_on_the_sample(make_engine: Callable[..., LocalEngine]) -> None:
    """Not even where no client of the sample has test data, and the server has none either."""
    engine = make_engine()
    engine._server_jobs = dict.fromkeys(engine._server_jobs)
    method = Method()
    state = first_state(engine.initial_model, method, engine)
    plan = Plan(seed=1, cohort_size=5)
    expected, whole = run_round(state, method, plan, engine)
    assert whole.local is not None
    evaluate = engine.evaluate
    part, record = run_round(state, method, replace(plan, evaluate_clients_sample=3), engine)
    assert torch.equal(part.model, expected.model)
    assert record.local is not None
    assert record.local.drawn == 3
    held = record.local.num_samples > 0
    assert int(held.sum()) == 3
    assert torch.equal(record.local.values[:, held], whole.local.values[:, held])

    def without_test_data(client_ids: object, models: object) -> Evaluation:
        found = evaluate(client_ids, models)  # type: ignore[arg-type]
        return replace(found, num_samples=torch.zeros_like(found.num_samples))

    engine.evaluate = without_test_data  # type: ignore[method-assign, assignment]
    part, record = run_round(state, method, replace(plan, evaluate_clients_sample=3), engine)
    assert torch.equal(part.model, expected.model)
    assert not record.notes
    _, record = run_round(state, method, plan, engine)
    assert record.notes == ("no client evaluated the aggregate: the model stays as it was",)

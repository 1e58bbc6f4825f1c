"""Rounds with secure aggregation, simulated: sums in fixed point, clipped updates, void rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clientwise.core.criteria import make_criterion
from clientwise.core.method import Method, Plan
from clientwise.core.privacy import SecretSum, SecureAggregation
from clientwise.core.round import first_state, run_round
from clientwise.core.types import RoundRecord, ServerState
from clientwise.core.weights.scores import Mean, Prioritized, Product, Score, WeightedMean
from clientwise.core.weights.weighting import no_scale
from clientwise.engine.wrapping import EmbeddedEngine

SIZES = (make_criterion("dataset_size"), make_criterion("label_diversity"))


@pytest.fixture
def small_engine(make_engine: Callable[..., EmbeddedEngine]) -> EmbeddedEngine:
    return make_engine()


def one_round(
    engine: EmbeddedEngine, method: Method
) -> tuple[ServerState, ServerState, RoundRecord]:
    """The state before, the state after, and the record."""
    state = first_state(engine.initial_model, method, engine)
    plan = Plan(seed=1, cohort_size=engine.num_clients)
    return state, *run_round(state, method, plan, engine)


@pytest.mark.parametrize(
    ("share", "cohort", "needed"),
    [(2 / 3, 3, 3), (2 / 3, 6, 5), (0.5, 3, 3), (0.5, 4, 3), (0.5, 5, 3), (0.9, 10, 10)],
)
def test_the_threshold_is_more_than_the_share_and_at_least_three(
    share: float, cohort: int, needed: int
) -> None:
    assert SecureAggregation(threshold=share).needed(cohort) == needed


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("clients", [3, 4, 5, 8, 10, 16, 100, 1000])
@pytest.mark.parametrize("limit", [1.0, 7.0, 0.3, 1e12])
def test_the_largest_sum_does_not_overflow(bits: Any, clients: int, limit: float) -> None:
    scale = SecretSum(SecureAggregation(bits=bits), clients, 1.0, 1.0).scale(limit)
    assert clients * round(limit * scale) <= 2 ** (bits - 1) - 1


@given(
    st.lists(st.tuples(st.floats(0.01, 2), st.floats(-5, 5)), min_size=3, max_size=8),
    st.sampled_from([32, 64]),
)
def test_the_stated_rounding_holds_against_exact_arithmetic(
    clients: list[tuple[float, float]], bits: Any
) -> None:
    sums = SecretSum(SecureAggregation(bits=bits, clip=5.0), len(clients), highest=2.0, usual=1.0)
    scores = torch.tensor([score for score, _ in clients], dtype=torch.float64)
    updates = torch.tensor([[value] for _, value in clients], dtype=torch.float64)
    mean, bound = sums.mean(scores, updates, 1)
    exact = sum(Fraction(score) * Fraction(value) for score, value in clients)
    exact /= sum(Fraction(score) for score, _ in clients)
    assert abs(Fraction(float(mean[0])) - exact) <= bound
    assert bound < (1e-10 if bits == 64 else 1e-4)


@pytest.mark.parametrize(
    ("score", "bits"),
    [
        (Prioritized(), 32),
        (Prioritized(("label_diversity", "dataset_size")), 64),
        (Mean(), 32),
        (WeightedMean({"dataset_size": 3.0, "label_diversity": 1.0}), 64),
        (Product(powers={"label_diversity": 2.0}), 32),
        (None, 64),
    ],
)
def test_a_round_differs_from_the_clear_one_by_the_reported_rounding(
    small_engine: EmbeddedEngine, score: Score | None, bits: Any
) -> None:
    clear = Method(criteria=SIZES, score=score or Product())
    if score is None:  # criteria in their own units are up to 10¹²
        score = Product(powers={"label_diversity": 0.0, "dataset_size": 0.5})
        clear = Method(criteria=SIZES, score=score, normaliser=no_scale, uses_sums=False)
    secret = replace(clear, secure=SecureAggregation(bits=bits, clip=5.0))
    _, expected, known = one_round(small_engine, clear)
    _, found, record = one_round(small_engine, secret)
    (note,) = record.notes
    assert f"{small_engine.num_clients} of {small_engine.num_clients} clients" in note
    bound = float(note.rsplit(" ", 1)[1])
    rounding = float(expected.model.abs().max()) * 2e-7  # of float32
    difference = float((found.model - expected.model).abs().max())
    assert difference <= bound * 1.01 + rounding
    assert bound < 1e-4
    assert torch.allclose(record.weights, known.weights, atol=1e-6)


def test_a_long_update_is_scaled_down_by_its_client(small_engine: EmbeddedEngine) -> None:
    secret = Method(criteria=SIZES, secure=SecureAggregation(clip=0.01))
    state, after, _ = one_round(small_engine, secret)
    moved = float((after.model - state.model).norm())
    assert 0 < moved <= 0.01 * (1 + 1e-3)


def test_buffers_are_cut_value_by_value_and_do_not_count_in_the_norm() -> None:
    sums = SecretSum(SecureAggregation(clip=5.0), 3, highest=1.0, usual=1.0)
    update = torch.tensor([[3.0, 4.0, 400.0]])
    mean, _ = sums.mean(torch.ones(1, dtype=torch.float64), update, num_parameters=2)
    assert mean.tolist() == pytest.approx([3.0, 4.0, 5.0], abs=1e-6)


def test_too_few_usable_updates_make_the_round_void(
    small_engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = small_engine.train

    def train(client_ids: Any, model: Any, task: Any) -> Any:
        for updates in honest(client_ids, model, task):
            updates.models[: len(updates.client_ids) // 2] = torch.nan
            yield updates

    monkeypatch.setattr(small_engine, "train", train)
    state, after, record = one_round(
        small_engine, Method(criteria=SIZES, secure=SecureAggregation())
    )
    assert torch.equal(after.model, state.model)
    assert "the round is void" in record.notes[0]
    assert len(record.refusals) >= 1

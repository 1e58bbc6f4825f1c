"""Sums in fixed point, scores by the clients, and rounds of the embedded engine with secure aggregation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clientwise.core.criteria import make_criterion
from clientwise.core.fixed_point import FixedPoint, SecureAggregation
from clientwise.core.method import Method, Plan
from clientwise.core.round import first_state, run_round
from clientwise.core.secrecy import SecretScores
from clientwise.core.weights.scores import (
    Mean,
    Prioritized,
    Product,
    Score,
    WeightedMean,
)
from clientwise.core.weights.weighting import no_scale
from clientwise.engine.wrapping import EmbeddedEngine


@pytest.fixture
def small_engine(make_engine: Callable[..., EmbeddedEngine]) -> EmbeddedEngine:
    return make_engine()


SIZES = (make_criterion("dataset_size"), make_criterion("label_diversity"))


@given(
    st.lists(st.lists(st.floats(-50, 50), min_size=4, max_size=4), min_size=1, max_size=8),
    st.sampled_from([32, 64]),
)
def test_a_sum_is_exact_up_to_the_stated_rounding_and_never_overflows(
    rows: list[list[float]], bits: int
) -> None:
    point = FixedPoint(bits, clients=8, limit=20.0)
    values = torch.tensor(rows, dtype=torch.float64)
    total = sum((point.encode(row) for row in values), numpy.zeros(4, dtype=f"<u{bits // 8}"))
    exact = values.clamp(-20, 20).sum(0)
    assert bool(((point.decode(total) - exact).abs() <= len(rows) * point.error * (1 + 1e-6)).all())


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("clients", [3, 4, 5, 8, 10, 16, 100, 1000])
@pytest.mark.parametrize("limit", [1.0, 7.0, 0.3, 1e12])
def test_the_largest_sum_does_not_overflow(bits: int, clients: int, limit: float) -> None:
    point = FixedPoint(bits, clients, limit)
    for value in (limit, -limit):
        one = point.encode(torch.tensor([value], dtype=torch.float64))
        total = numpy.zeros(1, dtype=one.dtype)
        for _ in range(clients):
            total = total + one
        assert float(point.decode(total)) == pytest.approx(clients * value, rel=1e-4)


@pytest.mark.parametrize(
    ("share", "cohort", "needed"),
    [(2 / 3, 3, 3), (2 / 3, 6, 5), (0.5, 3, 3), (0.5, 4, 3), (0.5, 5, 3), (0.9, 10, 10)],
)
def test_the_threshold_is_more_than_the_share_and_at_least_three(
    share: float, cohort: int, needed: int
) -> None:
    assert SecureAggregation(threshold=share).needed(cohort) == needed


@pytest.mark.parametrize(
    ("score", "uses_sums"),
    [
        (Prioritized(), True),
        (Prioritized(("label_diversity", "dataset_size")), True),
        (Mean(), True),
        (WeightedMean({"dataset_size": 3.0, "label_diversity": 1.0}), True),
        (Product(powers={"label_diversity": 2.0}), True),
        (Product(powers={"label_diversity": 2.0}), False),
    ],
)
@pytest.mark.parametrize("bits", [32, 64])
def test_a_round_differs_from_the_clear_one_by_the_reported_rounding(
    small_engine: EmbeddedEngine, score: Score, uses_sums: bool, bits: int
) -> None:
    if not uses_sums:
        score = Product(powers={"label_diversity": 0.0, "dataset_size": 0.5})  # highs are 10¹²
        bits = 64
    clear = Method(criteria=SIZES, score=score)
    if not uses_sums:
        clear = replace(clear, normaliser=no_scale)
    secret = replace(clear, secure=SecureAggregation(bits=bits, clip=5.0), uses_sums=uses_sums)  # type: ignore[arg-type]
    plan = Plan(seed=1, cohort_size=small_engine.num_clients)
    expected, known = run_round(
        first_state(small_engine.initial_model, clear, small_engine), clear, plan, small_engine
    )
    found, record = run_round(
        first_state(small_engine.initial_model, secret, small_engine), secret, plan, small_engine
    )
    (note,) = record.notes
    assert f"{small_engine.num_clients} of {small_engine.num_clients} clients" in note
    bound = float(note.rsplit(" ", 1)[1])
    rounding = float(expected.model.abs().max()) * 2e-7  # of float32
    difference = float((found.model - expected.model).abs().max())
    assert difference <= bound * 1.01 + rounding
    assert bound < 1e-4
    assert torch.allclose(record.weights, known.weights, atol=1e-6)


@given(
    st.lists(
        st.tuples(st.floats(0.5, 900), st.floats(0.01, 1), st.floats(-5, 5)), min_size=3, max_size=8
    ),
    st.sampled_from([32, 64]),
    st.booleans(),
)
def test_the_stated_rounding_holds_against_exact_arithmetic(
    clients: list[tuple[float, float, float]], bits: Any, prioritized: bool
) -> None:
    """The sums of the criteria are rounded, too: with 64 bits, this is most of the error."""
    score = Prioritized() if prioritized else Mean()
    method = Method(criteria=SIZES, score=score, secure=SecureAggregation(bits=bits, clip=5.0))
    scores = SecretScores(method, (1e12, 1.0), len(clients))
    raws = [torch.tensor(one[:2], dtype=torch.float64) for one in clients]
    encoded = [scores.encode_criteria(raw) for raw in raws]
    sums = scores.decode_criteria(sum(encoded[1:], encoded[0]))
    vectors = []
    for raw, (_, _, value) in zip(raws, clients, strict=True):
        update = torch.tensor([value], dtype=torch.float64)
        vectors.append(scores.encode_vector(scores.score(raw, sums), update, 1))
    total, mean, bound = scores.decode_vector(sum(vectors[1:], vectors[0]), len(clients), sums)
    assert total > 0
    criteria = [(Fraction(size), Fraction(other)) for size, other, _ in clients]
    sizes, others = (sum(column) for column in zip(*criteria, strict=True))
    weights = []
    for size, other in criteria:
        first, second = size / sizes, other / others
        weights.append(first * (1 + second) if prioritized else (first + second) / 2)
    weighted = sum(w * Fraction(one[2]) for w, one in zip(weights, clients, strict=True))
    assert abs(Fraction(float(mean[0])) - weighted / sum(weights)) <= bound
    assert bound < (1e-5 if bits == 64 else 1e-4)


def test_a_long_update_is_scaled_down_by_its_client(small_engine: EmbeddedEngine) -> None:
    secret = Method(criteria=SIZES, secure=SecureAggregation(clip=0.01))
    plan = Plan(seed=1, cohort_size=small_engine.num_clients)
    state = first_state(small_engine.initial_model, secret, small_engine)
    after, _ = run_round(state, secret, plan, small_engine)
    moved = float((after.model - state.model).norm())
    assert 0 < moved <= 0.01 * (1 + 1e-3)


def test_buffers_are_cut_value_by_value_and_do_not_count_in_the_norm() -> None:
    scores = SecretScores(Method(secure=SecureAggregation(clip=5.0)), (1.0,), 3)
    update = torch.tensor([3.0, 4.0, 400.0])
    assert scores.clipped(update, num_parameters=2).tolist() == [3.0, 4.0, 5.0]


def test_scores_stay_within_their_bound_whatever_sums_a_server_sends() -> None:
    scores = SecretScores(Method(criteria=SIZES, secure=SecureAggregation()), (1e12, 10.0), 5)
    for criteria in ([100.0, 3.0], [100.0, 0.0]):
        raw = torch.tensor(criteria, dtype=torch.float64)
        for sums in ([1e-9, 1e-9], [0.0, 0.0], [1e300, 1e300], [5e-324, 1.0]):
            score = scores.score(raw, torch.tensor(sums, dtype=torch.float64))
            assert 0 <= score <= scores.highest


def test_a_score_that_is_not_finite_is_not_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cast of NaN to an integer gives any number."""
    scores = SecretScores(Method(criteria=SIZES, secure=SecureAggregation()), (1e12, 10.0), 5)
    ones = torch.ones(2, dtype=torch.float64)
    monkeypatch.setattr(Prioritized, "__call__", lambda *given: torch.tensor([torch.nan]))
    with pytest.raises(ValueError, match="the score is not finite"):
        scores.score(ones, ones)


def test_too_few_usable_updates_make_the_round_void(
    small_engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = small_engine.train

    def train(client_ids: Any, model: Any, task: Any) -> Any:
        for updates in honest(client_ids, model, task):
            updates.models[: len(updates.client_ids) // 2] = torch.nan
            yield updates

    monkeypatch.setattr(small_engine, "train", train)
    secret = Method(criteria=SIZES, secure=SecureAggregation())
    plan = Plan(seed=1, cohort_size=small_engine.num_clients)
    state = first_state(small_engine.initial_model, secret, small_engine)
    after, record = run_round(state, secret, plan, small_engine)
    assert torch.equal(after.model, state.model)
    assert "the round is void" in record.notes[0]
    assert len(record.refusals) >= 1

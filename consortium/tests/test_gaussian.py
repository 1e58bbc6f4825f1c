"""The exact sampler: its distribution is the formula's."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest

from clientwise_consortium.gaussian import bernoulli_exp, discrete_gaussian, discrete_laplace

DRAWS = 20_000


def distance(counts: Counter[int], weights: dict[int, float]) -> float:
    """χ² per degree of freedom, over values that are expected often enough."""
    total = sum(weights.values())
    expected = {value: DRAWS * weight / total for value, weight in weights.items()}
    used = {value: count for value, count in expected.items() if count > 20}
    return sum((counts[value] - count) ** 2 / count for value, count in used.items()) / len(used)


@pytest.mark.parametrize("variance", [Fraction(1, 3), Fraction(7, 2), Fraction(40)])
def test_discrete_gaussian(variance: Fraction) -> None:
    counts = Counter(discrete_gaussian(variance) for _ in range(DRAWS))
    weights = {x: math.exp(-(x**2) / (2 * float(variance))) for x in range(-60, 61)}
    assert distance(counts, weights) < 2.5
    mean_square = sum(x**2 * count for x, count in counts.items()) / DRAWS
    exact = sum(x**2 * w for x, w in weights.items()) / sum(weights.values())
    assert mean_square == pytest.approx(exact, rel=0.06)


def test_discrete_laplace() -> None:
    counts = Counter(discrete_laplace(3) for _ in range(DRAWS))
    assert distance(counts, {x: math.exp(-abs(x) / 3) for x in range(-80, 81)}) < 2.5


@pytest.mark.parametrize("exponent", [Fraction(0), Fraction(1, 5), Fraction(1), Fraction(7, 3)])
def test_bernoulli_exp(exponent: Fraction) -> None:
    share = sum(bernoulli_exp(exponent) for _ in range(DRAWS)) / DRAWS
    assert share == pytest.approx(math.exp(-exponent), abs=0.015)

"""Differences, intervals and tests, against SciPy and by hand."""

from __future__ import annotations

import numpy
import pytest
from scipy import stats

from clientwise.report.statistics import Difference, holm, paired_difference


def test_a_difference_is_students_paired_test() -> None:
    generator = numpy.random.default_rng(3)
    ours, theirs = generator.normal(size=(2, 6))
    found = paired_difference(ours, theirs)
    expected = stats.ttest_rel(ours, theirs)
    assert found is not None
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.interval == pytest.approx(tuple(expected.confidence_interval(0.95)))
    # Against a table: n = 3, differences 1, 2, 3; t(0.975, 2) = 4.303
    assert paired_difference([1.0, 2.0, 3.0], [0.0] * 3).margin == pytest.approx(
        4.3027 / 3**0.5, rel=1e-4
    )


def test_pairs_need_both_values_and_a_claim_five_of_them() -> None:
    assert paired_difference([0.5], [0.4]) == Difference(pytest.approx(0.1), None, 1)
    assert paired_difference([None, 1.0], [1.0, None]) is None
    ours, theirs = [0.9, 0.91, 0.89, 0.9, 0.9], [0.5, 0.52, 0.49, 0.5, 0.5]
    assert paired_difference(ours, theirs).is_significant
    few = paired_difference(ours[:3], theirs[:3])
    assert few.p_value < 0.05
    assert not few.is_significant
    assert few.significance() == "no significance is claimed with fewer than 5 seeds"


def test_an_interval_excludes_zero_if_and_only_if_its_p_is_below_five_percent() -> None:
    generator = numpy.random.default_rng(1)
    verdicts = set()
    for effect in generator.uniform(0, 1.5, 60):
        plain = [
            paired_difference(row, numpy.zeros(6)) for row in effect + generator.normal(size=(4, 6))
        ]
        for own, one in zip(plain, holm(plain), strict=True):
            low, high = one.interval
            assert (low > 0 or high < 0) == (one.p_value < 0.05)
            assert low <= own.interval[0] + 1e-12
            verdicts.add((own.interval[0] > 0 or own.interval[1] < 0, one.p_value < 0.05))
    assert verdicts == {(True, True), (True, False), (False, False)}

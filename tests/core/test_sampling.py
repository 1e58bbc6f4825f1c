from __future__ import annotations

from collections import Counter

import torch

from clientwise.core.sampling import cohort_size, sample_clients
from clientwise.core.seeding import seeded_default_generator


def test_cohort_size() -> None:
    assert cohort_size(371, fraction=0.1) == 37
    assert cohort_size(5, fraction=0.01) == 1
    assert cohort_size(5, clients_per_round=9) == 5


def test_a_cohort_is_seeded_per_round_and_has_nobody_twice() -> None:
    cohort = sample_clients(100, 10, seed=1, round_num=7)
    assert cohort == sample_clients(100, 10, seed=1, round_num=7)
    assert len(set(cohort)) == 10
    assert cohort != sample_clients(100, 10, seed=1, round_num=8)
    assert cohort != sample_clients(100, 10, seed=2, round_num=7)


def test_everyone_is_drawn_about_equally_often() -> None:
    seen = Counter(
        client for round_num in range(2000) for client in sample_clients(20, 5, 1, round_num)
    )
    assert all(400 < seen[client] < 600 for client in range(20))  # 500 expected, deviation 19


def test_the_default_generator_is_put_back() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    with seeded_default_generator(1, "dropout", 1, 1):
        inside = torch.rand(2)
    assert torch.equal(torch.rand(2), expected)
    with seeded_default_generator(1, "dropout", 1, 1):
        assert torch.equal(torch.rand(2), inside)

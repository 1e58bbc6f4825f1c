from __future__ import annotations

from collections import Counter

import pytest
import torch

from clientwise.core.sampling import ByScore, cohort_size, sample_clients
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


SCORES = torch.tensor([8.0, 4.0, 2.0, 1.0, 0.0, torch.nan, 1.0, 0.5], dtype=torch.float64)


@pytest.mark.parametrize(("floor", "size"), [(0.1, 3), (0.5, 2), (1.0, 5), (1e-3, 6)])
def test_clients_are_drawn_as_often_as_their_scores_say(floor: float, size: int) -> None:
    sampling = ByScore(floor=floor)
    expected = sampling.probabilities(SCORES, size)
    assert float(expected.sum()) == pytest.approx(size)
    assert bool((expected >= floor * size / len(SCORES) * 0.99).all())
    rounds = 400
    seen = Counter[int]()
    for round_num in range(rounds):
        cohort = sampling.draw(SCORES, len(SCORES), size, 1, round_num)
        assert len(set(cohort)) == len(cohort) == size
        assert sorted(cohort) == list(cohort)
        seen.update(cohort)
    for client, probability in enumerate(expected.tolist()):
        deviation = (probability * (1 - probability) / rounds) ** 0.5
        assert abs(seen[client] / rounds - probability) <= 4 * deviation + 1e-12


def test_an_unseen_client_has_the_mean_score_and_nobody_seen_makes_all_alike() -> None:
    sampling = ByScore(floor=0.2)
    seen = torch.tensor([4.0, 2.0, torch.nan])
    assert sampling.probabilities(seen, 1)[2] == pytest.approx(1 / 3)
    for scores in ([torch.nan] * 4, [0.0] * 4, [torch.inf, 1.0, 2.0, 3.0], [-1.0, 0.0, 0.0, 0.0]):
        assert sampling.probabilities(torch.tensor(scores), 2).tolist() == [0.5] * 4


def test_a_draw_by_score_depends_on_seed_and_round_alone() -> None:
    sampling = ByScore()
    first = sampling.draw(SCORES, 8, 3, 1, 5)
    assert first == sampling.draw(SCORES.clone(), 8, 3, 1, 5)
    others = {sampling.draw(SCORES, 8, 3, 1, number) for number in range(20)}
    assert len(others) > 5

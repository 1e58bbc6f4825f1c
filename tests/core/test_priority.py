"""P2 Algorithm 1, line by line, on candidates whose accuracies are known."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch

from clientwise.core.feedback import ADJUSTMENTS
from clientwise.core.types import Candidate, Evaluation

NAMES = ("a", "b", "c")
ORDERS = list(itertools.permutations(NAMES))


class Clients:
    """Clients that answer with the accuracies of a table, and count how often they were asked."""

    def __init__(self, accuracies: dict[tuple[str, ...], float]) -> None:
        self.accuracies = accuracies
        self.asked: list[list[tuple[str, ...]]] = []

    def build(self, order: tuple[str, ...]) -> Candidate:
        return Candidate(
            order,
            *[torch.ones(1)] * 3,
            model=torch.zeros(1),
            stepped=torch.zeros(1, 1),
            step_state={},
        )

    def evaluate(self, candidates: Sequence[Candidate]) -> Evaluation:
        orders = [candidate.priority for candidate in candidates]
        self.asked.append(orders)
        # Two clients of test size 1 and 3, so that the weighted mean is the accuracy of the table.
        values = torch.tensor(
            [[self.accuracies[order] + 0.3, self.accuracies[order] - 0.1] for order in orders]
        )
        return Evaluation(torch.tensor([1, 3]), values, values, torch.zeros(len(orders), 2, 2))


def search(how: str, accuracies: Sequence[float], previous: float | None, higher: bool = True):
    clients = Clients(dict(zip(ORDERS, accuracies, strict=True)))
    result = ADJUSTMENTS.get(how)(ORDERS, clients.build, clients.evaluate, previous, higher)
    return result, clients


def test_an_order_that_is_not_worse_is_kept_with_one_test() -> None:
    for previous in (None, 0.4, 0.5):
        result, clients = search("first_improvement", [0.5, 0.9, 0.9, 0.9, 0.9, 0.9], previous)
        assert result.chosen.priority == ORDERS[0]
        assert (result.testing_rounds, len(clients.asked)) == (1, 1)
        assert float(result.evaluation.overall()[0]) == pytest.approx(0.5)


def test_the_first_order_that_is_not_worse_is_taken_not_the_best() -> None:
    result, clients = search("first_improvement", [0.3, 0.4, 0.6, 0.9, 0.9, 0.9], previous=0.5)
    assert result.chosen.priority == ORDERS[2]
    assert result.testing_rounds == 3
    assert [order for order, _ in result.tried] == ORDERS[:3]
    assert [value for _, value in result.tried] == pytest.approx([0.3, 0.4, 0.6])
    assert clients.asked == [[order] for order in ORDERS[:3]]


def test_if_none_is_good_enough_the_least_bad() -> None:
    result, _ = search("first_improvement", [0.1, 0.2, 0.4, 0.3, 0.4, 0.0], previous=0.5)
    assert result.chosen.priority == ORDERS[2]  # the earlier of the two with 0.4
    assert result.testing_rounds == 6  # m!
    assert float(result.evaluation.overall()[0]) == pytest.approx(0.4)


def test_best_order_keeps_the_current_one_on_a_tie() -> None:
    assert search("best_order", [0.5] * 6, previous=0.9)[0].chosen.priority == ORDERS[0]


@pytest.mark.parametrize("how", ["first_improvement", "best_order"])
def test_errors_are_better_when_smaller(how: str) -> None:
    result, _ = search(how, [0.5, 0.6, 0.2, 0.3, 0.2, 0.9], previous=0.25, higher=False)
    assert result.chosen.priority == ORDERS[2]


@pytest.mark.parametrize("how", ["first_improvement", "best_order"])
def test_a_model_that_answers_nan_is_never_preferred(how: str) -> None:
    result, _ = search(how, [float("nan"), 0.1, 0.2, float("nan"), 0.1, 0.1], previous=0.5)
    assert result.chosen.priority == ORDERS[2]

"""`Aggregator.choose`: the clients of a round, drawn by the score of their last values."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy
import pytest
import torch

import clientwise as cw
from clientwise.core.sampling import ByScore

SENT = {"w": numpy.zeros(2, "float32")}
SIZES = {"a": 100, "b": 50, "c": 25, "d": 25, "e": 0}
TABLE: dict[str, Any] = {
    "name": "drawn",
    "like": "FedAvg",
    "sampling": {"name": "by_score", "floor": 0.2},
}


def one_round(aggregator: cw.Aggregator, clients: list[Any]) -> cw.Aggregate:
    updates = {client: {"w": numpy.ones(2, "float32")} for client in clients}
    return aggregator.aggregate(
        SENT, updates, {one: {"dataset_size": SIZES[one]} for one in clients}
    )


def test_clients_are_chosen_by_the_score_of_their_last_values() -> None:
    aggregator = cw.Aggregator(TABLE)
    assert aggregator.draws_clients
    assert sorted(aggregator.choose(SIZES, 9)) == list(SIZES)
    done = one_round(aggregator, list(SIZES))
    assert done.weights == pytest.approx(dict.fromkeys(SIZES, 0.2))  # a criterion counts once
    counts = Counter[str]()
    rounds = 400
    for _ in range(rounds):
        chosen = aggregator.choose(reversed([*SIZES, "a"]), 2)
        assert len(set(chosen)) == 2
        counts.update(map(str, chosen))
        one_round(aggregator, chosen)
    scores = torch.tensor([float(one) for one in SIZES.values()], dtype=torch.float64)
    expected = ByScore(floor=0.2).probabilities(scores, 2)
    for client, probability in zip(SIZES, expected.tolist(), strict=True):
        deviation = (rounds * probability * (1 - probability)) ** 0.5
        assert abs(counts[client] - rounds * probability) < 4 * deviation + 1


def test_a_new_client_has_the_mean_score_and_a_seed_decides() -> None:
    draws = []
    for seed in (1, 1, 2):
        aggregator = cw.Aggregator(TABLE, seed=seed)
        aggregator.choose(["a", "e"], 2)
        one_round(aggregator, ["a", "e"])
        found = []
        for _ in range(100):
            found.append(aggregator.choose(["a", "new", "e"], 1))
            one_round(aggregator, ["a", "e"])
        draws.append(found)
    assert draws[0] == draws[1] != draws[2]
    counted = Counter(chosen[0] for chosen in draws[0])
    assert counted["a"] > counted["new"] > counted["e"]


def test_rounds_with_other_clients_are_refused_in_a_line() -> None:
    aggregator = cw.Aggregator(TABLE)
    with pytest.raises(RuntimeError, match="call `choose` before `begin`"):
        aggregator.begin(SENT)
    aggregator.choose(["a"], 1)
    one_round(aggregator, ["a"])
    with pytest.raises(RuntimeError, match="call `choose` before `begin`"):
        aggregator.begin(SENT)
    with pytest.raises(ValueError, match="FedAvg does not draw clients"):
        cw.Aggregator("FedAvg").choose(["a"], 1)


def test_a_refused_update_leaves_the_last_values() -> None:
    aggregator = cw.Aggregator(TABLE)
    aggregator.choose(["a", "b"], 2)
    one_round(aggregator, ["a", "b"])
    before = aggregator._method.last_scores(aggregator._state)
    aggregator.choose(["a", "b"], 2)
    broken = {"a": {"w": numpy.full(2, numpy.nan)}, "b": SENT}
    aggregator.aggregate(SENT, broken, {"a": {"dataset_size": 130}, "b": {"dataset_size": 50}})
    after = aggregator._method.last_scores(aggregator._state)
    assert torch.equal(before[:2], after[:2])

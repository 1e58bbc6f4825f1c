"""Shapley values: their axioms, an oracle, and how far sampled ones are off."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import oracles
from clientwise.core.evidence.rivals import exact_shapley
from clientwise.core.other_weights import MOST_EXACT, sampled_shapley, shapley


def game(players: int, seed: int) -> Tensor:
    """The worths of all coalitions [2^n]."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(2**players, generator=random, dtype=torch.float64)


def codes(members: Tensor) -> Tensor:
    return (members * 2 ** torch.arange(members.shape[1])).sum(1)


def test_sampled_values_are_within_their_errors() -> None:
    players = 7
    worth = game(players, 3)
    exact = exact_shapley(worth)
    random = torch.Generator().manual_seed(1)
    found = sampled_shapley(lambda members: worth[codes(members)], players, 400, random)
    assert bool((found.errors > 0).all())
    assert bool(((found.values - exact).abs() < 4 * found.errors).all())
    # Also sampled, every order gives away all of the gain.
    assert float(found.values.sum()) == pytest.approx(float(worth[-1] - worth[0]))


def test_more_players_than_can_be_enumerated_are_sampled() -> None:
    counts = []

    def worth(members: Tensor) -> Tensor:
        counts.append(len(members))
        return members.sum(1).double()

    random = torch.Generator().manual_seed(1)
    few = shapley(worth, 4, random)
    assert (few.values.tolist(), few.errors.tolist()) == ([1.0] * 4, [0.0] * 4)
    assert counts == [16]
    many = shapley(worth, MOST_EXACT + 1, random)
    assert many.values.tolist() == pytest.approx([1.0] * (MOST_EXACT + 1))


@pytest.mark.parametrize("players", [2, 3, 5])
def test_against_shapiq(players: int) -> None:
    shapiq = oracles.shapiq("game_theory.exact")
    if shapiq is None:
        pytest.skip("shapiq is not installed; `make test` does it")
    worth = game(players, players)

    def of(coalitions: object) -> object:
        members = torch.as_tensor(coalitions).long()
        return worth[codes(members)].numpy()

    computer = shapiq.ExactComputer(n_players=players, game=of)
    theirs = computer("SV").get_n_order_values(1)
    torch.testing.assert_close(exact_shapley(worth), torch.as_tensor(theirs))

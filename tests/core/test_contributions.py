"""Shapley values: their axioms, an oracle, and how far sampled ones are off."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import oracles
from clientwise.core.evidence.rivals import all_coalitions, exact_shapley
from clientwise.core.other_weights import MOST_EXACT, sampled_shapley, shapley

PLAYERS = st.integers(1, 6)
SEEDS = st.integers(0, 10_000)


def game(players: int, seed: int) -> Tensor:
    """The worths of all coalitions [2^n]."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(2**players, generator=random, dtype=torch.float64)


def codes(members: Tensor) -> Tensor:
    return (members * 2 ** torch.arange(members.shape[1])).sum(1)


@settings(deadline=None, max_examples=40)
@given(players=PLAYERS, seed=SEEDS)
def test_the_values_sum_to_the_gain_of_all(players: int, seed: int) -> None:
    worth = game(players, seed)
    assert float(exact_shapley(worth).sum()) == pytest.approx(float(worth[-1] - worth[0]))


@settings(deadline=None, max_examples=40)
@given(players=st.integers(2, 6), seed=SEEDS)
def test_equal_players_share_and_a_null_player_has_nothing(players: int, seed: int) -> None:
    worth = game(players, seed)
    members = all_coalitions(players)
    # Players 0 and 1 count alike: the worth depends on how many of them are in.
    alike = members.clone()
    alike[:, 0] = (members[:, 0] + members[:, 1]).clamp(max=1)
    alike[:, 1] = members[:, 0] * members[:, 1]
    values = exact_shapley(worth[codes(alike)])
    assert float(values[0]) == pytest.approx(float(values[1]))
    # Player 0 changes nothing.
    without = members.clone()
    without[:, 0] = 0
    values = exact_shapley(worth[codes(without)])
    assert float(values[0]) == pytest.approx(0, abs=1e-12)


@settings(deadline=None, max_examples=20)
@given(players=PLAYERS, seed=SEEDS)
def test_values_of_a_sum_of_games_are_sums(players: int, seed: int) -> None:
    """So the values of a run are the sums over its rounds."""
    one, other = game(players, seed), game(players, seed + 1)
    torch.testing.assert_close(
        exact_shapley(one + other), exact_shapley(one) + exact_shapley(other)
    )


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

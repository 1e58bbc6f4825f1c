"""Exact Shapley values against an oracle."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import oracles
from clientwise.core.evidence.rivals import exact_shapley


def game(players: int, seed: int) -> Tensor:
    """The worths of all coalitions [2^n]."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(2**players, generator=random, dtype=torch.float64)


def codes(members: Tensor) -> Tensor:
    return (members * 2 ** torch.arange(members.shape[1])).sum(1)


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

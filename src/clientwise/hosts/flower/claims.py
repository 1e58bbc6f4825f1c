"""Claims: what a client says about its own data is stated once, and may change only a little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...core.criteria import is_fixed
from ...registry import Part

STATE = "claims."  # prefix in a checkpoint


class Claims:
    """The values that clients stated first, and the range around each.

    A claim x is accepted if v/f ≤ x ≤ f·v, where v is the client's first claim.

    Args:
        max_change: f, at least 1.
    """

    def __init__(self, max_change: float) -> None:
        self._max_change = max_change
        self._first: dict[str, float] = {}  # by client and criterion

    def check(self, client: int, asked: Sequence[Part], measured: Mapping[str, Tensor]) -> None:
        """Compare an update's criteria with what the client said first; ValueError outside the range."""
        for part in asked:
            if is_fixed(part) and part.called in measured:
                self._compare(client, part.called, float(measured[part.called]))

    def _compare(self, client: int, name: str, value: float) -> None:
        if not 0 <= value < float("inf"):
            return  # the guard refuses it
        first = self._first.setdefault(f"{client} {name}", value)
        low = first / self._max_change
        high = first * self._max_change
        if not low <= value <= high:
            raise ValueError(
                f"{name} = {value:.12g}, at first {first:.12g}: {low:.6g} to {high:.6g} is allowed "
                f"(flower.max_change = {self._max_change:g})"
            )

    def state(self) -> dict[str, Tensor]:
        """The first claims, for a checkpoint."""
        return {
            STATE + key: torch.tensor(value, dtype=torch.float64)
            for key, value in self._first.items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        for key, value in state.items():
            if key.startswith(STATE):
                self._first[key.removeprefix(STATE)] = float(value)

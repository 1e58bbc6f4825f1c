"""Claims: what a client says about its own data is stated once, and may change only a little."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ...core.criteria import is_fixed
from ...errors import ClientwiseError
from ...registry import Part

TEST_SAMPLES = "test_samples"  # the name of the test set's size among the declared values
STATE = "claims."  # prefix in a checkpoint
NOT_STATED = math.nan


@dataclass
class Claims:
    """The values that clients declared or stated first, and the range around each.

    A claim x is accepted if v/f ≤ x ≤ f·v, where v is the declared value and f is `max_change`. A
    client for which nothing is declared declares by its first claim.

    Args:
        names: of the clients.
        max_change: f, at least 1.
        file: one line for each value, `NAME CRITERION VALUE`; later lines count. It is read again
            for every check, so the operator can add a line during a run.
    """

    names: Sequence[str]
    max_change: float
    file: Path | None = None
    _first: dict[str, Tensor] = field(default_factory=dict)  # by criterion, each [K]

    def check(self, client: int, asked: Sequence[Part], measured: Mapping[str, Tensor]) -> None:
        """Compare an update's criteria with what the client declared; ValueError outside the range."""
        for part in asked:
            if is_fixed(part) and part.called in measured:
                self.check_one(client, part.called, float(measured[part.called]))

    def check_one(self, client: int, name: str, value: float) -> None:
        """Compare one claim; ValueError outside the range."""
        declared = self._declared().get((self.names[client], name))
        stated = float(self._row(name)[client])
        known = stated if declared is None else declared
        if math.isnan(known):
            if 0 <= value < math.inf:  # else the guard refuses it
                self._row(name)[client] = value
            return
        low = known / self.max_change
        high = known * self.max_change
        if not low <= value <= high:
            raise ValueError(self._why(client, name, value, known, low, high))

    def state(self) -> dict[str, Tensor]:
        """The first claims, for a checkpoint."""
        return {STATE + name: row.clone() for name, row in self._first.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned; clients that joined since have stated nothing."""
        for key, row in state.items():
            if key.startswith(STATE):
                self._row(key.removeprefix(STATE))[: len(row)] = row.cpu()

    def _row(self, name: str) -> Tensor:
        if name not in self._first:
            nothing = torch.full((len(self.names),), NOT_STATED, dtype=torch.float64)
            self._first[name] = nothing
        return self._first[name]

    def _declared(self) -> dict[tuple[str, str], float]:
        """What the operator's file says, by client and criterion."""
        if self.file is None or not self.file.exists():
            return {}
        return read_declared(self.file)

    def _why(
        self, client: int, name: str, value: float, known: float, low: float, high: float
    ) -> str:
        text = (
            f"{name} = {value:.12g}, declared {known:.12g}: {low:.6g} to {high:.6g} is allowed "
            f"(flower.max_change = {self.max_change:g})"
        )
        if self.file is None:
            return text
        line = f"{self.names[client]} {name} {value:.12g}"
        return f"{text}. If it is right, the server's operator adds '{line}' to {self.file.name}"


def read_declared(file: Path) -> dict[tuple[str, str], float]:
    """The values in a file of lines `NAME CRITERION VALUE`, by client and criterion.

    Raises `ClientwiseError` with the line that is wrong.
    """
    found = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            name, criterion, value = text.rsplit(maxsplit=2)
            found[name, criterion] = _size(value)
        except ValueError:
            raise ClientwiseError(
                f"{file}: line {number} is {text!r}; write NAME CRITERION VALUE, "
                "such as: ward-a dataset_size 480"
            ) from None
    return found


def _size(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(text)
    return value

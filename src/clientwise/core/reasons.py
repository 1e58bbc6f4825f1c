"""Why an update was refused, and why a round kept its model.

Code asks for the kind or the cause. The sentence that people read is made from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "absent",  # late, or dropped out: no fault of the update
    "diverged",  # training returned a model that is not finite
    "unreachable",  # another attempt may succeed
    "not connected",  # as "unreachable", and nothing was sent
]
Cause = Literal[
    "no update",
    "bounds",  # the detail says why they are infeasible
    "overflow",
    "zero weights",
    "zero criteria",  # the detail names them
    "aggregate",
    "predictions",
    "no evaluation",
]
SENTENCES: dict[Cause, str] = {
    "no update": "no update was accepted: the model stays as it was",
    "bounds": "no weights meet the bounds ({}): the model stays as it was",
    "overflow": "the scores overflow: the model stays as it was",
    "zero weights": "all weights are zero: the model stays as it was",
    "zero criteria": "all weights are zero ({}: zero for all clients): the model stays as it was",
    "aggregate": "the aggregate has NaN or Inf: the model stays as it was",
    "predictions": "the aggregate predicts NaN or Inf: the model stays as it was",
    "no evaluation": "no client evaluated the aggregate: the model stays as it was",
}


@dataclass(frozen=True)
class Reason:
    """The text of a refusal that code asks about, with its kind."""

    text: str
    kind: Kind

    def __str__(self) -> str:
        return self.text


def likely_cause(kind: str | None) -> str:
    """Why an update of an honest client is refused for a reason of this kind; empty if unknown."""
    if kind != "diverged":
        return ""
    return "Most likely training diverges: try a smaller training.learning_rate, and inputs of a similar scale."


@dataclass(frozen=True)
class Kept:
    """Why a round kept the model of the round before."""

    cause: Cause
    detail: str = ""

    @property
    def sentence(self) -> str:
        """The cause in words."""
        return SENTENCES[self.cause].format(self.detail)

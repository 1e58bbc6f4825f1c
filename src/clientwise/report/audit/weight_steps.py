"""The columns from a client's score to its final share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...record.reading.rows import ClientRoundRow, ParticipantRow
from ..document import Cell, number, percent_of

Weighed = ParticipantRow | ClientRoundRow


@dataclass(frozen=True)
class Stage:
    """A column: its label, and a client's value there."""

    label: str
    value: Callable[[Weighed], float | None]
    text: Callable[[float | None], str] = percent_of
    is_secondary: bool = False  # left out of a terminal that has no room
    mover: str = ""  # what turns the share before into this one; empty for the criteria

    @property
    def is_share(self) -> bool:
        """Whether its values are shares of the model."""
        return self.text is percent_of

    def cell(self, row: Weighed) -> Cell:
        """The value as a cell of a table."""
        value = self.value(row)
        return Cell(value, self.text(value))


SCORE = Stage("score", lambda row: row.score, lambda value: number(value, 4))
PRIOR = Stage("weight by criteria", lambda row: row.prior)
HARM = Stage(
    "harm",
    lambda row: row.harm,
    lambda value: "–" if value is None else f"{value:.2g}",
    is_secondary=True,
)
Z = Stage("z", lambda row: row.z, lambda value: number(value, 1))
HISTORY_Z = replace(Z, label="history z", value=lambda row: row.history_z, is_secondary=True)
POSTERIOR = Stage("weight after evidence", lambda row: row.posterior, mover="evidence")
WEIGHT = Stage("weight", lambda row: row.weight, mover="evidence")
BOUNDED = replace(WEIGHT, label="weight within bounds", mover="bounds")
INFLUENCE = Stage("final share", lambda row: row.influence, mover="rule")


def stages(rows: Sequence[Weighed]) -> list[Stage]:
    """The columns of these rows, in order.

    A column without values is left out, and so is one that only repeats the one before it.
    """
    weight = [WEIGHT]
    if any(row.weight != _before_bounds(row) for row in rows):
        weight = [POSTERIOR, BOUNDED]
    always = (SCORE, weight[-1])
    chain = [SCORE, PRIOR, HARM, Z, HISTORY_Z, *weight, INFLUENCE]
    return [stage for stage in chain if stage in always or _has_values(stage, rows)]


def _has_values(stage: Stage, rows: Sequence[Weighed]) -> bool:
    return any(stage.value(row) is not None for row in rows)


def _before_bounds(row: Weighed) -> float | None:
    if row.prior is None:  # neither evidence nor bounds changed it
        return row.weight
    return row.prior if row.posterior is None else row.posterior

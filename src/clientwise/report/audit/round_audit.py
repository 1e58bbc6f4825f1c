"""One round of one method and seed: the explanation of every weight, and what else there is to say."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from ...record.reading.folder import RunFolder
from ...record.reading.rows import CriterionRow, OmittedRow, ParticipantRow, RoundRow
from .explanation_today import Explanation, explain
from .parameters import parameters
from .weight_steps import Stage, stages

MAX_COHORT = 500  # participants that an overview lists
MAX_BARS = 20  # clients in the picture of a round

Candidate = tuple[tuple[str, ...], float]  # an order of priority, and its metric


@dataclass(frozen=True)
class Participant:
    """A client whose update arrived."""

    row: ParticipantRow
    why: Explanation
    measured: dict[str, CriterionRow]  # by criterion
    path: tuple[float, ...]  # its share after each of the audit's `steps`; empty if one is unknown

    @property
    def client(self) -> int:
        """Its number."""
        return self.why.client

    @property
    def label(self) -> str:
        """Its number and name, and what a simulation makes of it."""
        named = (str(self.client), self.why.name, self.why.simulated_as)
        return " ".join(text for text in named if text)


@dataclass(frozen=True)
class Audit:
    """A round."""

    run: RunFolder
    method: str
    seed: int
    round_num: int
    criteria: tuple[str, ...]
    stages: tuple[Stage, ...]  # columns from the score to the final share, those that it has
    steps: tuple[str, ...]  # what moves an equal share: the criteria, evidence, bounds, the rule
    participants: tuple[Participant, ...]  # heaviest first
    parameters: tuple[str, ...]
    notes: tuple[str, ...]
    priority: tuple[str, ...] | None
    candidates: tuple[Candidate, ...]
    testing_rounds: int
    num_participants: int  # of which `participants` may have the most notable alone
    num_known: int  # those whose path is known


def audit(
    run: RunFolder, method: str, seed: int, round_num: int, *, notable: bool = False
) -> Audit:
    """Everything about the weights of one round.

    Args:
        run: the run.
        method: the method.
        seed: the seed.
        round_num: the round.
        notable: of a cohort of more than MAX_COHORT, only the clients with the largest weights, and
            those that are farthest from an equal weight.
    """
    record = run.round(method, seed, round_num)
    every = run.participants(method, seed, round_num)
    columns = stages(every)
    shares = [stage for stage in columns if stage.is_share]
    paths = {row: _path(row, shares) for row in every}
    clients = None
    if notable and sum(row.refusal is None for row in every) > MAX_COHORT:
        clients = _notable(paths)
    rows = [row for row in every if clients is None or row.client in clients]
    reasons = explain(run, method, seed, round_num, clients)
    measured: dict[int, dict[str, CriterionRow]] = {}
    for one in run.criteria(method, seed, round_num, clients):
        measured.setdefault(one.client, {})[one.criterion] = one
    participants = [
        Participant(
            row, why, measured.get(row.client, {}) if row.refusal is None else {}, paths[row]
        )
        for row, why in zip(rows, reasons, strict=True)
    ]
    criteria = _names(reasons)
    return Audit(
        run=run,
        method=method,
        seed=seed,
        round_num=round_num,
        criteria=criteria,
        stages=tuple(columns),
        steps=(
            criteria[0] if len(criteria) == 1 else "criteria",
            *(_mover(stage, reasons) for stage in shares[1:]),
        ),
        participants=tuple(participants),
        parameters=tuple(parameters(run, method, seed, round_num)),
        notes=_notes(record, run.omitted(method, seed, round_num), len(every)),
        priority=record.priority,
        candidates=record.candidates or (),
        testing_rounds=record.testing_rounds,
        num_participants=len(every),
        num_known=sum(1 for path in paths.values() if path),
    )


def _names(reasons: Sequence[Explanation]) -> tuple[str, ...]:
    names = (one.name for reason in reasons for one in reason.criteria)
    return tuple(dict.fromkeys(names))


def _mover(stage: Stage, reasons: Sequence[Explanation]) -> str:
    is_clipping = stage.mover == "rule" and any(one.clipped is not None for one in reasons)
    return "clipping" if is_clipping else stage.mover


def _path(row: ParticipantRow, shares: Sequence[Stage]) -> tuple[float, ...]:
    """A share step by step; empty where one of the steps is unknown, or the update was refused."""
    known = [value for stage in shares if (value := stage.value(row)) is not None]
    return tuple(known) if row.refusal is None and len(known) == len(shares) else ()


def _notable(paths: dict[ParticipantRow, tuple[float, ...]]) -> list[int]:
    """The clients with the largest weights, which are the first rows, and those farthest from equal ones."""
    equal = 1 / max(1, sum(1 for path in paths.values() if path))

    def distance(row: ParticipantRow) -> float:
        return max((abs(value - equal) for value in paths[row]), default=0.0)

    heaviest = [row.client for row in paths][:MAX_COHORT]
    return list({*heaviest, *(row.client for row in heapq.nlargest(MAX_BARS, paths, key=distance))})


def _notes(record: RoundRow, omitted: OmittedRow | None, recorded: int) -> tuple[str, ...]:
    notes = [*record.notes]
    if record.no_effect:
        names = ", ".join(record.no_effect)
        notes.append(
            f"No effect on the weights: {names} (constant across the clients of this round)."
        )
    if omitted is not None:
        notes.append(
            f"The record has rows of {recorded:,} of {recorded + omitted.total:,} participants "
            f"(record.clients). The others have {omitted.weight:.1%} of the weight together."
        )
    return tuple(notes)

"""The audit of a weight: what was measured, what it became, and what would change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.scores import SCORES, Score
from ..core.weighting import NORMALISERS, Normaliser, divide, to_weights
from ..experiment.parts import make, read_part
from ..runs.folder import RunFolder
from ..runs.rows import CriterionRow, ParticipantRow
from .chain import PRIOR, Chain, MethodParts, Place, described, places
from .document import Cell, percent_of

MAX_COHORT = 500  # beyond this, what-if weights would take longer than anyone waits


@dataclass(frozen=True)
class Participant:
    """One participant of a round. What does not apply to a refused one is None."""

    client: int
    name: str | None
    raw: tuple[float | None, ...]
    normalised: tuple[float | None, ...]
    score: float | None
    weight: float | None
    chain: tuple[Cell, ...]  # one per place, from score to influence
    what_if: tuple[float | None, ...]  # its weight by the score, had it the cohort's best value in each criterion
    path: tuple[float, ...]  # its weight after each of the audit's `steps`; none of a refused one
    remark: str  # hostile, refused and why
    moved: tuple[str, ...]  # what moved its weight, in words


@dataclass(frozen=True)
class Audit:
    """One round of one method and seed, weight by weight."""

    run: RunFolder
    method: str
    seed: int
    round_num: int
    criteria: tuple[str, ...]
    places: tuple[Place, ...]  # of the chain from score to influence that this round has
    participants: tuple[Participant, ...]  # heaviest first
    what_if: bool
    steps: tuple[str, ...]  # that make weights of an equal share: criteria one by one, evidence, bounds, the rule
    explanation: str
    priority: tuple[str, ...] | None
    candidates: tuple[tuple[tuple[str, ...], float], ...]
    testing_rounds: int
    notes: tuple[str, ...]

    @property
    def what_if_label(self) -> str:
        """What `what_if` would be: the weight, or what it is before anything else moves it."""
        return "prior weight with the best" if PRIOR in self.places else "weight with the best"


def audit(run: RunFolder, method: str, seed: int, round_num: int) -> Audit:
    """Everything about the weights of one round."""
    record = run.round(method, seed, round_num)
    measured = _measured(run.criteria(method, seed, round_num))
    rows, chain = run.participants(method, seed, round_num), Chain.of(run, method)
    passed = places(rows)
    moved = chain.remarks(run, method, seed, round_num, {row.client: row for row in rows if row.refusal is None})
    how = weighing(chain.parts) if chain.parts else None
    criteria = how.names if how else tuple(sorted({name for values in measured.values() for name in values}))
    clients = [client for client in measured if set(measured[client]) == set(criteria)]
    raw = torch.tensor([[measured[client][name].raw for name in criteria] for client in clients], dtype=torch.float64)
    what_if = _what_if(how, record.priority, raw)
    changed = dict(zip(clients, what_if, strict=True)) if what_if else {}
    order, weights = _one_by_one(how, record.priority, raw) if how and what_if else (("criteria",), [[]] * len(clients))
    growing = dict(zip(clients, weights, strict=True))
    shares = [place for place in passed if place.text is percent_of]
    constant = ", ".join(record.no_effect)
    extra = (f"{constant}: equal for all clients of this round: no effect, it told nobody apart.",) if constant else ()
    return Audit(
        run,
        method,
        seed,
        round_num,
        criteria,
        tuple(passed),
        tuple(
            _participant(
                row,
                criteria,
                measured.get(row.client, {}),
                passed,
                changed.get(row.client),
                moved[row.client] if row.refusal is None else (),
                (*growing.get(row.client, ()), *(place.value(row) for place in shares)),
            )
            for row in rows
        ),
        bool(what_if),
        (*order, *(place.mover for place in shares[1:])),
        " ".join([_explain(how, record.priority, PRIOR in passed), *chain.explain(passed)]),
        record.priority,
        record.candidates or (),
        record.testing_rounds,
        (*record.notes, *extra),
    )


def _measured(rows: Sequence[CriterionRow]) -> dict[int, dict[str, CriterionRow]]:
    """By client and criterion."""
    measured: dict[int, dict[str, CriterionRow]] = {}
    for row in rows:
        measured.setdefault(row.client, {})[row.criterion] = row
    return measured


def _participant(
    row: ParticipantRow,
    criteria: Sequence[str],
    measured: Mapping[str, CriterionRow],
    passed: Sequence[Place],
    what_if: tuple[float, ...] | None,
    moved: tuple[str, ...],
    path: tuple[float | None, ...],
) -> Participant:
    """`what_if` has its weights with another value in each criterion; of a refused update only the remark counts."""
    accepted = row.refusal is None
    values = [measured.get(name) if accepted else None for name in criteria]
    remarks = [f"hostile ({row.hostile})"] if row.hostile else []
    remarks += [f"refused: {row.refusal}"] if row.refusal else []
    return Participant(
        client=row.client,
        name=row.name,
        raw=tuple(None if value is None else value.raw for value in values),
        normalised=tuple(None if value is None else value.normalised for value in values),
        score=row.score,
        weight=row.weight,
        chain=tuple(place.cell(row) for place in passed),
        what_if=what_if if what_if and accepted else (None,) * len(criteria),
        path=tuple(value for value in path if value is not None) if accepted and None not in path else (),
        remark="; ".join(remarks),
        moved=moved,
    )


@dataclass(frozen=True)
class Weighing:
    """How a method of a run turned criteria into weights."""

    names: tuple[str, ...]
    score: Score
    normaliser: Normaliser
    description: str


def weighing(parts: MethodParts) -> Weighing | None:
    """A method's score and normaliser; None where they are not parts of this library."""
    try:
        score: Score = make(SCORES, read_part(SCORES, parts.score))
    except ValueError:  # a score that is a plugin's
        return None
    normaliser = parts.normalise.name if parts.normalise else score.default_normaliser
    if normaliser not in NORMALISERS:
        return None
    names = tuple(part.label or part.name for part in parts.criteria)
    return Weighing(names, score, NORMALISERS.get(normaliser), described(parts.score))


def _what_if(how: Weighing | None, priority: Sequence[str] | None, raw: Tensor) -> list[tuple[float, ...]]:
    """For every client [n] and criterion [m]: its weight, had it the cohort's best value there and all else equal."""
    if how is None or not 0 < len(raw) <= MAX_COHORT:
        return []
    score = how.score.with_order(priority)
    best = raw.max(0).values
    result = []
    for client in range(len(raw)):
        weights = []
        for column in range(raw.shape[1]):
            changed = raw.clone()
            changed[client, column] = best[column]
            weights.append(float(to_weights(score(how.names, divide(changed, how.normaliser(changed))))[client]))
        result.append(tuple(weights))
    return result


def _one_by_one(
    how: Weighing, priority: Sequence[str] | None, raw: Tensor
) -> tuple[tuple[str, ...], list[list[float]]]:
    """The criteria in their order, and each client's weight as they come in one after the other, before the last.

    Those that are not in yet are equal for all, so that everybody begins with the same share.
    """
    score = how.score.with_order(priority)
    order = tuple(score.order(how.names) or how.names)
    values = raw.mean(0).expand_as(raw).clone()
    weights = []
    for name in order[:-1]:
        column = how.names.index(name)
        values[:, column] = raw[:, column]
        weights.append(to_weights(score(how.names, divide(values, how.normaliser(values)))))
    return order, torch.stack(weights, 1).tolist() if weights else [[]] * len(raw)


def _explain(how: Weighing | None, priority: Sequence[str] | None, moved: bool) -> str:
    """How the weights by the score came about, in a sentence."""
    if how is None:
        return "The score is not one of this library's, so what would change a weight is not known."
    order = f" in the order {' > '.join(priority)}" if priority and len(priority) > 1 else ""
    subject = "Prior weight" if moved else "Weight"
    return f"{subject} = score / sum of scores; the score is {how.description}{order} of {', '.join(how.names)}."

"""The audit of a weight: what was measured, what it became, and what would change it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from ..core.scores import SCORES, Score
from ..core.weighting import NORMALISERS, Normaliser, divide, to_weights
from ..experiment.schema import make, read_part
from ..runs.reader import Run
from ..runs.rows import CriterionRow, ParticipantRow

MAX_COHORT = 500  # beyond this, what-if weights would take longer than anyone waits


@dataclass(frozen=True)
class Participant:
    """One participant of a round. What does not apply to a refused one is None."""

    client: int
    raw: tuple[float | None, ...]
    normalised: tuple[float | None, ...]
    score: float | None
    weight: float | None
    what_if: tuple[float | None, ...]  # its weight, had it the cohort's best value in each criterion
    remark: str  # its name, hostile, refused and why


@dataclass(frozen=True)
class Audit:
    """One round of one method and seed, weight by weight."""

    run: Run
    method: str
    seed: int
    round_num: int
    criteria: tuple[str, ...]
    participants: tuple[Participant, ...]  # heaviest first
    what_if: bool
    explanation: str
    priority: tuple[str, ...] | None
    candidates: tuple[tuple[tuple[str, ...], float], ...]
    testing_rounds: int
    notes: tuple[str, ...]


def audit(run: Run, method: str, seed: int, round_num: int) -> Audit:
    """Everything about the weights of one round."""
    record = run.round(method, seed, round_num)
    measured = _measured(run.criteria(method, seed, round_num))
    config = run.folder / "config.toml"
    how = weighing(config, config.stat().st_mtime_ns if config.exists() else 0, method)
    criteria = how.names if how else tuple(sorted({name for values in measured.values() for name in values}))
    clients = [client for client in measured if set(measured[client]) == set(criteria)]
    raw = torch.tensor([[measured[client][name].raw for name in criteria] for client in clients], dtype=torch.float64)
    what_if = _what_if(how, record.priority, raw)
    changed = dict(zip(clients, what_if, strict=True)) if what_if else {}
    constant = ", ".join(record.no_effect)
    extra = (f"{constant}: equal for all clients of this round: no effect, it told nobody apart.",) if constant else ()
    return Audit(
        run,
        method,
        seed,
        round_num,
        criteria,
        tuple(
            _participant(row, criteria, measured.get(row.client, {}), changed.get(row.client))
            for row in run.participants(method, seed, round_num)
        ),
        bool(what_if),
        _explain(how, record.priority),
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
    what_if: tuple[float, ...] | None,
) -> Participant:
    """`what_if` has its weights with another value in each criterion; of a refused update only the remark counts."""
    accepted = row.refusal is None
    values = [measured.get(name) if accepted else None for name in criteria]
    remarks = [row.name] if row.name else []
    remarks += [f"hostile ({row.hostile})"] if row.hostile else []
    remarks += [f"refused: {row.refusal}"] if row.refusal else []
    return Participant(
        client=row.client,
        raw=tuple(None if value is None else value.raw for value in values),
        normalised=tuple(None if value is None else value.normalised for value in values),
        score=row.score,
        weight=row.weight,
        what_if=what_if if what_if and accepted else (None,) * len(criteria),
        remark="; ".join(remarks),
    )


@dataclass(frozen=True)
class Weighing:
    """How a method of a run turned criteria into weights."""

    names: tuple[str, ...]
    score: Score
    normaliser: Normaliser
    description: str


class _Named(BaseModel):
    name: str
    label: str = Field("", alias="as")


class _Method(BaseModel):
    """What of a method in a resolved config says how it weighs."""

    name: str
    criteria: list[_Named]
    score: dict[str, object]
    normalise: _Named | None = None


class _Config(BaseModel):
    methods: list[_Method]


@lru_cache(maxsize=256)
def weighing(config: Path, modified: int, method: str) -> Weighing | None:
    """A method's score and normaliser, from the run's config; None where they are not parts of this library.

    Plugins are not imported: to look at a run must never execute what it names.
    """
    try:
        methods = _Config.model_validate(tomllib.loads(config.read_text(encoding="utf-8"))).methods
        settings = next((one for one in methods if one.name == method), None)
        if settings is None:
            return None
        score: Score = make(SCORES, read_part(SCORES, settings.score))
    except (OSError, ValueError):  # no such file, no TOML, another shape; a score that is a plugin's
        return None
    normaliser = settings.normalise.name if settings.normalise else score.default_normaliser
    if normaliser not in NORMALISERS:
        return None
    names = tuple(part.label or part.name for part in settings.criteria)
    options = {key: value for key, value in settings.score.items() if key not in ("name", "priority")}
    described = ", ".join(f"{key} {value}" for key, value in options.items()).replace("'", "")
    text = f"{settings.score['name']}" + (f" ({described})" if described else "")
    return Weighing(names, score, NORMALISERS.get(normaliser), text)


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


def _explain(how: Weighing | None, priority: Sequence[str] | None) -> str:
    """How the weights came about, in a sentence."""
    if how is None:
        return "The score is not one of this library's, so what would change a weight is not known."
    order = f" in the order {' > '.join(priority)}" if priority and len(priority) > 1 else ""
    return (
        f"Weight = score / sum of scores; the score is {how.description}{order} of {', '.join(how.names)}. "
        "“Weight with the best” says what a client would weigh, had it the best value of the round in that criterion."
    )

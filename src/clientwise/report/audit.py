"""The audit of a weight: what was measured, what it became, and what would change it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from ..core.scores import SCORES, Score
from ..core.weighting import NORMALISERS, Normaliser, divide, to_weights
from ..experiment.schema import make, read_part
from ..experiment.store import RunError
from .summary import Run

MAX_COHORT = 500  # beyond this, what-if weights would take longer than anyone waits


@dataclass(frozen=True)
class Person:
    """One participant of a round. What does not apply to a refused one is None."""

    client: int
    raw: tuple[float | None, ...]
    normalised: tuple[float | None, ...]
    score: float | None
    weight: float | None
    what_if: tuple[float | None, ...]  # its weight, had it the cohort's best value in each criterion
    remark: str  # hostile, refused and why


@dataclass(frozen=True)
class Audit:
    """One round of one method and seed, weight by weight."""

    run: Run
    method: str
    seed: int
    round_num: int
    criteria: tuple[str, ...]
    people: tuple[Person, ...]  # heaviest first
    what_if: bool
    explanation: str
    priority: tuple[str, ...] | None
    candidates: tuple[tuple[tuple[str, ...], float], ...]
    testing_rounds: int
    notes: tuple[str, ...]


def audit(run: Run, method: str, seed: int, round_num: int) -> Audit:
    """Everything about the weights of one round."""
    lane = run.lane(method, seed)
    rows = run.query(
        "SELECT priority, candidates, testing_rounds, no_effect, notes FROM rounds WHERE lane = ? AND round_num = ?",
        lane,
        round_num,
    )
    if not rows:
        raise RunError(f"{run.folder.name}: {method}, seed {seed}, has no round {round_num} (yet)")
    priority, candidates, testing_rounds, no_effect, notes = rows[0]
    order = tuple(json.loads(priority)) if priority else None
    measured = _measured(run, lane, round_num)
    config = run.folder / "config.toml"
    how = weighing(config, config.stat().st_mtime_ns if config.exists() else 0, method)
    found = {name for values in measured.values() for name in values}
    criteria = how.names if how else tuple(sorted(found))
    clients = [client for client in measured if set(measured[client]) == set(criteria)]
    what_if = _what_if(
        how,
        order,
        torch.tensor([[measured[client][name][0] for name in criteria] for client in clients], dtype=torch.float64),
    )
    changed = dict(zip(clients, what_if, strict=True)) if what_if else {}
    constant = json.loads(no_effect)
    extra = (
        (f"{', '.join(constant)}: equal for all clients of this round: no effect, it told nobody apart.",)
        if constant
        else ()
    )
    tried = tuple((tuple(one), value) for one, value in json.loads(candidates)) if candidates else ()
    return Audit(
        run,
        method,
        seed,
        round_num,
        criteria,
        tuple(_people(run, lane, round_num, criteria, measured, changed)),
        bool(what_if),
        _explain(how, order),
        order,
        tried,
        testing_rounds,
        (*json.loads(notes), *extra),
    )


Measured = dict[int, dict[str, tuple[float, float]]]  # by client and criterion: raw, normalised


def _measured(run: Run, lane: int, round_num: int) -> Measured:
    measured: Measured = {}
    query = "SELECT client, criterion, raw, normalised FROM criteria WHERE lane = ? AND round_num = ?"
    for client, name, raw, normalised in run.query(query, lane, round_num):
        measured.setdefault(client, {})[name] = (raw, normalised)
    return measured


def _people(
    run: Run,
    lane: int,
    round_num: int,
    criteria: Sequence[str],
    measured: Measured,
    changed: Mapping[int, Sequence[float]],
) -> Iterator[Person]:
    """Everyone whose update arrived, heaviest first; `changed` has the weights of those with another value."""
    query = """SELECT client, hostile, score, weight, refusal FROM participants JOIN lanes USING (lane)
        LEFT JOIN clients USING (seed, client) WHERE lane = ? AND round_num = ? ORDER BY weight DESC, client"""
    for client, hostile, score, weight, refusal in run.query(query, lane, round_num):
        values = measured.get(client, {}) if refusal is None else {}
        raw, normalised = (
            tuple(values[name][place] if name in values else None for name in criteria) for place in (0, 1)
        )
        what_if = changed.get(client) if refusal is None else None
        remarks = [f"hostile ({hostile})"] if hostile else []
        remarks += [f"refused: {refusal}"] if refusal else []
        yield Person(
            client, raw, normalised, score, weight, tuple(what_if or (None,) * len(criteria)), "; ".join(remarks)
        )


@dataclass(frozen=True)
class Weighing:
    """How a method of a run turned criteria into weights."""

    names: tuple[str, ...]
    score: Score
    normaliser: Normaliser
    description: str


@lru_cache(maxsize=256)
def weighing(config: Path, modified: int, method: str) -> Weighing | None:
    """A method's score and normaliser, from the run's config; None where they are not parts of this library.

    Plugins are not imported: to look at a run must never execute what it names.
    """
    try:
        methods = tomllib.loads(config.read_text(encoding="utf-8"))["methods"]
        settings = next(table for table in methods if table["name"] == method)
        score: Score = make(SCORES, read_part(SCORES, settings["score"]))
        normaliser = settings.get("normalise", {"name": score.default_normaliser})["name"]
        names = tuple(part.get("as") or part["name"] for part in settings["criteria"])
        options = {key: value for key, value in settings["score"].items() if key not in ("name", "priority")}
        described = ", ".join(f"{key} {value}" for key, value in options.items()).replace("'", "")
        text = settings["score"]["name"] + (f" ({described})" if described else "")
        return Weighing(names, score, NORMALISERS.get(normaliser), text)
    except (OSError, ValueError, KeyError, StopIteration, TypeError, AttributeError):
        return None


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

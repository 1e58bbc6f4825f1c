"""The audit of a round: every weight, what was measured for it, and what would change it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy
from numpy.typing import NDArray

from ...core.weights.scores import SCORES, Equal, Score
from ...core.weights.weighting import (
    NORMALISERS,
    divide,
    to_weights,
)
from ...record.known_parts import known_part
from ...record.options import build, with_options
from ...record.reading.config_view import RecordedMethod
from ...record.reading.folder import RunFolder
from ...record.reading.rows import (
    CriterionRow,
    OmittedRow,
    ParticipantRow,
    RoundRow,
    StepRow,
)
from ...registry import Part
from ..document import Cell, percent_of
from .weight_steps import (
    PRIOR,
    Chain,
    Stage,
    described,
    stages,
)

MAX_COHORT = 500  # with more clients, what-if weights take too long
MAX_BARS = 20  # clients in the picture of a round
UNKNOWN_SCORE = (
    "How the score was computed is unknown: it is a plugin's or a function, or the config cannot be read. "
    "So no what-if weights can be given."
)

Values = NDArray[numpy.float64]
Candidate = tuple[tuple[str, ...], float]  # an order of priority, and its metric
Measured = Mapping[int, Mapping[str, CriterionRow]]  # by client and criterion


@dataclass(frozen=True)
class Participant:
    """One participant of a round. What does not apply to a refused update is None or empty."""

    client: int
    name: str | None
    raw: tuple[float | None, ...]  # one per criterion
    normalised: tuple[float | None, ...]
    score: float | None
    weight: float | None
    chain: tuple[Cell, ...]  # one per stage, from score to influence
    what_if: tuple[float | None, ...]  # its weight with the cohort's best value in each criterion
    path: tuple[float, ...]  # its weight after each of the audit's `steps`
    remark: str  # hostile; with new data; refused, with the reason
    moved: tuple[str, ...]  # what changed its weight, in words


@dataclass(frozen=True)
class Audit:
    """One round of one method and seed, weight by weight."""

    run: RunFolder
    method: str
    seed: int
    round_num: int
    criteria: tuple[str, ...]
    claimed: Mapping[str, str]  # by criterion: "claimed", "measured"; unknown ones are missing
    stages: tuple[Stage, ...]  # of the chain from score to influence, as far as this round has them
    participants: tuple[Participant, ...]  # heaviest first
    what_if: bool
    steps: tuple[str, ...]  # from equal weights on: criteria one by one, evidence, bounds, the rule
    explanation: str
    priority: tuple[str, ...] | None
    candidates: tuple[Candidate, ...]
    testing_rounds: int
    notes: tuple[str, ...]
    num_participants: int  # of which `participants` may have the most notable alone
    num_known: int  # those whose weight is known after each of the `steps`

    @property
    def what_if_label(self) -> str:
        """What `what_if` holds: weights, or prior weights where they are changed afterwards."""
        return "prior weight with the best" if PRIOR in self.stages else "weight with the best"

    @property
    def is_explained(self) -> bool:
        """Whether it says in words what changed the weights of clients."""
        return any(one.moved for one in self.participants)


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
    passed = stages(every)
    shares = [stage for stage in passed if stage.text is percent_of]
    rows = every
    num_known = None
    if notable and sum(row.refusal is None for row in every) > MAX_COHORT:
        complete = [row for row in every if _is_complete(row, shares)]
        num_known = len(complete)
        rows = _notable(every, complete, shares)
    is_whole = rows is every
    clients = None if is_whole else [row.client for row in rows]
    measured = _by_client(run.criteria(method, seed, round_num, clients))
    chain = Chain.of(run, method, seed, round_num)
    accepted = {row.client: row for row in rows if row.refusal is None}
    moved = chain.remarks(run, method, seed, round_num, accepted)
    how = weighing(chain.parts, record.priority)
    criteria = how.names if how else _names_of(measured)
    omitted = run.omitted(method, seed, round_num)
    # What a weight would be otherwise follows from the criteria of all participants.
    recomputed = _recompute(how if is_whole and not omitted else None, criteria, measured)
    new_data = run.new_data(seed)
    participants = []
    for row in rows:
        known = measured.get(row.client, {}) if row.refusal is None else {}
        said = moved[row.client] if row.refusal is None else ()
        path = _path(row, recomputed, shares)
        remark = _remark(row, new_data.get(row.client), round_num)
        participants.append(
            _participant(row, criteria, known, passed, recomputed, said, path, remark)
        )
    steps = (*recomputed.order, *(stage.mover for stage in shares[1:]))
    if num_known is None:
        num_known = sum(len(one.path) == len(steps) for one in participants)
    return Audit(
        run=run,
        method=method,
        seed=seed,
        round_num=round_num,
        criteria=criteria,
        claimed=_claimed(chain.parts),
        stages=tuple(passed),
        participants=tuple(participants),
        what_if=bool(recomputed.what_if),
        steps=steps,
        explanation=" ".join(
            [
                _explain(how, record, PRIOR in passed),
                *chain.explain(passed),
                *_explain_steps(run.server_steps(method, seed, round_num)),
            ]
        ),
        priority=record.priority,
        candidates=record.candidates or (),
        testing_rounds=record.testing_rounds,
        notes=(*record.notes, *_constant(record), *_without_rows(omitted, len(every))),
        num_participants=len(every),
        num_known=num_known,
    )


def _is_complete(row: ParticipantRow, shares: Sequence[Stage]) -> bool:
    """Whether an update was accepted, and its weight is known in every stage."""
    return row.refusal is None and None not in [stage.value(row) for stage in shares]


def _notable(
    every: Sequence[ParticipantRow], known: Sequence[ParticipantRow], shares: Sequence[Stage]
) -> list[ParticipantRow]:
    """The first MAX_COHORT rows, which have the largest weights, and the farthest from equal ones."""
    equal = 1 / max(1, len(known))

    def distance(row: ParticipantRow) -> float:
        return max(abs((stage.value(row) or 0.0) - equal) for stage in shares)

    farthest = heapq.nlargest(MAX_BARS, known, key=distance)
    chosen = {row.client for row in [*every[:MAX_COHORT], *farthest]}
    return [row for row in every if row.client in chosen]


def _without_rows(omitted: OmittedRow | None, recorded: int) -> list[str]:
    """A note where the record has no rows of some participants."""
    if omitted is None:
        return []
    return [
        f"The record has rows of {recorded:,} of {recorded + omitted.total:,} participants "
        f"(record.clients). The others have {omitted.weight:.1%} of the weight together."
    ]


def _by_client(rows: Sequence[CriterionRow]) -> dict[int, dict[str, CriterionRow]]:
    measured: dict[int, dict[str, CriterionRow]] = {}
    for row in rows:
        measured.setdefault(row.client, {})[row.criterion] = row
    return measured


def _names_of(measured: Measured) -> tuple[str, ...]:
    names: set[str] = set()
    for values in measured.values():
        names |= values.keys()
    return tuple(sorted(names))


def _claimed(parts: RecordedMethod | None) -> dict[str, str]:
    """Whether each criterion is the client's claim, or measured by the server."""
    found = {}
    for part in parts.criteria if parts else ():
        known = known_part("criteria", part.name)
        if known is not None:
            found[part.called] = "claimed" if known.measured_by == "client" else "measured"
    return found


def _constant(record: RoundRow) -> list[str]:
    if not record.no_effect:
        return []
    names = ", ".join(record.no_effect)
    return [f"No effect on the weights: {names} (constant across the clients of this round)."]


def _participant(
    row: ParticipantRow,
    criteria: Sequence[str],
    measured: Mapping[str, CriterionRow],
    passed: Sequence[Stage],
    recomputed: OtherWeights,
    moved: tuple[str, ...],
    path: tuple[float, ...],
    remark: str,
) -> Participant:
    values = [measured.get(name) for name in criteria]
    what_if: tuple[float | None, ...] = (None,) * len(criteria)
    if row.refusal is None:
        what_if = recomputed.what_if.get(row.client, what_if)
    return Participant(
        client=row.client,
        name=row.name,
        raw=tuple(value and value.raw for value in values),
        normalised=tuple(value and value.normalised for value in values),
        score=row.score,
        weight=row.weight,
        chain=tuple(stage.cell(row) for stage in passed),
        what_if=what_if,
        path=path,
        remark=remark,
        moved=moved,
    )


def _remark(row: ParticipantRow, new_data_from: int | None, round_num: int) -> str:
    remarks = []
    if new_data_from is not None and new_data_from <= round_num:
        remarks.append(f"new data since round {new_data_from}")
    if row.hostile:
        remarks.append(f"hostile ({row.hostile})")
    if row.refusal:
        remarks.append(f"refused: {row.refusal}")
    return "; ".join(remarks)


def _path(
    row: ParticipantRow,
    recomputed: OtherWeights,
    shares: Sequence[Stage],
) -> tuple[float, ...]:
    """A weight step by step; empty where one of the steps is unknown."""
    path = [*recomputed.growing.get(row.client, ()), *(stage.value(row) for stage in shares)]
    known = [value for value in path if value is not None]
    return tuple(known) if row.refusal is None and len(known) == len(path) else ()


@dataclass(frozen=True)
class Weighing:
    """How a method of a run turned criteria into weights."""

    names: tuple[str, ...]
    score: Score
    normaliser: partial[Any]
    description: str

    def weights(self, raw: Values) -> Values:
        """The weights [n] that raw values [n, m] give."""
        return to_weights(self._scores(divide(raw, self.scales(raw))))

    def weights_of_cohorts(self, raw: Values) -> Values:
        """The weights [k, n] that the raw values [k, n, m] of k cohorts give."""
        if self.score.compares_clients:
            return numpy.stack([self.weights(cohort) for cohort in raw])
        scales = numpy.stack([self.scales(cohort) for cohort in raw])
        values = divide(raw, scales[:, None])
        # One call: a score that looks at each client alone takes the clients of all cohorts.
        scores = self._scores(values.reshape(-1, raw.shape[2])).reshape(raw.shape[:2])
        totals = scores.sum(1, keepdims=True)
        is_usable = (totals > 0) & (totals < numpy.inf)
        return numpy.where(is_usable, scores / totals, 0.0)

    def scales(self, raw: Values) -> Values:
        """What the criteria of a cohort [n, m] are divided by, [m]."""
        return _on_array(self.normaliser.func, self.normaliser, raw)

    def _scores(self, values: Values) -> Values:
        return _on_array(type(self.score), partial(self.score, self.names), values)


def _on_array(part: Any, function: Callable[[Any], Any], values: Values) -> Values:
    """What a function of a part returns for an array. The parts of a plugin take tensors alone."""
    if part.__module__.startswith("clientwise.core.weights."):
        found: Values = function(values)
        return found
    import torch

    return numpy.asarray(function(torch.from_numpy(values)))


def weighing(parts: RecordedMethod | None, priority: Sequence[str] | None) -> Weighing | None:
    """A method's score in a round's order, and its normaliser; None where they are unknown."""
    if parts is None or parts.score is None:
        return None
    built: Score | None = build(SCORES, parts.score)
    if built is None:
        return None
    names = tuple(part.called for part in parts.criteria)
    score = built.with_order(priority)
    try:
        score.check(names)
    except ValueError:
        return None
    description = described(parts.score)
    if parts.sampling is not None and known_part("samplings", parts.sampling.name) is None:
        return None
    if parts.averages_equally:
        description = f"equal weights, since clients were drawn by their score ({description})"
        score = Equal()
    part = parts.normaliser or Part(score.default_normaliser, {})
    if part.name not in NORMALISERS:
        return None
    try:
        how = Weighing(names, score, with_options(NORMALISERS, part), description)
        how.scales(numpy.ones((1, len(names))))
    except ValueError:
        return None
    return how


@dataclass(frozen=True)
class OtherWeights:
    """Weights that were not recorded, by client; empty where they cannot be computed."""

    what_if: Mapping[int, tuple[float, ...]]  # with the cohort's best value, one per criterion
    order: tuple[str, ...]  # of the criteria
    growing: Mapping[int, Sequence[float]]  # with the first criterion, with the first two ...


NOTHING_ELSE = OtherWeights({}, ("criteria",), {})


def _recompute(how: Weighing | None, criteria: Sequence[str], measured: Measured) -> OtherWeights:
    clients = [client for client, values in measured.items() if values.keys() == set(criteria)]
    if how is None or not 0 < len(clients) <= MAX_COHORT:
        return NOTHING_ELSE
    rows = [[measured[client][name].raw for name in criteria] for client in clients]
    raw = numpy.array(rows, dtype=numpy.float64)
    with numpy.errstate(all="ignore"):  # weights that are not finite are no weights
        order, growing = _one_by_one(how, raw)
        what_if = _what_if(how, raw)
    return OtherWeights(
        dict(zip(clients, what_if, strict=True)),
        order,
        dict(zip(clients, growing, strict=True)),
    )


def _what_if(how: Weighing, raw: Values) -> list[tuple[float, ...]]:
    """Every client's weight [n], had it the cohort's best value in one criterion [m]."""
    count = len(raw)
    own = numpy.arange(count)
    best = raw.max(0)
    columns = []
    for column in range(raw.shape[1]):
        # A cohort for each client, in which that client has the best value
        changed = numpy.tile(raw, (count, 1, 1))
        changed[own, own, column] = best[column]
        columns.append(how.weights_of_cohorts(changed)[own, own])
    return [tuple(weights) for weights in numpy.stack(columns, 1).tolist()]


def _one_by_one(how: Weighing, raw: Values) -> tuple[tuple[str, ...], list[list[float]]]:
    """The criteria in their order, and each client's weights as they are added, without the last.

    A criterion that is not added yet has the cohort's mean for all clients.
    """
    order = tuple(how.score.order(how.names) or how.names)
    values = numpy.tile(raw.mean(0), (len(raw), 1))
    weights = []
    for name in order[:-1]:
        column = how.names.index(name)
        values[:, column] = raw[:, column]
        weights.append(how.weights(values))
    if not weights:
        return order, [[]] * len(raw)
    return order, numpy.stack(weights, 1).tolist()


def _explain_steps(tried: Sequence[StepRow]) -> list[str]:
    """Which server steps were tried, and which one was used."""
    if not tried:
        return []
    losses = ", ".join(f"{one.step} {one.loss:.4g}" for one in tried)
    used = next(one.step for one in tried if one.used)
    return [
        f"The server tried {len(tried)} steps and used {used}. Losses on its samples: {losses}. "
        "The decision adds up the losses of earlier rounds, with decay."
    ]


def _explain(how: Weighing | None, record: RoundRow, is_moved: bool) -> str:
    """How criteria became weights."""
    if how is None:
        return UNKNOWN_SCORE
    subject = "Prior weight" if is_moved else "Weight"
    criteria = ", ".join(how.names)
    if record.priority and len(record.priority) > 1:
        criteria = f"{' > '.join(record.priority)} (most important first)"
    score = f"Score function: {how.description}. Criteria: {criteria}."
    return f"{subject} = score / sum of scores. {score}"

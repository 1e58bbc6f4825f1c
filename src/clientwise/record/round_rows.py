"""The record of a round as rows of the tables in `schema.py`, in the order of COLUMNS."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..core.objective.loss import RobustLoss
from ..core.objective.metrics import macro_f1, per_class_f1
from ..core.objective.problem import Problem
from ..core.types import Counterfactual, Evaluation, LookBack, Refusal, RoundRecord
from .packed import is_packed, packed_columns
from .reading.other_weights import NOBODY, REPORTED
from .reading.rows import SHARES

Row = tuple[Any, ...]

COLUMNS = {  # besides the lane and the round
    "participants": "client, refusal, score, prior, z, harm, harm_error, posterior, weight, influence, "
    "training_loss, seconds",
    "refusals": "reason, kind, refused, honest",
    "omitted": "accepted, without_weight, weight, hostile_weight, refusals, scores, scales",
    "look_back": "client, history_z, copies",
    "criteria": "client, criterion, raw, normalised",
    "packed": "name, data",
    "local": "client, metric, loss",
    "sampled": "drawn, error",
    "counterfactuals": "kind, excluded, tested, metric, loss, reason",
    "contributions": "client, shapley, error",
    "best": "metric, num_samples, bits",
    "policies": "policy, note",
    "kept": "cause, detail",
    "clock": "ended",
    "privacy": "epsilon, clip, deviation",
    "adapters": "residual",
    "server_steps": "position, step, loss, used",
    "sums": "participants, hostile_influence, clients_per_cell, cells",
}


def reported_evaluation(
    record: RoundRecord | Counterfactual, hostile: Mapping[int, object]
) -> Evaluation | None:
    """The evaluation that the run reports.

    That is the server's reporting part. Without one, it is the honest clients' own test sets.
    """
    if record.report is not None:
        return record.report
    if record.local is None:
        return None
    return _of_honest(record.local, hostile)


def round_columns(
    record: RoundRecord,
    shown: Evaluation | None,
    problem: Problem,
    hostile: Mapping[int, object],
    names: Mapping[int, str],
) -> dict[str, Any]:
    """The columns of a row of `rounds`, but for the lane and the time.

    Args:
        record: the round.
        shown: the evaluation that the run reports.
        problem: what is predicted.
        hostile: the hostile clients.
        names: the names of clients that have one.
    """
    row: dict[str, Any] = {
        "round_num": record.round_num,
        "testing_rounds": record.testing_rounds,
        "no_effect": json.dumps(record.no_effect),
        "notes": json.dumps([*record.notes, *_not_evaluated(record.local, names)]),
        "models_moved": record.models_moved,
        "evaluations": record.evaluations,
        "attack_success": record.attack_success,
        "held_out_change": record.held_out_change,
    }
    if shown is not None:
        row["metric"] = float(shown.overall()[0])
        row["loss"] = float(shown.overall_loss()[0])
        # The clients' counts of classes are over all of them, so they are wrong with hostile ones.
        counts_are_honest = record.report is not None or not hostile
        if problem.num_classes > 0 and counts_are_honest:
            row["macro_f1"] = float(macro_f1(shown.counts[0]))
            row["per_class_f1"] = json.dumps(per_class_f1(shown.counts[0]).tolist())
    if record.local is not None:
        row |= _over_honest_clients(record.local, hostile, problem)
    if record.priority:
        row["priority"] = json.dumps(record.priority)
    if record.candidates:
        row["candidates"] = json.dumps(record.candidates)
    if record.loss.class_weights:
        row["class_weights"] = json.dumps(record.loss.class_weights)
    if isinstance(record.loss, RobustLoss):
        row["loss_shape"] = record.loss.shape
    return row


def rows_of_round(
    record: RoundRecord,
    hostile: Mapping[int, object],
    kept: Collection[int] | None,
) -> dict[str, Iterable[Row]]:
    """The rows of a round by table, without those of `rounds` and `best`.

    Args:
        record: the round.
        hostile: the hostile clients.
        kept: the clients that get rows of their own; None: all of them.
    """
    rows: dict[str, Iterable[Row]] = {
        "sampled": _sampled(record, hostile),
        "refusals": _counted(record.refusals, hostile),
    }
    if (why := record.kept) is not None:
        rows["kept"] = [(why.cause, why.detail)]
    if record.ended is not None:
        rows["clock"] = [(record.ended,)]
    if (released := record.released) is not None:
        rows["privacy"] = [(released.epsilon, released.clip, released.deviation)]
    if record.residual is not None:
        rows["adapters"] = [(record.residual,)]
    rows["server_steps"] = [
        (position, step.name, step.loss, int(step.used))
        for position, step in enumerate(record.steps)
    ]
    if kept is not None:
        rows["omitted"] = [_omitted(record, kept, hostile)]
        record = _thinned(record, kept)
    packs = is_packed(record)
    return rows | {
        "participants": _participants(record, packs),
        "look_back": _look_back(record),
        "criteria": () if packs else _criteria(record),
        "packed": packed_columns(record, _columns(record)) if packs else (),
        "local": _own_results(record.local),
        "counterfactuals": _counterfactuals(record, hostile),
        "contributions": _contributions(record),
    }


def _thinned(record: RoundRecord, kept: Collection[int]) -> RoundRecord:
    """The record with what it says of some clients alone; see `_omitted` for the others."""
    rows = [row for row, client in enumerate(record.client_ids) if client in kept]

    def some(column: Tensor | None) -> Tensor | None:
        return None if column is None else column[rows]

    look_back = LookBack(some(record.look_back.z), some(record.look_back.copies))
    gave = record.contributions
    if gave is not None:
        gave = replace(gave, values=gave.values[rows], errors=gave.errors[rows])
    return replace(
        record,
        client_ids=tuple(record.client_ids[row] for row in rows),
        raw=record.raw[rows],
        normalised=record.normalised[rows],
        scores=record.scores[rows],
        prior=record.prior[rows],
        z=some(record.z),
        harm=some(record.harm),
        harm_error=some(record.harm_error),
        posterior=some(record.posterior),
        look_back=look_back,
        weights=record.weights[rows],
        influence=some(record.influence),
        training_loss=record.training_loss[rows],
        seconds=record.seconds[rows],
        refusals=tuple(one for one in record.refusals if one.client_id in kept),
        local=record.local and _of_some(record.local, kept),
        contributions=gave,
    )


def _omitted(record: RoundRecord, kept: Collection[int], hostile: Mapping[int, object]) -> Row:
    """The row of `omitted`: the participants that `_thinned` leaves out, and sums over all participants."""
    out = torch.tensor([client not in kept for client in record.client_ids], dtype=torch.bool)
    attacks = torch.tensor([client in hostile for client in record.client_ids], dtype=torch.bool)
    weights = record.weights[out]
    left_out = [one for one in record.refusals if one.client_id not in kept]
    refusals = [(reason, *counts) for reason, _, *counts in _counted(left_out, hostile)]
    return (
        int(out.sum()),
        int((weights == 0).sum()),
        float(weights.sum()),
        float(record.weights[out & attacks].sum()),
        json.dumps(refusals),
        float(record.scores.sum()),
        json.dumps(_scales(record)),
    )


def _counted(
    refusals: Iterable[Refusal], hostile: Mapping[int, object]
) -> Iterator[tuple[str, str | None, int, int]]:
    """Rows of `refusals`: a reason with its kind, its refusals, and those of honest clients."""
    found: dict[str, list[Refusal]] = {}
    for refusal in refusals:
        found.setdefault(refusal.reason, []).append(refusal)
    for reason, own in found.items():
        honest = sum(one.client_id not in hostile for one in own)
        yield reason, own[0].kind, len(own), honest


def _scales(record: RoundRecord) -> list[float]:
    """What each criterion was divided by [m]; 0 where it is zero for all clients."""
    if not record.client_ids:
        return []
    largest = record.raw.argmax(0, keepdim=True)
    raw = record.raw.gather(0, largest)[0]
    normalised = record.normalised.gather(0, largest)[0]
    return torch.where(normalised == 0, 0.0, raw / normalised).tolist()


def _of_some(local: Evaluation, kept: Collection[int]) -> Evaluation:
    """The evaluation as if the other clients had no test data; of a sample, all of it."""
    if local.drawn is not None:
        return local
    rows = [client for client in kept if client < len(local.num_samples)]
    num_samples = torch.zeros_like(local.num_samples)
    num_samples[rows] = local.num_samples[rows]
    return replace(local, num_samples=num_samples)


def _participants(record: RoundRecord, packs: bool) -> Iterator[Row]:
    """Rows of `participants`: the accepted updates, or a block for all of them, then the refused ones."""
    columns = _columns(record)
    unknown = [None] * len(columns)
    if packs:
        yield None, None, *unknown
    else:
        values = [_values(column, record) for column in columns.values()]
        for client, *own in zip(record.client_ids, *values, strict=True):
            yield client, None, *own
    for refusal in record.refusals:
        yield refusal.client_id, refusal.reason, *unknown


def _columns(record: RoundRecord) -> dict[str, Tensor | None]:
    """The columns of `participants` that accepted updates have."""
    moved = record.posterior is not None or not torch.equal(record.prior, record.weights)
    return {
        "score": record.scores,
        "prior": record.prior if moved else None,
        "z": record.z,
        "harm": record.harm,
        "harm_error": record.harm_error,
        "posterior": record.posterior,
        "weight": record.weights,
        "influence": record.influence,
        "training_loss": record.training_loss,
        "seconds": record.seconds,
    }


def _look_back(record: RoundRecord) -> Iterable[Row]:
    """Rows of `look_back`; none for a method that compares no directions."""
    found = record.look_back
    if found.z is None and found.copies is None:
        return []
    columns = (_values(found.z, record), _values(found.copies, record))
    return zip(record.client_ids, *columns, strict=True)


def _criteria(record: RoundRecord) -> Iterator[Row]:
    """Rows of `criteria`; none where secure aggregation hides them from the server."""
    if bool(record.raw.isnan().all()):
        return
    measured = zip(record.client_ids, record.raw.tolist(), record.normalised.tolist(), strict=True)
    for client, raws, normaliseds in measured:
        for name, raw, normalised in zip(record.criteria, raws, normaliseds, strict=True):
            yield client, name, raw, normalised


def _sampled(record: RoundRecord, hostile: Mapping[int, object]) -> list[Row]:
    """The row of `sampled`; none where all clients evaluate, or none."""
    local = record.local
    if local is None or local.drawn is None:
        return []
    of_honest = local.num_samples.clone()
    of_honest[list(hostile)] = 0
    error = replace(local, num_samples=of_honest).sampling_error()
    assert error is not None
    return [(local.drawn, float(error[0]))]


def _counterfactuals(record: RoundRecord, hostile: Mapping[int, object]) -> Iterator[Row]:
    """Rows of `counterfactuals`: on the reported samples, and on every client's own."""
    for one in record.counterfactuals:
        excluded = NOBODY if one.client is None else one.client
        shown = reported_evaluation(one, hostile)
        reported: tuple[float | None, float | None] = (None, None)
        if shown is not None:
            reported = (float(shown.overall()[0]), float(shown.overall_loss()[0]))
        yield one.kind, excluded, REPORTED, *reported, one.reason
        for own in _own_results(one.local):
            yield one.kind, excluded, *own, None


def _contributions(record: RoundRecord) -> Iterable[Row]:
    """Rows of `contributions`; none where they were not computed."""
    found = record.contributions
    if found is None:
        return []
    return zip(record.client_ids, found.values.tolist(), found.errors.tolist(), strict=True)


def _own_results(local: Evaluation | None) -> Iterator[tuple[int, float, float]]:
    """Rows of `local`: metric and loss of the first model, of clients that have test data."""
    if local is None:
        return
    clients = local.num_samples.nonzero().flatten()
    results = (clients, local.values[0, clients], local.losses[0, clients])
    yield from zip(*(column.tolist() for column in results), strict=True)


def _values(column: Tensor | None, record: RoundRecord) -> list[Any]:
    """A value per accepted client; None where the round has no such column."""
    if column is None:
        return [None] * len(record.client_ids)
    return column.tolist()


def _not_evaluated(local: Evaluation | None, names: Mapping[int, str]) -> list[str]:
    """A note for every client that did not evaluate the model on its own test set."""
    if local is None:
        return []
    notes = []
    for refusal in sorted(local.missing, key=lambda one: one.client_id):
        name = names.get(refusal.client_id, f"client {refusal.client_id}")
        notes.append(f"{name} did not evaluate: {refusal.reason}")
    return notes


def _of_honest(local: Evaluation, hostile: Mapping[int, object]) -> Evaluation | None:
    """The evaluation on the honest clients that have test data; None where there are none."""
    honest = torch.tensor([client not in hostile for client in range(len(local.num_samples))])
    counted = honest & (local.num_samples > 0)
    if not bool(counted.any()):
        return None
    right = None
    if local.right is not None:
        right = local.right[:, counted.repeat_interleave(local.num_samples)]
    return Evaluation(
        local.num_samples[counted],
        local.values[:, counted],
        local.losses[:, counted],
        local.counts,
        right=right,
    )


def _over_honest_clients(
    local: Evaluation,
    hostile: Mapping[int, object],
    problem: Problem,
) -> dict[str, Any]:
    """Mean weighted by test size, 10th and 90th percentile, and what shares of the clients reach.

    Hostile clients are left out: their labels measure nothing.
    """
    honest = _of_honest(local, hostile)
    if honest is None:
        return {}
    values = honest.values[0]
    low, high = torch.quantile(values, torch.tensor([0.1, 0.9], dtype=values.dtype)).tolist()
    best_first = values.sort(descending=problem.higher_is_better).values
    reached = [float(best_first[math.ceil(share * len(values) / 100) - 1]) for share in SHARES]
    return {
        "local_mean": float(honest.overall()[0]),
        "local_p10": low,
        "local_p90": high,
        "reached": json.dumps(reached),
    }

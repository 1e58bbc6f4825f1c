"""`Aggregate`: what a round of `Aggregator` gives, and how every client counted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..core.types import RoundRecord


@dataclass(frozen=True)
class ClientWeight:
    """How a client's weight came about: score -> prior -> evidence -> bounds -> rule."""

    weight: float  # all weights of a round sum to 1
    score: float
    prior: float  # by the score alone
    z: float | None = None  # evidence against the client in standard errors; None: unknown
    posterior: float | None = None  # after the evidence
    influence: float | None = None  # share of the aggregate after the rule; None: its weight


@dataclass(frozen=True)
class Aggregate:
    """The model after a round, and how every client counted."""

    model: Mapping[str, Any]  # in the form of the global model
    is_new: bool  # False: the model stays as it was, and a remark says why
    weights: Mapping[Any, float]  # of the accepted clients
    criteria: Mapping[Any, Mapping[str, float]]  # of the same clients
    steps: Mapping[Any, ClientWeight]  # that led to their weights
    refusals: Mapping[Any, str]  # of the others, and of second updates, with the reason
    remarks: tuple[str, ...]  # what else the record says: ignored claims, criteria without effect


def aggregate_of(
    record: RoundRecord,
    model: Mapping[str, Any],
    client_of: Mapping[int, Any],
    refusals: Mapping[Any, str],
) -> Aggregate:
    """The result of a round.

    Args:
        record: what happened.
        model: the model after the round.
        client_of: the clients by the numbers that the record has.
        refusals: of updates that the record does not have.
    """
    accepted = [client_of[number] for number in record.client_ids]
    recorded = {client_of[one.client_id]: one.reason for one in record.refusals}
    criteria = {}
    for client, row in zip(accepted, record.raw.tolist(), strict=True):
        criteria[client] = dict(zip(record.criteria, row, strict=True))
    return Aggregate(
        model=model,
        is_new=record.kept is None,
        weights=dict(zip(accepted, record.weights.tolist(), strict=True)),
        criteria=criteria,
        steps=dict(zip(accepted, _steps(record), strict=True)),
        refusals={**refusals, **recorded},
        remarks=record.notes,
    )


def _steps(record: RoundRecord) -> list[ClientWeight]:
    rows = []
    for row in range(len(record.client_ids)):
        rows.append(
            ClientWeight(
                weight=float(record.weights[row]),
                score=float(record.scores[row]),
                prior=float(record.prior[row]),
                z=_at(record.z, row),
                posterior=_at(record.posterior, row),
                influence=_at(record.influence, row),
            )
        )
    return rows


def _at(column: Tensor | None, row: int) -> float | None:
    """A value of a column; None where there is none, or it is not known."""
    if column is None or math.isnan(float(column[row])):
        return None
    return float(column[row])

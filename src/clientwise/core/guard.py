"""The guard: every update is accepted, or refused with a reason. Nothing a client sends ends the run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .criteria import Criterion
from .objective.problem import Problem
from .reasons import Reason
from .types import Refusal, Updates

NOT_FINITE = Reason("model has NaN or Inf", "diverged")
TOO_LARGE = Reason("model norm is not finite", "diverged")


def inspect_updates(
    updates: Updates,
    global_model: Tensor,
    asked: Collection[int],
    seen: Collection[int],
    criteria: Sequence[Criterion],
) -> tuple[Updates, list[Refusal]]:
    """Accept clients that were asked, answer once, and send a finite model of the right size.

    Args:
        updates: one chunk of the cohort, as it arrived.
        global_model: what the clients were sent, [d].
        asked: the clients that may answer.
        seen: the clients that have answered already.
        criteria: those that clients measure must come with the model.

    Returns:
        The accepted updates, and the others with the reason for each.
    """
    refusals = list(updates.failures)
    reason = _malformed(updates, global_model, criteria)
    if reason is not None:  # of the whole chunk
        refusals += [Refusal(_recordable(client), reason) for client in updates.client_ids]
        return Updates.failed((), global_model), refusals
    models = updates.models.to(global_model)  # what overflows float32 is infinite from here on
    updates = replace(updates, models=models)

    reasons = inspect_models(models)
    met = set[int]()  # in this chunk; a copy of all that answered would take quadratic time
    for row, client in enumerate(updates.client_ids):
        if client not in asked:
            reasons[row] = "unknown client, or not asked this round"
        elif client in met or client in seen:
            reasons[row] = "second update of the same client"
        met.add(client)
    return _split(updates, reasons, refusals)


def inspect_models(models: Tensor) -> list[Reason | str | None]:
    """Why each model [n, d] cannot be averaged; None where it can."""
    # The sum of squares overflows long before a sum of models does: an update that large is as useless as infinity.
    reasons: list[Reason | str | None] = [None] * len(models)
    norms = torch.linalg.vector_norm(models, dim=1).cpu()  # a GPU is waited for once, here
    too_large = ~norms.isfinite()
    for row in too_large.nonzero().flatten().tolist():
        reasons[row] = TOO_LARGE if bool(models[row].isfinite().all()) else NOT_FINITE
    return reasons


def inspect_measurements(
    updates: Updates, raw: Tensor, criteria: Sequence[Criterion], problem: Problem
) -> tuple[Updates, Tensor, list[Refusal]]:
    """Refuse updates with a criterion that is not finite or outside [0, high].

    Args:
        updates: those that `inspect_updates` accepted.
        raw: their criteria, [n, m].
        criteria: the m criteria, in the order of the columns.
        problem: what the upper ends of ranges may depend on.

    Returns:
        The accepted updates, their criteria [n', m], and the others with the reason for each.
    """
    reasons: list[Reason | str | None] = [None] * len(raw)
    for column, criterion in enumerate(criteria):
        found = inspect_values(criterion.name, raw[:, column], criterion.high(problem))
        reasons = [before or reason for before, reason in zip(reasons, found, strict=True)]
    accepted, refusals = _split(updates, reasons, [])
    if not refusals:
        return accepted, raw, []
    rows = [row for row, reason in enumerate(reasons) if reason is None]
    return accepted, raw[rows], refusals


def inspect_values(name: str, values: Tensor, high: float) -> list[Reason | str | None]:
    """Why each value [n] of a criterion cannot be used; None where it is finite and in [0, `high`]."""
    reasons: list[Reason | str | None] = [None] * len(values)
    wrong = ~(values.isfinite() & (values >= 0) & (values <= high * (1 + 1e-9)))
    for row in wrong.nonzero().flatten().tolist():
        reasons[row] = f"{name} = {values[row].item():g} is outside [0, {high:g}]"
    return reasons


def _malformed(updates: Updates, global_model: Tensor, criteria: Sequence[Criterion]) -> str | None:
    """Why a chunk has the wrong shapes or types; None if it has not."""
    models = updates.models
    count = len(updates.client_ids)
    if models.shape != (count, global_model.shape[0]):
        return f"model of the wrong size: {tuple(models.shape[1:])}, expected ({global_model.shape[0]},)"
    if not models.is_floating_point():
        return f"model of type {models.dtype}, expected floating point"
    asked_for = [one.name for one in criteria if one.measured_by == "client"]
    missing = [name for name in asked_for if name not in updates.measurements]
    if missing:
        return f"no measurement of {', '.join(missing)}"
    sent = {
        "training loss": updates.training_loss,
        "seconds": updates.seconds,
        **updates.measurements,
    }
    for name, values in sent.items():
        if not isinstance(values, Tensor) or values.shape != (count,) or values.is_complex():
            return f"{name} is not one number per client"
    return None


def _recordable(client: object) -> int:
    """A client's number as the record can hold it; −1 for what is not a number."""
    return client if isinstance(client, int) and abs(client) < 2**63 else -1


def _split(
    updates: Updates, reasons: Sequence[Reason | str | None], refusals: list[Refusal]
) -> tuple[Updates, list[Refusal]]:
    """The updates without a reason against them, and refusals for the others, added to `refusals`."""
    if not any(reasons):
        return updates, refusals
    refused = [
        Refusal(_recordable(client), reason)
        for client, reason in zip(updates.client_ids, reasons, strict=True)
        if reason is not None
    ]
    accepted = torch.tensor([reason is None for reason in reasons], dtype=torch.bool)
    return updates.select(accepted), refusals + refused

"""Why one client has its weight, in words: the audit of its last round, and its refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ...errors import RunError
from ...record.reading.folder import RunFolder
from ...record.reading.rows import ClientRoundRow, ClientRow
from ...registry import suggest
from ..document import counted, number, percent_of
from .round_audit import Audit, Participant, audit


def why_weight(
    run: RunFolder, client: str | int, method: str, seed: int, round_num: int | None = None
) -> str:
    """A few lines about a client's weight.

    Args:
        run: the run.
        client: its name, or its number.
        method: the method.
        seed: the seed.
        round_num: the round; None is the last one in which the client took part.
    """
    run.lane(method, seed)  # RunError where there is none
    row = _find(run, client, seed)
    called = row.name or f"client {row.client}"
    rounds = run.client_rounds(method, seed, row.client)
    if not rounds:
        return f"{called}, {method}, seed {seed}: took part in no round."
    if round_num is None:
        round_num = rounds[-1].round_num
    found = audit(run, method, seed, round_num)
    own = next((one for one in found.participants if one.client == row.client), None)
    if own is None:
        last = f"the last was round {rounds[-1].round_num}"
        return f"{called}, {method}, seed {seed}: took no part in round {round_num}; {last}."
    lines = [
        f"{called}, {method}, seed {seed}, round {round_num}: {_weight(own, found)}",
        *_reasons(own, found),
        *_refusals(rounds),
        found.explanation,
        *found.notes,
    ]
    return "\n  ".join(lines)


def _find(run: RunFolder, client: str | int, seed: int) -> ClientRow:
    rows = run.clients(seed)
    for row in rows:
        if str(client) in (row.name, str(row.client), f"client {row.client}"):
            return row
    names = [row.name or str(row.client) for row in rows]
    raise RunError(f"{run.id}: there is no client {client!r}{suggest(str(client), names)}")


def _weight(own: Participant, found: Audit) -> str:
    if own.weight is None:
        return f"{own.remark or 'no weight is recorded'}."
    accepted = [one for one in found.participants if one.weight is not None]
    return f"weight {percent_of(own.weight)}; with equal weights, {percent_of(1 / len(accepted))}."


def _reasons(own: Participant, found: Audit) -> Iterator[str]:
    """What was measured, and what changed the weight."""
    measured = []
    for name, value in zip(found.criteria, own.raw, strict=True):
        if value is not None:
            how = found.claimed.get(name)
            measured.append(f"{name} {number(value, 4)}" + (f" ({how})" if how else ""))
    if measured:
        yield f"Criteria: {', '.join(measured)}."
    steps = [
        f"{stage.label} {cell.text}" for stage, cell in zip(found.stages, own.chain, strict=True)
    ]
    if own.weight is not None:
        yield f"From score to weight: {', '.join(steps)}."
    said = [*own.moved]
    if own.weight is not None and own.remark:
        said.insert(0, own.remark)
    for text in said:
        yield f"{text[0].upper()}{text[1:]}."


def _refusals(rounds: Sequence[ClientRoundRow]) -> Iterator[str]:
    reasons = Counter(row.refusal for row in rounds if row.refusal is not None)
    for reason, count in reasons.items():
        yield f"Refused in {count} of {counted(len(rounds), 'round')}: {reason}."

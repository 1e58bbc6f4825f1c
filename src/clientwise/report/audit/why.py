"""Why one client has its share of a round's model: a few lines of its explanation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ...errors import RunError
from ...record.database import reading
from ...record.reading.rows import ClientRoundRow, ClientRow
from ...record.run import RunFolder
from ...registry import suggest
from ..document import counted
from .explanation import Explanation, explain
from .parameters import parameters


def why(
    run: RunFolder, client: str | int, method: str, seed: int, round_num: int | None = None
) -> Explanation | None:
    """The explanation of a client's share as fields; None where it took no part.

    Args:
        run: the run.
        client: its name, or its number.
        method: the method.
        seed: the seed.
        round_num: the round; None is the last one in which the client took part.
    """
    run.lane(method, seed)  # RunError where there is none
    number = _find(run, client, seed).client
    if round_num is None:
        rounds = run.client_rounds(method, seed, number)
        if not rounds:
            return None
        round_num = rounds[-1].round_num
    return next(iter(explain(run, method, seed, round_num, [number])), None)


def why_weight(
    run: RunFolder,
    client: str | int,
    method: str,
    seed: int,
    round_num: int | None = None,
    *,
    details: bool = False,
) -> str:
    """At most six lines about a client's share, the answer first; `details` adds the parameters.

    Args:
        run: the run.
        client: its name, or its number.
        method: the method.
        seed: the seed.
        round_num: the round; None is the last one in which the client took part.
        details: whether to add how weights are computed, with all parameters, and notes on the round.
    """
    with reading(run.folder):  # once for all queries
        return _why_weight(run, client, method, seed, round_num, details)


def _why_weight(
    run: RunFolder, client: str | int, method: str, seed: int, round_num: int | None, details: bool
) -> str:
    found = why(run, client, method, seed, round_num)
    row = _find(run, client, seed)
    rounds = run.client_rounds(method, seed, row.client)
    where = f"{method}, seed {seed}: " if len(run.lanes) > 1 else ""
    if found is None:
        called = row.name or f"client {row.client}"
        if not rounds:
            return f"{where}{called} took part in no round."
        if round_num is not None:
            run.round(method, seed, round_num)  # RunError where there is none
        last = f"the last was round {rounds[-1].round_num}"
        return f"{where}{called} took no part in round {round_num}; {last}."
    lines = [f"{where}{found.answer()}", *_reasons(found, rounds)]
    if details:
        lines += parameters(run, method, seed, found.round_num)
        lines += run.round(method, seed, found.round_num).notes
    return "\n  ".join(lines)


def _reasons(found: Explanation, rounds: Sequence[ClientRoundRow]) -> Iterator[str]:
    """The lines after the answer, at most five."""
    limits = " ".join(text for text in (found.by_copies(), found.by_bounds()) if text)
    facts = " ".join([found.known_facts(), *_refusals(rounds)]).strip()
    lines = (found.by_criteria(), found.by_evidence(), limits, found.by_rule(), facts)
    yield from (line for line in lines if line)


def _refusals(rounds: Sequence[ClientRoundRow]) -> Iterator[str]:
    reasons = Counter(row.refusal for row in rounds if row.refusal is not None)
    for reason, count in reasons.most_common(1):
        yield f"Refused in {count} of {counted(len(rounds), 'round')}: {reason}."


def _find(run: RunFolder, client: str | int, seed: int) -> ClientRow:
    rows = run.clients(seed)
    for row in rows:
        if str(client) in (row.name, str(row.client), f"client {row.client}"):
            return row
    names = [row.name or str(row.client) for row in rows]
    raise RunError(f"{run.id}: there is no client {client!r}{suggest(str(client), names)}")

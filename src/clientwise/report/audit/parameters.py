"""The parameters by which a round's weights came about, in sentences: printed on request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...core.weights.policy import Group, Policy
from ...record.known_parts import known_part
from ...record.reading.config_view import RecordedMethod
from ...record.reading.folder import RunFolder
from ...record.reading.rows import ParticipantRow, StepRow
from ...registry import Part
from ..document import counted
from .explanation_today import method_at

UNKNOWN = "How the weights were computed is unknown: the config cannot be read."
HARM_MEANS = (
    "Harm is by how much following the client instead of the mean would raise the held-out loss. z sums "
    "up its significance over the rounds, in standard errors; below 0, it favours the client."
)
HISTORY_MEANS = "History z compares an update with the client's own earlier updates; above 0, it points against them."


def parameters(run: RunFolder, method: str, seed: int, round_num: int) -> list[str]:
    """Score, criteria, evidence, bounds, rule and server steps of a round, a sentence or two each."""
    parts = method_at(run, method, seed, round_num)
    if parts is None:
        return [UNKNOWN]
    policies = [row for row in run.policies(method, seed) if row.round_num <= round_num]
    since = policies[-1].round_num if len(policies) > 1 else None
    priority = run.round(method, seed, round_num).priority
    return [
        *_by_criteria(parts, priority),
        *_by_evidence(parts, run.participants(method, seed, round_num)),
        *_by_bounds(parts.bounds, since),
        *_by_rule(parts),
        *_by_steps(run.server_steps(method, seed, round_num)),
    ]


def _by_criteria(parts: RecordedMethod, priority: Sequence[str] | None) -> Iterator[str]:
    names = [part.called for part in parts.criteria]
    order = ", ".join(names)
    if priority and len(priority) > 1:
        order = f"{' > '.join(priority)} (most important first)"
    if parts.score is not None:
        yield f"Weight by the criteria = score / sum of scores. Score: {described(parts.score)}. Criteria: {order}."
    if parts.averages_equally:
        yield "Clients were drawn by their score, so their weights are equal."
    sources: dict[str, list[str]] = {"client": [], "server": []}
    for part in parts.criteria:
        known = known_part("criteria", part.name)
        if known is not None:
            measured = "client" if known.measured_by == "client" else "server"
            sources[measured].append(part.called)
    if sources["client"]:
        yield f"Claimed by clients: {', '.join(sources['client'])}."
    if sources["server"]:
        yield f"Measured by the server: {', '.join(sources['server'])}."


def _by_evidence(parts: RecordedMethod, rows: Sequence[ParticipantRow]) -> Iterator[str]:
    if parts.evidence is None:
        return
    yield f"Evidence: {described(parts.evidence)}."
    if any(row.harm is not None for row in rows):
        yield HARM_MEANS
    if any(row.history_z is not None for row in rows):
        yield HISTORY_MEANS


def _by_bounds(bounds: Policy | None, since: int | None) -> Iterator[str]:
    if bounds is None:
        return
    when = f"Bounds since round {since}" if since else "Bounds"
    yield f"{when}: {_in_words(bounds)}."
    if bounds.note:
        yield f"Reason for the bounds: {bounds.note.rstrip('.')}."


def _by_rule(parts: RecordedMethod) -> Iterator[str]:
    shapers = [described(step) for step in parts.before]
    if parts.rule and parts.has_rule:
        shapers.append(f"the rule {described(parts.rule)}")
    if shapers:
        yield f"Final share: the client's part of the aggregate after {' and then '.join(shapers)}."


def _by_steps(tried: Sequence[StepRow]) -> Iterator[str]:
    """Which server steps were tried, and which one was used."""
    if not tried:
        return
    losses = ", ".join(f"{one.step} {one.loss:.4g}" for one in tried)
    used = next(one.step for one in tried if one.used)
    yield (
        f"The server tried {len(tried)} steps and used {used}. Losses on its samples: {losses}. "
        "The decision adds up the losses of earlier rounds, with decay."
    )


def _in_words(bounds: Policy) -> str:
    limits = []
    if bounds.cap < 1 or not bounds.floor:
        limits.append(f"cap {_share(bounds.cap)}")
    if bounds.floor:
        limits.append(f"floor {_share(bounds.floor)}")
    clauses = [", ".join(limits)]
    clauses += [f"{group.called}: {_group_in_words(group)}" for group in bounds.groups]
    if bounds.probation:
        rounds = counted(bounds.probation.rounds, "round")
        clauses.append(f"newcomers: cap {_share(bounds.probation.cap)} for {rounds}")
    if bounds.quorum > 1:
        clauses.append(f"quorum: {bounds.quorum} updates")
    return "; ".join(clauses)


def _group_in_words(group: Group) -> str:
    limits = []
    if group.cap is not None:
        limits.append(f"cap {_share(group.cap)}")
    if group.floor is not None:
        limits.append(f"floor {_share(group.floor)}")
    together = " together" if len(group.clients) > 1 else ""
    return f"{', '.join(limits) or 'no bounds'}{together}"


def _share(value: float) -> str:
    return f"{100 * value:.4g}%"


def described(part: Part) -> str:
    """A part with its options.

    >>> described(Part("trimmed_mean", {"hostile": 0.2}))
    'trimmed_mean (hostile 0.2)'
    """
    # An order of priority may change from round to round; the audit states that of the round.
    shown = {key: value for key, value in part.options.items() if key != "priority"}
    options = ", ".join(_option(key, value) for key, value in shown.items() if value is not False)
    if not options:
        return part.name
    return f"{part.name} ({options})".replace("'", "")


def _option(key: str, value: object) -> str:
    return key if value is True else f"{key} {value}"

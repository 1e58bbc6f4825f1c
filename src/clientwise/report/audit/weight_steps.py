"""From score to influence: what changed a client's weight, as columns and in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...core.weights.policy import Group, Policy
from ...record.reading.config_view import RecordedMethod, read_bounds, recorded_config
from ...record.reading.folder import RunFolder
from ...record.reading.rows import ClientRoundRow, LoweredRow, ParticipantRow
from ...registry import Part
from ..document import (
    Cell,
    counted,
    number,
    percent_of,
)

NOTABLE_HISTORY = 3.0  # standard errors: below, the column says enough
NOTABLE = 0.1  # relative change of a weight below which the columns say enough
Z_MEANS = "z is the accumulated evidence against a client in standard errors; z < 0 favours it."
HISTORY_MEANS = (
    "History z compares an update with the client's own earlier updates; z > 0 points against them."
)
LOSSES = {  # by the source of the server set: which loss the evidence is about
    "held_out": "the loss on held-out samples",
    "contributed": "the loss on samples contributed by clients",
    "clients": "the loss measured by the judging clients",
}

Weighed = ParticipantRow | ClientRoundRow


@dataclass(frozen=True)
class Stage:
    """A stage of the chain: its label, and a client's value there."""

    label: str
    value: Callable[[Weighed], float | None]
    text: Callable[[float | None], str] = percent_of
    mover: str = ""  # what turns the stage before into this one; empty for the criteria

    def cell(self, row: Weighed) -> Cell:
        """The value as a cell of a table."""
        value = self.value(row)
        return Cell(value, self.text(value))


SCORE = Stage("score", lambda row: row.score, lambda value: number(value, 4))
PRIOR = Stage("prior weight", lambda row: row.prior)
Z = Stage("z", lambda row: row.z, lambda value: number(value, 1))
HISTORY_Z = Stage("history z", lambda row: row.history_z, lambda value: number(value, 1))
POSTERIOR = Stage("weight after evidence", lambda row: row.posterior, mover="evidence")
WEIGHT = Stage("weight", lambda row: row.weight, mover="evidence")
INFLUENCE = Stage("influence", lambda row: row.influence, mover="rule")


def stages(rows: Sequence[Weighed]) -> list[Stage]:
    """The stages that changed these rows, in order.

    A stage without values is left out, and so is one that only repeats the stage before it.
    """
    weight = [WEIGHT]
    if any(row.weight != _before_bounds(row) for row in rows):
        weight = [POSTERIOR, replace(WEIGHT, label="weight within bounds", mover="bounds")]
    always = (SCORE, weight[-1])
    chain = [SCORE, PRIOR, Z, HISTORY_Z, *weight, INFLUENCE]
    return [stage for stage in chain if stage in always or _has_values(stage, rows)]


def _has_values(stage: Stage, rows: Sequence[Weighed]) -> bool:
    return any(stage.value(row) is not None for row in rows)


def _before_bounds(row: Weighed) -> float | None:
    if row.prior is None:  # neither evidence nor bounds changed it
        return row.weight
    return row.prior if row.posterior is None else row.posterior


@dataclass(frozen=True)
class Chain:
    """What a run's config says about a method; `parts` is None where it is unknown."""

    parts: RecordedMethod | None
    loss: str  # that the evidence is about
    since: int | None = None  # the round since which the bounds are other ones than in round 1

    @classmethod
    def of(cls, run: RunFolder, method: str, seed: int, round_num: int) -> Chain:
        """The chain of a method in a round of a run."""
        config = recorded_config(run.folder)
        loss = LOSSES.get(config.server_set_source or "", "the loss")
        parts = config.method(method)
        past = [row for row in run.policies(method, seed) if row.round_num <= round_num]
        if parts is None or not past:
            return cls(parts, loss)
        last = past[-1]  # the config has the bounds of the last round, not those of this one
        since = last.round_num if len(past) > 1 else None
        return cls(replace(parts, bounds=read_bounds(last.policy)), loss, since)

    def remarks(
        self, run: RunFolder, method: str, seed: int, round_num: int, rows: Mapping[int, Weighed]
    ) -> dict[int, tuple[str, ...]]:
        """What changed the weights of a round, in words; `rows` are accepted updates by client."""
        by_evidence = self._all_by_evidence(run, method, seed, round_num, rows)
        said: dict[int, tuple[str, ...]] = {}
        for client, row in rows.items():
            lines = [
                by_evidence.get(client),
                _by_copies(row),
                self._by_bounds(row),
                self._by_rule(row),
            ]
            said[client] = tuple(line for line in lines if line)
        return said

    def _all_by_evidence(
        self, run: RunFolder, method: str, seed: int, round_num: int, rows: Mapping[int, Weighed]
    ) -> dict[int, str | None]:
        judged = [client for client, row in rows.items() if row.posterior is not None]
        if not judged:
            return {}
        threshold = self.parts.threshold if self.parts else 0.0
        found = run.lowered_by_evidence(method, seed, round_num, judged, threshold)
        return {row.client: self._by_evidence(row, round_num, rows[row.client]) for row in found}

    def _by_evidence(self, lowered: LoweredRow, round_num: int, row: Weighed) -> str | None:
        is_harmful_now = lowered.harmful == round_num
        worse = self._cause(row, is_harmful_now)
        z = f"z = {number(lowered.z, 1)}"
        if lowered.since is None and is_harmful_now:
            return f"{worse} ({z}), but other clients lost at least as much weight"
        if lowered.since is None:
            return None
        since = f"evidence has lowered its weight since round {lowered.since}"
        if lowered.harmful is None:
            return since
        if is_harmful_now:
            return f"{since}: {worse} ({z})"
        last = f"{worse} (last in round {lowered.harmful}, {z})"
        if lowered.harmful < lowered.since:  # then the others lost as much, or shared as copies
            return f"{last}; its weight has been below its prior weight since round {lowered.since}"
        return f"{since}: {last}"

    def _cause(self, row: Weighed, is_harmful_now: bool) -> str:
        """What the evidence against a client is about."""
        if row.history_z is None:
            return f"its updates increased {self.loss}"
        if not is_harmful_now:
            return "the evidence against it was significant"
        if row.history_z >= NOTABLE_HISTORY:
            return "its update points against what it sent before"
        return f"its updates increased {self.loss}"

    def _by_bounds(self, row: Weighed) -> str | None:
        before = _before_bounds(row)
        after = row.weight
        if before is None or after is None or math.isclose(before, after):
            return None
        bounds = self.parts.bounds if self.parts else None
        if bounds and after < before and math.isclose(after, bounds.cap):
            return f"lowered from {percent_of(before)} to the cap of {_share(bounds.cap)}"
        if bounds and after > before and math.isclose(after, bounds.floor):
            return f"raised from {percent_of(before)} to the floor of {_share(bounds.floor)}"
        probation = bounds.probation if bounds else None
        if probation and after < before and math.isclose(after, probation.cap):
            cap = f"the cap of {_share(probation.cap)} on probation"
            return f"lowered from {percent_of(before)} to {cap}"
        if _differ(before, after):
            return f"the bounds {_changed('its weight', before, after)}"
        return None

    def _by_rule(self, row: Weighed) -> str | None:
        if row.influence is None or not row.weight:
            return None
        if row.influence == 0:
            return f"{self._rule} excluded its update"
        if _differ(row.weight, row.influence):
            return f"{self._rule} {_changed('its influence', row.weight, row.influence)}"
        return None

    @property
    def _rule(self) -> str:
        """What turns weights into influence, by name."""
        names = [step.name for step in self.parts.before] if self.parts else []
        if self.parts and self.parts.rule and self.parts.has_rule:
            names.append(f"the rule {self.parts.rule.name}")
        return " and then ".join(names) or "the rule"

    def explain(self, passed: Sequence[Stage]) -> list[str]:
        """What stands between score and influence; `passed` are the stages of the round."""
        if self.parts is None:
            return []
        sentences = [*_explain_movers(self.parts, passed, self.since)]
        if Z in passed:
            sentences.append(Z_MEANS)
        if HISTORY_Z in passed:
            sentences.append(HISTORY_MEANS)
        sentences += _explain_influence(self.parts)
        return sentences


def _by_copies(row: Weighed) -> str | None:
    """An update that others sent too."""
    if row.copies is None or row.copies < 2:
        return None
    others = row.copies - 1
    which = "another client sent" if others == 1 else f"{others:.0f} other clients sent"
    return f"{which} almost the same update; together they count as one"


def _explain_movers(
    parts: RecordedMethod, passed: Sequence[Stage], since: int | None
) -> Iterator[str]:
    if parts.evidence:
        yield f"Evidence adjusts the prior weight: {described(parts.evidence)}."
    if parts.bounds:
        yield f"Bounds limit the weight: {_in_words(parts.bounds)}."
        when = f"Bounds since round {since}" if since else "Bounds"
        if parts.bounds.note:
            yield f"{when}: {parts.bounds.note.rstrip('.')}."
    if (parts.evidence or parts.bounds) and PRIOR not in passed:
        yield "No weight was changed in this round."


def _explain_influence(parts: RecordedMethod) -> Iterator[str]:
    shapers = [described(step) for step in parts.before]
    if parts.rule and parts.has_rule:
        shapers.append(f"the rule {described(parts.rule)}")
    if shapers:
        yield f"Influence is a client's share of the aggregate after {' and then '.join(shapers)}."


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


def _changed(what: str, before: float, after: float) -> str:
    verb = "raised" if after > before else "lowered"
    return f"{verb} {what} from {percent_of(before)} to {percent_of(after)}"


def _differ(one: float, other: float) -> bool:
    """Whether two weights differ notably, and visibly so."""
    is_notable = abs(one - other) > NOTABLE * max(one, other)
    return is_notable and percent_of(one) != percent_of(other)


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

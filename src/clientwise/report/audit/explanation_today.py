"""Why a client has its share of a round's model: as fields, and in sentences made from them.

    weight by the criteria -> evidence -> copies -> bounds -> clipping and the rule -> final share

`Run.why`, `clientwise show`, the page and the conclusion print more or less of it. None of them has a
sentence of its own about a weight.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ...record.reading.config_view import RecordedMethod, read_bounds, recorded_config
from ...record.reading.folder import RunFolder
from ...record.reading.rows import CriterionRow, LoweredRow, ParticipantRow
from ..document import counted, number, percent_of

NOTABLE = 0.1  # relative change of a weight below which nothing is said
LOSSES = {  # by the source of the server set: the loss that evidence is about
    "held_out": "the held-out loss",
    "contributed": "the loss on the clients' contributed samples",
    "clients": "the loss that judging clients measured",
}

Witness = Literal["loss", "past", "unknown"]
Cause = Literal[
    "refused",
    "criteria",
    "evidence",
    "past evidence",  # significant in an earlier round, not in this one
    "other clients",  # they lost weight
    "copies",
    "bounds",
    "clipping",
    "rule",
    "kept",  # the model of the round before
    "nothing",  # about an equal share
]


@dataclass(frozen=True)
class Criterion:
    """A criterion of a client, and what it is compared with."""

    name: str
    value: float
    mean: float | None  # over the round's accepted clients; None: the record lacks some of them
    is_constant: bool  # the same for all of them


@dataclass(frozen=True)
class Evidence:
    """What evidence did to a client's weight, and when it was last significant against the client."""

    before: float
    after: float  # also after copies were counted as one
    is_test: bool  # whether it sums up significance, as Page's test does
    since: int | None = (
        None  # it has lowered the weight in every round since; None: not in this one
    )
    last: int | None = None  # the last round in which it was significant against the client
    witness: Witness = "unknown"  # by what; this field and those below are of that round
    loss: str = "the loss"  # that `harm` is about
    z: float | None = None  # in standard errors, summed over the rounds
    harm: float | None = None  # by how much following the client's update would raise the loss
    error: float | None = None  # the standard error of `harm`
    change: float | None = None  # of the loss by the round itself


@dataclass(frozen=True)
class Bound:
    """A bound that changed a weight."""

    kind: Literal["cap", "floor", "probation", "other"]
    before: float
    limit: float | None  # None where several bounds together changed it


@dataclass(frozen=True)
class Explanation:
    """A client's share of a round's model, step by step. A refused update has no weights."""

    client: int
    name: str | None
    method: str
    seed: int
    round_num: int
    num_accepted: int
    refusal: str | None = None
    criteria: tuple[Criterion, ...] = ()
    prior: float | None = None  # the weight by the criteria
    evidence: Evidence | None = None  # None: the method has none, or it said nothing in this round
    copies: int = 1  # updates that are almost equal to this one, itself included
    bound: Bound | None = None
    weight: float | None = None
    clipped: float | None = None  # the share of the update's length that clipping left
    rule: str = ""  # what turned weights into shares, by name; empty for the mean
    influence: float | None = None  # the share after clipping and the rule; None for the mean
    attack: str | None = None  # of a client that is hostile in a simulation
    is_simulated: bool = False  # whether it is known which clients are hostile
    new_data_since: int | None = None
    kept: str | None = None  # why the round kept the model of the round before

    @property
    def called(self) -> str:
        """The client's name, or its number."""
        return self.name or f"client {self.client}"

    @property
    def equal_share(self) -> float:
        """1/n, n being the accepted updates."""
        return 1 / max(1, self.num_accepted)

    @property
    def share(self) -> float | None:
        """The final share: the influence where there is one, else the weight; 0 where the model stayed."""
        if self.kept is not None:
            return 0.0
        return self.weight if self.influence is None else self.influence

    @property
    def is_hostile(self) -> bool:
        """Whether it is hostile in a simulation."""
        return self.attack is not None

    @property
    def is_lowered(self) -> bool:
        """Whether evidence lowers its weight."""
        return self.evidence is not None and self.evidence.since is not None

    @property
    def is_significant(self) -> bool:
        """Whether evidence against it is significant in this round."""
        return self.evidence is not None and self.evidence.last == self.round_num

    @property
    def is_harmful(self) -> bool:
        """Whether its update would raise the loss in this round, significantly and beyond the margin."""
        found = self.evidence
        return found is not None and self.is_significant and found.witness == "loss"

    @property
    def lost(self) -> float:
        """The share of its weight that evidence took, which copies have no part in."""
        if self.evidence is None or self.evidence.before == 0:
            return 0.0
        return max(0.0, 1 - self.evidence.after * self.copies / self.evidence.before)

    @property
    def cause(self) -> Cause:
        """What moved its share most, as a factor; a bound that it reached takes the place of all before it."""
        if self.refusal is not None or self.prior is None or self.weight is None:
            return "refused"
        if self.kept is not None:
            return "kept"
        steps: dict[Cause, tuple[float, float]] = {"criteria": (self.equal_share, self.prior)}
        if self.evidence is not None:
            after = self.evidence.after * self.copies
            steps[self._cause_of_evidence(self.evidence)] = (self.evidence.before, after)
            steps["copies"] = (after, self.evidence.after)
        usual: Cause = "nothing"
        if self.bound is not None:
            if self.bound.limit is not None:
                steps = {}
                usual = "bounds"
            steps["bounds"] = (self.bound.before, self.weight)
        if self.influence is not None:
            steps["rule" if self.clipped is None else "clipping"] = (self.weight, self.influence)
        factors = {name: _factor(*step) for name, step in steps.items()}
        largest = max(factors, key=lambda name: factors[name])
        return largest if factors[largest] > math.log1p(NOTABLE) else usual

    def _cause_of_evidence(self, found: Evidence) -> Cause:
        if not found.is_test:
            return "evidence"
        if not self.is_lowered:
            return "other clients"
        return "evidence" if self.is_significant else "past evidence"

    # ---------------------------------------------------------------- sentences

    def answer(self) -> str:
        """The share, and what an equal one would be."""
        if self.refusal is not None:
            return (
                f"{self.called} has no part in round {self.round_num}'s model: its update was "
                f"refused ({self.refusal})."
            )
        if self.kept is not None:
            return f"{self.called} has no part in round {self.round_num}'s model: {self.kept}."
        return (
            f"{self.called} has {percent_of(self.share)} of round {self.round_num}'s model; "
            f"an equal share is {percent_of(self.equal_share)}."
        )

    def by_criteria(self) -> str:
        """The weight by the criteria, and what each is compared with."""
        if self.refusal is not None or self.prior is None:
            return ""
        weight = f"The weight by the criteria is {percent_of(self.prior)}"
        if not self.criteria:
            return f"{weight}."
        return f"{weight}: {', '.join(map(_criterion, self.criteria))}."

    def by_evidence(self) -> str:
        """What evidence did, with its size; that it did nothing, where it is a test."""
        found = self.evidence
        if found is None:
            return ""
        weight = f"from {percent_of(found.before)} to {percent_of(found.after)}"
        if found.since is not None and self.is_significant:
            return f"Evidence lowers the weight {weight} (since round {found.since}): {_finding(found)}."
        if found.since is not None and found.last is not None:
            return (
                f"Evidence of earlier rounds lowers the weight {weight} (since round {found.since}). It was "
                f"last significant in round {found.last}: {_finding(found, is_past=True)}. In round "
                f"{self.round_num}, it is not significant."
            )
        if found.since is not None:
            return f"Evidence lowers the weight {weight} (since round {found.since})."
        if self.is_significant:
            return (
                f"Evidence against the client is significant: {_finding(found)}. Other clients lost at least "
                "as much weight."
            )
        if self.copies == 1 and _differ(found.before, found.after):
            if found.is_test:
                return f"Evidence lowers other clients, which raises this weight {weight}."
            return f"Evidence raises the weight {weight}."
        return "Evidence against the client is not significant." if found.is_test else ""

    def by_copies(self) -> str:
        """That others sent the same."""
        if self.copies < 2:
            return ""
        others = "Another client" if self.copies == 2 else f"{self.copies - 1} other clients"
        return f"{others} sent almost the same update: together they count as one."

    def by_bounds(self) -> str:
        """What bounds did."""
        if self.bound is None or self.weight is None:
            return ""
        before = percent_of(self.bound.before)
        if self.bound.limit is None:
            verb = "raise" if self.weight > self.bound.before else "lower"
            return f"The bounds {verb} the weight from {before} to {percent_of(self.weight)}."
        limit = f"{100 * self.bound.limit:.4g}%"
        if self.bound.kind == "floor":
            return f"The floor of {limit} raises the weight from {before}."
        whose = " for newcomers" if self.bound.kind == "probation" else ""
        return f"The cap of {limit}{whose} lowers the weight from {before}."

    def by_rule(self) -> str:
        """What clipping and the rule did."""
        if self.influence is None or not self.weight or not _differ(self.weight, self.influence):
            return ""
        shares = f"from {percent_of(self.weight)} to {percent_of(self.influence)}"
        if self.clipped is not None:
            length = percent_of(self.clipped)
            return (
                f"Clipping shortens the update to {length} of its length, and the share {shares}."
            )
        rule = f"{self.rule[0].upper()}{self.rule[1:]}"
        if self.influence == 0:
            return f"{rule} excludes the update."
        verb = "raises" if self.influence > self.weight else "lowers"
        return f"{rule} {verb} the share {shares}."

    @property
    def simulated_as(self) -> str:
        """What a simulation makes of the client: hostile, or honest where evidence lowers its weight."""
        if self.attack is not None:
            return f"hostile ({self.attack})"
        return "honest" if self.is_simulated and self.is_lowered else ""

    def known_facts(self) -> str:
        """Whether a simulated client is hostile, and new data; of honest clients, where they lose weight."""
        facts = []
        if self.simulated_as:
            facts.append(f"The client is {self.simulated_as}.")
        if self.new_data_since is not None:
            facts.append(f"It has new data since round {self.new_data_since}.")
        return " ".join(facts)

    def moves(self) -> tuple[str, ...]:
        """What moved the weight after the criteria, and facts of the simulation; empty if nothing did."""
        evidence = self.by_evidence() if self._is_moved_by_evidence else ""
        said = (evidence, self.by_copies(), self.by_bounds(), self.by_rule())
        return tuple(text for text in said if text)

    @property
    def _is_moved_by_evidence(self) -> bool:
        found = self.evidence
        if found is None:
            return False
        return (
            self.is_lowered
            or self.is_significant
            or (self.copies == 1 and _differ(found.before, found.after))
        )

    def brief(self) -> str:
        """The cause in about five words, for a table or a chart."""
        found = self.evidence
        if self.refusal is not None:
            return f"refused: {self.refusal}"
        match self.cause:
            case "evidence" if found is not None and self.is_significant:
                return {
                    "loss": "would raise the loss",
                    "past": "points against its own past",
                    "unknown": "significant evidence against it",
                }[found.witness]
            case "evidence":
                return "moved by evidence"
            case "past evidence" if found is not None and found.last is not None:
                what = "harmful" if found.witness == "loss" else "evidence against it"
                return f"{what} until round {found.last}"
            case "copies":
                return f"copy of {counted(self.copies - 1, 'other client')}"
            case "other clients":
                return "others lost weight"
            case "bounds" if self.bound is not None and self.bound.kind != "other":
                return f"reached the {self.bound.kind}"
            case "bounds":
                return "moved by the bounds"
            case "clipping":
                return f"clipped to {percent_of(self.clipped)} of its length"
            case "rule":
                return f"moved by {self.rule}"
            case "kept":
                return "the model stayed as it was"
            case "criteria" if len(self.criteria) == 1:
                return _criterion(self.criteria[0])
            case "criteria":
                return "weight by its criteria"
        return "about an equal share"


def _factor(before: float, after: float) -> float:
    """By what factor a weight changed, up or down, as a logarithm."""
    if before <= 0 or after <= 0:
        return 0.0 if before == after or before <= 0 else math.inf
    return abs(math.log(after / before))


def _differ(one: float, other: float) -> bool:
    """Whether two weights differ notably, and visibly so."""
    is_notable = abs(one - other) > NOTABLE * max(one, other)
    return is_notable and percent_of(one) != percent_of(other)


def _criterion(one: Criterion) -> str:
    text = f"{one.name} {number(one.value, 4)}"
    if one.is_constant:
        return f"{text} (the same for all)"
    return text if one.mean is None else f"{text} (mean {number(one.mean, 4)})"


def _finding(found: Evidence, *, is_past: bool = False) -> str:
    """What the evidence was in the round in which it was last significant, with its size."""
    if found.witness == "past":
        verb = "pointed" if is_past else "points"
        return f"its update {verb} against its own earlier updates"
    if found.witness == "unknown" or found.harm is None:
        return "its size is not recorded"
    verb = "would have raised" if is_past else "would raise"
    size = plus_minus(found.harm, found.error)
    text = f"in place of the mean, its update {verb} {found.loss} by {size}"
    if found.change is None:
        return text
    verb = "lowered" if found.change < 0 else "raised"
    return f"{text}; the mean {verb} it by {abs(found.change):.2g}"


def plus_minus(value: float, error: float | None) -> str:
    """A value with its standard error, which has one significant digit.

    >>> plus_minus(0.03123, 0.0042), plus_minus(12.3, 2.1), plus_minus(1.2e-7, 3e-8)
    ('0.031 ± 0.004', '12 ± 2', '1.2e-07 ± 3e-08')
    """
    if not error:
        return f"{value:.2g}"
    decimals = max(0, -math.floor(math.log10(error)))
    if decimals > 5:
        return f"{value:.2g} ± {error:.1g}"
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


# ------------------------------------------------------------------------ from the record


def explain(
    run: RunFolder,
    method: str,
    seed: int,
    round_num: int,
    clients: Collection[int] | None = None,
) -> list[Explanation]:
    """The explanation of every client whose update arrived in a round, the largest weight first.

    Args:
        run: the run.
        method: the method.
        seed: the seed.
        round_num: the round.
        clients: only these.
    """
    every = run.participants(method, seed, round_num)
    if not every:
        return []
    omitted = run.omitted(method, seed, round_num)
    rows = [row for row in every if clients is None or row.client in clients]
    num_accepted = sum(row.refusal is None for row in every)
    parts = method_at(run, method, seed, round_num)
    kept = run.round(method, seed, round_num).kept
    how = _How(
        run=run,
        lane=(method, seed),
        round_num=round_num,
        num_accepted=num_accepted + (omitted.accepted if omitted else 0),
        parts=parts,
        criteria=_criteria(run.criteria(method, seed, round_num), parts, is_whole=omitted is None),
        lowered=_lowered(run, parts, method, seed, round_num, rows),
        new_data=run.new_data(seed),
        is_clipped=_is_clipped(every, parts),
        kept=kept.sentence if kept else None,
    )
    return [how.explanation(row) for row in rows]


def method_at(run: RunFolder, method: str, seed: int, round_num: int) -> RecordedMethod | None:
    """A method's parts, with the bounds of that round; None where the config is unknown."""
    parts = recorded_config(run.folder).method(method)
    past = [row for row in run.policies(method, seed) if row.round_num <= round_num]
    if parts is None or not past:
        return parts
    return replace(parts, bounds=read_bounds(past[-1].policy))  # the config has the last ones


def _lowered(
    run: RunFolder,
    parts: RecordedMethod | None,
    method: str,
    seed: int,
    round_num: int,
    rows: Sequence[ParticipantRow],
) -> dict[int, LoweredRow]:
    judged = [row.client for row in rows if row.posterior is not None]
    if not judged:
        return {}
    threshold = parts.threshold if parts else math.inf
    found = run.lowered_by_evidence(method, seed, round_num, judged, threshold)
    return {row.client: row for row in found}


def _criteria(
    rows: Sequence[CriterionRow], parts: RecordedMethod | None, *, is_whole: bool
) -> dict[int, tuple[Criterion, ...]]:
    """By client, in the order of the config."""
    values: dict[str, dict[int, float]] = (
        {part.called: {} for part in parts.criteria} if parts else {}
    )
    for row in rows:
        values.setdefault(row.criterion, {})[row.client] = row.raw
    found: dict[int, list[Criterion]] = {}
    for name, by_client in values.items():
        if not by_client:
            continue
        mean = math.fsum(by_client.values()) / len(by_client)
        is_constant = is_whole and len({*by_client.values()}) == 1
        for client, value in by_client.items():
            one = Criterion(name, value, mean if is_whole else None, is_constant)
            found.setdefault(client, []).append(one)
    return {client: tuple(own) for client, own in found.items()}


def _is_clipped(rows: Sequence[ParticipantRow], parts: RecordedMethod | None) -> bool:
    """Whether the steps before a mean shorten some updates and leave the others as they are."""
    if parts is None or parts.has_rule:
        return False
    left = [row.influence / row.weight for row in rows if row.weight and row.influence is not None]
    return any(math.isclose(one, 1) for one in left) and max(left) < 1 + 1e-9


@dataclass(frozen=True)
class _How:
    """What the explanations of a round share."""

    run: RunFolder
    lane: tuple[str, int]
    round_num: int
    num_accepted: int
    parts: RecordedMethod | None
    criteria: Mapping[int, tuple[Criterion, ...]]
    lowered: Mapping[int, LoweredRow]
    new_data: Mapping[int, int]
    is_clipped: bool
    kept: str | None

    def explanation(self, row: ParticipantRow) -> Explanation:
        method, seed = self.lane
        since = self.new_data.get(row.client)
        found = Explanation(
            client=row.client,
            name=row.name,
            method=method,
            seed=seed,
            round_num=self.round_num,
            num_accepted=self.num_accepted,
            refusal=row.refusal,
            attack=row.hostile,
            is_simulated=self.run.has_hostile,
            new_data_since=since if since is not None and since <= self.round_num else None,
        )
        if row.refusal is not None:
            return found
        return replace(
            found,
            criteria=self.criteria.get(row.client, ()),
            prior=row.weight if row.prior is None else row.prior,
            evidence=self._evidence(row),
            copies=round(row.copies or 1),
            bound=self._bound(row),
            weight=row.weight,
            clipped=self._clipped(row),
            rule=self._rule,
            influence=row.influence,
            kept=self.kept,
        )

    def _evidence(self, row: ParticipantRow) -> Evidence | None:
        if row.posterior is None or row.prior is None:
            return None
        lowered = self.lowered.get(row.client)
        is_test = self.parts is not None and math.isfinite(self.parts.threshold)
        found = Evidence(row.prior, row.posterior, is_test)
        if lowered is None:
            return found
        found = replace(found, since=lowered.since)
        if lowered.last is None:
            return found
        source = recorded_config(self.run.folder).server_set_source
        return replace(
            found,
            last=lowered.last,
            witness=self._witness(lowered),
            loss=LOSSES.get(source or "", "the loss"),
            z=lowered.z,
            harm=lowered.harm,
            error=lowered.harm_error,
            change=lowered.change,
        )

    def _witness(self, lowered: LoweredRow) -> Witness:
        """What the evidence was, in the round in which it was last significant: the larger z counts."""
        harm = lowered.harm
        margin = (self.parts.margin if self.parts else 0.0) * abs(lowered.change or 0.0)
        by_loss = 0.0
        if harm is not None and harm > margin and lowered.harm_error:
            by_loss = (harm - margin) / lowered.harm_error
        if lowered.history_z is not None and lowered.history_z > by_loss:
            return "past"
        return "loss" if by_loss > 0 else "unknown"

    def _bound(self, row: ParticipantRow) -> Bound | None:
        before = row.prior if row.posterior is None else row.posterior
        after = row.weight
        if before is None or after is None or math.isclose(before, after):
            return None
        bounds = self.parts.bounds if self.parts else None
        if bounds is not None and after < before:
            if math.isclose(after, bounds.cap):
                return Bound("cap", before, bounds.cap)
            if bounds.probation and math.isclose(after, bounds.probation.cap):
                return Bound("probation", before, bounds.probation.cap)
        if bounds is not None and after > before and math.isclose(after, bounds.floor):
            return Bound("floor", before, bounds.floor)
        return Bound("other", before, None) if _differ(before, after) else None

    def _clipped(self, row: ParticipantRow) -> float | None:
        """What clipping leaves of a share is what it leaves of the update's length."""
        if not self.is_clipped or row.influence is None or not row.weight:
            return None
        return row.influence / row.weight

    @property
    def _rule(self) -> str:
        names = [step.name for step in self.parts.before] if self.parts else []
        if self.parts and self.parts.rule and self.parts.has_rule:
            names.append(f"the rule {self.parts.rule.name}")
        return " and then ".join(names) or "the rule"

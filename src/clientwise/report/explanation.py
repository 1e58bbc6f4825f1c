"""Why a client has its share of a round's model: as fields, and in sentences made from them.

    weight by the criteria -> evidence -> copies -> bounds -> clipping and the rule -> final share

`Run.why`, `clientwise show`, the page and the conclusion print more or less of it. None of them has a
sentence of its own about a weight.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

import pandas

from ..core.reasons import Kept
from ..errors import RunError
from ..registry import listed
from .about import in_words, methods_of
from .items import counted, percent
from .results import client_names

if TYPE_CHECKING:
    from ..record.facts import MethodFacts
    from ..record.run import RunFolder

NOTABLE = 0.1  # relative change of a weight below which nothing is said
ROUNDING = 1e-9
LOSSES = {  # by the source of the server set: the loss that evidence is about
    "held_out": "the held-out loss",
    "contributed": "the loss on the clients' contributed samples",
    "clients": "the loss that judging clients measured",
}
SIGNIFICANT = {  # by witness, in a few words
    "loss": "would raise the loss",
    "past": "points against its own past",
    "pattern": "reacts to a suspect pattern",
    "unknown": "significant evidence against it",
}

Witness = Literal["loss", "past", "pattern", "unknown"]
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
Row = Mapping[str, Any]  # of a frame, with None for what is absent
FACTS = ["round", "client", "name", "hostile", "refusal"]  # columns of the frame "weights"
WEIGHTS = ["prior", "posterior", "copies", "weight", "influence"]
NUMBERS = [*WEIGHTS, "z", "history_z", "pattern_z", "harm", "harm_error"]


@dataclass(frozen=True)
class Criterion:
    """A criterion of a client, and what it is compared with."""

    name: str
    value: float
    mean: float  # over the round's accepted clients
    is_constant: bool  # the same for all of them

    @property
    def text(self) -> str:
        """In words."""
        others = "the same for all" if self.is_constant else f"mean {self.mean:.4g}"
        return f"{self.name} {self.value:.4g} ({others})"


@dataclass(frozen=True)
class Evidence:
    """What evidence did to a client's weight, and when it was last significant against the client."""

    after: float  # the weight, also after copies were counted as one
    since: int | None  # it has lowered the weight in every round since; None: not in this one
    last: int | None = None  # the last round in which it was significant against the client
    witness: Witness = "unknown"  # by what; this field and those below are of that round
    loss: str = "the loss"  # that `harm` is about
    z: float | None = None  # in standard errors, summed over the rounds
    harm: float | None = None  # how much higher the loss would be with it than with the mean
    error: float | None = None  # the standard error of `harm`
    change: float | None = None  # of the loss by the mean of the clipped updates
    raising: int = 0  # clients whose updates raise the loss, itself included; 0: compared with the mean, or not known
    judged: int = 0  # clients that have evidence by the loss in that round

    def size(self, *, is_past: bool) -> str:
        """What it was when it was last significant."""
        if self.witness == "past":
            verb = "pointed" if is_past else "points"
            return f"its update {verb} against its own first updates"
        if self.witness == "pattern":
            verb = "reacted" if is_past else "reacts"
            return f"its model {verb} more than others to a pattern of a suspected backdoor"
        if self.witness == "unknown" or self.harm is None:
            return "its size is not recorded"
        size, note = f"{self.harm:.2g}", ""
        if self.error:
            size += f" ± {self.error:.1g}"
            if self.z is not None and self.harm < 2 * self.error:
                note = f" (small by itself: summed over the rounds, z is {self.z:.1f})"
        would = "would have" if is_past else "would"
        if self.raising:
            text = f"its update {would} {'raised' if is_past else 'raise'} {self.loss} by {size}"
        else:
            reference = "the mean of all"
            if (self.change or -1) > 0 and self.loss != LOSSES["clients"]:
                reference += " or with no update, whichever is better"
            be = "been" if is_past else "be"
            text = f"with its update, {self.loss} {would} {be} {size} higher than with {reference}"
        text += note
        if 2 * self.raising > self.judged > 1:
            others = counted(self.judged - 1, "other client")
            text += (
                f", and so {would} those of {self.raising - 1} of {others}: the model may be tuned closely to the "
                "server's samples, or its step may be too large"
            )
        if self.change is None:
            return text
        verb = "lowered" if self.change < 0 else "raised"
        return f"{text}; the mean {verb} it by {abs(self.change):.2g}"


@dataclass(frozen=True)
class Explanation:
    """A client's share of a round's model, step by step. A refused update has no weights."""

    client: int
    name: str | None
    round_num: int
    num_accepted: int
    refusal: str | None = None
    attack: str | None = None  # of a client that is hostile in a simulation
    prior: float = 0.0  # the weight by the criteria
    weight: float = 0.0  # within the bounds
    influence: float = 0.0  # the share after clipping and the rule
    criteria: tuple[Criterion, ...] = ()
    evidence: Evidence | None = None  # None: the method has none, or it said nothing in this round
    copies: int = 1  # updates that are almost equal to this one, itself included
    unbounded: float | None = None  # the weight before bounds, where they changed it
    limit: Literal["cap", "floor"] | None = None  # the one that it reached
    clipped: float | None = None  # the share of the update's length that clipping left
    rule: str = ""  # what turns weights into shares, with its options
    kept: str | None = None  # why the round kept the model of the round before
    is_simulated: bool = False  # whether it is known which clients are hostile
    new_data_since: int | None = None

    @property
    def called(self) -> str:
        """The client's name, or its number."""
        return self.name or f"client {self.client}"

    @property
    def label(self) -> str:
        """Its number and its name."""
        return f"{self.client} {self.name}" if self.name else str(self.client)

    @property
    def equal_share(self) -> float:
        """1/n, n being the accepted updates."""
        return 1 / max(1, self.num_accepted)

    @property
    def share(self) -> float:
        """The final share; 0 where the model stayed."""
        return self.influence if self.kept is None else 0.0

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
    def cause(self) -> Cause:
        """What moved its share most, as a factor; a bound that it reached takes the place of all before it."""
        if self.refusal is not None:
            return "refused"
        if self.kept is not None:
            return "kept"
        steps: dict[Cause, tuple[float, float]] = {}
        if self.limit is None:
            steps["criteria"] = (self.equal_share, self.prior)
            if self.evidence is not None:
                after = self.evidence.after * self.copies
                steps[self._cause_of_evidence(self.evidence)] = (self.prior, after)
                steps["copies"] = (after, self.evidence.after)
        if self.unbounded is not None:
            steps["bounds"] = (self.unbounded, self.weight)
        steps["rule" if self.clipped is None else "clipping"] = (self.weight, self.influence)
        factors = {name: _factor(*step) for name, step in steps.items()}
        largest = max(factors, key=lambda name: factors[name])
        if factors[largest] > math.log1p(NOTABLE):
            return largest
        return "nothing" if self.limit is None else "bounds"

    def _cause_of_evidence(self, found: Evidence) -> Cause:
        if not self.is_lowered and not self.is_significant:
            return "other clients"
        return "evidence" if found.last in (None, self.round_num) else "past evidence"

    # ---------------------------------------------------------------- sentences

    def answer(self) -> str:
        """The share, and what an equal one would be."""
        where = f"round {self.round_num}'s model"
        if self.refusal is not None:
            return f"{self.called} has no part in {where}: its update was refused ({self.refusal})."
        if self.kept is not None:
            return f"{self.called} has no part in {where}: {self.kept}."
        equal = percent(self.equal_share)
        return f"{self.called} has {percent(self.share)} of {where}; an equal share is {equal}."

    def by_criteria(self) -> str:
        """The weight by the criteria, and what each is compared with."""
        if self.refusal is not None:
            return ""
        values = ", ".join(one.text for one in self.criteria)
        return f"The weight by the criteria is {percent(self.prior)}{values and ': '}{values}."

    def by_evidence(self) -> str:
        """What evidence did, with its size."""
        found = self.evidence
        if found is None:
            return ""
        weight = f"from {percent(self.prior)} to {percent(found.after)}"
        size = found.size(is_past=not self.is_significant)
        if self.is_lowered and self.is_significant:
            return f"Evidence lowers the weight {weight} (since round {found.since}): {size}."
        if self.is_lowered and found.last is not None:
            return (
                f"Evidence of earlier rounds lowers the weight {weight} (since round {found.since}). It was "
                f"last significant in round {found.last}: {size}. In round {self.round_num}, it is not "
                "significant."
            )
        if self.is_lowered:
            return f"Evidence lowers the weight {weight} (since round {found.since})."
        if self.is_significant:
            return f"Evidence against the client is significant: {size}. Other clients lost at least as much weight."
        if self._is_raised:
            return f"Evidence lowers other clients, which raises this weight {weight}."
        return "Evidence does not lower the weight."

    @property
    def _is_raised(self) -> bool:
        """Whether the weight changes because evidence lowers others."""
        found = self.evidence
        return found is not None and self.copies == 1 and _differ(self.prior, found.after)

    def by_copies(self) -> str:
        """That others sent the same."""
        if self.copies < 2:
            return ""
        others = "Another client" if self.copies == 2 else f"{self.copies - 1} other clients"
        return f"{others} sent almost the same update: together they count as one."

    def by_bounds(self) -> str:
        """What bounds did."""
        if self.unbounded is None:
            return ""
        verb = "raise" if self.weight > self.unbounded else "lower"
        before, after = percent(self.unbounded), percent(self.weight)
        if self.limit is None:
            return f"The bounds {verb} the weight from {before} to {after}."
        return f"The {self.limit} of {100 * self.weight:.4g}% {verb}s the weight from {before}."

    def by_rule(self) -> str:
        """What clipping and the rule did."""
        if not self.weight or not _differ(self.weight, self.influence):
            return ""
        shares = f"from {percent(self.weight)} to {percent(self.influence)}"
        if self.clipped is not None:
            left = percent(self.clipped)
            return f"Clipping shortens the update to {left} of its length, and the share {shares}."
        rule = self.rule or "the rule"
        rule = f"{rule[0].upper()}{rule[1:]}"
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
        facts = [f"The client is {self.simulated_as}."] if self.simulated_as else []
        if self.new_data_since is not None:
            facts.append(f"It has new data since round {self.new_data_since}.")
        return " ".join(facts)

    def moves(self) -> tuple[str, ...]:
        """What moved the weight after the criteria; empty if nothing did."""
        is_moved = self.is_lowered or self.is_significant or self._is_raised
        evidence = self.by_evidence() if is_moved else ""
        return tuple(filter(None, (evidence, self.by_copies(), self.by_bounds(), self.by_rule())))

    def reasons(self) -> str:
        """What moved the weight, in a paragraph, and what the simulation knows of the client."""
        return " ".join(filter(None, (*self.moves(), self.known_facts())))

    def brief(self) -> str:
        """The cause in about five words, for a table or a chart."""
        found = self.evidence or Evidence(0.0, None)
        criteria = [one.text for one in self.criteria]
        what = "harmful" if found.witness == "loss" else "evidence against it"
        words: dict[Cause, str] = {
            "refused": f"refused: {self.refusal}",
            "criteria": criteria[0] if len(criteria) == 1 else "weight by its criteria",
            "evidence": SIGNIFICANT[found.witness] if self.is_significant else "moved by evidence",
            "past evidence": f"{what} until round {found.last}",
            "other clients": "others lost weight",
            "copies": f"copy of {counted(self.copies - 1, 'other client')}",
            "bounds": f"reached the {self.limit}" if self.limit else "moved by the bounds",
            "clipping": f"clipped to {percent(self.clipped)} of its length",
            "rule": "moved by the rule",
            "kept": "the model stayed as it was",
            "nothing": "about an equal share",
        }
        return words[self.cause]


def _factor(before: float, after: float) -> float:
    """By what factor a weight changed, up or down, as a logarithm."""
    if before <= 0 or after <= 0:
        return 0.0 if before == after or before <= 0 else math.inf
    return abs(math.log(after / before))


def _differ(one: float, other: float) -> bool:
    """Whether two weights differ notably, and visibly so."""
    is_notable = abs(one - other) > NOTABLE * max(one, other)
    return is_notable and percent(one) != percent(other)


# ------------------------------------------------------------------------ from the record


@dataclass(frozen=True)
class Round:
    """A round of a method and a seed, and what the run has recorded of it."""

    run: RunFolder
    method: str
    seed: int
    round_num: int

    @cached_property
    def record(self) -> Row:
        """Its row of the frame "rounds"; an error that says what there is where there is none."""
        rounds = lane_rows(self.run, "rounds", self.method, self.seed)
        found = records(rounds[rounds["round"] == self.round_num])
        if not found:
            there = f"rounds 1 to {rounds['round'].max()}" if len(rounds) else "none yet"
            where = f"{self.run.id}: {self.method}, seed {self.seed}, has"
            raise RunError(f"{where} no round {self.round_num}; it has {there}")
        return found[0]

    @property
    def title(self) -> str:
        """What it is called."""
        return f"{self.method}, seed {self.seed}, round {self.round_num}"

    @property
    def id(self) -> str:
        """What its tables and charts are called."""
        return f"{self.method}-{self.seed}-{self.round_num}"

    def rows(self, frame: str) -> pandas.DataFrame:
        """Its rows of a frame."""
        rows = lane_rows(self.run, frame, self.method, self.seed)
        return rows[rows["round"] == self.round_num]

    def participants(self) -> pandas.DataFrame:
        """The clients whose updates arrived, the largest weight first; those refused are last."""
        order = {"by": ["weight", "client"], "ascending": [False, True]}
        return self.rows("weights").sort_values(kind="stable", **order)

    @cached_property
    def explanations(self) -> list[Explanation]:
        """Of all clients; see `explain`."""
        return explain(self)

    @cached_property
    def about(self) -> MethodFacts:
        """How the method weighs."""
        return self.run.about(self.method)

    @property
    def rule(self) -> str:
        """What turns weights into shares, in its order; empty for the mean."""
        table: Row = methods_of(self.run).get(self.method, {})
        before = table.get("before")
        steps = [in_words(step) for step in before] if isinstance(before, list) else []
        if self.about.has_rule:
            steps.append(f"the rule {in_words(table.get('rule', self.about.rule))}")
        return " and then ".join(steps)


def last_of_each(run: RunFolder, method: str, seed: int) -> list[Explanation]:
    """The explanation of every client in the last round in which its update arrived."""
    own = lane_rows(run, "weights", method, seed)
    last = own.groupby("client")["round"].max()
    rounds = {client: Round(run, method, seed, number) for client, number in last.items()}
    return [explain(at, [client])[0] for client, at in rounds.items()]


def explain(at: Round, clients: Collection[int] | None = None) -> list[Explanation]:
    """The explanation of every client whose update arrived in a round, the largest weight first.

    Args:
        at: the round.
        clients: only these.
    """
    run, seed, round_num = at.run, at.seed, at.round_num
    rows = _typed(at.participants())
    is_clipping = not at.about.has_rule and _shortens(rows)
    criteria, evidence = _criteria(at), _evidence(at)
    changes = run.facts.new_data.get(seed, ())
    new_data = {one: since for since, own in changes for one in own if since <= round_num}
    everybody = run.frame("clients")
    of_round: dict[str, Any] = {
        "round_num": round_num,
        "num_accepted": int(rows["refusal"].isna().sum()),
        "is_simulated": everybody.loc[everybody["seed"] == seed, "hostile"].notna().any(),
        "kept": Kept(*at.record["kept"]).sentence if at.record.get("kept") else None,
        "rule": at.rule,
    }
    found = []
    for row in records(rows if clients is None else rows[rows["client"].isin(clients)]):
        client = row["client"]
        own = {name: row[name] for name in ("client", "name", "refusal")}
        own |= {"attack": row["hostile"], "new_data_since": new_data.get(client)}
        if row["refusal"] is None:
            # What clipping leaves of a share is what it leaves of the update's length
            left = row["influence"] / row["weight"] if row["weight"] else 1.0
            own |= {name: row[name] for name in ("prior", "weight", "influence")}
            own |= {"criteria": criteria.get(client, ()), "evidence": evidence.get(client)}
            own |= {"copies": round(row["copies"] or 1), "clipped": left if is_clipping else None}
            own |= _bounded(row, at.about.bounds or {})
        found.append(Explanation(**of_round, **own))
    return found


def suspicions(at: Round) -> Iterator[tuple[str, int, Any]]:
    """The backdoors that were suspected until a round, in the order in which that began.

    For each, a sentence (since when, which clients' models react most), the class, and the last recorded pattern.
    """
    rounds = lane_rows(at.run, "rounds", at.method, at.seed)
    rows = [
        {"round": row["round"], **suspect}
        for row in records(rounds.reindex(columns=["round", "suspects"]))
        if row["round"] <= at.round_num
        for suspect in row["suspects"] or ()
        if suspect.get("confirmed", True)  # records of older versions have no others
    ]
    if not rows:
        return
    clients = at.run.frame("clients").query("seed == @at.seed")
    # A suspicion keeps the norm with which it began
    for (label, norm), own in pandas.DataFrame(rows).groupby(["class", "norm"], sort=False):
        stand_out = own.explode("clients").merge(clients, left_on="clients", right_on="client")
        times = client_names(stand_out).value_counts()
        most = listed(times.index[2 * times >= times.max()])
        text = (
            f"Class {label} reacts to a common pattern (norm {norm:.2g}, usual {own['usual'].max():.2g}) since round "
            f"{own['round'].min()}, last in round {own['round'].max()}: a backdoor is suspected. Models that react "
            f"most: {most or 'none'}."
        )
        yield text, label, own["pattern"].dropna().iloc[-1]


@lru_cache(maxsize=8)
def lane_rows(run: RunFolder, frame: str, method: str, seed: int) -> pandas.DataFrame:
    """The rows of a method and a seed, not to be changed; an error that says which there are where it is none."""
    run.lane(method, seed)
    rows = run.frame(frame)
    return rows[(rows["method"] == method) & (rows["seed"] == seed)]


def _typed(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Rows of the frame "weights", also of a run that lacks some of the columns."""
    return rows.reindex(columns=[*FACTS, *NUMBERS]).astype(dict.fromkeys(NUMBERS, float))


def records(frame: pandas.DataFrame) -> list[Row]:
    """The rows of a frame, with None for what is absent."""
    columns = [[None if one != one else one for one in frame[name].tolist()] for name in frame]
    return [dict(zip(frame, row, strict=True)) for row in zip(*columns, strict=True)]


def _criteria(at: Round) -> dict[int, tuple[Criterion, ...]]:
    """By client, in the order of the config."""
    rows = at.rows("criteria")
    found: dict[int, tuple[Criterion, ...]] = {}
    for name in dict.fromkeys([*at.about.criteria, *rows["criterion"]]):
        own = rows[rows["criterion"] == name]
        mean, is_constant = own["raw"].mean(), own["raw"].nunique() == 1
        for client, value in zip(own["client"], own["raw"], strict=True):
            found[client] = (*found.get(client, ()), Criterion(name, value, mean, is_constant))
    return found


def _evidence(at: Round) -> dict[int, Evidence]:
    """By client, where evidence judged it in this round."""
    every = lane_rows(at.run, "weights", at.method, at.seed)
    judged = _typed(every[every["round"] <= at.round_num]).dropna(subset=["posterior"])
    copies = judged["copies"].fillna(1).clip(lower=1)
    # By more than rounding; updates that count as one are not lowered by that
    is_lowered = judged["posterior"] * copies < judged["prior"] * (1 - ROUNDING)
    last_kept = judged["round"].where(~is_lowered, 0).groupby(judged["client"]).transform("max")
    since = judged[judged["round"] > last_kept].groupby("client")["round"].min().to_dict()
    rounds = lane_rows(at.run, "rounds", at.method, at.seed)
    changes = rounds.reindex(columns=["round", "held_out_change"])
    # Compared with the mean, the weighted sum of all harms is 0 or, once the worst are lowered, less
    harm = judged["harm"]
    sums = {
        "judged": harm.notna(),
        "raising": harm > 0,
        "rise": judged["posterior"] * copies * harm,
    }
    changes = changes.merge(pandas.DataFrame(sums).groupby(judged["round"]).sum(), on="round")
    significant = judged[judged["z"] > at.about.threshold].drop_duplicates("client", keep="last")
    last = {row["client"]: row for row in records(significant.merge(changes, on="round"))}
    server_set = at.run.config.get("server_set")
    source = server_set.get("source") if isinstance(server_set, Mapping) else None
    found = {}
    for row in records(judged[judged["round"] == at.round_num]):
        one = Evidence(row["posterior"], since.get(row["client"]))
        if worst := last.get(row["client"]):
            is_rise = source != "clients" and worst["rise"] > ROUNDING < (
                worst["held_out_change"] or 0
            )
            one = replace(
                one,
                last=worst["round"],
                witness=_witness(worst, at.about.margin),
                loss=LOSSES.get(str(source), "the loss"),
                z=worst["z"],
                harm=worst["harm"],
                error=worst["harm_error"],
                change=worst["held_out_change"],
                raising=worst["raising"] if is_rise else 0,
                judged=worst["judged"],
            )
        found[row["client"]] = one
    return found


def _witness(row: Row, margin: float) -> Witness:
    """What the evidence was in the round in which it was last significant: the larger z counts."""
    least = margin * abs(row["held_out_change"] or 0.0)
    by_loss = 0.0
    if row["harm"] is not None and row["harm"] > least and row["harm_error"]:
        by_loss = (row["harm"] - least) / row["harm_error"]
    found: dict[Witness, float] = {
        "loss": by_loss,
        "past": row["history_z"] or 0.0,
        "pattern": row["pattern_z"] or 0.0,
    }
    largest = max(found, key=lambda witness: found[witness])
    return largest if found[largest] > 0 else "unknown"


def _bounded(row: Row, bounds: Row) -> dict[str, Any]:
    """What bounds did to a weight, as fields."""
    before = row["prior"] if row["posterior"] is None else row["posterior"]
    after = row["weight"]
    kind = "floor" if after > before else "cap"
    limit = bounds.get(kind)
    if not math.isclose(before, after) and isinstance(limit, float) and math.isclose(after, limit):
        return {"unbounded": before, "limit": kind}
    return {"unbounded": before} if _differ(before, after) else {}


def _shortens(rows: pandas.DataFrame) -> bool:
    """Whether the steps before a mean shorten some updates and leave the others as they are."""
    left = (rows["influence"] / rows["weight"])[rows["weight"] > 0]
    is_whole = (left - 1).abs() < ROUNDING
    return bool(is_whole.any() and left.max() < 1 + ROUNDING and left.min() < 1 - ROUNDING)

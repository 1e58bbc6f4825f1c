"""From score to influence: what moved a client's weight, as columns and in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from ..core.before import BEFORE
from ..core.criteria import CRITERIA
from ..core.evidence import EVIDENCE
from ..core.rules import RULES
from ..experiment.config import read_written
from ..registry import Part, Registry
from ..runs.folder import RunFolder
from ..runs.rows import ClientRoundRow, LoweredRow, ParticipantRow
from .document import Cell, number, percent_of

NOTABLE = 0.1  # of a weight: where others' bounds or the rule moved it by less, the columns say enough
WITNESSES = {  # by server_set.source: who saw it
    "held_out": "on held-out samples ",
    "contributed": "on samples that clients gave ",
    "clients": "in the judgement of clients ",
}

Weighed = ParticipantRow | ClientRoundRow


@dataclass(frozen=True)
class Place:
    """A place of the chain: what it is called, and a client's value there."""

    label: str
    value: Callable[[Weighed], float | None]
    text: Callable[[float | None], str] = percent_of
    mover: str = ""  # what makes it of the place before; nothing where the criteria do

    def cell(self, row: Weighed) -> Cell:
        """For a table."""
        return Cell(self.value(row), self.text(self.value(row)))


SCORE = Place("score", lambda row: row.score, lambda value: number(value, 4))
PRIOR = Place("prior weight", lambda row: row.prior)
Z = Place("z", lambda row: row.z, lambda value: number(value, 1))
POSTERIOR = Place("weight after evidence", lambda row: row.posterior, mover="evidence")
WEIGHT = Place("weight", lambda row: row.weight, mover="evidence")
INFLUENCE = Place("influence", lambda row: row.influence, mover="rule")


def places(rows: Sequence[Weighed]) -> list[Place]:
    """The places that moved these rows, in order; none that is empty, none that only repeats the one before it."""
    bounded = any(row.weight != _before_bounds(row) for row in rows)
    weight = [POSTERIOR, replace(WEIGHT, label="weight within bounds", mover="bounds")] if bounded else [WEIGHT]
    chain = [SCORE, PRIOR, Z, *weight, INFLUENCE]
    always = (SCORE, weight[-1])
    return [place for place in chain if place in always or any(place.value(row) is not None for row in rows)]


def _before_bounds(row: Weighed) -> float | None:
    if row.prior is None:  # nothing moved it
        return row.weight
    return row.prior if row.posterior is None else row.posterior


class _Named(BaseModel):
    name: str
    label: str = Field("", alias="as")


class _Bounds(BaseModel):
    cap: float = 1.0
    floor: float = 0.0

    def __str__(self) -> str:
        cap, floor = f"cap {_share(self.cap)}", f"floor {_share(self.floor)}"
        return f"{cap}, {floor}" if self.floor > 0 and self.cap < 1 else floor if self.floor else cap


class MethodParts(BaseModel):
    """What of a method in a resolved config says how it weighs."""

    name: str
    criteria: list[_Named]
    score: dict[str, object]
    normalise: _Named | None = None
    evidence: dict[str, object] | None = None
    bounds: _Bounds | None = None
    before: list[dict[str, object]] = []
    rule: dict[str, object] | None = None
    control: str | None = None

    @property
    def is_control(self) -> bool:
        """Whether it is there to compare with, not to be used: it knows who is honest, or is not federated."""
        named: list[tuple[Registry[Any], str]] = [(CRITERIA, one.name) for one in self.criteria]
        named += [(BEFORE, str(step.get("name"))) for step in self.before]
        named += [(RULES, str((self.rule or {}).get("name"))), (EVIDENCE, str((self.evidence or {}).get("name")))]
        known = [registry.declared(name).needs for registry, name in named if name in registry]
        return self.control is not None or any("simulation" in needed for needed in known)

    @property
    def threshold(self) -> float:
        """The z above which evidence counts against a client."""
        found = (self.evidence or {}).get("threshold", 0.0)
        return float(found) if isinstance(found, int | float) else 0.0

    @property
    def has_rule(self) -> bool:
        """Whether it has another rule than the mean, the only one that needs no models."""
        name = (self.rule or {}).get("name")
        return isinstance(name, str) and (name not in RULES or "models" in RULES.needs(Part(name, {})))


class _ServerSet(BaseModel):
    source: str = ""


class _Config(BaseModel):
    methods: list[MethodParts]
    server_set: _ServerSet = _ServerSet()


@lru_cache(maxsize=256)
def _read_config(config: Path, modified: int) -> _Config | None:
    try:
        return _Config.model_validate(read_written(config))
    except ValueError:  # no such file, no TOML, another shape
        return None


@dataclass(frozen=True)
class Chain:
    """What a run's config says about a method; `parts` is None where it cannot be read."""

    parts: MethodParts | None
    witnesses: str  # of the evidence

    @classmethod
    def of(cls, run: RunFolder, method: str) -> Chain:
        """Plugins are not imported: to look at a run must never execute what it names."""
        path = run.folder / "config.toml"
        config = _read_config(path, path.stat().st_mtime_ns if path.exists() else 0)
        if config is None:
            return cls(None, "")
        parts = next((one for one in config.methods if one.name == method), None)
        return cls(parts, WITNESSES.get(config.server_set.source, ""))

    def remarks(
        self, run: RunFolder, method: str, seed: int, round_num: int, rows: Mapping[int, Weighed]
    ) -> dict[int, tuple[str, ...]]:
        """What moved the weights of clients in a round, in words; `rows` are of accepted updates, by client."""
        judged = [client for client, row in rows.items() if row.posterior is not None]
        threshold = self.parts.threshold if self.parts else 0.0
        found = run.lowered_by_evidence(method, seed, round_num, judged, threshold) if judged else []
        said = {row.client: self._by_evidence(row, round_num) for row in found}
        return {
            client: (*said.get(client, ()), *self._by_bounds(row), *self._by_rule(row)) for client, row in rows.items()
        }

    def _by_evidence(self, lowered: LoweredRow, round_num: int) -> Iterator[str]:
        now = lowered.harmful == round_num
        worse = f"{self.witnesses}the model got worse in its direction, "
        errors = f"{number(lowered.z, 1)} standard errors"
        if lowered.since is None:
            if now:
                yield f"{worse}{errors}, but others lost as much weight or more"
            return
        last = "" if now else f"last in round {lowered.harmful}, "
        why = "" if lowered.harmful is None else f": {worse}{last}{errors}"
        yield f"lowered by the evidence since round {lowered.since}{why}"

    def _by_bounds(self, row: Weighed) -> Iterator[str]:
        before, after = _before_bounds(row), row.weight
        if before is None or after is None or math.isclose(before, after):
            return
        bounds = self.parts.bounds if self.parts else None
        if bounds and after < before and math.isclose(after, bounds.cap):
            yield f"held down by the cap of {_share(bounds.cap)}"
        elif bounds and after > before and math.isclose(after, bounds.floor):
            yield f"lifted by the floor of {_share(bounds.floor)}"
        elif _differ(before, after):
            verb = "raised" if after > before else "lowered"
            yield f"{verb} by the bounds from {percent_of(before)} to {percent_of(after)}"

    def _by_rule(self, row: Weighed) -> Iterator[str]:
        if row.influence is None or not row.weight:
            return
        if row.influence == 0:
            yield f"{self._rule} left it out"
        elif _differ(row.weight, row.influence):
            yield f"{self._rule} counted it {percent_of(row.influence)} instead of {percent_of(row.weight)}"

    @property
    def _rule(self) -> str:
        if self.parts is None or not self.parts.before:
            return "the rule"
        return "the rule and the steps before it" if self.parts.has_rule else "the steps before the rule"

    def explain(self, passed: Sequence[Place]) -> list[str]:
        """What stands between score and influence, in sentences; `passed` are the places of the round."""
        parts, sentences = self.parts, list[str]()
        if parts is None:
            return sentences
        movers = [f"the evidence {described(parts.evidence)}"] if parts.evidence else []
        movers += [f"the bounds ({parts.bounds})"] if parts.bounds else []
        if movers:
            found = "" if PRIOR in passed else "; in this round that changed nothing"
            sentences.append(f"The weight is moved by {' and then by '.join(movers)}{found}.")
        if Z in passed:
            sentences.append("z is what the evidence says against a client by then, in standard errors.")
        shapers = [described(step) for step in parts.before]
        shapers += [f"the rule {described(parts.rule)}"] if parts.rule and parts.has_rule else []
        if shapers:
            made = f"what {' and then '.join(shapers)} made of the weight"
            sentences.append(f"Influence is {made}: the share of the result that came from the client.")
        return sentences


def _differ(one: float, other: float) -> bool:
    """Whether two weights differ by more than a trifle, and so that it can be seen."""
    return abs(one - other) > NOTABLE * max(one, other) and percent_of(one) != percent_of(other)


def _share(value: float) -> str:
    return f"{100 * value:.4g}%"


def described(part: Mapping[str, object]) -> str:
    """A part with its options.

    >>> described({"name": "trimmed_mean", "hostile": 0.2})
    'trimmed_mean (hostile 0.2)'
    """
    options = ", ".join(f"{key} {value}" for key, value in part.items() if key not in ("name", "priority"))
    return f"{part.get('name', 'without a name')}" + (f" ({options})" if options else "").replace("'", "")

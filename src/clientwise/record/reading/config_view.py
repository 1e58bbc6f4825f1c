"""The resolved config of a run folder, read for display.

This is a second model of the config beside `experiment.config`, which refuses what is wrong. Reading
a run folder that anybody may have made must do neither of two things that the first model does: it
imports no plugin and executes nothing that the config names, and it raises no error. What is
missing, damaged or of another shape is unknown (None or empty). Here are only the keys that readers
show; tests/runs/test_recorded.py compares them with the first model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ...core.weights.bounds import Bounds
from ...registry import Part
from ..files import CONFIG
from ..known_parts import known_part
from ..toml_text import dotted_keys, read_table

POOLING = frozenset({"pooled"})  # controls that need all clients' samples

_BOUNDS = TypeAdapter(Bounds)


def recorded_config(folder: Path) -> RecordedConfig:
    """The config that a run folder holds; read again only when the file has changed."""
    path = folder / CONFIG
    try:
        modified = path.stat().st_mtime_ns
    except OSError:
        return RecordedConfig({})
    return _read_once(path, modified)


@lru_cache(maxsize=256)
def _read_once(path: Path, modified: int) -> RecordedConfig:
    return RecordedConfig(read_table(path))


@dataclass(frozen=True)
class RecordedConfig:
    """A resolved config."""

    table: Mapping[str, Any]  # as written; empty where it cannot be read

    @property
    def is_known(self) -> bool:
        """Whether the config could be read."""
        return bool(self.table)

    def leaves_out(self, key: str) -> bool:
        """Whether a readable config has no such key: the value was passed in from Python."""
        return self.is_known and key not in self.table

    def _inner(self, table: str, key: str) -> object:
        return _table(self.table.get(table)).get(key)

    @property
    def data(self) -> Part | None:
        """The dataset; None also where samples were passed in, or lie with the clients."""
        return _part(self.table.get("data"))

    @property
    def features(self) -> Part | None:
        """The frozen network in front of the model."""
        return _part(self.table.get("features"))

    @property
    def partition(self) -> Part | None:
        """How samples were divided among the clients."""
        return _part(self.table.get("partition"))

    @property
    def model(self) -> Part | None:
        """The network; None also where it was passed in."""
        return _part(self.table.get("model"))

    @property
    def keeps_best(self) -> bool:
        """Whether the model that is used is that with the lowest held-out loss."""
        return self.table.get("keep") == "best"

    @property
    def training(self) -> Mapping[str, Any]:
        """The options of local training."""
        return _table(self.table.get("training"))

    @property
    def devices(self) -> dict[str, object]:
        """What was simulated of the clients' devices: a distribution (`Part`), or a plain value."""
        return {key: _drawn(value) for key, value in _table(self.table.get("devices")).items()}

    @property
    def attributes(self) -> dict[str, list[Any]]:
        """Facts about the clients by name, one value per client."""
        return {
            name: _list(values) for name, values in _table(self.table.get("attributes")).items()
        }

    @property
    def clients_per_round(self) -> int | None:
        """The size of a cohort, where it is a number of clients."""
        found = self._inner("federation", "clients_per_round")
        return found if isinstance(found, int) else None

    @property
    def fraction(self) -> float | None:
        """The size of a cohort, where it is a fraction of all clients."""
        return _number(self._inner("federation", "fraction"))

    @property
    def sampling(self) -> str | None:
        """How cohorts were drawn."""
        return _text(self._inner("federation", "sampling"))

    @property
    def server_set_source(self) -> str | None:
        """Where the samples come from by which the server judges models."""
        return _text(self._inner("server_set", "source"))

    @property
    def is_deployment(self) -> bool:
        """Whether clients were registered nodes with data of their own."""
        return bool(self._inner("flower", "clients"))

    @property
    def note(self) -> str:
        """The note that somebody gave the run."""
        return _text(self.table.get("note")) or ""

    @property
    def tags(self) -> list[str]:
        """The tags that somebody gave the run."""
        return [tag for tag in _list(self.table.get("tags")) if isinstance(tag, str)]

    @cached_property
    def methods(self) -> tuple[RecordedMethod, ...]:
        """The methods that have a name."""
        found = (_method(_table(one)) for one in _list(self.table.get("methods")))
        return tuple(one for one in found if one is not None)

    def method(self, name: str) -> RecordedMethod | None:
        """The method called `name`."""
        return next((one for one in self.methods if one.name == name), None)

    def flat(self) -> dict[str, Any]:
        """Every value by its dotted key; methods by name, so that their order does not matter.

        >>> methods = [{"name": "A", "rule": {"name": "mean"}}]
        >>> RecordedConfig({"rounds": 3, "data": {"name": "digits"}, "methods": methods}).flat()
        {'rounds': 3, 'data.name': 'digits', 'methods.A.name': 'A', 'methods.A.rule.name': 'mean'}
        """
        table = dict(self.table)
        methods = table.get("methods")
        if isinstance(methods, list):
            tables = map(_table, methods)
            table["methods"] = {str(one.get("name")): one for one in tables if one}
        return dotted_keys(table, in_lists=True)


@dataclass(frozen=True)
class RecordedMethod:
    """How a method weighs, and what it is for."""

    name: str
    criteria: tuple[Part, ...] = ()
    score: Part | None = None
    normaliser: Part | None = None  # None: the score's own
    evidence: Part | None = None
    bounds: Bounds | None = None
    before: tuple[Part, ...] = ()
    rule: Part | None = None
    control: str | None = None
    fine_tunes: bool = False
    tuned: Mapping[str, Any] = field(default_factory=dict)  # how its values were found; see `Tuned`
    privacy: Mapping[str, Any] = field(default_factory=dict)  # empty without
    is_secret: bool = False  # secure aggregation
    sampling: Part | None = None  # how it draws clients; None: uniformly

    @property
    def trains_on_server(self) -> bool:
        """Whether it trains on the server's samples, which other methods do not."""
        return self.fine_tunes or self.control == "server_only" or "server_samples" in self._needs()

    @property
    def is_control(self) -> bool:
        """Whether it is only a reference: it uses who is hostile, or is not federated."""
        return self.control is not None or "simulation" in self._needs()

    @property
    def is_available(self) -> bool:
        """Whether it could be used in practice.

        It could not where it uses who is hostile, or pools the samples of all clients.
        """
        return self.control not in POOLING and "simulation" not in self._needs()

    @property
    def threshold(self) -> float:
        """The z above which evidence is significant against a client; infinite where none is known."""
        options = self.evidence.options if self.evidence else {}
        found = _number(options.get("threshold"))
        return math.inf if found is None else found

    @property
    def margin(self) -> float:
        """How large a harm must be to count, as a share of what the round changed of the loss."""
        options = self.evidence.options if self.evidence else {}
        return _number(options.get("margin")) or 0.0

    @property
    def has_rule(self) -> bool:
        """Whether its rule is another than the mean, the only one that does not need the models."""
        if self.rule is None:
            return False
        known = known_part("rules", self.rule.name)
        return known is None or "models" in known.needs

    @property
    def averages_equally(self) -> bool:
        """Whether clients are drawn by their score, and have equal weights then; see `ByScore`."""
        return self.sampling is not None and self.sampling.options.get("average") != "score"

    def _needs(self) -> set[str]:
        """What its parts declare to need; of a plugin's parts nothing is known."""
        found: set[str] = set()
        for kind, part in self._parts():
            known = known_part(kind, part.name)
            if known is not None:
                found |= known.needs
        return found

    def _parts(self) -> Iterator[tuple[str, Part]]:
        for criterion in self.criteria:
            yield "criteria", criterion
        for step in self.before:
            yield "before", step
        if self.rule is not None:
            yield "rules", self.rule
        if self.evidence is not None:
            yield "evidence", self.evidence


def _method(table: Mapping[str, Any]) -> RecordedMethod | None:
    name = _text(table.get("name"))
    if name is None:
        return None
    return RecordedMethod(
        name=name,
        criteria=_parts(table.get("criteria")),
        score=_part(table.get("score")),
        normaliser=_part(table.get("normalise")),
        evidence=_part(table.get("evidence")),
        bounds=read_bounds(table.get("bounds")),
        before=_parts(table.get("before")),
        rule=_part(table.get("rule")),
        control=_text(table.get("control")),
        fine_tunes="fine_tune" in table,
        tuned=_table(table.get("tuned")),
        privacy=_table(table.get("privacy")),
        is_secret=bool(_table(table.get("secure_aggregation"))),
        sampling=_part(table.get("sampling")),
    )


def _part(value: object) -> Part | None:
    """A part: its name, or a table with its name and options."""
    if isinstance(value, str):
        return Part(value, {})
    options = dict(_table(value))
    name = _text(options.pop("name", None))
    label = _text(options.pop("as", None))
    return Part(name, options, label or "") if name else None


def _parts(value: object) -> tuple[Part, ...]:
    """A list of parts; none where one of them is unknown, since the others alone would mislead."""
    found = [_part(one) for one in _list(value)]
    return tuple(part for part in found if part is not None) if None not in found else ()


def _drawn(value: object) -> object:
    return _part(value) if isinstance(value, Mapping) else value


def read_bounds(value: object) -> Bounds | None:
    """Recorded bounds; None where there are none, or they cannot be read."""
    if not isinstance(value, Mapping):
        return None
    try:
        return _BOUNDS.validate_python(value)
    except ValidationError:
        return None


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None

"""The frames of a run folder, from today's record. It goes when the record has frames of its own: `record/run.py`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pandas

from ..errors import RunError
from ..registry import Part, suggest
from .files import CONFIG
from .reading.config_view import recorded_config
from .reading.folder import RunFolder as TodaysFolder
from .toml_text import read_table

_CLIENT = "c.name, c.hostile"
_OF_CLIENTS = "LEFT JOIN clients AS c USING (seed, client)"
_LOSS = {"kind": "", "class_weights": None, "shape": 2.0, "scale": 1.0}
QUERIES = {
    "weights": f"""SELECT method, seed, round_num AS round, client, {_CLIENT}, refusal, score,
            COALESCE(prior, weight) AS prior, z, harm, harm_error, posterior, weight,
            COALESCE(influence, weight) AS influence, history_z, copies, shapley, error AS shapley_error,
            training_loss, seconds
        FROM participants JOIN lanes USING (lane) LEFT JOIN look_back USING (lane, round_num, client)
            LEFT JOIN contributions USING (lane, round_num, client) {_OF_CLIENTS}
        ORDER BY lane, round_num, client""",
    "criteria": f"""SELECT method, seed, round_num AS round, client, {_CLIENT}, criterion, raw, normalised
        FROM criteria JOIN lanes USING (lane) {_OF_CLIENTS} ORDER BY lane, round_num, client""",
    "local": f"""SELECT method, seed, round_num AS round, client, {_CLIENT}, metric, loss
        FROM local JOIN lanes USING (lane) {_OF_CLIENTS} ORDER BY lane, round_num, client""",
    "other_weights": """SELECT method, seed, round_num AS round, kind, excluded AS without, tested, metric, loss, reason
        FROM counterfactuals JOIN lanes USING (lane) ORDER BY lane, round_num, tested, kind, excluded""",
    "steps": """SELECT method, seed, round_num AS round, step, loss, used
        FROM server_steps JOIN lanes USING (lane) ORDER BY lane, round_num, position""",
    "refusals": f"""SELECT method, seed, round_num AS round, client, {_CLIENT}, refusal AS reason,
            (SELECT kind FROM refusals AS r WHERE r.lane = participants.lane
                AND r.round_num = participants.round_num AND r.reason = refusal) AS kind
        FROM participants JOIN lanes USING (lane) {_OF_CLIENTS}
        WHERE refusal IS NOT NULL ORDER BY lane, round_num, client""",
    "clients": """SELECT DISTINCT seed, client, name, num_train, num_test, hostile FROM clients
        ORDER BY seed, client""",
}
ROUNDS = """SELECT lane, method, seed, round_num AS round, rounds.*, ended, epsilon, clip, deviation, residual,
        cause, detail, drawn AS sampled, error AS sampling_error
    FROM rounds JOIN lanes USING (lane) LEFT JOIN kept USING (lane, round_num)
        LEFT JOIN clock USING (lane, round_num) LEFT JOIN privacy USING (lane, round_num)
        LEFT JOIN adapters USING (lane, round_num) LEFT JOIN sampled USING (lane, round_num)
    ORDER BY lane, round_num"""
LISTS = ("priority", "candidates", "reached", "per_class_f1", "no_effect", "notes", "class_weights")


@dataclass(frozen=True)
class MethodFacts:
    """What a reader has to know of a method, without its parts and without a config."""

    name: str
    is_control: bool = False  # only a reference: it uses who is hostile, or is not federated
    control: str | None = None
    is_available: bool = True  # False: it uses who is hostile, or pools the samples of all clients
    trains_on_server: bool = False
    has_rule: bool = False  # another than the mean
    averages_equally: bool = False  # clients are drawn by their score and have equal weights then
    is_secret: bool = False  # secure aggregation
    threshold: float = math.inf  # the z above which evidence is significant
    margin: float = (
        0.0  # how large a harm must be, as a share of what the round changed of the loss
    )
    criteria: tuple[str, ...] = ()  # labels
    score: str | None = None
    rule: str | None = None
    evidence: str | None = None
    bounds: dict[str, Any] | None = None
    privacy: dict[str, Any] = field(default_factory=dict)
    tuned: dict[str, Any] = field(default_factory=dict)


class RunFolder:
    """A run folder, read-only, as frames of pandas."""

    def __init__(self, folder: str | Path, name: str | None = None) -> None:
        self.today = TodaysFolder(folder, name)
        self.folder = self.today.folder
        self.id = self.today.id
        self.methods = self.today.methods
        self._frames: dict[str, pandas.DataFrame] = {}

    @cached_property
    def facts(self) -> Any:
        """What holds for the whole run."""
        today = self.today
        names = (
            "name, metric, higher_is_better, is_share, target, client_targets, rounds, model_bytes, reported_on, "
            "report_samples, report_rarest, constant_metric, weigh_samples, num_classes, changes, machines, begun, "
            "computed, warnings, steps, initial_model, same_start, functions, data"
        )
        found = {name: getattr(today, name) for name in names.split(", ")}
        found["new_data"] = {
            seed: [(number, [client]) for client, number in today.new_data(seed).items()]
            for seed in {one.seed for one in today.lanes}
        }
        return SimpleNamespace(**found, lanes=today.num_lanes, shows=today._shown)

    @cached_property
    def lanes(self) -> pandas.DataFrame:
        """Lane, method, seed, whether it is finished, and rounds done."""
        rows = [
            (one.method, one.seed, bool(one.finished), one.rounds) for one in self.today.progress()
        ]
        frame = pandas.DataFrame(rows, columns=["method", "seed", "finished", "rounds"])
        frame.insert(0, "lane", [one.lane for one in self.today.lanes])
        return frame

    @property
    def finished(self) -> bool:
        """Whether all lanes have ended."""
        return self.today.finished

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved config; empty where it cannot be read."""
        return read_table(self.folder / CONFIG)

    def about(self, method: str) -> MethodFacts:
        """What there is to know of a method."""
        found = recorded_config(self.folder).method(method)
        if found is None:
            return MethodFacts(method)
        return MethodFacts(
            name=method,
            is_control=found.is_control,
            control=found.control,
            is_available=found.is_available,
            trains_on_server=found.trains_on_server,
            has_rule=found.has_rule,
            averages_equally=found.averages_equally,
            is_secret=found.is_secret,
            threshold=found.threshold,
            margin=found.margin,
            criteria=tuple(part.label or part.name for part in found.criteria),
            score=_name(found.score),
            rule=_name(found.rule),
            evidence=_name(found.evidence),
            bounds=None if found.bounds is None else _bounds(self.config, method),
            privacy=dict(found.privacy),
            tuned=dict(found.tuned),
        )

    def frame(self, name: str) -> pandas.DataFrame:
        """All rows of a kind."""
        if name not in self._frames:
            if name == "rounds":
                self._frames[name] = self._rounds()
            elif name in QUERIES:
                self._frames[name] = self._queried(QUERIES[name])
            else:
                raise RunError(f"{self.id}: no frame {name!r}{suggest(name, ['rounds', *QUERIES])}")
        return self._frames[name]

    def right(self, method: str, seed: int) -> tuple[int, numpy.ndarray[Any, Any]] | None:
        """The best round of a lane, and the samples classified correctly in it."""
        found = self.today.best_round(method, seed)
        return None if found is None else (found.round_num, found.right)

    def model_facts(self, seed: int) -> Any:
        """The network of a seed, and the tensors that its models consist of."""
        return self.today.model_facts(seed)

    def _queried(self, sql: str) -> pandas.DataFrame:
        from .database import reading

        with reading(self.folder) as database:
            cursor = database.execute(sql)
            return pandas.DataFrame(
                cursor.fetchall(), columns=[one[0] for one in cursor.description]
            )

    def _rounds(self) -> pandas.DataFrame:
        frame = self._queried(ROUNDS)
        frame = frame.loc[:, ~frame.columns.duplicated()]
        for column in LISTS:
            frame[column] = [
                json.loads(one) if isinstance(one, str) else None for one in frame[column]
            ]
        frame["loss_state"] = [
            _LOSS | {"class_weights": weights, "shape": 2.0 if shape is None else shape}
            for weights, shape in zip(
                frame.pop("class_weights"), frame.pop("loss_shape").astype(object), strict=True
            )
        ]
        causes = zip(frame.pop("cause"), frame.pop("detail"), strict=True)
        frame["kept"] = [
            [cause, detail] if isinstance(cause, str) else None for cause, detail in causes
        ]
        best = self.today.best_of_lanes  # of the losses, only where the lowest one is
        lanes = {lane: one.round for lane, one in best.items()}
        frame["held_out_loss"] = [
            None if lanes.get(lane) is None else float(lanes[lane] != number)
            for lane, number in zip(frame["lane"], frame["round"], strict=True)
        ]
        keys = ["method", "seed", "round"]
        frame = frame.merge(
            pandas.DataFrame(self._sums(), columns=[*keys, *SUMS]), on=keys, how="left"
        )
        frame = frame.drop(columns=["lane", "round_num"])
        return frame.loc[:, [name for name in frame if name in keys or frame[name].notna().any()]]

    def _sums(self) -> Iterator[tuple[Any, ...]]:
        """Sums over the participants of every round, and the bounds in force."""
        weights = self.frame("weights")
        refused = self.frame("refusals").groupby(["method", "seed", "round"]).size()
        grouped = dict(list(weights.groupby(["method", "seed", "round"])))
        hostile = self.today.has_hostile
        omits = bool(self.today.query("SELECT 1 FROM omitted LIMIT 1"))
        for lane in self.today.lanes:
            influences = (
                dict(self.today.hostile_influences(lane.method, lane.seed)) if hostile else {}
            )
            policies = {
                one.round_num: one.policy for one in self.today.policies(lane.method, lane.seed)
            }
            policy = None
            for number in self.today.round_nums(lane.method, lane.seed):
                policy = policies.get(number, policy)
                own = grouped.get((lane.method, lane.seed, number))
                count = 0 if own is None else len(own)
                none = 0 if own is None else int((own["weight"] == 0).sum())
                omitted = self.today.omitted(lane.method, lane.seed, number) if omits else None
                count += 0 if omitted is None else omitted.total
                key = (lane.method, lane.seed, number)
                lost = int(refused.get(key, 0)) + (
                    0 if omitted is None else sum(row[1] for row in omitted.refusals)
                )
                yield (*key, count, lost, none, influences.get(number), policy)


SUMS = ("participants", "refused", "without_weight", "hostile_influence", "policy")


def _name(part: Part | None) -> str | None:
    return None if part is None else part.name


def _bounds(config: dict[str, Any], method: str) -> dict[str, Any] | None:
    for table in config.get("methods", []):
        if isinstance(table, dict) and table.get("name") == method:
            found = table.get("bounds")
            return found if isinstance(found, dict) else None
    return None

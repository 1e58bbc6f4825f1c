"""Runs made of frames: what the report asks of a run folder, without a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas

from clientwise.record.facts import MethodFacts
from clientwise.record.run import COLUMNS

NAMES = ("Oslo", "Turin", "Graz", "Bern")
SHARED = ["method", "seed", "round"]
FACTS: dict[str, Any] = {
    "name": "made",
    "metric": "accuracy",
    "higher_is_better": True,
    "is_share": True,
    "shows": [],
    "target": None,
    "model_bytes": 400,
    "reported_on": "held-out samples",
    "report_samples": None,
    "report_rarest": None,
    "constant_metric": None,
    "weigh_samples": None,
    "num_classes": None,
    "changes": [],
    "begun": "",
    "computed": "",
    "warnings": [],
    "steps": [],
    "initial_model": "",
    "same_start": False,
    "functions": {},
    "new_data": {},
}


class Made:
    """A run of given curves; of its four named clients, the last is the worst."""

    def __init__(
        self,
        curves: Mapping[str, Mapping[int, Sequence[float]]],
        *,
        id: str = "made",
        planned: int | None = None,
        data: str = "x",
        about: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        **facts: Any,
    ) -> None:
        """Take the metric of every round, by method and seed."""
        self.id, self.folder = id, Path("nowhere")
        self.methods = list(curves)
        lanes = [
            (method, seed, values) for method, own in curves.items() for seed, values in own.items()
        ]
        most = max(len(values) for _, _, values in lanes)
        fingerprints = {seed: f"{data}{seed}" for _, seed, _ in lanes}
        rounds = planned or most
        self.facts = SimpleNamespace(
            **{**FACTS, "rounds": rounds, "lanes": len(lanes), "data": fingerprints, **facts}
        )
        rows = [
            (number, *lane[:2], rounds == len(lane[2]), len(lane[2]))
            for number, lane in enumerate(lanes, 1)
        ]
        self.lanes = pandas.DataFrame(
            rows, columns=["lane", "method", "seed", "finished", "rounds"]
        )
        self.finished = bool(self.lanes["finished"].all())
        self.config = dict(config or {})
        self._about = dict(about or {})
        self.frames = {"rounds": self._rounds(lanes), "clients": self._clients(fingerprints)}
        self.frames |= {"local": self._local(), "weights": self._weights()}
        for name in ("refusals", "steps", "criteria"):
            self.frames[name] = pandas.DataFrame(columns=[*SHARED, *EMPTY[name]])
        self.frames = {name: _with_all_columns(name, one) for name, one in self.frames.items()}

    def frame(self, name: str) -> pandas.DataFrame:
        return self.frames[name]

    def about(self, method: str) -> MethodFacts:
        return MethodFacts(method, **self._about.get(method, {}))

    def seeds(self, method: str) -> list[int]:
        return self.lanes.loc[self.lanes["method"] == method, "seed"].tolist()

    def lane(self, method: str, seed: int) -> int:
        return int(self.lanes.query("method == @method and seed == @seed")["lane"].iloc[0])

    def model_facts(self, seed: int) -> Any:
        return SimpleNamespace(table=None)

    def set(self, column: str, values: Any, frame: str = "rounds") -> Made:
        """The run with another column."""
        self.frames[frame][column] = values
        return self

    def _rounds(self, lanes: Any) -> pandas.DataFrame:
        rows = [
            (
                method,
                seed,
                number,
                value,
                1 - value,
                8,
                4,
                0.1,
                0,
            )
            for method, seed, values in lanes
            for number, value in enumerate(values, 1)
        ]
        columns = [
            "metric",
            "loss",
            "models_moved",
            "participants",
            "seconds",
            "testing_rounds",
        ]
        frame = pandas.DataFrame(rows, columns=[*SHARED, *columns])
        return frame.assign(loss_state=[{"class_weights": None}] * len(frame))

    def _clients(self, seeds: Any) -> pandas.DataFrame:
        rows = [
            (seed, client, name, 5, 5, None) for seed in seeds for client, name in enumerate(NAMES)
        ]
        columns = ["seed", "client", "name", "num_train", "num_test", "hostile"]
        return pandas.DataFrame(rows, columns=columns).astype({"hostile": object})

    def _each(self) -> pandas.DataFrame:
        who = self.frames["clients"][["seed", "client", "name", "hostile"]]
        return self.frames["rounds"][[*SHARED, "metric"]].merge(who, on="seed")

    def _local(self) -> pandas.DataFrame:
        each = self._each()
        return each.assign(metric=each["metric"] - 0.1 * each["client"], loss=0.5)

    def _weights(self) -> pandas.DataFrame:
        weights = {"weight": 0.25, "prior": 0.25, "influence": 0.25}
        return self._each().drop(columns="metric").assign(refusal=None, **weights)


EMPTY = {"refusals": ["client", "name", "hostile"], "steps": [], "criteria": ["client"]}


def _with_all_columns(name: str, frame: pandas.DataFrame) -> pandas.DataFrame:
    """The frame as a run folder has it: a column that is not made is empty."""
    return frame.reindex(columns=[*frame, *(one for one in COLUMNS[name] if one not in frame)])


def seeds(values: Sequence[float], first: int = 1) -> dict[int, list[float]]:
    """One round with these values, a seed each."""
    return {seed: [value] for seed, value in enumerate(values, first)}


def around(middle: float, *offsets: float) -> dict[int, list[float]]:
    """One round of each seed, around a middle."""
    return seeds([middle + offset / 100 for offset in offsets])

"""What a node says about itself is the same for any two tables that differ in one row of a class.

Noise bounds what updates and results tell of a row (docs/security.md). A number without noise that depends
on the row would tell it with certainty, whatever the noise.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from approvals import approve_once
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from clientwise.core.criteria import CRITERIA, CriterionDeclaration
from clientwise.core.objective.loss import CrossEntropy
from clientwise.core.types import Task
from clientwise.experiment.load import load_experiment
from clientwise.flower import OwnData, client_app, load_table
from clientwise.hosts.deployment.allowance import Allowance
from clientwise.hosts.deployment.small_numbers import USUAL_CELL, read_own
from clientwise.hosts.flower.data import dividing_by
from clientwise.hosts.flower.wire import (
    ARRAYS,
    NUMBERS,
    Request,
    pack,
    unpack,
    write_request,
)

COLUMNS = [{"name": "age", "mean": 50.0, "deviation": 10.0}, {"name": "pressure", "mean": 130.0}]
CONFIG: dict[str, Any] = {
    "name": "neighbours",
    "rounds": 1000,
    "device": "cpu",
    "model": "linear",
    "training": {"epochs": 1, "sample_clip": 1.0, "sample_noise": 3.2},
    "flower": {
        "clients": ["a", "b"],
        "table": {"target": "ill", "classes": ["no", "yes"], "columns": COLUMNS},
    },
    "methods": [
        {"name": "m", "criteria": ["dataset_size", "label_diversity", "class_balance"]},
    ],
}
ROWS = 48


def table(chance: numpy.random.Generator) -> pandas.DataFrame:
    age = chance.normal(50, 10, ROWS).round(1)
    pressure = chance.normal(130, 15, ROWS).round()
    return pandas.DataFrame({"age": age, "pressure": pressure, "ill": ["no", "no", "yes"] * 16})


def neighbour(rows: pandas.DataFrame, chance: numpy.random.Generator) -> pandas.DataFrame:
    """Another value in one row, or a copy of another row of its class."""
    other = rows.copy()
    place = int(chance.integers(ROWS))
    if chance.random() < 0.3:
        same = rows.index[rows["ill"] == rows["ill"][place]]
        other.loc[place] = rows.loc[int(chance.choice(same))]
    else:
        other.loc[place, "age"] = float(chance.normal(50, 10))
    return other


class Hospital:
    """A node that reads a table by the shipped function."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "rows.csv"
        self.settings = {"data": str(self.path), "ledger": str(folder / "ledger.jsonl")}
        approve_once(self.settings["ledger"], CONFIG)
        self._app = client_app(CONFIG, lambda path: load_table(path, CONFIG))

    def says(self, rows: pandas.DataFrame, round_num: int) -> tuple[Any, ...]:
        """All numbers without noise that leave the node: with an update, and with results."""
        rows.to_csv(self.path, index=False)
        (method,) = load_experiment(CONFIG).build_methods()
        task = Task(round_num, method.training, CrossEntropy(), method.client_criteria)
        trained = self._ask(Request(0, 1, task), torch.zeros(3))
        numbers = trained.metric_records[NUMBERS]
        facts = {name: numbers[name] for name in numbers if name.startswith("criterion.")}
        judged = self._ask(Request(0, 1, round_num=round_num), torch.full((1, 3), float(round_num)))
        counts = unpack(judged.array_records[ARRAYS])
        return facts, judged.metric_records[NUMBERS]["num_samples"], counts.sum(2).tolist()

    def _ask(self, request: Request, models: Tensor) -> RecordDict:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        kind = "evaluate" if request.task is None else "train"
        message = Message(write_request(request, pack(models)), 1, kind)
        message.metadata.__dict__["_message_id"] = "asked"
        reply = self._app(message, Context(1, 2, dict(self.settings), RecordDict(), {}))
        assert not reply.has_error(), reply.error
        return reply.content


def test_no_number_without_noise_depends_on_one_row(tmp_path: Path) -> None:
    chance = numpy.random.default_rng(2)
    node = Hospital(tmp_path)
    rows = table(chance)
    first = node.says(rows, 1)
    assert first[0]["criterion.dataset_size"] == 35
    for round_num in range(2, 17):
        rows = neighbour(rows, chance)
        assert node.says(rows, round_num) == first


def test_another_row_takes_the_place_of_one() -> None:
    """With the node's secret unknown, a row is in the training part, and at any place in it, by chance alone.

    So of two neighbouring tables, training rows or test rows differ in one row, and never both.
    """
    chance = numpy.random.default_rng(3)
    rows = numpy.round(chance.normal(size=(40, 2)), 1).astype("float32")
    targets = numpy.arange(40) % 2
    places: dict[str, list[float]] = {"rare": [], "copy": []}
    for kind, row in (("rare", [9.0, 9.0]), ("copy", rows[2])):
        for number in range(400):
            table = rows.copy()
            table[0] = row
            own = OwnData((table, targets), (table[:0], targets[:0]))
            secret = f"{kind} {number}".encode()
            found = read_own(lambda _, own=own: own, "", USUAL_CELL, secret).train[0]
            same = (found == table[0]).all(1).nonzero()[0]
            places[kind].append(float(same.mean()))
    means = {kind: numpy.mean(some) for kind, some in places.items()}
    assert means["rare"] == pytest.approx(19.5, abs=2.0)  # 3.5 standard errors
    assert means["copy"] == pytest.approx(19.5, abs=2.0)


def test_the_server_cannot_tell_which_rows_are_for_training(tmp_path: Path) -> None:
    rows = table(numpy.random.default_rng(4))
    rows.to_csv(tmp_path / "rows.csv", index=False)

    def train_rows(secret: bytes) -> set[bytes]:
        with dividing_by(secret):
            own = load_table(str(tmp_path / "rows.csv"), CONFIG)
        assert [len(own.train[1]), len(own.test[1])] == [39, 9]
        return {row.tobytes() for row in own.train[0]}

    one, other = train_rows(b"one"), train_rows(b"other")
    assert one == train_rows(b"one")
    assert len(one & other) < 37


def test_few_rows_change_their_part_when_rows_are_added(tmp_path: Path) -> None:
    chance = numpy.random.default_rng(5)
    rows = table(chance)
    parts = []
    for count in range(30, ROWS):
        rows.iloc[:count].to_csv(tmp_path / "rows.csv", index=False)
        with dividing_by(b"secret"):
            own = load_table(str(tmp_path / "rows.csv"), CONFIG)
        parts.append({row.tobytes() for row in own.test[0]})
    for before, after in itertools.pairwise(parts):
        assert len(before ^ after) <= 2  # one leaves, one joins


def test_criteria_that_follow_from_rows_are_warned_of() -> None:
    """A criterion of a client says whether it follows from the numbers of samples alone."""
    exact = {
        name
        for name in CRITERIA
        if isinstance(declared := CRITERIA.declared(name), CriterionDeclaration)
        and declared.measured_by == "client"
        and not declared.of_counts
        and "clock" not in declared.needs
    }
    assert {"sharpness", "training_loss", "start_loss"} <= exact
    for name in exact:
        changed = CONFIG | {"methods": [{"name": "m", "criteria": [name]}]}
        (warning,) = Allowance(load_experiment(changed)).warnings(USUAL_CELL)
        assert f"{name} has two digits and no noise" in warning

"""A node counts what it was asked: across restarts, resumed runs and approvals."""

from __future__ import annotations

import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from approvals import approve_again, approve_once
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from clientwise.core.objective.loss import CoxLoss, CrossEntropy, FocalLoss, Loss, RobustLoss
from clientwise.core.types import Task
from clientwise.experiment.load import load_experiment
from clientwise.flower import client_app
from clientwise.hosts.deployment import ledger
from clientwise.hosts.deployment.allowance import Allowance
from clientwise.hosts.deployment.ledger import read, summary
from clientwise.hosts.deployment.small_numbers import USUAL_CELL
from clientwise.hosts.flower.wire import (
    ARRAYS,
    NUMBERS,
    Request,
    pack,
    unpack,
    write_request,
)

CONFIG: dict[str, Any] = {
    "name": "counted",
    "rounds": 4,
    "device": "cpu",
    "data": "digits",
    "partition": {"name": "iid", "clients": 2},
    "model": "linear",
    "training": {"epochs": 1, "learning_rate": 0.1},
    "evaluation": {"clients_every": 2},
    "flower": {"clients": ["a", "b"], "input_shape": [4], "num_classes": 3},
    "methods": [{"name": "FedAvg"}],
}
SIZE = 15  # of the model


class Node:
    """A node of 60 + 30 patients; every message meets an app that was just started."""

    def __init__(
        self, folder: Path, config: dict[str, Any] | None = None, cell: int = USUAL_CELL
    ) -> None:
        chance = numpy.random.default_rng(1)
        arrays = {}
        for part, count in (("train", 60), ("test", 30)):
            arrays[f"{part}_inputs"] = chance.normal(size=(count, 4)).astype("float32")
            arrays[f"{part}_targets"] = numpy.arange(count) % 3
        self.data = folder / "own.npz"
        numpy.savez(self.data, **arrays)
        self.ledger = folder / "state" / "ledger.jsonl"
        self.config = config or CONFIG
        self.cell = cell
        self.run = 7
        approve_once(self.ledger, self.config, cell)

    def approve(self, config: dict[str, Any] | None = None) -> None:
        """The operator approves an app for another run, and the server starts it."""
        self.config = config or self.config
        approve_again(self.ledger, self.config, self.cell)
        self.run += 1

    def ask(self, request: Request, models: Tensor, **settings: Any) -> Message:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        kind = "evaluate" if request.task is None else "train"
        message = Message(write_request(request, pack(models)), 1, kind)
        message.metadata.__dict__["_message_id"] = "asked"
        settings |= {"data": str(self.data), "ledger": str(self.ledger)}
        settings["smallest-cell"] = self.cell
        context = Context(self.run, 2, settings, RecordDict(), {})
        return client_app(self.config)(message, context)

    def evaluate(self, round_num: int, *seeds: int) -> Message:
        """Evaluate random models."""
        return self.ask(Request(0, 1, round_num=round_num), torch.stack([model(s) for s in seeds]))

    def train(self, round_num: int, seed: int, loss: Any = None, **settings: Any) -> Message:
        """Train a random model."""
        (method,) = load_experiment(self.config).build_methods()
        task = Task(round_num, method.training, loss or CrossEntropy(), method.client_criteria)
        return self.ask(Request(0, 1, task), model(seed), **settings)


def model(seed: int) -> Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


def content_of(reply: Message) -> tuple[Any, ...]:
    arrays = unpack(reply.content.array_records[ARRAYS]).tolist()
    return arrays, dict(reply.content.metric_records[NUMBERS])


def test_the_same_question_has_the_same_answer(tmp_path: Path) -> None:
    node = Node(tmp_path)
    first = content_of(node.evaluate(2, 5))
    with numpy.load(node.data) as found:
        changed = dict(found)
    changed["test_targets"] = changed["test_targets"][::-1].copy()
    numpy.savez(node.data, **changed)  # even if the data changed meanwhile
    assert content_of(node.evaluate(2, 5)) == first
    assert content_of(node.evaluate(4, 5)) == first  # and in a later round
    arrays, _ = content_of(node.evaluate(2, 5, 6))  # beside another
    assert arrays[0] == first[0][0]
    events = [entry["event"] for entry in read(node.ledger)]
    assert events.count("asked") == events.count("repeated") == events.count("measured") == 2


def test_rounds_and_models_are_those_of_the_experiment(tmp_path: Path) -> None:
    node = Node(tmp_path)
    refused = "0 models to evaluate in round"
    assert not node.evaluate(2, 1).has_error()
    for round_num, seeds, reason in (
        (1, (2,), "1 models to evaluate in round 1: the experiment asks for at most 0"),
        (2, (2, 3), "3 models to evaluate in round 2: the experiment asks for at most 2"),
        (5, (2,), "round 5, but the experiment has 4 rounds"),
        (0, (2,), "round 0, but the experiment has 4 rounds"),
    ):
        reply = node.evaluate(round_num, *seeds)
        assert reason in reply.error.reason, refused
    wrong_seed = node.ask(Request(0, 2, round_num=2), model(1)[None])
    assert "seed 2 is not one of the experiment's: [1]" in wrong_seed.error.reason

    assert not node.evaluate(2, 2).has_error()  # a resumed round, with another model
    assert not node.evaluate(4, 3).has_error()
    assert "all 3 evaluations of the run are used up" in node.evaluate(4, 4).error.reason
    assert not node.evaluate(4, 3).has_error()
    node.approve()
    assert not node.evaluate(4, 4).has_error()


def test_a_round_is_trained_once_and_once_more_after_a_resume(tmp_path: Path) -> None:
    node = Node(tmp_path)
    first = content_of(node.train(1, 1))
    assert content_of(node.train(1, 1))[0] == first[0]
    assert not node.train(1, 2).has_error()
    assert "round 1 was trained 2 times already" in node.train(1, 3).error.reason
    assert not node.train(2, 3).has_error()
    one_class = CrossEntropy((0.0, 1.0, 0.0))
    assert "not those of any method" in node.train(3, 1, loss=one_class).error.reason


@pytest.mark.parametrize(
    "loss", [CrossEntropy((1.0,)), CrossEntropy((1.0,) * 4), RobustLoss(), CoxLoss()]
)
def test_a_loss_for_other_classes_is_refused_whatever_rows_there_are(
    tmp_path: Path, loss: Loss
) -> None:
    """An error for a class without a weight would tell whether the node has rows of that class."""
    node = Node(tmp_path, CONFIG | {"methods": [{"name": "AdaFed", "adapt_loss": "class_weights"}]})
    assert "not those of any method" in node.train(1, 1, loss=loss).error.reason
    assert not node.train(1, 1, loss=CrossEntropy((1.0, 2.0, 3.0))).has_error()


def test_a_node_trains_by_the_loss_and_the_rate_that_the_experiment_says(tmp_path: Path) -> None:
    weights = (1.0, 2.0, 3.0)
    training: dict[str, Any] = {
        "optimizer": "adamw",
        "schedule": {"name": "step", "every": 1, "factor": 0.5},
        "loss": {"name": "focal", "gamma": 1.0, "class_weights": list(weights)},
    }
    node = Node(tmp_path, CONFIG | {"training": training})
    (method,) = load_experiment(node.config).build_methods()
    right = method.task(2, FocalLoss(1.0, weights))
    assert right.training.rate_factor == 0.5
    for wrong in (
        replace(right, training=method.task(1, right.loss).training),
        replace(right, training=method.training),
        replace(right, loss=FocalLoss(1.0)),
        replace(right, loss=FocalLoss(5.0, weights)),
        replace(right, loss=CrossEntropy(weights)),
    ):
        reply = node.ask(Request(0, 1, wrong), model(1))
        assert "not those of any method" in reply.error.reason
    assert not node.ask(Request(0, 1, right), model(1)).has_error()


def test_the_same_bytes_of_another_type_are_not_a_repeated_request(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert not node.train(1, 1).has_error()
    (method,) = load_experiment(node.config).build_methods()
    task = Task(1, method.training, CrossEntropy(), method.client_criteria)
    reply = node.ask(Request(0, 1, task), model(1).view(torch.int32))
    assert "a model of shape (15,) and type torch.int32" in reply.error.reason


def test_the_ledger_is_the_nodes_alone_and_survives_a_power_cut(tmp_path: Path) -> None:
    node = Node(tmp_path)
    before = content_of(node.evaluate(2, 1))
    for path in node.ledger.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    lines = node.ledger.read_text().splitlines()
    approved, asked = lines[:2]
    node.ledger.write_text(f'{approved}\n{asked}\n{{"time": "2026-')  # the answer was not written
    node.ledger.with_name("ledger.jsonl.count").write_text("2\n")
    assert content_of(node.evaluate(2, 1)) == before
    assert "at most 2" in node.evaluate(2, 2, 3).error.reason


def test_the_operator_gets_a_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """tests/deployment/test_scripts.py has the script that calls this."""
    node = Node(tmp_path)
    node.train(1, 1)
    node.evaluate(2, 1)
    node.evaluate(2, 1)
    node.evaluate(2, *range(2, 100))
    monkeypatch.setattr(sys, "argv", ["ledger", str(node.ledger)])
    ledger.main()
    said = capsys.readouterr().out
    assert said.splitlines() == summary(read(node.ledger))
    assert "approved 8 trainings and 3 evaluations: a test" in said
    for expected in (
        ", Flower run 7",
        "messages: 4, rounds 1 to 2",
        "models trained: 1, 12.5% of what a run may ask for; requests that repeated an earlier one: 0",
        "models evaluated: 1, 33.3% of what a run may ask for; requests that repeated an earlier one: 1",
        "left this node: 3 answers, ",
        "numbers: criterion.dataset_size",
        "refused 1 times: RefusedError: 99 models to evaluate in round 2",
    ):
        assert expected in said
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--day", "1999-01-01"])
    ledger.main()
    assert capsys.readouterr().out == "nothing was asked\n"


@pytest.mark.parametrize(
    ("change", "models"),
    [
        ({}, 2 + 1),  # rounds 2 and 4
        ({"evaluation": {"clients_every": 1}, "rounds": 100}, 110),
        ({"evaluation": {"clients_every": 0}}, 0),
        # Two orders a round, and the model itself in every second.
        (
            {
                "methods": [
                    {
                        "name": "P2",
                        "criteria": ["dataset_size", "label_diversity"],
                        "adjust": "best_order",
                    }
                ]
            },
            4 * 2 + 2 + 3,
        ),
        # A step towards each of two clients and their mean; the model itself.
        (
            {
                "server_set": {"source": "clients"},
                "methods": [{"name": "judged", "like": "RecommendedJudged"}],
            },
            4 * 3 + 2 + 4,
        ),
    ],
)
def test_how_many_models_a_run_may_ask_for(change: dict[str, Any], models: int) -> None:
    assert Allowance(load_experiment(CONFIG | change)).models == models

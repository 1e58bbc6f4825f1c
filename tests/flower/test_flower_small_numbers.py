"""Small numbers stay on the node, and what it says instead still agrees with itself."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from approvals import approve_once
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from clientwise.core.objective.problem import Classification
from clientwise.core.privacy import LocalNoise
from clientwise.core.types import LocalTraining, Task, Updates
from clientwise.experiment.load import load_experiment
from clientwise.flower import OwnData, client_app
from clientwise.hosts.deployment.allowance import Allowance, describe_nodes
from clientwise.hosts.deployment.small_numbers import Release, in_groups
from clientwise.hosts.flower.wire import (
    NUMBERS,
    Request,
    pack,
    read_evaluation,
    write_request,
)
from clientwise.registry import Part

CONFIG: dict[str, Any] = {
    "name": "small",
    "rounds": 1,
    "data": "digits",
    "partition": {"name": "iid", "clients": 2},
    "model": {"name": "linear"},
    "training": {"epochs": 1, "learning_rate": 0.1},
    "flower": {"clients": ["a", "b"], "input_shape": [4], "num_classes": 2},
    "methods": [
        {"name": "balance", "criteria": ["dataset_size", "class_balance", "label_diversity"]}
    ],
}


def ask(path: Path, request: Request, models: torch.Tensor, **node_config: Any) -> Message:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    kind = "evaluate" if request.task is None else "train"
    message = Message(write_request(request, pack(models)), 1, kind)
    message.metadata.__dict__["_message_id"] = "asked"
    settings = {"data": str(path), "ledger": f"{path}.ledger", "smallest-cell": 1} | node_config
    approve_once(settings["ledger"], CONFIG, settings["smallest-cell"])
    context = Context(1, 2, settings, RecordDict(), {})
    return client_app(CONFIG)(message, context)


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    """77 patients, 6 of them ill; 23 to test on, 3 of them ill."""
    chance = numpy.random.default_rng(1)
    parts = {"train": 6 * [1] + 71 * [0], "test": 3 * [1] + 20 * [0]}
    arrays = {f"{part}_targets": numpy.array(targets) for part, targets in parts.items()}
    arrays |= {
        f"{part}_inputs": chance.normal(size=(len(targets), 4)).astype("float32")
        for part, targets in parts.items()
    }
    numpy.savez(tmp_path / "own.npz", **arrays)
    return tmp_path / "own.npz"


def task(**change: Any) -> Task:
    experiment = load_experiment(CONFIG)
    (method,) = experiment.build_methods()
    return replace(
        Task(1, method.training, Classification(2).loss, method.client_criteria), **change
    )


def test_a_node_speaks_of_whole_groups(hospital: Path) -> None:
    model = torch.zeros(10)
    exact = ask(hospital, Request(0, 1, task()), model).content.metric_records[NUMBERS]
    assert exact["criterion.class_balance"] * exact["criterion.dataset_size"] == pytest.approx(
        77 * 6 / 71
    )
    in_fives = {"smallest-cell": 5, "ledger": f"{hospital}.fives.ledger"}
    coarse = ask(hospital, Request(0, 1, task()), model, **in_fives).content.metric_records[NUMBERS]
    assert coarse["criterion.dataset_size"] == 75
    assert coarse["criterion.class_balance"] == 0.071  # 5/70, in two digits

    models = torch.randn(2, 10, generator=torch.Generator().manual_seed(1))
    reply = ask(hospital, Request(0, 1, round_num=1), models, **in_fives)
    found = read_evaluation(
        reply.content, 2, Classification(2), most_samples=1000
    )  # agrees with itself
    assert int(found.num_samples) == 20  # the three that are ill are too few to be told of
    assert not (found.counts % 5).any()


def test_groups_keep_what_belongs_together() -> None:
    inputs, targets = torch.arange(7.0)[:, None], torch.tensor([0, 1, 0, 1, 0, 1, 0])
    own = in_groups(OwnData((inputs, targets), (inputs, targets.float()), {"age": targets + 10}), 3)
    assert own.train[0].flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert (
        own.train[1].tolist() == own.sample_attributes["age"].sub(10).tolist() == [0, 1, 0, 1, 0, 1]
    )
    assert len(own.test[0]) == 6  # numbers to predict are one group


@pytest.mark.parametrize(
    "change",
    [
        {"training": LocalTraining(epochs=1, learning_rate=1.0)},  # gives the gradient away
        {"criteria": (Part("training_loss", {}),)},
        {"noise": LocalNoise(clip=1.0, deviation=1e-9)},
    ],
)
def test_a_server_may_ask_for_what_the_experiment_says_alone(
    hospital: Path, change: dict[str, Any]
) -> None:
    reply = ask(hospital, Request(0, 1, task(**change)), torch.zeros(10))
    assert reply.has_error()
    assert (
        reply.error.reason
        == "RefusedError: the request's training, loss, noise or criteria are not those of any method of the experiment"
    )


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (
            Request(0, 1, task(round_num=1.0)),
            "must be integers",
        ),  # would be more rounds than agreed
        (Request(0, True, task()), "must be integers"),
        (Request(0.0, 1, task()), "must be integers"),  # type: ignore[arg-type]
        (Request(0, 1, round_num=True), "must be integers"),
        (Request(2, 1, task()), "the experiment has 2 clients"),
        (Request(-1, 1, round_num=1), "the experiment has 2 clients"),
    ],
)
def test_rounds_seeds_and_clients_are_counted(
    hospital: Path, request_: Request, reason: str
) -> None:
    models = torch.zeros(10) if request_.task else torch.zeros(1, 10)
    assert reason in ask(hospital, request_, models).error.reason


def test_a_server_of_another_version_is_told_so(hospital: Path) -> None:
    reply = ask(hospital, Request(0, 1, task(), version="0.0.1"), torch.zeros(10))
    assert "the server runs clientwise 0.0.1, this node " in reply.error.reason


def test_a_hospitals_own_loader_is_used(hospital: Path) -> None:
    loader = hospital.with_name("data.py")
    loader.write_text(
        "from clientwise.flower import OwnData, load_npz\n"
        "def load(path):\n"
        "    own = load_npz(path)\n"
        "    return OwnData((own.train[0][:9], own.train[1][:9]), own.test)\n"
    )
    reply = ask(hospital, Request(0, 1, task()), torch.zeros(10), loader=str(loader))
    assert reply.content.metric_records[NUMBERS]["criterion.dataset_size"] == 9


def test_a_number_that_is_not_finite_reaches_the_guard() -> None:
    nan, whole, part = float("nan"), 285.0, 0.12345
    sent = torch.tensor([nan, whole, part, float("inf")], dtype=torch.float64)
    nobody = torch.zeros(4, dtype=torch.float64)
    updates = Updates((0, 1, 2, 3), torch.zeros(4, 1), {"size": sent}, sent, nobody)
    said = Release(5, 1, b"key").update(updates).measurements["size"].tolist()
    assert said[1:] == [285.0, 0.12, float("inf")]
    assert said[0] != said[0]


def with_table(classes: list[str]) -> dict[str, Any]:
    """An experiment whose members have tables; without classes the target is a number."""
    table = {"target": "ill", "classes": classes, "columns": [{"name": "age"}]}
    return CONFIG | {"flower": {"clients": CONFIG["flower"]["clients"], "table": table}}


def judged(members: int, **change: Any) -> dict[str, Any]:
    """An experiment whose members judge each other's models."""
    names = [f"member-{number}" for number in range(members)]
    source = {"source": "clients"}
    methods = ["RecommendedJudged"]
    return CONFIG | {
        "rounds": 20,
        "flower": CONFIG["flower"] | {"clients": names},
        "server_set": source,
        "methods": methods,
        **change,
    }


HIDDEN = {"epochs": 2, "sample_clip": 1.0, "sample_noise": 4.0}  # rows, by noise


@pytest.mark.parametrize(
    ("config", "cell", "expected"),
    [
        (CONFIG, 5, []),
        (with_table(["no", "yes"]), 5, []),
        (with_table([]), 5, ["refuse all evaluations"]),
        (CONFIG | {"evaluation": {"metric": "auc"}}, 1, []),
        (CONFIG | {"evaluation": {"metric": "auc"}}, 5, ["refuse all evaluations"]),
        (CONFIG | {"evaluation": {"metric": "auc", "clients_every": 0}}, 5, []),
        (CONFIG | {"methods": [{"name": "q", "criteria": ["start_loss"]}]}, 5, ["start_loss has"]),
        (judged(12), 1, []),
        (judged(12), 5, ["evidence against hostile members weakens"]),
        (judged(4), 1, ["4 members judge in a round, evidence needs 12"]),
        (judged(4), 5, ["evidence needs 12", "evidence against hostile members weakens"]),
        (judged(12, evaluation={"metric": "auc"}), 5, ["refuse all evaluations"]),
    ],
)
def test_what_cannot_work_is_said_before_the_run(
    config: dict[str, Any], cell: int, expected: list[str]
) -> None:
    experiment = load_experiment(config | {"training": HIDDEN})
    found = list(Allowance(experiment).warnings(cell))
    assert len(found) == len(expected)
    for text, part in zip(found, expected, strict=True):
        assert part in text


def test_an_operator_reads_what_the_node_will_answer() -> None:
    """tests/flower/test_flower_node.py has what else `agree` prints."""
    first, rows, warning = describe_nodes(
        load_experiment(CONFIG | {"evaluation": {"metric": "auc"}})
    )
    assert first.endswith("train at most 2 and evaluate at most 2 models each; SMALLEST_CELL=5")
    assert "a changed server can compute training rows, with diagnoses, from this node's" in rows
    assert "evaluation.clients_every = 0 and report_inputs" in warning


def test_an_operator_reads_what_hides_the_rows() -> None:
    """Two epochs, at most two requests a round: μ² = 2 · 2 · rounds / noise²."""
    rounds = 9
    hidden = load_experiment(CONFIG | {"training": HIDDEN, "rounds": rounds})
    assert Allowance(hidden).row_noise() == pytest.approx(math.sqrt(4 * rounds) / 4)
    secure = {"methods": [{"name": "secret", "secure_aggregation": {}}]}
    secure |= {"training": HIDDEN, "rounds": rounds, "evaluation": {"clients_every": 0}}
    once = Allowance(load_experiment(CONFIG | secure))  # a round is summed once
    assert once.row_noise() == pytest.approx(math.sqrt(2 * rounds) / 4)
    _, line = describe_nodes(hidden)
    assert "μ = 1.5, ε = 7.1 at δ = 1e-05" in line
    (shipped,) = Path(str(files("clientwise"))).glob(
        "hosts/deployment/template/federation/experiment.toml"
    )
    lines = describe_nodes(load_experiment(shipped))
    assert "μ = 0.99" in lines[1]
    assert not any(line.startswith("warning") for line in lines)

"""The weighting for Flower apps of others: `clientwise.flower.Weighted` around their strategy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedTrimmedAvg, Krum
from flwr.supercore.task_identity import TaskIdentity

import clientwise as cw
from clientwise.flower import Weighted, measure
from clientwise.flower.strategy import WEIGHT

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_app"
GLOBAL = ArrayRecord({"kernel": Array(numpy.zeros((2, 2), "float32")), "bias": Array(numpy.zeros(2, "float32"))})


def arrays(value: float) -> ArrayRecord:
    return ArrayRecord({name: Array(numpy.full(array.shape, value, "float32")) for name, array in GLOBAL.items()})


def reply(node: int, value: float, **metrics: Any) -> Message:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    asked = Message(RecordDict({"arrays": GLOBAL}), node, "train")
    asked.metadata.__dict__["_message_id"] = f"to {node}"
    numbers = MetricRecord(
        {name.replace("_", "-") if name == "num_examples" else name: v for name, v in metrics.items()}
    )
    answer = Message(RecordDict({"arrays": arrays(value), "metrics": numbers}), reply_to=asked)
    answer.metadata.__dict__["_src_node_id"] = node
    return answer


def aggregate(strategy: Weighted, *replies: Message) -> tuple[numpy.ndarray | None, MetricRecord | None]:
    strategy._global = None
    with pytest.MonkeyPatch.context() as patch:  # nobody has to be sampled for this
        patch.setattr(strategy._strategy, "configure_train", lambda *arguments: [])
        strategy.configure_train(1, GLOBAL, ConfigRecord(), None)  # type: ignore[arg-type]
    result, metrics = strategy.aggregate_train(1, list(replies))
    return None if result is None else result["kernel"].numpy(), metrics


def test_the_aggregate_has_the_weights_of_the_papers() -> None:
    strategy = Weighted(FedAvg(), criteria=["label_diversity", "num-examples"])
    replies = [
        reply(2, 1.0, label_diversity=2.0, num_examples=900, loss=1.0),
        reply(3, 3.0, label_diversity=8.0, num_examples=100, loss=3.0),
    ]
    kernel, metrics = aggregate(strategy, *replies)
    criteria = {"label_diversity": [2, 8], "num-examples": [900, 100]}
    expected = cw.weigh(criteria, score=cw.prioritized("label_diversity", "num-examples"))
    found = strategy.rounds[1]
    assert list(found.weights.values()) == pytest.approx(expected.tolist())
    assert list(found.weights) == [2, 3]
    assert kernel == pytest.approx(numpy.full((2, 2), expected @ [1.0, 3.0]), rel=1e-6)
    assert metrics is not None
    assert metrics["loss"] == pytest.approx(expected @ [1.0, 3.0])  # metrics are averaged alike
    assert WEIGHT not in metrics
    assert strategy._strategy.weighted_by_key == "num-examples"  # evaluation goes on as it was


def test_divergence_and_whatever_the_server_measures() -> None:
    strategy = Weighted(
        FedAvg(),
        criteria=["accuracy", "model_divergence"],
        score=cw.mean(),
        measured_here={"accuracy": lambda record: float(record["bias"].numpy()[0])},
    )
    aggregate(strategy, reply(2, 0.5, num_examples=1), reply(3, 1.0, num_examples=1))
    measured = strategy.rounds[1].criteria
    assert measured[2] == pytest.approx({"accuracy": 0.5, "model_divergence": (6**0.5 * 0.5 + 1) ** -0.5})
    assert measured[3] == pytest.approx({"accuracy": 1.0, "model_divergence": (6**0.5 + 1) ** -0.5})


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (lambda: reply(4, float("nan"), label_diversity=1.0, num_examples=1), "model has NaN or Inf"),
        (lambda: reply(4, 1.0, label_diversity=-1.0, num_examples=1), "label_diversity = -1.0 is not a number"),
        (lambda: reply(4, 1.0, label_diversity=float("nan"), num_examples=1), "label_diversity = nan is not"),
        (lambda: reply(4, 1.0, label_diversity=[1.0], num_examples=1), "is not a number of zero or more"),
        (lambda: reply(4, 1.0, num_examples=1), "label_diversity"),
    ],
)
def test_a_reply_that_cannot_be_used_is_left_out(bad: Any, reason: str) -> None:
    strategy = Weighted(FedAvg(), criteria=["label_diversity"])
    kernel, _ = aggregate(strategy, reply(2, 1.0, label_diversity=1.0, num_examples=1), bad())
    assert kernel == pytest.approx(numpy.ones((2, 2)))
    assert reason in strategy.rounds[1].refusals[4]
    assert strategy.rounds[1].weights == {2: 1.0}


def test_errors_are_left_out_and_nobody_left_keeps_the_model() -> None:
    asked = reply(2, 1.0, num_examples=1)
    asked.metadata.__dict__["_message_id"] = "x"
    strategy = Weighted(FedAvg(), criteria=["num-examples"])
    failed = Message(Error(code=2, reason="it broke"), reply_to=asked)
    assert aggregate(strategy, failed) == (None, None)
    assert list(strategy.rounds[1].refusals.values()) == ["it broke"]
    assert aggregate(strategy, reply(2, 1.0, num_examples=0)) == (None, None)


@pytest.mark.parametrize("theirs", [FedAvgM(server_momentum=0.0), FedAdam(eta=0.1)])
def test_strategies_that_build_on_a_weighted_mean_can_serve(theirs: FedAvg) -> None:
    theirs_alone = type(theirs)(**({"server_momentum": 0.0} if isinstance(theirs, FedAvgM) else {"eta": 0.1}))
    for one in (theirs, theirs_alone):
        one.current_arrays = {name: array.numpy() for name, array in GLOBAL.items()}  # type: ignore[attr-defined]
    replies = [reply(2, 1.0, size=1.0, num_examples=1), reply(3, 2.0, size=3.0, num_examples=3)]
    kernel, _ = aggregate(Weighted(theirs, criteria=["size"]), *replies)
    expected, _ = theirs_alone.aggregate_train(1, [reply(2, 1.0, num_examples=1), reply(3, 2.0, num_examples=3)])
    assert expected is not None
    assert kernel == pytest.approx(expected["kernel"].numpy(), rel=1e-6)


@pytest.mark.parametrize("theirs", [FedMedian(), FedTrimmedAvg(), Krum(), object()])
def test_strategies_without_weights_cannot(theirs: Any) -> None:
    with pytest.raises(TypeError, match="takes no weighted mean"):
        Weighted(theirs, criteria=["num-examples"])


def test_measurements_are_those_of_the_criteria() -> None:
    found = measure(["dataset_size", "label_diversity", "training_loss"], [3, 3, 7], num_classes=10, training_loss=1.0)
    assert found == {"dataset_size": 3.0, "label_diversity": 2.0, "training_loss": 0.5}


@pytest.mark.flower
def test_the_example_app_runs_and_weighs() -> None:
    program = (
        "from digits_app.server_app import app as server; from digits_app.client_app import app as client; "
        "from flwr.simulation import run_simulation; run_simulation(server, client, 4)"
    )
    environment = os.environ | {"PYTHONPATH": str(EXAMPLE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, check=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("round 3: weights")], done.stderr[-3000:]


def test_the_example_needs_at_most_ten_lines_for_it() -> None:
    lines = (EXAMPLE / "digits_app" / "server_app.py").read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if "strategy = Weighted(" in line)
    last = next(number for number, line in enumerate(lines) if number > first and line == "    )")
    assert last - first + 1 + 1 <= 10  # with the import


def test_the_guide_shows_the_example() -> None:
    example = (EXAMPLE / "digits_app" / "server_app.py").read_text(encoding="utf-8")
    guide = (EXAMPLE.parents[1] / "docs" / "flower.md").read_text(encoding="utf-8")
    shown = guide.split("strategy = Weighted(")[1].split("\n)\n")[0]
    assert shown.split() == example.split("strategy = Weighted(")[1].split("\n    )\n")[0].split()

"""The weighting for Flower apps of others: `clientwise.flower.Weighted` around their strategy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedTrimmedAvg, Krum
from grid import become_task

import clientwise as cw
from clientwise.core.guard import NOT_FINITE, TOO_LARGE
from clientwise.errors import ConfigError
from clientwise.flower import Weighted
from clientwise.hosts.flower.strategy import WEIGHT

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_app"
GLOBAL = ArrayRecord(
    {"kernel": Array(numpy.zeros((2, 2), "float32")), "bias": Array(numpy.zeros(2, "float32"))}
)


def arrays(value: float) -> ArrayRecord:
    return ArrayRecord(
        {name: Array(numpy.full(array.shape, value, "float32")) for name, array in GLOBAL.items()}
    )


def reply(node: int, value: float, **metrics: Any) -> Message:
    become_task()
    asked = Message(RecordDict({"arrays": GLOBAL}), node, "train")
    asked.metadata.__dict__["_message_id"] = f"to {node}"
    numbers = MetricRecord(
        {
            name.replace("_", "-") if name == "num_examples" else name: v
            for name, v in metrics.items()
        }
    )
    answer = Message(RecordDict({"arrays": arrays(value), "metrics": numbers}), reply_to=asked)
    answer.metadata.__dict__["_src_node_id"] = node
    return answer


def aggregate(
    strategy: Weighted, *replies: Message
) -> tuple[numpy.ndarray | None, MetricRecord | None]:
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
    assert measured[2] == pytest.approx(
        {"accuracy": 0.5, "model_divergence": (6**0.5 * 0.5 + 1) ** -0.5}
    )
    assert measured[3] == pytest.approx({"accuracy": 1.0, "model_divergence": (6**0.5 + 1) ** -0.5})


def changed(change: Callable[[RecordDict], None]) -> Message:
    """A good reply of node 4, spoilt."""
    answer = reply(4, 1.0, label_diversity=1.0, num_examples=1)
    change(answer.content)
    return answer


def with_arrays(**arrays: numpy.ndarray) -> Message:
    record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
    return changed(lambda content: content.__setitem__("arrays", record))


KERNEL, BIAS = numpy.ones((2, 2), "float32"), numpy.ones(2, "float32")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (lambda: reply(4, float("nan"), label_diversity=1.0, num_examples=1), NOT_FINITE.text),
        (lambda: reply(4, 1e38, label_diversity=1.0, num_examples=1), TOO_LARGE.text),
        (
            lambda: reply(4, 1.0, label_diversity=-1.0, num_examples=1),
            "label_diversity = -1 is outside [0, 1e+12]",
        ),
        (
            lambda: reply(4, 1.0, label_diversity=float("nan"), num_examples=1),
            "label_diversity = nan is outside",
        ),
        (
            lambda: reply(4, 1.0, label_diversity=1e308, num_examples=1),
            "label_diversity = 1e+308 is outside",
        ),
        (
            lambda: reply(4, 1.0, label_diversity=10**400, num_examples=1),
            "label_diversity = inf is outside",
        ),
        (
            lambda: reply(4, 1.0, label_diversity=[1.0], num_examples=1),
            "label_diversity is not one number",
        ),
        (lambda: reply(4, 1.0, num_examples=1), "clientwise.flower.measure"),
        (
            lambda: changed(lambda content: content.__delitem__("arrays")),
            "one record of arrays and one of metrics",
        ),
        (
            lambda: changed(lambda content: content.__delitem__("metrics")),
            "one record of arrays and one of metrics",
        ),
        (
            lambda: changed(lambda content: content.__setitem__("more", GLOBAL)),
            "one record of arrays",
        ),
        (
            lambda: changed(lambda content: content.clear()),
            "one record of arrays and one of metrics",
        ),
        (lambda: with_arrays(kernel=KERNEL), "model of another shape"),
        (lambda: with_arrays(kernel=KERNEL.T[:1], bias=BIAS), "model of another shape"),
        (lambda: with_arrays(kernel=BIAS, bias=KERNEL), "model of another shape"),
        (lambda: with_arrays(kernel=KERNEL, bias=numpy.array(["a", "b"])), "model of another type"),
        (lambda: with_arrays(kernel=KERNEL, bias=BIAS * 1j), "model of another type"),
        (lambda: with_arrays(kernel=KERNEL, bias=BIAS * numpy.float64(1e300)), NOT_FINITE.text),
        (
            lambda: reply(2, 1.0, label_diversity=1.0, num_examples=1),
            "second update of the same client",
        ),
    ],
)
def test_a_reply_that_cannot_be_used_is_left_out(bad: Any, reason: str) -> None:
    strategy = Weighted(FedAvg(), criteria=["label_diversity"])
    good = [reply(node, 1.0, label_diversity=1.0, num_examples=1) for node in (2, 3)]
    spoilt = bad()
    kernel, _ = aggregate(strategy, *good, spoilt)
    assert kernel == pytest.approx(numpy.ones((2, 2)))
    assert reason in strategy.rounds[1].refusals[spoilt.metadata.src_node_id]
    assert strategy.rounds[1].weights == {2: 0.5, 3: 0.5}


def test_metrics_that_not_everybody_sends_are_not_averaged_and_put_nobody_out() -> None:
    strategy = Weighted(FedAvg(), criteria=["size"])
    odd = [{"extra": 1.0}, {"loss": [1.0]}, {"loss": float("nan")}, {"loss": 10**400}, {}]
    for first in range(len(odd)):  # whoever comes first
        replies = [reply(9, 1.0, size=1.0, loss=2.0)]
        replies.insert(first % 2, reply(4, 1.0, **{"size": 1.0, **odd[first]}))
        kernel, metrics = aggregate(strategy, *replies)
        assert strategy.rounds[1].weights == {9: 0.5, 4: 0.5}
        assert kernel == pytest.approx(numpy.ones((2, 2)))
        assert metrics is not None
        assert set(metrics) == {"size"}
        assert "not averaged" in strategy.rounds[1].remarks[0]


def test_what_the_server_cannot_measure_is_the_servers_fault_unless_it_is_the_models() -> None:
    def fussy(record: ArrayRecord) -> float:
        if record["bias"].numpy()[0] > 1:
            raise RuntimeError("too large for me")
        return 1.0

    def broken(record: ArrayRecord) -> float:
        raise RuntimeError("no test data here")

    strategy = Weighted(FedAvg(), criteria=["accuracy"], measured_here={"accuracy": fussy})
    kernel, _ = aggregate(strategy, reply(2, 0.5, loss=1.0), reply(3, 5.0, loss=1.0))
    assert kernel == pytest.approx(numpy.full((2, 2), 0.5))
    assert strategy.rounds[1].refusals == {
        3: "accuracy of its model cannot be measured: too large for me"
    }
    strategy = Weighted(FedAvg(), criteria=["accuracy"], measured_here={"accuracy": broken})
    with pytest.raises(RuntimeError, match="no test data here"):
        aggregate(strategy, reply(2, 0.5, loss=1.0))
    nothing = {"accuracy": lambda record: float("nan")}
    with pytest.raises(ValueError, match="accuracy = nan is outside"):
        aggregate(
            Weighted(FedAvg(), criteria=["accuracy"], measured_here=nothing),
            reply(2, 0.5, loss=1.0),
        )


def test_evaluations_are_checked_and_held_to_the_first_answer() -> None:
    strategy = Weighted(FedAvg(), criteria=["num-examples"])
    honest = {"accuracy": 0.5, "num_examples": 100}
    bad = [
        {"accuracy": 1.0, "num_examples": 10**9},
        {"accuracy": 1.0, "num_examples": -1},
        {"accuracy": 1.0, "num_examples": 1.5},
        {"accuracy": 1.0, "num_examples": float("nan")},
        {"accuracy": 1.0},
    ]
    for round_num, more in enumerate(bad, 1):
        found = strategy.aggregate_evaluate(round_num, [reply(2, 0, **honest), reply(3, 0, **more)])
        assert found is not None
        assert found["accuracy"] == pytest.approx(0.5)
        assert set(strategy.evaluations[round_num].refusals) == {3}
    strategy.aggregate_evaluate(6, [reply(2, 0, accuracy=1.0, num_examples=101)])
    assert strategy.evaluations[6].refusals == {2: "101 test samples, 100 in its first answer"}
    assert strategy.evaluations[1].refusals == {
        3: "1000000000 test samples: at most 1000000 are accepted"
    }


def test_what_is_measured_here_is_not_taken_from_a_client() -> None:
    strategy = Weighted(
        FedAvg(),
        criteria=["accuracy", "model_divergence"],
        score=cw.mean(),
        measured_here={"accuracy": lambda record: float(record["bias"].numpy()[0])},
    )
    honest, liar = (
        reply(2, 0.5, num_examples=1),
        reply(3, 0.5, num_examples=1, accuracy=1.0, model_divergence=1e6),
    )
    kernel, _ = aggregate(strategy, honest, liar)
    found = strategy.rounds[1]
    assert found.criteria[3] == found.criteria[2]
    assert found.weights == {2: 0.5, 3: 0.5}
    assert kernel == pytest.approx(numpy.full((2, 2), 0.5))


@pytest.mark.parametrize("name", ["server_performance", "honest"])
def test_what_only_a_server_can_measure_is_not_asked_of_clients(name: str) -> None:
    with pytest.raises(ValueError, match=r"needs (samples of the server|simulated)"):
        Weighted(FedAvg(), criteria=[name])
    Weighted(FedAvg(), criteria=[name], measured_here={name: lambda record: 1.0})


def test_a_claim_has_the_bounds_of_its_criterion() -> None:
    strategy = Weighted(
        FedAvg(), criteria=["class_balance", "label_diversity", "size"], num_classes=10
    )
    good = {"class_balance": 1.0, "label_diversity": 10.0, "size": 1e12}
    bad = [good | {"class_balance": 1.1}, good | {"label_diversity": 11.0}, good | {"size": 1.1e12}]
    aggregate(
        strategy, *(reply(node, 1.0, **metrics) for node, metrics in enumerate([good, *bad], 2))
    )
    assert strategy.rounds[1].weights == {2: 1.0}
    assert strategy.rounds[1].refusals == {
        3: "class_balance = 1.1 is outside [0, 1]",
        4: "label_diversity = 11 is outside [0, 10]",
        5: "size = 1.1e+12 is outside [0, 1e+12]",
    }


def test_no_escape_sequence_of_a_node_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    escape = "\x1b[2J"
    strategy = Weighted(FedAvg(), criteria=["size"])
    asked = Message(RecordDict(), 4, "train")
    asked.metadata.__dict__["_message_id"] = "asked"
    failed = Message(Error(code=2, reason=f"{escape}broken\n"), reply_to=asked)
    failed.metadata.__dict__["_src_node_id"] = 4
    odd = reply(3, 1.0, size=1.0, **{f"{escape}more": 1.0})
    aggregate(strategy, reply(2, 1.0, size=1.0), odd, failed)
    assert strategy.rounds[1].refusals == {4: "[2Jbroken"}
    assert strategy.rounds[1].remarks[0].endswith("number for it: [2Jmore")
    assert escape not in caplog.text


def test_what_does_not_fit_together_is_said_at_once() -> None:
    with pytest.raises(ValueError, match="priority"):
        Weighted(FedAvg(), criteria=["size"], score=cw.prioritized("age"))
    with pytest.raises(ConfigError, match="unknown normaliser"):
        Weighted(FedAvg(), criteria=["size"], normalise="mean")


def test_errors_are_left_out_and_nobody_left_keeps_the_model() -> None:
    asked = reply(2, 1.0, num_examples=1)
    asked.metadata.__dict__["_message_id"] = "x"
    strategy = Weighted(FedAvg(), criteria=["num-examples"])
    failed = Message(Error(code=2, reason="it broke"), reply_to=asked)
    assert aggregate(strategy, failed) == (None, None)
    assert list(strategy.rounds[1].refusals.values()) == ["it broke"]
    assert aggregate(strategy, reply(2, 1.0, num_examples=0)) == (None, None)


def test_a_run_without_a_usable_update_keeps_the_initial_arrays() -> None:
    grid = SimpleNamespace(send_and_receive=lambda **options: [reply(2, 1.0)])
    asks_nobody = FedAvg(fraction_train=0.0, fraction_evaluate=0.0)
    strategy = Weighted(asks_nobody, criteria=["label_diversity"])
    assert strategy.start(grid, GLOBAL, num_rounds=1).arrays is GLOBAL  # type: ignore[arg-type]
    assert strategy.rounds[1].refusals


@pytest.mark.parametrize("theirs", [FedAvgM(server_momentum=0.0), FedAdam(eta=0.1)])
def test_strategies_that_build_on_a_weighted_mean_can_serve(theirs: FedAvg) -> None:
    theirs_alone = type(theirs)(
        **({"server_momentum": 0.0} if isinstance(theirs, FedAvgM) else {"eta": 0.1})
    )
    for one in (theirs, theirs_alone):
        one.current_arrays = {name: array.numpy() for name, array in GLOBAL.items()}  # type: ignore[attr-defined]
    replies = [reply(2, 1.0, size=1.0, num_examples=1), reply(3, 2.0, size=3.0, num_examples=3)]
    kernel, _ = aggregate(Weighted(theirs, criteria=["size"]), *replies)
    expected, _ = theirs_alone.aggregate_train(
        1, [reply(2, 1.0, num_examples=1), reply(3, 2.0, num_examples=3)]
    )
    assert expected is not None
    assert kernel == pytest.approx(expected["kernel"].numpy(), rel=1e-6)


@pytest.mark.parametrize("theirs", [FedMedian(), FedTrimmedAvg(), Krum(), object()])
def test_strategies_without_weights_cannot(theirs: Any) -> None:
    with pytest.raises(TypeError, match="takes no weighted mean"):
        Weighted(theirs, criteria=["num-examples"])


def test_the_guide_shows_the_example() -> None:
    example = (EXAMPLE / "digits_app" / "server_app.py").read_text(encoding="utf-8")
    guide = (EXAMPLE.parents[1] / "docs" / "frameworks.md").read_text(encoding="utf-8")
    client = (EXAMPLE / "digits_app" / "client_app.py").read_text(encoding="utf-8")
    (added,) = (line for line in client.splitlines() if "measure(" in line)
    assert added.strip() in guide
    shown = guide.split("strategy = Weighted(")[1].split("\n)\n")[0]
    assert shown.split() == example.split("strategy = Weighted(")[1].split("\n    )\n")[0].split()

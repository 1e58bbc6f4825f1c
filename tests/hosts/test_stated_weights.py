"""`cw.Aggregator(weights=...)`: weights by client, or by a function of what came with an update."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy
import pytest

import clientwise as cw
from clientwise.record.run import RunFolder
from recorded import rows

SENT = {"w": numpy.zeros(2, "float32")}


def model(value: float) -> dict[str, numpy.ndarray]:
    return {"w": numpy.full(2, value, "float32")}


UPDATES = {"site-1": model(1.0), "site-2": model(4.0), "site-3": model(7.0)}
WEIGHTS = {"site-1": 2.0, "site-2": 1.0, "site-3": 1.0}


def test_an_absent_client_takes_no_share(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with cw.Aggregator("FedAvg", weights=WEIGHTS, folder=folder) as aggregator:
        assert aggregator.asks_for == ()
        everyone = aggregator.aggregate(SENT, UPDATES)
        assert everyone.weights == {"site-1": 0.5, "site-2": 0.25, "site-3": 0.25}
        present = {name: UPDATES[name] for name in ("site-1", "site-3")}
        without = aggregator.aggregate(SENT, present)
    assert without.weights == pytest.approx({"site-1": 2 / 3, "site-3": 1 / 3})
    assert without.model["w"] == pytest.approx([3.0, 3.0])
    found = rows(RunFolder(folder), "weights", "FedAvg", 1, 2)
    shown = dict(zip(found["name"], found["weight"], strict=True))
    assert shown == pytest.approx({"site-1": 2 / 3, "site-3": 1 / 3})


def test_a_client_that_the_mapping_does_not_name_is_refused() -> None:
    aggregator = cw.Aggregator("FedAvg", weights=WEIGHTS)
    done = aggregator.aggregate(SENT, {**UPDATES, "site-4": model(9.0)})
    assert done.refusals == {"site-4": "has no weight: `weights` does not name it"}
    assert sum(done.weights.values()) == pytest.approx(1)


def test_a_function_of_metrics() -> None:
    def by_loss(client: str, metrics: dict[str, Any]) -> float:
        return float(1 / metrics["loss"])

    values = {"site-1": {"loss": 0.5}, "site-2": {"loss": 1.0}, "site-3": {}}
    aggregator = cw.Aggregator("FedAvg", weights=by_loss)
    done = aggregator.aggregate(SENT, UPDATES, values)
    assert done.weights == pytest.approx({"site-1": 2 / 3, "site-2": 1 / 3})
    assert done.refusals == {"site-3": "weights failed: KeyError: 'loss'"}


def test_the_weights_are_the_prior_of_the_evidence() -> None:
    """Bounds and rules of the method apply to stated weights as to others."""
    table = {"name": "mine", "like": "FedAvg", "bounds": {"cap": 0.4}}
    done = cw.Aggregator(table, weights=WEIGHTS).aggregate(SENT, UPDATES)
    assert done.steps["site-1"].prior == 0.5
    assert done.weights == pytest.approx({"site-1": 0.4, "site-2": 0.3, "site-3": 0.3})


def test_a_claim_of_the_client_does_not_count() -> None:
    done = cw.Aggregator("FedAvg", weights=WEIGHTS).aggregate(
        SENT, UPDATES, {"site-2": {"weight": 1e9}}
    )
    assert done.weights["site-2"] == 0.25


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ({"a": -1.0, "b": 2.0}, r"weights\['a'\] = -1: must be 0 to 1e"),
        ({"a": math.nan}, r"weights\['a'\] = nan"),
        ({"a": math.inf}, r"weights\['a'\] = inf"),
        ({"a": 10**400}, r"weights\['a'\] = inf"),
        ({"a": "2"}, r"weights\['a'\] is not one number, but a str"),
        ({"a": None}, r"weights\['a'\] is not one number, but a NoneType"),
        ([1.0, 2.0], "must be a dict by client or a function, got list"),
    ],
)
def test_weights_that_no_round_can_use_are_refused_at_once(weights: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why) as error:
        cw.Aggregator("FedAvg", weights=weights)
    assert "\n" not in str(error.value)


def test_weights_stand_instead_of_criteria() -> None:
    with pytest.raises(ValueError, match="instead of criteria"):
        cw.Aggregator("FedAvg", weights=WEIGHTS, criteria=["dataset_size"])


def test_a_round_with_zero_weights_keeps_the_model() -> None:
    aggregator = cw.Aggregator("FedAvg", weights={"site-1": 0.0, "site-2": 1.0})
    done = aggregator.aggregate(model(3.0), {"site-1": model(1.0)})
    assert not done.is_new
    assert done.model["w"].tolist() == [3.0, 3.0]
    assert done.remarks


def test_whatever_a_function_gives_is_a_weight_or_a_refusal() -> None:
    """2,000 values: usable ones get their share, the others a reason in one line."""
    draw = random.Random(7)
    odd = [math.nan, math.inf, -math.inf, -1e-300, 1e13, 10**400, "1", None, [1.0], True, 0, 1e-320]
    aggregator = cw.Aggregator("FedAvg", weights=lambda client, metrics: metrics["given"])
    for _ in range(200):
        given = {}
        for number in range(10):
            given[f"c{number}"] = draw.choice(odd) if draw.random() < 0.5 else draw.uniform(0, 9)
        done = aggregator.aggregate(
            SENT,
            {client: model(1.0) for client in given},
            {client: {"given": value} for client, value in given.items()},
        )
        usable = {
            client: float(value)
            for client, value in given.items()
            if isinstance(value, int | float) and 0 <= value <= 1e12
        }
        total = sum(usable.values())
        assert done.weights.keys() == usable.keys()
        assert done.refusals.keys() == given.keys() - usable.keys()
        assert not any("\n" in reason for reason in done.refusals.values())
        if total > 1e-300:
            expected = {client: value / total for client, value in usable.items()}
            assert done.weights == pytest.approx(expected)
            assert done.model["w"] == pytest.approx([1.0, 1.0])

"""Clients that are drawn by the score of their last criteria: `sampling = {name = "by_score"}` of a method."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import clientwise as cw
from clientwise.core.sampling import ByScore
from clientwise.errors import ConfigError
from clientwise.experiment.load import load_experiment
from clientwise.experiment.trackers import Progress
from clientwise.record.run import RunFolder
from clientwise.report.audit import audit
from clientwise.report.explanation import Round
from recorded import rows

LANE = "checkpoints/lane-1.safetensors"
BY_SCORE: dict[str, Any] = {"name": "by_score", "floor": 0.1}
CRITERIA = ["label_diversity", "dataset_size"]


def method(**more: Any) -> dict[str, Any]:
    return {"name": "drawn", "criteria": CRITERIA, "sampling": BY_SCORE} | more


@pytest.fixture
def config(tiny: dict[str, Any]) -> dict[str, Any]:
    changes = {"rounds": 12, "checkpoint_seconds": 0.0, "methods": [method()]}
    changes |= {"evaluation": {"clients_every": 0}}
    changes["partition"] = {"name": "dirichlet", "clients": 12, "concentration": 0.2}
    return tiny | changes | {"federation": {"clients_per_round": 3}}


def cohorts(folder: Path, name: str = "drawn") -> list[list[int]]:
    weights = rows(cw.Run(folder), "weights", name, 1)
    return [clients.tolist() for _, clients in weights.groupby("round")["client"]]


@pytest.mark.bits
def test_a_resumed_run_is_the_same_to_the_bit(config: dict[str, Any], tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    cw.run(config, whole)

    def stop(_: cw.Run, progress: Progress) -> None:
        if progress.done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cw.run(config, tmp_path / "stopped", on_round=stop)
    cw.run(config, tmp_path / "stopped", resume=True)
    assert cohorts(tmp_path / "stopped") == cohorts(whole)
    one, other = load_file(whole / LANE), load_file(tmp_path / "stopped" / LANE)
    assert one.keys() == other.keys()
    assert "sampling/criteria" in one
    for name, tensor in one.items():
        assert tensor.numpy().tobytes() == other[name].numpy().tobytes(), name


def test_drawn_clients_weigh_the_same(config: dict[str, Any], tmp_path: Path) -> None:
    run = cw.run(config, tmp_path / "run")
    assert run.frame("weights")["weight"].tolist() == pytest.approx([1 / 3] * 36)
    text = str([*audit(Round(RunFolder(run.folder), "drawn", 1, 12))])
    assert "Clients were drawn by their score, so their weights are equal." in text


def test_the_equal_mean_is_that_of_uniform_weights(config: dict[str, Any], tmp_path: Path) -> None:
    """Where all clients are asked, nothing is drawn, and the model is that of equal weights."""
    everyone = {"federation": {"fraction": 1.0}, "rounds": 3}
    methods = [method(), {"name": "Uniform"}]
    cw.run(config | everyone | {"methods": methods}, tmp_path / "run")
    drawn, uniform = (
        load_file(tmp_path / "run" / "checkpoints" / f"lane-{lane}.safetensors")["model"]
        for lane in (1, 2)
    )
    assert torch.equal(drawn, uniform)


def test_clients_are_drawn_as_their_last_criteria_say(
    config: dict[str, Any], tmp_path: Path
) -> None:
    rounds = 80
    changes = {"rounds": rounds, "methods": [method(criteria=["dataset_size"])]}
    cw.run(config | changes | {"training": {"batch_size": "full"}}, tmp_path / "run")
    run = cw.Run(tmp_path / "run")
    drawn = Counter[int]()
    sizes: dict[int, float] = {}
    known_from = 0
    for number in range(1, rounds + 1):
        found = rows(run, "criteria", "drawn", 1, number)
        if len(sizes) == 12:
            drawn.update(found["client"])
        else:
            sizes |= dict(zip(found["client"], found["raw"], strict=True))
            known_from = number
    assert known_from < 40  # the mean score of unseen clients, and the floor
    count = rounds - known_from
    scores = torch.tensor([sizes[client] for client in range(12)], dtype=torch.float64)
    expected = ByScore(floor=0.1).probabilities(scores, 3).tolist()
    assert max(expected) > 4 * min(expected)
    for client, probability in enumerate(expected):
        deviation = (count * probability * (1 - probability)) ** 0.5
        assert abs(drawn[client] - count * probability) < 4 * deviation + 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"methods": [method(adjust="first_improvement")]}, "has no effect on the equal weights"),
        ({"federation": {"fraction": 0.5, "sampling": "poisson"}}, "cohorts of a fixed size"),
        (
            {"methods": [method(privacy={"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5})]},
            "ε assumes that all are alike",
        ),
        ({"methods": [method(control="pooled", criteria=["dataset_size"])]}, "no effect"),
        ({"methods": [method(sampling={"name": "by_score", "floor": 0})]}, "floor"),
        ({"methods": [method(sampling={"name": "by_scores"})]}, "did you mean 'by_score'"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    config: dict[str, Any], changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        load_experiment(config | changes)


def test_it_draws_on_a_clock_as_well(config: dict[str, Any], tmp_path: Path) -> None:
    devices = {"devices": {"available_hours": 12.0, "speed": 100.0}}
    cw.run(config | devices | {"rounds": 12}, tmp_path / "run")
    assert all(len(cohort) <= 3 for cohort in cohorts(tmp_path / "run"))

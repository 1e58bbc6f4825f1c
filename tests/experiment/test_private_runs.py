"""Runs with differential privacy: what is refused, what they spend, when they stop, and that they go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

import clientwise as cw
from clientwise.cli import app
from clientwise.core.objective.problem import Classification
from clientwise.core.privacy import Accountant
from clientwise.core.round import run_round
from clientwise.core.types import RoundRecord, ServerState
from clientwise.errors import ConfigError, RunError
from clientwise.experiment.checks.combinations import deployment_issues
from clientwise.experiment.checks.describe import describe
from clientwise.experiment.config_file import merge
from clientwise.experiment.running import lanes
from clientwise.experiment.trackers import Progress
from clientwise.record.run import RunFolder
from clientwise.registry import Part
from recorded import curve, rows
from reported import audited, items_of

LANE = "checkpoints/lane-1.safetensors"
PRIVATE = {
    "name": "private",
    "bounds": {"cap": 0.2},
    "privacy": {"clip": 0.5, "delta": 0.01, "noise_multiplier": 1.5},
}
LOCAL = {
    "name": "local",
    "criteria": ["uniform"],
    "privacy": {"clip": 0.5, "delta": 0.01, "noise_multiplier": 4.0, "local": True},
}
CONFIG: dict[str, Any] = {
    "name": "privacy",
    "rounds": 4,
    "checkpoint_seconds": 0.0,
    "data": "digits",
    "partition": {"name": "iid", "clients": 20},
    "model": "linear",
    "training": {"epochs": 1, "batch_size": 20, "learning_rate": 0.1},
    "federation": {"fraction": 0.5, "sampling": "poisson"},
    "evaluation": {"clients_every": 0, "test_fraction": 0.0},
    "methods": [PRIVATE],
}


def above_the_mean(dataset_size: torch.Tensor) -> torch.Tensor:
    return (dataset_size > dataset_size.mean()).double()


def config(method: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return merge(CONFIG, changes) | {"methods": [method or PRIVATE]}


def changed(base: dict[str, Any] = PRIVATE, **changes: Any) -> dict[str, Any]:
    return merge(base, changes)


PUBLIC = {"name": "fixed", "by": [50.0, 1.0]}
TWO = ["dataset_size", "class_balance"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (config({"name": "p", "privacy": PRIVATE["privacy"]}), "privacy needs a cap"),
        (config(changed(bounds={"cap": 0.05})), "the caps sum to 10 × 0.05 = 0.5, less than 1"),
        (config(changed(bounds={"floor": 0.01})), "bounds.floor: does not go with privacy"),
        (config(changed(privacy={"delta": 0.05})), "must be below 1/n = 0.05"),
        (config(changed(privacy={"epsilon": 0.1})), "the first round alone spends"),
        (config(changed(criteria=TWO)), 'normalise: "sum" depends on all clients'),
        (config(changed(criteria=TWO, score="mean", normalise="max")), '"max" depends'),
        (config(changed(privacy={"denominator": 10.0})), '"sum" depends'),
        (
            config(changed(criteria=TWO, normalise={"name": "fixed", "by": [1.0]})),
            "normalise.by: has 1 values for 2 criteria",
        ),
        (config(changed(criteria=["trust"])), "trust makes what one client contributes depend"),
        (config(changed(evidence="significance")), "evidence: makes what one client"),
        (config(changed(rule="median")), "rule: makes what one client"),
        (config(changed(before=["clip"])), "before: makes what one client"),
        (
            config(changed(score=above_the_mean)),
            "score: above_the_mean makes what one client",
        ),
        (
            config(changed(criteria=TWO, normalise=PUBLIC, adjust="best_order")),
            "adjust: evaluates on the clients' samples",
        ),
        (
            config(changed(training={"control_variates": True})),
            "sent beside the models, in time and in the clear",
        ),
        (config(changed(privacy={"public": ["dataset_size"]})), "is for privacy.local"),
        (config(evaluation={"clients_every": 1, "test_fraction": 0.2}), "clients_every = 0"),
        (config(server_set={"source": "contributed"}), "uses samples of the clients"),
        (config(server_set={"report_fraction": 0.0}), "set report_fraction > 0"),
        (
            config(devices={}, federation={"sampling": "fixed"}),
            "needs cohorts that are drawn at random",
        ),
        (config(devices={}), "such a round has no duration"),
        (config(engine="flower", flower={"min_replies": 2}), "set flower.min_replies = 1"),
        (
            config(changed(criteria=["response_time"]), engine="flower"),
            "response_time makes what one client contributes depend",
        ),
        (
            config(changed(criteria=["compute_speed"]), engine="flower"),
            "compute_speed makes what one client contributes depend",
        ),
        (
            config(federation={"fraction": None, "clients_per_round": 10}),
            "follow from the number of clients: give federation.fraction",
        ),
        (
            config(changed(LOCAL, privacy={"secret": True}), engine="flower"),
            "clients of Flower's simulation draw their noise from the seed",
        ),
        (config(changed(LOCAL, criteria=["dataset_size"])), "declare it in privacy.public"),
        (config(changed(LOCAL, privacy={"denominator": 0.5})), "is for noise of the server"),
        (config(changed(LOCAL, privacy={"public": ["age"]})), "no client-measured criterion"),
        (
            config({"name": "p", "bounds": {"cap": 0.2}, "privacy": {"clip": 1.0, "delta": 0.01}}),
            "noise_multiplier: is missing",
        ),
    ],
)
def test_check_refuses_what_would_make_epsilon_wrong(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        describe(cw.load(given))
    assert message in str(refused.value)


def test_check_refuses_statistics_of_the_data_in_the_model(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    with pytest.raises(ConfigError, match="statistics of the clients' data"):
        cw.run(config(), tmp_path / "run", model=network)


@pytest.mark.parametrize("standardise", [True, False])
def test_check_refuses_inputs_that_are_made_from_all_clients(
    standardise: bool, tmp_path: Path
) -> None:
    rows = [f"{row % 7},{row % 2},c{row % 10}" for row in range(400)]
    (tmp_path / "rows.csv").write_text("\n".join(["age,ill,ward", *rows]), encoding="utf-8")
    table = {"name": "table", "files": "rows.csv", "target": "ill", "client": "ward"}
    given = config(partition="by_id", data_dir=str(tmp_path))
    given |= {"data": table | {"standardise": standardise}}
    with pytest.raises(ConfigError, match="prepares its inputs by the samples of all clients"):
        describe(cw.load(given))
    describe(cw.load(given | {"methods": [{"name": "FedAvg"}]}))


@pytest.mark.parametrize(
    "method",
    [
        changed(criteria=["dataset_size"], normalise="max"),  # one factor: the scale cancels out
        changed(criteria=TWO, normalise=PUBLIC),
        changed(criteria=TWO, normalise=PUBLIC, score="mean", privacy={"denominator": 5.0}),
        changed(criteria=["server_performance"], fine_tune={"epochs": 1}, server_step="adam"),
        changed(LOCAL, rule="median", evidence="significance"),
        changed(LOCAL, criteria=["dataset_size"], privacy={"public": ["dataset_size"]}),
    ],
)
def test_check_accepts_what_is_covered(method: dict[str, Any]) -> None:
    lines = describe(cw.load(config(method)))
    (promise,) = [line for line in lines if line.startswith("privacy")]
    assert "simulated noise" in promise


def test_check_says_that_held_out_samples_are_not_covered() -> None:
    inputs = torch.rand(400, 4)
    samples = cw.Samples(
        inputs, torch.arange(400) % 2, Classification(2), ids=torch.arange(400) % 20
    )
    experiment = cw.load(config()).with_samples(samples)
    experiment = experiment.model_copy(update={"partition": Part("by_id", {})})
    lines = describe(experiment)
    assert any("training samples alone, not the server's" in line for line in lines)
    assert any(line.startswith("warning") and "same ids" in line for line in lines)
    assert not any("same ids" in line for line in describe(cw.load(config())))


def test_check_says_what_noise_of_single_samples_promises() -> None:
    """Nine steps on a sample, each with the noise of three sensitivities: μ = √9 / 3 = 1."""
    training = {"epochs": 3, "batch_size": 20, "learning_rate": 0.1}
    plain = cw.load(config() | {"rounds": 3, "methods": ["FedAvg"], "training": training})
    assert "for one training sample" not in "\n".join(describe(plain))
    noise = training | {"sample_clip": 1.0, "sample_noise": 3.0}
    noisy = cw.load(config() | {"rounds": 3, "methods": ["FedAvg"], "training": noise})
    promise = "FedAvg: μ = 1, ε = 4.4 at δ = 1e-05 for one training sample"
    assert promise in "\n".join(describe(noisy))


def test_a_missing_multiplier_is_computed() -> None:
    method = {"name": "p", "bounds": {"cap": 0.2}}
    method |= {"privacy": {"clip": 1.0, "delta": 0.01, "epsilon": 2.0}}
    every_client = {"fraction": 1.0, "sampling": "fixed"}
    with pytest.raises(ConfigError) as refused:
        describe(cw.load(config(method, federation=every_client)))
    found = float(str(refused.value).split("is missing: ")[1].split()[0])
    assert 1.98 < Accountant(found, 0.01, 20).epsilon(4) < 2.01


def test_a_deployment_needs_secret_noise_and_one_lane() -> None:
    issues = dict(deployment_issues(cw.load(config(seeds=[1, 2]))))
    assert "whoever knows the seed" in issues["methods[0].privacy.secret"]
    assert "one method and one seed" in issues["methods"]


def spent(folder: Path, method: str) -> list[float]:
    """What all rounds so far have spent, round by round."""
    return list(curve(cw.Run(folder), "epsilon", method).values())


def test_the_record_and_the_page_have_epsilon(tmp_path: Path) -> None:
    both = config() | {"methods": [PRIVATE, LOCAL, {"name": "FedAvg"}]}
    cw.run(both, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    accountant = Accountant(1.5, 0.01, 20, probability=0.5)
    epsilon = spent(tmp_path / "run", "private")
    assert epsilon == [accountant.epsilon(number) for number in (1, 2, 3, 4)]
    private = rows(run, "rounds", "private")
    assert set(private["clip"]) == {0.5}
    assert set(private["deviation"]) == {1.5 * 2 * 0.5 * 0.2}
    assert spent(tmp_path / "run", "FedAvg") == []
    most = rows(run, "weights", "local")["client"].value_counts().max()
    assert spent(tmp_path / "run", "local")[-1] == Accountant(4.0, 0.01, 20).epsilon(int(most))
    shown = str(items_of(run)["privacy"].texts())
    assert "simulated: known from the seed" in shown
    assert "add or remove one client" in shown
    assert "replace one client" in shown
    summary = CliRunner().invoke(app, ["show", str(tmp_path / "run")]).output.replace("\n", " ")
    assert f"private: ε = {epsilon[-1]:.3f} at δ = 0.01 after all rounds so far" in summary
    assert "local: ε = " in summary
    assert "FedAvg: ε" not in summary


def test_no_training_loss_leaves_a_client_with_noise(tmp_path: Path) -> None:
    cw.run(config(LOCAL), tmp_path / "run")
    assert set(cw.Run(tmp_path / "run").frame("weights")["training_loss"]) == {0.0}


def test_a_run_stops_before_it_exceeds_its_budget(tmp_path: Path) -> None:
    accountant = Accountant(1.5, 0.01, 20, probability=0.5)
    budget = accountant.epsilon(2) + 1e-6
    limited = config(changed(privacy={"epsilon": budget}))
    steps: list[Progress] = []
    cw.run(limited, tmp_path / "run", on_round=lambda _, one: steps.append(one))
    assert (steps[-1].done, steps[-1].is_last) == (steps[-1].total, True)  # a bar ends at 100%
    run = RunFolder(tmp_path / "run")
    assert run.finished
    assert len(spent(tmp_path / "run", "private")) == 2
    assert "the privacy budget is spent" in str(run.frame("rounds")["notes"].iloc[-1])
    cw.run(limited | {"rounds": 6}, tmp_path / "run", resume=True)  # nothing is left to do
    assert len(spent(tmp_path / "run", "private")) == 2


def stop_after(given: dict[str, Any], folder: Path, rounds: int) -> None:
    def stop(_: cw.Run, progress: Progress) -> None:
        if progress.done == rounds:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cw.run(given, folder, on_round=stop)


@pytest.mark.bits
@pytest.mark.parametrize("method", [changed(), LOCAL])
def test_simulated_noise_goes_on_with_the_same_bits(method: dict[str, Any], tmp_path: Path) -> None:
    given = config(method)
    cw.run(given, tmp_path / "whole")
    stop_after(given, tmp_path / "stopped", 2)
    cw.run(given, tmp_path / "stopped", resume=True)
    whole = load_file(tmp_path / "whole" / LANE)
    stopped = load_file(tmp_path / "stopped" / LANE)
    assert whole.keys() == stopped.keys()
    assert all(torch.equal(whole[name], stopped[name]) for name in whole)


def test_secret_noise_is_drawn_anew_and_lost_rounds_count(tmp_path: Path) -> None:
    given = config(changed(privacy={"secret": True}))
    for name in ("one", "other"):
        cw.run(given, tmp_path / name)
    one, other = (load_file(tmp_path / name / LANE)["model"] for name in ("one", "other"))
    assert not torch.allclose(one, other)
    # A crash after round 4 was recorded, with the checkpoint of round 3
    stop_after(given, tmp_path / "lost", 3)
    before = (tmp_path / "lost" / LANE).read_bytes()
    cw.run(given, tmp_path / "lost", resume=True)
    (tmp_path / "lost" / LANE).write_bytes(before)
    cw.run(given | {"rounds": 5}, tmp_path / "lost", resume=True)
    accountant = Accountant(1.5, 0.01, 20, probability=0.5)
    assert spent(tmp_path / "lost", "private")[3:] == [accountant.epsilon(5), accountant.epsilon(6)]


def test_another_framework_refuses_privacy() -> None:
    with pytest.raises(ValueError, match="privacy does not run inside another framework"):
        cw.Aggregator(PRIVATE)


def test_an_empty_cohort_still_releases_noise(tmp_path: Path) -> None:
    given = config(federation={"fraction": 0.001}, rounds=2)
    given["methods"] = [changed(bounds={"cap": 1.0 - 1e-9})]
    with pytest.raises(RunError, match="no client answered"):
        cw.run(given, tmp_path / "run")
    model = load_file(tmp_path / "run" / LANE)["model"]
    assert float(model.std()) > 1.0  # the noise of two rounds


def test_the_audit_explains_weights_with_public_constants(tmp_path: Path) -> None:
    cw.run(config(changed(criteria=TWO, normalise=PUBLIC), rounds=1), tmp_path / "run")
    assert "class_balance" in audited(RunFolder(tmp_path / "run"), "private", 1, 1)


def test_scales_of_the_cohort_round_no_score_to_zero(tmp_path: Path) -> None:
    """Client 0 has so large a value that those of the others vanish beside it."""
    rated = {"name": "attribute", "of": "rating", "high": 1e30}
    cubed = {"name": "product", "powers": {"attribute": 3.0}}
    method = changed(criteria=[rated], score=cubed, normalise="sum")
    given = config(method, rounds=1, federation={"fraction": 1.0})
    given["attributes"] = {"rating": [1e29, *[1e-30] * 19]}
    cw.run(given, tmp_path / "run")
    weights = cw.Run(tmp_path / "run").frame("weights")["weight"].tolist()
    assert weights == pytest.approx([0.2, *[0.8 / 19] * 19])


@pytest.mark.parametrize("number", [1, 3])
def test_a_round_that_is_interrupted_counts_for_clients_that_add_secret_noise(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has their updates by then. No round is written, so nothing else tells of it."""
    given = config(changed(LOCAL, privacy={"secret": True}), federation={"fraction": 1.0})

    def interrupted(*given: Any) -> tuple[ServerState, RoundRecord]:
        done, record = run_round(*given)
        if done.round_num == number:
            raise RuntimeError("the power is cut")
        return done, record

    with monkeypatch.context() as patched:
        patched.setattr(lanes, "run_round", interrupted)
        patched.setattr(lanes.Lane, "end", lambda lane: None)  # a crash saves nothing
        for resume in (False, True):
            with pytest.raises(RuntimeError, match="the power is cut"):
                cw.run(given, tmp_path / "run", resume=resume)
    cw.run(given, tmp_path / "run", resume=True)
    counted = [one + 2 * (one >= number) for one in (1, 2, 3, 4)]
    accountant = Accountant(4.0, 0.01, 20)
    found = spent(tmp_path / "run", "local")
    assert found == [accountant.epsilon(one) for one in counted]

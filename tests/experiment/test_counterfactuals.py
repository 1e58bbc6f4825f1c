"""What other weights would have given: of a round's own updates, and of whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import clientwise as cw
from clientwise.cli import app
from clientwise.core.method import Method, Plan
from clientwise.core.round import first_state, run_round
from clientwise.core.types import LocalTraining, Task
from clientwise.core.weights.weighting import Bounds
from clientwise.data.federated import FederatedData
from clientwise.engine.local import LocalEngine
from clientwise.errors import ConfigError, RunError
from clientwise.experiment.config_file import merge
from clientwise.experiment.load import load_experiment
from clientwise.experiment.running.resume import with_policy, without_client
from clientwise.record.run import RunFolder
from clientwise.record.tables import REPORTED
from recorded import curve, everything, rows
from reported import items_of

CONFIG: dict[str, Any] = {
    "name": "otherwise",
    "rounds": 2,
    "checkpoint_seconds": 0.0,
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 4, "concentration": 0.5},
    "model": "linear",
    "training": {"epochs": 1, "batch_size": 20, "learning_rate": 0.1},
    "server_set": {"fraction": 0.2},
    "evaluation": {"counterfactuals": True},
    "methods": ["FedAvg"],
}


def engine() -> LocalEngine:
    random = torch.Generator().manual_seed(0)
    parts = []
    for size in (40, 20, 10):
        inputs = torch.randn(size, 3, generator=random)
        parts.append((inputs, (inputs.sum(1) > 0).long()))
    data = FederatedData.from_clients(parts, parts, report=parts[1], num_classes=2)
    torch.manual_seed(0)
    return LocalEngine(data, torch.nn.Linear(3, 2), seed=1)


def test_they_are_the_weighted_means_of_the_same_updates() -> None:
    method = Method(bounds=Bounds(cap=0.6), training=LocalTraining(batch_size=5))
    plan = Plan(seed=1, cohort_size=3, counterfactuals=True)
    local = engine()
    state = first_state(local.initial_model, method, local)
    after, record = run_round(state, method, plan, local)
    task = Task(1, method.training, local.problem.loss, method.client_criteria)
    models = torch.cat([chunk.models for chunk in engine().train([0, 1, 2], state.model, task)])
    expected = {
        ("chosen", None): [4 / 7, 2 / 7, 1 / 7],
        ("uniform", None): [1 / 3, 1 / 3, 1 / 3],
        ("size", None): [4 / 7, 2 / 7, 1 / 7],
        ("without", 0): [0, 0.6, 0.4],  # 2/3 and 1/3, within the cap
        ("without", 1): [0.6, 0, 0.4],
        ("without", 2): [0.6, 0.4, 0],
    }
    assert [(one.kind, one.client) for one in record.counterfactuals] == list(expected)
    for one, weights in zip(record.counterfactuals, expected.values(), strict=True):
        model = (torch.tensor(weights).double() @ models.double()).float()[None]
        on_server = local.evaluate_server(model, "report")
        on_clients = local.evaluate(range(3), model)
        assert on_server is not None
        assert one.model is None  # a record keeps no models
        torch.testing.assert_close(one.report.losses, on_server.losses, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(one.local.losses, on_clients.losses, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(one.local.values, on_clients.values)
    plain = run_round(state, method, Plan(seed=1, cohort_size=3), engine())
    assert torch.equal(after.model, plain[0].model)
    torch.testing.assert_close(record.local.losses, plain[1].local.losses)


def test_who_cannot_be_left_out_within_the_bounds() -> None:
    method = Method(bounds=Bounds(cap=0.4))
    local = engine()
    state = first_state(local.initial_model, method, local)
    _, record = run_round(state, method, Plan(seed=1, cohort_size=3, counterfactuals=True), local)
    reasons = [one.reason for one in record.counterfactuals if one.kind == "without"]
    assert reasons == ["the caps sum to 2 × 0.4 = 0.8, less than 1"] * 3
    assert all(one.report is None for one in record.counterfactuals if one.reason)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    methods = ["FedAvg", {"name": "tuned", "fine_tune": {}}, {"name": "Median", "bounds": {}}]
    config = CONFIG | {"methods": methods, "rounds": 3}
    return cw.run(config, tmp_path_factory.mktemp("runs") / "run").folder


def chosen(run: RunFolder, method: str) -> list[float]:
    """The metric of the weights of the method, on the reported samples, round by round."""
    others = rows(run, "other_weights", method, 1)
    is_wanted = (others["kind"] == "chosen") & (others["tested"] == REPORTED)
    return others.loc[is_wanted, "metric"].tolist()


def test_the_record_the_page_and_the_files_agree(folder: Path) -> None:
    run = RunFolder(folder)
    for method in ("FedAvg", "Median"):
        assert chosen(run, method) == list(curve(run, "metric", method).values())
    # Fine-tuning comes after the aggregate that is compared.
    assert chosen(run, "tuned") != list(curve(run, "metric", "tuned").values())
    others = rows(run, "other_weights", "FedAvg", 1, 2)
    own = others[(others["kind"] == "chosen") & (others["tested"] != REPORTED)]
    stored = rows(run, "local", "FedAvg", 1, 2)
    assert own["tested"].tolist() == stored["client"].tolist()
    assert own["metric"].tolist() == stored["metric"].tolist()
    assert len(others) == 7 * 5  # candidates, and the server's set with four clients
    found = items_of(run)["counterfactuals-FedAvg"].frame
    assert [*found["weights"]][:4] == [
        "the chosen weights",
        "equal weights",
        "weights by size",
        "without client 0",
    ]
    last = rows(run, "other_weights", "FedAvg", 1, 3)
    by_place = last.set_index(["kind", "without", "tested"])["metric"]
    assert found["accuracy"][3] == by_place["without", 0, REPORTED]
    assert {f"counterfactuals-{name}" for name in ("FedAvg", "tuned", "Median")} <= {*items_of(run)}
    assert len(cw.Run(folder).frame("other_weights")) == 3 * 3 * 7 * 5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {
                "methods": [
                    {
                        "name": "A",
                        "bounds": {"cap": 0.5},
                        "privacy": {"clip": 0.5, "delta": 0.01, "noise_multiplier": 1.5},
                    }
                ],
                "evaluation": {"clients_every": 0},
            },
            "and get no noise: set them to false",
        ),
    ],
)
def test_what_would_leak_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_experiment(merge(CONFIG, changes))


def test_too_many_clients_are_refused(tmp_path: Path) -> None:
    many = merge(CONFIG, {"partition": {"name": "iid", "clients": 60}})
    with pytest.raises(ConfigError, match=r"each of 60 clients in a round: at most 50"):
        cw.run(many, tmp_path / "run")


def test_a_whole_run_without_a_client_is_paired_and_resumed(folder: Path) -> None:
    runner = CliRunner()
    target = folder.with_name("run-without-2")
    done = runner.invoke(app, ["run", str(folder), "--without", "2"])
    assert done.exit_code == 0, done.output
    other = RunFolder(target)
    for method in ("FedAvg", "tuned", "Median"):
        assert {*rows(other, "weights", method, 1, 1)["client"]} == {0, 1, 3}
        # It still evaluates: the model without it, on its own data.
        assert {*rows(other, "local", method)["client"]} == {0, 1, 2, 3}
    # In the first round, both runs have the same updates.
    without = rows(RunFolder(folder), "other_weights", "FedAvg", 1, 1)
    first = without.set_index(["without", "tested"]).sort_index().loc[(2, REPORTED), "metric"]
    assert curve(other, "metric", "FedAvg")[1] == pytest.approx(first)
    assert "FedAvg: accuracy is" in done.output
    assert "points worse" in done.output
    before = everything(other)
    again = runner.invoke(app, ["run", str(folder), "--without", "2"])
    assert again.exit_code == 0
    assert everything(RunFolder(target)) == before


def test_a_whole_run_with_equal_weights_and_under_another_policy(
    folder: Path, tmp_path: Path
) -> None:
    done = CliRunner().invoke(
        app, ["run", str(folder), "--uniform", "--out", str(tmp_path / "equal")]
    )
    assert done.exit_code == 0, done.output
    for method in ("FedAvg", "Median"):
        equal = rows(RunFolder(tmp_path / "equal"), "weights", method, 1, 3)
        assert {*equal["weight"]} == {0.25}
    policy = tmp_path / "strict.toml"
    policy.write_text("cap = 0.3\n", encoding="utf-8")
    experiment = with_policy(folder, policy)
    assert experiment.methods[0].bounds.cap == 0.3
    policy.write_text("cup = 0.3\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="cup: unknown"):
        with_policy(folder, policy)


def test_runs_that_cannot_be_run_again(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no client is called 'Basel'"):
        without_client(folder, "Basel")
    samples = cw.Samples.from_clients(
        {name: (torch.randn(20, 3), torch.arange(20) % 2) for name in ("a", "b")}
    )
    config = {k: v for k, v in CONFIG.items() if k not in ("data", "partition")}
    own = cw.run(config, tmp_path / "own", data=samples).folder
    with pytest.raises(RunError, match="its samples are not here"):
        without_client(own, "a")
    for words in (["--uniform", "--without", "2"], ["--uniform", "--seeds", "1"]):
        assert CliRunner().invoke(app, ["run", str(folder), *words]).exit_code == 2

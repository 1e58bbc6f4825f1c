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
from clientwise.core.weights.bounds import Bounds
from clientwise.data.federated import FederatedData
from clientwise.engine.local import LocalEngine
from clientwise.errors import ConfigError, RunError
from clientwise.experiment.config.named import merge
from clientwise.experiment.load import load_experiment
from clientwise.experiment.running.rerun import with_policy, without_client
from clientwise.record.reading.folder import RunFolder
from clientwise.record.reading.other_weights import REPORTED
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
    return cw.run(config, tmp_path_factory.mktemp("runs") / "run")


def test_the_record_the_page_and_the_files_agree(folder: Path) -> None:
    run = RunFolder(folder)
    for method in ("FedAvg", "Median"):
        curve = dict(run.curve("metric", method, 1))
        for row in run.reported_counterfactuals(method, 1):
            if row.kind == "chosen":
                assert row.metric == curve[row.round_num]
    # Fine-tuning comes after the aggregate that is compared.
    tuned = [row for row in run.reported_counterfactuals("tuned", 1) if row.kind == "chosen"]
    assert [row.metric for row in tuned] != [value for _, value in run.curve("metric", "tuned", 1)]
    rows = run.counterfactuals("FedAvg", 1, 2)
    own = {row.tested: row.metric for row in rows if row.kind == "chosen"}
    own.pop(REPORTED)
    stored = run.query("SELECT client, metric FROM local WHERE lane = 1 AND round_num = 2")
    assert own == dict(stored)
    assert len(rows) == 7 * 5  # candidates, and the server's set with four clients
    found = items_of(run)["counterfactuals-FedAvg"].frame
    assert [*found["weights"]][:4] == [
        "the chosen weights",
        "equal weights",
        "weights by size",
        "without client 0",
    ]
    last = {
        (row.kind, row.excluded, row.tested): row.metric
        for row in run.counterfactuals("FedAvg", 1, 3)
    }
    assert found["accuracy"][3] == last["without", 0, REPORTED]
    assert {f"counterfactuals-{name}" for name in ("FedAvg", "tuned", "Median")} <= {*items_of(run)}
    assert len(cw.Run(folder).frame("counterfactuals")) == 3 * 3 * 7 * 5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {
                "methods": [{"name": "A", "secure_aggregation": {}}],
                "evaluation": {"counterfactuals": True},
            },
            "n other weighted sums of the same n updates reveal every update",
        ),
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
            "results without a client are a release that gets no noise",
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
    done = runner.invoke(app, ["counterfactual", str(folder), "--without", "2"])
    assert done.exit_code == 0, done.output
    other = RunFolder(target)
    for method in ("FedAvg", "tuned", "Median"):
        assert {row.client for row in other.participants(method, 1, 1)} == {0, 1, 3}
        # It still evaluates: the model without it, on its own data.
        assert {row.client for row in other.client_metrics(method)} == {0, 1, 2, 3}
    # In the first round, both runs have the same updates.
    without = RunFolder(folder).reported_counterfactuals("FedAvg", 1)
    (first,) = [row for row in without if (row.round_num, row.excluded) == (1, 2)]
    assert dict(other.curve("metric", "FedAvg", 1))[1] == pytest.approx(first.metric)
    assert "FedAvg: accuracy is" in done.output
    assert "points worse" in done.output
    before = other.query("SELECT * FROM rounds")
    again = runner.invoke(app, ["counterfactual", str(folder), "--without", "2"])
    assert again.exit_code == 0
    assert RunFolder(target).query("SELECT * FROM rounds") == before


def test_a_whole_run_with_equal_weights_and_under_another_policy(
    folder: Path, tmp_path: Path
) -> None:
    done = CliRunner().invoke(
        app, ["counterfactual", str(folder), "--uniform", "--out", str(tmp_path / "equal")]
    )
    assert done.exit_code == 0, done.output
    for method in ("FedAvg", "Median"):
        rows = RunFolder(tmp_path / "equal").participants(method, 1, 3)
        assert {row.weight for row in rows} == {0.25}
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
    own = cw.run(config, tmp_path / "own", data=samples)
    with pytest.raises(RunError, match="its samples are not here"):
        without_client(own, "a")
    done = CliRunner().invoke(app, ["counterfactual", str(folder)])
    assert done.exit_code != 0

"""Contributions and gains of clients in runs, and what the report says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import clientwise as cw
from clientwise.errors import ConfigError
from clientwise.experiment.config_file import merge
from clientwise.experiment.load import load_experiment
from clientwise.record.run import RunFolder
from recorded import curve, rows
from reported import items_of, texts_of

CONFIG: dict[str, Any] = {
    "name": "contributions",
    "rounds": 2,
    "model": "linear",
    "training": {"epochs": 2, "batch_size": 10, "learning_rate": 0.3},
    "server_set": {"fraction": 0.2},
    "evaluation": {"counterfactuals": True, "shapley": True},
    "methods": ["FedAvg", "Alone", "Pooled"],
}


def members() -> cw.Samples:
    """Two clients agree on what the classes are, and the third, the smallest, has them swapped."""
    random = torch.Generator().manual_seed(0)
    clients = {}
    for name, size in {"North": 80, "South": 80, "Odd": 40}.items():
        inputs = torch.randn(size, 3, generator=random)
        targets = (inputs.sum(1) > 0).long()
        clients[name] = (inputs, 1 - targets if name == "Odd" else targets)
    return cw.Samples.from_clients(clients)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = CONFIG | {"seeds": [1, 2, 3, 4, 5]}
    return RunFolder(cw.run(config, folder, data=members()).folder)


def test_values_of_a_round_sum_to_its_gain(run: RunFolder) -> None:
    weights = rows(run, "weights", "FedAvg", 1)
    metric = curve(run, "metric", "FedAvg")
    second = weights.loc[weights["round"] == 2, "shapley"]
    assert second.sum() == pytest.approx(metric[2] - metric[1])
    assert set(weights["shapley_error"]) == {0.0}
    totals = weights.groupby("name")["shapley"].sum()
    assert totals["Odd"] < 0 < min(totals["North"], totals["South"])
    assert rows(run, "weights", "Alone")["shapley"].isna().all()
    assert rows(run, "weights", "FedAvg")["shapley"].notna().sum() == 5 * 2 * 3


def test_the_report_says_who_contributes_and_who_is_better_off_alone(run: RunFolder) -> None:
    shown = items_of(run)
    table = shown["contributions-FedAvg"].frame.set_index("client")
    weights = rows(run, "weights", "FedAvg", 1)
    odd = weights.loc[weights["name"] == "Odd", "shapley"].sum()
    assert table["all rounds"]["Odd"] == pytest.approx(odd)
    found = texts_of(shown["gains-FedAvg"])
    assert [*found["Odd"]] == ["FedAvg", "Alone", "Pooled", "difference", "remark"]
    assert found["Odd"]["remark"] == "better off alone"
    assert found["North"]["remark"] != "better off alone"


def test_with_one_seed_nobody_is_said_to_be_better_off(tmp_path: Path) -> None:
    single = RunFolder(cw.run(CONFIG | {"rounds": 1}, tmp_path / "run", data=members()).folder)
    assert "remark" not in items_of(single)["gains-FedAvg"].columns


def test_contributions_need_reporting_samples_and_no_secrets() -> None:
    config = CONFIG | {"data": "digits", "partition": {"name": "iid", "clients": 3}}
    with pytest.raises(ConfigError, match=r"evaluation\.shapley: needs reporting samples"):
        load_experiment(
            merge(config, {"server_set": {"report_fraction": 0.0}, "methods": ["FedAvg"]})
        )
    privacy = {"clip": 0.5, "delta": 0.01, "noise_multiplier": 1.5}
    secret = {"methods": [{"name": "A", "bounds": {"cap": 0.5}, "privacy": privacy}]}
    config = config | {"evaluation": {"shapley": True}}
    with pytest.raises(ConfigError, match="reveal single updates"):
        load_experiment(merge(config, secret))

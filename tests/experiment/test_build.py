"""From a config to data: whose the official test split is, partitions that find their clients themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import clientwise as cw
from clientwise.data.datasets import DATASETS, DataError, digits
from clientwise.data.federated import Samples
from clientwise.errors import ConfigError
from clientwise.experiment.build import engine
from clientwise.experiment.build.data import build_data, load_samples
from clientwise.experiment.checks import trial
from clientwise.experiment.checks.against_data import validate
from clientwise.experiment.checks.describe import describe


@pytest.fixture
def split(tiny: dict[str, Any]) -> dict[str, Any]:
    """The tiny experiment on digits that have an official test split and thirty writers."""

    @DATASETS.register("written_digits")
    def written_digits(data_dir: Path | None) -> Samples:
        """Digits by writer."""
        return replace(digits(None), test_from=1500, ids=torch.arange(1797) % 30)

    return tiny | {"data": "written_digits"}


def test_p3_clients_train_on_a_table_and_the_server_has_the_official_test_split(
    split: dict[str, Any], tmp_path: Path
) -> None:
    counts = [[20] * 10, [40] * 5 + [0] * 5, [0] * 5 + [40] * 5]
    split |= {
        "partition": {"name": "table", "counts": counts},
        "evaluation": {"official_test": "server", "test_fraction": 0.0, "clients_every": 0},
        "server_set": {"shared_set": True},
        "methods": [
            {"name": "AdaFed", "criteria": ["server_performance"], "adapt_loss": "class_weights"}
        ],
        "hostile": [{"clients": [2], "attack": "wrong_labels"}],
    }
    run = cw.Run(cw.run(split, tmp_path / "run"))
    assert run.finished
    assert run.query("SELECT num_train, num_test FROM clients ORDER BY client") == [(200, 0)] * 3
    data, _ = build_data(cw.load(split), load_samples(cw.load(split)), 1)
    assert sorted(data.report.indices.tolist()) == list(range(1500, 1797))
    assert cw.load(tmp_path / "run" / "config.toml").partition.options["counts"] == counts


def test_p1_clients_test_on_the_official_test_split(split: dict[str, Any], tmp_path: Path) -> None:
    split |= {
        "partition": {"name": "shards", "clients": 30},
        "evaluation": {"official_test": "clients"},
        "server_set": {"fraction": 0.0},
        "methods": [{"name": "FedAvg"}],
    }
    run = cw.Run(cw.run(split, tmp_path / "run"))
    assert {size for (size,) in run.query("SELECT num_train FROM clients")} == {50}
    assert {size for (size,) in run.query("SELECT num_test FROM clients")} == {9, 10}


def test_by_id_the_data_say_how_many_clients_there_are(
    split: dict[str, Any], tmp_path: Path
) -> None:
    split |= {
        "partition": {"name": "by_id", "minimum": 5},
        "hostile": [{"clients": [29], "attack": "sign_flip"}],
    }
    assert len(cw.Run(cw.run(split, tmp_path / "run")).query("SELECT * FROM clients")) == 30
    split["hostile"] = [{"clients": [30], "attack": "sign_flip"}]
    with pytest.raises(ConfigError, match="there are 0 to 29"):
        cw.run(split, tmp_path / "other")
    split["partition"]["minimum"] = 100
    with pytest.raises(ConfigError, match="partition: 0 of 30 ids have at least 100 samples"):
        cw.run(split, tmp_path / "other")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            ["hostile=[{clients=1000000000,attack='noise'}]"],
            "clients: 1000000000 hostile clients of 6: too many",
        ),
        (
            ["partition={name='shards',clients=6,per_client=1000000000}"],
            "partition: 6 clients with 1,000,000,000 sh",
        ),
        (
            ["model={name='mlp',hidden=[1000000,1000000]}"],
            "model: has 1,000,076,000,010 parameters: training takes 8",
        ),
        (
            ["model={name='cnn',channels=[100000,100000]}"],
            "model: convolution 2 makes 1,600,000 values of a sample",
        ),
    ],
)
def test_what_check_refuses_for_its_size(
    tiny: dict[str, Any], changes: list[str], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason.replace("[", r"\[")):
        describe(cw.load(tiny, changes))


def test_check_refuses_what_exceeds_the_memory_there_is(
    tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "memory", lambda: 10**6)
    tiny["methods"] = [{"name": "a", "training": {"epochs": 500}, "fine_tune": {"epochs": 1}}]
    said = r"methods\[0\].training.epochs = 500: the order of .* samples in that many epochs takes"
    with pytest.raises(ConfigError, match=said):
        describe(cw.load(tiny))


def test_check_says_what_nobody_holds(tmp_path: Path) -> None:
    for name, rows in {"north": 60, "south": 60, "tiny": 1}.items():
        lines = [f"{row / 7},{row % 2}" for row in range(rows)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["x,y", *lines]))
    config = {
        "name": "t",
        "rounds": 1,
        "model": "linear",
        "partition": "by_id",
        "data_dir": str(tmp_path),
    }
    config["data"] = {"name": "table", "files": "*.csv", "target": "y"}
    data, _, _, clients, *_ = describe(cw.load(config))
    assert (
        "121 samples, classification; 1 of them unused (clients with fewer than partition.minimum samples are left out)"
        in data
    )
    assert "2 with" in clients


def test_a_large_network_is_described_without_drawing_its_numbers(
    tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = describe(cw.load(tiny))
    monkeypatch.setattr(engine, "LARGE", 100)
    monkeypatch.setattr(engine, "initialised", None)  # would be called
    assert describe(cw.load(tiny)) == small


def test_errors_about_data_name_the_config_and_its_key(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(
        DataError,
        match=r"^config: data: .*train-images-idx3-ubyte.* is missing; put the four files",
    ):
        load_samples(cw.load(tiny | {"data": "mnist", "data_dir": str(tmp_path)}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda seen: None, "must return a tensor with one value per client, returned NoneType"),
        (lambda seen: torch.ones(1), r"returned \(1,\) for 2"),
        (lambda seen: torch.full((2,), torch.nan), "must be finite and not negative"),
        (lambda seen: torch.full((2,), 7.0), "above its bound 1"),
    ],
)
@pytest.mark.parametrize("measured_by", ["client", "server"])
def test_a_criterion_that_cannot_work_is_found_before_the_run(
    tiny: dict[str, Any], given, message, measured_by
) -> None:
    @cw.criterion("wrong", measured_by=measured_by, high=1.0)
    def wrong(seen: Any) -> torch.Tensor:
        """Wrong in one way or another."""
        return given(seen)

    tiny["methods"] = [{"name": "mine", "criteria": ["wrong"]}]
    with pytest.raises(ConfigError, match=rf"methods\[0\]\.criteria\[0\]: wrong .*{message}"):
        validate(cw.load(tiny), None)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda updates: updates[0, :3], "returned shapes \\(3,\\) and"),
        (lambda updates: updates.no_such, "AttributeError"),
    ],
)
def test_a_rule_that_cannot_work_is_found_before_the_run(
    tiny: dict[str, Any], result, message
) -> None:
    @cw.RULES.register("wrong", cw.needs("models"))
    def wrong(updates: torch.Tensor, weights: torch.Tensor, state: Any) -> cw.Ruled:
        """Wrong in one way or another."""
        return cw.Ruled(result(updates), weights)

    tiny["methods"] = [{"name": "mine", "rule": "wrong"}]
    with pytest.raises(ConfigError, match=rf"methods\[0\]\.rule: .*{message}"):
        validate(cw.load(tiny), None)


def test_no_client_sees_the_whole_cohort() -> None:
    with pytest.raises(ValueError, match="measure it on the server"):
        cw.criterion("mine", measured_by="client", needs={"whole_cohort"})


def test_own_arrays_are_looked_through_again_before_a_run(tiny: dict[str, Any]) -> None:
    share = (torch.zeros(4, 3), [0, 1, 0, 1])
    data = cw.FederatedData.from_clients([share], [share], report=share, names=["Oslo"])
    data.samples.inputs[1, 2] = torch.inf
    del tiny["data"], tiny["partition"]
    with pytest.raises(
        DataError,
        match=r"Oslo\): 1 of its 8 samples have inputs that are not finite",
    ):
        cw.run(tiny, data=data)

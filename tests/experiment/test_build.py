"""From a config to data: whose the official test split is, partitions that find their clients themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import clientwise as cw
from clientwise.core.objective.problem import Classification
from clientwise.data.datasets import DATASETS, DataError, digits
from clientwise.data.federated import Samples
from clientwise.errors import ConfigError
from clientwise.experiment.build import engine
from clientwise.experiment.build.data import build_data, load_samples
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
    assert run.frame("clients")[["num_train", "num_test"]].to_numpy().tolist() == [[200, 0]] * 3
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
    clients = run.frame("clients")
    assert set(clients["num_train"]) == {50}
    assert set(clients["num_test"]) == {9, 10}


def test_by_id_the_data_say_how_many_clients_there_are(
    split: dict[str, Any], tmp_path: Path
) -> None:
    split |= {
        "partition": {"name": "by_id", "minimum": 5},
        "hostile": [{"clients": [29], "attack": "sign_flip"}],
    }
    assert len(cw.Run(cw.run(split, tmp_path / "run")).frame("clients")) == 30
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
            "clients = 1000000000: 1000000000 hostile clients of 6: too many",
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
    data, clients, *_ = describe(cw.load(config))
    assert (
        "121 samples, classification of 2 classes; 1 of them unused (clients with fewer than partition.minimum "
        "samples are left out)" in data
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
        (lambda count: None, "must return a tensor with one value per client, returned NoneType"),
        (lambda count: torch.ones(count + 1), r"returned \(2,\) for 1"),
        (lambda count: torch.full((count,), torch.nan), r"wrong = nan is outside \[0, 1\]"),
        (lambda count: torch.full((count,), 7.0), r"wrong = 7 is outside \[0, 1\]"),
        (lambda count: torch.full((count,), 1 / count), "depends on the other clients: measure it"),
    ],
)
@pytest.mark.parametrize("measured_by", ["client", "server"])
def test_a_criterion_that_cannot_work_is_found_before_the_run(
    tiny: dict[str, Any], given: Any, message: str, measured_by: Any
) -> None:
    @cw.criterion("wrong", measured_by=measured_by, high=1.0)
    def wrong(seen: Any) -> torch.Tensor:
        """Wrong in one way or another."""
        return given(len(seen.num_samples if measured_by == "client" else seen.client_ids))

    tiny["methods"] = ["FedAvg", {"name": "mine", "criteria": ["dataset_size", "wrong"]}]
    with pytest.raises(ConfigError, match=rf"methods\[1\]\S*: .*{message}"):
        validate(cw.load(tiny), None)


def test_an_attribute_that_no_client_has_is_named(tiny: dict[str, Any]) -> None:
    @cw.criterion("charge", measured_by="client", high=1.0)
    def charge(clients: cw.parts.ClientFacts) -> torch.Tensor:
        """Needs an attribute."""
        return clients.attributes["battery"]

    tiny["methods"] = [{"name": "mine", "criteria": ["charge"]}]
    with pytest.raises(ConfigError, match=r"no attribute 'battery'; add it to \[attributes\]"):
        validate(cw.load(tiny), None)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda updates: updates[0, :3], "RuntimeError"),
        (lambda updates: updates.no_such, "AttributeError"),
    ],
)
def test_a_rule_that_cannot_work_is_found_before_the_run(
    tiny: dict[str, Any], result: Any, message: str
) -> None:
    @cw.parts.RULES.register("wrong", cw.parts.needs("models"))
    def wrong(updates: torch.Tensor, weights: torch.Tensor, state: Any) -> cw.parts.Ruled:
        """Wrong in one way or another."""
        return cw.parts.Ruled(result(updates), weights)

    tiny["methods"] = [{"name": "mine", "rule": "wrong"}]
    with pytest.raises(ConfigError, match=rf"methods\[0\]: .*{message}"):
        validate(cw.load(tiny), None)


def test_networks_and_data_that_are_none_are_one_line(tiny: dict[str, Any]) -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.AvgPool1d(6, 6))
    without_model = {key: value for key, value in tiny.items() if key != "model"}
    with pytest.raises(cw.ClientwiseError, match="no parameters"):
        cw.run(without_model, model=network)
    with pytest.raises(cw.ClientwiseError, match="data: must be FederatedData or Samples"):
        cw.run(tiny, data="diabetes")  # type: ignore[arg-type]


def test_labels_beyond_the_classes_are_one_line(tiny: dict[str, Any]) -> None:
    @cw.parts.DATASETS.register("four labels")
    def four_labels(folder: Any) -> cw.Samples:
        """Four labels where three classes are declared."""
        return cw.Samples(torch.zeros(40, 3), torch.arange(40) % 4, Classification(3))

    with pytest.raises(cw.ClientwiseError, match="labels go from 0 to 3"):
        cw.run(tiny | {"data": "four labels"})


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
        match=r"Oslo\): 1 of its 8 samples have inputs or targets that are not finite",
    ):
        cw.run(tiny, data=data)

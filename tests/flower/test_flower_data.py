"""The files of a real federation: written, read, and refused with a reason."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import tomli_w
import torch
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from clientwise.cli import app
from clientwise.data.datasets import DataError
from clientwise.errors import ConfigError
from clientwise.experiment.build.data import build_data, load_samples
from clientwise.experiment.checks.against_data import validate
from clientwise.experiment.config.schema import Experiment
from clientwise.experiment.load import load_experiment
from clientwise.hosts.flower.data import (
    data_held_by,
    load_npz,
    server_side,
    write_parts,
)
from clientwise.hosts.flower.server_app import registered_clients, simulated_clients
from clientwise.hosts.protocols import OwnData


@pytest.fixture
def config(tiny: dict[str, Any]) -> dict[str, Any]:
    tiny["partition"]["clients"] = 3
    tiny["flower"] = {"clients": ["a", "b", "c"], "input_shape": [1, 8, 8], "num_classes": 10}
    return tiny


@pytest.fixture
def experiment(config: dict[str, Any]) -> Experiment:
    return load_experiment(config)


def test_every_party_gets_its_part_and_no_other(
    config: dict[str, Any], experiment: Experiment, tmp_path: Path
) -> None:
    paths = write_parts(config, tmp_path / "data")
    assert [path.name for path in paths] == ["a.npz", "b.npz", "c.npz", "server.npz"]
    whole, _ = build_data(experiment, load_samples(experiment), 1)
    for client, path in enumerate(paths[:3]):
        part = data_held_by(experiment, {client: load_npz(str(path))}, {})
        assert part.num_clients == 3
        sizes = [size if k == client else 0 for k, size in enumerate(whole.train.sizes.tolist())]
        assert part.train.sizes.tolist() == sizes
        mine, theirs = part.train.slice(client), whole.train.slice(client)
        assert torch.equal(part.train.targets[mine], whole.train.targets[theirs])
        assert torch.equal(
            part.samples.batch(part.train.indices[mine]),
            whole.samples.batch(whole.train.indices[theirs]),
        )
    server = server_side(experiment, str(paths[3]))
    assert server.train.sizes.sum() == server.test.sizes.sum() == 0
    assert server.weigh is not None
    assert whole.weigh is not None
    assert torch.equal(server.weigh.targets, whole.weigh.targets)


def test_a_server_without_samples_is_told_what_it_cannot_do(experiment: Experiment) -> None:
    data = server_side(experiment, "")
    assert data.weigh is None
    assert data.report is None
    with pytest.raises(ConfigError, match=r"methods\[1\]: there are no samples to weigh by"):
        validate(experiment, data)


def test_nobody_contributes_samples_in_a_deployment(config: dict[str, Any]) -> None:
    config["server_set"] = {"source": "contributed"}
    with pytest.raises(
        ConfigError, match=r"server_set.source: no sample leaves a client of a deployment"
    ):
        server_side(load_experiment(config), "")


def test_attributes_of_samples_arrive(experiment: Experiment) -> None:
    own = OwnData(
        (numpy.zeros((2, 1, 8, 8)), numpy.array([0, 9])),
        (numpy.zeros((1, 1, 8, 8)), numpy.array([3])),
        {"blurry": numpy.array([1.0, 0.0])},
    )
    data = data_held_by(experiment, {1: own}, {})
    indices = data.train.indices[data.train.slice(1)]
    assert data.samples.sample_attributes["blurry"][indices].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (
            numpy.zeros((2, 8, 8)),
            numpy.array([0, 1]),
            r"samples of shape \(8, 8\), but flower.input_shape",
        ),
        (
            numpy.zeros((2, 1, 8, 8)),
            numpy.array([0.0, 1.0]),
            "targets of type float64, but flower.num_classes = 10",
        ),
    ],
)
def test_data_that_do_not_fit_are_refused(
    experiment: Experiment, inputs: Any, targets: Any, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        data_held_by(experiment, {0: OwnData((inputs, targets), (inputs, targets))}, {})


def test_a_deployment_needs_names_and_a_shape(tiny: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"flower.clients: is needed in a deployment(.|\n)*flower.input_shape"
    ):
        server_side(load_experiment(tiny), "")
    with pytest.raises(
        ConfigError, match=r"flower.clients: 0 names for the 6 clients of the partition"
    ):
        write_parts(tiny, tmp_path)


def test_a_deployment_is_checked_without_data_and_partition(
    config: dict[str, Any], tmp_path: Path
) -> None:
    write_parts(config, tmp_path / "data")
    server = tmp_path / "data" / "server.npz"
    file = tmp_path / "deployed.toml"
    deployed = {key: value for key, value in config.items() if key not in ("data", "partition")}
    file.write_text(tomli_w.dumps(deployed))

    def said(*options: str) -> str:
        done = CliRunner().invoke(app, ["check", str(file), *options])
        return done.output if done.exit_code == 0 else str(done.exception)

    assert "3 with data of their own, elsewhere" in said("--server-data", str(server))
    assert "(in a deployment: --server-data)" in said()
    file.write_text(tomli_w.dumps(deployed | {"methods": [{"name": "FedAvg"}]}))
    assert "ok: " in said()
    file.write_text(tomli_w.dumps(deployed | {"flower": {"clients": ["a"]}}))
    missing = said("--server-data", str(tmp_path / "later.npz"))
    assert "flower.input_shape: is needed in a deployment" in missing


def test_a_node_is_the_client_under_whose_name_it_was_registered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = [
        ("b", 11, "1"),
        ("ward-a", 12, "2"),
        ("ward-A", 13, "3"),
        ("", 14, "4"),
        ("c", 16, "6"),
        ("c", 15, "5"),
    ]
    grid: Any = SimpleNamespace(
        get_nodes=lambda: [
            SimpleNamespace(name=name, node_id=node, registered_at=at) for name, node, at in nodes
        ]
    )
    connected = registered_clients(grid, ["ward-a", "b", "c"])
    assert (
        connected() == connected() == {1: 11, 0: 12, 2: 16}
    )  # of the two that are called c, the newer key
    said = [record.message for record in caplog.records]
    assert said == [
        "node 13 is registered as 'ward-A', which is not in flower.clients; did you mean 'ward-a'?",
        "node 14 is registered as '', which is not in flower.clients; known: b, c, ward-a",
        "two nodes are registered as c: node 16 is used, unregister node 15",
    ]


def test_simulated_clients_are_dealt_out() -> None:
    ids: list[int] = []
    connected = simulated_clients(SimpleNamespace(get_node_ids=lambda: set(ids)), 5)  # type: ignore[arg-type]
    assert connected() == {}
    ids += [9, 7]
    assert connected() == {0: 7, 1: 9, 2: 7, 3: 9, 4: 7}

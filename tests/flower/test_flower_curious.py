"""What a server that deviates reads from clients that answer all requests exactly (docs/privacy.md)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from curious_server import (
    NEAR,
    Told,
    how_many_are_right,
    patients_in_traps,
    read_patients,
    trap_model,
)
from flwr.app import Context, Message, RecordDict
from grid import become_task
from sklearn.datasets import load_breast_cancer

from clientwise.core.objective.loss import CrossEntropy
from clientwise.core.types import Task
from clientwise.experiment.load import load_experiment
from clientwise.flower import client_app, load_npz, write_parts
from clientwise.hosts.flower.wire import (
    ARRAYS,
    NUMBERS,
    pack,
    unpack,
    write_request,
)
from clientwise.hosts.protocols import Request

UNITS = 32
TRAINED = 5  # rounds
NOISE = {"epochs": 1, "batch_size": "full", "sample_clip": 1.0, "sample_noise": 3.2}
HOSPITALS = ["Cleveland", "Hungarian", "Switzerland", "VA"]
CONFIG: dict[str, Any] = {
    "name": "curious",
    "rounds": TRAINED,
    "device": "cpu",
    "model": "linear",
    "training": {"epochs": 1, "batch_size": 20, "learning_rate": 0.1},
    "flower": {"clients": HOSPITALS, "num_classes": 2},
    "methods": [{"name": "FedAvg"}],
    "data": "digits",
    "partition": {"name": "iid", "clients": 4},
}


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heart patients of Cleveland; scikit-learn's breast cancer patients without a data folder."""
    folder = tmp_path_factory.mktemp("data")
    if (Path(os.environ.get("CLIENTWISE_DATA", "")) / "heart").is_dir():
        return write_parts(CONFIG | {"data": "heart", "partition": "by_id"}, folder)[0]
    inputs, targets = load_breast_cancer(return_X_y=True)
    inputs = ((inputs - inputs.mean(0)) / inputs.std(0)).astype("float32")
    arrays = {"train_inputs": inputs[60:300], "train_targets": targets[60:300]}
    arrays |= {"test_inputs": inputs[:60], "test_targets": targets[:60]}
    numpy.savez(folder / "own.npz", **arrays)
    return folder / "own.npz"


@pytest.fixture(scope="module")
def config(hospital: Path) -> dict[str, Any]:
    """An experiment for samples as this hospital has them."""
    shape = list(load_npz(str(hospital)).train[0].shape[1:])
    return CONFIG | {"flower": CONFIG["flower"] | {"input_shape": shape}}


def reply(config: dict[str, Any], path: Path, content: RecordDict, kind: str) -> RecordDict:
    """The answer of a hospital's node, which starts with nothing in memory, as in a deployment."""
    become_task()
    message = Message(content, 1, kind)
    message.metadata.__dict__["_message_id"] = "asked"
    context = Context(1, 2, {"data": str(path)}, RecordDict(), {})
    answer = client_app(config)(message, context)
    assert not answer.has_error(), answer.error
    return answer.content


@pytest.mark.slow
def test_evaluations_give_test_rows_away(config: dict[str, Any], hospital: Path) -> None:
    def ask(models: Tensor) -> Told:
        request = write_request(Request(0, 1, round_num=1), pack(models))
        content = reply(config, hospital, request, "evaluate")
        numbers = content.metric_records[NUMBERS]
        counts = unpack(content.array_records[ARRAYS]).numpy()
        return Told(int(numbers["num_samples"]), numpy.array(numbers["losses"]), counts)

    inputs, targets = (torch.as_tensor(part) for part in load_npz(str(hospital)).test)
    found = read_patients(ask, inputs.shape[1], outputs=1)
    assert how_many_are_right(found, inputs, targets) > len(targets) / 2


def rows_from_traps(config: dict[str, Any], hospital: Path) -> tuple[int, int]:
    """Training rows read with the diagnosis in the requests of a run, and all training rows.

    Small class weights keep the made-up model as it is while it is trained.
    """
    network = config | {
        "model": {"name": "mlp", "hidden": [UNITS]},
        "methods": [{"name": "AdaFed", "adapt_loss": "class_weights"}],
    }
    (method,) = load_experiment(network).build_methods()
    inputs, targets = (torch.as_tensor(part) for part in load_npz(str(hospital)).train)
    chance = numpy.random.default_rng(0)
    direction = 0.1 * chance.normal(size=inputs.shape[1])
    direction[0] = 1.0
    direction /= numpy.linalg.norm(direction)
    requests = 2 * TRAINED
    quantiles = (numpy.arange(requests * UNITS) + 0.5) / (requests * UNITS)
    thresholds = torch.special.ndtri(torch.from_numpy(quantiles)).numpy().reshape(requests, UNITS)
    truth = torch.cat([inputs.double(), targets.double()[:, None]], 1)
    loss = CrossEntropy(class_weights=(0.01, 0.01))
    read = set()
    for number, some in enumerate(thresholds):
        sent = trap_model(direction, some)
        task = Task(1 + number // 2, method.training, loss, method.client_criteria)
        content = reply(network, hospital, write_request(Request(0, 1, task), pack(sent)), "train")
        change = unpack(content.array_records[ARRAYS]) - sent
        found = patients_in_traps(change, UNITS)
        near = (found[:, None] - truth[None]).abs().amax(2) < NEAR
        read.update(near.any(0).nonzero().flatten().tolist())
    return len(read), len(targets)


def test_noise_of_single_samples_hides_rows_that_a_made_up_network_reads(
    config: dict[str, Any], hospital: Path
) -> None:
    read, patients = rows_from_traps(config, hospital)
    assert read > patients / 10
    read, _ = rows_from_traps(config | {"training": NOISE}, hospital)
    assert read == 0

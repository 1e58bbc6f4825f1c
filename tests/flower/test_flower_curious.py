"""The server's administrator changed the server and wants rows of patients; nodes run the approved app."""

from __future__ import annotations

import hmac
import math
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from approvals import approve_once
from curious_server import (
    NEAR,
    STEEP,
    Told,
    how_many_are_right,
    linear_model,
    patient_in_updates,
    patients_in_traps,
    read_patients,
    trap_model,
)
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from sklearn.datasets import load_breast_cancer

from clientwise.core.objective.loss import CrossEntropy
from clientwise.core.objective.problem import Classification
from clientwise.core.seeding import standard_normal
from clientwise.core.types import Evaluation, Task
from clientwise.experiment.load import load_experiment
from clientwise.flower import client_app, load_npz, write_parts
from clientwise.hosts.deployment.ledger import read as read_ledger
from clientwise.hosts.deployment.small_numbers import USUAL_CELL, Release, in_groups, loss_deviation
from clientwise.hosts.flower.client import answer
from clientwise.hosts.flower.client_app import _engine_of_node
from clientwise.hosts.flower.wire import (
    ARRAYS,
    NUMBERS,
    Request,
    pack,
    unpack,
    write_request,
)

ROUNDS = 100
HOSPITALS = ["Cleveland", "Hungarian", "Switzerland", "VA"]
CONFIG: dict[str, Any] = {
    "name": "curious",
    "rounds": ROUNDS,
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


class Node:
    """A hospital's node: the real client app, asked one message after the other."""

    def __init__(self, config: dict[str, Any], path: Path, **settings: Any) -> None:
        self.config = config
        self.settings = {"data": str(path), **settings}
        approve_once(settings["ledger"], config)
        self.messages = 0
        self.refusals: list[str] = []

    def reply(self, content: RecordDict, kind: str = "evaluate") -> Message:
        """The node's reply. Every message starts with nothing in memory, as in a deployment."""
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        message = Message(content, 1, kind)
        message.metadata.__dict__["_message_id"] = "asked"
        context = Context(1, 2, dict(self.settings), RecordDict(), {})
        return client_app(self.config)(message, context)

    def ask(self, models: Tensor) -> Told | None:
        """Evaluate models in the next round; after the last, in the first round again."""
        round_num = 1 + self.messages % ROUNDS
        self.messages += 1
        reply = self.reply(write_request(Request(0, 1, round_num=round_num), pack(models)))
        if reply.has_error():
            self.refusals.append(reply.error.reason)
            return None
        return told(reply.content)


def told(content: RecordDict) -> Told:
    numbers = content.metric_records[NUMBERS]
    counts = unpack(content.array_records[ARRAYS]).numpy()
    return Told(int(numbers["num_samples"]), numpy.array(numbers["losses"]), counts)


def attacked(
    ask: Callable[[Tensor], Told | None], path: Path, *, at_once: bool, most: int = 10**6
) -> tuple[int, int]:
    """Patients that the attack read, and all patients of the test set."""
    inputs, targets = (torch.as_tensor(part) for part in load_npz(str(path)).test)
    found = read_patients(ask, inputs.shape[1], OUTPUTS, at_once=at_once, most=most)
    return how_many_are_right(found, inputs, targets), len(targets)


OUTPUTS = 1  # the logit of the second of two classes


@pytest.mark.slow
def test_exact_answers_give_patients_away(config: dict[str, Any], hospital: Path) -> None:
    """The attack works where a node answers everything exactly, as every node once did."""
    engine_of = partial(
        _engine_of_node, load_experiment(config).to_toml(), lambda: load_npz(str(hospital))
    )

    def ask(models: Tensor) -> Told:
        return told(answer(write_request(Request(0, 1, round_num=1), pack(models)), engine_of))

    read, patients = attacked(ask, hospital, at_once=True)
    assert read > patients / 2
    read, _ = attacked(ask, hospital, at_once=False, most=110)
    assert read >= 1


def test_a_node_gives_no_patient_away(
    config: dict[str, Any], hospital: Path, tmp_path: Path
) -> None:
    node = Node(config, hospital, ledger=str(tmp_path / "ledger.jsonl"))
    read, _ = attacked(node.ask, hospital, at_once=True)
    assert read == 0
    assert "15000 models to evaluate in round 1" in node.refusals[0]

    patient = Node(config, hospital, ledger=str(tmp_path / "another.jsonl"))
    read, _ = attacked(patient.ask, hospital, at_once=False, most=200)
    assert read == 0
    assert "all 110 evaluations of the run are used up" in patient.refusals[-1]
    entries = read_ledger(tmp_path / "another.jsonl")
    evaluated = [name for entry in entries for name in entry.get("models", [])]
    assert len(evaluated) == len(set(evaluated)) == 110


@pytest.mark.slow
def test_counts_of_few_patients_stay_hidden(
    config: dict[str, Any], hospital: Path, tmp_path: Path
) -> None:
    """Patients by the value of one attribute and by class, from thresholds on that attribute.

    The whole run's evaluations tell no more than the best guess that ignores them.
    """
    inputs, targets = load_npz(str(hospital)).test
    values = numpy.unique(inputs[:, 0])[:50]
    direction = numpy.eye(inputs.shape[1])[0]
    truth = [
        numpy.sum((inputs[:, 0] == one) & (targets == ill)) for one in values for ill in (0, 1)
    ]

    def came_back(ask: Callable[[Tensor], Told | None]) -> int:
        middles = numpy.concatenate([[-9.0], (values[1:] + values[:-1]) / 2])
        sums = numpy.zeros((2, len(values) + 1))
        for turn in range(2):  # two models that answer alike, for the mean of their noise
            for place, middle in enumerate(middles):
                found = ask(linear_model(direction, middle + 1e-6 * turn, OUTPUTS)[None])
                if found is not None:
                    sums[:, place] += found.counts[0, :, 1] / 2
        estimates = (sums[:, :-1] - sums[:, 1:]).round().T.ravel()
        return int(sum(estimates == truth))

    engine_of = partial(
        _engine_of_node, load_experiment(config).to_toml(), lambda: load_npz(str(hospital))
    )

    def exact(models: Tensor) -> Told:
        return told(answer(write_request(Request(0, 1, round_num=1), pack(models)), engine_of))

    assert came_back(exact) >= len(truth) - 2  # the last value's counts include all above it
    node = Node(config, hospital, ledger=str(tmp_path / "ledger.jsonl"))
    best_guess = max(truth.count(one) for one in set(truth))
    assert came_back(node.ask) <= best_guess


def test_what_a_whole_run_tells_of_one_patient() -> None:
    """All evaluations of a run ask for one bit of one patient, and all other rows are known.

    Gaussian differential privacy with μ = 1 bounds the attacker at Φ(1/2) = 69%; a coin has 50%.
    """
    models = 30
    trials = 30
    right = 0
    for trial in range(trials):
        for bit in (0, 1):
            release = Release(5, models, f"key {trial} {bit}".encode())
            names = [str(number) for number in range(models)]
            said = release.evaluation(results_with(bit, models), Classification(2), names)
            loss = (said.losses.mean() - LOSSES.mean()) / LOSSES.std()
            share = said.counts[:, 0, 1].double().mean() / 30 - 0.5
            right += int((loss + 2 * share > 0) == bool(bit))
    chance_of_error = 3 * (0.25 / (2 * trials)) ** 0.5
    assert right / (2 * trials) < 0.69 + chance_of_error


def test_noise_of_results_is_drawn_from_a_hash_of_the_key() -> None:
    """A generator for statistics, such as PCG64, does not hide its state."""
    exact = results_with(0, models=1)
    said = Release(5, 1, b"key").evaluation(exact, Classification(2), ["model"])
    key = hmac.digest(b"key", b"model", "sha256")
    noise = loss_deviation(2, 50, 1) * float(standard_normal(key, "loss", 1))
    expected = min(max(float(exact.losses) + noise, 0.0), 3 * math.log(2))
    assert float(said.losses) == pytest.approx(expected, abs=0.001)


LOSSES = torch.tensor([0.0, 2.0]).double()  # of a patient whom a model takes for well, for ill


def results_with(bit: int, models: int) -> Evaluation:
    """Models that take half of 30 + 20 patients for ill, and one patient of class 0 if `bit`."""
    right_of_0 = 15 - bit
    counts = torch.tensor([[right_of_0, 30 - right_of_0], [10, 10]]).expand(models, 2, 2)
    losses = torch.cat([LOSSES.repeat(24), LOSSES[[0]], LOSSES[[bit]]]).expand(models, 50)
    mean = losses.mean(1, keepdim=True)
    exact = Evaluation(torch.tensor([50]), mean, mean, counts)
    return replace(exact, sample_losses=losses)


def test_the_training_loss_tells_no_attribute(
    config: dict[str, Any], hospital: Path, tmp_path: Path
) -> None:
    """A hidden unit that is active for one patient alone: the loss is that patient's attribute.

    All others have a logit of zero and lose ln 2 each. The attacker knows the threshold here; by
    bisection it costs a few messages.
    """
    network = config | {"model": {"name": "mlp", "hidden": [1]}}
    own = in_groups(load_npz(str(hospital)), USUAL_CELL)
    inputs = torch.as_tensor(own.train[0]).double()
    patients, attributes = inputs.shape
    gaps = inputs.sort(0).values[-1] - inputs.sort(0).values[-2]
    place = int(gaps.argmax())
    target, second = inputs[:, place].sort(descending=True).values[:2]
    threshold = float(target + second) / 2
    (method,) = load_experiment(network).build_methods()
    task = Task(1, method.training, CrossEntropy(), method.client_criteria)
    others = (patients - 1) * math.log(2)

    def estimates(loss_of: Callable[[RecordDict], float]) -> list[float]:
        found = []
        for sign in (1.0, -1.0):  # wrong for one of the two classes
            # Steep in the first layer, so that a step of training hardly turns it.
            hidden = 100 * STEEP * numpy.append(numpy.eye(attributes)[place], -threshold)
            model = torch.tensor([*hidden, sign / 100, 0.0]).float()
            loss = loss_of(write_request(Request(0, 1, task), pack(model)))
            found.append(threshold + (loss * patients - others) / STEEP)
        return found

    engine_of = partial(_engine_of_node, load_experiment(network).to_toml(), lambda: own)

    def in_two_digits(request: RecordDict) -> float:
        return float(f"{answer(request, engine_of).metric_records[NUMBERS]['training_loss']:.2g}")

    node = Node(network, hospital, ledger=str(tmp_path / "ledger.jsonl"))

    def by_the_node(request: RecordDict) -> float:
        return node.reply(request, "train").content.metric_records[NUMBERS]["training_loss"]

    assert min(abs(one - target) for one in estimates(in_two_digits)) < 5 * NEAR
    assert all(math.isnan(one) for one in estimates(by_the_node))


def test_subnormal_numbers_take_no_longer(
    config: dict[str, Any], hospital: Path, tmp_path: Path
) -> None:
    """On an x86 they do: 40 rows that a made-up model turns into such took 2.6 times as long."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    torch.set_flush_denormal(False)
    tiny = "torch.tensor([1e-30]) * torch.tensor([1e-10])"
    loader = tmp_path / "data.py"
    loader.write_text(
        "import torch\nfrom clientwise.flower import load_npz\n"
        f"def load(path):\n    assert ({tiny}).item() == 0\n    return load_npz(path)\n"
    )
    node = Node(config, hospital, ledger=str(tmp_path / "ledger.jsonl"), loader=str(loader))
    model = linear_model(numpy.ones(len(columns(hospital))), 0.0, OUTPUTS)[None]
    assert node.ask(model) is not None, node.refusals
    assert (torch.tensor([1e-30]) * torch.tensor([1e-10])).item() > 0  # as before


def test_trained_models_are_not_protected(
    config: dict[str, Any], hospital: Path, tmp_path: Path
) -> None:
    """What docs/security.md says is open: training on made-up models gives training rows away."""
    node = Node(config, hospital, ledger=str(tmp_path / "ledger.jsonl"))
    (method,) = load_experiment(config).build_methods()
    inputs = torch.as_tensor(load_npz(str(hospital)).train[0])
    place = max(range(inputs.shape[1]), key=lambda column: len(inputs[:, column].unique()))
    others = [column for column in range(inputs.shape[1]) if column != place]
    steep = 1e4 * numpy.eye(inputs.shape[1])[place]

    def change(round_num: int, threshold: float) -> Tensor:
        sent = torch.from_numpy(numpy.append(steep, -1e4 * threshold).astype("float32"))
        task = Task(round_num, method.training, CrossEntropy(), method.client_criteria)
        reply = node.reply(write_request(Request(0, 1, task), pack(sent)), "train")
        return unpack(reply.content.array_records[ARRAYS]) - sent

    read = set()
    for attempt in range(40):  # the batches follow from the node's secret, and differ in every test
        round_num = 1 + attempt % 10
        threshold = -0.4 + 0.025 * attempt
        low, high = change(round_num, threshold), change(round_num, threshold + 0.02)
        found = patient_in_updates(low, high, method.training.learning_rate / 20)
        near = (found - inputs.double()).abs()[:, others].amax(1) < NEAR
        read.update(near.nonzero().flatten().tolist())
        if read:
            break
    assert read, "updates have become safe: change docs/security.md"


UNITS = 32
TRAINED = 5  # rounds
NOISE = {"epochs": 1, "batch_size": "full", "sample_clip": 1.0, "sample_noise": 3.2}


def rows_from_traps(config: dict[str, Any], hospital: Path, ledger: Path) -> tuple[int, int]:
    """Training rows read with the diagnosis in all requests of a run, and all training rows.

    The network, its training and the adapted loss are those that `clientwise new` once wrote. Small
    class weights keep the made-up model as it is while it is trained.
    """
    network = config | {
        "rounds": TRAINED,
        "model": {"name": "mlp", "hidden": [UNITS]},
        "methods": [{"name": "AdaFed", "adapt_loss": "class_weights"}],
    }
    node = Node(network, hospital, ledger=str(ledger))
    (method,) = load_experiment(network).build_methods()
    own = in_groups(load_npz(str(hospital)), USUAL_CELL)
    inputs, targets = (torch.as_tensor(part) for part in own.train)
    chance = numpy.random.default_rng(0)
    direction = 0.1 * chance.normal(size=inputs.shape[1])
    direction[0] = 1.0
    direction /= numpy.linalg.norm(direction)
    requests = 2 * TRAINED
    quantiles = (numpy.arange(requests * UNITS) + 0.5) / (requests * UNITS)
    thresholds = torch.special.ndtri(torch.from_numpy(quantiles)).numpy().reshape(requests, UNITS)
    read = set()
    for number, some in enumerate(thresholds):
        sent = trap_model(direction, some)
        task = Task(
            1 + number // 2, method.training, CrossEntropy((0.01, 0.01)), method.client_criteria
        )
        reply = node.reply(write_request(Request(0, 1, task), pack(sent)), "train")
        change = unpack(reply.content.array_records[ARRAYS]) - sent
        found = patients_in_traps(change, UNITS)
        truth = torch.cat([inputs.double(), targets.double()[:, None]], 1)
        near = (found[:, None] - truth[None]).abs().amax(2) < NEAR
        read.update(near.any(0).nonzero().flatten().tolist())
    return len(read), len(targets)


def test_noise_of_single_samples_hides_rows_that_a_made_up_network_reads(
    config: dict[str, Any], hospital: Path, tmp_path: Path
) -> None:
    """docs/security.md has the numbers of all four hospitals."""
    read, patients = rows_from_traps(config, hospital, tmp_path / "open.jsonl")
    assert read > patients / 10
    private = config | {"training": NOISE}
    read, _ = rows_from_traps(private, hospital, tmp_path / "private.jsonl")
    assert read == 0


def test_the_server_cannot_compute_the_noise(
    config: dict[str, Any], hospital: Path, tmp_path: Path
) -> None:
    """It knows the experiment and the seed. A repeated request gets the same noise."""
    private = config | {"training": NOISE}
    (method,) = load_experiment(private).build_methods()
    task = Task(1, method.training, CrossEntropy(), method.client_criteria)
    request = write_request(Request(0, 1, task), pack(torch.zeros(1 + len(columns(hospital)))))

    def update_of(ledger: str) -> Tensor:
        node = Node(private, hospital, ledger=str(tmp_path / ledger))
        return unpack(node.reply(request, "train").content.array_records[ARRAYS])

    own = in_groups(load_npz(str(hospital)), USUAL_CELL)
    engine_of = partial(_engine_of_node, load_experiment(private).to_toml(), lambda: own)
    by_seed = unpack(answer(request, engine_of).array_records[ARRAYS])
    first = update_of("one.jsonl")
    assert torch.equal(first, update_of("one.jsonl"))
    deviation = 2 * NOISE["sample_noise"] * 0.1 / len(own.train[0])
    for other in (by_seed, update_of("another.jsonl")):
        assert float((first - other).std()) > deviation


def columns(hospital: Path) -> Any:
    return load_npz(str(hospital)).train[0][0]

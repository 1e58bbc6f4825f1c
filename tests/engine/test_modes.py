"""However clients are trained, one by one or many at once, in chunks or lanes: the same result but for rounding."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import clientwise as cw
from clientwise.core.objective.loss import CrossEntropy, Loss, RobustLoss
from clientwise.core.types import LocalTraining, Task
from clientwise.data.federated import FederatedData
from clientwise.engine.device import Mode, Precision
from clientwise.engine.executor import DeviceExecutor
from clientwise.engine.jobs import EvaluateJob, TrainJob
from clientwise.engine.local import LocalEngine
from clientwise.engine.stacked import backend
from clientwise.engine.stacked.backend import StackedTrainer
from clientwise.engine.stacked.network import StackedNetwork
from clientwise.errors import ClientwiseError
from clientwise.models.networks import cnn, linear, mlp
from clientwise.registry import Part

pytestmark = pytest.mark.bits

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLASSES = 4
PLAIN = CrossEntropy()
WEIGHTED = CrossEntropy(class_weights=(0.5, 1.0, 2.0, 4.0))
NETWORKS = {
    "linear": lambda: linear((2, 6, 6), CLASSES),
    "mlp": lambda: mlp((2, 6, 6), CLASSES, hidden=[9, 7]),
    "cnn": lambda: cnn((2, 6, 6), CLASSES, channels=[3], kernel=3, dense=8),
    "cnn without activation": lambda: cnn((2, 6, 6), CLASSES, channels=[3, 4], kernel=3, dense=8, activation=False),
    "dropout": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, padding="valid"), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(48, 6), nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(6, CLASSES),
    ),
    "strides and averages": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False), nn.Tanh(), nn.AvgPool2d(3), nn.Flatten(),
        nn.Linear(3, CLASSES),
    ),
    "group norm": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES)
    ),
    "own module": lambda: Residual(),
    "one activation for all": lambda: one_activation(),
}  # fmt: skip
TRAININGS = {
    "sgd": {},
    "full batch": {"batch_size": None},
    "momentum": {"optimizer": Part("sgd", {"momentum": 0.9})},
    "weight decay": {"optimizer": Part("sgd", {"weight_decay": 0.1})},
    "proximal": {"proximal": 0.5},
    "adam": {"optimizer": "adam", "learning_rate": 0.01},
}


def one_activation() -> nn.Sequential:
    """Layers without parameters that occur twice. Without the second ReLU, outputs differ by little."""
    relu, drop = nn.ReLU(), nn.Dropout(0.3)
    last = nn.Linear(9, CLASSES)
    nn.init.normal_(last.weight, std=0.01)
    dense = nn.Linear(72, 9), relu, drop, nn.Linear(9, 9), relu, drop
    return nn.Sequential(nn.Flatten(), *dense, last)


class Residual(nn.Module):
    """A network that is no chain of layers, with dropout inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.drop = (
            nn.Linear(72, 72),
            nn.Linear(72, CLASSES),
            nn.Dropout(0.4),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        return self.second(x + self.drop(torch.relu(self.first(x))))


def clients(sizes: list[int], seed: int = 0) -> FederatedData:
    random = torch.Generator().manual_seed(seed)

    def block(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.randint(0, 255, (size, 2, 6, 6), generator=random, dtype=torch.uint8)
        return images, torch.randint(0, CLASSES, (size,), generator=random)

    data = FederatedData.from_clients(
        [block(size) for size in sizes],
        [block(3) for _ in sizes],
        report=block(5),
        num_classes=CLASSES,
    )
    return cw.FederatedData(**{**vars(data), "samples": scaled(data)})


def scaled(data: FederatedData) -> Any:
    from dataclasses import replace

    return replace(data.samples, scale=1 / 255)


def train(
    network: nn.Module,
    sizes: list[int],
    mode: Mode,
    loss: Loss = PLAIN,
    chunk_size: int | None = None,
    **training: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Models and losses of all clients, in the order of their numbers."""
    data, network = clients(sizes), copy.deepcopy(network)
    executor = DeviceExecutor(data.samples, network, DEVICE, mode=mode, precision="float32")
    assert executor.mode == mode
    engine = LocalEngine(data, network, seed=1, executor=executor, chunk_size=chunk_size)
    original = executor.train

    def strict(
        jobs: Any,
    ) -> Any:  # a chunk that fails would be tried in halves, and nobody would know
        for result in original(jobs):
            if isinstance(result, Exception):
                raise result
            yield result

    executor.train = strict  # type: ignore[method-assign]
    options = {"epochs": 2, "batch_size": 4, "learning_rate": 0.1} | training
    task = Task(3, LocalTraining(**options), loss, ())
    models, losses = {}, {}
    for updates in engine.train(range(len(sizes)), engine.initial_model, task):
        models |= dict(zip(updates.client_ids, updates.models.cpu(), strict=True))
        losses |= dict(zip(updates.client_ids, updates.training_loss, strict=True))
    assert sorted(models) == list(range(len(sizes)))
    return torch.stack([models[client] for client in sorted(models)]), torch.stack(
        [losses[k] for k in sorted(losses)]
    )


def assert_same(first: tuple[torch.Tensor, ...], second: tuple[torch.Tensor, ...]) -> None:
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-5, check_dtype=False)


SIZES = [10, 3, 4, 0, 9, 10]
OTHER_MODES = ["stacked", "graph"] if DEVICE.type == "cuda" else ["stacked"]


@pytest.mark.parametrize("mode", OTHER_MODES)
@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_mode_agrees_with_the_loop(name: str, training: dict[str, Any], mode: Mode) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]()
    loop = train(network, SIZES, "loop", WEIGHTED, **training)
    assert loop[0].std(0).max() > 1e-3  # the clients did learn, each its own
    assert_same(train(network, SIZES, mode, WEIGHTED, **training), loop)


@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=7).filter(any),
    epochs=st.integers(1, 3),
    batch_size=st.none() | st.integers(1, 13),
    momentum=st.sampled_from([0.0, 0.5]),
    chunk_size=st.none() | st.integers(1, 7),
    name=st.sampled_from(["mlp", "dropout"]),
)
@settings(max_examples=25)
def test_whatever_the_sizes_and_chunks(
    sizes: list[int],
    epochs: int,
    batch_size: int | None,
    momentum: float,
    chunk_size: int | None,
    name: str,
) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]()
    options = {"epochs": epochs, "batch_size": batch_size}
    options["optimizer"] = Part("sgd", {"momentum": momentum})
    assert_same(
        train(network, sizes, "stacked", chunk_size=chunk_size, **options),
        train(network, sizes, "loop", **options),
    )


def test_regression_and_its_robust_loss_agree() -> None:
    torch.manual_seed(0)
    inputs, values = torch.randn(30, 5), torch.randn(30, 2)
    blocks = [(inputs[k : k + 10], values[k : k + 10]) for k in (0, 10, 20)]
    data = FederatedData.from_clients(blocks, blocks)
    network = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    task = Task(1, LocalTraining(2, 4), RobustLoss(shape=1.0, scale=0.5), ())
    results = []
    for mode in ("loop", "stacked"):
        module = copy.deepcopy(network)
        executor = DeviceExecutor(data.samples, module, DEVICE, mode=mode, precision="float32")  # type: ignore[arg-type]
        engine = LocalEngine(data, module, seed=1, executor=executor)
        results.append(
            torch.cat(
                [
                    updates.models.cpu()
                    for updates in engine.train(range(3), engine.initial_model, task)
                ]
            )
        )
        evaluation = engine.evaluate(range(3), results[-1])
        results.append(torch.cat([evaluation.values, evaluation.losses]))
    assert_same((results[0], results[1]), (results[2], results[3]))


@pytest.mark.parametrize("name", ["mlp", "cnn", "own module"])
def test_evaluation_agrees(name: str) -> None:
    torch.manual_seed(0)
    network, data = NETWORKS[name](), clients([6, 5, 4])
    evaluations = []
    for mode in ("loop", "stacked"):
        module = copy.deepcopy(network)
        executor = DeviceExecutor(data.samples, module, DEVICE, mode=mode, precision="float32")  # type: ignore[arg-type]
        executor._evaluates_stacked = mode == "stacked"
        engine = LocalEngine(data, module, seed=1, executor=executor)
        models = engine.initial_model + torch.linspace(0, 1, 5, device=DEVICE)[:, None]
        evaluations.append(engine.evaluate(range(3), models))
    loop, together = evaluations
    assert torch.equal(loop.counts, together.counts)
    assert_same(
        (loop.values, loop.losses, loop.num_samples),
        (together.values, together.losses, together.num_samples),
    )


def test_networks_that_cannot_be_stacked_say_why() -> None:
    samples = clients([4]).samples
    batch_norm = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, CLASSES)
    )
    executor = DeviceExecutor(samples, batch_norm, DEVICE)
    assert executor.mode == ("graph" if DEVICE.type == "cuda" else "loop")
    assert "batch norm" in str(executor)

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent, self.last = nn.LSTM(12, 5), nn.Linear(5, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.recurrent(x.flatten(2).transpose(1, 2).reshape(6, -1, 12))[0][-1])

    executor = DeviceExecutor(samples, Rows(), DEVICE)
    assert executor.mode != "stacked"
    assert "cannot be stacked" in str(executor)


class MeanOfBatch(nn.Module):
    """Compares the samples of a batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


def zeros(inputs: int) -> nn.Linear:
    """A last layer as many networks begin with: its outputs show nothing of the layers before it."""
    layer = nn.Linear(inputs, CLASSES)
    nn.init.zeros_(layer.weight)
    return layer


def with_shared_weights() -> nn.Module:
    one, two = nn.Linear(9, 9), nn.Linear(9, 9)
    two.weight = one.weight
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 9), one, two, nn.Linear(9, CLASSES))


def with_one_layer_twice() -> nn.Module:
    twice = nn.Linear(9, 9)
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 9), twice, twice, nn.Linear(9, CLASSES))


def with_a_hook() -> nn.Module:
    network = linear((2, 6, 6), CLASSES)
    last = [layer for layer in network.modules() if isinstance(layer, nn.Linear)][-1]
    last.register_forward_hook(lambda module, inputs, output: 1.01 * output)
    return network


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (with_shared_weights, "share parameters"),
        (with_one_layer_twice, "share parameters"),
        (with_a_hook, "hooks"),
        (
            lambda: nn.Sequential(nn.Flatten(), MeanOfBatch(), zeros(72)),
            "depend on the other samples of a batch",
        ),
        (
            lambda: nn.Sequential(
                nn.Conv2d(2, 3, 3),
                nn.BatchNorm2d(3, track_running_stats=False),
                nn.Flatten(),
                nn.Linear(48, CLASSES),
            ),
            "depend on the other samples of a batch",
        ),
    ],
)
def test_networks_that_stacking_would_change_train_alone(
    make: Callable[[], nn.Module], why: str
) -> None:
    executor = DeviceExecutor(clients([4]).samples, make(), DEVICE, mode="stacked")
    assert executor.mode != "stacked"
    assert why in str(executor)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="about CPUs")
def test_wishes_a_cpu_cannot_fulfil_are_refused() -> None:
    samples = clients([4]).samples
    with pytest.raises(ClientwiseError, match="use 'auto' or 'loop'"):
        DeviceExecutor(samples, NETWORKS["mlp"](), DEVICE, mode="graph")
    with pytest.raises(ClientwiseError, match="precision = 'tf32': needs a GPU"):
        DeviceExecutor(samples, NETWORKS["mlp"](), DEVICE, precision="tf32")


@pytest.mark.parametrize("mode", ["loop", "stacked"])
@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize(
    ("rough", "likeness"), [("bf16", 0.99)] + [("tf32", 0.999)] * (DEVICE.type == "cuda")
)
def test_lower_precision_is_near_float32(
    rough: Precision, likeness: float, network: str, mode: Mode
) -> None:
    data, results = clients([12, 5, 30, 7]), []
    for precision in ("float32", rough):
        torch.manual_seed(0)
        module = NETWORKS[network]()
        executor = DeviceExecutor(data.samples, module, DEVICE, mode=mode, precision=precision)
        engine = LocalEngine(data, module, seed=1, executor=executor, chunk_size=3)
        task = Task(1, LocalTraining(2, 4), PLAIN, ())
        updates = torch.cat(
            [updates.models for updates in engine.train(range(4), engine.initial_model, task)]
        )
        losses = engine.evaluate(range(4), torch.stack([engine.initial_model, *updates])).losses
        results.append((updates - engine.initial_model, losses))
    assert not torch.equal(results[0][0], results[1][0])
    assert (
        float(torch.nn.functional.cosine_similarity(results[0][0], results[1][0], dim=1).min())
        > likeness
    )
    assert torch.allclose(results[0][1], results[1][1], rtol=0.1, atol=0.1)


class Rehearsed:
    """A graph as a CPU can have it: done again at every call, on tensors that must not have moved since."""

    def __init__(self, work: Any, changes: object) -> None:
        self._work, self._owner = work, getattr(work, "func", work).__self__
        self._where = self._look()

    def _look(self) -> list[int]:
        tables = self._owner._tables
        if self._work == self._owner._draw:
            read = [
                tables["rows"],
                self._owner._keys,
                self._owner._first,
                self._owner._schedule.epoch,
            ]
        else:
            read = list(tables.values())
        return [tensor.data_ptr() for tensor in read]

    def __call__(self) -> None:
        assert self._look() == self._where
        self._work()


def test_a_graph_reads_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round after round: other clients, other keys, class weights that come and go, sizes that change and return."""
    monkeypatch.setattr(backend, "CudaGraph", Rehearsed)
    data, module = clients([7, 7, 7, 7, 3, 9]), mlp((2, 6, 6), CLASSES, hidden=[9])
    there = LocalEngine(
        data, module, seed=1, executor=DeviceExecutor(data.samples, module, torch.device("cpu"))
    )
    captured = StackedTrainer(
        StackedNetwork(module, there.spec, 4, there.device), data.samples, use_graphs=True
    )
    rounds = [([0, 1, 2], PLAIN), ([1, 2, 3], PLAIN), ([3, 0, 2], PLAIN), ([0, 1, 3], WEIGHTED), ([2, 1, 0], PLAIN),
              ([4, 5, 0], PLAIN), ([0, 2, 3], PLAIN), ([1, 0, 2], WEIGHTED), ([0, 1, 2, 3], PLAIN)]  # fmt: skip
    for number, (cohort, loss) in enumerate(rounds):
        task = Task(number, LocalTraining(2, 3, learning_rate=0.1), loss, ())
        job = there._train_job(cohort, there.initial_model, task)
        anew = StackedTrainer(
            StackedNetwork(module, there.spec, 4, there.device), data.samples, use_graphs=False
        )
        torch.testing.assert_close(captured.train(job), anew.train(job))


class Again:
    """A graph as a CPU can have it."""

    def __init__(self, work: Any, changes: object) -> None:
        self._work = work

    def __call__(self) -> None:
        self._work()


@pytest.mark.parametrize("network", ["mlp", "dropout", "own module"])
def test_an_evaluation_that_comes_back_is_done_by_a_graph(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = []

    class Counted(backend.CudaGraph if DEVICE.type == "cuda" else Again):  # type: ignore[misc]
        def __init__(self, work: Any, changes: Any) -> None:
            graphs.append(work)
            super().__init__(work, changes)

    monkeypatch.setattr(backend, "CudaGraph", Counted)
    data, module = clients([4, 4]), NETWORKS[network]()
    executor = DeviceExecutor(data.samples, module, DEVICE, mode="stacked", precision="float32")
    engine = LocalEngine(data, module, seed=1, executor=executor)
    job, random = engine._all_tests, torch.Generator().manual_seed(1)
    for count, expected in [(1, 0), (1, 1), (2, 1), (1, 1), (2, 2), (2, 2)]:
        models = (
            engine.initial_model + torch.rand(count, engine.spec.size, generator=random).to(DEVICE)
        ).contiguous()

        def evaluate(models: torch.Tensor) -> Any:
            return executor._evaluate(job, models)

        found = backend.evaluate_by_graph(job, models, evaluate, 100)
        again = [part.clone() for part in found]
        torch.testing.assert_close(again, list(evaluate(models)))
        assert len(graphs) == expected
    for limit in ("LARGE", "MAX_GRAPHS", ""):  # too much to keep, too many, too many samples
        anew = EvaluateJob(job.indices, job.targets, job.owner, job.sizes, job.problem)
        with monkeypatch.context() as limited:
            if limit:
                limited.setattr(backend, limit, 0)
            for _ in range(3):
                backend.evaluate_by_graph(anew, models, evaluate, 100 if limit else 1)
        assert len(graphs) == 2


@pytest.mark.parametrize("where", ["training", "joining"])
def test_a_gpu_that_is_suddenly_fuller_takes_fewer_clients(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, module = clients([6] * 8), NETWORKS["mlp"]()
    executor = DeviceExecutor(
        data.samples, module, DEVICE, mode="stacked", precision="float32", workers=1
    )
    engine = LocalEngine(data, module, seed=1, executor=executor)
    task = Task(1, LocalTraining(1, 3, learning_rate=0.1), PLAIN, ())
    expected = torch.cat(
        [updates.models for updates in engine.train(range(8), engine.initial_model, task)]
    )
    at_once = executor.clients_at_once(task.training, 6)
    original = StackedTrainer.train if where == "training" else TrainJob.joined

    def full(first: Any, *others: Any) -> Any:
        if where == "joining" or len(others[0]) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(first, *others)

    if where == "training":
        monkeypatch.setattr(StackedTrainer, "train", full)
        models = torch.cat(
            [updates.models for updates in engine.train(range(8), engine.initial_model, task)]
        )
    else:
        monkeypatch.setattr(TrainJob, "joined", full)
        jobs = [
            engine._train_job(half, engine.initial_model, task) for half in (range(4), range(4, 8))
        ]
        models = torch.cat([result[0] for result in executor.train_joined(jobs)])  # type: ignore[index]
    torch.testing.assert_close(models, expected, rtol=1e-4, atol=1e-5)
    assert executor.clients_at_once(task.training, 6) < at_once

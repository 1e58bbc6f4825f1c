"""Networks of every form: token ids, several inputs, outputs with logits, batch norm, frozen layers, other types."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clientwise as cw
from clientwise.core.objective.loss import CrossEntropy
from clientwise.core.types import LocalTraining, Task
from clientwise.data.arrays import pack, unpack
from clientwise.data.federated import Holdings
from clientwise.engine.device import Mode
from clientwise.engine.executor import DeviceExecutor
from clientwise.engine.local import LocalEngine
from clientwise.errors import ConfigError
from clientwise.models.modules import count_dropout
from clientwise.registry import Part

CPU = torch.device("cpu")
WORDS = 40
LENGTH = 6
CONFIG: dict[str, Any] = {
    "name": "any module",
    "rounds": 2,
    "training": {"batch_size": 8, "learning_rate": 0.1},
    "methods": ["FedAvg"],
}


def texts(count: int, seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """Rows of token ids with their mask; the first token is the class."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count,), generator=random)
    ids = torch.randint(3, WORDS, (count, LENGTH), generator=random)
    ids[:, 0] = labels
    mask = torch.ones(count, LENGTH, dtype=torch.int64)
    mask[:, 4:] = 0
    return {"input_ids": ids, "attention_mask": mask}, labels


def named_texts() -> cw.Samples:
    return cw.Samples.from_clients({name: texts(25, seed) for seed, name in enumerate("abc")})


def token_ids() -> cw.Samples:
    held = {}
    for seed, name in enumerate("abc"):
        inputs, labels = texts(25, seed)
        held[name] = (inputs["input_ids"], labels)
    return cw.Samples.from_clients(held)


@dataclass
class Output:
    logits: Tensor


class Attending(nn.Module):
    """The form of Hugging Face's classifiers: arguments by name, `dropout.p` read, an object with logits."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.dropout = nn.Dropout(0.1)
        self.output = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Output:
        assert self.dropout.p == 0.1
        assert attention_mask.dtype == torch.int64
        states = self.dropout(self.words(input_ids)) * attention_mask[..., None]
        return Output(self.output(states.mean(1)))


class TakesDictionary(Attending):
    """One dictionary in, one out."""

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:  # type: ignore[override]
        return {"logits": super().forward(**batch).logits}


def last_metric(run: cw.Run) -> float:
    return run.frame("rounds")["metric"].iloc[-1]


@pytest.mark.parametrize("network", [Attending, TakesDictionary])
def test_several_inputs_by_name(network: type[nn.Module], tmp_path: Any) -> None:
    config = CONFIG | {
        "rounds": 8,
        "training": {"optimizer": "adam", "learning_rate": 0.05, "batch_size": 8},
    }
    run = cw.Run(cw.run(config, tmp_path / "run", data=named_texts(), model=network))
    assert last_metric(run) > 0.8
    assert "cannot be stacked: it takes several inputs" in run.facts.computed
    assert isinstance(cw.load(run.folder, module=network).module, network)


def test_a_function_that_makes_the_network_is_given_the_shapes_by_name(tmp_path: Any) -> None:
    seen = []

    def make(shapes: Any, outputs: int) -> nn.Module:
        seen.append((shapes, outputs))
        return Attending()

    run = cw.Run(cw.run(CONFIG, tmp_path / "run", data=named_texts(), model=make))
    assert isinstance(cw.load(run.folder, module=make).module, Attending)
    assert all(one == ({"input_ids": (6,), "attention_mask": (6,)}, 3) for one in seen)
    with pytest.raises(ConfigError, match=r"several inputs \(input_ids, attention_mask\)"):
        cw.run(CONFIG | {"model": "mlp"}, tmp_path / "other", data=named_texts())


def test_columns_are_packed_and_unpacked_without_loss() -> None:
    given = {
        "ids": torch.tensor([[2**24 + 1, 3], [4, 5]]),
        "age": torch.tensor([0.1, 0.7]),
        "picture": torch.full((2, 1, 2, 2), 255, dtype=torch.uint8),
        "seen": torch.tensor([True, False]),
    }
    back = unpack(*pack(given))
    assert {name: values.dtype for name, values in back.items()} == {
        "ids": torch.int64, "age": torch.float32, "picture": torch.float32, "seen": torch.int64,
    }  # fmt: skip
    for name, values in given.items():
        assert torch.equal(back[name].double(), values.double())
    with pytest.raises(ValueError, match=r"one row for every sample each, got .*'age': 3"):
        pack(given | {"age": torch.zeros(3)})


def test_an_input_is_an_integer_if_it_is_one_with_every_client() -> None:
    whole = ({"age": [1, 2], "ids": [[3], [4]]}, [0, 1])
    parts = ({"age": [1.5, 2.5], "ids": [[5], [6]]}, [0, 1])
    for clients in ([whole, parts], [parts, whole]):
        inputs = cw.Samples.from_clients(clients).network_inputs(torch.arange(4))
        assert sorted(inputs["age"].tolist()) == [1, 1.5, 2, 2.5]
        assert inputs["ids"].dtype == torch.int64


def test_a_dataset_of_dictionaries_has_its_targets_in_labels() -> None:
    inputs, labels = texts(4)

    class Rows(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            return {name: values[index] for name, values in inputs.items()} | {
                "labels": labels[index]
            }

    samples = cw.Samples.from_clients([Rows()])
    assert torch.equal(samples.targets, labels)
    assert [part.name for part in samples.parts] == ["input_ids", "attention_mask"]


# Integers -------------------------------------------------------------------------------------------------------


def embedding() -> nn.Module:
    return nn.Sequential(nn.Embedding(WORDS, 4), nn.Flatten(), nn.Linear(4 * LENGTH, 3))


def trained(network: nn.Module, samples: cw.Samples, mode: Mode, **training: Any) -> Tensor:
    """The models of all clients [n, d]."""
    held = Holdings.of([(part, samples.targets[part]) for part in torch.arange(75).split(25)])
    data = cw.FederatedData(samples, held, held, None, None)
    network = copy.deepcopy(network)
    executor = DeviceExecutor(samples, network, CPU, mode=mode, precision="float32", workers=1)
    assert executor.mode == mode, executor.reason
    engine = LocalEngine(data, network, seed=1, executor=executor)
    options = {"epochs": 2, "batch_size": 8, "learning_rate": 0.1} | training
    task = Task(1, LocalTraining(**options), CrossEntropy(), ())
    chunks = list(engine.train(range(3), engine.initial_model, task))
    assert not any(chunk.failures for chunk in chunks), chunks[-1].failures
    return torch.cat([chunk.models for chunk in chunks])


@pytest.mark.parametrize("training", [{}, {"optimizer": Part("sgd", {"momentum": 0.9})}])
def test_token_ids_stay_integers_in_every_mode(training: dict[str, Any]) -> None:
    network = embedding()
    loop, stacked = (
        trained(network, token_ids(), mode, **training) for mode in ("loop", "stacked")
    )
    torch.testing.assert_close(loop, stacked, rtol=1e-4, atol=1e-5)


# Batch norm, frozen layers, other types -------------------------------------------------------------------------


def normed(inputs: int = 6) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def rows(sizes: list[int]) -> cw.FederatedData:
    random = torch.Generator().manual_seed(0)

    def block(size: int) -> tuple[Tensor, Tensor]:
        return torch.randn(size, 6, generator=random), torch.arange(size) % 3

    return cw.FederatedData.from_clients(
        [block(size) for size in sizes], [block(6) for _ in sizes], report=block(9)
    )


def test_a_last_batch_of_one_does_not_lose_the_client(tmp_path: Any) -> None:
    run = cw.Run(cw.run(CONFIG, tmp_path / "run", data=rows([17, 16, 25]), model=normed))
    assert run.frame("refusals").empty


def test_a_client_of_one_sample_and_batches_of_one(tmp_path: Any) -> None:
    run = cw.Run(cw.run(CONFIG, tmp_path / "run", data=rows([16, 1]), model=normed))
    assert "batches and clients need two or more" in run.frame("refusals")["reason"].iloc[0]
    one = CONFIG | {"training": {"batch_size": 1}}
    with pytest.raises(ConfigError, match="batch_size = 1: must be at least 2: batch norm"):
        cw.run(one, tmp_path / "other", data=rows([16, 16]), model=normed)


@pytest.mark.parametrize(
    "training",
    [{}, *({"optimizer": {"name": name, "weight_decay": 0.1}} for name in ("sgd", "adam"))],
)
def test_frozen_layers_stay_and_others_learn(training: dict[str, Any], tmp_path: Any) -> None:
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    network[0].requires_grad_(False)
    config = CONFIG | {"training": {"batch_size": 8, **training}}
    run = cw.Run(cw.run(config, tmp_path / "run", data=rows([16, 16]), model=network))
    after: Any = cw.load(run.folder, module=network).module
    assert torch.equal(after[0].weight, network[0].weight)
    assert not torch.equal(after[2].weight, network[2].weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_trained_as_float32(dtype: torch.dtype, tmp_path: Any) -> None:
    network = normed().to(dtype)
    run = cw.Run(cw.run(CONFIG, tmp_path / "run", data=rows([16, 16]), model=network))
    assert run.finished


def test_dropout_keeps_what_it_is() -> None:
    network = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.25, inplace=True))
    (counted,) = count_dropout(network)
    assert isinstance(counted, nn.Dropout)
    assert (counted.p, counted.inplace) == (0.25, True)
    values = torch.ones(4, 8)
    assert counted.train()(values) is values
    assert values.unique().tolist() == pytest.approx([0.0, 1 / 0.75])


# What `check` says ----------------------------------------------------------------------------------------------


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).detach()


class OnlyEvaluates(Detached):
    """Works until it is trained."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise RuntimeError("no training here")
        return self.layer(x)


class ReturnsPair(Detached):
    def forward(self, x: Tensor) -> Any:
        return self.layer(x), x


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (
            Detached,
            r"cannot be trained on 8 samples of client 0 .*remove detach\(\) and no_grad\(\)",
        ),
        (OnlyEvaluates, "cannot be trained on 8 samples of client 0 .*no training here"),
        (
            ReturnsPair,
            "must return a tensor, or `logits` in an object or dictionary, returned tuple",
        ),
        (lambda: normed(5), r"does not take samples of shape \(6,\) \(float32\)"),
    ],
)
def test_one_training_step_shows_what_is_wrong(network: Any, said: str, tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=f"model: {said}"):
        cw.run(CONFIG, tmp_path / "run", data=rows([16, 16]), model=network)


def test_an_embedding_that_is_too_small_is_said_with_the_largest_number(tmp_path: Any) -> None:
    network = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(4 * LENGTH, 3))
    largest = int(token_ids().inputs.max())
    with pytest.raises(ConfigError, match=f"largest number is {largest}: an nn.Embedding"):
        cw.run(CONFIG, tmp_path / "run", data=token_ids(), model=network)

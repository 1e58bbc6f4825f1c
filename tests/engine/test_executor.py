"""Workers: what they compute depends on nothing but the job, and they end with their executor."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clientwise as cw
from clientwise.core.objective.loss import CrossEntropy
from clientwise.core.types import LocalTraining, Task
from clientwise.data.federated import FederatedData
from clientwise.engine.device import threads_for
from clientwise.engine.executor import DeviceExecutor
from clientwise.engine.local import LocalEngine
from clientwise.models.flat import FlatModel
from clientwise.models.networks import mlp

pytestmark = pytest.mark.bits

CPU = torch.device("cpu")
LENGTH, CLASSES = 12, 3
PLAIN, TRAINING = CrossEntropy(), LocalTraining(3, 4)


class Recurrent(nn.Module):
    """With the dropout that is inside PyTorch's LSTM."""

    def __init__(self, kind: Callable[..., nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.recurrent, self.output = (
            kind(1, 8, 2, dropout=0.5, batch_first=True),
            nn.Linear(8, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.output(self.recurrent(x[..., None])[0][:, -1])
        return outputs


class Noisy(nn.Module):
    """Draws without any module for it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(LENGTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x + torch.randn_like(x) if self.training else x)
        return outputs


def clients(sizes: list[int]) -> FederatedData:
    random = torch.Generator().manual_seed(0)
    blocks = [
        (
            torch.randint(20, (size, LENGTH), generator=random),
            torch.randint(CLASSES, (size,), generator=random),
        )
        for size in sizes
    ]
    tests = [(inputs[:1], targets[:1]) for inputs, targets in blocks]
    return FederatedData.from_clients(blocks, tests, num_classes=CLASSES)


def train(
    network: nn.Module,
    sizes: list[int],
    cohort: list[int],
    training: LocalTraining = TRAINING,
    **options: Any,
) -> dict[int, tuple[bytes, float]]:
    """By client its model, bit by bit, and its training loss."""
    data, module = clients(sizes), copy.deepcopy(network)
    engine = LocalEngine(
        data, module, seed=1, executor=DeviceExecutor(data.samples, module, CPU, **options)
    )
    with threads_for(engine.spec.num_parameters):
        updates = list(engine.train(cohort, engine.initial_model, Task(1, training, PLAIN, ())))
    return {
        client: (model.numpy().tobytes(), float(loss))
        for one in updates
        for client, model, loss in zip(one.client_ids, one.models, one.training_loss, strict=True)
    }


@pytest.mark.parametrize(
    "make",
    [
        Recurrent,
        Noisy,
    ],
    ids=["PyTorch's lstm", "noise"],
)
def test_networks_that_draw_train_alike_whatever_the_number_of_workers(
    make: Callable[[], nn.Module],
) -> None:
    torch.manual_seed(0)
    network, before = make(), torch.get_rng_state()
    alone = train(network, [16] * 6, list(range(6)), workers=1)
    assert len(set(alone.values())) == 6
    assert train(network, [16] * 6, list(range(6)), workers=2) == alone
    assert torch.equal(torch.get_rng_state(), before), "the default generator is the user's"


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_learn_although_cudnn_moves_their_weights(
    kind: Callable[..., nn.RNNBase], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, PyTorch moves them to memory of their own: a CPU must imitate it to test it."""

    def two_rounds() -> Tensor:
        torch.manual_seed(0)
        network = Recurrent(kind)
        data = clients([16] * 4)
        executor = DeviceExecutor(data.samples, network, CPU, workers=1)
        engine = LocalEngine(data, network, seed=1, executor=executor)
        model = engine.initial_model
        for round_num in (1, 2):
            task = Task(round_num, TRAINING, PLAIN, ())
            with threads_for(engine.spec.num_parameters):
                updates = list(engine.train(range(4), model, task))
            model = torch.cat([one.models for one in updates]).mean(0)
        return model

    def moved(layer: nn.RNNBase) -> None:
        for weight in layer.parameters(recurse=False):
            if isinstance(weight, nn.Parameter):  # what `vmap` puts in its place has no memory
                weight.data = weight.data.clone()

    expected = two_rounds()
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", moved)
    assert torch.equal(two_rounds(), expected)


def test_recurrent_networks_can_be_copied_and_pickled() -> None:
    module = FlatModel(Recurrent(), CPU).module
    rows = torch.zeros(2, LENGTH)
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(copied.eval()(rows), module.eval()(rows))


def test_networks_that_draw_take_turns() -> None:
    executor = DeviceExecutor(clients([4]).samples, Recurrent(), CPU, workers=2)
    assert executor._alone.loop._setup.draws


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_a_batch_larger_than_all_clients_takes_no_more_room_than_they_need(mode: str) -> None:
    torch.manual_seed(0)
    network = mlp((LENGTH,), CLASSES, hidden=[5])
    full, huge = (
        train(network, [9, 4], [0, 1], LocalTraining(2, size), mode=mode) for size in (None, 10**12)
    )
    assert full == huge


def test_batch_norm_is_as_it_was_before_it_was_tried_out() -> None:
    module = nn.Sequential(nn.Linear(LENGTH, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))
    before = copy.deepcopy(module.state_dict())
    executor = DeviceExecutor(clients([4]).samples, module, CPU)
    assert executor.mode == "loop"
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_client_s_loss_does_not_depend_on_whom_it_trains_with() -> None:
    """Other clients change its row and how many steps there are."""
    torch.manual_seed(0)
    network = mlp((LENGTH,), CLASSES, hidden=[5])
    sizes = [40 + 17 * client % 100 for client in range(40)]
    everybody = list(range(40))
    training = LocalTraining(1, 1, learning_rate=0.5)
    together = train(network, sizes, everybody, training, workers=1)
    for cohort in ([33, 0, 17], [1, 2, 3, 4, 5], everybody[::-1]):
        assert train(network, sizes, cohort, training, workers=1) == {
            client: together[client] for client in cohort
        }
    assert train(network, sizes, everybody, training, workers=3) == together


def wait_for(condition: Callable[[], bool]) -> bool:
    """Threads take a moment to end."""
    for _ in range(3_000):
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_an_executor_ends_with_its_last_user(tmp_path: Path, tiny: dict[str, Any]) -> None:
    threads, executors = threading.active_count(), []
    original = DeviceExecutor.__init__

    def noted(self: DeviceExecutor, *given: Any, **options: Any) -> None:
        original(self, *given, **options)
        executors.append(weakref.ref(self))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceExecutor, "__init__", noted)
        for number, mode in enumerate(("stacked", "loop")):
            cw.run({**tiny, "workers": 2, "mode": mode}, tmp_path / str(number))
    gc.collect()
    assert len(executors) >= 4
    assert [executor for executor in executors if executor() is not None] == []
    assert wait_for(lambda: threading.active_count() <= threads)


BEGIN = """
import os, sys
import clientwise as cw
assert "torch" not in sys.modules
print(os.environ["MIMALLOC_PURGE_DELAY"])
if sys.argv[1:]:
    cw.run(cw.load(sys.argv[1]), sys.argv[2])
    print("torch._dynamo" in sys.modules)
"""
SMALL = """
name = "small"
rounds = 1
mode = "loop"
data = "digits"
partition = {name = "iid", clients = 4}
model = "linear"
methods = [{name = "FedAvg"}]
"""


def begun(*arguments: Path, **settings: str) -> list[str]:
    """What `BEGIN` prints in a new process."""
    surroundings = {name: os.environ[name] for name in os.environ if not name.startswith("MIMA")}
    command = [sys.executable, "-c", BEGIN, *map(str, arguments)]
    environment = surroundings | settings
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_run_of_plain_sgd_imports_no_compiler_and_sets_the_allocator_of_arm(
    tmp_path: Path,
) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    assert begun(tmp_path / "small.toml", tmp_path / "run") == ["1000", "False"]
    assert begun(MIMALLOC_PURGE_DELAY="0") == ["0"]

"""The embedded engine: clients live in this process, on the CPU or one GPU, and nothing has to be started."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from ..attacks import Hostile
from ..core.criteria import ClientFacts, measure_clients
from ..core.seeding import generator
from ..core.types import Evaluation, Refusal, Task, Updates
from ..data.federated import FederatedData, Shares
from ..errors import ClientwiseError
from ..models.flat import FlatModel
from .evaluation import evaluate_models
from .training import train_locally


def pick_device(name: str = "auto") -> torch.device:
    """A device by name; "auto" is the GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ClientwiseError(f"device: {name!r} was asked for, but PyTorch sees no GPU here; use 'cpu' or 'auto'")
    return device


@contextmanager
def threads_for(num_parameters: int) -> Iterator[None]:
    """One thread for small networks, whose layers are too small to share; PyTorch's own choice for the others.

    On a busy machine threads that wait for each other make small layers many times slower.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1 if num_parameters < 500_000 else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class LocalEngine:
    """Trains the clients of a cohort one after the other and hands them on in chunks."""

    def __init__(
        self,
        data: FederatedData,
        module: nn.Module,
        *,
        seed: int,
        device: torch.device | None = None,
        hostile: Mapping[int, Hostile] | None = None,
        chunk_size: int = 16,
    ) -> None:
        self.device = device or torch.device("cpu")
        # Two runs of one config must agree to the bit, or a resumed one would not be the same run.
        torch.backends.cudnn.deterministic = True
        self.data = data.to(self.device)
        self.problem = data.samples.problem
        self.num_clients = data.num_clients
        self._flat = FlatModel(module, self.device)
        self.spec = self._flat.spec
        self.initial_model = self._flat.vector.clone()  # [d] the module as it was given
        self._seed = seed
        self._hostile = hostile or {}
        self._chunk_size = chunk_size
        self._label_counts = _label_counts(data.train, self.problem.num_classes)
        self._private_models: dict[int, Tensor] = {}  # of hostile clients that keep a model of their own

    def train(self, client_ids: Sequence[int], model: Tensor, task: Task) -> Iterator[Updates]:
        """See `core.types.Engine`."""
        failures: list[Refusal] = []
        error: Exception | None = None
        for first in range(0, len(client_ids), self._chunk_size):
            trained: list[tuple[int, Tensor, float, float]] = []
            for client in client_ids[first : first + self._chunk_size]:
                try:
                    trained.append((client, *self._train_client(client, model, task)))
                except Exception as caught:  # one client's misfortune is not the federation's
                    error = caught
                    failures.append(Refusal(client, " ".join(f"{type(caught).__name__}: {caught}".split())[:300]))
            whole = [one for one in trained if one[1].shape == model.shape]
            odd = [[one] for one in trained if one[1].shape != model.shape]  # cannot be stacked; the guard will see
            for chunk in [*([whole] if whole else []), *odd]:
                ids, models, losses, seconds = (list(column) for column in zip(*chunk, strict=True))
                training_loss = torch.tensor(losses, dtype=torch.float64)
                measured = self._measure(ids, training_loss, task)
                yield Updates(
                    tuple(ids), torch.stack(models), measured, training_loss, torch.tensor(seconds, dtype=torch.float64)
                )
        if error is not None and len(failures) == len(client_ids):
            raise error  # nobody could train: that is no client's fault
        if failures:
            nothing = torch.zeros(0, dtype=torch.float64)
            yield Updates((), model.new_zeros(0, len(model)), {}, nothing, nothing, tuple(failures))

    def _train_client(self, client: int, model: Tensor, task: Task) -> tuple[Tensor, float, float]:
        began = time.perf_counter()
        share = self.data.train.slice(client)
        numbers, targets = self.data.train.numbers[share], self.data.train.targets[share]

        def load(rows: Tensor) -> tuple[Tensor, Tensor]:
            rows = rows.to(self.device)
            return self.data.samples.batch(numbers[rows]), targets[rows]

        hostile = self._hostile.get(client)
        ignores = hostile is not None and hostile.ignore_global
        start = self._private_models.get(client, model) if ignores else model
        trained, loss = train_locally(self._flat, start, load, len(numbers), task, self._seed, client)
        if hostile is not None:
            if ignores:
                self._private_models[client] = trained
            trained = hostile.attack.forge(trained, model, generator(self._seed, "attack", task.round_num, client))
        return trained, loss, time.perf_counter() - began

    def _measure(self, clients: Sequence[int], training_loss: Tensor, task: Task) -> dict[str, Tensor]:
        """The criteria the clients report: the truth, but for those who lie."""
        measured = measure_clients(task.criteria, self.facts(clients, training_loss))
        for row, client in enumerate(clients):
            if client in self._hostile:
                mine = {name: values[row] for name, values in measured.items()}
                claimed = self._hostile[client].attack.claim(mine)
                for name in measured.keys() & claimed.keys():
                    measured[name][row] = claimed[name]
        return measured

    def facts(self, clients: Sequence[int], training_loss: Tensor) -> ClientFacts:
        """What these clients know about themselves."""
        numbers, _, owner = self.data.train.gather(clients)
        rows = list(clients)
        attributes, samples = self.data.attributes, self.data.samples
        return ClientFacts(
            num_samples=self.data.train.sizes[rows],
            label_counts=self._label_counts[rows],
            training_loss=training_loss,
            attributes={name: values[rows] for name, values in attributes.items()},
            owner=owner,
            sample_attributes={name: values[numbers.cpu()] for name, values in samples.sample_attributes.items()},
            load_inputs=lambda: samples.batch(numbers),
        )

    def train_server(self, model: Tensor, task: Task) -> Tensor:
        """See `core.types.Engine`."""
        share = self.data.weigh
        assert share is not None, "a config that trains on a server set without having one is refused before it runs"
        numbers, targets = share.numbers, share.targets

        def load(rows: Tensor) -> tuple[Tensor, Tensor]:
            rows = rows.to(self.device)
            return self.data.samples.batch(numbers[rows]), targets[rows]

        # The server draws its batches as the client after the last.
        return train_locally(self._flat, model, load, len(numbers), task, self._seed, self.num_clients)[0]

    def evaluate(self, client_ids: Sequence[int], models: Tensor) -> Evaluation:
        """See `core.types.Engine`."""
        return self._evaluate(self.data.test, client_ids, models)

    def evaluate_server(self, models: Tensor, part: Literal["weigh", "report"]) -> Evaluation | None:
        """See `core.types.Engine`."""
        shares = self.data.weigh if part == "weigh" else self.data.report
        return None if shares is None else self._evaluate(shares, [0], models)

    def _evaluate(self, shares: Shares, holders: Sequence[int], models: Tensor) -> Evaluation:
        numbers, targets, owner = shares.gather(holders)
        return evaluate_models(
            self._flat, models.to(self.device), self.data.samples, numbers, targets, owner, len(holders)
        )

    def state(self) -> dict[str, Tensor]:
        """What the simulated clients keep between rounds; a checkpoint holds it beside the server's state."""
        return {str(client): model for client, model in self._private_models.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        self._private_models = {int(client): model.to(self.device) for client, model in state.items()}


def _label_counts(train: Shares, num_classes: int) -> Tensor:
    """How many training samples of each class every client holds [K, C]."""
    if not num_classes:
        return torch.zeros(len(train), 0, dtype=torch.int64)
    owner = torch.repeat_interleave(torch.arange(len(train)), train.sizes)
    cells = torch.bincount(owner * num_classes + train.targets.cpu(), minlength=len(train) * num_classes)
    return cells.reshape(len(train), num_classes)

"""The embedded engine: clients live in this process, on the CPU or one GPU, and nothing has to be started."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from ..attacks import Hostile
from ..core.criteria import ClientFacts, measure_clients
from ..core.seeding import client_keys, generator
from ..core.types import Evaluation, LocalTraining, Refusal, Task, Updates
from ..data.federated import FederatedData, Shares
from ..models.flat import flattened
from .executor import DeviceExecutor, Executor
from .jobs import EvaluateJob, TrainJob, TrainResult

VARIATE = "variate "  # what a control variate is called in the engine's state, before its client


class LocalEngine:
    """The clients of one seed: who holds what, who is hostile. How they are trained is the `executor`'s business."""

    def __init__(
        self,
        data: FederatedData,
        module: nn.Module,
        *,
        seed: int,
        device: torch.device | None = None,
        executor: Executor | None = None,
        hostile: Mapping[int, Hostile] | None = None,
        chunk_size: int | None = None,
    ) -> None:
        self.executor: Executor = executor or DeviceExecutor(data.samples, module, device or torch.device("cpu"))
        self.device = self.executor.device
        self.data = replace(data, samples=self.executor.samples).shares_to(self.device)
        self.attributes = self.data.attributes
        self.problem = data.samples.problem
        self.num_clients = data.num_clients
        self.spec = self.executor.spec
        self.initial_model = flattened(module).to(self.device)  # [d] the module as it was given
        self._seed = seed
        self._hostile = hostile or {}
        self._chunk_size = chunk_size
        self.idle_work: Callable[[], None] | None = None  # done when a GPU is at work, or the first chunk is done
        self._sizes = data.train.sizes
        self._label_counts = _label_counts(data.train, self.problem.num_classes)
        self._prefetched: tuple[Sequence[int], tuple[Tensor, Tensor, Tensor] | None] = (), None  # and what they hold
        self._private_models: dict[int, Tensor] = {}  # of hostile clients that keep a model of their own
        self._variates: dict[int, Tensor] = {}  # SCAFFOLD's c_a [d], of clients that have trained
        self._mean_variate = torch.zeros_like(self.initial_model)  # its c, of the round that runs
        self._weigh = _evaluate_job(self.data.weigh, range(1)) if self.data.weigh else None
        self._report = _evaluate_job(self.data.report, range(1)) if self.data.report else None

    @functools.cached_property
    def _all_tests(self) -> EvaluateJob:
        return _evaluate_job(self.data.test, range(self.num_clients))

    def prefetch(self, client_ids: Sequence[int]) -> None:
        """See `core.types.Engine`: what they hold is looked up now, not when a GPU waits for it."""
        # Of no use where a cohort is cut for several workers.
        if self.executor.workers == 1 and client_ids != self._prefetched[0]:
            self._prefetched = client_ids, self.data.train.gather(client_ids)

    def train(self, client_ids: Sequence[int], model: Tensor, task: Task) -> Iterator[Updates]:
        """See `core.types.Engine`."""
        failures: list[tuple[int, Exception]] = []
        if task.training.control_variates:
            self._mean_variate = self._find_mean_variate()  # c, the same for the whole cohort
        for clients, outcome in self._outcomes(client_ids, model, task):
            if isinstance(outcome, Exception):
                failures += [(client, outcome) for client in clients]
                continue
            updates, odd = outcome
            if task.training.control_variates:
                self._update_variates(updates, model, task.training)
            yield updates.select(torch.tensor([row not in odd for row in range(len(clients))]))
            for row, forged in odd.items():
                if isinstance(forged, Exception):
                    failures.append((clients[row], forged))
                else:
                    yield replace(updates.select(torch.arange(len(clients)) == row), models=forged[None])
        if failures and len(failures) == len(client_ids):
            raise failures[-1][1]  # nobody could train: that is no client's fault
        if failures:
            nothing = torch.zeros(0, dtype=torch.float64)
            refusals = tuple(Refusal(client, _in_words(error)) for client, error in failures)
            yield Updates((), model.new_zeros(0, len(model)), {}, nothing, nothing, refusals)

    def _outcomes(
        self, client_ids: Sequence[int], model: Tensor, task: Task
    ) -> Iterator[tuple[Sequence[int], tuple[Updates, dict[int, Tensor | Exception]] | Exception]]:
        """Chunk after chunk, what its clients send; one that fails is tried again in halves.

        One client's misfortune is not the federation's, and half as many need half of the memory.
        """
        chunks = self._cut(client_ids, task)
        began = time.perf_counter()
        results = self.executor.train(self._train_job(chunk, model, task) for chunk in chunks)
        for chunk, result in zip(chunks, results, strict=True):
            seconds = (time.perf_counter() - began) / len(chunk)
            if self.idle_work:
                self.idle_work()
            if isinstance(result, Exception) and len(chunk) > 1:
                for half in (chunk[: len(chunk) // 2], chunk[len(chunk) // 2 :]):
                    yield from self._outcomes(half, model, task)
            elif isinstance(result, Exception):
                yield chunk, result
            else:
                yield chunk, self._send(chunk, result, model, task, seconds)
            began = time.perf_counter()

    def _cut(self, client_ids: Sequence[int], task: Task) -> list[Sequence[int]]:
        """Chunks of as many clients as pay, but so that all workers have equally much to do."""
        count, workers = len(client_ids), self.executor.workers
        if self._chunk_size:
            chunks = -(-count // self._chunk_size)
        else:
            largest = int(self._sizes[list(client_ids)].max()) if count else 0
            at_once = self.executor.clients_at_once(task.training, largest)
            each = -(-count // (workers * at_once))  # chunks of every worker
            chunks = min(count, workers * each)
        ends = [count * index // chunks for index in range(chunks + 1)] if chunks else []
        return [client_ids[first:end] for first, end in itertools.pairwise(ends)]

    def _train_job(self, clients: Sequence[int], model: Tensor, task: Task) -> TrainJob:
        prefetched, held = self._prefetched
        indices, targets, _ = held if held and clients == prefetched else self.data.train.gather(clients)
        starts = model.to(self.device).expand(len(clients), -1)
        if any(client in self._private_models for client in clients):
            starts = torch.stack(
                [self._private_models.get(client, start) for client, start in zip(clients, starts, strict=True)]
            )
        keys = client_keys(self._seed, "training", task.round_num, clients)
        sizes, losses = self._sizes[list(clients)], [task.loss] * len(clients)
        corrections = None
        if task.training.control_variates:
            corrections = self._mean_variate - torch.stack([self._variate(client) for client in clients])
        return TrainJob(starts, indices, targets, sizes, keys, task.training, losses, corrections)

    def _variate(self, client: int) -> Tensor:
        return self._variates.get(client, torch.zeros_like(self.initial_model))

    def _find_mean_variate(self) -> Tensor:
        """SCAFFOLD's c = Σ c_a/K over all clients, also those that were never asked; the same bits after a resume."""
        total = torch.zeros_like(self.initial_model, dtype=torch.float64)
        for _, variate in sorted(self._variates.items()):
            total += variate
        return (total / self.num_clients).float()

    def _update_variates(self, updates: Updates, model: Tensor, training: LocalTraining) -> None:
        """c_a ← c_a − c + (Θ − Θ_a)/(τη), option II (Karimireddy et al., 2020): by the model that was sent."""
        steps = training.num_steps(self._sizes[list(updates.client_ids)]).clamp(min=1).tolist()
        for client, sent, count in zip(updates.client_ids, updates.models, steps, strict=True):
            moved = (model.to(self.device) - sent) / (count * training.learning_rate)
            moved[self.spec.num_parameters :] = 0  # buffers have no gradient
            renewed = self._variate(client) - self._mean_variate + moved
            if bool(renewed.isfinite().all()):  # what is no number must not reach the others by the mean
                self._variates[client] = renewed

    def _send(
        self, clients: Sequence[int], trained: TrainResult, model: Tensor, task: Task, seconds: float
    ) -> tuple[Updates, dict[int, Tensor | Exception]]:
        """What the server gets; by row the models of hostile clients that cannot be stacked with the others."""
        models, training_loss = trained.models, trained.losses.double().cpu()
        odd: dict[int, Tensor | Exception] = {}
        for row, client in enumerate(clients):
            if (hostile := self._hostile.get(client)) is None:
                continue
            if hostile.ignore_global:
                self._private_models[client] = models[row].clone()
            random = generator(self._seed, "attack", task.round_num, client)
            try:
                forged = hostile.attack.forge(models[row], model, random)
            except Exception as error:
                odd[row] = error
            else:
                if forged.shape == model.shape:
                    models[row] = forged
                else:
                    odd[row] = forged
        took = torch.full((len(clients),), seconds, dtype=torch.float64)
        measured = self._measure(clients, training_loss, model, task)
        return Updates(tuple(clients), models, measured, training_loss, took), odd

    def _measure(self, clients: Sequence[int], training_loss: Tensor, model: Tensor, task: Task) -> dict[str, Tensor]:
        """The criteria the clients report: the truth, but for those who lie."""
        measured = measure_clients(task.criteria, self.facts(clients, training_loss, model, task.training))
        for row, client in enumerate(clients):
            if client in self._hostile:
                mine = {name: values[row] for name, values in measured.items()}
                claimed = self._hostile[client].attack.claim(mine)
                for name in measured.keys() & claimed.keys():
                    measured[name][row] = claimed[name]
        return measured

    def facts(
        self, clients: Sequence[int], training_loss: Tensor, model: Tensor, training: LocalTraining
    ) -> ClientFacts:
        """What these clients know about themselves, who were sent this model and asked to train like that."""
        rows, samples = list(clients), self.data.samples

        @functools.cache
        def indices() -> Tensor:  # few criteria look at samples
            return self.data.train.gather(clients)[0]

        return ClientFacts(
            num_samples=self.data.train.sizes[rows],
            label_counts=self._label_counts[rows],
            training_loss=training_loss,
            attributes={name: values[rows] for name, values in self.data.attributes.items()},
            sample_attributes={name: values[indices().cpu()] for name, values in samples.sample_attributes.items()},
            load_inputs=lambda: samples.batch(indices()),
            training=training,
            load_start_loss=lambda: self._losses_before_training(clients, model),
        )

    def _losses_before_training(self, clients: Sequence[int], model: Tensor) -> Tensor:
        """Of the model [d] on the training samples of each client [n]; 0 for a client without."""
        return self.executor.evaluate(model[None], _evaluate_job(self.data.train, clients)).losses[0]

    def train_server(self, model: Tensor, task: Task) -> Tensor:
        """See `core.types.Engine`."""
        share = self.data.weigh
        assert share is not None, "a config that trains on a server set without having one is refused before it runs"
        keys = client_keys(self._seed, "server training", task.round_num, [0])
        sizes = torch.tensor([len(share.indices)])
        training = replace(task.training, control_variates=False)  # the server has none of its own
        job = TrainJob(model[None], share.indices, share.targets, sizes, keys, training, [task.loss])
        (result,) = self.executor.train([job])
        if isinstance(result, Exception):
            raise result
        return result.models[0]

    def evaluate(self, client_ids: Sequence[int], models: Tensor) -> Evaluation:
        """See `core.types.Engine`."""
        everybody = isinstance(client_ids, range) and client_ids == range(self.num_clients)
        job = self._all_tests if everybody else _evaluate_job(self.data.test, client_ids)
        return self.executor.evaluate(models, job)

    def evaluate_server(self, models: Tensor, part: Literal["weigh", "report"]) -> Evaluation | None:
        """See `core.types.Engine`."""
        job = self._weigh if part == "weigh" else self._report
        return None if job is None else self.executor.evaluate(models, job)

    def state(self) -> dict[str, Tensor]:
        """See `core.types.Engine`: the models of hostile clients that keep one of their own, and control variates."""
        variates = {f"{VARIATE}{client}": variate for client, variate in self._variates.items()}
        return {str(client): model for client, model in self._private_models.items()} | variates

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `core.types.Engine`."""
        models = {name: model.to(self.device) for name, model in state.items()}
        self._variates = {
            int(name.removeprefix(VARIATE)): models.pop(name) for name in state if name.startswith(VARIATE)
        }
        self._private_models = {int(client): model for client, model in models.items()}


def _evaluate_job(shares: Shares, holders: Sequence[int]) -> EvaluateJob:
    return EvaluateJob(*shares.gather(holders), shares.sizes[list(holders)])


def _in_words(error: Exception) -> str:
    """An error as the record keeps it: one line, not too long."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _label_counts(train: Shares, num_classes: int) -> Tensor:
    """How many training samples of each class every client holds [K, C]."""
    if not num_classes:
        return torch.zeros(len(train), 0, dtype=torch.int64)
    owner = torch.repeat_interleave(torch.arange(len(train)), train.sizes)
    cells = torch.bincount(owner * num_classes + train.targets.cpu(), minlength=len(train) * num_classes)
    return cells.reshape(len(train), num_classes)

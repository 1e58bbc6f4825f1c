"""The embedded engine: clients live in this process, on the CPU or one GPU."""

from __future__ import annotations

import copy
import functools
import hashlib
import hmac
import itertools
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from ..core.clock import Clock
from ..core.criteria import HONEST, ClientFacts, measure_clients
from ..core.objective.problem import Problem
from ..core.seeding import client_keys
from ..core.types import (
    Evaluation,
    LocalTraining,
    Refusal,
    ServerNetwork,
    ServerPart,
    Task,
    Updates,
)
from ..data.federated import FederatedData, Holdings
from ..data.folder import DataError
from ..models.flat import flattened, without_flattening
from .executor import DeviceExecutor, Executor
from .jobs import EvaluateJob, TrainJob, TrainResult
from .variates import ControlVariates

MOST_REASON = 300  # characters of an error that the record keeps
# One full-batch step of SGD is a gradient. A large rate, since small steps are lost in rounding
GRADIENT_STEP = LocalTraining(batch_size=None, learning_rate=1024.0)

# What became of a chunk of clients: their numbers, and their updates or why they could not train.
ChunkResult = tuple[Sequence[int], Updates | Exception]


@dataclass(frozen=True)
class Changes:
    """Clients that do not train on their own samples, or not from the global model."""

    poisoned: frozenset[int] = frozenset()  # clients that train on `FederatedData.poisoned`
    starts: Mapping[int, Tensor] = field(default_factory=dict)  # [d] by client

    def of(self, clients: Sequence[int]) -> Changes:
        """Those of some clients, on the CPU, in memory of their own: they travel."""
        starts = {
            client: self.starts[client].cpu().clone() for client in clients if client in self.starts
        }
        return Changes(self.poisoned.intersection(clients), starts)


UNCHANGED = Changes()


class LocalEngine:
    """The clients of one seed, all of them honest: which samples each holds, trained by an `executor`.

    Engines that wrap this one add hostile clients (`HostileEngine`), devices that take time
    (`TimedEngine`), or clients that keep models of their own (`AloneEngine`).

    Args:
        data: the samples and which client holds which of them.
        module: the network; its parameters are the initial model.
        seed: of batches and dropout.
        device: where to compute if no executor is given; the CPU by default.
        executor: trains and evaluates; several engines may share one.
        chunk_size: clients trained together; by default the executor decides.
    """

    def __init__(
        self,
        data: FederatedData,
        module: nn.Module,
        *,
        seed: int,
        device: torch.device | None = None,
        executor: Executor | None = None,
        chunk_size: int | None = None,
    ) -> None:
        if executor is None:
            executor = DeviceExecutor(data.samples, module, device or torch.device("cpu"))
        self.executor: Executor = executor
        self._module = module
        self.device = executor.device
        self.data = replace(data, samples=executor.samples).holdings_to(self.device)
        self.problem = data.samples.problem
        self.num_clients = data.num_clients
        self.spec = executor.spec
        self.seed = seed
        self.noise_key = str(seed).encode()  # a node of a deployment has a secret one
        self.initial_model = flattened(module).to(self.device)  # [d] the module as it was given
        all_honest = torch.ones(data.num_clients, dtype=torch.float64)
        self.attributes: Mapping[str, Tensor] = {**self.data.attributes, HONEST: all_honest}
        self.clock: Clock | None = None
        self.idle_work: Callable[[], None] | None = None  # run while a GPU works, or after a chunk
        # Whether there are clients elsewhere, which may train where none does here
        self.is_part = False
        self._chunk_size = chunk_size
        self._hold(self.data.train)
        self.variates = ControlVariates(
            self.num_clients, self.initial_model, self.spec.num_parameters
        )
        # The samples that the server weighs by say nothing about classes that they lack
        weigh = self.data.weigh
        self._known = self.problem.on(weigh.targets) if weigh is not None else self.problem
        self._server_jobs = {
            "weigh": _job_of_all(weigh, self._known),
            "report": _job_of_all(self.data.report, self.problem),
            "triggered": _job_of_all(self.data.triggered, self.problem),
        }

    @functools.cached_property
    def _all_tests(self) -> EvaluateJob:
        return EvaluateJob.of(self.data.test, range(self.num_clients), self.problem)

    @property
    def frozen(self) -> str:
        """The digest of the parameters that do not learn."""
        return self.executor.frozen

    @property
    def label_counts(self) -> Tensor:
        """See `core.engine.CountsLabels`; in round 1."""
        return _label_counts(self.data.train, self.problem.num_classes).sum(0)

    def _hold(self, held: Holdings) -> None:
        """Let the clients train on these samples."""
        self._held = held
        self._sizes = held.sizes
        self._label_counts = _label_counts(held, self.problem.num_classes)

    def train(
        self,
        client_ids: Sequence[int],
        model: Tensor,
        task: Task,
        changes: Changes = UNCHANGED,
    ) -> Iterator[Updates]:
        """See `core.engine.Engine`; `changes` may give clients other samples and models."""
        for updates in self.train_chunks(client_ids, model, task, changes):
            self.record_sent(updates, model, task)
            yield updates

    def train_chunks(
        self,
        client_ids: Sequence[int],
        model: Tensor,
        task: Task,
        changes: Changes = UNCHANGED,
    ) -> Iterator[Updates]:
        """What every chunk of clients trained and measured, then those that failed.

        Nothing is sent to the server yet. Raises the last error if no client could train: then no
        single client is at fault. A part of the clients does not raise it.
        """
        self._begin_round(task)
        num_trained = 0
        failures: list[tuple[int, Exception]] = []
        for clients, outcome in self._outcomes(client_ids, model, task, changes):
            if isinstance(outcome, Exception):
                failures += [(client, outcome) for client in clients]
            else:
                num_trained += len(clients)
                yield outcome
        if not failures:
            return
        if not num_trained and not self.is_part:
            _, last_error = failures[-1]
            raise last_error
        yield failed_updates(failures, model)

    def _begin_round(self, task: Task) -> None:
        held = self.data.train_in(task.round_num)
        if held is not self._held:
            self._hold(held)
        if task.training.control_variates and not self.is_part:
            self.variates.begin_round()

    def record_sent(self, updates: Updates, model: Tensor, task: Task) -> None:
        """Renew SCAFFOLD's control variates by the models that the server gets."""
        if task.training.control_variates and updates.client_ids:
            self.variates.update(updates, model, self._sizes, task.training)

    def _outcomes(
        self, client_ids: Sequence[int], model: Tensor, task: Task, changes: Changes
    ) -> Iterator[ChunkResult]:
        """The outcome of every chunk; a chunk that fails is tried again in halves.

        So a client that cannot train fails alone, and half as many clients need half of the memory.
        """
        chunks = self._cut(client_ids, task)
        began = time.perf_counter()
        results = self.executor.train(
            self._train_job(chunk, model, task, changes) for chunk in chunks
        )
        for chunk, result in zip(chunks, results, strict=True):
            seconds = (time.perf_counter() - began) / len(chunk)
            if self.idle_work:
                self.idle_work()
            if not isinstance(result, Exception):
                yield chunk, self._updates(chunk, result, model, task, seconds)
            elif len(chunk) == 1:
                yield chunk, result
            else:
                middle = len(chunk) // 2
                yield from self._outcomes(chunk[:middle], model, task, changes)
                yield from self._outcomes(chunk[middle:], model, task, changes)
            began = time.perf_counter()

    def _cut(self, client_ids: Sequence[int], task: Task) -> list[Sequence[int]]:
        """Chunks of as many clients as pay, such that all workers have equally much to do."""
        count = len(client_ids)
        if not count:
            return []
        if self._chunk_size:
            num_chunks = -(-count // self._chunk_size)
        else:
            workers = self.executor.workers
            largest = int(self._sizes[list(client_ids)].max())
            at_once = self.executor.clients_at_once(task.training, largest)
            chunks_per_worker = -(-count // (workers * at_once))
            num_chunks = min(count, workers * chunks_per_worker)
        ends = [count * index // num_chunks for index in range(num_chunks + 1)]
        return [client_ids[first:end] for first, end in itertools.pairwise(ends)]

    def _train_job(
        self, clients: Sequence[int], model: Tensor, task: Task, changes: Changes = UNCHANGED
    ) -> TrainJob:
        """The job of a chunk: every client starts from `model` [d], on its own samples, but for `changes`."""
        indices, targets, _ = self._held.gather(clients)
        corrections = None
        if task.training.control_variates:
            corrections = self.variates.corrections(clients).to(self.device)
        job = TrainJob(
            starts=self._starts(clients, model, changes),
            indices=indices,
            targets=targets,
            sizes=self._sizes[list(clients)],
            keys=client_keys(self.seed, "training", task.round_num, clients),
            training=task.training,
            losses=[task.loss] * len(clients),
            corrections=corrections,
            noise_keys=self._noise_keys(clients, model, task)
            if task.training.sample_clip
            else None,
        )
        if self.data.poisoned is not None and not changes.poisoned.isdisjoint(clients):
            return _with_samples(job, clients, changes.poisoned, self.data.poisoned)
        return job

    def _starts(self, clients: Sequence[int], model: Tensor, changes: Changes) -> Tensor:
        """The model that each client begins with [n, d]."""
        start = model.to(self.device)
        if changes.starts.keys().isdisjoint(clients):
            return start.expand(len(clients), -1)
        own = [changes.starts.get(client, start) for client in clients]
        return torch.stack([one.to(self.device) for one in own])

    def _updates(
        self,
        clients: Sequence[int],
        trained: TrainResult,
        model: Tensor,
        task: Task,
        seconds: float,
    ) -> Updates:
        """What these clients have to send: their models, measurements and losses."""
        training_loss = trained.losses.double().cpu()
        took = torch.full((len(clients),), seconds, dtype=torch.float64)
        facts = self.facts(clients, training_loss, model, task.training)
        measured = measure_clients(task.criteria, replace(facts, seconds=took))
        models = trained.models
        if task.noise is not None:
            models = self._with_noise(clients, models, model, task)
        if task.noise is not None or task.training.sample_clip:
            # Both would tell of the samples
            training_loss = torch.zeros_like(training_loss)
            took = torch.zeros_like(took)
        return Updates(tuple(clients), models, measured, training_loss, took)

    def _with_noise(
        self, clients: Sequence[int], models: Tensor, model: Tensor, task: Task
    ) -> Tensor:
        """The models [n, d] as the clients send them: their updates clipped, and with noise."""
        assert task.noise is not None
        start = model.to(models)
        names = _noise_names(clients, model, task)
        return start + task.noise.apply(models - start, self.noise_key, names)

    def _noise_keys(self, clients: Sequence[int], model: Tensor, task: Task) -> list[bytes]:
        """What the noise of each client's steps follows from."""
        names = _noise_names(clients, model, task)
        return [hmac.digest(self.noise_key, name.encode(), "sha256") for name in names]

    def facts(
        self,
        clients: Sequence[int],
        training_loss: Tensor,
        model: Tensor,
        training: LocalTraining,
    ) -> ClientFacts:
        """What these clients can measure of themselves.

        Args:
            clients: their numbers, n of them.
            training_loss: of each in its last epoch, [n].
            model: the global model that they were sent, [d].
            training: how they were asked to train.
        """
        rows = list(clients)
        samples = self.data.samples

        @functools.cache
        def indices() -> Tensor:  # few criteria look at samples
            return self._held.gather(clients)[0]

        return ClientFacts(
            num_samples=self._sizes[rows],
            label_counts=self._label_counts[rows],
            training_loss=training_loss,
            attributes={name: values[rows] for name, values in self.data.attributes.items()},
            sample_attributes={
                name: values[indices().cpu()] for name, values in samples.sample_attributes.items()
            },
            load_inputs=lambda: samples.batch(indices()),
            training=training,
            load_start_loss=lambda: self._losses_before_training(clients, model),
            device=self.data.devices.of(rows) if self.data.devices else None,
        )

    def _losses_before_training(self, clients: Sequence[int], model: Tensor) -> Tensor:
        """Of `model` [d] on the training samples of each client [n]; 0 without samples."""
        job = EvaluateJob.of(self._held, clients, self.problem)
        return self.executor.evaluate(model[None], job).losses[0]

    def train_server(self, models: Tensor, task: Task) -> Tensor:
        """See `core.engine.Engine`."""
        held = self.data.weigh
        assert held is not None, "validation refuses to train on a server set that is not there"
        count = len(models)
        job = TrainJob(
            starts=models,
            indices=held.indices.repeat(count),
            targets=held.targets.repeat(count, *(1,) * (held.targets.dim() - 1)),
            sizes=torch.tensor([len(held.indices)] * count),
            # The same batches for all of them
            keys=client_keys(self.seed, "server training", task.round_num, [0] * count),
            # The server has no control variates, and its own samples need no noise.
            training=replace(
                task.training, control_variates=False, sample_clip=None, sample_noise=None
            ),
            losses=[task.loss.without(self._known.missing)] * count,
        )
        return self._trained(job)

    def _trained(self, job: TrainJob) -> Tensor:
        """The models of one job of the server's own [n, d]."""
        (result,) = self.executor.train([job])
        if isinstance(result, Exception):
            raise result
        return result.models

    def server_gradients(self, model: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
        """See `core.engine.Engine`: a step of each group from the model, divided by the learning rate.

        So all groups are one job of training, which any backend takes.
        """
        held = self.data.weigh
        assert held is not None, "validation refuses evidence without samples of the server"
        rows = torch.tensor(list(itertools.chain.from_iterable(groups)), device=self.device)
        job = TrainJob(
            starts=model.to(self.device).expand(len(groups), -1),
            indices=held.indices[rows],
            targets=held.targets[rows],
            sizes=torch.tensor([len(group) for group in groups]),
            keys=client_keys(self.seed, "server training", 0, [0] * len(groups)),
            training=GRADIENT_STEP,
            losses=[self._known.known_loss] * len(groups),
            as_evaluated=True,
        )
        return (job.starts - self._trained(job)) / GRADIENT_STEP.learning_rate

    def server_network(self) -> ServerNetwork | None:
        """See `core.engine.Engine`."""
        return self._network

    @functools.cached_property
    def _network(self) -> ServerNetwork | None:
        held = self.data.weigh
        if held is None or not self.problem.num_classes or self.data.samples.integers:
            return None
        inputs = self.data.samples.network_inputs(held.indices)
        if not isinstance(inputs, Tensor):
            return None
        module = without_flattening(copy.deepcopy(self._module)).to(self.device).eval()
        layers = self.spec.layers

        def outputs(model: Tensor, inputs: Tensor) -> Tensor:
            tensors = {one.name: model[one.start : one.stop].view(one.shape) for one in layers}
            found: Tensor = torch.func.functional_call(module, tensors, (inputs,))
            return found

        return ServerNetwork(outputs, inputs, held.targets, self.problem.num_classes)

    def evaluate(self, client_ids: Sequence[int], models: Tensor) -> Evaluation:
        """See `core.engine.Engine`."""
        if isinstance(client_ids, range) and client_ids == range(self.num_clients):
            job = self._all_tests
        else:
            job = EvaluateJob.of(self.data.test, client_ids, self.problem)
        return self.executor.evaluate(models, job)

    def evaluate_server(self, models: Tensor, part: ServerPart) -> Evaluation | None:
        """See `core.engine.Engine`."""
        job = self._server_jobs[part]
        return None if job is None else self.executor.evaluate(models, job)

    def state(self) -> dict[str, Tensor]:
        """See `core.engine.Engine`: SCAFFOLD's control variates."""
        return self.variates.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `core.engine.Engine`."""
        self.variates.load_state({name: value.to(self.device) for name, value in state.items()})


def _with_samples(
    job: TrainJob, clients: Sequence[int], attacking: Collection[int], poisoned: Holdings
) -> TrainJob:
    """The job with the poisoned samples of the attacking clients."""
    sizes = job.sizes.tolist()
    indices = list(torch.split(job.indices, sizes))
    targets = list(torch.split(job.targets, sizes))
    for row, client in enumerate(clients):
        if client in attacking:
            theirs = poisoned.slice(client)
            indices[row] = poisoned.indices[theirs]
            targets[row] = poisoned.targets[theirs]
    return replace(job, indices=torch.cat(indices), targets=torch.cat(targets))


def failed_updates(failures: Sequence[tuple[int, Exception]], model: Tensor) -> Updates:
    """No updates, but one refusal for every client that failed, with its error in one line."""
    refusals = []
    for client, error in failures:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        refusals.append(Refusal(client, reason[:MOST_REASON], was_sent=False))
    return Updates.failed(refusals, model)


def _noise_names(clients: Sequence[int], model: Tensor, task: Task) -> list[str]:
    """Names of a request to each client.

    The same request gets the same noise, so that asking again reveals nothing. Another model or task
    gets other noise.
    """
    # Not `repr(task)`: options in another order are the same task, which must not get other noise.
    asked = json.dumps(task.plain(), sort_keys=True, default=repr).encode()
    request = hashlib.sha256(model.cpu().numpy().tobytes() + asked).hexdigest()
    return [f"local noise/{client}/{request}" for client in clients]


def _job_of_all(held: Holdings | None, problem: Problem) -> EvaluateJob | None:
    return EvaluateJob.of(held, range(len(held)), problem) if held else None


def _label_counts(train: Holdings, num_classes: int) -> Tensor:
    """How many training samples of each class every client holds [K, C]."""
    if not num_classes:
        return torch.zeros(len(train), 0, dtype=torch.int64)
    targets = train.targets.cpu()
    if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < num_classes:
        raise DataError(
            f"data: labels go from {int(targets.min())} to {int(targets.max())}, but the problem "
            f"has {num_classes} classes: labels must be 0 to {num_classes - 1}"
        )
    owner = torch.repeat_interleave(torch.arange(len(train)), train.sizes)
    cells = owner * num_classes + targets
    counts = torch.bincount(cells, minlength=len(train) * num_classes)
    return counts.reshape(len(train), num_classes)

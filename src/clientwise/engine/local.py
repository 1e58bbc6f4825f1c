"""The embedded engine: clients live in this process, on the CPU or one GPU, and nothing has to be started."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..attacks import Honest, Hostile, Knowledge
from ..core.clock import Clock
from ..core.criteria import HONEST, ClientFacts, make_criterion, measure_clients
from ..core.seeding import client_keys
from ..core.types import Evaluation, LocalTraining, Refusal, ServerPart, Task, Updates
from ..data.federated import FederatedData, Shares
from ..models.flat import flattened
from ..registry import Need
from .executor import DeviceExecutor, Executor
from .jobs import EvaluateJob, TrainJob, TrainResult
from .variates import KEY as VARIATE
from .variates import ControlVariates

LAST_MODEL = "last_model"  # in the state, beside the clients' numbers


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
        self.problem = data.samples.problem
        self.num_clients = data.num_clients
        self.spec = self.executor.spec
        self.initial_model = flattened(module).to(self.device)  # [d] the module as it was given
        self._seed = seed
        self._hostile = hostile or {}
        honest = torch.tensor([float(client not in self._hostile) for client in range(data.num_clients)])
        self.attributes: Mapping[str, Tensor] = {**self.data.attributes, HONEST: honest.double()}
        self._chunk_size = chunk_size
        self.clock: Clock | None = None
        self.idle_work: Callable[[], None] | None = None  # done when a GPU is at work, or the first chunk is done
        self._sizes = data.train.sizes
        self._label_counts = _label_counts(data.train, self.problem.num_classes)
        self._prefetched: tuple[Sequence[int], tuple[Tensor, Tensor, Tensor] | None] = (), None  # and what they hold
        self._private_models: dict[int, Tensor] = {}  # of hostile clients that keep a model of their own
        self._variates = ControlVariates(self.num_clients, self.initial_model, self.spec.num_parameters)
        self._remembers = any("last_model" in one.needs for one in self._hostile.values())
        self._last_model: Tensor | None = None  # the global model of the round before, where an attack goes by it
        self._attacking: dict[int, Hostile] = {}  # who attacks in the round that was begun last
        self._theirs: list[Tensor] = []  # models of those who lie about models, in that round
        self._weigh = _evaluate_job(self.data.weigh, range(1)) if self.data.weigh else None
        self._report = _evaluate_job(self.data.report, range(1)) if self.data.report else None
        shown = self.data.triggered
        self._triggered = _evaluate_job(shown, range(len(shown))) if shown else None

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
        if not task.training.control_variates:
            yield from self._train(client_ids, model, task)
            return
        self._variates.begin_round()
        for updates in self._train(client_ids, model, task):
            self._variates.update(updates, model, self._sizes, task.training)
            yield updates

    def _train(self, client_ids: Sequence[int], model: Tensor, task: Task) -> Iterator[Updates]:
        self._begin(task.round_num)
        seeing = {client for client, one in self._attacking.items() if "whole_cohort" in one.needs}
        waits = seeing.intersection(client_ids)
        failures: list[tuple[int, Exception]] = []
        honest, late = list[Updates](), list[Updates]()  # where somebody waits for what the honest send
        untrained = 0
        for clients, updates in self._outcomes(client_ids, model, task):
            if isinstance(updates, Exception):
                failures += [(client, updates) for client in clients]
                untrained += len(clients)
                continue
            if waits:
                honest.append(_of(updates, [client not in self._attacking for client in clients]))
                late.append(_of(updates, [client in waits for client in clients]))
                updates = _of(updates, [client not in waits for client in clients])
            yield from self._send(updates, model, task, failures)
        if late:
            hostile = Updates.joined(late)
            seen = self._seen(Updates.joined(honest), hostile, model, task)
            yield from self._send(hostile, model, task, failures, seen)
        if self._remembers:
            self._last_model = model.clone()  # of its own: a checkpoint takes no two tensors of one memory
        if untrained and untrained == len(client_ids):
            raise failures[-1][1]  # nobody could train: that is no client's fault
        if failures:
            yield Updates.failed([Refusal(client, _in_words(error)) for client, error in failures], model)

    def _outcomes(
        self, client_ids: Sequence[int], model: Tensor, task: Task
    ) -> Iterator[tuple[Sequence[int], Updates | Exception]]:
        """Chunk after chunk, what its clients trained and measured; one that fails is tried again in halves.

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
                yield chunk, self._trained(chunk, result, model, task, seconds)
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
        indices, targets, owner = held if held and clients == prefetched else self.data.train.gather(clients)
        starts = model.to(self.device).expand(len(clients), -1)
        attackers = self._attacking.keys() & clients
        if attackers and self.data.poisoned is not None:
            theirs, called, _ = self.data.poisoned.gather(clients)
            poisoned = torch.tensor([client in attackers for client in clients])[owner].to(self.device)
            indices, targets = torch.where(poisoned, theirs, indices), targets.clone()
            targets[poisoned] = called[poisoned]
        if private := {client: self._private_models[client] for client in attackers & self._private_models.keys()}:
            starts = torch.stack([private.get(client, start) for client, start in zip(clients, starts, strict=True)])
        keys = client_keys(self._seed, "training", task.round_num, clients)
        sizes, losses = self._sizes[list(clients)], [task.loss] * len(clients)
        corrections = self._variates.corrections(clients) if task.training.control_variates else None
        return TrainJob(starts, indices, targets, sizes, keys, task.training, losses, corrections)

    def _trained(
        self, clients: Sequence[int], trained: TrainResult, model: Tensor, task: Task, seconds: float
    ) -> Updates:
        """What these clients have to send, if they are honest."""
        training_loss = trained.losses.double().cpu()
        took = torch.full((len(clients),), seconds, dtype=torch.float64)
        facts = replace(self.facts(clients, training_loss, model, task.training), seconds=took)
        measured = measure_clients(task.criteria, facts)
        return Updates(tuple(clients), trained.models, measured, training_loss, took)

    def _begin(self, round_num: int) -> None:
        """Who attacks in this round."""
        self._theirs = []
        self._attacking = {
            client: one for client, one in self._hostile.items() if one.acts(self._seed, round_num, client)
        }

    def _needs(self, client: int) -> frozenset[Need]:
        """What the attack of a client needs in this round; nothing for the honest."""
        return self._attacking[client].needs if client in self._attacking else frozenset()

    def _seen(self, honest: Updates, hostile: Updates, model: Tensor, task: Task) -> Honest:
        """What clients that see the whole cohort go by."""
        seen = honest if honest.client_ids else hostile
        criteria = [make_criterion(part.name, part.label, **part.options) for part in task.criteria]
        highest = {criterion.name: criterion.high(self.problem) for criterion in criteria}
        samples = _evaluate_job(self.data.train, hostile.client_ids)

        def judge(updates: Tensor) -> Evaluation:
            return self.executor.evaluate(model + updates, samples)

        return Honest(seen.models - model, seen.measurements, highest, len(hostile.client_ids), judge)

    def _send(
        self,
        updates: Updates,
        model: Tensor,
        task: Task,
        failures: list[tuple[int, Exception]],
        cohort: Honest | None = None,
    ) -> Iterator[Updates]:
        """What the server gets: hostile clients forge and lie. Forged models of another size come one by one."""
        if not self._attacking:
            yield updates
            return
        odd: dict[int, Tensor] = {}
        failed = set[int]()
        for row, client in enumerate(updates.client_ids):
            if client in self._attacking:
                try:
                    forged = self._attack(client, row, updates, model, task, cohort)
                except Exception as error:
                    failed.add(row)
                    failures.append((client, error))
                else:
                    if forged.shape == model.shape:
                        updates.models[row] = forged
                    else:
                        odd[row] = forged
        usual = _of(updates, [row not in odd and row not in failed for row in range(len(updates.client_ids))])
        if usual.client_ids:
            yield usual
        for row, forged in odd.items():
            alone = _of(updates, [place == row for place in range(len(updates.client_ids))])
            yield replace(alone, models=forged[None])

    def _attack(
        self, client: int, row: int, updates: Updates, model: Tensor, task: Task, cohort: Honest | None
    ) -> Tensor:
        """The model that a hostile client sends; its measurements become what it claims."""
        one, trained = self._attacking[client], updates.models[row]
        if one.ignore_global:
            self._private_models[client] = trained.clone()
        random = one.draws(self._seed, "attack", task.round_num, client)
        known = Knowledge(trained, model, random, self._last_model, cohort)
        forged = one.attack.forge(known)
        if "judgements" in one.needs:
            self._theirs.append(forged)
        claimed = one.attack.claim({name: values[row] for name, values in updates.measurements.items()}, known)
        for name in updates.measurements.keys() & claimed.keys():
            updates.measurements[name][row] = claimed[name]
        return forged

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
            device=self.data.devices.of(rows) if self.data.devices else None,
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
        evaluation = self.executor.evaluate(models, job)
        for place, client in enumerate(client_ids) if self._attacking else ():
            if "judgements" in self._needs(client):
                evaluation = self._lied(evaluation, place, client, models)
        return evaluation

    def _lied(self, evaluation: Evaluation, place: int, client: int, models: Tensor) -> Evaluation:
        """The evaluation with what a client says of the models in the place of what it found."""
        truth = self.executor.evaluate(models, _evaluate_job(self.data.test, [client]))
        own = [any(torch.equal(model, one) for one in self._theirs) for model in models]
        said = self._attacking[client].attack.judge(truth, torch.tensor(own), self.problem)
        values, losses = evaluation.values.clone(), evaluation.losses.clone()
        values[:, place], losses[:, place] = said.values[:, 0], said.losses[:, 0]
        counts = evaluation.counts - truth.counts + said.counts
        return replace(evaluation, values=values, losses=losses, counts=counts)

    def evaluate_server(self, models: Tensor, part: ServerPart) -> Evaluation | None:
        """See `core.types.Engine`."""
        job = {"weigh": self._weigh, "report": self._report, "triggered": self._triggered}[part]
        return None if job is None else self.executor.evaluate(models, job)

    def state(self) -> dict[str, Tensor]:
        """See `core.types.Engine`: the models of hostile clients that keep one of their own, and what they remember."""
        remembered = {} if self._last_model is None else {LAST_MODEL: self._last_model}
        private = {str(client): model for client, model in self._private_models.items()}
        return self._variates.state() | remembered | private

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `core.types.Engine`."""
        models = {key: model.to(self.device) for key, model in state.items()}
        self._last_model = models.pop(LAST_MODEL, None)
        self._variates.load_state(models)
        self._private_models = {int(key): model for key, model in models.items() if not key.startswith(VARIATE)}


def _of(updates: Updates, rows: Sequence[bool]) -> Updates:
    return updates.select(torch.tensor(rows, dtype=torch.bool))


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

"""Many clients, or many models, at once.

The stacked trainer reads the same batches and the same dropout masks as the loop, so both agree up to the rounding of
their sums.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from ...core.objective.loss import Loss
from ...core.seeding import mixed
from ...core.types import LocalTraining
from ...data.federated import Inputs, Samples
from ...models.flat import FlatModel
from ..batches import BatchSchedule, add_terms, begin_steps, is_plain_sgd, make_optimizer, state_of
from ..device import CudaGraph
from ..jobs import EvaluateJob, EvaluateResult, Setup, TrainJob, TrainResult, evaluate_batches
from .network import StackedNetwork

MAX_NETWORKS = 8  # stacked networks that train and are kept, with their graphs
MAX_MODELS = 1024  # in all of them
MAX_EVALUATED = 32  # models evaluated at once
MANY_EVALUATED = 512  # small ones on a GPU, where a pass over few takes as long as one over many
LARGE = 2**25  # values of models that lie side by side or are read by graphs
LEAST_ROOM = 2**22  # values of models that graphs read
MAX_GRAPHS = 8  # numbers of models for which one job has a graph


class StackedBackend:
    """Trains and evaluates with stacked networks, which are kept from round to round."""

    def __init__(self, flat: FlatModel, setup: Setup) -> None:
        self._flat = flat
        self._setup = setup
        self._device = flat.vector.device
        # By number of models and, on a GPU, by recipe; the one that was used last is the last
        self._trainers: dict[tuple[int, object], StackedTrainer] = {}
        self._evaluating: dict[int, StackedNetwork] = {}  # by number of models

    def train(self, job: TrainJob) -> TrainResult:
        """Every client of the job."""
        try:
            return self._trainer(job).train(job)
        except Exception:
            self._trainers.clear()  # what their steps read may be half of the old and half of the new
            raise

    def evaluate(self, models: Tensor, job: EvaluateJob) -> EvaluateResult:
        """All models side by side."""
        size = evaluated_together(len(models), self._flat.spec.size, self._device)
        if size not in self._evaluating:  # all are kept: graphs read them
            self._evaluating[size] = self._stack(size)
        network = self._evaluating[size]
        results = []
        for some in torch.split(models, size):
            network.load(some)
            forward = partial(_forward, network, len(some))
            results.append(evaluate_batches(forward, len(some), self._setup, job))
        return EvaluateResult.joined(results)

    def _trainer(self, job: TrainJob) -> StackedTrainer:
        use_graphs = self._device.type == "cuda"
        size = len(job)
        recipe: object = job.as_evaluated
        if use_graphs:  # they belong to one recipe
            recipe = job.training.recipe, job.as_evaluated
        else:  # a larger one serves as well
            size = max([size, *(known for known, other in self._trainers if other == recipe)])
        trainer = self._trainers.pop((size, recipe), None)
        if trainer is None:
            while self._trainers and self._has_no_room_for(size):
                self._trainers.pop(next(iter(self._trainers)))
            trainer = StackedTrainer(self._stack(size), self._setup.samples, use_graphs=use_graphs)
        self._trainers[size, recipe] = trainer
        return trainer

    def _has_no_room_for(self, size: int) -> bool:
        models = sum(known for known, _ in self._trainers)
        return len(self._trainers) >= MAX_NETWORKS or models + size > MAX_MODELS

    def _stack(self, size: int) -> StackedNetwork:
        flat = self._flat
        return StackedNetwork(flat.module, flat.spec, size, self._device, self._setup.dtype)


def _forward(network: StackedNetwork, count: int, inputs: Inputs) -> Tensor:
    assert isinstance(inputs, Tensor), "a network with several inputs is not stacked"
    return network.forward(inputs.expand(count, *inputs.shape), training=False)


def evaluated_together(count: int, size: int, device: torch.device) -> int:
    """How many of `count` models with `size` values are evaluated in one pass: a power of two, for few sizes."""
    together = MAX_EVALUATED
    if device.type != "cuda":
        return together
    while together < count and 2 * together <= min(MANY_EVALUATED, LARGE // size):
        together *= 2
    return together


class StackedTrainer:
    """Trains the clients of a job at once. On a GPU the step is a CUDA graph.

    A step reads everything from tensors that stay where they are, its own number included: replaying it is all a step
    costs the CPU, which otherwise could not keep up with the GPU.
    """

    def __init__(self, network: StackedNetwork, samples: Samples, *, use_graphs: bool) -> None:
        self.network = network
        self._samples = samples
        self._use_graphs = use_graphs
        self._recipe: tuple[LocalTraining, Loss] | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._rate = 0.0
        self._anchor = self._correction = network.parameter.detach()
        self._tables: dict[str, Tensor] = {}
        self._schedule: BatchSchedule | None = None
        self._draw_graph: CudaGraph | None = None
        self._laid_out: Tensor | None = None  # the shares that are in the tables now
        self._step_graphs: dict[int, CudaGraph] = {}

    @torch.no_grad()
    def train(self, job: TrainJob) -> TrainResult:
        """Every client of the job; those with most steps come first, so that finished ones can be left out."""
        training = job.training
        device = job.starts.device
        network = self.network
        steps = training.num_steps(job.sizes)
        if bool((steps.diff() > 0).any()):
            order = steps.argsort(descending=True, stable=True)
            models, losses = self.train(job.select(order))
            back = order.argsort().to(device)
            return TrainResult(models[back], losses[back])
        self._prepare(training, job.losses[0].unweighted())
        network.draws.on = not job.as_evaluated
        self._lay_out(job)
        if job.corrections is not None:
            network.load(job.corrections)  # lays them out as the parameters are
            self._correction.copy_(network.parameter)
        network.load(job.starts)
        network.draws.step.zero_()
        if training.proximal:
            self._anchor.copy_(network.parameter)
        done: list[Tensor] = []
        running = len(job)
        for still in (steps > torch.arange(int(steps.max()))[:, None]).sum(1).tolist():
            if still < running:
                done.insert(0, network.unload(slice(still, running)))
                running = still
            self._take_step(running)
        models = network.unload(slice(0, running))
        return TrainResult(torch.cat([models, *done]) if done else models, self._mean_losses())

    def _prepare(self, training: LocalTraining, loss: Loss) -> None:
        """A fresh optimizer, and graphs that belong to this task."""
        recipe = training.recipe, loss
        if self._recipe != recipe:
            self._recipe = recipe
            self._step_graphs = {}
            self._optimizer = None
            self._schedule = None
            if not is_plain_sgd(training, self.network.parameter.device):
                self.network.make_gradient()
                self._optimizer = make_optimizer(self.network.parameter, training)
                if training.proximal:
                    self._anchor = torch.zeros_like(self.network.parameter)
                if training.control_variates:
                    self._correction = torch.zeros_like(self.network.parameter)
        begin_steps(self._optimizer, training)
        self._rate = training.rate

    def _lay_out(self, job: TrainJob) -> None:
        """Write the tensors that the steps read."""
        device = job.starts.device
        width = self._width(job)
        known = self._schedule
        if (
            known is None
            or known.positions.shape[-1] != width
            or not torch.equal(known.sizes, job.sizes)
        ):
            self._schedule = known = BatchSchedule.of(job.sizes, job.training, width, device)
            counts = known.counts[..., None]
            self._equal_shares = (torch.arange(width, device=device) < counts) / counts.clamp(min=1)
            # None past the end
            first = (job.sizes.cumsum(0) - job.sizes).clamp(max=len(job.indices) - 1)
            self._first = first.to(device)[:, None]
            self._keys = job.keys.to(device, copy=True)
            self._put("losses", torch.zeros_like(known.last_epoch))
            self._put("rows", torch.zeros_like(known.positions))
            self._draw_graph = None
            self._draw()
        else:  # clients of the same sizes as before: nothing but their keys is new
            self._keys.copy_(job.keys)
            if self._use_graphs and self._draw_graph is None:
                self._draw_graph = CudaGraph(self._draw, [])
            (self._draw_graph or self._draw)()
        shares = self._shares(job)
        if shares is not self._laid_out:
            self._laid_out = shares
            self._put("shares", shares)
        self._put("indices", job.indices)
        self._put("targets", job.targets)

    def _draw(self) -> None:
        """The clients' batches [S, G, B], and what their dropout draws from."""
        assert self._schedule is not None
        self.network.draws.keys[: len(self._keys)].copy_(mixed(self._keys))
        rows = self._schedule.draw(self._keys) + self._first
        self._tables["rows"][: len(rows)].copy_(rows)

    def _put(self, name: str, table: Tensor) -> None:
        """A graph finds a table where it was when captured: it is copied there, or everything is captured anew."""
        if not self._use_graphs:
            self._tables[name] = table
            return
        room = self._tables.get(name)
        if room is None or room.shape[1:] != table.shape[1:] or len(room) < len(table):
            self._tables[name] = room = table.new_zeros(len(table) * 9 // 8, *table.shape[1:])
            self._step_graphs = {}
        room[: len(table)].copy_(table)

    def _width(self, job: TrainJob) -> int:
        """Samples in a batch, padding included. A graph has one width: few widths mean few graphs."""
        largest = int(job.sizes.max())
        batch_size = job.training.batch_size
        if not self._use_graphs:
            return min(batch_size or largest, largest)
        unit = 1 << max(0, largest.bit_length() - 4)  # an eighth of padding at most
        return batch_size or -(-largest // unit) * unit

    def _shares(self, job: TrainJob) -> Tensor:
        """What a sample counts in the loss of its batch [S, G, B]: 1/n, times its class weight κ; padding counts 0."""
        weights = [loss.class_weights for loss in job.losses]
        if not any(weights):
            return self._equal_shares
        num_classes = next(len(weight) for weight in weights if weight)
        device = job.targets.device
        rows = self._tables["rows"][: len(self._equal_shares)]
        # [G, C]
        table = torch.tensor([weight or (1.0,) * num_classes for weight in weights], device=device)
        return (
            self._equal_shares
            * table[torch.arange(len(table), device=device)[:, None], job.targets[rows]]
        )

    def _mean_losses(self) -> Tensor:
        """Of the last epoch [G]."""
        assert self._schedule is not None
        last_epoch = self._schedule.last_epoch
        # A client that is done has a share of 0; where its loss is NaN by now, 0 times that is none of its record.
        losses = torch.where(
            last_epoch > 0, self._tables["losses"][: len(last_epoch)].double() * last_epoch, 0
        )
        return _sum_in_order(losses, 0)

    def _take_step(self, running: int) -> None:
        """The next step of the first models; a graph may take along a few that are done."""
        span = self.network.size
        if not self._use_graphs:
            self._step(running)
            return
        while span // 2 >= running:
            span //= 2
        if span not in self._step_graphs:
            changes = [self.network.parameter, self.network.draws.step]
            changes += state_of(self._optimizer)
            self._step_graphs[span] = CudaGraph(partial(self._step, span), changes)
        self._step_graphs[span]()

    def _step(self, count: int) -> None:
        network = self.network
        assert self._recipe is not None
        training, criterion = self._recipe
        now = network.draws.step[None]
        rows, shares = (
            self._tables[name].index_select(0, now)[0, :count] for name in ("rows", "shares")
        )
        inputs = self._samples.network_inputs(self._tables["indices"][rows])
        assert isinstance(inputs, Tensor), "a network with several inputs is not stacked"
        outputs = network.forward(inputs, training=True)
        truth = self._tables["targets"][rows].flatten(0, 1)
        # Weighted by κ
        losses, gradient = criterion.with_gradient(outputs.flatten(0, 1), truth, shares.flatten())
        batch_losses = _sum_in_order(losses.view(rows.shape) * shares, 1)
        self._tables["losses"][:, :count].index_copy_(0, now, batch_losses[None])
        network.backward(
            gradient.view(outputs.shape),
            self._rate if self._optimizer is None else None,
        )
        if self._optimizer is not None:
            add_terms(network.parameter, training, self._anchor, self._correction)
            if training.clip_gradients is not None:
                network.clip_gradients(training.clip_gradients)
            self._optimizer.step()
        network.draws.step.add_(1)


def _sum_in_order(values: Tensor, dim: int) -> Tensor:
    """A sum whose last bits depend neither on padding behind the values nor on what lies beside them.

    One value is added after the other, where `sum` takes several at a time. On a GPU what is computed together changes
    the last bits anyway.
    """
    if values.is_cuda or not values.shape[dim]:
        return values.sum(dim)
    return values.cumsum(dim).select(dim, -1)


# Where graphs read their models, as long as one of them lives: they take turns
_TURN = threading.Lock()
_ROOMS: WeakValueDictionary[torch.device, Tensor] = WeakValueDictionary()


class EvaluationGraph:
    """So many models on the samples of one job, as a graph: a small job is over before its launches are."""

    def __init__(self, evaluate: Callable[[Tensor], EvaluateResult], models: Tensor) -> None:
        with _TURN:
            self._room = _room(models)
            self._models = self._room[: models.numel()].view(models.shape)
            self._models.copy_(models)
            self._result = evaluate(self._models)
            self._graph = CudaGraph(lambda: self._put(evaluate(self._models)), [])

    def _put(self, result: EvaluateResult) -> None:
        for kept, given in zip(self._result, result, strict=True):
            kept.copy_(given)

    def __call__(self, models: Tensor) -> EvaluateResult:
        """Valid until the next call."""
        with _TURN:  # two runs in one process
            self._models.copy_(models)
            self._graph()
        return self._result


def _room(models: Tensor) -> Tensor:
    """Values for these models, which other graphs use, too."""
    room = _ROOMS.get(models.device)
    if room is None or room.numel() < models.numel():
        room = models.new_empty(max(models.numel(), LEAST_ROOM))
        _ROOMS[models.device] = room
    return room


def evaluate_by_graph(
    job: EvaluateJob,
    models: Tensor,
    evaluate: Callable[[Tensor], EvaluateResult],
    at_once: int,
) -> EvaluateResult:
    """On a GPU: a small job that as many models had before gets a graph; the others are `evaluate`d anew.

    Small are at most `at_once` samples times models.
    """
    count = len(models)
    known = job.graphs
    if len(job.indices) * count > at_once or models.numel() > LARGE:
        return evaluate(models)
    if count in known:
        graph = known[count] = known[count] or EvaluationGraph(evaluate, models)
        return graph(models)
    if len(known) < MAX_GRAPHS:
        known[count] = None
    return evaluate(models)

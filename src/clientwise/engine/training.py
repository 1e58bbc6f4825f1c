"""What clients do with a task: local training, one client after the other or many at once.

Both ways read the same batches and the same dropout masks, so they agree up to the rounding of their sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from ..core.loss import Loss
from ..core.seeding import mixed, seeded_default_generator
from ..core.types import LocalTraining
from ..data.federated import Samples
from ..models.dropout import CountedDropout
from ..models.flat import FlatModel
from .batches import Timetable, num_steps
from .recording import Recording
from .stacked import StackedNetwork

MOST_RECORDINGS = 16  # for batches of different sizes; beyond that, batches run as they come


@dataclass(frozen=True)
class Bundle:
    """G clients to train alike: where each begins, what it holds, what its random draws come from."""

    starts: Tensor  # [G, d]
    numbers: Tensor  # [N] places in the samples, client after client
    targets: Tensor  # [N, ...]
    sizes: Tensor  # [G], on the CPU
    keys: Tensor  # [G], on the CPU
    training: LocalTraining
    losses: Sequence[Loss]  # [G]; they differ in nothing but their class weights

    def __len__(self) -> int:
        return len(self.starts)

    def select(self, order: Tensor) -> Bundle:
        """Some of the clients, in another order."""
        ends = self.sizes.cumsum(0)
        parts = [torch.arange(int(ends[row] - self.sizes[row]), int(ends[row])) for row in order.tolist()]
        samples, rows = torch.cat(parts).to(self.numbers.device), order.to(self.starts.device)
        losses = [self.losses[row] for row in order.tolist()]
        numbers, targets = self.numbers[samples], self.targets[samples]
        return Bundle(self.starts[rows], numbers, targets, self.sizes[order], self.keys[order], self.training, losses)

    @staticmethod
    def joined(bundles: Sequence[Bundle]) -> Bundle:
        """Several bundles that train alike, as one."""
        if len(bundles) == 1:
            return bundles[0]
        tensors = {
            name: torch.cat([getattr(bundle, name) for bundle in bundles])
            for name in ("starts", "numbers", "targets", "sizes", "keys")
        }
        losses = [loss for bundle in bundles for loss in bundle.losses]
        return Bundle(training=bundles[0].training, losses=losses, **tensors)


Trained = tuple[Tensor, Tensor]  # models [G, d] and the mean losses of their last epochs [G]


def make_optimizer(parameter: nn.Parameter, training: LocalTraining) -> torch.optim.Optimizer:
    """An optimizer whose state exists from the start, so that `restart` and recordings find it."""
    optimizer: torch.optim.Optimizer
    rate, decay = training.learning_rate, training.weight_decay
    if training.optimizer == "adam":
        optimizer = torch.optim.Adam([parameter], rate, weight_decay=decay, capturable=parameter.is_cuda)
    else:
        optimizer = torch.optim.SGD([parameter], rate, momentum=training.momentum, weight_decay=decay)
    assert parameter.grad is not None
    parameter.grad.zero_()
    optimizer.step()
    return optimizer


def _state(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


def _restart(optimizer: torch.optim.Optimizer) -> None:
    """Clients keep nothing between rounds: forget all steps. A momentum of zero is where a new optimizer begins."""
    for value in _state(optimizer):
        value.zero_()


class OneByOne:
    """Trains clients one after the other: any network. On a GPU the step of a batch may be recorded."""

    def __init__(self, flat: FlatModel, samples: Samples, *, record: bool, dtype: torch.dtype = torch.float32) -> None:
        self._flat, self._samples, self._record, self._dtype = flat, samples, record, dtype
        self._parameters = list(flat.module.parameters())
        self._dropouts = [module for module in flat.module.modules() if isinstance(module, CountedDropout)]
        self._anchor = flat.parameter.detach().clone()
        self._recipe: tuple[LocalTraining, Loss] | None = None
        self._steps: dict[int, tuple[tuple[Tensor, Tensor], Recording]] = {}
        self._loss = torch.zeros((), device=flat.vector.device)
        self._class_weights: Tensor | None = None

    def train(self, bundle: Bundle) -> Trained:
        """Every client of the bundle."""
        ends = bundle.sizes.cumsum(0).tolist()
        starts = [0, *ends[:-1]]
        trained = [self._train_client(bundle, *client) for client in zip(range(len(bundle)), starts, ends, strict=True)]
        return torch.stack([model for model, _ in trained]), torch.stack([loss for _, loss in trained])

    def _train_client(self, bundle: Bundle, place: int, start: int, end: int) -> Trained:
        training, flat, device = bundle.training, self._flat, bundle.starts.device
        key, held = bundle.keys[place : place + 1], bundle.sizes[place : place + 1]
        numbers, targets = bundle.numbers[start:end], bundle.targets[start:end]
        self._prepare(training, bundle.losses[place])
        flat.load(bundle.starts[place])
        flat.module.train()
        self._anchor.copy_(flat.parameter.detach())
        for dropout in self._dropouts:
            dropout.key.copy_(mixed(key[0]))
        loss = torch.zeros((), dtype=torch.float64, device=device)
        table = Timetable.of(held, training, min(training.batch_size or int(held), int(held)), device)
        counts, last_epoch = table.counts[:, 0].tolist(), table.last_epoch[:, 0].tolist()
        order = table.draw(key.to(device))
        with seeded_default_generator(int(key), "modules", device=device):  # for whatever else in a module draws
            for step, (count, share) in enumerate(zip(counts, last_epoch, strict=True)):
                rows = order[step, 0, :count]
                for dropout in self._dropouts:
                    dropout.step.fill_(step)
                loss += share * self._step_on(numbers[rows], targets[rows])
        return flat.vector.clone(), loss

    def _prepare(self, training: LocalTraining, loss: Loss) -> None:
        """An optimizer that has done nothing yet, and recordings that belong to this task."""
        plain = replace(loss, class_weights=None)
        if self._recipe != (training, plain):
            self._optimizer = make_optimizer(self._flat.parameter, training)
            self._recipe, self._steps = (training, plain), {}
        _restart(self._optimizer)
        if loss.class_weights is not None:  # kept in place: they change from round to round, the recordings do not
            if self._class_weights is None:
                self._class_weights, self._steps = torch.ones(len(loss.class_weights), device=self._loss.device), {}
            self._class_weights.copy_(torch.tensor(loss.class_weights))
        elif self._class_weights is not None:
            self._class_weights.fill_(1)

    def _step_on(self, numbers: Tensor, targets: Tensor) -> Tensor:
        """One step on a batch; a recording for every size of batch."""
        count = len(numbers)
        if not self._record or (count not in self._steps and len(self._steps) >= MOST_RECORDINGS):
            return self._step(numbers, targets)
        if count not in self._steps:
            batch = numbers.clone(), targets.clone()
            changes = [self._flat.vector, *self._flat.module.buffers(), *_state(self._optimizer)]
            self._steps[count] = batch, Recording(lambda: self._loss.copy_(self._step(*batch)), changes)
        batch, recording = self._steps[count]
        for place, given in zip(batch, (numbers, targets), strict=True):
            place.copy_(given)
        recording()
        return self._loss

    def _step(self, numbers: Tensor, targets: Tensor) -> Tensor:
        flat = self._flat
        assert self._recipe is not None
        training, criterion = self._recipe
        inputs = self._samples.batch(numbers)
        if self._dtype == torch.bfloat16:
            with torch.autocast(numbers.device.type, torch.bfloat16):
                outputs = flat.module(inputs).float()
        else:
            outputs = flat.module(inputs)
        losses = criterion.per_sample(outputs, targets)
        loss = (losses if self._class_weights is None else losses * self._class_weights[targets]).mean()
        gradients = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
        with torch.no_grad():
            if _is_plain(training):  # without another pass over memory
                for parameter, gradient in zip(self._parameters, gradients, strict=True):
                    parameter.add_(gradient, alpha=-training.learning_rate)
                return loss.detach()
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                assert parameter.grad is not None
                parameter.grad.copy_(gradient)
            if training.proximal:
                assert flat.parameter.grad is not None
                flat.parameter.grad.add_(flat.parameter - self._anchor, alpha=training.proximal)
        self._optimizer.step()
        return loss.detach()


class Together:
    """Trains the clients of a bundle at once, as one stacked network. On a GPU the step is recorded.

    A step reads everything from tensors that stay where they are, its own number included: replaying it is all a step
    costs the CPU, which otherwise could not keep up with the GPU.
    """

    def __init__(self, network: StackedNetwork, samples: Samples, *, record: bool) -> None:
        self.network, self._samples, self._record = network, samples, record
        self._recipe: tuple[LocalTraining, Loss] | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._anchor = network.parameter.detach()
        self._tables: dict[str, Tensor] = {}
        self._timetable: Timetable | None = None
        self._drawing: Recording | None = None
        self._laid_out: Tensor | None = None  # the shares that lie there now
        self._steps: dict[int, Recording] = {}

    @torch.no_grad()
    def train(self, bundle: Bundle) -> Trained:
        """Every client of the bundle; those with most steps first, so that who is done can be left behind."""
        training, device, network = bundle.training, bundle.starts.device, self.network
        steps = num_steps(bundle.sizes, training)
        if bool((steps.diff() > 0).any()):
            order = steps.argsort(descending=True, stable=True)
            models, losses = self.train(bundle.select(order))
            back = order.argsort().to(device)
            return models[back], losses[back]
        self._prepare(training, replace(bundle.losses[0], class_weights=None))
        self._lay_out(bundle)
        network.load(bundle.starts)
        network.step.zero_()
        if training.proximal:
            self._anchor.copy_(network.parameter)
        done: list[Tensor] = []
        running = len(bundle)
        for still in (steps > torch.arange(int(steps.max()))[:, None]).sum(1).tolist():
            if still < running:
                done.insert(0, network.unload(slice(still, running)))
                running = still
            self._take_step(running)
        models = network.unload(slice(0, running))
        return torch.cat([models, *done]) if done else models, self._mean_losses()

    def _prepare(self, training: LocalTraining, loss: Loss) -> None:
        """An optimizer that has done nothing yet, and recordings that belong to this task."""
        if self._recipe != (training, loss):
            self._recipe, self._steps, self._optimizer, self._timetable = (training, loss), {}, None, None
            if not _is_plain(training):
                self.network.make_gradient()
                self._optimizer = make_optimizer(self.network.parameter, training)
                self._anchor = torch.zeros_like(self.network.parameter)
        if self._optimizer is not None:
            _restart(self._optimizer)

    def _lay_out(self, bundle: Bundle) -> None:
        """Put what the steps read where they read it."""
        device, width, known = bundle.starts.device, self._width(bundle), self._timetable
        if known is None or known.places.shape[-1] != width or not torch.equal(known.sizes, bundle.sizes):
            self._timetable = known = Timetable.of(bundle.sizes, bundle.training, width, device)
            counts = known.counts[..., None]
            self._equal_shares = (torch.arange(width, device=device) < counts) / counts.clamp(min=1)
            first = (bundle.sizes.cumsum(0) - bundle.sizes).clamp(max=len(bundle.numbers) - 1)  # none past the end
            self._first, self._keys = first.to(device)[:, None], bundle.keys.to(device, copy=True)
            self._put("losses", torch.zeros_like(known.last_epoch))
            self._put("places", torch.zeros_like(known.places))
            self._drawing = None
            self._draw()
        else:  # clients of the same sizes as before: nothing but their keys is new
            self._keys.copy_(bundle.keys)
            if self._record and self._drawing is None:
                self._drawing = Recording(self._draw, [])
            (self._drawing or self._draw)()
        shares = self._shares(bundle)
        if shares is not self._laid_out:
            self._laid_out = shares
            self._put("shares", shares)
        self._put("numbers", bundle.numbers)
        self._put("targets", bundle.targets)

    def _draw(self) -> None:
        """The clients' batches [S, G, B], and what their dropout draws from."""
        assert self._timetable is not None
        self.network.keys[: len(self._keys)].copy_(mixed(self._keys))
        places = self._timetable.draw(self._keys) + self._first
        self._tables["places"][: len(places)].copy_(places)

    def _put(self, name: str, table: Tensor) -> None:
        """A recorded step finds a table where it was when recorded: it is copied there, or everything recorded anew."""
        if not self._record:
            self._tables[name] = table
            return
        room = self._tables.get(name)
        if room is None or room.shape[1:] != table.shape[1:] or len(room) < len(table):
            self._tables[name] = room = table.new_zeros(len(table) * 9 // 8, *table.shape[1:])
            self._steps = {}
        room[: len(table)].copy_(table)

    def _width(self, bundle: Bundle) -> int:
        """Samples in a batch, padding included. Recordings have one width: few widths mean few recordings."""
        largest, batch_size = int(bundle.sizes.max()), bundle.training.batch_size
        if not self._record:
            return min(batch_size or largest, largest)
        unit = 1 << max(0, largest.bit_length() - 4)  # an eighth of padding at most
        return batch_size or -(-largest // unit) * unit

    def _shares(self, bundle: Bundle) -> Tensor:
        """What a sample counts in the loss of its batch [S, G, B]: 1/n, times its class weight κ; padding counts 0."""
        weights = [loss.class_weights for loss in bundle.losses]
        if not any(weights):
            return self._equal_shares
        num_classes = next(len(weight) for weight in weights if weight)
        device, places = bundle.targets.device, self._tables["places"][: len(self._equal_shares)]
        table = torch.tensor([weight or (1.0,) * num_classes for weight in weights], device=device)  # [G, C]
        return self._equal_shares * table[torch.arange(len(table), device=device)[:, None], bundle.targets[places]]

    def _mean_losses(self) -> Tensor:
        """Of the last epoch [G]."""
        assert self._timetable is not None
        last_epoch = self._timetable.last_epoch
        # A client that is done has a share of 0; where its loss is NaN by now, 0 times that is none of its record.
        losses = torch.where(last_epoch > 0, self._tables["losses"][: len(last_epoch)].double() * last_epoch, 0)
        return losses.sum(0)

    def _take_step(self, running: int) -> None:
        """The next step of the first models; a recorded one may take along a few that are done."""
        span = self.network.size
        if not self._record:
            self._step(running)
            return
        while span // 2 >= running:
            span //= 2
        if span not in self._steps:
            changes = [self.network.parameter, self.network.step]
            changes += _state(self._optimizer) if self._optimizer else []
            self._steps[span] = Recording(partial(self._step, span), changes)
        self._steps[span]()

    def _step(self, count: int) -> None:
        network = self.network
        assert self._recipe is not None
        training, criterion = self._recipe
        now = network.step[None]
        places, shares = (self._tables[name].index_select(0, now)[0, :count] for name in ("places", "shares"))
        inputs = self._samples.batch(self._tables["numbers"][places])
        outputs = network.forward(inputs, training=True)
        truth = self._tables["targets"][places].flatten(0, 1)
        losses, gradient = criterion.with_gradient(outputs.flatten(0, 1), truth, shares.flatten())  # weighted by κ
        self._tables["losses"][:, :count].index_copy_(0, now, (losses.view(places.shape) * shares).sum(1)[None])
        network.backward(gradient.view(outputs.shape), training.learning_rate if self._optimizer is None else None)
        if self._optimizer is not None:
            assert network.parameter.grad is not None
            if training.proximal:
                network.parameter.grad.add_(network.parameter - self._anchor, alpha=training.proximal)
            self._optimizer.step()
        network.step += 1


def _is_plain(training: LocalTraining) -> bool:
    """Plain SGD: the stacked network takes its step itself."""
    return training.optimizer == "sgd" and not (training.momentum or training.weight_decay or training.proximal)

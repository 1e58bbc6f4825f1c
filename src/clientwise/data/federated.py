"""Samples, and which client holds which of them: what an engine reads."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..core.clock import Devices
from ..core.criteria import fact_columns
from ..core.objective.problem import Problem
from ..registry import Registry
from .arrays import NamedInput, join, problem_of, read_holders, unpack
from .encoding import Encoding
from .folder import DataError

ROWS_AT_ONCE = 2**10  # that are read for a fingerprint: samples may not fit into memory
Inputs = Tensor | dict[str, Tensor]  # a batch as a network is called with it
OwnSamples = tuple[Any, Any] | Dataset[Any]  # (inputs, targets), or a PyTorch dataset of pairs


@dataclass(frozen=True)
class Given:
    """What samples were computed from by floating-point functions; see `Samples.given`."""

    values: tuple[Tensor, ...]  # each [M, ...]
    # [N] the row of `values` that each sample comes from; None: row n is of sample n
    rows: Tensor | None = None

    def of(self, samples: Tensor) -> Given:
        """The same of some samples, by their indices."""
        return Given(self.values, samples if self.rows is None else self.rows[samples])


@dataclass(frozen=True)
class Samples:
    """A dataset before it is spread over clients."""

    inputs: Tensor  # [N, ...] integers or floats, kept compact
    # [N] class numbers (int64), values (float32, [N] or [N, ...]), labels (float32, [N, L]) or masks (uint8, [N, H, W])
    targets: Tensor
    problem: Problem
    scale: float = 1.0  # inputs · scale is what the model sees
    # Facts about the samples, each [N]
    sample_attributes: Mapping[str, Tensor] = field(default_factory=dict)
    ids: Tensor | None = None  # [N] the writer, celebrity or patient of each; negative: none
    # From this index on they are the official test split, where there is one
    test_from: int | None = None
    # Called once clients hold samples: builds a vocabulary, standardises, multiplies images.
    after_partition: Callable[[FederatedData], FederatedData] | None = None
    each_alone: bool = False  # whether `after_partition` uses no client's samples for another
    names: tuple[str, ...] = ()  # of the ids, if they have any: id 2 is names[2]
    table: Encoding | None = None  # what the inputs are made from, where they come from a table
    # What the columns of `inputs` are where the network takes several inputs; see `arrays.pack`
    parts: tuple[NamedInput, ...] = ()
    integers: bool = False  # whether the network is given integers as integers, as token ids are
    # What inputs and targets were computed from by floating-point functions; None: they are as given.
    # Fingerprints are of it: the last bits that such functions return depend on the CPU.
    given: Given | None = None

    def batch(self, indices: Tensor) -> Tensor:
        """Samples as numbers: float32 [len(indices), ...], scaled, on the indices' device."""
        inputs = self._rows(indices).float()
        return inputs if self.scale == 1 else inputs * self.scale

    def network_inputs(self, indices: Tensor) -> Inputs:
        """Samples as the network is called with them: a batch, or several by name."""
        if self.parts:
            return unpack(self._rows(indices), self.parts)
        if self.integers:
            return self._rows(indices).long()
        return self.batch(indices)

    def _rows(self, indices: Tensor) -> Tensor:
        wanted = indices.to(self.inputs.device)
        if self.inputs.is_cuda:
            return self.inputs[wanted].to(indices.device)
        # On a CPU, `inputs[wanted]` copies one value after the other; this copies a row at a time
        rows = self.inputs.index_select(0, wanted.flatten())
        return rows.reshape(*wanted.shape, *self.inputs.shape[1:]).to(indices.device)

    @property
    def input_shape(self) -> Any:
        """The shape of a sample, or of several inputs by name: what functions that make a network are given."""
        if self.parts:
            return {part.name: part.shape for part in self.parts}
        return tuple(self.inputs.shape[1:])

    def picked(self, rows: Tensor, inputs: Tensor) -> Samples:
        """Samples with other inputs [n, ...], and all else of the samples `rows` [n]."""
        facts = {name: values[rows] for name, values in self.sample_attributes.items()}
        return replace(
            self,
            inputs=inputs,
            targets=self.targets[rows],
            sample_attributes=facts,
            ids=None if self.ids is None else self.ids[rows],
            given=self.given and self.given.of(rows),
        )

    def with_copies(self, of: Tensor, inputs: Tensor) -> Samples:
        """These samples and, appended, copies of the samples `of` [m] with other inputs [m, ...]."""
        rows = torch.cat([torch.arange(len(self.targets)), of])
        return self.picked(rows, torch.cat([self.inputs, inputs]))

    def rows(self, indices: Tensor) -> Samples:
        """Some of the samples, by their indices; nothing is done to them after the partition any more."""
        picked = self.picked(indices, self._rows(indices))
        # What they were computed from stays here: the rows are trained on elsewhere
        return replace(picked, test_from=None, after_partition=None, given=None)

    def to(self, device: torch.device) -> Samples:
        """The samples with their inputs on a device; they stay compact and are scaled batch by batch."""
        return replace(self, inputs=self.inputs.to(device))

    @staticmethod
    def from_clients(
        clients: Mapping[str, OwnSamples] | Sequence[OwnSamples],
        *,
        num_classes: int | None = None,
        problem: str | None = None,
        least: int = 1,
    ) -> Samples:
        """All samples of every client, by its name or in a list.

        Every seed draws anew which samples the clients test on and which the server holds, as the config
        says. For a split of your own use `FederatedData.from_clients`.

        Args:
            clients: for each, arrays (inputs, targets), or a PyTorch dataset of pairs.
            num_classes: of integer targets; by default the largest label plus one.
            problem: what the targets are, where they do not show it; see `fit`.
            least: the fewest samples of a client.

        Example:
            >>> samples = Samples.from_clients({"north": ([[1.0], [2.0]], [0, 1]), "south": ([[3.0]], [1])})
            >>> samples.inputs.shape, samples.ids.tolist(), samples.names
            (torch.Size([3, 1]), [0, 0, 1], ('north', 'south'))
        """
        names = tuple(clients) if isinstance(clients, Mapping) else ()
        if not isinstance(clients, Mapping):
            clients = {f"client {number}": own for number, own in enumerate(clients)}
        if not clients:
            raise DataError("no clients: give a pair of arrays, or a dataset, for each")
        read = read_holders(clients.items(), least)
        found = join(read, list(clients))
        targets, predicted = problem_of(found.targets, num_classes, problem)
        sizes = torch.tensor([len(one.targets) for one in read])
        ids = torch.repeat_interleave(torch.arange(len(read)), sizes)
        samples = Samples(found.inputs, targets, predicted, ids=ids, names=names, parts=found.parts)
        samples.check_finite()
        return samples

    def check_finite(self) -> None:
        """DataError if inputs or targets are not finite: of which holder, and in which of its rows."""
        names = {0: "the dataset"} if self.ids is None else dict(enumerate(self.names))
        owners = torch.zeros(len(self.targets)) if self.ids is None else self.ids
        _refuse_infinite(self, owners, lambda one: names.get(one, f"client {one}"))


@dataclass(frozen=True)
class Holdings:
    """Which samples each of K holders has: holder k has `indices[offsets[k]:offsets[k+1]]`.

    The targets are kept beside the indices, since a hostile client may have other labels.

    Example:
        >>> held = Holdings.of([(torch.tensor([4, 7]), torch.tensor([0, 1])), (torch.tensor([2]), torch.tensor([1]))])
        >>> held.sizes.tolist(), held.gather([1])[0].tolist()
        ([2, 1], [2])
    """

    indices: Tensor  # [total] into Samples.inputs
    targets: Tensor  # [total, ...]
    offsets: Tensor  # [K + 1]

    @staticmethod
    def of(parts: Sequence[tuple[Tensor, Tensor]]) -> Holdings:
        """From one pair (sample indices, targets) per holder."""
        indices, targets = zip(*parts, strict=True)
        sizes = torch.tensor([0, *map(len, indices)])
        return Holdings(torch.cat(indices), torch.cat(targets), sizes.cumsum(0))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @functools.cached_property
    def sizes(self) -> Tensor:
        """The number of samples of each holder [K]."""
        return self.offsets.diff()

    def slice(self, holder: int) -> slice:
        """The rows of a holder's samples."""
        return slice(int(self.offsets[holder]), int(self.offsets[holder + 1]))

    @property
    def owner(self) -> Tensor:
        """The holder of every sample [total]."""
        return torch.repeat_interleave(torch.arange(len(self)), self.sizes)

    def gather(self, holders: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Indices [n] and targets [n, ...] of several holders, and each sample's index into `holders` [n]."""
        if isinstance(holders, range) and holders == range(len(self)):  # all: nothing to pick
            return self.indices, self.targets, self.owner
        sizes = self.sizes
        wanted = torch.tensor(list(holders), dtype=torch.int64)
        owner = torch.repeat_interleave(torch.arange(len(wanted)), sizes[wanted])
        starts = self.offsets[:-1][wanted] - (sizes[wanted].cumsum(0) - sizes[wanted])
        rows = (torch.arange(len(owner)) + starts[owner]).to(self.indices.device)
        return self.indices[rows], self.targets[rows], owner

    def picked(self, rows: Sequence[Any]) -> Holdings:
        """Holders of these rows: a slice or positions for each."""
        return Holdings.of([(self.indices[own], self.targets[own]) for own in rows])

    def only(self, holders: Sequence[int]) -> Holdings:
        """The same of some holders, in their order; the others keep their numbers and hold nothing."""
        indices, targets, _ = self.gather(holders)
        sizes = torch.zeros_like(self.sizes)
        sizes[list(holders)] = self.sizes[list(holders)]
        return Holdings(indices, targets, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))

    def to(self, device: torch.device) -> Holdings:
        """The samples' indices and targets on a device; the offsets stay on the CPU."""
        return Holdings(self.indices.to(device), self.targets.to(device), self.offsets)


class NewData(NamedTuple):
    """Clients that hold other training samples from a round on."""

    from_round: int
    clients: tuple[int, ...]
    train: Holdings  # of all clients, from that round on


@dataclass(frozen=True)
class FederatedData:
    """Samples, and which of them each client trains and tests on and the server holds."""

    samples: Samples
    train: Holdings  # K clients
    test: Holdings  # K clients
    weigh: Holdings | None  # of one holder, the server: it weighs models by them
    report: Holdings | None  # of one holder, the server: it reports on them
    # Facts about the clients, each [K]
    attributes: Mapping[str, Tensor] = field(default_factory=dict)
    poisoned: Holdings | None = None  # `train` in the rounds in which hostile clients attack
    triggered: Holdings | None = None  # of `report`, with a backdoor's trigger and its labels
    new_data: tuple[NewData, ...] = ()  # by round
    names: tuple[str, ...] = ()  # of the clients, where they have some
    devices: Devices | None = None  # of the clients; None: time is counted in rounds
    # Facts of `devices` that were drawn, and what from: its numbers in the config and the seed
    drawn: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_clients(self) -> int:
        """K."""
        return len(self.train)

    def train_in(self, round_num: int) -> Holdings:
        """What the clients train on in a round."""
        held = self.train
        for change in self.new_data:
            if change.from_round <= round_num:
                held = change.train
        return held

    def fingerprint(self) -> str:
        """A digest of what was given to all clients and the server.

        It does not depend on the CPU: what a floating-point function returned is not in it. Of clients whose
        samples are elsewhere nothing is in it, so that more of them may join.
        """
        samples = self.samples
        problem = samples.problem
        shape = list(samples.inputs.shape[1:])
        about: list[object] = [problem.kind, problem.num_classes]
        about += [samples.scale, samples.inputs.dtype, shape]
        holdings = [self.weigh, self.report, self.triggered]
        if len(self.train.indices):
            about.append({name: one.double().tolist() for name, one in self.attributes.items()})
            for name, values in vars(self.devices).items() if self.devices else ():
                about.append(self.drawn.get(name) or values.double().tolist())
            later = [change.train for change in self.new_data]
            holdings += [self.train, self.test, self.poisoned, *later]
        digest = hashlib.blake2b(str(about).encode(), digest_size=16)
        for held in holdings:
            self._add(held, digest)
        return digest.hexdigest()

    def _add(self, held: Holdings | None, digest: hashlib.blake2b) -> None:
        """Add the targets, inputs and facts of all holders to a digest, or what they were computed from."""
        digest.update(f"|{held and held.sizes.tolist()}".encode())
        if held is None:
            return
        samples = self.samples
        indices = held.indices.cpu()
        targets = held.targets.cpu()
        if samples.given and targets.is_floating_point():  # what counts is which ones were changed
            targets = targets != samples.targets[indices]
        given = samples.given or Given((samples.inputs,))
        sources = indices if given.rows is None else given.rows[indices]
        columns = [(targets, torch.arange(len(targets)))]
        columns += [(values.cpu(), sources) for values in given.values]
        columns += [(values, indices) for values in samples.sample_attributes.values()]
        for values, rows in columns:
            for some in torch.split(rows, ROWS_AT_ONCE):
                # By NumPy: where other processes keep the cores busy, PyTorch's threads wait for each other
                digest.update(values.numpy().take(some.numpy(), 0).ravel().data)

    def check_finite(self) -> None:
        """DataError if inputs or targets are not finite: of which client, and in which of its samples."""
        owners = torch.full((len(self.samples.targets),), -1)
        for held in filter(None, (self.weigh, self.report)):
            owners[held.indices] = self.num_clients
        for held in (self.train, self.test):
            owners[held.indices] = held.owner
        names = [self.called(client) for client in range(self.num_clients)]
        _refuse_infinite(self.samples, owners, lambda one: [*names, "the server"][one])

    def called(self, client: int) -> str:
        """A client in a message: its number, and its name if it has one."""
        return _called(client, self.names)

    def centralised(self, what: Literal["pooled", "server_only"]) -> FederatedData:
        """The data with client 0 holding all training samples: those of all clients, or the server's."""
        held = self.train if what == "pooled" else self.weigh
        assert held is not None, "validation refuses to train on a server set that is not there"
        offsets = torch.full_like(self.train.offsets, len(held.indices))
        offsets[0] = 0
        train = Holdings(held.indices, held.targets, offsets)
        return replace(self, train=train, new_data=())

    def only(self, clients: Sequence[int]) -> FederatedData:
        """The samples of some clients, in ascending order, and of the server.

        The other clients keep their numbers and hold nothing.
        """
        own = self.changed(lambda held: held.only(clients), lambda held: held)
        every = [own.train, own.test, own.weigh, own.report, own.poisoned, own.triggered]
        every += [one.train for one in own.new_data]
        used = torch.unique(torch.cat([held.indices.cpu() for held in every if held]))

        def renumbered(held: Holdings) -> Holdings:
            return replace(held, indices=torch.searchsorted(used, held.indices.cpu()))

        return replace(own.changed(renumbered), samples=self.samples.rows(used))

    def holdings_to(self, device: torch.device) -> FederatedData:
        """The data with its holdings on a device; the samples stay where they are."""
        return self.changed(lambda held: held.to(device))

    def changed(
        self,
        clients: Callable[[Holdings], Holdings],
        server: Callable[[Holdings], Holdings] | None = None,
    ) -> FederatedData:
        """The data with a function applied to all holdings of the clients, and one, by default it, to the server's."""
        server = server or clients
        return replace(
            self,
            train=clients(self.train),
            test=clients(self.test),
            weigh=server(self.weigh) if self.weigh else None,
            report=server(self.report) if self.report else None,
            poisoned=clients(self.poisoned) if self.poisoned else None,
            triggered=server(self.triggered) if self.triggered else None,
            new_data=tuple(one._replace(train=clients(one.train)) for one in self.new_data),
        )

    @staticmethod
    def from_clients(
        train: Sequence[OwnSamples],
        test: Sequence[OwnSamples],
        *,
        weigh: OwnSamples | None = None,
        report: OwnSamples | None = None,
        num_classes: int | None = None,
        problem: str | None = None,
        names: Sequence[str] = (),
        attributes: Mapping[str, Any] | None = None,
        sample_attributes: Mapping[str, Sequence[Any]] | None = None,
    ) -> FederatedData:
        """Your own samples, already split into training and test sets.

        Integer targets are classes, and floats are values to predict.

        Args:
            train: of each client, (inputs, targets), or a PyTorch dataset of pairs.
            test: of each client, the same.
            weigh: the samples by which the server weighs models.
            report: the samples on which the server reports.
            num_classes: by default the largest label plus one.
            problem: what the targets are, where they do not show it; see `fit`.
            names: of the clients, in reports.
            attributes: of the clients, a number or a boolean for each.
            sample_attributes: of the training samples, one array per client.

        Example:
            >>> part = (torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))
            >>> FederatedData.from_clients([part, part], [part, part]).num_clients
            2
        """
        count = len(train)
        given = {"training sets": train, "test sets": test, **(attributes or {})}
        given |= {"names": names} if names else {}
        lengths = {what: len(own) for what, own in {**given, **(sample_attributes or {})}.items()}
        if not count or {*lengths.values()} != {count}:
            raise DataError(f"give one for each client, got {lengths}")
        holders = {
            f"{_called(client, names)}, {part}": own
            for part, sets in (("training", train), ("test", test))
            for client, own in enumerate(sets)
        }
        holders |= {"weigh": weigh} if weigh is not None else {}
        holders |= {"report": report} if report is not None else {}
        samples = Samples.from_clients(holders, num_classes=num_classes, problem=problem, least=0)
        assert samples.ids is not None
        sizes = torch.bincount(samples.ids, minlength=len(holders)).tolist()
        facts = {}
        for name, values in (sample_attributes or {}).items():
            if [len(own) for own in values] != sizes[:count]:
                raise DataError(
                    f"sample attribute {name!r}: give one value for each training sample"
                )
            every = [torch.as_tensor(own).double() for own in values]
            facts[name] = torch.cat([*every, torch.zeros(sum(sizes[count:])).double()])
        indices = torch.split(torch.arange(len(samples.targets)), sizes)
        held = list(zip(indices, torch.split(samples.targets, sizes), strict=True))
        server = {name: Holdings.of([part]) for name, part in zip(holders, held, strict=True)}
        return FederatedData(
            replace(samples, ids=None, names=(), sample_attributes=facts),
            Holdings.of(held[:count]),
            Holdings.of(held[count : 2 * count]),
            weigh=server.get("weigh"),
            report=server.get("report"),
            attributes=fact_columns(attributes or {}),
            names=tuple(names),
        )


Loader = Callable[..., Samples]
DATASETS: Registry[Loader] = Registry("dataset", "datasets", "Sources of samples")


def _called(client: int, names: Sequence[str]) -> str:
    return f"client {client} ({names[client]})" if names else f"client {client}"


def _refuse_infinite(samples: Samples, owners: Tensor, called: Callable[[int], str]) -> None:
    """DataError for samples that are not finite, and belong to somebody (-1 in `owners` [N]: nobody)."""
    bad = torch.zeros(len(owners), dtype=torch.bool)
    for values in (samples.inputs, samples.targets):
        # One pass: a sum is not finite if a number is not (or if it overflows)
        if values.is_floating_point() and not values.sum().isfinite():
            bad |= ~values.isfinite().reshape(len(values), -1).all(1)
    bad &= owners >= 0
    if bad.any():
        owner = int(owners[bad][0])
        own = bad[owners == owner]
        raise DataError(
            f"{called(owner)}: {int(own.sum()):,} of its {len(own):,} samples have inputs or targets that are not "
            f"finite numbers, the first is its sample {int(own.nonzero()[0])}; correct them, or leave them out"
        )

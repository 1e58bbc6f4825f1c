"""Samples, and which client holds which of them: what an engine reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..core.clock import Devices
from ..core.criteria import fact_columns
from ..core.objective.problem import Problem
from ..registry import Registry
from .arrays import (
    NamedInput,
    check_clients,
    facts_of_samples,
    in_blocks,
    join,
    problem_of,
    read_blocks,
    unpack,
)
from .encoding import Encoding
from .fingerprints import Content, digests
from .folder import DataError
from .holdings import Given as Given
from .holdings import Holdings as Holdings
from .holdings import NewData as NewData

MOST_NAMED = 3  # of clients or columns, in a message
Inputs = Tensor | dict[str, Tensor]  # a batch as a network is called with it


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

    def with_copies(self, of: Tensor, inputs: Tensor) -> Samples:
        """These samples and, appended, copies of the samples `of` [m] with other inputs [m, ...]."""
        sources = torch.cat([torch.arange(len(self.targets)), of])
        return replace(
            self,
            inputs=torch.cat([self.inputs, inputs]),
            targets=torch.cat([self.targets, self.targets[of]]),
            sample_attributes={
                name: torch.cat([values, values[of]])
                for name, values in self.sample_attributes.items()
            },
            ids=None if self.ids is None else torch.cat([self.ids, self.ids[of]]),
            given=self.given.of(sources) if self.given else None,
        )

    def rows(self, indices: Tensor) -> Samples:
        """Some of the samples, by their indices; nothing is done to them after the partition any more."""
        return replace(
            self,
            inputs=self._rows(indices),
            targets=self.targets[indices],
            sample_attributes={
                name: values[indices] for name, values in self.sample_attributes.items()
            },
            ids=None if self.ids is None else self.ids[indices],
            test_from=None,
            after_partition=None,
            given=None,  # the rows are trained on elsewhere, and what was given stays here
        )

    def to(self, device: torch.device) -> Samples:
        """The samples with their inputs on a device; they stay compact and are scaled batch by batch."""
        return replace(self, inputs=self.inputs.to(device))

    @staticmethod
    def from_clients(
        clients: Mapping[str, tuple[Any, Any] | Dataset[Any]]
        | Sequence[tuple[Any, Any] | Dataset[Any]],
        *,
        num_classes: int | None = None,
        survival: bool = False,
        problem: str | None = None,
    ) -> Samples:
        """All samples of every client, by its name or in a list.

        Every seed draws anew which samples the clients test on and which the server holds, as the config
        says. For a split of your own use `FederatedData.from_clients`.

        Args:
            clients: for each, arrays (inputs, targets), or a PyTorch dataset of pairs.
            num_classes: of integer targets; by default the largest label plus one.
            survival: whether targets are times, negative if nothing had happened by then.
            problem: what the targets are, where they do not show it; see `fit`.

        Example:
            >>> samples = Samples.from_clients({"north": ([[1.0], [2.0]], [0, 1]), "south": ([[3.0]], [1])})
            >>> samples.inputs.shape, samples.ids.tolist(), samples.names
            (torch.Size([3, 1]), [0, 0, 1], ('north', 'south'))
        """
        held = list(clients.values()) if isinstance(clients, Mapping) else list(clients)
        if not held:
            raise ValueError("no clients: give a pair of arrays, or a dataset, for each")
        names = tuple(clients) if isinstance(clients, Mapping) else ()
        holders = [_called(client, names) for client in range(len(held))]
        blocks = list(zip(holders, held, strict=True))
        samples = Samples.of_holders(
            blocks, num_classes=num_classes, survival=survival, problem=problem
        )
        return replace(samples, names=names)

    @staticmethod
    def of_holders(
        blocks: Sequence[tuple[str, Any]],
        *,
        num_classes: int | None,
        survival: bool,
        problem: str | None,
    ) -> Samples:
        """The samples of holders as `read_blocks` takes them, one after the other; ids are their positions."""
        holders = [holder for holder, _ in blocks]
        read = read_blocks(blocks)
        found = join(read, holders)
        targets, predicted = problem_of(found.targets, num_classes, survival, problem)
        sizes = torch.tensor([len(block[1]) for block in read])
        ids = torch.repeat_interleave(torch.arange(len(read)), sizes)
        samples = Samples(found.inputs, targets, predicted, ids=ids, parts=found.parts)
        samples.check_finite(holders)
        return samples

    def check_finite(self, holders: Sequence[str] = ()) -> None:
        """DataError if inputs or targets are not finite: of which holder, and in which of its rows.

        Args:
            holders: what messages call the ids; by default by their numbers and names.
        """
        ids = torch.zeros(len(self.targets), dtype=torch.int64) if self.ids is None else self.ids
        found = []
        for what, values in {"inputs": self.inputs, "targets": self.targets}.items():
            if _is_finite(values):
                continue
            bad = ~values.isfinite().reshape(len(values), -1).all(1)
            for holder in sorted(set(ids[bad].tolist())):
                name = "the dataset" if self.ids is None else _called(holder, self.names)
                if holders:
                    name = holders[holder]
                said = _not_finite(values[ids == holder], what, "row")
                found.append(f"{name}: {said}")
        _refuse(found)


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

    def fingerprints(self) -> list[str]:
        """A digest of what was given to each client and, last, to the server.

        It does not depend on the CPU: what a floating-point function returned is not in it.
        """
        later = [change.train for change in self.new_data]
        clients = [self.train, self.test, *filter(None, [self.poisoned]), *later]
        server = [held for held in (self.weigh, self.report, self.triggered) if held is not None]
        columns: list[Sequence[float | str]] = []
        for values in self.attributes.values():
            columns.append(values.double().tolist())
        for name, values in vars(self.devices).items() if self.devices else ():
            own = (
                [self.drawn[name]] * self.num_clients
                if name in self.drawn
                else values.double().tolist()
            )
            columns.append(own)
        facts = [list(row) for row in zip(*columns, strict=True)] or [[]] * self.num_clients
        samples = self.samples
        attributes = samples.sample_attributes.values()
        content = Content.of(samples.inputs, samples.targets, attributes, samples.given)
        shape = list(samples.inputs.shape[1:])
        about = f"{samples.problem.recorded} {samples.scale} {samples.inputs.dtype} {shape}"
        return [*digests(about, clients, facts, content), *digests(about, server, [[]], content)]

    def check_finite(self) -> None:
        """DataError if inputs or targets are not finite: of which client, how many, in which columns."""
        kinds = {"inputs": self.samples.inputs, "targets": self.samples.targets}
        wrong = {what: values for what, values in kinds.items() if not _is_finite(values)}
        if not wrong:
            return
        parts = {"training sample": self.train, "test sample": self.test}
        holders = []
        for client in range(self.num_clients):
            for part, own in parts.items():
                holders.append((self.called(client), part, own, client))
        holders += [
            ("the server", "sample", own, 0) for own in (self.weigh, self.report) if own is not None
        ]
        found = []
        for what, values in wrong.items():
            for holder, part, own, index in holders:
                held = values[own.indices[own.slice(index)]]
                if said := _not_finite(held, what, part):
                    found.append(f"{holder}: {said}")
        _refuse(found)

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
        own = self._changed(lambda held: held.only(clients), lambda held: held)
        used = torch.unique(torch.cat([held.indices.cpu() for held in own._all_holdings()]))

        def renumbered(held: Holdings) -> Holdings:
            return replace(held, indices=torch.searchsorted(used, held.indices.cpu()))

        return replace(own._changed(renumbered, renumbered), samples=self.samples.rows(used))

    def holdings_to(self, device: torch.device) -> FederatedData:
        """The data with its holdings on a device; the samples stay where they are."""
        return self._changed(lambda held: held.to(device), lambda held: held.to(device))

    def _changed(
        self, clients: Callable[[Holdings], Holdings], server: Callable[[Holdings], Holdings]
    ) -> FederatedData:
        """The data with a function applied to all holdings of the clients, and one to the server's."""
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

    def _all_holdings(self) -> list[Holdings]:
        optional = (self.weigh, self.report, self.poisoned, self.triggered)
        there = [held for held in optional if held is not None]
        return [self.train, self.test, *there, *(one.train for one in self.new_data)]

    @staticmethod
    def from_clients(
        train: Sequence[tuple[Any, Any] | Dataset[Any]],
        test: Sequence[tuple[Any, Any] | Dataset[Any]],
        *,
        weigh: tuple[Any, Any] | Dataset[Any] | None = None,
        report: tuple[Any, Any] | Dataset[Any] | None = None,
        num_classes: int | None = None,
        survival: bool = False,
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
            survival: whether targets are times until an event, negative if it had not happened by then.
            problem: what the targets are, where they do not show it; see `fit`.
            names: of the clients, in reports.
            attributes: of the clients, a number or a word for each.
            sample_attributes: of the training samples, one array per client.

        Example:
            >>> part = (torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))
            >>> FederatedData.from_clients([part, part], [part, part]).num_clients
            2
        """
        check_clients(train, test, names, attributes or {})
        at_server = {"weigh": weigh, "report": report}
        server = {name: own for name, own in at_server.items() if own is not None}
        clients = [_called(client, names) for client in range(len(train))]
        holders = [f"{client}, {part}" for part in ("training", "test") for client in clients]
        holders += server
        blocks = read_blocks(zip(holders, [*train, *test, *server.values()], strict=True), least=0)
        found = join(blocks, holders)
        targets, predicted = problem_of(found.targets, num_classes, survival, problem)
        of_training = blocks[: len(train)]
        facts = facts_of_samples(sample_attributes or {}, of_training, clients, len(targets))
        samples = Samples(
            found.inputs, targets, predicted, parts=found.parts, sample_attributes=facts
        )
        held = in_blocks(targets, [len(block[1]) for block in blocks])
        count = len(train)
        parts = zip(server, held[2 * count :], strict=True)
        own = {name: Holdings.of([part]) for name, part in parts}
        data = FederatedData(
            samples,
            Holdings.of(held[:count]),
            Holdings.of(held[count : 2 * count]),
            weigh=own.get("weigh"),
            report=own.get("report"),
            attributes=fact_columns(attributes or {}),
            names=tuple(names),
        )
        data.check_finite()
        return data


Loader = Callable[..., Samples]
DATASETS: Registry[Loader] = Registry("dataset", "datasets", "Sources of samples")


def _called(client: int, names: Sequence[str]) -> str:
    return f"client {client} ({names[client]})" if names else f"client {client}"


def _refuse(found: Sequence[str]) -> None:
    """DataError with the first of these problems, if there are any."""
    if found:
        more = f"; {len(found)} such problems in all" if len(found) > MOST_NAMED else ""
        raise DataError(
            f"{'; '.join(found[:MOST_NAMED])}{more}; correct them, or leave those samples out"
        )


def _not_finite(values: Tensor, what: str, row: str) -> str:
    """How many of a holder's values are not finite, and where; empty if all are finite."""
    bad = ~values.isfinite()
    if not bool(bad.any()):
        return ""
    first = f"the first in {row} {int(bad.nonzero()[0, 0])}"
    said = f"{int(bad.sum()):,} of its {what} are not finite numbers, {first}"
    if bad.ndim != 2:
        return said
    columns = bad.sum(0)
    wrong = columns.nonzero().flatten().tolist()
    counted = [f"{index} ({int(columns[index]):,})" for index in wrong[:MOST_NAMED]]
    return (
        f"{said}, in column {', '.join(counted)}{' and others' if len(wrong) > MOST_NAMED else ''}"
    )


def _is_finite(values: Tensor) -> bool:
    """Whether all are finite, in one pass: a sum is not finite if a number is not (or if it overflows)."""
    return not values.is_floating_point() or bool(values.sum().isfinite())

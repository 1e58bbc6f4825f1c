"""What is probably wrong with the data: clients left out, names spelt twice, equal rows, other units."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import combinations

import torch
from torch import Tensor

from ...data.federated import FederatedData, Holdings
from ...data.summary import uncovered

MOST_VALUES = 2**22  # of inputs that are compared: larger data need not fit into memory
MOST_ROWS = 100_000  # likewise: a run with more must not begin later
MOST_NAMES = 300  # that are compared in pairs
MOST_NAMED = 3  # in a line
NOTABLE = 0.01  # share of rows from which equal ones are worth a line
ALIKE = 0.8  # similarity of two names from which one may be misspelt
FEW = 0.1  # of the other's samples, of a name that may be misspelt
FAR = 10.0  # median absolute deviations from the other clients' medians
OTHER_UNITS = 300.0  # times as large: a factor of 1,000, less what clients differ by otherwise


def data_doubts(data: FederatedData) -> Iterator[str]:
    """What is probably not meant about the samples and who holds them."""
    yield from _about_clients_left_out(data)
    if data.num_clients == 1:
        yield "there is one client: every method gives it all the weight"
    yield from _about_names(data)
    yield from _about_classes(data)
    yield from _about_unknown_classes(data)
    if found := uncovered(data, data.weigh):
        yield found.in_words(data)
    yield from _about_equal_rows(data)
    yield from _about_units(data)


def _about_clients_left_out(data: FederatedData) -> Iterator[str]:
    """Ids of the dataset that have fewer samples than any client: they were not left out by a draw."""
    names, ids = data.samples.names, data.samples.ids
    if ids is None or not names:
        return
    counts = _counts(ids, len(names))
    is_client = _counts(ids[data.train.indices.cpu()], len(names)) > 0
    missing = ((counts > 0) & ~is_client).nonzero().flatten().tolist()
    if missing and counts[missing].max() < counts[is_client].min():
        listed = _listed([f"{names[one]} ({int(counts[one])})" for one in missing])
        said = f"{len(missing)} of {int((counts > 0).sum())} clients in the data are left out"
        yield f"{said}, with too few samples (partition.minimum): {listed}"


def _about_names(data: FederatedData) -> Iterator[str]:
    """Names of clients that may be two spellings of one."""
    names, ids = data.samples.names, data.samples.ids
    if ids is None or not 1 < len(names) <= MOST_NAMES:
        return
    counts = _counts(ids, len(names)).tolist()
    for one, other in combinations(range(len(names)), 2):
        rare, common = sorted((one, other), key=lambda client: counts[client])
        if _spelt_alike(names[rare], names[common]) and counts[rare] <= FEW * counts[common]:
            said = f"{names[rare]!r} ({counts[rare]} samples) and {names[common]!r} ({counts[common]:,})"
            yield f"{said} are two clients: is one of the names misspelt?"


def _about_classes(data: FederatedData) -> Iterator[str]:
    """Classes of a table that differ by spaces or by case."""
    if data.samples.table is None:
        return
    spelt: dict[str, str] = {}
    for name in data.samples.table.classes:
        other = spelt.setdefault("".join(name.split()).casefold(), name)
        if other != name:
            yield f"{other!r} and {name!r} are two classes of {data.samples.table.target!r}: is one misspelt?"


def _about_unknown_classes(data: FederatedData) -> Iterator[str]:
    """Classes of the server's samples that no client trains on, and samples of one class to weigh by."""
    if not data.samples.problem.num_classes:
        return
    known = torch.unique(data.train.targets)
    for held, what in ((data.weigh, "weighs by"), (data.report, "reports on")):
        if held is None or not len(held.targets):
            continue
        unknown = held.targets[~torch.isin(held.targets, known)]
        if len(unknown) > NOTABLE * len(held.targets):
            listed = _listed([_class(data, one) for one in torch.unique(unknown).tolist()])
            said = f"{len(unknown):,} of {len(held.targets):,} samples that the server {what}"
            yield f"{said} are of classes that no client trains on: {listed}"
        if what == "weighs by" and len(torch.unique(held.targets)) == 1:
            yield f"all samples that the server weighs by are of class {_class(data, int(held.targets[0]))}"


def _class(data: FederatedData, number: int) -> str:
    """A class by its name in the table, or its number."""
    table = data.samples.table
    return repr(table.classes[number]) if table is not None else str(number)


def _about_equal_rows(data: FederatedData) -> Iterator[str]:
    """Test samples that are also training samples, and training samples of several clients."""
    if _is_large(data):
        return
    trained = _rows(data, data.train.indices)
    owners = torch.repeat_interleave(torch.arange(data.num_clients), data.train.sizes).tolist()
    holders: dict[bytes, int] = {}
    elsewhere = sum(
        holders.setdefault(row, owner) != owner for row, owner in zip(trained, owners, strict=True)
    )
    if elsewhere > NOTABLE * len(trained):
        yield (
            f"{elsewhere:,} of {len(trained):,} training samples are also another client's "
            "(same inputs and target): these clients count more than once"
        )
    tested = _rows(data, data.test.indices)
    if data.report is not None:
        tested += _rows(data, data.report.indices)
    leaked = sum(row in holders for row in tested)
    if leaked > NOTABLE * len(tested):
        yield (
            f"{leaked:,} of {len(tested):,} test samples are also training samples (same inputs and "
            "target): if these are the same cases, the reported results are too good"
        )
    yield from _about_weighing(data, holders)


def _about_weighing(data: FederatedData, trained: Collection[bytes]) -> Iterator[str]:
    """Samples that the server weighs by and that are used a second time, though not the same ones by number."""
    if data.weigh is None:
        return
    weighed = data.weigh.indices
    rows = _rows(data, weighed[~torch.isin(weighed, data.train.indices)])
    known = sum(row in trained for row in rows)
    if known > NOTABLE * len(rows):
        yield (
            f"{known:,} of {len(rows):,} samples that the server weighs by are also training samples (same inputs "
            "and target): the weights favour the clients that have them"
        )
    if data.report is None:
        return
    reported = _rows(data, data.report.indices)
    same = len({*rows} & {*reported})
    if same > NOTABLE * len(reported) and not torch.isin(data.report.indices, weighed).any():
        yield (
            f"{same:,} of {len(reported):,} samples to report on are also samples that the server weighs by: the "
            "reported results are too good"
        )


def _is_large(data: FederatedData) -> bool:
    inputs = data.samples.inputs
    return inputs.numel() > MOST_VALUES or len(inputs) > MOST_ROWS


def _about_units(data: FederatedData) -> Iterator[str]:
    """Columns whose numbers some clients have in other units than the others, in one line."""
    values, names = _columns_as_given(data)
    clients = [client for client, size in enumerate(data.train.sizes.tolist()) if size]
    if len(clients) < 2 or len(values) > MOST_ROWS or values.numel() > MOST_VALUES or not names:
        return
    parts = _parts(data.train)
    own = [values[parts[client]] for client in clients]
    sizes = torch.stack([rows.abs().nanmedian(0).values for rows in own])  # [K, M]
    medians = torch.stack([rows.nanmedian(0).values for rows in own])
    spreads = torch.stack(
        [
            (rows - median).abs().nanmedian(0).values
            for rows, median in zip(own, medians, strict=True)
        ]
    )
    distances = (medians - medians.nanmedian(0).values).abs() / spreads.nanmedian(0).values
    found = []
    for index, name in enumerate(names):
        size = sizes[:, index]
        far = _are_far(size, distances[:, index])
        if far.any() and not far.all():
            named = [data.called(clients[one]) for one in far.nonzero().flatten().tolist()]
            others = [data.called(clients[one]) for one in (~far).nonzero().flatten().tolist()]
            rest = others[0] if len(others) == 1 else "the others"
            here, there = size[far].nanmedian(), size[~far].nanmedian()
            found.append(
                f"{name} is about {here:.4g} with {_listed(named)}, {there:.4g} with {rest}"
            )
    if found:
        more = f"; {len(found) - MOST_NAMED} more columns" if len(found) > MOST_NAMED else ""
        yield f"{'; '.join(found[:MOST_NAMED])}{more}. Are these in other units?"


def _are_far(sizes: Tensor, distances: Tensor) -> Tensor:
    """Which clients' numbers are far larger or smaller than usual; else, which are elsewhere [K].

    Args:
        sizes: [K] the median of the absolute values of every client.
        distances: [K] of the clients' medians from their median, in median absolute deviations.
    """
    given = sizes > 0
    if given.any():
        ratio = (sizes / sizes[given].median()).where(given, 1.0)
        far = torch.maximum(ratio, 1 / ratio) > OTHER_UNITS
        if far.any():
            return far
    if len(sizes) < MOST_NAMED:  # of two, neither is the usual one
        return torch.zeros_like(given)
    return distances.isfinite() & (distances > FAR)


def _columns_as_given(data: FederatedData) -> tuple[Tensor, list[str]]:
    """The numbers before they were standardised [N, M], and what a message calls each column."""
    samples = data.samples
    inputs = samples.inputs.cpu()
    nothing: tuple[Tensor, list[str]] = (inputs[:0], [])
    if samples.table is None:
        if inputs.ndim != 2 or not inputs.is_floating_point() or samples.parts:
            return nothing
        return inputs, [f"column {index}" for index in range(inputs.shape[1])]
    if samples.given is None or samples.given.rows is not None or samples.table.by_client:
        return nothing
    values = samples.given.values[0]
    columns = samples.table.columns
    kept = [index for index, column in enumerate(columns) if not column.categories]
    return values[:, kept], [f"column {columns[index].name!r}" for index in kept]


def _rows(data: FederatedData, indices: Tensor) -> list[bytes]:
    """Inputs and target of every sample, as bytes."""
    rows = indices.cpu()
    inputs = data.samples.inputs[rows].cpu().numpy()
    targets = data.samples.targets[rows].numpy()
    return [row.tobytes() + target.tobytes() for row, target in zip(inputs, targets, strict=True)]


def _parts(held: Holdings) -> Sequence[Tensor]:
    return torch.split(held.indices.cpu(), held.sizes.tolist())


def _counts(ids: Tensor, num_names: int) -> Tensor:
    """How many samples each named id has [num_names]."""
    return torch.bincount(ids[(ids >= 0) & (ids < num_names)], minlength=num_names)


def _spelt_alike(one: str, other: str) -> bool:
    """Whether two names without digits are nearly equal: names with digits are mostly numbered."""
    if not (one + other).replace(" ", "").isalpha():
        return False
    return SequenceMatcher(None, one.casefold(), other.casefold()).ratio() >= ALIKE


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    listed = ", ".join(names[:MOST_NAMED])
    return f"{listed} and {more} more" if more > 0 else listed

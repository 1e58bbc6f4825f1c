"""A user's own arrays and PyTorch datasets as tensors, with messages that say which client's are wrong."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    default_collate,
    default_convert,
)

from ..core.objective.problem import (
    Classification,
    Multilabel,
    Problem,
    Regression,
    Segmentation,
    Survival,
)
from ..errors import shortened
from .folder import DataError

log = logging.getLogger("clientwise")
READ_TWICE = 8  # samples of a dataset; a flip by chance is seen in 255 of 256 cases
MOST_NAMED = 3  # in a message
MOST_CLASSES = 10_000  # evaluations count every class against every other
IGNORED = 255  # in masks of bytes: many datasets mark pixels without a class by it
CHANNELS = (1, 3, 4)  # of pictures
LABELS = ("labels", "label")  # the target of a sample that is a dictionary, as Hugging Face has it
KINDS = "(inputs, targets), a Dataset with __len__ and __getitem__, or a frame with target='...', the column to predict"


# One holder -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NamedInput:
    """One input of a network that takes several: a range of the columns of `Samples.inputs`."""

    name: str
    shape: tuple[int, ...]  # of a sample
    is_integer: bool  # as token ids are; otherwise float32

    @property
    def size(self) -> int:
        """Number of columns."""
        return math.prod(self.shape)


class Arrays(NamedTuple):
    """Inputs [N, ...] and targets [N, ...]."""

    inputs: Tensor
    targets: Tensor
    parts: tuple[NamedInput, ...] = ()  # of the columns of `inputs`; empty: a sample is one tensor

    @property
    def layout(self) -> str:
        """What samples of one dataset have alike, in words."""
        inputs: object = tuple(self.inputs.shape[1:])
        if self.parts:
            inputs = {part.name: part.shape for part in self.parts}
        kind = "bytes" if self.inputs.dtype == torch.uint8 else "numbers"
        return f"inputs {inputs} of {kind}, targets {tuple(self.targets.shape[1:])}"


def read_holders(given: Iterable[tuple[str, Any]], least: int = 1) -> list[Arrays]:
    """The samples of every holder; DataError that names the holder and says what to pass instead.

    Args:
        given: the name of each holder in messages, and what it has: a PyTorch dataset or loader, or
            arrays (inputs, targets).
        least: the fewest samples of a holder.
    """
    read = []
    random = []  # holders whose samples differ each time
    for holder, own in given:
        try:
            found, is_random = _read(own)
            if len(found.targets) < least:
                raise DataError("is empty: leave it out")
        except ValueError as error:
            raise DataError(f"{holder}: {error}") from None
        read.append(found)
        random += [holder] * is_random
    if random:
        log.warning(
            "warning: %s: samples differ each time they are read, as by random augmentation. They are read "
            "once, and used as they are then: pass the augmentation as transform= instead",
            first_few(random),
        )
    return read


def _read(given: Any) -> tuple[Arrays, bool]:
    """The samples of a holder, and whether they differ each time they are read."""
    if isinstance(given, DataLoader):
        loader, given = given, given.dataset
        orders = {BatchSampler, RandomSampler, SequentialSampler, type(None)}
        only_orders = {type(loader.batch_sampler), type(loader.sampler)} <= orders
        only_orders &= loader.collate_fn in (default_collate, default_convert)
        if hasattr(given, "__len__") and not only_orders:
            raise DataError(
                "is a DataLoader with a sampler or collate_fn of its own, which would not be used: clients draw their "
                "own batches. Pass a Dataset of the samples as they should be"
            )
    is_pair = isinstance(given, list) and len(given) == 2 and not isinstance(given[0], tuple | list)
    if is_pair or (isinstance(given, tuple) and len(given) == 2):
        return _packed(*_of_pair(*given)), False
    no_dataset = (tuple, str, bytes, Tensor, numpy.ndarray, Mapping, type)
    if is_frame(given) or isinstance(given, no_dataset) or not hasattr(given, "__len__"):
        raise DataError(f"is {_kind(given)}: pass {KINDS}; of a stream, list(dataset)")
    if not len(given):
        raise DataError("is empty: leave it out")
    found = _packed(*_samples(given, len(given)))
    again = _packed(*_samples(given, min(READ_TWICE, len(given))))
    return found, not again.inputs.equal(found.inputs[: len(again.inputs)])


def _of_pair(inputs: Any, targets: Any) -> tuple[Any, Any]:
    """Inputs and targets as arrays; a frame or series becomes one that PyTorch may write to."""
    pair: list[Any] = [inputs, targets]
    indexes: list[Any] = [getattr(one, "index", None) for one in pair]  # of a list, a method
    if all(hasattr(one, "equals") for one in indexes) and not indexes[0].equals(indexes[1]):
        raise DataError(
            "its inputs and targets have other indexes: pass targets.loc[inputs.index], or .to_numpy() of both if "
            "the rows are in the same order"
        )
    pair = [numpy.array(one.to_numpy()) if hasattr(one, "to_numpy") else one for one in pair]
    return pair[0], pair[1]


def _samples(dataset: Any, count: int) -> tuple[Any, Any]:
    """Inputs and targets of the first samples, which are pairs or dictionaries."""
    try:
        rows = [dataset[index] for index in range(count)]
        is_pair = isinstance(rows[0], tuple | list) and len(rows[0]) == 2
        pairs = [tuple(row) if isinstance(row, list) else row for row in rows]
        found = default_collate([_with_tensors(row) for row in pairs])
    except Exception as error:  # a user's own dataset may raise anything
        said = shortened(f"{type(error).__name__}: {error}".partition("; found")[0], 200)
        raise DataError(
            f"its samples cannot be read and joined ({said}): return tensors or numbers, padded or cut to one shape"
        ) from error
    if not is_pair and not isinstance(rows[0], Mapping):
        raise DataError(
            f"a sample is {_kind(rows[0])}: return (input, target); several inputs by name are a dictionary with "
            "the target in 'labels'"
        )
    if not isinstance(found, Mapping):
        return found[0], found[1]
    if not (keys := [key for key in LABELS if key in found]):
        raise DataError(
            f"a dataset of dictionaries needs its targets in 'labels', it has {sorted(found)}"
        )
    return {name: values for name, values in found.items() if name != keys[0]}, found[keys[0]]


def _with_tensors(sample: Any) -> Any:
    """The sample with tensors instead of lists, which `default_collate` would take for several values."""
    if isinstance(sample, Mapping):
        return {name: _with_tensors(value) for name, value in sample.items()}
    if isinstance(sample, tuple):
        return tuple(map(_with_tensors, sample))
    return torch.as_tensor(sample) if isinstance(sample, list) else sample


def _packed(inputs: Any, targets: Any) -> Arrays:
    truths = _tensor(targets, "targets")
    if isinstance(inputs, Mapping):
        values, parts = pack(inputs)
    else:
        values, parts = _tensor(inputs, "inputs"), ()
        values = values.float() if values.is_floating_point() else values
    if not values.ndim or not truths.ndim:
        raise DataError("is a single number; give one row for every sample")
    if len(values) != len(truths):
        hint = "as many of both"
        if isinstance(inputs, list | tuple):
            hint += '; for a network that takes several inputs, arrays by name: {"left": x1, "right": x2}'
        raise DataError(f"has {len(values)} inputs, {len(truths)} targets; give {hint}")
    return Arrays(values, truths, parts)


def _tensor(values: Any, what: str) -> Tensor:
    """An array or list as a dense tensor of real numbers, not copied where possible."""
    try:
        if (
            isinstance(values, list | tuple)
            and values
            and isinstance(values[0], Tensor | numpy.ndarray)
        ):
            values = torch.stack([torch.as_tensor(one) for one in values])
        if isinstance(values, numpy.ma.MaskedArray) and numpy.ma.is_masked(values):
            raise DataError("some values are masked: fill them, or leave those samples out")
        if isinstance(values, numpy.ndarray):  # PyTorch takes no strides below zero
            values = numpy.asarray(values, values.dtype.newbyteorder("="), order="C")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            found = torch.as_tensor(values).detach()
        if found.layout != torch.strided or found.is_complex():
            raise DataError("pass real numbers, and not a sparse tensor")
    except (TypeError, ValueError, RuntimeError) as error:
        hint = "text becomes numbers by a tokenizer"
        if what == "targets":
            hint = "number the classes from 0, alike for all clients, as numpy.unique(all_labels, return_inverse=True)"
        said = shortened(str(error).splitlines()[0], 80)
        raise DataError(f"its {what} are no array of numbers ({said}); {hint}") from None
    return found


def pack(inputs: Mapping[str, Any]) -> tuple[Tensor, tuple[NamedInput, ...]]:
    """Several inputs by name, each [N, ...], as the columns of one tensor [N, F].

    Integers and booleans stay integers; `uint8`, which pictures have, becomes float.

    Example:
        >>> rows, parts = pack({"input_ids": [[5, 7], [8, 0]], "attention_mask": [[1, 1], [1, 0]]})
        >>> rows.tolist(), [part.name for part in parts]
        ([[5, 7, 1, 1], [8, 0, 1, 0]], ['input_ids', 'attention_mask'])
    """
    tensors = {name: _tensor(values, f"inputs {name!r}") for name, values in inputs.items()}
    lengths = {name: len(values) if values.ndim else 0 for name, values in tensors.items()}
    if len(set(lengths.values())) != 1:
        raise DataError(f"inputs need one row for every sample each, got {lengths}")
    parts = []
    for name, values in tensors.items():
        is_integer = not values.is_floating_point() and values.dtype != torch.uint8
        parts.append(NamedInput(name, tuple(values.shape[1:]), is_integer))
    dtype = torch.float64  # holds integers up to 2**53
    if len({part.is_integer for part in parts}) == 1:
        dtype = torch.int64 if parts[0].is_integer else torch.float32
    columns = [values.unsqueeze(-1).flatten(1).to(dtype) for values in tensors.values()]
    return torch.cat(columns, 1), tuple(parts)


def unpack(rows: Tensor, parts: Sequence[NamedInput]) -> dict[str, Tensor]:
    """The inputs by name, each [B, ...], of the rows of `pack` [B, F]."""
    columns = torch.split(rows, [part.size for part in parts], -1)
    named = {}
    for part, values in zip(parts, columns, strict=True):
        typed = values.long() if part.is_integer else values.float()
        named[part.name] = typed.reshape(*rows.shape[:-1], *part.shape)
    return named


def is_frame(given: object) -> bool:
    """Whether this is a frame of pandas or polars."""
    library = type(given).__module__.partition(".")[0]
    return library in ("pandas", "polars") and hasattr(given, "columns")


def _kind(given: Any) -> str:
    """A value in a message."""
    if given is None or isinstance(given, type | str):
        return shortened(repr(given), 60)
    shape = getattr(given, "shape", None)
    return f"a {type(given).__name__}{'' if shape is None else f' of shape {tuple(shape)}'}"


# Several holders --------------------------------------------------------------------------------------------------


def join(read: Sequence[Arrays], holders: Sequence[str]) -> Arrays:
    """The samples of all holders, one after the other; DataError that names the holder that does not fit."""
    filled = [place for place, one in enumerate(read) if len(one.targets)] or [0]
    first = read[filled[0]]
    for place in filled:
        if read[place].layout != first.layout:
            raise DataError(
                f"samples must be of one shape: {holders[place]}: {read[place].layout}, {holders[filled[0]]}: "
                f"{first.layout}; bytes of pictures are 0 to 255, floats often 0 to 1"
            )
    parts = [
        replace(same[0], is_integer=all(one.is_integer for one in same))
        for same in zip(*(read[place].parts for place in filled), strict=True)
    ]
    inputs = torch.cat([read[place].inputs for place in filled])
    return Arrays(inputs, torch.cat([one.targets for one in read]), tuple(parts))


def first_few(names: Sequence[str], most: int = MOST_NAMED) -> str:
    """Names in a message: the first ones, and how many more.

    >>> first_few(["north", "south", "east", "west", "centre"])
    'north, south, east and 2 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shortened(name, 40) for name in names[:most]) + more


# What is predicted ------------------------------------------------------------------------------------------------


def problem_of(
    targets: Tensor,
    num_classes: int | None = None,
    problem: str | None = None,
) -> tuple[Tensor, Problem]:
    """Targets as they are stored, and the problem.

    Args:
        targets: [N, ...] of any type.
        num_classes: of classes and masks; None: the largest number plus one.
        problem: its kind; None: as the targets look.
    """
    if problem is not None and problem not in _READERS:
        raise DataError(f"problem = {problem!r}: must be one of {', '.join(_READERS)}")
    kind = problem or _likely_kind(targets)
    if num_classes is not None and kind not in (Classification.kind, Segmentation.kind):
        raise DataError(
            f"num_classes = {num_classes!r}: these targets are no classes; pass integers, as targets.long()"
        )
    return _READERS[kind](targets, num_classes or 0)


def _likely_kind(targets: Tensor) -> str:
    """The kind of problem that targets look like."""
    if targets.ndim == 2 and targets.shape[1] > 1 and len(targets) and _are_binary(targets):
        if bool((targets.sum(1) == 1).all()):
            raise DataError(
                f"targets have shape {tuple(targets.shape)} and look one-hot: pass targets.argmax(1); where a sample "
                "may have several labels, pass problem='multilabel'"
            )
        return Multilabel.kind
    if targets.is_floating_point():
        return Regression.kind
    return Segmentation.kind if _are_masks(targets) else Classification.kind


def _are_binary(targets: Tensor) -> bool:
    return bool(((targets == 0) | (targets == 1)).all())


def _are_masks(targets: Tensor) -> bool:
    """Whether these are [N, H, W], or [N, 1, H, W]."""
    return targets.ndim == 3 or (targets.ndim == 4 and targets.shape[1] == 1)


def _range(targets: Tensor) -> tuple[int, int]:
    return (int(targets.min()), int(targets.max())) if targets.numel() else (0, 0)


def _as_classes(targets: Tensor, given: int) -> tuple[Tensor, Problem]:
    if targets.is_floating_point():
        raise DataError("targets are floats: for classes, pass integers, as targets.long()")
    if targets.ndim > 1:
        raise DataError(
            f"targets have shape {tuple(targets.shape)} and are integers, which are classes: pass classes [N], masks "
            "[N, H, W], labels [N, L] of 0 and 1, or floats, which are numbers to predict"
        )
    least, largest = _range(targets)
    count = given or max(2, largest + 1)
    if not 2 <= count <= MOST_CLASSES:
        raise DataError(f"there are {count:,} classes: must be 2 to {MOST_CLASSES:,}")
    if least < 0 or largest >= count:
        hint = "integers are classes from 0: for numbers to predict, pass floats"
        raise DataError(f"labels must be 0 to {count - 1}, found {least} to {largest}; {hint}")
    return targets.long(), Classification(count)


def _as_times(targets: Tensor, given: int) -> tuple[Tensor, Problem]:
    if targets.ndim > 1 or bool((targets == 0).any()):
        raise DataError(
            f"times of shape {tuple(targets.shape)}: must be [N], and greater than 0, or less where the event had "
            "not happened by then; some are 0"
        )
    if len(targets) and bool((targets < 0).all()):
        raise DataError(
            "all times are negative, so no event has happened: there is nothing to learn"
        )
    return targets.float(), Survival()


def _as_labels(targets: Tensor, given: int) -> tuple[Tensor, Problem]:
    if targets.ndim != 2 or targets.shape[1] < 2 or not _are_binary(targets):
        raise DataError(
            f"targets have shape {tuple(targets.shape)}: multi-label targets are 0 and 1, [N, L] with two labels or "
            "more; for one label, pass classes [N]"
        )
    return targets.float(), Multilabel(targets.shape[1])


def _as_masks(targets: Tensor, given: int) -> tuple[Tensor, Problem]:
    if targets.is_floating_point() or not _are_masks(targets):
        raise DataError(
            f"targets have shape {tuple(targets.shape)} and type {targets.dtype}: masks are integers [N, H, W], a "
            "class for every pixel"
        )
    masks = targets.squeeze(1) if targets.ndim == 4 else targets
    least, largest = _range(masks.long())
    count = given or max(2, min(IGNORED, largest + 1))
    if least < 0 or largest >= count:
        hint = "255 often marks pixels to ignore: give them a class, or pass (masks > 0) of black and white"
        raise DataError(
            f"masks must have classes 0 to {(given or IGNORED) - 1}, found {least} to {largest}; {hint}"
        )
    return masks.to(torch.uint8), Segmentation(max(2, count))


_READERS = {
    Classification.kind: _as_classes,
    Regression.kind: lambda targets, given: (targets.float(), Regression()),
    Survival.kind: _as_times,
    Multilabel.kind: _as_labels,
    Segmentation.kind: _as_masks,
}


def shape_hint(inputs: Tensor) -> str:
    """What to do about pictures with their channels last; empty where these are none.

    >>> shape_hint(torch.ones(2, 9, 9, 3))
    'samples of shape (9, 9, 3) look like pictures with their channels last: use inputs.transpose(0, 3, 1, 2)'
    """
    shape = tuple(inputs.shape)
    if inputs.ndim != 4 or shape[3] not in CHANNELS or shape[1] in CHANNELS:
        return ""
    said = f"samples of shape {shape[1:]} look like pictures with their channels last"
    return f"{said}: use inputs.transpose(0, 3, 1, 2)"

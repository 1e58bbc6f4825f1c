"""A user's own arrays and PyTorch datasets as tensors, with messages that say which client's are wrong."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
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

log = logging.getLogger("clientwise")
READ_TWICE = (
    8  # samples of a dataset; a flip of each with probability 1/2 is seen in 255 of 256 cases
)
MOST_NAMED = 3  # holders in a message
MOST_CLASSES = 10_000  # evaluations count every class against every other
IGNORED = 255  # in masks of bytes: many datasets mark pixels without a class by it
MOST_SHOWN = 3  # of labels, in a message
CHANNELS = (1, 3, 4)  # of pictures
# The target of a sample that is one dictionary, as Hugging Face has it
LABELS = ("labels", "label")


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
    """Inputs [N, ...] and targets [N, ...] of several clients, one after the other."""

    inputs: Tensor
    targets: Tensor
    parts: tuple[NamedInput, ...]  # of the columns of `inputs`; empty: a sample is one tensor


def pack(inputs: Mapping[str, Any]) -> tuple[Tensor, tuple[NamedInput, ...]]:
    """Several inputs by name, each [N, ...], as the columns of one tensor [N, F].

    Integers and booleans stay integers; `uint8`, which pictures have, becomes float.

    Example:
        >>> rows, parts = pack({"input_ids": [[5, 7], [8, 0]], "attention_mask": [[1, 1], [1, 0]]})
        >>> rows.tolist(), [part.name for part in parts]
        ([[5, 7, 1, 1], [8, 0, 1, 0]], ['input_ids', 'attention_mask'])
    """
    tensors = {name: as_tensor(values) for name, values in inputs.items()}
    lengths = {name: len(values) if values.ndim else 0 for name, values in tensors.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"inputs need one row for every sample each, got {lengths}")
    parts = []
    for name, values in tensors.items():
        is_integer = not values.is_floating_point() and values.dtype != torch.uint8
        parts.append(NamedInput(name, tuple(values.shape[1:]), is_integer))
    kinds = {part.is_integer for part in parts}
    if len(kinds) > 1:
        dtype = torch.float64  # holds integers up to 2**53
    elif True in kinds:
        dtype = torch.int64
    else:
        dtype = torch.float32
    columns = [
        values.reshape(len(values), part.size).to(dtype)
        for part, values in zip(parts, tensors.values(), strict=True)
    ]
    return torch.cat(columns, 1), tuple(parts)


def unpack(rows: Tensor, parts: Sequence[NamedInput]) -> dict[str, Tensor]:
    """The inputs by name, each [B, ...], of the rows of `pack` [B, F]."""
    columns = torch.split(rows, [part.size for part in parts], -1)
    named = {}
    for part, values in zip(parts, columns, strict=True):
        typed = values.long() if part.is_integer else values.float()
        named[part.name] = typed.reshape(*rows.shape[:-1], *part.shape)
    return named


def join(blocks: Sequence[tuple[Any, Any]], holders: Sequence[str]) -> Arrays:
    """Inputs and targets of all blocks; ValueError that names the holder if they do not fit together."""
    packed = [_packed(block, holder) for block, holder in zip(blocks, holders, strict=True)]
    filled = [index for index, one in enumerate(packed) if len(one.inputs)]
    first = filled[0] if filled else 0
    for holder, one in zip(holders, packed, strict=True):
        if len(one.inputs) != len(one.targets):
            raise ValueError(
                f"{holder}: has {len(one.inputs)} inputs, {len(one.targets)} targets; give as many of both"
            )
        if len(one.inputs) and _shape(one) != _shape(packed[first]):
            raise ValueError(
                f"samples must be of one shape: {holder}: {_shape(one)}, "
                f"{holders[first]}: {_shape(packed[first])}"
            )
        if len(one.inputs) and _is_bytes(one) != _is_bytes(packed[first]):
            raise ValueError(
                f"inputs must be of one type: {holder}: {one.inputs.dtype}, {holders[first]}: "
                f"{packed[first].inputs.dtype}; bytes of pictures are 0 to 255, floats often 0 to 1"
            )
    inputs = torch.cat([packed[index].inputs for index in filled or [0]])
    targets = torch.cat([one.targets for one in packed])
    parts = _common_parts([packed[index].parts for index in filled or [0]])
    return Arrays(inputs, targets, parts)


def _is_bytes(one: Arrays) -> bool:
    return one.inputs.dtype == torch.uint8


def _common_parts(parts: Sequence[Sequence[NamedInput]]) -> tuple[NamedInput, ...]:
    """Inputs of the same names and shapes; one is an integer if it is one with every client."""
    return tuple(
        replace(same[0], is_integer=all(one.is_integer for one in same))
        for same in zip(*parts, strict=True)
    )


def _packed(block: tuple[Any, Any], holder: str) -> Arrays:
    inputs, targets = block
    parts: tuple[NamedInput, ...] = ()
    try:
        if isinstance(inputs, Mapping):
            values, parts = pack(inputs)
        else:
            values = as_tensor(inputs)
            values = values.float() if values.is_floating_point() else values
    except (TypeError, ValueError, RuntimeError) as error:
        if _are_several(inputs):
            raise ValueError(
                f"{holder}: its inputs are {len(inputs)} arrays; give one array, or, for a network that takes several "
                'inputs, a dictionary of arrays by name: {"left": x1, "right": x2}'
            ) from None
        if _are_text(inputs):
            raise ValueError(
                f"{holder}: its inputs are text: turn them into numbers, as a tokenizer does"
            ) from None
        reason = str(error).splitlines()[0]
        raise ValueError(f"{holder}: its inputs are no array of numbers ({reason})") from None
    truths = _targets(targets, holder)
    if not values.ndim or not truths.ndim:
        raise ValueError(f"{holder}: is a single number; give one row for every sample")
    return Arrays(values, truths, parts)


def as_tensor(values: Any) -> Tensor:
    """An array or list as a dense tensor of real numbers, not copied where possible; ValueError if it is none."""
    if isinstance(values, numpy.ma.MaskedArray) and numpy.ma.is_masked(values):
        raise ValueError("some values are masked: fill them, or leave those samples out")
    if hasattr(values, "toarray"):  # of SciPy
        raise ValueError("it is sparse: pass .toarray()")
    if isinstance(values, numpy.ndarray):
        if values.dtype == object:
            raise ValueError("it has objects: pass numbers, as .astype('float32') makes them")
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
        if any(stride < 0 for stride in values.strides):
            values = values.copy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        found = torch.as_tensor(values).detach()
    if found.layout != torch.strided:
        raise ValueError("it is sparse: pass .to_dense()")
    if found.is_complex():
        raise ValueError("it has complex numbers: pass real ones, as torch.view_as_real makes them")
    return found


def _are_text(inputs: Any) -> bool:
    if isinstance(inputs, numpy.ndarray):
        return inputs.dtype.kind in "US"
    return isinstance(inputs, list | tuple) and any(isinstance(one, str) for one in inputs[:1])


def _are_several(inputs: Any) -> bool:
    """Whether these are arrays of many samples, not one array."""
    if not isinstance(inputs, list | tuple):
        return False
    return all(getattr(part, "ndim", 0) > 1 for part in inputs)


def _targets(targets: Any, holder: str) -> Tensor:
    try:
        return as_tensor(targets)
    except (TypeError, ValueError, RuntimeError) as error:
        first = list(targets)[:MOST_SHOWN]
        if any(isinstance(label, str) for label in first):
            shown = ", ".join(repr(str(label)) for label in first)
            raise ValueError(
                f"{holder}: its targets are text ({shown}, ...): number the classes from 0, in the same way for all "
                "clients, as numpy.unique(all_labels, return_inverse=True) does"
            ) from None
        raise ValueError(f"{holder}: its targets are no array of numbers ({error})") from None


def _shape(one: Arrays) -> str:
    inputs: object = tuple(one.inputs.shape[1:])
    if one.parts:
        inputs = {part.name: part.shape for part in one.parts}
    return f"inputs {inputs}, targets {tuple(one.targets.shape[1:])}"


def problem_of(
    targets: Tensor, num_classes: int | None, survival: bool, problem: str | None = None
) -> tuple[Tensor, Problem]:
    """Targets as they are stored, and the problem.

    Args:
        targets: [N, ...] of any type.
        num_classes: of classes and masks; None: the largest number plus one.
        survival: the same as the problem "survival".
        problem: its kind; None: as the targets look.
    """
    if problem is not None and problem not in _READERS:
        raise ValueError(f"problem = {problem!r}: must be one of {', '.join(_READERS)}")
    if survival and problem not in (None, Survival.kind):
        raise ValueError(f"survival = True, and problem = {problem!r}: give one of them")
    kind = Survival.kind if survival else problem or _likely_kind(targets)
    if num_classes is not None and kind not in _WITH_CLASSES:
        raise ValueError(
            f"num_classes = {num_classes!r}: these targets are no classes; pass integers, as targets.long()"
        )
    if num_classes is not None and (
        not isinstance(num_classes, int | numpy.integer) or num_classes < 1
    ):
        raise ValueError(f"num_classes = {num_classes!r}: must be an integer of at least 1")
    return _READERS[kind](targets, num_classes)


def _likely_kind(targets: Tensor) -> str:
    """The kind of problem that targets look like."""
    shape = tuple(targets.shape)
    several = targets.ndim == 2 and shape[1] > 1
    if several and _are_binary(targets) and len(targets):
        if bool((targets.sum(1) == 1).all()):
            raise ValueError(
                f"targets have shape {shape} and look one-hot: pass targets.argmax(1); where a sample may have several "
                "labels, pass problem='multilabel'"
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


def _as_classes(targets: Tensor, num_classes: int | None) -> tuple[Tensor, Problem]:
    shape = tuple(targets.shape)
    if targets.ndim > 1:
        what = "are integers"
        hint = "numbers of classes [N], masks [N, H, W] or labels [N, L] of 0 and 1"
        if targets.numel() == len(targets):
            hint = "targets.flatten()"
        elif targets.numel():
            what = f"are integers from {int(targets.min())} to {int(targets.max())}"
        raise ValueError(
            f"targets have shape {shape} and {what}, which are classes, one per sample: pass {hint}; "
            "floats are numbers to predict"
        )
    if targets.is_floating_point():
        raise ValueError("targets are floats: for classes, pass integers, as targets.long()")
    return targets.long(), _classes(targets.long(), num_classes)


def _as_numbers(targets: Tensor, num_classes: int | None) -> tuple[Tensor, Problem]:
    return targets.float(), Regression()


def _as_times(targets: Tensor, num_classes: int | None) -> tuple[Tensor, Problem]:
    if targets.ndim > 1:
        raise ValueError(
            f"targets of shape {tuple(targets.shape)}: survival has one time per sample"
        )
    if bool((targets == 0).any()):
        count = int((targets == 0).sum())
        raise ValueError(
            f"{count:,} of {len(targets):,} times are 0: a time must be greater than 0, or less where the "
            "event had not happened by then"
        )
    if len(targets) and bool((targets < 0).all()):
        raise ValueError(
            "all times are negative, so no event has happened: there is nothing to learn"
        )
    return targets.float(), Survival()


def _as_labels(targets: Tensor, num_classes: int | None) -> tuple[Tensor, Problem]:
    shape = tuple(targets.shape)
    if targets.ndim != 2 or shape[1] < 2:
        raise ValueError(
            f"targets have shape {shape}: multi-label targets are [N, L] with two labels or more; for one label, "
            "pass classes [N]"
        )
    if not _are_binary(targets):
        found = f"{float(targets.min()):g} to {float(targets.max()):g}"
        raise ValueError(f"multi-label targets must be 0 or 1, found values from {found}")
    return targets.float(), Multilabel(shape[1])


def _as_masks(targets: Tensor, num_classes: int | None) -> tuple[Tensor, Problem]:
    shape = tuple(targets.shape)
    if not _are_masks(targets):
        raise ValueError(
            f"targets have shape {shape}: masks are [N, H, W], a class for every pixel"
        )
    if targets.is_floating_point():
        raise ValueError("masks are floats: pass integers from 0, as masks.long()")
    masks = targets.squeeze(1) if targets.ndim == 4 else targets
    if masks.dtype == torch.bool:
        masks = masks.to(torch.uint8)
    least, largest = (int(masks.min()), int(masks.max())) if masks.numel() else (0, 0)
    count = max(2, num_classes or largest + 1)
    hint = ""
    if largest == IGNORED:
        hint = f"; {IGNORED} often marks pixels to ignore: give them a class"
        if bool(((masks == 0) | (masks == IGNORED)).all()):
            hint = "; of black and white masks, pass (masks > 0)"
    if least < 0 or largest >= count or largest >= IGNORED:
        allowed = f"0 to {num_classes - 1}" if num_classes else f"0 to {IGNORED - 1}"
        raise ValueError(f"masks must have classes {allowed}, found {least} to {largest}{hint}")
    return masks.to(torch.uint8), Segmentation(count)


_READERS: dict[str, Callable[[Tensor, int | None], tuple[Tensor, Problem]]] = {
    Classification.kind: _as_classes,
    Regression.kind: _as_numbers,
    Survival.kind: _as_times,
    Multilabel.kind: _as_labels,
    Segmentation.kind: _as_masks,
}
_WITH_CLASSES = (Classification.kind, Segmentation.kind)


def _classes(targets: Tensor, num_classes: int | None) -> Problem:
    """So many classes, or as many as there are labels; ValueError where they cannot be the labels of classes."""
    least, largest = (int(targets.min()), int(targets.max())) if len(targets) else (0, 0)
    problem = Classification(num_classes or max(2, largest + 1))
    if not 2 <= problem.num_classes <= MOST_CLASSES:
        raise ValueError(
            f"there are {problem.num_classes:,} classes: must be 2 to {MOST_CLASSES:,}"
        )
    if least < 0 or largest >= problem.num_classes:
        hint = "; subtract 1 from all labels" if least == 1 else ""
        if least < 0:
            hint = "; integers are classes: for numbers to predict, pass floats"
        raise ValueError(
            f"labels must be 0 to {problem.num_classes - 1}, found {least} to {largest}{hint}"
        )
    return problem


def channels_last_hint(shape: Sequence[int]) -> str:
    """What to do about pictures whose channels are last; empty where they are not.

    >>> channels_last_hint((1, 28, 28))
    ''
    """
    if len(shape) != 3 or shape[2] not in CHANNELS or shape[0] in CHANNELS:
        return ""
    height, width, channels = shape
    return (
        f"samples of shape {tuple(shape)} look like pictures with their channels last, and networks take "
        f"{(channels, height, width)}: use inputs.transpose(0, 3, 1, 2)"
    )


def shape_hint(inputs: Tensor, targets: Tensor) -> str:
    """What to do about samples whose shapes are probably not meant; empty where they may be.

    >>> shape_hint(torch.ones(9), torch.ones(9, 4))
    'inputs have shape (9,) and targets (9, 4): if they are swapped, pass (inputs, targets)'
    """
    if inputs.ndim == 1 and targets.ndim > 1 and targets.is_floating_point():
        shapes = f"inputs have shape {tuple(inputs.shape)} and targets {tuple(targets.shape)}"
        return f"{shapes}: if they are swapped, pass (inputs, targets)"
    return channels_last_hint(inputs.shape[1:])


def is_frame(given: object) -> bool:
    """Whether this is a frame of pandas or polars."""
    library = type(given).__module__.partition(".")[0]
    return library in ("pandas", "polars") and hasattr(given, "columns")


@dataclass
class Noticed:
    """What was noticed when holders' samples were read: a line for each kind, however many holders it is about."""

    random: list[str] = field(default_factory=list)  # holders whose samples differ each time
    loaders: list[str] = field(
        default_factory=list
    )  # holders whose loader does more than to shuffle
    unused: set[str] = field(default_factory=set)  # what these loaders have

    def warn(self) -> None:
        """Log the lines."""
        if self.loaders:
            log.warning(
                "warning: %s: of a DataLoader the dataset alone is used: every sample is read once, and clients draw "
                "their own batches. Not used: its %s",
                first_few(self.loaders),
                ", its ".join(sorted(self.unused)),
            )
        if self.random:
            log.warning(
                "warning: %s: samples differ each time they are read, as by random augmentation. They are read "
                "once, and used as they are then: pass the augmentation as transform= instead",
                first_few(self.random),
            )


def read_blocks(blocks: Iterable[tuple[str, Any]], least: int = 1) -> list[tuple[Any, Any]]:
    """Inputs and targets of holders of samples; ValueError that says what to pass instead.

    Args:
        blocks: the name of each holder in messages, and its PyTorch dataset or loader, or arrays
            (inputs, targets).
        least: the fewest samples of a holder that has arrays.
    """
    noticed = Noticed()
    read = [_read_block(given, holder, noticed, least) for holder, given in blocks]
    noticed.warn()
    return read


def _read_block(given: Any, holder: str, noticed: Noticed, least: int) -> tuple[Any, Any]:
    if isinstance(given, DataLoader):
        if unused := list(_unused_of(given)):
            noticed.loaders.append(holder)
            noticed.unused.update(unused)
        given = given.dataset
    if isinstance(given, str | bytes | PathLike):
        raise ValueError(
            f"{holder}: is text ({shortened(str(given), 40)!r}): read the file, and pass its arrays or frame"
        )
    if is_frame(given):
        raise ValueError(
            f"{holder}: is a frame, and target= names no column: pass target='...', the column to predict"
        )
    if isinstance(given, tuple) or _is_pair(given):
        return _read_pair(given, holder, least)
    if isinstance(given, Tensor | numpy.ndarray):
        raise ValueError(
            f"{holder}: is one array of shape {tuple(given.shape)}: pass (inputs, targets)"
        )
    if isinstance(given, Mapping):
        raise ValueError(
            f"{holder}: is a dictionary with {', '.join(map(str, given)) or 'nothing'}: pass (inputs, targets)"
        )
    return _read_dataset(given, holder, noticed)


def _is_pair(given: object) -> bool:
    """Whether this is a list [inputs, targets], not a list of samples."""
    return isinstance(given, list) and len(given) == 2 and not isinstance(given[0], tuple | list)


def _read_pair(given: Sequence[Any], holder: str, least: int) -> tuple[Any, Any]:
    if len(given) != 2:
        raise ValueError(f"{holder}: is a tuple of {len(given)}: pass (inputs, targets)")
    _refuse_other_index(given, holder)
    inputs, targets = (_of_series(one) for one in given)
    for what, one in (("inputs", inputs), ("targets", targets)):
        if getattr(one, "ndim", 1) == 0:
            raise ValueError(f"{holder}: is a single number; give one row for every sample")
        if not hasattr(one, "__len__") or isinstance(one, str):
            raise ValueError(
                f"{holder}: its {what} are {_kind(one)}: pass an array with a row for each sample"
            )
    if len(targets) < least:
        raise ValueError(f"{holder}: has no samples: leave it out")
    if isinstance(inputs, list | tuple) and len(inputs) == len(targets):
        inputs = _stacked(inputs, holder)
    return inputs, targets


def _refuse_other_index(given: Sequence[Any], holder: str) -> None:
    """ValueError for frames and series whose rows have other names, so that a pair may be of two samples."""
    indexes: list[Any] = [getattr(one, "index", None) for one in given]  # of a list, a method
    first, second = indexes
    if not (hasattr(first, "equals") and hasattr(second, "equals")) or first.equals(second):
        return
    hint = "pass .to_numpy() of both if the rows are in the same order"
    if first.is_unique and second.is_unique and len(first) == len(first.intersection(second)):
        hint = "pass targets.loc[inputs.index]"
    raise ValueError(f"{holder}: its inputs and targets have other indexes: {hint}")


def _of_series(given: Any) -> Any:
    """A frame or series as an array that PyTorch may write to; anything else as it is."""
    return numpy.array(given.to_numpy()) if hasattr(given, "to_numpy") else given


def _stacked(values: Sequence[Any], holder: str) -> Any:
    """A list of arrays of one shape as one array; other lists as they are."""
    if not all(isinstance(one, Tensor | numpy.ndarray | list) for one in values):
        return values
    shapes = {numpy.shape(one) if not isinstance(one, list) else (len(one),) for one in values}
    if len(shapes) > 1:
        raise ValueError(_lengths_differ(shapes, holder))
    if isinstance(values[0], list):
        return values
    return torch.stack([torch.as_tensor(one) for one in values])


def _lengths_differ(shapes: Iterable[tuple[int, ...]], holder: str) -> str:
    shown = ", ".join(str(shape) for shape in sorted(shapes)[:MOST_SHOWN])
    return f"{holder}: its samples have different shapes ({shown}, ...): pad or cut them to one"


def _unused_of(loader: DataLoader[Any]) -> Iterator[str]:
    """What decides which samples a loader has, or what they are; the order alone does not."""
    sampler = loader.sampler
    if type(loader.batch_sampler) not in (BatchSampler, type(None)):
        yield f"batch_sampler ({type(loader.batch_sampler).__name__})"
    elif isinstance(sampler, RandomSampler):
        if sampler.replacement or sampler.num_samples != len(sampler.data_source):
            yield "sampler (RandomSampler)"
    elif not isinstance(sampler, SequentialSampler):
        yield f"sampler ({type(sampler).__name__})"
    if loader.collate_fn not in (default_collate, default_convert):
        yield "collate_fn"


def _read_dataset(dataset: Any, holder: str, noticed: Noticed) -> tuple[Any, Any]:
    """Inputs and targets of a PyTorch dataset of pairs, or of dictionaries with their target in "labels"."""
    if isinstance(dataset, IterableDataset):
        raise ValueError(
            f"{holder}: is an IterableDataset ({type(dataset).__name__}), whose samples have no numbers: pass "
            "list(dataset), or a Dataset with __len__ and __getitem__"
        )
    if isinstance(dataset, type):
        raise ValueError(f"{holder}: is the class {dataset.__name__}: pass an object of it")
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ValueError(
            f"{holder}: is {_kind(dataset)}: pass a Dataset with __len__ and __getitem__, or (inputs, targets)"
        )
    if not len(dataset):
        raise ValueError(f"{holder}: is empty: leave it out")
    rows = [_read_sample(dataset, index, holder) for index in range(len(dataset))]
    if not all(
        _same(row, _read_sample(dataset, index, holder))
        for index, row in enumerate(rows[:READ_TWICE])
    ):
        noticed.random.append(holder)
    collated = _collated(rows, holder)
    if isinstance(collated, Mapping):
        key = next((key for key in LABELS if key in collated), None)
        if key is None:
            raise ValueError(
                f"{holder}: a dataset of dictionaries needs its targets in 'labels', it has {sorted(collated)}"
            )
        inputs = {name: values for name, values in collated.items() if name != key}
        return inputs, collated[key]
    inputs, targets = collated
    return inputs, targets


def first_few(names: Sequence[str]) -> str:
    """Names in a message: the first ones, and how many more.

    >>> first_few(["north", "south", "east", "west", "centre"])
    'north, south, east and 2 more'
    """
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"


def _read_sample(dataset: Any, index: int, holder: str) -> Any:
    """A sample: a pair, or a dictionary."""
    try:
        sample = dataset[index]
    except Exception as error:  # a user's own dataset may raise anything
        reason = shortened(f"{type(error).__name__}: {error}", 200)
        raise ValueError(f"{holder}: sample {index} cannot be read ({reason})") from error
    if isinstance(sample, Mapping):
        return {name: _numbers(values) for name, values in sample.items()}
    if not isinstance(sample, tuple | list):
        raise ValueError(f"{holder}: a sample is {_kind(sample)}: return (input, target)")
    if len(sample) != 2:
        raise ValueError(
            f"{holder}: a sample is a tuple of {len(sample)}: return (input, target); several inputs by name "
            "are a dictionary with the target in 'labels'"
        )
    return _numbers(sample[0]), sample[1]


def _numbers(values: Any) -> Any:
    """A list of numbers as a tensor; anything else as it is."""
    if isinstance(values, list) and values and isinstance(values[0], int | float | list):
        with suppress(TypeError, ValueError):
            return torch.as_tensor(values)
    return values


def _same(one: Any, other: Any) -> bool:
    """Whether a sample is the same when it is read again."""
    if isinstance(one, Tensor | numpy.ndarray):
        return bool(torch.equal(torch.as_tensor(one), torch.as_tensor(other)))
    if isinstance(one, Mapping):
        return all(_same(one[name], other[name]) for name in one)
    if isinstance(one, tuple | list):
        return all(_same(*both) for both in zip(one, other, strict=True))
    return True


def _collated(rows: list[Any], holder: str) -> Any:
    """Samples as one batch; ValueError that says why they are none."""
    try:
        return default_collate(list(rows))
    except (TypeError, ValueError, RuntimeError, KeyError, AttributeError) as error:
        columns = [row.values() if isinstance(row, Mapping) else row for row in rows]
        for values in zip(*columns, strict=False):
            shapes = {tuple(one.shape) for one in values if hasattr(one, "shape")}
            if len(shapes) > 1:
                raise ValueError(_lengths_differ(shapes, holder)) from None
            if not isinstance(values[0], Tensor | numpy.ndarray | int | float | str | list | tuple):
                raise ValueError(
                    f"{holder}: a sample has {_kind(values[0])}: return tensors or numbers (of a picture, "
                    "torchvision's ToTensor makes one)"
                ) from None
        reason = shortened(str(error), 200)
        raise ValueError(f"{holder}: its samples cannot be joined ({reason})") from None


def _kind(given: object) -> str:
    """A value in a message: its type, and the shape of an array."""
    name = "nothing (None)" if given is None else f"a {type(given).__name__}"
    shape = getattr(given, "shape", None)
    return name if shape is None else f"{name} of shape {tuple(shape)}"


def check_clients(
    train: Sequence[Any], test: Sequence[Any], names: Sequence[str], attributes: Mapping[str, Any]
) -> None:
    """ValueError where something is not given for every client."""
    count = len(train)
    if not count or count != len(test):
        raise ValueError(
            f"{count} clients have training data, {len(test)} have test data: give both for each client"
        )
    if names and len(names) != count:
        raise ValueError(f"{len(names)} names for {count} clients: give one for each")
    for name, values in attributes.items():
        if len(values) != count:
            raise ValueError(f"attribute {name!r} has {len(values)} values for {count} clients")


def facts_of_samples(
    attributes: Mapping[str, Sequence[Any]],
    train: Sequence[tuple[Any, Any]],
    clients: Sequence[str],
    count: int,
) -> dict[str, Tensor]:
    """Facts about all samples, each [count]: of training samples as given, which are the first; else 0."""
    facts = {}
    for name, values in attributes.items():
        if len(values) != len(train):
            raise ValueError(
                f"sample attribute {name!r} has arrays of {len(values)} clients, there are {len(train)}"
            )
        for client, own, (_, targets) in zip(clients, values, train, strict=True):
            if len(own) != len(targets):
                raise ValueError(
                    f"sample attribute {name!r} of {client} has {len(own)} values for "
                    f"{len(targets)} training samples"
                )
        facts[name] = torch.zeros(count, dtype=torch.float64)
        given = torch.cat([torch.as_tensor(own) for own in values])
        facts[name][: len(given)] = given
    return facts


def in_blocks(targets: Tensor, sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    """Indices and targets of samples that lie one block after the other."""
    indices = torch.arange(len(targets))
    return list(zip(torch.split(indices, sizes), torch.split(targets, sizes), strict=True))

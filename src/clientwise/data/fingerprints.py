"""Fingerprints of data: digests of what each client and the server hold."""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from .holdings import Given, Holdings

MANY_ROWS = 4_000_000  # samples; to make a digest of each takes a microsecond or more
HOLDERS_AT_ONCE = 10_000  # whose digests are made together
BYTES_AT_ONCE = 2**26  # of inputs that are read to make digests
DIGEST_BYTES = 8  # of a row
_Rows = Callable[[Tensor], NDArray[Any]]  # values of samples, by their indices


def digests(
    about: str,
    given: Sequence[Holdings],
    facts: Sequence[list[float | str]],
    content: Content,
) -> Iterator[str]:
    """A digest of what each holder has, block by block: the samples may not fit in memory.

    Args:
        about: what all samples have in common.
        given: what the holders hold.
        facts: about every holder.
        content: of the samples.
    """
    for first in range(0, len(facts), HOLDERS_AT_ONCE):
        some = facts[first : first + HOLDERS_AT_ONCE]
        found = [hashlib.blake2b(f"{about} {fact}".encode(), digest_size=8) for fact in some]
        for held in given:
            offsets = held.offsets[first : first + len(some) + 1].tolist()
            for column in content.columns(held):
                for one in found:
                    one.update(b"|")
                for start in range(offsets[0], offsets[-1], content.rows_at_once):
                    end = min(start + content.rows_at_once, offsets[-1])
                    _update(found, offsets, start, column(slice(start, end)))
        for one in found:
            yield one.hexdigest()


@dataclass(frozen=True)
class Content:
    """What fingerprints are made of, by the indices of samples."""

    inputs: list[_Rows]  # or what inputs and targets were computed from
    targets: Tensor | None  # of all samples, where they are floats that were computed
    facts: list[_Rows]
    rows_at_once: int

    @staticmethod
    def of(
        inputs: Tensor, targets: Tensor, attributes: Iterable[Tensor], given: Given | None
    ) -> Content:
        """The content of samples that are as given (None), or that were computed from it."""
        facts = [_rows_of(values) for values in attributes]
        if given is None:
            return Content([_row_contents(inputs)], None, facts, _rows_at_once([inputs]))
        contents = []
        for values in given.values:
            is_short = values[:1].nbytes <= DIGEST_BYTES
            content = _rows_of if is_short else _row_contents
            contents.append(content(values, given.rows))
        computed = targets if targets.is_floating_point() else None
        return Content(contents, computed, facts, _rows_at_once(given.values))

    def columns(self, held: Holdings) -> list[Callable[[slice], NDArray[Any]]]:
        """What holders have of some samples: inputs, targets, and facts about them."""

        def held_rows(rows: _Rows) -> Callable[[slice], NDArray[Any]]:
            return lambda some: rows(held.indices[some].cpu())

        def held_targets(some: slice) -> NDArray[Any]:
            own = held.targets[some].cpu()
            if self.targets is not None:  # it counts which of them a hostile client changed
                own = own != self.targets[held.indices[some].cpu()]
            return own.numpy()

        return [*map(held_rows, self.inputs), held_targets, *map(held_rows, self.facts)]


def _update(
    digests: Sequence[hashlib.blake2b], offsets: Sequence[int], start: int, values: NDArray[Any]
) -> None:
    """Add rows to the digests of their holders: holder k has the rows from offsets[k], `values` those from `start`."""
    content = _bytes_of(values)
    width = values.nbytes // len(values)
    end = start + len(values)
    for holder in range(bisect_right(offsets, start) - 1, bisect_left(offsets, end)):
        first = max(0, offsets[holder] - start)
        last = offsets[holder + 1] - start
        digests[holder].update(content[first * width : last * width])


def _rows_at_once(tensors: Sequence[Tensor]) -> int:
    row_bytes = max(values[:1].nbytes for values in tensors)
    return max(1, BYTES_AT_ONCE // max(1, row_bytes))


def _rows_of(values: Tensor, rows: Tensor | None = None) -> _Rows:
    """The values of samples; `rows` as in `Given`."""
    device = values.device

    def found(indices: Tensor) -> NDArray[Any]:
        wanted = indices if rows is None else rows[indices]
        picked: NDArray[Any] = values.index_select(0, wanted.to(device)).cpu().numpy()
        return picked

    return found


def _row_contents(values: Tensor, rows: Tensor | None = None) -> _Rows:
    """What tells rows apart, by the indices of samples: a digest of each, made once, since rows may have several
    holders. Of very many rows, it is their values.
    """
    return _rows_of(values if len(values) > MANY_ROWS else row_digests(values), rows)


def row_digests(values: Tensor) -> Tensor:
    """A digest of every row [N], as int64."""
    content = _bytes_of(values.cpu().contiguous().numpy())
    width = len(content) // max(1, len(values))
    digests = bytearray()
    for row in range(len(values)):
        own = content[row * width : (row + 1) * width]
        digests += hashlib.blake2b(own, digest_size=DIGEST_BYTES).digest()
    return torch.from_numpy(numpy.frombuffer(digests, numpy.int64))


def _bytes_of(values: NDArray[Any]) -> memoryview:
    """The bytes of an array, which are not copied."""
    return values.reshape(-1).view(numpy.uint8).data

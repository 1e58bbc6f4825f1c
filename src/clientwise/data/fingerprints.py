"""Fingerprints of data: digests of what each client and the server hold, the same on every CPU."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy
from torch import Tensor

BYTES_AT_ONCE = 2**26  # that are read to make digests: samples may not fit into memory


class Digests:
    """One digest for each of K holders, of the rows that it holds."""

    def __init__(self, about: Iterable[str]) -> None:
        self._digests = [hashlib.blake2b(text.encode(), digest_size=8) for text in about]

    def add(self, offsets: Sequence[int], values: Tensor, rows: Tensor | None = None) -> None:
        """Add the rows [total] of `values`: holder k has those from offsets[k] to offsets[k + 1].

        Args:
            offsets: [K + 1].
            values: [N, ...].
            rows: [total] which rows of `values`; None: all, in their order.
        """
        for one, held in zip(self._digests, pairwise(offsets), strict=True):
            one.update(f"|{held[1] - held[0]}".encode())
        width = values[:1].nbytes
        step = max(1, BYTES_AT_ONCE // max(1, width))
        holder = 0
        for start in range(0, offsets[-1], step):
            end = min(start + step, offsets[-1])
            some = values[start:end]
            if rows is not None:
                some = values.index_select(0, rows[start:end].to(values.device))
            content = some.cpu().contiguous().numpy().reshape(-1).view(numpy.uint8).data
            while holder < len(self._digests) and offsets[holder] < end:
                first = max(0, offsets[holder] - start)
                last = min(end, offsets[holder + 1]) - start
                self._digests[holder].update(content[first * width : last * width])
                if offsets[holder + 1] > end:  # its other rows are in the next block
                    break
                holder += 1

    def texts(self) -> list[str]:
        """The digests, in hexadecimal."""
        return [one.hexdigest() for one in self._digests]

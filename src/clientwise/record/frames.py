"""Frames of rounds as bytes: columns by client, packed when a round is written and unpacked many rounds at once.

A frame is compressed: the length of its header, the header, its columns. The header is JSON, with the number of rows
and the kind of every column. A value takes eight bytes; a text or a truth value is a number. The first bytes of all
values of a column stand together, then the second ones: they compress better so.
Rounds with the same header are unpacked together, which takes a tenth of the time.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

FLOAT = "float"
WHOLE = "whole"
TRUTH = "truth"
BYTES = 8  # of a value
MANY = 100  # rows: from here on, the quotient of another column is worth looking for

Array = NDArray[Any]


class Quotient(NamedTuple):
    """A column that may be another one divided by a number, which is then all that is kept of it."""

    values: Any
    of: tuple[str, ...]  # columns that come before it; the first one that the frame has counts


def pack(columns: Mapping[str, Any]) -> bytes:
    """A frame of arrays, lists and quotients, all of one length."""
    kinds: dict[str, Any] = {}
    known: dict[str, Array] = {}
    stored: list[Array] = []
    scales: list[float] = []
    rows = 0
    for name, given in columns.items():
        values = given.values if isinstance(given, Quotient) else given
        kinds[name], known[name] = _numbers(values)
        rows = len(known[name])
        base = (
            next((one for one in given.of if one in known), None)
            if isinstance(given, Quotient)
            else None
        )
        scale = _scale(known[base], known[name]) if base and rows >= MANY else None
        if scale is None:
            stored.append(known[name].view(numpy.uint8))
        else:
            kinds[name] = {"of": base}
            scales.append(scale)
    header = json.dumps([rows, kinds]).encode()
    by_byte = numpy.stack(stored).reshape(len(stored), rows, BYTES).transpose(0, 2, 1)
    parts = [
        len(header).to_bytes(4, "little"),
        header,
        by_byte.tobytes(),
        numpy.array(scales, "<f8").tobytes(),
    ]
    return zlib.compress(b"".join(parts), level=1)


def unpack(frames: Iterable[tuple[int, int, bytes]]) -> list[dict[str, Array]]:
    """Columns of frames, of which lane, round and bytes are given; ValueError for damaged ones.

    Frames with one header are joined. The columns `lane` and `round` are put in front.
    """
    groups: dict[bytes, list[tuple[int, int, bytes]]] = {}
    for lane, round_num, data in frames:
        content = _decompressed(data)
        end = 4 + int.from_bytes(content[:4], "little")
        groups.setdefault(content[4:end], []).append((lane, round_num, content[end:]))
    return [_unpacked(header, members) for header, members in groups.items()]


def _decompressed(data: object) -> bytes:
    if not isinstance(data, bytes):
        raise ValueError("a frame that is not bytes")
    try:
        return zlib.decompress(data)
    except zlib.error as error:
        raise ValueError(f"a frame cannot be unpacked: {error}") from None


def _unpacked(header: bytes, members: list[tuple[int, int, bytes]]) -> dict[str, Array]:
    rows, kinds = json.loads(header)
    stored = [name for name, kind in kinds.items() if not isinstance(kind, dict)]
    divided = [name for name, kind in kinds.items() if isinstance(kind, dict)]
    size = rows * BYTES * len(stored)
    content = numpy.frombuffer(b"".join(body for *_, body in members), numpy.uint8)
    content = content.reshape(len(members), size + BYTES * len(divided))
    by_byte = content[:, :size].reshape(len(members), len(stored), BYTES, rows)
    words = numpy.ascontiguousarray(by_byte.transpose(1, 0, 3, 2)).reshape(len(stored), -1)
    scales = numpy.ascontiguousarray(content[:, size:]).view("<f8")
    columns = {
        "lane": numpy.repeat([lane for lane, *_ in members], rows),
        "round": numpy.repeat([round_num for _, round_num, _ in members], rows),
    }
    for name, kind in kinds.items():
        if name in divided:
            scale = numpy.repeat(scales[:, divided.index(name)], rows)
            columns[name] = _divided(columns[kind["of"]], scale)
        else:
            columns[name] = _values(kind, words[stored.index(name)])
    return columns


def _numbers(values: Any) -> tuple[Any, Array]:
    """The kind of a column, and its values as numbers of eight bytes; for texts, the kind lists them."""
    array = numpy.asarray(
        values.cpu() if hasattr(values, "cpu") else values
    )  # a tensor may lie on a GPU
    if array.dtype.kind == "f":
        return FLOAT, array.astype("<f8")
    if array.dtype.kind == "b":
        return TRUTH, array.astype("<i8")
    if array.dtype.kind in "iu":
        return WHOLE, array.astype("<i8")
    codes = {text: code for code, text in enumerate(dict.fromkeys(values))}
    return list(codes), numpy.array([codes[text] for text in values], "<i8")


def _values(kind: Any, words: Array) -> Any:
    if kind == FLOAT:
        return words.view("<f8")
    numbers = words.view("<i8")
    if kind == WHOLE:
        return numbers
    if kind == TRUTH:
        return numbers != 0
    return numpy.array(kind, dtype=object)[numbers]


def _scale(base: Array, values: Array) -> float | None:
    """The number that gives the values as a quotient to the bit; None where none is found."""
    largest = int(numpy.abs(base).argmax())
    with numpy.errstate(all="ignore"):
        about = float(base[largest] / values[largest])
    for candidate in (about, math.nextafter(about, math.inf), math.nextafter(about, -math.inf)):
        if _divided(base, candidate).tobytes() == values.tobytes():
            return candidate
    return None


def _divided(base: Array, scale: Any) -> Any:
    with numpy.errstate(all="ignore"):
        return base / scale

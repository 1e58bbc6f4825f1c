"""What is packed is unpacked to the bit, many rounds at once, and damaged bytes are refused."""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy
import pytest

from clientwise.record.database import pack, unpack

RANDOM = numpy.random.default_rng(1)


def columns_of(rows: int, offset: int = 0) -> dict[str, Any]:
    raw = RANDOM.random(rows)
    return {
        "client": numpy.arange(rows) + offset,
        "raw": raw,
        "share": raw / raw.sum(),
        "single": RANDOM.random(rows).astype(numpy.float32),
        "used": [bool(row % 2) for row in range(rows)],
        "name": [None, "Zürich", "\x00\n"] * (rows // 3) + ["Zürich"] * (rows % 3),
    }


@pytest.mark.parametrize("rows", [1, 7, 1_000])
def test_what_is_packed_is_unpacked_to_the_bit(rows: int) -> None:
    rounds = [columns_of(rows, offset) for offset in range(3)]
    (found,) = unpack([(4, number, pack(columns)) for number, columns in enumerate(rounds)])
    assert list(found) == ["lane", "round", *rounds[0]]
    assert found["lane"].tolist() == [4] * 3 * rows
    assert found["round"].tolist() == numpy.repeat([0, 1, 2], rows).tolist()
    for name in rounds[0]:
        expected = [value for one in rounds for value in numpy.asarray(one[name]).tolist()]
        assert found[name].tolist() == expected, name


def test_rounds_with_other_columns_or_sizes_are_apart() -> None:
    frames = [{"a": [1]}, {"a": [1, 2]}, {"a": [3]}, {"a": [1.5]}, {"b": ["x"]}]
    found = unpack([(1, number, pack(columns)) for number, columns in enumerate(frames)])
    assert [one["round"].tolist() for one in found] == [[0, 2], [1, 1], [3], [4]]


@pytest.mark.parametrize("value", [numpy.nan, -numpy.inf, -0.0, 5e-324])
def test_numbers_at_the_edge(value: float) -> None:
    values = numpy.array([1.0, value, value])
    (found,) = unpack([(1, 1, pack({"raw": values}))])
    assert found["raw"].tobytes() == values.tobytes()


WHOLE = pack({"client": [1, 2], "weight": [0.5, 0.5]})
CONTENT = zlib.decompress(WHOLE)


def with_header(header: Any) -> bytes:
    text = json.dumps(header).encode()
    size = 4 + int.from_bytes(CONTENT[:4], "little")
    return zlib.compress(len(text).to_bytes(4, "little") + text + CONTENT[size:])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        "text",
        WHOLE[:-3],
        WHOLE[:10] + b"\xff" + WHOLE[11:],
        zlib.compress(b""),
        zlib.compress(CONTENT + b"1"),
        with_header([3, {"client": "whole", "weight": "float"}]),
        with_header([2, {"client": "whole", "weight": {"of": "absent"}}]),
        with_header([2, {"client": "whole", "weight": ["a"]}]),
        with_header({}),
    ],
)
def test_damaged_bytes_are_refused(data: Any) -> None:
    with pytest.raises((ValueError, KeyError, IndexError, TypeError, AttributeError, zlib.error)):
        unpack([(1, 1, data)])

"""Data folders in which one file is damaged or hostile: the same ones for the same name."""

from __future__ import annotations

import gzip
import io
import random
import sys
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from small_files import (
    write_brca,
    write_celeba,
    write_cells,
    write_cifar10,
    write_heart,
    write_leaf,
    write_malaria,
    write_mnist,
    write_reviews,
    write_table,
    write_wisdm,
    write_writers,
)


def _mnist(folder: Path) -> None:
    write_mnist(folder)
    write_writers(folder)


def _reviews(folder: Path, packed: bool = True) -> None:
    write_reviews(
        folder, [(f"film <br />FILM film word{number}", number % 2) for number in range(30)], packed
    )


def _femnist(folder: Path) -> None:
    write_leaf(folder / "femnist" / "train" / "data.json", {"f0000_14": [3, 61], "f0001_41": [0]})
    write_leaf(folder / "femnist" / "test" / "data.json", {"f0001_41": [7], "f0000_14": [8]})


def _npz(folder: Path) -> None:
    inputs, targets = numpy.random.default_rng(0).random((6, 4)), numpy.arange(6) % 2
    numpy.savez_compressed(folder / "own.npz", train_inputs=inputs, train_targets=targets)


WHOLE: dict[str, tuple[str, Callable[[Path], object]]] = {  # the dataset, and what writes its files
    "mnist": ("mnist", _mnist),
    "cifar10": ("cifar10", write_cifar10),
    "celeba": ("celeba", write_celeba),
    "malaria": ("malaria", write_malaria),
    "vgg_cells": ("vgg_cells", write_cells),
    "movie_reviews": ("movie_reviews", _reviews),
    "movie_reviews.csv": ("movie_reviews", lambda folder: _reviews(folder, packed=False)),
    "femnist": ("femnist", _femnist),
    "heart": ("heart", write_heart),
    "tcga_brca": ("tcga_brca", write_brca),
    "wisdm": ("wisdm", write_wisdm),
    "table": ("table", write_table),
    "npz": ("npz", _npz),
}


@cache
def whole(kind: str) -> dict[str, bytes]:
    """The undamaged files by their paths."""
    with tempfile.TemporaryDirectory() as place:
        WHOLE[kind][1](Path(place))
        files = sorted(path for path in Path(place).rglob("*") if path.is_file())
        return {str(path.relative_to(place)): path.read_bytes() for path in files}


def write_damaged(kind: str, how: str, folder: Path) -> None:
    """The files of a dataset, one of which is damaged."""
    draw, files = random.Random(f"{kind} {how}"), dict(whole(kind))
    name = draw.choice(list(files))
    files[name] = draw.choice(_DAMAGES)(draw, name, files[name])
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def _cut_off(draw: random.Random, name: str, content: bytes) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def _flipped(draw: random.Random, name: str, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 5, 100))):
        changed[draw.randrange(len(changed))] = draw.choice((0, 255, draw.randrange(256)))
    return bytes(changed)


def _overwritten(draw: random.Random, name: str, content: bytes) -> bytes:
    """A few bytes in one place, often one that says how large something is."""
    at = draw.randrange(min(len(content), draw.choice((16, 64, len(content)))))
    return (
        content[:at]
        + draw.choice((b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0" * 8, b"\xff" * 8))
        + content[at + 4 :]
    )


def _inserted(draw: random.Random, name: str, content: bytes) -> bytes:
    at = draw.randrange(len(content) + 1)
    return (
        content[:at]
        + draw.choice((draw.randbytes(20), b"\n", b'"', b"<" * 100_000, b"[" * 3_000))
        + content[at:]
    )


def _other(draw: random.Random, name: str, content: bytes) -> bytes:
    """Another file altogether."""
    other = whole(draw.choice(list(WHOLE)))
    return draw.choice(
        [
            b"",
            b"<html>",
            draw.randbytes(500),
            b"\0" * 500,
            b"PK\x05\x06" + b"\0" * 18,
            *other.values(),
        ]
    )


def _inner(draw: random.Random, name: str, content: bytes) -> bytes:
    """What is inside is damaged, and the packing is whole."""
    if name.endswith(".gz"):
        return gzip.compress(draw.choice(_PLAIN)(draw, name, gzip.decompress(content)), 1)
    if name.endswith((".zip", ".npz")):
        packed = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(content)) as old,
            zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new,
        ):
            chosen = draw.choice(old.namelist())
            for member in old.namelist():
                inside = old.read(member)
                new.writestr(
                    member,
                    draw.choice(_PLAIN)(draw, member, inside) if member == chosen else inside,
                )
        return packed.getvalue()
    return draw.choice(_PLAIN)(draw, name, content)


def _words(draw: random.Random, name: str, content: bytes) -> bytes:
    """A number or a name in a text becomes another."""
    words = content.split(b" ") if b" " in content else content.split(b",")
    odd = [
        "1" + "0" * 30,
        "9" * 5_000,
        "-1",
        "NaN",
        "Infinity",
        "null",
        "²",
        "1e999",
        '""',
        "[]",
        "{}",
        "true",
        "x" * 9_999,
    ]
    words[draw.randrange(len(words))] = draw.choice(odd).encode()
    return (b" " if b" " in content else b",").join(words)


def _packed(draw: random.Random, name: str, content: bytes) -> bytes:
    """Members that are encrypted, of a compression nobody has, or of one that few use."""
    if not name.endswith((".zip", ".npz")):
        return _flipped(draw, name, content)
    packed = io.BytesIO()
    method = draw.choice((zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(packed, "w", method) as new:
        for member in old.namelist():
            new.writestr(member, old.read(member))
    changed = packed.getvalue()
    for signature, place in (
        (b"PK\x03\x04", 6),
        (b"PK\x01\x02", 8),
    ):  # the flags, and behind them the compression
        at = changed.find(signature) + place
        mark = draw.choice((b"\x01\x00", changed[at : at + 2]))
        kind = draw.choice((b"\x63\x00", changed[at + 2 : at + 4]))
        changed = changed[:at] + mark + kind + changed[at + 4 :]
    return changed if draw.random() < 0.5 else _flipped(draw, name, changed)


_PLAIN = [_cut_off, _flipped, _overwritten, _inserted, _words, _other]
_DAMAGES = [*_PLAIN, _inner, _inner, _packed, _packed]

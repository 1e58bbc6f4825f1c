"""Tables nobody would call tidy, the same ones for the same number; and options that may fit them or not."""

from __future__ import annotations

import datetime
import decimal
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attempts
import pandas

from clientwise.data.datasets import DATASETS, DataError
from clientwise.data.partition import iid
from dividing import federate

WORDS = [
    "",
    " ",
    "a",
    "b",
    "A",
    "é",
    "e\u0301",
    "\u202e",
    "1",
    "01",
    "1.0",
    "NaN",
    "null",
    "?",
    "-",
    "x" * 9_999,
    '"',
]
WORDS += [
    "=1+1",
    "1,5",
    "1e400",
    "-inf",
    "0x10",
    "1_000",
    "²",
    "True",
    "\x00",
    "a\nb",
    "'",
    ";",
    "\t",
    "\ufeff",
    "9" * 400,
]
NAMES = [
    "y",
    "x",
    "who",
    "Y",
    " y",
    "y ",
    "",
    "1",
    "0.5",
    "é",
    "\ufeffy",
    "a.b",
    "x" * 300,
    "None",
    "nan",
    "y.1",
    '"',
]
COLUMNS: list[Callable[[random.Random], object]] = [
    lambda draw: draw.choice(WORDS),
    lambda draw: draw.choice((0, 1, -1, 2**63 - 1, -(2**63))),
    lambda draw: draw.choice((0.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"))),
    lambda draw: draw.random() < 0.5,
    lambda draw: None,
    lambda draw: draw.choice((b"", b"\xff\x00", b"a")),
    lambda draw: datetime.datetime(1 + draw.randrange(9_998), 1, 1),
    lambda draw: datetime.date(2000, 1, 1 + draw.randrange(28)),
    lambda draw: datetime.timedelta(draw.randrange(99)),
    lambda draw: decimal.Decimal(draw.randrange(99)) / 7,
    lambda draw: [draw.randrange(3)] * draw.randrange(3),
    lambda draw: {"a": draw.randrange(3)},
    lambda draw: draw.randrange(3),
    lambda draw: draw.choice("ab"),
    lambda draw: draw.random(),
    lambda draw: 7,
]


def prepare() -> None:
    """Nothing that every case would build again."""


def write_odd(draw: random.Random, folder: Path) -> dict[str, Any]:
    """One to three files, most of them alike; and the options to load them with."""
    names = draw.sample(NAMES, draw.choice((1, 2, 3, 5)))
    kinds = [draw.choice(COLUMNS) for _ in names]
    suffix = draw.choice((".csv", ".csv", ".tsv", ".csv.gz", ".parquet", ".parquet"))
    for number in range(draw.choice((1, 1, 2, 3))):
        rows = draw.choice((0, 1, 2, 20, 20, 200))
        made = {
            name: [kind(draw) for _ in range(rows)] for name, kind in zip(names, kinds, strict=True)
        }
        _write(draw, pandas.DataFrame(made), folder / f"{draw.choice('abé ')}{number}{suffix}")

    def column() -> str:
        return draw.choice([*names, *names, draw.choice(NAMES)])

    options: dict[str, Any] = {
        "files": f"*{suffix}",
        "target": column(),
        "kind": draw.choice(("classification", "regression")),
    }
    if draw.random() < 0.3:
        options["client"] = column()
    options["categories"] = [column() for _ in range(draw.choice((0, 0, 1, 3)))]
    options["ignore"] = [column() for _ in range(draw.choice((0, 0, 0, 1)))]
    options["standardise"] = draw.choice((True, False))
    return options


def _write(draw: random.Random, frame: pandas.DataFrame, path: Path) -> None:
    if draw.random() < 0.2:
        frame.index = pandas.Index(
            [f"row {number}" for number in range(len(frame))], name=draw.choice((None, "y"))
        )
    try:
        if path.suffix == ".parquet":
            if draw.random() < 0.3:
                frame = frame.astype("category")
            frame.to_parquet(path, compression=draw.choice(("snappy", "gzip", "zstd", None)))
        else:
            frame.to_csv(
                path,
                sep="\t" if ".tsv" in path.name else draw.choice(",,,,;"),
                index=draw.random() < 0.2,
                encoding=draw.choice(("utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1")),
                lineterminator=draw.choice(("\n", "\n", "\r\n", "\r")),
                errors="replace",
            )
    except Exception:  # what cannot be written cannot be found either
        path.write_bytes(draw.choice((b"", b"y,x\n1,2\n", draw.randbytes(99))))


def load(case: str) -> None:
    """Samples come, finite once they are prepared, or an error that names a file or key and says what to do."""
    draw, complaint = random.Random(case), ""
    with tempfile.TemporaryDirectory() as place:
        options = write_odd(draw, Path(place))
        try:
            samples = DATASETS.get("table")(Path(place), **options)
            fractions = {"test_fraction": 0.0, "server_fraction": 0.0, "report_fraction": 0.0}
            data = federate(samples, partial(iid, clients=1), 1, **fractions)
            assert data.samples.batch(data.train.indices).isfinite().all()
            assert data.samples.targets.double().isfinite().all()
        except DataError as error:
            complaint = str(error)
    if complaint:
        assert place in complaint or "samples" in complaint, complaint
        assert len(complaint.splitlines()) == 1, complaint
        assert len(complaint) < attempts.LONGEST, complaint

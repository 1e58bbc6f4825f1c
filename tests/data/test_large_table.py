"""Tables that are read and prepared piece by piece, since they may be larger than memory."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import large_table
from clientwise.data.datasets import DATASETS
from clientwise.data.division import federate
from clientwise.data.federated import FederatedData, Samples
from clientwise.data.folder import DataError
from clientwise.data.partition import by_id
from clientwise.data.tables import columns, joining
from clientwise.data.tables import files as table_files
from clientwise.data.tables.columns import Standardise

ROWS = 700
MODES: list[Standardise] = ["pooled", "client", "off"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENTWISE_CACHE", str(tmp_path_factory.mktemp("cache")))


def in_pieces(patch: pytest.MonkeyPatch) -> None:
    """Chunks of some 30 rows, blocks of fewer, and two columns at a time, with an empty cache."""
    patch.setattr(table_files, "CHUNK", 4_000)
    patch.setattr(table_files, "BUFFER", 1_000)
    patch.setattr(table_files, "LONG_ROW", 50)
    patch.setattr(columns, "BLOCK", 800)
    patch.setattr(columns, "COLUMNS_AT_ONCE", 2)
    patch.setenv("CLIENTWISE_CACHE", os.environ["CLIENTWISE_CACHE"] + "/pieces")


@pytest.fixture
def frame() -> pandas.DataFrame:
    """Numbers far from 0, missing ones, a category that begins late, sites, of which one never measured `late`."""
    random = numpy.random.default_rng(3)
    rows = pandas.DataFrame(
        {
            "age": random.normal(1e4, 3.0, ROWS).round(4),
            "late": numpy.where(random.random(ROWS) < 0.3, numpy.nan, random.random(ROWS)),
            "smokes": random.random(ROWS) < 0.5,
            "code": random.choice(["2", "10", "2.0"], ROWS),
            "ward": ["b"] * (ROWS - 100) + ["a", "1"] * 50,
            "constant": 0.1,
            "site": random.choice(["x", "y", "z"], ROWS),
            "days": random.exponential(9.0, ROWS).round(2) + 1,
            "died": random.integers(0, 2, ROWS),
            "ill": random.choice(["no", "yes", ""], ROWS),
        }
    )
    rows.loc[rows["site"] == "z", "late"] = numpy.nan
    return rows


def load(folder: Path, **options: Any) -> Samples:
    given = {"files": "own.csv", "target": "ill", "client": "site", "categories": ["code", "ward"]}
    return DATASETS.get("table")(folder, **given | options)


def divided(samples: Samples) -> FederatedData:
    return federate(
        samples,
        partial(by_id, minimum=2),
        1,
        test_fraction=0.25,
        server_fraction=0.1,
        report_fraction=0.5,
    )


def write(rows: pandas.DataFrame, folder: Path, ending: str) -> str:
    if ending == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        rows.to_parquet(folder / "own.parquet", row_group_size=130)
    else:
        separator = {"tsv": "\t", "csv": ";"}.get(ending, ",")
        decimal = "," if separator == ";" else "."
        rows.to_csv(folder / f"own.{ending}", index=False, sep=separator, decimal=decimal)
    return f"own.{ending}"


@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz", "parquet"])
def test_pieces_give_the_same_bits(
    tmp_path: Path, frame: pandas.DataFrame, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write(frame, tmp_path, ending)
    survival = {"target": "days", "event": "died", "kind": "survival", "ignore": ["ill"]}
    cases = [{"standardise": mode, "ignore": ["days", "died"]} for mode in MODES] + [survival]
    whole = [load(tmp_path, files=files, **case) for case in cases]
    wanted = [divided(samples) for samples in whole]
    in_pieces(monkeypatch)
    for case, before, expected in zip(cases, whole, wanted, strict=True):
        samples = load(tmp_path, files=files, **case)
        assert torch.equal(samples.inputs.nan_to_num(-1), before.inputs.nan_to_num(-1))
        assert torch.equal(samples.targets, before.targets)
        assert torch.equal(samples.ids, before.ids)
        assert samples.names == before.names == ("x", "y", "z")
        found = divided(samples)
        assert found.fingerprints() == expected.fingerprints()
        assert found.samples.table == expected.samples.table


def test_statistics_of_all_clients_are_right_to_rounding(
    tmp_path: Path, frame: pandas.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums are taken one row after the other. The server's samples have them, and exported models."""
    files = write(frame, tmp_path, "tsv")
    in_pieces(monkeypatch)
    samples = load(tmp_path, files=files, standardise="client", ignore=["days", "died"])
    data = divided(samples)
    ages = samples.inputs[data.train.indices.sort().values, 0].numpy()
    column = data.samples.table.columns[0]
    assert column.mean == pytest.approx(ages.mean(), rel=1e-14)
    assert column.deviation == pytest.approx(ages.std(), rel=1e-11)  # of numbers around 10,000
    held = data.report.indices
    wanted = (samples.inputs[held, 0] - ages.mean()) / ages.std()
    torch.testing.assert_close(data.samples.inputs[held, 0].double(), wanted, rtol=1e-6, atol=1e-7)


def test_wrong_cells_are_counted_over_all_chunks(
    tmp_path: Path, frame: pandas.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame["ill"] = "no"
    frame.loc[5, "ill"] = "yes"
    frame["age"] = frame["age"].astype(str)
    frame.loc[[99, 400], "age"] = "old"
    frame.loc[650, "late"] = 1e31
    in_pieces(monkeypatch)
    message = "column 'age', row 100: 'old' is not a number .* neither are 1 other cells; .*'late', row 651"
    for ending in ("tsv", "parquet"):
        with pytest.raises(DataError, match=message):
            load(tmp_path, files=write(frame, tmp_path, ending))
    frame = frame.assign(age=1.0, late=2.0, ward=numpy.arange(ROWS))
    monkeypatch.setattr(joining, "MOST_CATEGORIES", 40)
    with pytest.raises(DataError, match="column 'ward' has more than 40 different values"):
        load(tmp_path, files=write(frame, tmp_path, "tsv"))


def test_files_that_unpack_to_too_much_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.csv.gz").write_bytes(gzip.compress(b"site,x,ill\n" + b"a,0,0\n" * 10**6))
    monkeypatch.setattr(table_files, "memory", lambda: 2**24)
    with pytest.raises(DataError, match=r"own\.csv\.gz: more than 0\.0 GB of it must be in memory"):
        table_files.read_table(tmp_path / "own.csv.gz", [])
    monkeypatch.setattr(table_files, "CHUNK", 20_000)
    with pytest.raises(DataError, match=r"unpacks to more than 100 times its size; unpack it"):
        load(tmp_path, files="own.csv.gz", categories=[])
    (tmp_path / "own.csv.gz").write_bytes(gzip.compress(b"x,ill\n" + b"1,2\n" * 99)[:-20])
    with pytest.raises(DataError, match=r"own\.csv\.gz: cannot be read .*; get the file again"):
        load(tmp_path, files="own.csv.gz", client=None, categories=[])


def test_memory_that_runs_out_is_not_a_fault_of_the_file(
    tmp_path: Path, frame: pandas.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: Any, **__: Any) -> None:
        raise MemoryError

    files = write(frame, tmp_path, "csv.gz")
    monkeypatch.setattr(gzip.GzipFile, "read", exhausted)
    with pytest.raises(DataError, match=r"own\.csv\.gz: too little memory to read it; end other"):
        table_files.read_header(tmp_path / files)


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, frame: pandas.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = load(tmp_path, files=write(frame, tmp_path, "tsv"), ignore=["days", "died"])
    monkeypatch.setenv("CLIENTWISE_CACHE", str(tmp_path / "own.tsv"))
    with pytest.raises(
        DataError, match=r"own\.tsv: .*; set CLIENTWISE_CACHE to a folder with room"
    ):
        divided(samples)


def peak_of_reading(path: Path) -> tuple[int, Samples]:
    """The bytes that NumPy, pandas and Python allocate at most to read a table, and its samples."""
    tracemalloc.start()
    try:
        samples = load(path.parent, files=path.name, categories=["colour"])
        return tracemalloc.get_traced_memory()[1], samples
    finally:
        tracemalloc.stop()


def peak_of_preparing(samples: Samples, folder: Path) -> int:
    """The bytes that PyTorch allocates at most to divide a table among clients and to prepare it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        divided(samples)
    profiler.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    return max(event["args"]["Total Allocated"] for event in events if event["name"] == "[memory]")


@pytest.mark.slow
@pytest.mark.bits
def test_memory_follows_from_the_constants_and_not_from_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is allocated is counted, not what the process has: allocators and threads add to that."""
    monkeypatch.setattr(table_files, "CHUNK", 2**19)
    monkeypatch.setattr(table_files, "BUFFER", 2**16)
    monkeypatch.setattr(columns, "BLOCK", 2**17)
    rows, reading, preparing = [], [], []
    large_table.write_table(tmp_path / "first.csv", 0)
    peak_of_reading(tmp_path / "first.csv")  # imports, and fills caches of Python and pandas
    for times in (1, 4):
        path = tmp_path / f"{times}.csv"
        large_table.write_table(path, times * 2_000_000)
        peak, samples = peak_of_reading(path)
        rows.append(len(samples.targets))
        reading.append(peak)
        preparing.append(peak_of_preparing(samples, tmp_path))
    more_rows = rows[1] - rows[0]
    assert more_rows >= 4_000
    assert reading[1] - reading[0] < 32 * more_rows  # bytes; a row of the table has 808
    assert preparing[1] - preparing[0] < 80 * more_rows
    assert reading[0] < 4 * table_files.CHUNK + 32 * rows[0]
    assert preparing[0] < 10 * columns.BLOCK + 80 * rows[0]


def test_long_rows_make_chunks_of_fewer_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "n" * 4_000
    (tmp_path / "own.csv").write_text("x,note\n" + f"1,{text}\n" * 1_000)
    (tmp_path / "short.csv").write_text("x,note\n" + "1,n\n" * 100_000)
    monkeypatch.setattr(table_files, "CHUNK", 2**18)
    long = [len(frame) for frame in table_files.read_chunks(tmp_path / "own.csv", ["note"])]
    assert sum(long) == 1_000
    assert max(long) * len(text) <= 2**18
    short = [len(frame) for frame in table_files.read_chunks(tmp_path / "short.csv", ["note"])]
    assert sum(short) == 100_000
    assert max(short) > 100 * max(long)


def test_a_row_group_of_parquet_is_not_read_as_a_whole(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    random = numpy.random.default_rng(1)
    rows = pandas.DataFrame(random.normal(size=(400_000, 10))).rename(columns=str)
    rows.to_parquet(tmp_path / "own.parquet", row_group_size=len(rows), use_dictionary=False)
    del rows
    pool = pyarrow.default_memory_pool()
    before = pool.bytes_allocated()
    peak = 0
    for _ in table_files.read_chunks(tmp_path / "own.parquet", []):
        peak = max(peak, pool.bytes_allocated() - before)
    assert peak < 2 * table_files.CHUNK < (tmp_path / "own.parquet").stat().st_size / 1.8


@pytest.mark.slow
@pytest.mark.bits
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_a_table_several_times_larger_than_memory_gives_the_same_results(tmp_path: Path) -> None:
    """Memory is counted beyond that of a run on a small table; the limit is twice what is needed."""
    size = 200_000_000
    large_table.write_table(tmp_path / "large.csv", size)
    found = []
    for name, limit in (("limited", ["--limit", "128"]), ("free", [])):
        place = tmp_path / name
        place.mkdir()
        (place / "large.csv").symlink_to(tmp_path / "large.csv")
        command = [sys.executable, large_table.__file__, "--alone", str(place), "--rounds", "1"]
        done = subprocess.run(
            [*command, *limit],
            stdout=subprocess.PIPE,
            check=True,
            timeout=250,
            env=os.environ | {"CLIENTWISE_CACHE": str(place / "cache")},
        )
        found.append(json.loads(done.stdout))
    limited, free = found
    assert 3 * 2**20 * max(limited["memory"], free["memory"]) < size  # MiB, bytes
    assert limited["metrics"] == free["metrics"]
    assert limited["losses"] == free["losses"]

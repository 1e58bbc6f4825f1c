from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from clientwise.report.data_tables import (
    BLOCKS,
    class_table,
    data_charts,
    remarks,
    size_table,
)
from clientwise.report.output.figures import draw
from rich.console import Console

from clientwise.core.objective.problem import Classification
from clientwise.data.datasets import diabetes, digits
from clientwise.data.division import federate
from clientwise.data.federated import FederatedData, Samples
from clientwise.data.partition import Pool, iid, shards, table
from clientwise.data.summary import DataSummary, summarise

COUNTS = [[30, 0, 5] + [0] * 7, [30, 40, 0] + [0] * 7, [100] + [0] * 9]


def federated(samples: Samples, partition, **options) -> FederatedData:
    settings = {"test_fraction": 0.0, "server_fraction": 0.2, "report_fraction": 0.5} | options
    return federate(samples, partition, 1, **settings)


@pytest.fixture
def tabled() -> DataSummary:
    def partition(pool: Pool, seed: int) -> list[torch.Tensor]:
        return table(pool, seed, counts=COUNTS, overlap=True)

    return summarise(federated(digits(None), partition))


def printed(*what: object) -> list[str]:
    console = Console(file=io.StringIO(), width=100)
    for one in what:
        console.print(one)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def test_counts(tabled: DataSummary) -> None:
    assert tabled.classes.tolist() == COUNTS
    assert tabled.classes_per_client.tolist() == [2, 2, 1]
    assert tabled.train.tolist() == [35, 70, 100]
    zeros = (
        int((digits(None).targets == 0).sum()) - 36
    )  # of the class zero, after the server took its fifth
    assert tabled.shared == 160 - zeros
    used = 205 - tabled.shared + int(tabled.weigh.sum()) + int(tabled.report.sum())
    assert tabled.unused == 1797 - used


def test_tables_and_remarks(tabled: DataSummary) -> None:
    lines = printed(size_table(tabled, "digits [by table]"), class_table(tabled))
    assert "digits [by table]" in lines[0]
    assert "training samples 35 70 100 205" in lines
    assert "classes 1 2 2 10" in lines
    assert "0 35 30 · 5 · · · · · · ·" in lines
    assert "all 205 160 40 5 · · · · · · ·" in lines
    said = list(remarks(tabled, False, [2]))
    assert said[0].startswith("Server: 179 samples for weighting, 180 for reporting")
    assert (
        f"Not disjoint: {tabled.shared} training samples are held by more than one client." in said
    )
    assert any(line.startswith(f"Not used: {tabled.unused:,} of 1,797") for line in said)
    assert "The clients have no test sets." in said
    assert any("Hostile: 1 client (2)" in line for line in said)


def test_many_clients_are_shown_by_some_of_them() -> None:
    data = federated(
        digits(None),
        lambda pool, seed: iid(pool, seed, clients=300),
        test_fraction=0.5,
        server_fraction=0,
    )
    summary = summarise(data)
    lines = printed(class_table(summary))
    shown = [line.split() for line in lines if line[:1].isdigit()]
    assert len(shown) == 24
    sizes = [int(row[1]) for row in shown]
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1]) == (int(summary.train.max()), int(summary.train.min()))
    said = list(remarks(summary, False, []))
    assert said[0].startswith("Server: no samples")
    assert said[-1] == "Below: 24 of the 300 clients, from the largest to the smallest."


def test_many_classes_are_blocks() -> None:
    samples = replace(digits(None), targets=torch.arange(1797) % 62, problem=Classification(62))
    summary = summarise(
        federated(samples, lambda pool, seed: shards(pool, seed, clients=10), server_fraction=0)
    )
    lines = printed(class_table(summary))
    assert any("classes 0 to 61" in line for line in lines)
    assert sum(BLOCKS[-1] in line for line in lines) >= 10


def test_regression_has_sizes_only(tmp_path: Path) -> None:
    summary = summarise(
        federated(diabetes(None), lambda pool, seed: iid(pool, seed, clients=4), shared_set=True)
    )
    assert class_table(summary) is None
    assert "classes" not in " ".join(printed(size_table(summary, "diabetes")))
    assert (
        next(remarks(summary, True, [])) == "Server: 88 samples, for weighting and for reporting."
    )
    assert [chart.id for chart in data_charts(summary, "diabetes")] == ["sizes"]


def test_charts(tabled: DataSummary, tmp_path: Path) -> None:
    mixture, sizes = data_charts(tabled, "digits")
    assert mixture.mark.values[1][:2] == pytest.approx([3 / 7, 4 / 7])
    assert sizes.mark.lines[0].y == [100, 70, 35]
    assert len(sizes.mark.lines) == 1  # nobody tests anything
    draw([mixture, sizes], tmp_path / "who.svg")
    assert "<svg" in (tmp_path / "who.svg").read_text()
    draw([mixture, sizes], tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "who.svg").read_bytes()

"""How samples are divided among clients, as `clientwise check --data` shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from clientwise.core.objective.problem import Classification
from clientwise.data.datasets import diabetes, digits
from clientwise.data.federated import FederatedData, Samples
from clientwise.data.partition import Pool, iid, shards, table
from clientwise.data.summary import DataSummary, summarise
from clientwise.report.about import data_items
from clientwise.report.items import Table
from dividing import federate

COUNTS = [[30, 0, 5] + [0] * 7, [30, 40, 0] + [0] * 7, [100] + [0] * 9]


def federated(samples: Samples, partition, **options) -> FederatedData:
    settings = {"test_fraction": 0.0, "server_fraction": 0.2, "report_fraction": 0.5} | options
    return federate(samples, partition, 1, **settings)


@pytest.fixture
def tabled() -> DataSummary:
    def partition(pool: Pool, seed: int) -> list[torch.Tensor]:
        return table(pool, seed, counts=COUNTS, overlap=True)

    return summarise(federated(digits(None), partition))


def shown(
    summary: DataSummary, hostile: tuple[int, ...] = ()
) -> tuple[dict[str, Table], list[str]]:
    items = [*data_items(summary, "who", hostile)]
    tables = {one.id: one for one in items if isinstance(one, Table)}
    return tables, [one for one in items if isinstance(one, str)]


def test_tables_and_remarks(tabled: DataSummary) -> None:
    zeros = int((digits(None).targets == 0).sum()) - 36  # the server took a fifth of this class
    assert tabled.shared == 160 - zeros
    tables, said = shown(tabled, hostile=(2,))
    rows = tables["clients"].texts()
    assert rows[0] == ["0", "35", "·", "30", "·", "5", *["·"] * 7]
    assert [row[1] for row in rows] == ["35", "70", "100"]
    assert (
        f"Not disjoint: {tabled.shared} training samples are held by more than one client." in said
    )
    assert any(line.startswith(f"Not used: {tabled.unused:,} of 1,797") for line in said)
    assert any("Hostile: 1 client (2)" in line for line in said)


def test_many_clients_are_shown_by_some_of_them() -> None:
    data = federated(
        digits(None),
        lambda pool, seed: iid(pool, seed, clients=300),
        test_fraction=0.5,
        server_fraction=0,
    )
    summary = summarise(data)
    table = shown(summary)[0]["clients"]
    sizes = table.frame["training"].tolist()
    assert sizes == sorted(summary.train.tolist(), reverse=True)[:24]
    assert table.note == "The 24 largest of 300 clients."


def test_of_many_classes_their_number_is_shown() -> None:
    samples = replace(digits(None), targets=torch.arange(1797) % 62, problem=Classification(62))
    summary = summarise(
        federated(samples, lambda pool, seed: shards(pool, seed, clients=10), server_fraction=0)
    )
    table = shown(summary)[0]["clients"]
    assert table.frame["classes"].tolist() == summary.classes_per_client.tolist()


def test_regression_has_sizes_only() -> None:
    summary = summarise(
        federated(diabetes(None), lambda pool, seed: iid(pool, seed, clients=4), shared_set=True)
    )
    tables, said = shown(summary)
    assert tables["clients"].columns == ["client", "training", "test"]
    assert len(said) == 0

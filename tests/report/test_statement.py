"""The statement for a site: its numbers are those of the record, and no other site's are in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

import clientwise as cw
from clientwise.errors import RunError
from clientwise.report.document import Document, Table
from clientwise.report.statement import sites, statement
from clientwise.runs.folder import RunFolder

SIZES = {"north": 41, "south": 53, "<b>east</b>": 67, "west": 83}
CONFIG: dict[str, Any] = {
    "name": "statements",
    "rounds": 3,
    "model": "linear",
    "methods": [{"name": "FedAvg", "criteria": ["dataset_size", "label_diversity"]}, "Alone"],
    "evaluation": {"shapley": True},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    random = numpy.random.default_rng(1)

    def drawn(size: int) -> tuple[Any, Any]:
        inputs = random.normal(size=(size, 4)).astype("float32")
        return inputs, (inputs[:, 0] > 0).astype(int)

    train = [drawn(size) for size in SIZES.values()]
    test = [drawn(20) for _ in SIZES]
    data = cw.FederatedData.from_clients(train, test, report=drawn(60), names=list(SIZES))
    return RunFolder(cw.run(CONFIG, tmp_path_factory.mktemp("s") / "run", data=data))


def text_of(document: Document) -> str:
    parts = [document.title, *document.lead]
    for section in document.sections:
        parts += [section.title, section.lead]
        for item in section.items:
            parts.append(item.title)
            if isinstance(item, Table):
                parts += [str(getattr(cell, "text", cell)) for row in item.rows for cell in row]
            else:
                parts.append(item.alt)
    return "\n".join(parts)


def test_its_numbers_are_those_of_the_record(run: RunFolder) -> None:
    rows = {row.name: row for row in run.participants("FedAvg", 1, 3)}
    raw = {(row.client, row.criterion): row.raw for row in run.criteria("FedAvg", 1, 3)}
    for client, site in enumerate(sites(run)):
        said = text_of(statement(run, site, "FedAvg", 1))
        assert f"In round 3, your weight was {rows[site].weight:.1%}" in said
        assert f"{raw[client, 'dataset_size']:.4g}" in said
        assert "equal weights would be 25.0%" in said
        assert "arrived in 3 of 3 rounds. None was refused." in said
        assert "than a model that you trained alone" in said
        total = sum(r.shapley for r in run.contributions("FedAvg", 1) if r.client == client)
        assert f"{100 * total + 0.0:+.1f} points over all rounds" in said.replace("-0.0", "+0.0")


def test_no_value_of_another_site_is_in_it(run: RunFolder) -> None:
    rows = {row.name: row for row in run.participants("FedAvg", 1, 3)}
    raw = {
        row.client: row.raw
        for row in run.criteria("FedAvg", 1, 3)
        if row.criterion == "dataset_size"
    }
    for site in sites(run):
        said = text_of(statement(run, site, "FedAvg", 1))
        for other, name in enumerate(sites(run)):
            if name != site:
                assert name not in said
                assert f"{raw[other]:g} " not in said
                assert (
                    f"{rows[name].weight:.1%}" not in said or rows[name].weight == rows[site].weight
                )


def test_a_range_needs_three_others(tmp_path: Path) -> None:
    config = {
        "name": "few",
        "rounds": 1,
        "data": "digits",
        "model": "linear",
        "methods": ["FedAvg"],
    }
    config |= {"partition": {"name": "iid", "clients": 3}}
    few = RunFolder(cw.run(config, tmp_path / "run"))
    assert "not shown" in text_of(statement(few, "client 0", "FedAvg", 1))


def test_an_unknown_site_is_said(run: RunFolder) -> None:
    with pytest.raises(RunError, match="no site is called 'nord'; did you mean 'north'"):
        statement(run, "nord", "FedAvg", 1)

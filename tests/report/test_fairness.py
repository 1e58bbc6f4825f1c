"""The fairness table: against the clients' own metrics, and in every output."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy
import pytest
from typer.testing import CliRunner

import clientwise as cw
from clientwise.cli import app
from clientwise.report.document import Table
from clientwise.report.output.export import as_csv, as_latex, as_markdown
from clientwise.report.sections.fairness import groups_of, jain_index, worst_tenth
from clientwise.report.views import overview

JOBS = ["nurse", "cook", "nurse", "cook", "nurse", "cook"]
AGES = [20.0, 30.0, 40.0, 50.0, 60.0, 70.0]


def table_of(run: cw.Run) -> Table | None:
    items = [item for section in overview([run]).sections for item in section.items]
    return next((item for item in items if item.id == "fairness"), None)


@pytest.fixture
def run(tiny: dict[str, Any], tmp_path: Path) -> cw.Run:
    facts = {"job": JOBS, "age": AGES, "alike": ["yes"] * 6}
    changes = {"seeds": [1, 2], "attributes": facts, "methods": ["FedAvg", "Uniform"]}
    changes["hostile"] = [{"attack": "wrong_labels", "clients": [5]}]
    return cw.run(tiny | changes, tmp_path / "run")


def test_the_table_is_computed_from_the_honest_clients(run: cw.Run) -> None:
    table = table_of(run)
    assert table is not None
    labels = [column.label for column in table.columns]
    assert labels == [
        "method",
        "mean",
        "worst 10%",
        "best 10%",
        "standard deviation",
        "Jain's index",
        "gap by job",
        "gap by age",
    ]
    assert [row[0] for row in table.rows] == ["FedAvg", "Uniform"]
    rows = run.query(
        """SELECT seed, client, metric FROM local JOIN lanes USING (lane)
           WHERE method = 'Uniform' AND round_num = 3 AND client <> 5 ORDER BY seed, client"""
    )
    values = numpy.array([metric for _, _, metric in rows]).reshape(2, 5)  # seed, client
    found = {label: cell.value for label, cell in zip(labels[1:], table.rows[1][1:], strict=True)}
    assert found["mean"] == pytest.approx(values.mean())
    assert found["worst 10%"] == pytest.approx(values.min(1).mean())
    assert found["best 10%"] == pytest.approx(values.max(1).mean())
    assert found["standard deviation"] == pytest.approx(values.std(1).mean())
    jain = values.sum(1) ** 2 / (5 * (values**2).sum(1))
    assert found["Jain's index"] == pytest.approx(jain.mean())
    nurses, cooks = values[:, [0, 2, 4]].mean(), values[:, [1, 3]].mean()
    assert found["gap by job"] == pytest.approx(abs(nurses - cooks))
    worst = "nurse" if nurses < cooks else "cook"
    assert table.rows[1][6].text.endswith(f"points (worst: {worst})")


def test_all_files_have_it(run: cw.Run) -> None:
    table = table_of(run)
    assert table is not None
    head, first, *_ = csv.reader(as_csv(table).splitlines())
    row = dict(zip(head, first, strict=True))
    assert float(row["standard deviation variance"]) > 0
    assert row["gap by job worst"] in ("nurse", "cook")
    shown = CliRunner().invoke(app, ["show", str(run.folder), "--fairness"]).output
    for text in (as_markdown(table), as_latex(table), shown):
        assert "Jain" in text


def test_one_client_has_no_fairness(tiny: dict[str, Any], tmp_path: Path) -> None:
    changes = {"partition": {"name": "iid", "clients": 1}, "rounds": 1, "federation": {}}
    run = cw.run(tiny | changes, tmp_path / "run")
    assert table_of(run) is None
    shown = CliRunner().invoke(app, ["show", str(run.folder), "--fairness"])
    assert "nothing to compare" in shown.output


def test_measures_by_hand() -> None:
    accuracies = [number / 100 for number in range(60, 85)]  # 25 clients: three are a tenth
    assert worst_tenth(accuracies, higher_is_better=True) == pytest.approx(0.61)
    assert worst_tenth(accuracies, higher_is_better=False) == pytest.approx(0.83)
    assert jain_index([1.0, 2.0, 3.0]) == pytest.approx(36 / 42)
    assert jain_index([0.0, 0.0]) is None
    assert jain_index([-1.0, 2.0]) is None
    many = [f"site {number}" for number in range(11)]
    assert groups_of(many) == []
    assert groups_of([True, False]) == ["True", "False"]
    assert len(groups_of([math.nan, *map(float, range(12))])) == 13

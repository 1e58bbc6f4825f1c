"""Time and bytes beside rounds: in all tables, as curves, and nowhere where clients have no clock."""

from __future__ import annotations

import io
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import clientwise as cw
from clientwise.report.document import Chart, Table
from clientwise.report.output.export import as_csv, as_latex, as_markdown
from clientwise.report.output.figures import draw
from clientwise.report.terminal import summary_table
from clientwise.report.views import overview

CONFIG: dict[str, Any] = {
    "name": "timed",
    "rounds": 8,
    "seeds": [1, 2],
    "device": "cpu",
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 6, "concentration": 0.5},
    "model": "linear",
    "training": {"batch_size": 20},
    "federation": {"fraction": 0.5},
    "evaluation": {"target": 0.3},
    "devices": {"speed": {"name": "uniform", "low": 1.0, "high": 5.0}, "up": 100.0},
    "methods": [{"name": "FedAvg"}, {"name": "buffered", "pace": {"buffer": 2}}, "Pooled"],
}


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> cw.Run:
    """Two seeds on a clock, and a control that has none."""
    return cw.Run(cw.run(CONFIG, tmp_path_factory.mktemp("run") / "timed"))


def items(run: cw.Run) -> dict[str, Any]:
    return {item.id: item for section in overview([run]).sections for item in section.items}


def test_time_and_bytes_to_target_are_those_of_the_round_that_got_there(timed: cw.Run) -> None:
    for line in timed.summary()[:2]:
        for seed, rounds, time, size in zip(
            line.seeds,
            line.rounds_to_target,
            line.time_to_target,
            line.bytes_to_target,
            strict=True,
        ):
            assert rounds is not None
            assert time == timed.times(line.method, seed)[rounds]
            moved = timed.query(
                "SELECT SUM(models_moved) FROM rounds WHERE lane = ? AND round_num <= ?",
                timed.lane(line.method, seed),
                rounds,
            )
            assert size == moved[0][0] * 650 * 4
    assert timed.summary()[2].time_to_target == [None, None]
    shown = {getattr(row[0], "text", row[0]): row for row in items(timed)["summary"].rows}
    assert [
        cell.text for cell in shown["Pooled †"] if getattr(cell, "text", "") == "–"
    ]  # and not "not reached"
    assert "Pooled" not in [row[0] for row in items(timed)["target-0.3-time"].rows]


def test_they_stand_beside_rounds_in_every_table(timed: cw.Run) -> None:
    found = items(timed)
    summary = found["summary"]
    latex = (
        as_latex(summary).replace("\\%", "%").replace(" \\\\ ", " ")
    )  # headings have line breaks
    for text in (as_csv(summary), as_markdown(summary), latex):
        assert text.index("rounds to 30%") < text.index("time to 30%") < text.index("bytes to 30%")
    assert {"target-0.3", "target-0.3-time", "target-0.3-bytes"} <= found.keys()
    assert len(found["target-0.3-time"].rows[0]) == 10
    assert "time on the clients' clock per round" in [
        column.label for column in found["costs"].columns
    ]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(summary_table(timed))
    printed = console.export_text()
    assert all(len(line.rstrip()) <= 80 for line in printed.splitlines())
    assert "time" in printed
    assert "bytes" in printed
    assert timed.columns("clock")["ended"][:8] == [*timed.times("FedAvg", 1).values()]


def test_who_is_late_or_drops_out_is_no_news(tmp_path: Path) -> None:
    config = CONFIG | {
        "rounds": 4,
        "seeds": [1],
        "methods": [{"name": "x", "pace": {"deadline": 90.0}}],
    }
    run = cw.Run(
        cw.run(config | {"devices": {**CONFIG["devices"], "dropout": 0.2}}, tmp_path / "run")
    )
    assert {reason for reason, _ in run.refusal_counts("x")} == {
        "late: the round had ended",
        "dropped out",
    }
    document = overview([run])
    assert not any("refused" in line for line in document.lead)
    assert "refused" in {
        item.id for section in document.sections for item in section.items
    }  # but it is told


def test_curves_stand_where_their_rounds_end(timed: cw.Run, tmp_path: Path) -> None:
    found = items(timed)
    over_rounds, over_time = found["metric"], found["metric-time"]
    lines = {line.name: line for line in over_time.mark.lines}
    assert [*lines] == ["FedAvg", "buffered"]  # the control has no clock
    plain = next(line for line in over_rounds.mark.lines if line.name == "FedAvg")
    ends = [timed.times("FedAvg", seed) for seed in (1, 2)]
    unit = {"minutes": 60, "hours": 3600}[over_time.mark.x.unit]
    assert lines["FedAvg"].x == pytest.approx(
        [sum(end[r] for end in ends) / 2 / unit for r in range(1, 9)]
    )
    assert lines["FedAvg"].y == plain.y
    assert lines["FedAvg"].links.numbers == [
        *range(1, 9)
    ]  # a click opens the round, not the minute
    assert "over time" in over_time.alt
    assert "over the rounds" not in over_time.alt
    assert found["metric-bytes"].mark.x.label == "kB"
    draw([over_time], tmp_path / "time.png")


def test_without_a_clock_nothing_is_shown(timed: cw.Run, tmp_path: Path) -> None:
    copy = shutil.copytree(timed.folder, tmp_path / "copy")
    with closing(sqlite3.connect(copy / "run.sqlite")) as database, database:
        database.execute("DELETE FROM clock")
    run = cw.Run(copy)
    assert run.times("FedAvg", 1) == {}
    assert run.columns("clock")["ended"] == []
    for item in items(run).values():
        assert isinstance(item, Chart | Table)
        assert "time" not in item.id
        assert "bytes" not in item.id
        if isinstance(item, Table):
            assert not any(
                "time" in column.label or "bytes to" in column.label for column in item.columns
            )
    assert "time" not in "".join(str(column.header) for column in summary_table(run).columns)

from __future__ import annotations

import csv
import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from pages import write_run

import clientwise as cw
from clientwise.report import views
from clientwise.report.document import Cell, Chart, Document, Section, table
from clientwise.report.export import (
    _file_name,
    as_csv,
    as_latex,
    as_markdown,
    unique_names,
    write_items,
    write_report,
)

TABLE = table(
    "t", "100% of a_b", ["method", "gain"], [["MW > LD | DS", Cell(4.67, "+4.7 ± 0.3")], ["x^2", None]], "κ & co."
)


def test_tables_in_three_formats() -> None:
    assert list(csv.reader(as_csv(TABLE).splitlines())) == [["method", "gain"], ["MW > LD | DS", "4.67"], ["x^2", ""]]
    assert as_markdown(TABLE).splitlines()[2:6] == [
        "| method | gain |",
        "| :-- | --: |",
        "| MW > LD \\| DS | +4.7 ± 0.3 |",
        "| x^2 |  |",
    ]
    latex = as_latex(TABLE)
    assert r"\begin{tabular}{lr}" in latex
    assert r"MW $\succ$ LD | DS & +4.7 $\pm$ 0.3 \\" in latex
    assert r"\caption{100\% of a\_b. $\kappa$ \& co.}" in latex
    assert latex.count("{") == latex.count("}")


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    for name in ("tables/s-t.csv", "figures/s-c.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).symlink_to(precious)
    os.mkfifo(tmp_path / "tables" / "s-t.md")
    line = Chart("c", "a chart", "a line", [{"x": [1], "y": ["a"], "marker": {"color": "#000000"}}], {})
    write_items(Document("report", [], [Section("s", "all", "", [TABLE, line])]), tmp_path, lambda path: None)
    assert precious.read_bytes() == b"precious"
    assert (tmp_path / "figures" / "s-c.png").read_bytes()[:4] == b"\x89PNG"
    assert "| method |" in (tmp_path / "tables" / "s-t.md").read_text()


def test_a_report_has_a_page_figures_and_tables(report: Path) -> None:
    names = {path.name for path in report.rglob("*")}
    assert "report.html" in names
    for stem in ("curves-metric", "clients-distribution", "weights-hostile", "priority-priority-online"):
        assert (report / "figures" / f"{stem}.png").read_bytes()[:4] == b"\x89PNG"
        ElementTree.parse(report / "figures" / f"{stem}.svg")
    for stem in ("result-summary", "targets-target-0.6", "cost-costs"):
        for suffix in ("csv", "md", "tex"):
            assert (report / "tables" / f"{stem}.{suffix}").stat().st_size > 50
    assert not [name for name in names if "<" in name or "&" in name or "/" in name]


def test_the_page_carries_its_audits(report: Path) -> None:
    page = (report / "report.html").read_text(encoding="utf-8")
    assert '"online|1|5"' in page
    assert "<b>AdaFed" not in page  # a name from a config is never markup


def test_file_names_do_not_collide() -> None:
    used: set[str] = set()
    assert [_file_name(text, used) for text in ("map-a/b", "map-a-b", "map-A b", "target-0.65")] == [
        "map-a-b",
        "map-a-b-2",
        "map-A-b-3",
        "target-0.65",
    ]


@pytest.mark.parametrize("rounds", [1, 2])
def test_the_shortest_runs_and_regression_can_be_reported(tmp_path: Path, rounds: int) -> None:
    config = {
        "name": "short",
        "rounds": rounds,
        "data": "diabetes",
        "partition": {"name": "iid", "clients": 3},
        "model": "linear",
        "training": {"learning_rate": 0.01},
        "server_set": {"fraction": 0.2 if rounds == 2 else 0.0},
        "evaluation": {"target": 0.5},
        "methods": [
            {"name": "FedAvg"},
            {"name": "m" * 200, "criteria": ["dataset_size", "model_divergence"], "adjust": "best_order"},
        ],
    }
    run = cw.Run(cw.run(config, tmp_path / "run"))
    page = write_report([run], tmp_path / "report")
    head = (page.parent / "tables" / "result-summary.csv").read_text().splitlines()[0]
    assert head == "method,mape,against the baseline,worst decile of clients,rounds to 50%"  # no F1, nobody hostile
    assert "points worse" not in views.overview([run]).lead[0]
    expected = "held-out samples" if rounds == 2 else "the honest clients' own test data"
    assert run.reported_on == expected


def test_reports_of_several_runs_carry_their_audits(tmp_path: Path) -> None:
    shown = write_run(tmp_path / "shown", ["online"])
    names = unique_names([shown, shown])
    assert list(names) == ["shown", "shown~2"]
    page = write_report([cw.Run(folder, name) for name, folder in names.items()], tmp_path / "both")
    text = page.read_text(encoding="utf-8")
    assert "shown: online" in text
    assert '"shown~2|online|1|5"' in text

"""What a report writes beside its page: CSV, LaTeX, pictures."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from xml.etree import ElementTree

import pandas
import pytest
from made import Made, around

import clientwise as cw
from clientwise.record.run import RunFolder
from clientwise.report import charts, page
from clientwise.report.charts import FORMATS, draw, specification
from clientwise.report.items import Chart, Column, Table, fixed, table
from clientwise.report.page import (
    as_csv,
    as_latex,
    report_sections,
    write_items,
    write_report,
)
from clientwise.report.results import Results
from clientwise.results import Run

HOSTILE = "=cmd|'/c calc'!A1"
SHOWN = table(
    "a/b",
    "100% & more",
    [
        Column("method", ["A_1", HOSTILE]),
        Column("metric", [0.123456, 2.0], fixed(1), {"seeds": [3, 4]}),
        Column("absent", [None, None]),
    ],
    "Read #1.",
    bold=(0,),
)


def test_tables_in_two_formats() -> None:
    head, first, second = csv.reader(as_csv(SHOWN).splitlines())
    assert head == ["method", "metric", "metric seeds"]
    assert first == ["A_1", "0.123456", "3"]
    assert second[0] == f"'{HOSTILE}", "no spreadsheet computes it"
    latex = as_latex(SHOWN)
    assert latex.startswith("% 100% & more\n% Read #1.\n")
    assert "A\\_1 & 0.1 \\\\" in latex
    assert "\\begin{tabular}{lr}" in latex


def test_names_of_files_do_not_collide(tmp_path: Path) -> None:
    items = [Table(name, "t", pandas.DataFrame({"x": [1]})) for name in ("../a b", "../A B", "a b")]
    write_items(items, tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*.csv")) == [
        "A-B-2.csv",
        "a-b-3.csv",
        "a-b.csv",
    ]


@pytest.mark.parametrize("kind", ["lines", "bars", "cells"])
def test_every_kind_of_chart_is_drawn_in_every_format(kind: str, tmp_path: Path) -> None:
    frame = pandas.DataFrame(
        {"x": [1, 2], "y": [0.5, None], "name": ["<b>", "b"], "low": [0.1, 0.2], "high": [0.6, 0.7]}
    )
    places = {"lines": ("x", "y", "name"), "cells": ("x", "name", "y")}.get(
        kind, ("x", "name", "name")
    )
    chart = Chart(
        "c",
        "A title",
        frame,
        kind,
        *places,
        low="low",
        high="high",
        reference=None if kind == "cells" else 0.4,
    )
    for format, begins in zip(FORMATS, (b"%PDF", b"\x89PNG", b"<svg"), strict=True):
        draw(chart, tmp_path / f"c.{format}")
        assert (tmp_path / f"c.{format}").read_bytes().startswith(begins)
    assert "A title" in (tmp_path / "c.svg").read_text()


def test_no_name_is_cut_in_a_picture_for_a_column() -> None:
    names = [f"{'M' * 60}{number}" for number in range(4)]
    heading = f"{names[0]}, seed 1"
    frame = pandas.DataFrame({"round": 1, "value": 0.5, "method": names})
    (picture,) = charts.pictures([Chart("c", heading, frame, "lines")], "svg")
    root = ElementTree.fromstring(picture)
    ends = {}

    def walk(element: ElementTree.Element, left: float) -> None:
        moved = re.match(r"translate\(([-\d.]+)", element.get("transform", ""))
        left += float(moved[1]) if moved else 0
        if element.text in {heading, *names}:
            size = float(element.get("font-size", "").removesuffix("px"))
            ends[element.text] = left + 0.6 * size * 60  # no font has a narrower M
        for child in element:
            walk(child, left)

    walk(root, 0)
    assert {*ends} == {heading, *names}, "all are whole"
    assert max(ends.values()) < float(root.get("width", ""))


def test_a_method_has_one_colour_in_all_charts() -> None:
    methods = ["A", "B", "C"]
    run = Made({name: around(0.7, 0, 1) for name in methods})
    run.frames["rounds"].loc[run.frames["rounds"]["method"] == "A", "loss"] = None
    items = [one for own in report_sections(Results([run])).values() for one in own]
    lines = [one for one in items if isinstance(one, Chart) and one.kind == "lines"]
    assert len(lines) == 2
    for chart in lines:
        scale = specification(chart)["layer"][0]["encoding"]["color"]["scale"]
        assert scale["domain"] == methods
        assert len({*scale["range"]}) == 3


def test_a_run_draws_a_chart_of_its_report(shown: cw.Run) -> None:
    run = Run(shown.folder)
    assert "accuracy" in str(run.figure().to_dict())
    assert run.figure("loss").to_dict()["layer"]
    with pytest.raises(cw.ClientwiseError, match="there is no chart 'los'; did you mean 'loss'"):
        run.figure("los")


def test_a_page_is_small_and_the_script_of_its_charts_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves = {
        f"method {number}": {seed: [0.5] * 300 for seed in range(1, 6)} for number in range(5)
    }
    path = write_report([Made(curves)], tmp_path / "report")
    assert path.stat().st_size < 5_000_000
    assert "No charts" not in path.read_text("utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    page.chart_script.cache_clear()
    made = page.chart_script()
    (cached,) = (tmp_path / "cache").rglob("*.js")
    assert cached.read_text("utf-8") == made
    page.chart_script.cache_clear()


def test_where_charts_cannot_be_drawn_a_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where there is too little memory: then the program that draws ends its process."""
    monkeypatch.setattr(charts, "PROGRAM", "import os; os.abort()")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    page.chart_script.cache_clear()
    text = write_report([Made({"A": around(0.7, 0, 1)})], tmp_path).read_text("utf-8")
    assert "No charts: charts cannot be drawn: too little memory?" in text
    assert "<table>" in text
    with pytest.raises(cw.ClientwiseError, match="charts cannot be drawn"):
        write_report([Made({"A": around(0.7, 0, 1)})], tmp_path, ["pdf"])
    monkeypatch.setattr(charts, "PROGRAM", "while True: pass")
    monkeypatch.setattr(charts, "PATIENCE", 1)
    page.chart_script.cache_clear()
    text = write_report([Made({"A": around(0.7, 0, 1)})], tmp_path).read_text("utf-8")
    assert "No charts: charts cannot be drawn: not done after 1 seconds" in text


def test_a_page_of_several_runs_has_no_audits(shown: cw.Run, tmp_path: Path) -> None:
    runs = [RunFolder(shown.folder, name) for name in ("one", "two")]
    alone, both = (write_report(own, tmp_path).read_text("utf-8") for own in (runs[:1], runs))
    assert (alone.count("<details"), both.count("<details")) == (6, 0)
    assert "two: FedAvg" in both

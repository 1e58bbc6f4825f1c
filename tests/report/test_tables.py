"""A column of the result is stated once, and every output shows it."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from pages import carried, write_run
from rich.console import Console

import clientwise as cw
from clientwise.record.reading.folder import RunFolder
from clientwise.report.document import Cell, Column, Table, tabulate
from clientwise.report.output.export import as_csv, as_latex, as_markdown
from clientwise.report.output.html import as_file
from clientwise.report.output.notebook import run_html
from clientwise.report.sections import result
from clientwise.report.sections.targets import target_choices
from clientwise.report.series import Series, series_of
from clientwise.report.terminal import plain_table, summary_table
from clientwise.report.views import overview


def seeds_column(_: Sequence[Series]) -> Iterator[Column[Series]]:
    def cell(one: Series) -> Cell:
        count = len(one.summary.seeds)
        return Cell(count, f"{count} of them")

    yield Column("repetitions", cell)


def printed(table: object, width: int = 200) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


@pytest.mark.parametrize("write", [as_markdown, as_latex])
def test_the_caption_says_which_columns_are_about_all_rounds(shown: cw.Run, write) -> None:
    table = result.result_table(series_of([shown]))
    labels = [column.label for column in table.columns]
    assert {"influence of hostile clients", "testing rounds"} <= {*labels}
    text = write(table)
    assert "The influence of hostile clients is the mean over all rounds." in text
    assert "Testing rounds are counted over all rounds." in text


def test_a_new_column_of_the_result_is_in_every_output(
    shown: cw.Run, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setattr(result, "COLUMNS", (*result.COLUMNS, seeds_column))
    document = overview([shown])
    summary = document.sections[0].items[0]
    assert isinstance(summary, Table)
    page = tmp_path / "report.html"
    page.write_text(as_file(document), encoding="utf-8")
    (table,) = (
        item
        for section in carried(page)["document"]["sections"]
        for item in section["items"]
        if item["id"] == "summary"
    )
    assert table["columns"][-1] == {"label": "repetitions", "numeric": True}
    assert [row[-1] for row in table["rows"]] == [{"value": 3, "text": "3 of them"}] * 3
    head, *rows = csv.reader(as_csv(summary).splitlines())
    assert head[-1] == "repetitions"
    assert [row[-1] for row in rows] == ["3"] * 3  # the value; people read the text
    for text in (
        as_markdown(summary),
        as_latex(summary),
        printed(summary_table(shown)),
        run_html(shown),
    ):
        assert "repetitions" in text
        assert text.count("3 of them") == 3


def test_all_outputs_have_the_same_columns_in_the_same_order(shown: cw.Run) -> None:
    summary = result.result_table(series_of([shown]))
    labels = [column.label for column in summary.columns]
    terminal = [str(column.header).replace("\\", "") for column in summary_table(shown).columns]
    assert terminal == [*labels, "curve"]
    markdown = as_markdown(summary).splitlines()[2].strip("| ").split(" | ")
    assert markdown == labels
    methods = [row[0] for row in summary.texts()]
    lines = as_markdown(summary).splitlines()[4:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[:3]] == methods


def test_the_best_value_is_bold_wherever_there_is_bold() -> None:
    columns = [
        Column[tuple[str, float]]("method", lambda row: row[0], numeric=False),
        Column[tuple[str, float]](
            "loss", lambda row: Cell(row[1], f"{row[1]:.1f}"), lower_is_better=True, marks_best=True
        ),
    ]
    table = tabulate("t", "t", columns, [("[a]", 2.0), ("b", 1.0)], "")
    assert table.best() == {(1, 1)}
    assert "| b | **1.0** |" in as_markdown(table)
    assert r"b & \textbf{1.0}" in as_latex(table)
    shown = plain_table(table, "t")
    assert [*shown.columns[1].cells] == ["2.0", "[bold]1.0[/]"]
    assert "[a]" in printed(shown)


def test_a_table_breaks_lines_between_words_to_fit_the_terminal() -> None:
    columns = [
        Column[str]("method", lambda name: name, numeric=False),
        *(
            Column[str](f"influence of hostile clients {n}", lambda _: "+10.0 [-20.0, +30.0]")
            for n in range(5)
        ),
    ]
    shown = plain_table(tabulate("t", "t", columns, ["FedAvg"], ""), "t")
    for width in (200, 80, 70):
        lines = printed(shown, width).splitlines()
        assert max(map(len, lines)) <= width
        words = " ".join(lines).split()
        assert words.count("hostile") == words.count("+30.0]") == 5


def test_a_terminal_without_room_leaves_out_secondary_columns() -> None:
    columns = [
        Column[str]("method", lambda name: name, numeric=False),
        Column[str]("accuracy ± deviation", lambda _: "52.2% ± 13.1"),
        Column[str]("macro F1", lambda _: "0.915", is_secondary=True),
        Column[str]("against the baseline [95% CI]", lambda _: "+10.0 [-20.0, +30.0]"),
        Column[str]("rounds to 85%", lambda _: "not reached"),
        Column[str]("curve", lambda _: "▁▂▄▅▆▇████", numeric=False, is_secondary=True),
    ]
    shown = plain_table(tabulate("t", "t", columns, ["Recommended ‡"], ""), "t")
    left_out = {60: "curve", 50: "curve, macro F1"}
    for width in (60, 50, 200):  # a table can be printed again
        text = printed(shown, width)
        assert max(map(len, text.splitlines())) <= width
        assert "Recommended ‡  52.2% ± 13.1" in text
        for word in ("baseline", "rounds", "reached", "deviation"):
            assert word in text.split()
        if width in left_out:
            assert f"Not shown in {width} columns: {left_out[width]}." in text
            assert "▁▂▄" not in text
        else:
            assert "Not shown" not in text
            assert "▁▂▄▅▆▇████" in text


def test_a_target_that_nobody_set_is_not_all_that_can_be_reached(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", ["FedAvg", "other"])

    def choices(reached: float) -> list[float]:
        with closing(sqlite3.connect(folder / "run.sqlite")) as database, database:
            database.execute("UPDATE facts SET value = 'null' WHERE key = 'target'")
            database.execute("UPDATE rounds SET reached = ?", (json.dumps([reached] * 10),))
        return target_choices(series_of([RunFolder(folder)]))

    assert choices(0.83) == [0.8]
    assert choices(1.0) == []
    assert not any(one.id == "targets" for one in overview([RunFolder(folder)]).sections)

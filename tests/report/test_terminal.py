"""Items in the terminal, the list of runs, and a run in a Python session."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pandas
import pytest
from rich.console import Console

import clientwise as cw
from clientwise.record.run import RunFolder
from clientwise.report.items import Table, percent
from clientwise.report.terminal import (
    comparison,
    list_runs,
    print_items,
    run_html,
    run_items,
    run_text,
)


def printed(*items: object, width: int = 200) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    print_items(console, items)
    return console.export_text()


@pytest.fixture(scope="module")
def frames(shown: cw.Run) -> RunFolder:
    return RunFolder(shown.folder)


def test_a_narrow_terminal_leaves_out_secondary_columns_and_breaks_no_number() -> None:
    columns = {
        "method": ["Recommended ‡"],
        "accuracy": [0.522],
        "macro F1": [0.915],
        "rounds to 85%": [12345678],
    }
    table = Table(
        "t",
        "A table",
        pandas.DataFrame(columns),
        "What it means.",
        formats={"accuracy": percent},
        secondary=("macro F1",),
    )
    wide = printed(table)
    assert "0.915" in wide
    assert "Not shown" not in wide
    narrow = printed(table, width=36)
    assert max(map(len, narrow.splitlines())) <= 36
    assert "0.915" not in narrow
    assert "Not shown in 36 columns: macro F1." in narrow
    assert "12,345,678" in narrow
    assert "What it means." in narrow
    tight = printed(table, width=20)  # numbers are in several lines, and no digit is lost
    assert max(map(len, tight.splitlines())) <= 20
    assert sum(map(tight.count, "45678")) >= 5
    assert "…" not in tight


def test_words_are_broken_and_the_first_secondary_column_goes_first() -> None:
    row = {"client": ["north"], "reason": [6 * "words "], "score": [0.25], "harm": [0.125]}
    frame = pandas.DataFrame(row)
    table = Table("t", "A table", frame, secondary=("harm", "score", "reason"))
    narrow = printed(table, width=40)
    assert "Not shown in 40 columns: harm." in narrow
    assert narrow.count("words") == 6


def test_names_are_no_markup_and_rows_that_are_marked_are_bold() -> None:
    table = Table("t", "[red]t", pandas.DataFrame({"method": ["[/]a", "b\x1b[2J"]}), bold=(1,))
    console = Console(width=60, file=io.StringIO(), force_terminal=True, highlight=False)
    print_items(console, [table, "[bold]a text"])
    text = console.file.getvalue()
    for name in ("[red]t", "[/]a", "b[2J", "[bold]a text"):
        assert name in text
    assert "\x1b[1mb[2J" in text


def test_a_run_in_the_terminal_and_in_python(frames: RunFolder) -> None:
    text = printed(*run_items(frames))
    assert "shown: 5 rounds, mean ± SD of 3 seeds" in text
    assert "has the highest accuracy" in text
    assert "online: " in text
    assert "refused: model has NaN or Inf (" in text
    head, *lines = run_text(frames).splitlines()
    assert head.endswith(": finished, 3 methods, 3 seeds, 5 rounds")
    assert len([line for line in lines if " ± " in line]) == 3
    page = run_html(frames)
    assert "<b>AdaFed" not in page
    assert "&lt;b&gt;AdaFed&lt;/b&gt; &amp; co" in page
    assert page.count("<tr") == 4


def test_a_changed_run_is_compared_method_by_method(moved: cw.Run) -> None:
    run = RunFolder(moved.folder)
    items = [*comparison(run, RunFolder(moved.folder, "changed"))]
    table = next(one for one in items if isinstance(one, Table))
    assert len(table.frame) == 2 * len(run.methods)
    assert "rule: accuracy is no difference." in items


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, a folder that is none, and a damaged one."""
    folder = tmp_path_factory.mktemp("runs")
    config = {"rounds": 1, "data": "digits", "model": "linear", "methods": ["FedAvg"]}
    config["partition"] = {"name": "iid", "clients": 3}
    cw.run(config, folder / "first")
    cw.run(config | {"seeds": [1, 2], "methods": ["FedAvg", "FedYogi"]}, folder / "second")
    (folder / "figures").mkdir()
    (folder / "link").symlink_to(folder / "first")
    return folder


def test_runs_are_listed(parent: Path) -> None:
    assert sorted(list_runs(parent).frame["run"]) == ["first", "second"]
    assert list_runs(parent / "figures").frame.empty
    row = list_runs(parent).frame.set_index("run").loc["second"]
    assert (row["state"], row["rounds"]) == ("finished", "4 of 4")
    assert row["best"].endswith("%")


def test_the_list_says_why_a_run_cannot_be_read(parent: Path, tmp_path: Path) -> None:
    shutil.copytree(parent / "first", tmp_path / "damaged")
    (tmp_path / "damaged" / "run.sqlite").write_bytes(b"not a database at all" * 100)
    (row,) = list_runs(tmp_path).frame.to_dict("records")
    assert (row["run"], row["state"]) == ("damaged", "unreadable")
    assert "cannot be read" in row["note"]

"""Commands of the documentation exist with the options shown; those of the tutorial and README run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import clientwise as cw
from clientwise.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "lab" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TUTORIAL = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
MOST_POINTS_OFF = 6.0  # the last bits differ between processors, and 15 rounds enlarge them


def commands_of(block: str) -> list[list[str]]:
    """The words of every `clientwise` line, without its comment."""
    lines = [line for line in block.splitlines() if line.startswith("clientwise ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def shown_in(page: Path) -> list[list[str]]:
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [words for _, block in blocks for words in commands_of(block)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_parses(page: Path) -> None:
    group = typer.main.get_command(app)
    for name, *arguments in shown_in(page):
        command = group.commands[name]
        context = command.context_class(command, info_name=name)
        _, unknown, _ = command.make_parser(context).parse_args(args=list(arguments))
        assert not unknown, f"{page.name}: clientwise {name} does not take {unknown}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_experiment_that_is_named_exists(page: Path) -> None:
    for path in re.findall(
        r"\b(?:lab|examples)/[\w./-]+\.(?:toml|py|ipynb|csv)", page.read_text("utf-8")
    ):
        assert (ROOT / path).is_file(), f"{page.name} names {path}"


def run_command(words: list[str]) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, f"clientwise {shlex.join(words)}\n{done.output}\n{done.exception!r}"
    return done.output


def table_of(page: Path, column: str) -> dict[str, list[str]]:
    """The rows of the page's table that has this column, by their first cell; the head is the row ``head``."""
    rows: dict[str, list[str]] = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        if line.startswith("|") and column in line:
            rows = {"head": cells}
        elif rows and not line.startswith("|"):
            return rows
        elif rows and not set(line) <= set("|-: "):
            rows[cells[0]] = cells
    raise AssertionError(f"{page.name} has no table with a column {column!r}")


def test_the_tutorial_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program and command, in order, with the file as the reader has it by then, for fewer rounds."""
    monkeypatch.chdir(tmp_path)
    fewer = {"15": "2", "30": "3", "1-5": "1-3"}  # one more than the run has
    text = TUTORIAL.read_text(encoding="utf-8").replace("rounds = 15", "rounds = 2")
    text = text.replace("\nseeds = [1, 2, 3]\n", "\nseeds = [1, 2]\n")
    experiment = Path("first.toml")
    scope: dict[str, Any] = {}
    for language, block in BLOCK.findall(text):
        if language == "toml":
            with experiment.open("a", encoding="utf-8") as file:
                file.write(f"\n{block}")
        elif language == "python":
            exec(block, scope)
        for words in commands_of(block):
            newest = max(Path("runs").glob("first-*"), default=Path("runs"))
            words = [str(newest) if word.startswith("runs/first-") else word for word in words]
            words = [fewer.get(word, word) for word in words]
            output = run_command(words)
            assert "Traceback" not in output
    assert scope["weights"].sum() == pytest.approx(1)
    run = scope["run"]  # of the whole file
    assert run.facts.rounds == 2
    shown = table_of(TUTORIAL, "worst 10%")
    head = shown.pop("head")
    labels = summary_columns(run)
    assert [label for label in head if label not in labels] == [], (
        "columns that the command does not print"
    )
    assert list(shown) == run.methods


@pytest.mark.slow  # an experiment: five methods, three seeds, all rounds
def test_the_numbers_of_the_tutorial_are_true(tmp_path: Path) -> None:
    blocks = BLOCK.findall(TUTORIAL.read_text(encoding="utf-8"))
    experiment = tmp_path / "first.toml"
    parts = [block for language, block in blocks if language == "toml"]
    experiment.write_text("\n".join(parts), encoding="utf-8")
    run = cw.Run(cw.run(experiment, tmp_path / "run"))
    shown = table_of(TUTORIAL, "worst 10%")
    rounds = run.frame("rounds")
    ends = rounds[rounds["round"] == run.facts.rounds].groupby("method")["metric"].mean()
    for method, accuracy in ends.items():
        printed = float(shown[method][1].split("%")[0])
        assert abs(printed - 100 * accuracy) < MOST_POINTS_OFF, method


def summary_columns(run: cw.Run) -> list[str]:
    from reported import items_of

    return items_of(run)["summary"].columns


def test_the_example_of_a_table_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a CSV file to predictions for new rows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLIENTWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CLIENTWISE_DATA", raising=False)  # where its files would be searched
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    text = page.partition("## From a table to a prediction")[2].partition("\n## ")[0]
    output = ""
    scope: dict[str, object] = {}
    for language, block in BLOCK.findall(text):
        if language == "python":
            exec(block, scope)
        for words in commands_of(block):
            output += run_command(words)
    assert "patient" in output  # among the columns that `check` prints
    written = Path("predicted.csv").read_text(encoding="utf-8").splitlines()
    assert written[0].endswith("prediction,probability of no,probability of yes")
    assert len(written) == 11
    assert len(scope["predictions"]) == 10
    rounds = cw.Run("runs/patients").frame("rounds")
    assert rounds.groupby("seed")["metric"].last().mean() > 0.75


def test_the_readme_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    (program,) = [block for language, block in blocks if language == "python"]
    (quoted,) = [block for language, block in blocks if language == "text"]
    exec(program, {})
    # The network begins with random numbers, so evidence is a little different.
    printed = re.sub(r"\(since round.*", "", capsys.readouterr().out)
    assert printed.splitlines() == re.sub(r"\(since round.*", "", quoted).splitlines()
    assert not Path("runs").exists()

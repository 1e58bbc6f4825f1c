"""The statement for a site: its numbers are those of the record, and no other site's are in it."""

from __future__ import annotations

import csv
import io
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy
import pytest
from pages import carried

import clientwise as cw
import processes
from clientwise.errors import RunError
from clientwise.record.reading.folder import RunFolder
from clientwise.report.audit.pages import audit_round
from clientwise.report.document import (
    Document,
    Table,
    percent_of,
    text_of,
    value_of,
)
from clientwise.report.output.export import as_csv
from clientwise.report.output.html import write_html
from clientwise.report.statement import named_sites, sites, statement
from clientwise.report.views import overview

SIZES = {"north": 41, "=south": 53, "<img src=x onerror=alert(1)>": 67, "west/../[red]": 83}
CONFIG: dict[str, Any] = {
    "name": "statements",
    "rounds": 3,
    "model": "linear",
    "methods": [{"name": "FedAvg", "criteria": ["dataset_size", "label_diversity"]}, "Alone"],
    "evaluation": {"shapley": True},
}


def drawn_data() -> cw.FederatedData:
    random = numpy.random.default_rng(1)

    def drawn(size: int) -> tuple[Any, Any]:
        inputs = random.normal(size=(size, 4)).astype("float32")
        return inputs, (inputs[:, 0] > 0).astype(int)

    train = [drawn(size) for size in SIZES.values()]
    test = [drawn(20) for _ in SIZES]
    return cw.FederatedData.from_clients(train, test, report=drawn(60), names=list(SIZES))


def run_of(folder: Path, *methods: object, **changes: Any) -> RunFolder:
    config = CONFIG | {"methods": list(methods)} | changes
    return RunFolder(cw.run(config, folder, data=drawn_data()))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_of(tmp_path_factory.mktemp("s") / "run", *CONFIG["methods"])


def said_in(document: Document) -> str:
    parts = [document.title, document.subtitle or "", *document.lead]
    for section in document.sections:
        parts += [section.title, section.lead]
        for item in section.items:
            parts.append(item.title)
            if isinstance(item, Table):
                parts += [text_of(cell) for row in item.rows for cell in row]
                parts += [item.note, *(column.label for column in item.columns)]
            else:
                parts.append(item.alt)
    return "\n".join(parts)


def table_of(document: Document, name: str) -> Table:
    tables = (item for section in document.sections for item in section.items)
    return next(one for one in tables if isinstance(one, Table) and one.id.startswith(name))


def shown_values(table: Table, site: str, column: str) -> Iterator[float]:
    """A site's value in a table of the report, and in its CSV."""
    index = next(i for i, head in enumerate(table.columns) if head.label.startswith(column))
    (row,) = (row for row in table.rows if text_of(row[0]).endswith(site))
    yield float(str(value_of(row[index])))
    lines = list(csv.reader(io.StringIO(as_csv(table))))
    names = lines[0]
    place = next(i for i, name in enumerate(names) if name.startswith(column))
    text = f"'{site}" if site.startswith("=") else site  # no formula
    (line,) = (line for line in lines[1:] if text in line)
    yield float(line[place])


def recorded(run: RunFolder, sql: str, *values: object) -> float:
    """A number of the database itself."""
    with closing(sqlite3.connect(run.folder / "run.sqlite")) as database:
        ((value,),) = database.execute(sql, values).fetchall()
        return float(value)


WEIGHT = """SELECT weight FROM participants JOIN lanes USING (lane)
            WHERE method = 'FedAvg' AND round_num = 3 AND client = ?"""
LOCAL = """SELECT metric FROM local JOIN lanes USING (lane)
           WHERE method = ? AND round_num = 3 AND client = ?"""
SHAPLEY = """SELECT SUM(shapley) FROM contributions JOIN lanes USING (lane)
             WHERE method = 'FedAvg' AND client = ?"""
RAW = """SELECT raw FROM criteria JOIN lanes USING (lane)
         WHERE method = 'FedAvg' AND round_num = 3 AND criterion = 'dataset_size' AND client = ?"""


def test_statement_report_csv_and_database_have_the_same_numbers(run: RunFolder) -> None:
    report = overview([run])
    weights = table_of(audit_round(run, "FedAvg", 1, 3), "")
    gains = table_of(report, "gains")
    contributions = table_of(report, "contributions")
    for client, site in enumerate(SIZES):
        weight = recorded(run, WEIGHT, client)
        size = recorded(run, RAW, client)
        together = recorded(run, LOCAL, "FedAvg", client)
        alone = recorded(run, LOCAL, "Alone", client)
        shapley = recorded(run, SHAPLEY, client)
        for table, column, value in (
            (weights, "weight", weight),
            (weights, "dataset_size", size),
            (gains, "FedAvg", together),
            (gains, "Alone", alone),
            (gains, "gain", together - alone),
            (contributions, "Shapley, all rounds", shapley),
        ):
            assert list(shown_values(table, site, column)) == pytest.approx([value, value])
        said = said_in(statement(run, site))
        assert f"your weight was {percent_of(weight)}" in said
        assert f"\n{size:.4g}\n" in said
        assert f"the shared model has {percent_of(together)}." in said
        assert f"trained alone has {percent_of(alone)}." in said
        word = "better" if together > alone else "worse"
        size_of_gain = f"{100 * abs(together - alone):.1f} percentage points {word}"
        assert f"the shared model is {size_of_gain} for your site" in said
        verb = "improved" if shapley >= 0 else "worsened"
        assert f"your updates {verb} the accuracy" in said
        assert f"by an estimated {100 * abs(shapley):.1f} percentage points" in said


def test_what_else_it_says(run: RunFolder) -> None:
    for site in sites(run):
        said = said_in(statement(run, site))
        assert "In round 3, 4 sites took part. With equal weights, each would have 25.0%." in said
        assert "asked in 3 of 3 rounds. All of its updates were accepted." in said
        assert "Number of training samples (dataset_size)" in said
        assert "The measure is accuracy: share of samples classified correctly." in said
        assert "there was 1 repetition, and a test needs 5" in said
        assert f"Run {run.id}, method FedAvg, seed 1" in said


def test_it_says_which_numbers_are_of_one_seed(run: RunFolder, tmp_path: Path) -> None:
    repeated = run_of(tmp_path / "run", "FedAvg", seeds=[1, 2], rounds=1)
    assert "are of the repetition with seed 2;" in said_in(statement(repeated, "north", seed=2))
    assert "repetition" not in " ".join(statement(run, "north").lead)


def test_no_value_of_another_site_is_in_it(run: RunFolder) -> None:
    rows = {row.name: row for row in run.participants("FedAvg", 1, 3)}
    raw = {
        row.client: row.raw
        for row in run.criteria("FedAvg", 1, 3)
        if row.criterion == "dataset_size"
    }
    for site in sites(run):
        said = said_in(statement(run, site, "FedAvg", 1))
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
    assert "not shown" in said_in(statement(few, "client 0", "FedAvg", 1))


def test_a_policy_names_no_other_site(tmp_path: Path) -> None:
    """Neither by its groups nor by its note."""
    groups = [{"clients": ["north"], "cap": 0.1}, {"clients": ["=south", "west/../[red]"]}]
    groups[1] |= {"name": "rural", "floor": 0.6}
    method = {"name": "FedAvg", "bounds": {"cap": 0.5, "groups": groups, "note": "for north"}}
    bounded = run_of(tmp_path / "run", method, evaluation={})
    for site in sites(bounded):
        said = said_in(statement(bounded, site))
        assert not any(other in said for other in SIZES if other != site)
        assert "rural" not in said
    said = said_in(statement(bounded, "north"))
    assert "The federation's policy on weights lowered your share from 16.8% to 10.0%." in said


PRIVACY = {"clip": 0.5, "delta": 0.01, "noise_multiplier": 1.5}
HIDING = {  # method, and what the statement says instead
    "differential privacy": {"name": "p", "bounds": {"cap": 0.4}, "privacy": PRIVACY},
    "secure aggregation": {"name": "s", "secure_aggregation": {}},
}


@pytest.mark.parametrize("reason", HIDING)
def test_what_would_tell_of_others_is_hidden_with_the_reason(reason: str, tmp_path: Path) -> None:
    evaluation = {"clients_every": 0}
    hidden = run_of(tmp_path / "run", HIDING[reason], evaluation=evaluation)
    for site in sites(hidden):
        found = statement(hidden, site)
        assert f"It is not shown: this run has {reason}" in said_in(found)
        assert [section.id for section in found.sections] == ["weight", "gains", "refusals", "left"]
        assert not any(section.items for section in found.sections)
        assert "%" not in said_in(found).replace("sum to 100%", "")


def test_without_a_config_nothing_is_shown_that_may_be_secret(tmp_path: Path) -> None:
    broken = run_of(tmp_path / "run", "FedAvg", evaluation={})
    (broken.folder / "config.toml").write_text("")
    said = said_in(statement(RunFolder(broken.folder), "north", "FedAvg"))
    assert "the config of the run cannot be read" in said
    assert "Number of training samples" not in said


def test_names_are_text_wherever_they_stand(run: RunFolder, tmp_path: Path) -> None:
    for number, site in enumerate(SIZES):
        page = write_html(statement(run, site), {}, tmp_path / f"{number}.html")
        assert "<img src=x" not in page.read_text()
        assert carried(page)["document"]["title"] == f"Statement for {site}"


def test_every_site_has_a_file_of_its_own(run: RunFolder, tmp_path: Path) -> None:
    done = processes.run(processes.COMMAND, "statement", run.folder, "--out", tmp_path / "out")
    assert done.returncode == 0
    pages = sorted((tmp_path / "out").iterdir())
    titles = {carried(page)["document"]["title"] for page in pages}
    assert titles == {f"Statement for {site}" for site in SIZES}
    assert all(str(page) in done.stdout.replace("\n", "") for page in pages)


def test_an_unknown_site_method_or_seed_is_said(run: RunFolder) -> None:
    with pytest.raises(RunError, match="no site is called 'nord'; did you mean 'north'"):
        statement(run, "nord", "FedAvg", 1)
    with pytest.raises(RunError, match="FedAvgg"):
        statement(run, "north", "FedAvgg")
    with pytest.raises(RunError, match="7"):
        statement(run, "north", "FedAvg", 7)


def test_a_number_is_no_name(run: RunFolder, tmp_path: Path) -> None:
    config = {"name": "few", "rounds": 1, "data": "digits", "model": "linear"}
    few = cw.run(config | {"partition": {"name": "iid", "clients": 3}}, tmp_path / "run")
    assert named_sites(RunFolder(few)) == []
    assert sites(RunFolder(few)) == ["client 0", "client 1", "client 2"]
    assert named_sites(run) == list(SIZES)

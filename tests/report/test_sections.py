"""Tables and charts of a report, against numbers by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pandas
import pytest
from made import Made, around, seeds

import clientwise as cw
from clientwise.data.encoding import Encoding, InputColumn
from clientwise.record.run import RunFolder
from clientwise.report.items import Chart, Table
from clientwise.report.page import report_sections
from clientwise.report.results import Results

BASE = around(0.7, 0, 1, -1, 2, -2, 0)
RISING = {1: [0.5, 0.6, 0.7, 0.8], 2: [0.5, 0.7, 0.8, 0.9]}


def items(*runs: Any) -> dict[str, Any]:
    found = report_sections(Results(runs))
    return {item.id: item for own in found.values() for item in own if not isinstance(item, str)}


def rows(table: Table) -> dict[str, dict[str, str]]:
    return {row[0]: dict(zip(table.columns[1:], row[1:], strict=True)) for row in table.texts()}


def test_every_number_of_the_result_is_in_its_frame() -> None:
    run = Made({"A": BASE, "B": around(0.75, 15, 1, -1, 2, -2, 0)}, target=0.72)
    table = items(run)["summary"]
    of_b = table.frame.set_index("method").loc["B"]
    found = Results([run]).differences["B", "A"]
    assert of_b["against the baseline"] == found.mean
    assert (of_b["against the baseline low"], of_b["against the baseline high"]) == found.interval
    assert of_b["accuracy"] == pytest.approx(0.75 + 0.15 / 6)
    assert (of_b["accuracy seeds"], of_b["against the baseline pairs"]) == (6, 6)
    assert (
        of_b["rounds to 72%"],
        of_b["rounds to 72% reached"],
        of_b["rounds to 72% not reached"],
    ) == (1, 6, 0)
    assert rows(table)["A"]["rounds to 72%"] == "1/6: –"
    assert rows(table)["A"]["worst 10%"] == "40.0%"  # of four clients the worst


SUSPICIONS = {  # by round: the clients that stand out, and the pattern
    2: ([1, 3], [[[0.0, 0.1], [0.2, 0.3]], [[0.4, 0.5], [0.6, -0.7]]]),
    3: ([1, 0], [[[0.0, 0.1], [0.2, 0.3]], [[0.4, 0.5], [0.6, -0.8]]]),
    4: ([1], None),
}


def suspected(patterns: Any = lambda pattern: pattern) -> Made:
    """A run whose class 2 is suspect from round 2 to 4, and again in round 6."""
    rounds: list[Any] = [None] * 6
    for number, (clients, pattern) in SUSPICIONS.items():
        own = {"clients": clients, "pattern": pattern and patterns(pattern)}
        rounds[number - 1] = [{"class": 2, "norm": 0.389, "usual": 1.7, **own}]
    again = {
        "class": 2,
        "norm": 0.5,
        "usual": 1.7,
        "clients": [],
        "pattern": rounds[2][0]["pattern"],
    }
    rounds[5] = [again]
    return Made({"A": {1: [0.5] * 6}}).set("suspects", rounds)


def test_a_suspected_backdoor_has_a_sentence_and_a_picture() -> None:
    text, picture, again, _ = report_sections(Results([suspected()]))["Backdoors"]
    assert text == (
        "A: Class 2 reacts to a common pattern (norm 0.39, usual 1.7) since round 2, last in round 4: a backdoor is "
        "suspected. Models that react most: Turin."
    )
    assert isinstance(picture, Chart)
    drawn = picture.frame.pivot(index="row", columns="column", values="change")
    assert drawn.to_numpy().tolist() == [[0.0, 0.1, 0.4, 0.5], [0.2, 0.3, 0.6, -0.8]]
    assert isinstance(again, str)
    assert "since round 6, last in round 6" in again
    assert again.endswith("Models that react most: none.")


def test_of_inputs_that_are_no_picture_the_largest_changes_are_listed() -> None:
    run = suspected(lambda pattern: numpy.ravel(pattern).tolist())
    numbered = report_sections(Results([run]))["Backdoors"][1]
    assert isinstance(numbered, Table)
    assert numbered.texts()[:2] == [["7", "-0.8"], ["6", "0.6"]]
    columns = (InputColumn("age"), InputColumn("sex", ("f", "m")), InputColumn("ward", ("a",) * 5))
    run.model_facts = lambda seed: SimpleNamespace(table=Encoding("ill", columns))  # type: ignore[method-assign]
    named = report_sections(Results([run]))["Backdoors"][1]
    assert named.texts()[-2:] == [["sex", "0.1"], ["age", "0"]]


def test_without_a_suspect_nothing_is_said_of_backdoors() -> None:
    assert "Backdoors" not in report_sections(Results([Made({"A": BASE})]))


def test_fairness_by_hand() -> None:
    run = Made({"A": seeds([0.9])})
    found = items(run)["fairness"].frame.iloc[0]
    values = numpy.array([0.9, 0.8, 0.7, 0.6])
    assert found["mean"] == pytest.approx(values.mean())
    assert found["standard deviation"] == pytest.approx(values.std())
    assert (found["worst 10%"], found["best 10%"]) == (pytest.approx(0.6), pytest.approx(0.9))


def test_hostile_clients_measure_nothing() -> None:
    run = Made({"A": seeds([0.9])})
    run.frames["local"]["hostile"] = [None, None, None, "wrong_labels"]
    assert items(run)["fairness"].frame["worst 10%"][0] == pytest.approx(0.7)


def test_clients_by_name_under_every_method() -> None:
    found = items(Made({"A": BASE, "B": around(0.75, 0, 1, -1, 2, -2, 0)}))["by-client"]
    assert found.texts()[0] == ["Bern", "40.0%", "45.0%"]  # the worst first
    unnamed = Made({"A": BASE})
    for name in ("local", "clients", "weights"):
        unnamed.frames[name]["name"] = None
    assert "by-client" not in items(unnamed), "drawn anew for every seed: none can be followed"


def test_controls_have_no_weights() -> None:
    run = Made({"A": BASE, "alone": BASE}, about={"alone": {"control": "alone"}})
    assert [one for one in items(run) if one.startswith("weights-")] == ["weights-A"]


def test_of_many_methods_the_best_have_charts_of_their_own() -> None:
    run = Made({f"M{place}": seeds([place / 100]) for place in range(14)})
    charts = [one for one in items(run) if one.startswith("weights-")]
    assert charts == [f"weights-M{place}" for place in range(2, 14)]


def test_time_and_bytes_are_those_of_the_round_that_got_there() -> None:
    run = Made({"A": RISING}, target=0.8).set("ended", [10.0, 20.0, 30.0, 40.0] * 2)
    found = rows(items(run)["summary"])["A"]
    assert (found["rounds to 80%"], found["time to 80%"]) == ("2/2: 3.5", "2/2: 35 s")
    assert found["bytes to 80%"] == "2/2: 11.2 kB"  # 8 models of 400 bytes a round
    chart = items(run)["metric-time"]
    assert chart.frame["time (s)"].tolist() == [10, 20, 30, 40]
    assert "metric-time" not in items(Made({"A": RISING}))


def test_loops_refusals_and_privacy() -> None:
    run = Made({"A": RISING}, about={"A": {"privacy": {"delta": 0.01}}})
    run.set(
        "priority", [["size", "trust"]] * 3 + [["trust", "size"]] + [["size", "trust"]] * 4
    ).set("testing_rounds", 1)
    run.set("epsilon", [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 5.0]).set("clip", 0.5).set(
        "deviation", 0.1
    )
    run.set("loss_state", [{"class_weights": [1.0, 2.5]}] * 8).set("notes", [["stayed"]] + [[]] * 7)
    run.frames["refusals"] = (
        run.frame("weights").query("client == 3 and round > 2").assign(reason="late", kind="absent")
    )
    found = items(run)
    assert (
        "Most often size > trust (3 of 4 rounds), changed 1 times, 4 testing rounds"
        in found["priority-A"].alt
    )
    assert rows(found["privacy"])["A"]["ε so far"] == "5.000"
    assert found["class_weights-A"].limits == (0.0, 2.5)
    assert found["refused"].texts() == [
        ["A", "Bern", "1", "late", "2", "3"],
        ["A", "Bern", "2", "late", "2", "3"],
        ["A", "–", "–", "stayed", "1", "–"],
    ]


def test_curves_are_means_over_the_seeds_that_have_come_as_far() -> None:
    chart = items(Made({"A": RISING | {3: [0.1]}}))["metric"]
    last = chart.frame.iloc[-1]
    assert (last["round"], last["value"], last["low"], last["high"]) == (
        4,
        pytest.approx(0.85),
        0.8,
        0.9,
    )
    assert chart.alt == "A from 50.0% to 85.0%."
    long = Made({"A": {1: [0.5] * 1999 + [0.9]}})
    assert len(items(long)["metric"].frame) <= 202
    assert items(long)["metric"].frame["value"].iloc[-1] == 0.9, "and always the last"
    wild = Made({"A": RISING}).set("loss", [1e9, 1.0, 0.1, 0.1] * 2)
    assert items(wild)["loss"].logarithmic


def test_a_heat_map_has_so_many_cells() -> None:
    run = Made({"A": {1: [0.5] * 300}})
    many = pandas.concat(
        [run.frame("weights").assign(client=client, name=None) for client in range(450)]
    )
    run.frames["weights"] = many
    frame = items(run)["weights-A"].frame
    assert (frame["round"].nunique(), frame["client"].nunique()) == (100, 100)


def test_a_metric_that_is_no_share_is_a_number(tmp_path: Path) -> None:
    run = Made(
        {"A": seeds([12.0, 13.0]), "B": seeds([11.0, 11.5])},
        metric="mape",
        is_share=False,
        higher_is_better=False,
    )
    found = items(run)
    assert rows(found["summary"])["B"]["mape"] == "11.25 ± 0.354"
    assert list(rows(found["summary"])) == ["B", "A"]
    assert found["metric"].format == "~g"
    assert "%" not in str([item.texts() for item in found.values() if isinstance(item, Table)])


def test_a_real_run_has_every_section(shown: cw.Run) -> None:
    found = report_sections(Results([RunFolder(shown.folder)]))
    assert list(found) == [
        "Result",
        "What was run",
        "Over the rounds",
        "Clients",
        "Weights",
        "Order of priority",
        "Classes",
        "Refusals",
        "Config",
    ]
    charts = [item for own in found.values() for item in own if isinstance(item, Chart)]
    assert all(chart.alt and len(chart.frame) for chart in charts)
    tables = [item for own in found.values() for item in own if isinstance(item, Table)]
    assert all(len(table.texts()) for table in tables)
    maps = [chart.limits for chart in charts if chart.id.startswith("weights-")]
    assert len(maps) == 3
    assert len({*maps}) == 1, "the same weight has the same colour everywhere"

"""What a report says is what the database holds."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import shutil
import sqlite3
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy
import pages
import pytest

import clientwise as cw
from clientwise.errors import RunError
from clientwise.record.lock import locked
from clientwise.record.writer import Store
from clientwise.report import run_list, sections, views
from clientwise.report.audit.explanation import explain
from clientwise.report.audit.parameters import UNKNOWN
from clientwise.report.audit.round_audit import audit
from clientwise.report.document import Chart, text_of
from clientwise.report.marks import COLOURS, FAINT, Bars, Lines
from clientwise.report.output.figures import draw
from clientwise.report.output.page_json import as_json
from clientwise.report.sections.curves import head_chart
from clientwise.report.series import series_of
from clientwise.report.statistics import (
    Contingency,
    Difference,
    contingency,
    holm,
    paired_difference,
)
from clientwise.report.terminal import (
    audit_tables,
    remarks,
    sparkline,
    summary_table,
)
from clientwise.report.verdict import NOT_RANKED

Json = dict[str, Any]


def overview(*runs: cw.Run) -> Json:
    return as_json(views.overview(runs))


def items(document: Json) -> dict[str, Json]:
    return {item["id"]: item for section in document["sections"] for item in section["items"]}


def texts(table: Json) -> list[list[str]]:
    return [
        [
            cell["text"] if isinstance(cell, dict) else "" if cell is None else str(cell)
            for cell in row
        ]
        for row in table["rows"]
    ]


@pytest.fixture(scope="module")
def document(shown: cw.Run) -> Json:
    return overview(shown)


def test_a_run_is_called_by_its_name_and_its_rounds_are_counted_once(shown: cw.Run) -> None:
    found = views.overview([cw.Run(shown.folder, "mine")])
    assert found.title == "mine"
    assert found.subtitle is not None
    assert found.subtitle.startswith("shown: FedAvg, ")  # the config's name
    assert (found.rounds, found.seeds) == (
        5,
        [1, 2, 3],
    )  # not 45, though three methods ran with three seeds


def test_what_is_not_federated_has_no_weights(tmp_path: Path) -> None:
    shown = items(overview(cw.Run(pages.write_run(tmp_path / "run", ["FedAvg", "Pooled"]))))
    assert "map-FedAvg" in shown
    assert "map-Pooled" not in shown


def test_the_headline_says_which_method_leads_by_how_much_and_whether_significantly(
    shown: cw.Run, document: Json
) -> None:
    best = max(shown.summary(), key=lambda line: statistics.fmean(line.metric))
    lead = [line for line in document["lead"] if "refused" not in line]
    assert lead[0] == (
        f"{best.method} has the highest accuracy ({statistics.fmean(best.metric):.1%} in round 5). "
        "With 3 seeds, no significance is claimed: at least 5 are needed."
    )
    if best.method != "FedAvg":
        claim = (
            r"(not statistically significant \(p = .*, Holm\)"
            r"|p .*, Holm; no significance is claimed with fewer than 5 seeds)\."
        )
        interval = r"\(95% confidence interval .*, 3 seeds\)"
        assert re.search(
            rf"against FedAvg \(baseline\): .*points better {interval}, {claim}", lead[1]
        )
        assert any("Hostile clients had" in line for line in document["lead"])


def test_sections_hold_charts_with_words_and_tables_with_rows(document: Json) -> None:
    assert [section["id"] for section in document["sections"]] == [
        "result",
        "about",
        "curves",
        "targets",
        "best",
        "clients",
        "weights",
        "priority",
        "classes",
        "refusals",
        "cost",
        "config",
    ]
    names = [item["id"] for section in document["sections"] for item in section["items"]]
    assert len(names) == len(set(names))
    for item in items(document).values():
        if item["kind"] == "chart":
            assert item["alt"].endswith(".")
            assert len(item["alt"]) > 30
            assert item["data"]
        else:
            assert all(len(row) == len(item["columns"]) for row in item["rows"])
    json.dumps(document, allow_nan=False)


def test_the_summary_is_paired_with_the_baseline(shown: cw.Run, document: Json) -> None:
    lines = {line.method: line for line in shown.summary()}
    pairs = list(itertools.combinations(lines, 2))
    assert pairs[0][0] == "FedAvg"
    differences = [paired_difference(lines[b].metric, lines[a].metric) for a, b in pairs]
    corrected = dict(zip(pairs, holm(differences), strict=True))
    for row in texts(items(document)["summary"]):
        assert row[1].startswith(f"{statistics.fmean(lines[row[0]].metric):.1%} ± ")
        if row[0] != "FedAvg":
            difference = corrected["FedAvg", row[0]]
            low, high = (100 * end for end in difference.interval)
            assert row[2] == f"{100 * difference.mean:+.1f} [{low:+.1f}, {high:+.1f}]"


def test_curves_are_means_over_the_seeds(shown: cw.Run, document: Json) -> None:
    trace = next(trace for trace in items(document)["metric"]["data"] if trace["name"] == "online")
    for index, round_num in enumerate(trace["x"]):
        values = [dict(shown.curve("metric", "online", seed))[round_num] for seed in (1, 2, 3)]
        assert trace["y"][index] == pytest.approx(statistics.fmean(values))
    assert trace["meta"] == {
        "open": "round",
        "method": "online",
        "seed": 1,
        "run": shown.folder.name,
    }


def test_rounds_to_target_counted_from_the_clients_themselves(shown: cw.Run) -> None:
    target = 0.6
    for lane, method, seed in shown.lanes:
        expected: list[int | None] = []
        for share in range(10, 100, 10):
            rows = shown.query(
                """SELECT round_num FROM local WHERE lane = ? AND client NOT IN
                   (SELECT client FROM clients WHERE seed = ? AND hostile IS NOT NULL)
                   GROUP BY round_num HAVING 100.0 * SUM(metric >= ?) >= ? * COUNT(*) ORDER BY round_num LIMIT 1""",
                lane,
                seed,
                target,
                share,
            )
            expected.append(rows[0][0] if rows else None)
        assert shown.rounds_until_clients_reach(method, seed, target) == expected


def test_best_rounds_are_compared_sample_by_sample(shown: cw.Run) -> None:
    section = sections.best_rounds_section(series_of([shown]))
    (table,) = section.items
    assert (
        len(table.rows) == (len(shown.methods) - 1) * 3
    )  # every method but the baseline, three seeds
    for (
        name,
        seed,
        best,
        baseline,
        both_right,
        only_ours,
        only_theirs,
        both_wrong,
        p_value,
    ) in table.rows:
        for method, value, right in (
            (name, best, only_ours),
            (shown.methods[0], baseline, only_theirs),
        ):
            curve = dict(shown.curve("metric", method, seed))
            assert value.value == max(curve.values())
            total = both_right + both_wrong + only_ours + only_theirs
            assert (both_right + right) / total == pytest.approx(value.value)
            assert f"round {min(r for r, v in curve.items() if v == value.value)})" in value.text
        assert 0 <= p_value.value <= 1


def test_mcnemar_by_hand() -> None:
    ours, theirs = (
        numpy.array([1, 1, 1, 1, 1, 0, 0], bool),
        numpy.array([0, 0, 0, 0, 1, 1, 0], bool),
    )
    found = contingency(ours, theirs)
    assert found == Contingency(both_wrong=1, only_ours=4, only_theirs=1, both_right=1)
    assert found.p_value == pytest.approx(
        2 * (1 + 5) / 2**5
    )  # of five coins at most one falls to this side, or that
    assert contingency(ours, ours).p_value == 1


def test_an_audit_explains_every_weight(shown: cw.Run) -> None:
    found = audit(shown, "online", 1, 4)
    assert found.criteria == ("label_diversity", "dataset_size", "model_divergence")
    accepted = [one for one in found.participants if one.row.score is not None]
    assert sum(one.why.weight for one in accepted) == pytest.approx(1)
    values = {name: [one.measured[name].raw for one in accepted] for name in found.criteria}
    total = sum(one.row.score for one in accepted)
    for one in accepted:
        for criterion in one.why.criteria:
            own = values[criterion.name]
            assert criterion.value == one.measured[criterion.name].raw
            assert criterion.mean == pytest.approx(sum(own) / len(own))
            assert criterion.is_constant == (min(own) == max(own))
        shares = {name: one.measured[name].raw / max(values[name]) for name in found.criteria}
        first, second, third = (shares[name] for name in found.priority)
        assert one.row.score == pytest.approx(first + first * second + first * second * third)
        assert one.why.prior == one.why.weight == pytest.approx(one.row.score / total)
    refused = [
        one.why for one in audit(shown, "FedAvg", 1, 4).participants if one.row.score is None
    ]
    assert refused
    for why in refused:
        assert why.refusal == "model has NaN or Inf"
        assert "its update was refused (model has NaN or Inf)" in why.answer()


def test_looking_at_a_run_executes_nothing_it_names(shown: cw.Run, tmp_path: Path) -> None:
    copied = shutil.copytree(shown.folder, tmp_path / "foreign")
    (tmp_path / "evil_plugin.py").write_text("raise SystemExit('executed')")
    config = (copied / "config.toml").read_text()
    (copied / "config.toml").write_text(
        f'plugin_dir = "{tmp_path}"\n' + config.replace("plugins = []", 'plugins = ["evil_plugin"]')
    )
    foreign = cw.Run(copied)
    assert audit(foreign, "FedAvg", 1, 1).parameters != (UNKNOWN,)
    overview(foreign)
    (copied / "config.toml").write_text("not toml at all [")
    assert audit(foreign, "FedAvg", 1, 1).parameters == (UNKNOWN,)


def test_what_moves_weights_has_one_colour_in_all_charts_of_a_run(tmp_path: Path) -> None:
    methods = [
        {"name": "FedAvg"},
        {"name": "AdaFed"},
        {"name": "Median"},
        {"name": "Recommended", "bounds": {"cap": 0.15}},
    ]
    config: Json = {"rounds": 1, "data": "digits", "model": "linear", "methods": methods}
    config["partition"] = {"name": "dirichlet", "clients": 8, "concentration": 0.5}
    run = cw.Run(cw.run(config, tmp_path / "run"))
    colours = defaultdict(set)
    ends = set()
    for chart in sections.weights_section(series_of([run])).items:
        if isinstance(chart, Chart) and isinstance(chart.mark, Bars):
            assert chart.title.endswith(f"from an equal share to the {chart.mark.axis.label}")
            ends.add(chart.mark.axis.label)
            for group in chart.mark.groups[:-1]:
                colours[group.name].add(group.colour)
    assert ends == {"weight", "final share"}
    movers = {"dataset_size", "criteria", "evidence", "bounds", "clipping", "rule"}
    assert colours.keys() == movers
    assert len({colour for (colour,) in colours.values()}) == len(movers)


def test_audits_as_documents(shown: cw.Run) -> None:
    document = as_json(views.audit_round(shown, "online", 1, 3))
    tried = texts(items(document)["orders"])
    assert sum(row[2] == "chosen" for row in tried) == 1
    client = items(document)["audit"]["rows"][0][0]["open"]["client"]
    assert client.pop("run") == shown.folder.name
    history = as_json(views.audit_client(shown, **client))
    assert f"Client {client['client']} under online" in history["title"]
    weights = items(history)["client-weight"]["data"][0]
    stored = shown.query(
        "SELECT round_num, weight FROM participants WHERE lane = ? AND client = ? AND weight IS NOT NULL ORDER BY 1",
        shown.lane("online", 1),
        client["client"],
    )
    assert list(zip(weights["x"], weights["y"], strict=True)) == stored


def test_refusals_and_cost(shown: cw.Run, document: Json) -> None:
    refused = items(document)["refused"]["rows"]
    (count,) = shown.query("SELECT COUNT(*) FROM participants WHERE refusal IS NOT NULL")[0]
    assert sum(row[4] for row in refused) == count > 0
    for row in refused:  # the audit a row opens does hold that refusal
        link = row[5]["open"]["round"]
        found = explain(shown, link["method"], link["seed"], link["round"])
        assert any((one.client, one.refusal) == (row[1]["value"], row[3]) for one in found)
    cost = {row[0]: row for row in items(document)["costs"]["rows"]}
    assert (
        cost["FedAvg"][2]["value"] == 2 * 6 * 650 * 4
    )  # six clients, both ways, 650 parameters of four bytes
    assert cost["FedAvg"][3]["value"] == 0
    ((tests,),) = shown.query(
        "SELECT SUM(testing_rounds) FROM rounds JOIN lanes USING (lane) WHERE method = 'online'"
    )
    assert cost["online"][3]["value"] == pytest.approx(tests * 8 / 15)  # each on all eight clients


def test_several_runs_compare(shown: cw.Run) -> None:
    document = overview(shown, cw.Run(shown.folder, "shown~2"))  # two folders of one name
    labels = {row[0] for row in texts(items(document)["summary"])}
    assert labels == {
        f"{name}: {method}" for method in shown.methods for name in ("shown", "shown~2")
    }
    assert len(items(document)) == sum(
        len(section["items"]) for section in document["sections"]
    )  # no id twice
    opened = items(document)["audit-shown~2: online"]["rows"][0][0]["open"]["client"]
    assert opened["run"] == "shown~2"
    with pytest.raises(RunError, match="no run"):
        views.overview([])


def write_run(
    folder: Path, rounds: int, lanes: dict[tuple[str, int], int], **facts: object
) -> cw.Run:
    """A run folder with made-up rounds: lanes {(method, seed): rounds done}; the metric is the round number / 1000."""
    store = Store(folder)
    store.set_facts(
        {
            "name": "made",
            "metric": "accuracy",
            "target": 0.5,
            "rounds": rounds,
            "lanes": len(lanes),
            **facts,
        }
    )
    columns = "lane, round_num, metric, reached, priority, testing_rounds, no_effect, notes, seconds, models_moved"
    for (method, seed), done in lanes.items():
        lane = store.open_lane(method, seed)
        store.set_clients(seed, [5], [5], {})
        store._database.executemany(
            f"INSERT INTO rounds ({columns}) VALUES (?, ?, ?, ?, ?, 2, '[]', '[]', 0.1, 2)",
            [
                (
                    lane,
                    r,
                    r / 1000,
                    json.dumps([r / 1000] * 10) if r % 10 == 0 else None,
                    json.dumps([["ab", "ba"][r % 2], "c"]),
                )
                for r in range(1, done + 1)
            ],
        )
    store._database.commit()
    store.close()
    return cw.Run(folder)


def test_long_runs_keep_what_was_measured_now_and_then(tmp_path: Path) -> None:
    run = write_run(tmp_path / "long", 1000, {("online", 1): 1000})
    assert (
        len(run.reached("online", 1, 500)) == 100
    )  # every tenth round, none of them lost by thinning
    assert run.reached("online", 1, 30)[-1][0] == 1000
    alt = items(overview(run))["priority-online"]["alt"]
    assert (
        "of 1000 rounds), changed 999 times, 2000 testing rounds" in alt
    )  # of all rounds, not of those drawn


def test_a_seed_that_has_only_begun_does_not_spoil_the_others(tmp_path: Path) -> None:
    run = write_run(tmp_path / "half", 100, {("A", 1): 100, ("A", 2): 3, ("B", 1): 100})
    lines = {line.method: line for line in run.summary()}
    assert lines["A"].metric == [0.1, None]
    trace = items(overview(run))["metric"]["data"][0]
    assert (trace["name"], trace["x"][-1]) == ("A", 100)
    assert overview(run)["lead"] == [
        "A and B have the same accuracy (10.0% in round 100).",
        "Compared on the seeds that all methods have run as far, on the same data: 1.",
    ]


def test_targets_that_were_missed_or_never_measured_are_no_numbers(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "missed", 600, {("A", 1): 600, ("A", 2): 400, ("B", 1): 5, ("B", 2): 5}
    )
    document = items(overview(run))
    rows = {row[0]: row[3]["text"] for row in document["summary"]["rows"]}
    assert rows == {"A": "500", "B": "0/2: –"}  # seed 2 of A has not come to the end
    assert (
        next(row for row in document["target-0.5"]["rows"] if row[0] == "B")[1] == "–"
    )  # no client was asked yet


def test_compared_runs_have_one_target_and_no_pairs_across_different_data(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", 600, {("A", 1): 600}, **{"data of seed 1": "x"})
    other = write_run(
        tmp_path / "other", 600, {("A", 1): 600}, target=0.1, **{"data of seed 1": "y"}
    )
    rows = {row[0]: row for row in texts(items(overview(one, other))["summary"])}
    assert rows["other: A"][3] == "500"  # of the first run's target, as the heading says
    assert rows["other: A"][2] == "–"


def test_runs_are_paired_on_the_seeds_they_share(tmp_path: Path) -> None:
    data = {f"data of seed {seed}": f"x{seed}" for seed in (1, 2, 3)}
    two = write_run(
        tmp_path / "two", 600, {("A", seed): 600 for seed in (1, 2)}, **dict(list(data.items())[:2])
    )
    three = write_run(tmp_path / "three", 600, {("A", seed): 600 for seed in (1, 2, 3)}, **data)
    found = items(overview(two, three))
    assert {row[0]: row[2] for row in texts(found["summary"])} == {
        "two: A": "baseline",
        "three: A": "+0.0 [+0.0, +0.0]",
    }
    assert {row[0]: row[-1] for row in texts(found["target-0.5"])}[
        "three: A"
    ] == "+0.0 [+0.0, +0.0]"
    other = write_run(
        tmp_path / "other",
        600,
        {("A", seed): 600 for seed in (1, 2)},
        **data | {"data of seed 2": "y"},
    )
    found = items(overview(two, other))  # of seed 2 the data differ
    assert {row[0]: row[2] for row in texts(found["summary"])}["other: A"] == "+0.0"
    assert {row[0]: row[-1] for row in texts(found["target-0.5"])}["other: A"] == "+0.0 (one seed)"


def test_methods_are_compared_at_the_same_round_or_not_at_all(tmp_path: Path) -> None:
    lanes = {("A", seed): 50 for seed in (1, 2, 3)} | {("B", seed): 100 for seed in (1, 2, 3)}
    document = overview(
        write_run(tmp_path / "run", 100, lanes)
    )  # B leads by five points, and by fifty rounds
    assert document["lead"] == [
        "B: accuracy 10.0% in round 100.",
        "Not all methods have run 100 rounds: A 50. These are not ranked; differences are taken in the last round "
        "that both have run.",
        "B against A (baseline): no difference in round 50, the last that both have run (95% confidence interval "
        "+0.0 to +0.0, 3 seeds), not statistically significant (p = 1).",
    ]
    rows = {row[0]: row[1:3] for row in texts(items(document)["summary"])}
    assert rows["B"] == ["10.0% ± 0.0", "+0.0 [+0.0, +0.0] (round 50)"]
    assert rows["A"][0] == "5.0% ± 0.0 (round 50)"

    shorter = write_run(tmp_path / "shorter", 40, {("A", 1): 40, ("A", 2): 40})
    longer = write_run(tmp_path / "longer", 90, {("A", 1): 90, ("A", 2): 7})
    rows = {row[0]: row for row in texts(items(overview(shorter, longer))["summary"])}
    assert rows["longer: A"][1:3] == [
        "9.0%",
        "+0.0 (round 40)",
    ]  # of seed 1: seed 2 has not come that far

    apart = write_run(tmp_path / "apart", 40, {("A", 9): 40})
    assert overview(shorter, apart)["lead"] == [NOT_RANKED]
    assert items(overview(shorter, apart))["summary"]["title"] == "Methods, not ranked"


def test_rounds_to_target_gain_nothing_by_being_fewer(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        600,
        {("A", 1): 600, ("B", 1): 150},
        target=0.1,
        **{"client targets": [0.1]},
    )
    gain = {row[0]: row[-1] for row in texts(items(overview(run))["target-0.1"])}
    assert gain == {"A": "baseline", "B": "+0.0 (one seed)"}  # both at round 100
    with contextlib.closing(
        sqlite3.connect(run.folder / "run.sqlite", isolation_level=None)
    ) as database:
        database.execute("UPDATE rounds SET reached = NULL WHERE lane = 1 AND round_num < 200")
    gain = {row[0]: row[-1] for row in texts(items(overview(run))["target-0.1"])}
    assert (
        gain["B"] == "+50.0 (one seed)"
    )  # of the 150 rounds of B it took 100 and A all, at the least


def test_best_rounds_are_only_compared_after_as_many_rounds(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 30, {("A", 1): 30, ("A", 2): 30, ("B", 1): 30, ("B", 2): 5})
    store = Store(run.folder)
    with store._database as database:
        database.execute("INSERT INTO best SELECT lane, 5, 0.5, 8, x'0f' FROM lanes")
    store.close()
    (table,) = sections.best_rounds_section(series_of([run])).items
    assert [row[:2] for row in table.rows] == [["B", 1]]


def test_a_bug_is_no_damage(shown: cw.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(series: object) -> None:
        raise KeyError("a name that was mistyped")

    monkeypatch.setattr(run_list, "series_of", bug)
    with pytest.raises(KeyError, match="mistyped"):
        run_list.run_row(shown.folder, "shown")


def test_a_run_that_has_just_begun(tmp_path: Path, shown: cw.Run) -> None:
    store = Store(tmp_path / "young")
    store.set_facts(
        {"name": "young", "metric": "accuracy", "target": None, "rounds": 5, "lanes": 1}
    )
    store.open_lane("FedAvg", 1)
    young = cw.Run(tmp_path / "young")
    assert overview(young)["lead"] == ["No round has been recorded yet."]
    assert views.run_state(young) == "stopped"
    with locked(tmp_path / "young"):
        assert views.run_state(young) == "running"
    assert views.run_state(shown) == "finished"
    store.close()
    summary_table(young)
    with pytest.raises(RunError, match="has no round 1"):
        views.audit_round(young, "FedAvg", 1, 1)


def test_the_list_of_runs_says_why_one_cannot_be_read(shown: cw.Run, tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.sqlite").write_bytes(b"not a database at all" * 100)
    folders = [shown.folder, tmp_path / "foreign", tmp_path / "damaged"]
    rows = [[text_of(cell) for cell in run_list.run_row(one, one.name)] for one in folders]
    by_name = {row[0]: row for row in rows}
    assert (by_name["shown"][1], by_name["shown"][6]) == ("finished", "45 of 45")
    assert "not a run of clientwise" in by_name["foreign"][-1]
    assert "cannot be read" in by_name["damaged"][-1]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda run: views.audit_round(run, "FedAvgg", 1, 1), "did you mean 'FedAvg'"),
        (lambda run: views.audit_round(run, "FedAvg", 9, 1), "no seed 9"),
        (lambda run: views.audit_round(run, "FedAvg", 1, 99), "has no round 99"),
        (lambda run: views.audit_client(run, "FedAvg", 1, 99), "no client 99"),
    ],
)
def test_what_is_not_there_is_named(shown: cw.Run, call, reason: str) -> None:
    with pytest.raises(RunError, match=reason):
        call(shown)


def test_no_curve_has_more_points_than_asked(shown: cw.Run) -> None:
    assert [round_num for round_num, _ in shown.curve("metric", "FedAvg", 1, 2)] == [
        1,
        4,
        5,
    ]  # and always the last
    assert [round_num for round_num, _ in shown.hostile_influences("FedAvg", 1, 2)] == [1, 4, 5]
    assert len(shown.reached("FedAvg", 1, 3)) <= 4
    assert len(shown.hostile_influences("FedAvg", 1, 2)) <= 3
    assert [r for r, _ in shown.curve("metric", "FedAvg", 1)] == [1, 2, 3, 4, 5]


def test_paired_differences() -> None:
    assert paired_difference([0.5], [0.4]) == Difference(pytest.approx(0.1), None, 1)
    assert paired_difference([None, 1.0], [1.0, None]) is None
    clear = paired_difference([0.9, 0.91, 0.89, 0.9, 0.9], [0.5, 0.52, 0.49, 0.5, 0.5])
    assert clear.is_significant
    assert not paired_difference(
        [0.9, 0.91, 0.89], [0.5, 0.52, 0.49]
    ).is_significant  # three are few
    assert not paired_difference(
        [0.9, 0.1, 0.5, 0.5, 0.4], [0.5, 0.5, 0.49, 0.5, 0.5]
    ).is_significant
    assert not Difference(0.5, None, 1).is_significant
    # Against a table: n = 3, differences 1, 2, 3; t(0.975, 2) = 4.303
    assert paired_difference([1.0, 2.0, 3.0], [0.0, 0.0, 0.0]).margin == pytest.approx(
        4.3027 / 3**0.5, rel=1e-4
    )


def test_terminal_tables(shown: cw.Run) -> None:
    from rich.console import Console

    console = Console(width=80, record=True, file=io.StringIO())
    console.print(summary_table(shown))
    for table in audit_tables(shown, 3, "online"):
        console.print(table)
    text = console.export_text()
    assert "…" not in text.split("online, seed 1")[0]  # nothing cut off at 80 columns
    assert text.count("online, seed") == 3
    (of_one,) = audit_tables(shown, 3, "online", 2)
    console.print(of_one)
    assert re.findall("online, seed .", console.export_text()) == ["online, seed 2"]
    with pytest.raises(RunError, match="has no round 3 of seed 7"):
        audit_tables(shown, 3, "online", 7)
    assert "Not shown in 80 columns: curve" in text
    wide = Console(width=120, record=True, file=io.StringIO())
    wide.print(summary_table(shown))
    assert re.search(r"[▁▂▃▄▅▆▇█]{5}", wide.export_text())
    assert any("updates refused: model has NaN or Inf" in remark for remark in remarks(shown))
    assert sparkline([]) == ""
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert len(sparkline(list(range(100)))) == 10


def test_the_head_names_the_best_and_the_baseline_alone(shown: cw.Run) -> None:
    curve = views.overview([shown]).curve
    assert curve is not None
    assert isinstance(curve.mark, Lines)
    assert FAINT not in COLOURS
    *others, baseline, best = curve.mark.lines
    assert [line.colour for line in others] == [FAINT] * (len(shown.methods) - 2)
    assert baseline.name == "FedAvg"
    assert best.y[-1] == max(line.y[-1] for line in curve.mark.lines)
    assert views.overview([shown, shown]).data is None, "several runs may have several data"


def test_a_short_name_is_not_broken_in_a_narrow_terminal(tmp_path: Path) -> None:
    from rich.console import Console

    lanes = {(name, 1): 9 for name in ("FedAvg", "prioritized", "Recommended")}
    run = write_run(tmp_path / "narrow", 9, lanes)
    for width in (80, 52):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(summary_table(run))
        printed = console.export_text()
        assert "prioritized" in printed
        assert "Recommended" in printed


def test_colours_and_dashes_tell_methods_apart(shown: cw.Run) -> None:
    looks = {(one.colour, one.dash) for one in series_of([shown])}
    assert len(looks) == 3


def test_a_method_without_results_has_no_line_at_the_head(tmp_path: Path) -> None:
    """It may be the baseline, which is drawn in front where there is one."""
    run = write_run(tmp_path / "run", 5, {(name, 1): 5 for name in ("FedAvg", "A", "B")})

    def drawn() -> list[str]:
        mark = head_chart(series_of([run])).mark
        assert isinstance(mark, Lines)
        return [line.name for line in mark.lines]

    assert sorted(drawn()) == ["A", "B", "FedAvg"]
    with contextlib.closing(
        sqlite3.connect(run.folder / "run.sqlite", isolation_level=None)
    ) as database:
        database.execute("UPDATE rounds SET metric = NULL WHERE lane = 1")
    assert sorted(drawn()) == ["A", "B"]


def test_a_run_that_diverged_says_so(tmp_path: Path) -> None:
    def has_log_axis() -> bool:
        mark = sections.curves_section(series_of([run])).items[-1].mark
        assert isinstance(mark, Lines)
        return mark.y.log

    run = write_run(tmp_path / "run", 5, {("FedAvg", 1): 5})
    assert not any("diverged" in line for line in views.headline(series_of([run])))
    assert not has_log_axis()
    with contextlib.closing(
        sqlite3.connect(run.folder / "run.sqlite", isolation_level=None)
    ) as database:
        database.execute(
            "UPDATE rounds SET loss = CASE round_num WHEN 1 THEN 2.3 WHEN 5 THEN 1.9 ELSE 1e-6 END"
        )
        assert not any("diverged" in line for line in views.headline(series_of([run]))), (
            "far from its best, but better than it began"
        )
        database.execute("UPDATE rounds SET loss = CASE round_num WHEN 5 THEN 9.5e34 ELSE 0.54 END")
        said = "FedAvg diverged (seed 1): the loss in the last round is 9.5e+34. Its metric says nothing else."
        assert views.headline(series_of([run]))[:2] == [
            said,
            "Try a smaller training.learning_rate.",
        ]  # before any verdict
        database.execute("UPDATE rounds SET loss = 1e20")
        assert "diverged" in views.headline(series_of([run]))[0], (
            "it had before it was first looked at"
        )
        database.execute("UPDATE rounds SET loss = CASE round_num WHEN 5 THEN 9.5e34 ELSE 0.54 END")
    assert has_log_axis()
    draw(sections.curves_section(series_of([run])).items[-1:], tmp_path / "loss.png")
    assert (tmp_path / "loss.png").stat().st_size > 5_000


def test_runs_on_different_data_are_compared_with_a_warning(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    tiny |= {"rounds": 2}
    first = cw.Run(cw.run(tiny, tmp_path / "first"))
    same = cw.Run(cw.run(tiny | {"rounds": 3}, tmp_path / "same"))
    other = cw.Run(cw.run(tiny | {"partition": {"name": "iid", "clients": 6}}, tmp_path / "other"))
    document = overview(first, same)
    assert not any("same data" in line for line in document["lead"])
    assert document["subtitle"].endswith("2 rounds or 3 rounds")
    assert overview(first, other)["lead"][0].startswith("These runs are not on the same data")
    own = cw.Run(
        cw.run(
            tiny | {"server_set": {"fraction": 0.0}, "methods": [{"name": "FedAvg"}]},
            tmp_path / "own",
        )
    )
    assert any("report on different samples" in line for line in overview(first, own)["lead"])

"""What a report claims is what the numbers allow: significance, best and worst."""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy
import pytest

import clientwise as cw
from clientwise.errors import ConfigError, RunError
from clientwise.record.writer import Store
from clientwise.report import sections, views
from clientwise.report.differences import all_differences
from clientwise.report.document import Cell, Chart, Table
from clientwise.report.marks import Bars
from clientwise.report.output.export import as_csv
from clientwise.report.output.notebook import run_html
from clientwise.report.sections.result import result_table
from clientwise.report.sections.targets import average_gain, rounds_cell
from clientwise.report.series import series_of
from clientwise.report.statistics import Difference, holm, paired_difference
from clientwise.report.terminal import summary_table
from clientwise.report.verdict import NOT_RANKED, TOO_FEW

Values = Mapping[str, Sequence[float]]  # by method, one per seed
SEEDS = 6


def write_run(
    folder: Path, values: Values, *, first_seed: int = 1, data: str = "x", **facts: object
) -> cw.Run:
    """A finished run of one round with these values of the metric; of its four named clients the last is worst."""
    store = Store(folder)
    lanes = sum(len(own) for own in values.values())
    store.set_facts(
        {"name": "made", "metric": "accuracy", "target": None, "rounds": 1, "lanes": lanes} | facts
    )
    for method, own in values.items():
        for seed, value in enumerate(own, start=first_seed):
            lane = store.open_lane(method, seed)
            store.set_facts({f"data of seed {seed}": f"{data}{seed}"})
            store.set_clients(seed, [5] * 4, [5] * 4, {}, ["Oslo", "Turin", "Graz", "Bern"])
            with store._database as database:
                database.execute(
                    """INSERT INTO rounds (lane, round_num, metric, reached, testing_rounds, no_effect, notes, seconds,
                           models_moved, evaluations) VALUES (?, 1, ?, ?, 0, '[]', '[]', 0.1, 2, 1)""",
                    (lane, value, str([value] * 10)),
                )
                database.executemany(
                    "INSERT INTO local VALUES (?, 1, ?, ?, 0.5)",
                    [(lane, k, value - 0.1 * k) for k in range(4)],
                )
                database.executemany(
                    "INSERT INTO participants (lane, round_num, client, weight) VALUES (?, 1, ?, 0.25)",
                    [(lane, k) for k in range(4)],
                )
            store.finish_lane(lane)
    store.close()
    return cw.Run(folder)


def around(middle: float, *offsets: float) -> list[float]:
    """Values of the seeds around a middle."""
    return [middle + offset / 100 for offset in offsets]


def lead(*runs: cw.Run) -> list[str]:
    return list(views.overview(runs).lead)


def summary(*runs: cw.Run) -> Table:
    (found,) = sections.result_section(series_of(runs)).items
    assert isinstance(found, Table)
    return found


def texts(table: Table) -> dict[str, list[str]]:
    return {
        str(row[0]): [cell.text if isinstance(cell, Cell) else str(cell) for cell in row[1:]]
        for row in table.rows
    }


BASE = around(0.7, 0, 1, -1, 2, -2, 0)


def test_holm_by_hand() -> None:
    found = holm([Difference(1, 1, 9, p_value=p) for p in (0.04, None, 0.01, 0.03)])
    assert [one.p_value for one in found] == [pytest.approx(0.06), None, 0.03, pytest.approx(0.06)]
    assert [one.tests for one in found] == [3, 1, 3, 3]


def test_an_interval_excludes_zero_if_and_only_if_its_p_is_below_five_percent() -> None:
    generator = numpy.random.default_rng(1)
    verdicts = []
    for effect in generator.uniform(0, 1.5, 60):
        values = effect + generator.normal(size=(4, 6))
        plain = [paired_difference(row, numpy.zeros(6)) for row in values]
        assert all(plain)
        for own, one in zip(plain, holm(plain), strict=True):
            low, high = one.interval
            assert (low > 0 or high < 0) == (one.p_value < 0.05)
            assert low <= own.interval[0] + 1e-12
            alone = own.interval[0] > 0 or own.interval[1] < 0
            verdicts.append((alone, one.p_value < 0.05))
    assert {(True, True), (True, False), (False, False)} == {*verdicts}


def test_the_best_of_many_is_not_called_significant_for_being_picked(tmp_path: Path) -> None:
    """A difference whose own interval leaves out zero, but not among all pairs of six methods."""
    lucky = [value + gain / 100 for value, gain in zip(BASE, (1, 2, 0.2, 2.5, 0.4, 1), strict=True)]
    alone = write_run(tmp_path / "alone", {"A": BASE, "lucky": lucky})
    assert lead(alone)[0] == (
        "lucky has the highest accuracy (71.2% in round 1). The lead is statistically significant (p = 0.023)."
    )
    assert lead(alone)[1].endswith(", 6 seeds), statistically significant (p = 0.023).")
    assert summary(alone).best() == {(0, 1)}  # and the difference has no rival

    others = {
        f"M{place}": around(0.7, *offsets)
        for place, offsets in enumerate([(3, -3, 1, -1, 0, 0)] * 4)
    }
    many = write_run(tmp_path / "many", {"A": BASE, "lucky": lucky} | others)
    assert lead(many)[0] == (
        "lucky has the highest accuracy (71.2% in round 1). The lead is not statistically significant (p = 1, Holm)."
    )
    assert "not statistically significant (p = " in lead(many)[1]
    difference = all_differences(series_of([many]))["lucky", "A"]
    assert difference.tests == 15
    low, high = difference.interval
    assert low < 0 < high, "as p says, which is above 0.05"
    assert low < difference.mean - difference.margin
    assert f"[{100 * low:+.1f}, {100 * high:+.1f}]" in "".join(texts(summary(many))["lucky"])
    assert not summary(many).best()


def test_three_seeds_are_few(tmp_path: Path) -> None:
    run = write_run(tmp_path / "few", {"A": BASE[:3], "B": [value + 0.1 for value in BASE[:3]]})
    assert lead(run)[0].endswith("With 3 seeds, no significance is claimed: at least 5 are needed.")
    assert lead(run)[1].endswith(
        ", 3 seeds), p < 0.001; no significance is claimed with fewer than 5 seeds."
    )


def test_a_verdict_on_a_running_run_says_which_round_it_is(tmp_path: Path) -> None:
    run = write_run(tmp_path / "live", {"A": BASE, "B": around(0.8, 0, 1, 0, 1, 0, 1)}, rounds=30)
    assert lead(run)[0].startswith("B has the highest accuracy (80.5% in round 1 of 30). The lead")


@pytest.mark.slow
def test_an_undertrained_baseline_is_said(tiny: dict[str, Any], tmp_path: Path) -> None:
    tiny |= {"rounds": 8, "methods": ["FedAvg", "ServerTuning"]}
    tiny["training"] = {"batch_size": "full", "learning_rate": 0.2}
    tiny["federation"] = {}
    said = lead(cw.Run(cw.run(tiny, tmp_path / "slow")))
    assert any(line.startswith("FedAvg (baseline) is still improving: ") for line in said)
    tiny |= {"rounds": 24, "training": {"batch_size": 10, "epochs": 2, "learning_rate": 0.1}}
    said = lead(cw.Run(cw.run(tiny, tmp_path / "trained")))
    assert not any("still improving" in line for line in said)


@pytest.mark.parametrize("higher", [True, False])
def test_who_is_worse_than_the_baseline_is_said(tmp_path: Path, higher: bool) -> None:
    loses = [value - 0.1 if higher else value + 0.1 for value in around(0.7, 0, 1, -1, 2, -2, 0.5)]
    facts = {"higher is better": higher, "metric": "accuracy" if higher else "mape"}
    run = write_run(tmp_path / "run", {"A": BASE, "loses": loses}, **facts)
    points = "-9.9" if higher else "+10.1"
    assert lead(run)[-1] == f"Significantly worse than A (baseline): loses ({points} points)."
    extreme = "highest accuracy" if higher else "lowest mape"
    assert lead(run)[0].startswith(
        f"A has the {extreme} (70.0% in round 1). The lead is statistically significant"
    )


def test_runs_are_compared_on_the_seeds_they_share(tmp_path: Path) -> None:
    two = write_run(tmp_path / "two", {"A": [0.70, 0.72]})
    three = write_run(tmp_path / "three", {"A": [0.71, 0.73, 0.10]})  # its third seed went wrong
    assert texts(summary(two, three))["three: A"][:2] == ["72.0% ± 1.4", "+1.0 [+1.0, +1.0]"]
    said = lead(two, three)
    assert said[0].startswith(
        "three: A has the highest accuracy (72.0% in round 1). With 2 seeds, no sig"
    )
    assert "Compared on the seeds that all methods have run as far, on the same data: 1, 2." in said


def test_runs_on_different_data_are_not_ranked(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", {"A": BASE})
    other = write_run(tmp_path / "other", {"A": [value + 0.2 for value in BASE]}, data="y")
    assert lead(one, other) == [
        "These runs are not on the same data, which may explain their differences.",
        NOT_RANKED,
    ]
    assert summary(one, other).title == "Methods, not ranked"
    assert [row[0] for row in summary(one, other).rows] == [
        "one: A",
        "other: A",
    ]  # as they came, not the better first
    assert not summary(one, other).best()


def test_survivors_do_not_win() -> None:
    slow_but_sure = rounds_cell([6, 6, 7, 6, 7, 6, None, None, None, None])
    two_lucky = rounds_cell([3, 4] + [None] * 8)
    assert (slow_but_sure.text, two_lucky.text) == ("6/10: 7", "2/10: –")
    order = [two_lucky, rounds_cell([None] * 10), slow_but_sure, rounds_cell([9] * 10)]
    assert [cell.text for cell in sorted(order, key=lambda cell: cell.value)] == [
        "6/10: 7",
        "10/10: 9",
        "2/10: –",
        "0/10: –",
    ]
    assert two_lucky.numbers == {"median": None, "reached": 2, "not reached": 8}


def test_average_gains_are_p1s() -> None:
    """P1's Table 6, rows DS and IS>CB>DS at 70% and DS>CB>IS at 80%: what it prints as Avg. is over all nine shares."""
    ds_70, gains_70 = [1, 1, 1, 13, 15, 21, 32, 58, None], [0, 0, 0, 9, 6, 12, -68, -42, 0]
    ds_80, gains_80 = [1, 1, 15, 21, 26, 44, None, None, None], [0, 0, 10, 15, 18, 32, 43, 0, 0]
    for baseline, gains, average in ((ds_70, gains_70, -9.22), (ds_80, gains_80, 13.11)):
        ours = [(before or 100) - gain for before, gain in zip(baseline, gains, strict=True)]
        reached = [
            number if number < 100 else None for number in ours
        ]  # P1 prints what was not reached as 100
        found = average_gain({1: baseline}, {1: reached}, {1: 100})
        assert found is not None
        assert found.mean == pytest.approx(average, abs=0.005)
    assert average_gain({1: [None] * 9}, {1: [None] * 9}, {1: 100}) is None


def test_clients_by_name_under_every_method(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"A": BASE, "B": [value + 0.05 for value in BASE]})
    found = next(
        item for item in sections.clients_section(series_of([run])).items if item.id == "by-client"
    )
    assert isinstance(found, Table)
    assert next(iter(texts(found).items())) == (
        "Bern",
        ["40.0%, worst", "45.0% (+5.0), best"],
    )  # the worst first
    assert next(csv.reader(as_csv(found).splitlines()))[1:4] == ["A mean", "A seeds", "B mean"]
    assert texts(summary(run))["B"][2] == "45.0% (Bern)"
    (worst,) = (one for one in summary_table(run).columns if one.header == "worst client")
    assert next(iter(worst.cells)) == "45.0%\n(Bern)"  # B is the best method


def test_what_no_client_has_is_not_shown(tmp_path: Path) -> None:
    (line,) = write_run(tmp_path / "run", {"A": BASE}).summary()
    assert line.worst_client == [pytest.approx(value - 0.3) for value in BASE]
    assert line.worst_decile == [None] * SEEDS  # of four clients there is no tenth


def test_every_number_of_the_table_is_in_the_csv(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        {"A": BASE, "B": [0.9, *[value + 0.05 for value in BASE[1:]]]},
        target=0.72,
    )
    head, *rows = csv.reader(as_csv(summary(run)).splitlines())
    of_b = dict(zip(head, next(row for row in rows if row[0] == "B"), strict=True))
    difference = all_differences(series_of([run]))["B", "A"]
    assert difference.interval is not None
    assert float(of_b["against the baseline mean"]) == difference.mean
    assert (
        float(of_b["against the baseline low"]),
        float(of_b["against the baseline high"]),
    ) == difference.interval
    assert float(of_b["accuracy mean"]) == pytest.approx((0.9 + sum(BASE[1:]) + 0.25) / 6)
    assert float(of_b["accuracy deviation"]) > 0
    counted = [
        of_b[f"{name} {part}"]
        for name, part in [("accuracy", "seeds"), ("against the baseline", "seeds")]
    ]
    assert counted == ["6", "6"]
    assert (of_b["rounds to 72% reached"], of_b["rounds to 72% not reached"]) == ("6", "0")
    assert (of_b["worst client name"], of_b["rounds to 72% median"]) == ("Bern", "1.0")
    assert "accuracy ± deviation" not in head


def test_a_run_that_was_resumed_with_changes_says_so_first(tmp_path: Path) -> None:
    changes = [{"date": "2026-11-16 09:00", "rounds": 2, "what": ["other code in the plugin own"]}]
    run = write_run(
        tmp_path / "run", {"A": BASE}, changes=[tuple(change.values()) for change in changes]
    )
    assert lead(run)[0] == (
        "run was resumed with changes on 2026-11-16 09:00, after 2 rounds in total: other code in the plugin own. The "
        "rounds before and after may not be of one experiment."
    )


def test_refused_updates_come_first_with_the_likely_cause(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    fine, diverging = {"name": "FedAvg"}, {"name": "wild", "training": {"learning_rate": 1e30}}
    run = cw.Run(cw.run(tiny | {"methods": [fine, diverging]}, tmp_path / "half"))
    said = lead(run)
    assert said[0] == (
        "wild: no update was accepted (9 refused); its model is the initial one: update norm is not finite."
    )
    assert "training.learning_rate" in said[1]
    assert said[2].startswith("FedAvg: accuracy")  # there is nobody to be better than
    with pytest.raises(
        RunError, match=r"all: no update .* accepted \(update norm is not finite, 9 times\): .*rate"
    ):
        cw.run(tiny | {"methods": [diverging]}, tmp_path / "all")
    assert lead(cw.Run(tmp_path / "all"))[:2] == [
        said[0],
        said[1],
    ]  # what there is can be looked at


def test_clients_have_their_names_everywhere(tiny: dict[str, Any], tmp_path: Path) -> None:
    share = (numpy.random.default_rng(0).normal(size=(20, 4)), [0, 1] * 10)
    data = cw.FederatedData.from_clients(
        [share] * 3, [share] * 3, report=share, names=["Oslo", "Turin", "Graz"]
    )
    del tiny["data"], tiny["partition"]
    config = tiny | {
        "federation": {},
        "hostile": [{"clients": ["Graz"], "attack": "broken"}],
        "methods": ["FedAvg"],
    }
    run = cw.Run(cw.run(config, tmp_path / "run", data=data))
    assert [row.hostile for row in run.clients(1)] == [None, None, "broken"]
    assert lead(run)[-1] == "Updates were refused only from hostile clients: FedAvg (3 of 9)."
    refused = sections.refusals_section(series_of([run])).items[0]
    assert isinstance(refused, Table)
    assert as_csv(refused).splitlines()[:2] == [
        "method,client,client name,seed,reason,times,first in round",
        "FedAvg,2,Graz,1,model has NaN or Inf,3,1",
    ]
    document = views.audit_round(run, "FedAvg", 1, 1)
    steps, table = document.sections[0].items
    assert isinstance(steps, Chart)
    assert isinstance(table, Table)
    assert isinstance(steps.mark, Bars)
    assert steps.mark.categories == ["0 Oslo", "1 Turin"]
    assert {cell.text for row in table.rows for cell in row[:1] if isinstance(cell, Cell)} == {
        "0 Oslo",
        "1 Turin",
        "2 Graz",
    }
    with pytest.raises(
        ConfigError,
        match=r"hostile\[0\]\.clients: no client is called 'Grazz'; did you mean 'Graz'",
    ):
        cw.run(
            config | {"hostile": [{"clients": ["Grazz"], "attack": "broken"}]},
            tmp_path / "other",
            data=data,
        )


def test_what_is_not_available_in_practice_is_never_the_best(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"FedAvg": BASE, "Pooled": [value + 0.1 for value in BASE]})
    (tmp_path / "run" / "config.toml").write_text(
        '[[methods]]\nname = "FedAvg"\n[[methods]]\nname = "Pooled"\ncontrol = "pooled"\n'
    )
    series = series_of([run])
    said = " ".join(views.headline(series))
    assert "Pooled has" not in said
    assert "FedAvg: accuracy" in said
    table = result_table(series)
    assert [row[0] for row in table.texts(str, "<{}>".format)] == ["Pooled †", "FedAvg"]
    assert table.best() == set()
    assert "† Not available in practice" in table.note


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_clients_that_lost_their_weight_by_evidence_are_named(
    tmp_path: Path, seeds: int
) -> None:
    values = {"FedAvg": BASE[:seeds], "doubtful": BASE[:seeds]}
    run = write_run(tmp_path / "run", values)
    assert not any("vidence" in line for line in lead(run))
    put = [  # posterior by client, and how many share a weight; the prior is 0.25
        (0.02, None, 1),  # Turin
        (0.10, 3, 2),  # Graz sent a copy
    ]
    with closing(sqlite3.connect(run.folder / "run.sqlite")) as database, database:
        lane = run.lane("doubtful", seeds)
        database.execute(
            "UPDATE participants SET prior = 0.25, posterior = 0.25 WHERE lane IN (?, ?)",
            (lane, run.lane("doubtful", 1)),
        )
        for posterior, copies, client in put:
            database.execute(
                "UPDATE participants SET posterior = ? WHERE lane = ? AND client = ?",
                (posterior, lane, client),
            )
            database.execute(
                "INSERT INTO look_back (lane, round_num, client, copies) VALUES (?, 1, ?, ?)",
                (lane, client, copies),
            )
    when = "in the last round of at least one seed" if seeds > 1 else "in the last round"
    said = (
        f"Evidence took more than half of their weight from clients {when}: "
        "doubtful from 1 of 4 (Turin). A lowered weight proves nothing."
    )
    run = cw.Run(run.folder)
    assert lead(run)[-1] == said
    assert said in repr(run)
    assert said in run_html(run)


def test_hostile_clients_that_evidence_found_are_told_apart(moved: cw.Run) -> None:
    last = lead(moved)[-1]
    assert last.startswith("Evidence took more than half of their weight from clients in the last")
    for method in ("all of it", "evidence alone"):
        rows = moved.participants(method, 1, 5)
        lowered = [row for row in rows if row.posterior < row.prior / 2]
        honest = [row for row in lowered if row.hostile is None]
        assert {row.client for row in lowered} >= {*moved.hostile_clients(1)}
        assert f"{method} from {len(lowered)} of {len(rows)} (" in last
        hostile = len(lowered) - len(honest)
        assert f"); {hostile} of the {len(lowered)} clients that lost weight were hostile" in last
    assert "bounds from" not in last


def test_many_clients_are_not_read_for_the_conclusion(
    moved: cw.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clientwise.report.verdict.MOST_READ", 7)
    assert "Evidence took" not in " ".join(lead(moved))


def test_methods_are_compared_with_a_constant_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clientwise.report.verdict.LEAST_ROUNDS", 1)
    values = {
        "above": around(0.861, 0, 0.1, -0.1, 0.2, -0.2),  # significantly, by less than an error
        "equal": [0.844] * 5,
        "below": [0.6] * 5,
        "level": [0.843] * 5,
        "good": [0.9] * 5,
    }
    facts = {"reported samples": 100, "metric of a constant prediction": 0.844}
    run = write_run(tmp_path / "run", values, **facts)
    constant = "than a constant prediction (84.4%)"
    assert lead(run)[0] == (
        f"Little better {constant}: above (86.1%). No better {constant}: equal (84.4%). "
        f"Worse {constant}: below (60.0%), level (84.3%). "
        "Try another training.learning_rate, more rounds, or another evaluation.metric."
    )


def test_the_size_of_the_reporting_set_is_said(tmp_path: Path) -> None:
    facts = {"reported samples": 43, "reported samples of the rarest class": 8}
    better = [value + 0.1 for value in BASE]
    run = write_run(tmp_path / "run", {"A": BASE, "B": better}, **facts)
    said = "Reported on 43 samples (8 of the rarest class; one sample is worth about 2.3 points)."
    assert said in result_table(series_of([run])).note
    assert "B has the highest accuracy" in " ".join(views.headline(series_of([run])))
    few = write_run(tmp_path / "few", {"A": BASE, "B": better}, **facts | {"reported samples": 19})
    assert views.headline(series_of([few])) == [TOO_FEW]


def test_a_run_records_the_size_of_its_reporting_set(tmp_path: Path, tiny: dict[str, Any]) -> None:
    run = cw.Run(cw.run(tiny, tmp_path / "run"))
    assert run.report_samples is not None
    assert run.report_rarest is not None
    assert 0 < run.report_rarest < run.report_samples

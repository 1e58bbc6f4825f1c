"""What a report claims is what the numbers allow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from made import Made, around, seeds

from clientwise.errors import RunError
from clientwise.record.facts import BY_HOST
from clientwise.report.items import Table
from clientwise.report.page import describe
from clientwise.report.results import Results
from clientwise.report.sections import result_table
from clientwise.report.verdict import NOT_RANKED, NOTHING_YET, TOO_FEW, headline

OFFSETS = (0, 1, -1, 2, -2, 0)
BASE = around(0.7, *OFFSETS)


def lead(*runs: Any) -> list[str]:
    return headline(Results(runs))


def rows(table: Table) -> dict[str, dict[str, str]]:
    """The texts of a table by its first column."""
    return {row[0]: dict(zip(table.columns[1:], row[1:], strict=True)) for row in table.texts()}


def summary(*runs: Any) -> dict[str, dict[str, str]]:
    return rows(result_table(Results(runs)))


def test_the_best_of_many_is_not_called_significant_for_being_picked() -> None:
    """A difference whose own interval leaves out zero, but not among all pairs of six methods."""
    lucky = seeds(
        [
            values[0] + gain / 100
            for values, gain in zip(BASE.values(), (1, 2, 0.2, 2.5, 0.4, 1), strict=True)
        ]
    )
    alone = Made({"A": BASE, "lucky": lucky})
    said = "lucky has the highest accuracy (71.2% in round 1). The lead is statistically significant (p = 0.023)."
    assert lead(alone)[0] == said
    assert lead(alone)[1].endswith(", 6 seeds), statistically significant (p = 0.023).")
    assert result_table(Results([alone])).bold == (0,)

    others = {f"M{place}": around(0.7, 3, -3, 1, -1, 0, 0) for place in range(4)}
    many = Made({"A": BASE, "lucky": lucky} | others)
    assert lead(many)[0].endswith("The lead is not statistically significant (p = 1, Holm).")
    found = Results([many]).differences["lucky", "A"]
    assert found.tests == 15
    low, high = found.interval
    assert low < 0 < high, "as p says, which is above 0.05"
    assert (
        f"[{100 * low:+.1f}, {100 * high:+.1f}]" in summary(many)["lucky"]["against the baseline"]
    )
    assert result_table(Results([many])).bold == ()


def test_one_or_three_seeds_are_few() -> None:
    three = Made({"A": around(0.7, 0, 1, -1), "B": around(0.8, 0, 1, -1)})
    assert lead(three)[0].endswith(
        "With 3 seeds, no significance is claimed: at least 5 are needed."
    )
    assert lead(three)[1].endswith(", 3 seeds).")  # once is enough, and without a p-value
    one = Made({"A": seeds([0.7]), "B": seeds([0.8])})
    assert lead(one) == [
        "B has the highest accuracy (80.0% in round 1). With one seed, no confidence interval can be given.",
        "B against A (baseline): 10.0 points better.",
    ]


@pytest.mark.parametrize("higher", [True, False])
def test_the_direction_of_the_metric_counts(higher: bool) -> None:
    loses = around(0.6 if higher else 0.8, 0, 1, -1, 2, -2, 0.5)
    run = Made({"A": BASE, "loses": loses}, higher_is_better=higher)
    assert lead(run)[0].startswith(
        f"A has the {'highest' if higher else 'lowest'} accuracy (70.0% in round 1). The lead"
    )


def test_a_running_run_says_which_round_it_is_and_what_has_just_begun_says_nothing() -> None:
    run = Made({"A": BASE, "B": around(0.8, 0, 1, 0, 1, 0, 1)}, planned=30)
    assert lead(run)[0].startswith("B has the highest accuracy (80.5% in round 1 of 30). The lead")
    young = Made({"A": {1: [0.5]}})
    young.frames["rounds"], young.frames["local"] = (
        young.frame("rounds")[:0],
        young.frame("local")[:0],
    )
    young.lanes["rounds"], young.lanes["finished"] = 0, False
    assert lead(young) == [NOTHING_YET]


def test_runs_are_compared_on_the_seeds_they_share() -> None:
    two = Made({"A": seeds([0.70, 0.72])}, id="two")
    three = Made({"A": seeds([0.71, 0.73, 0.10])}, id="three")  # its third seed went wrong
    found = summary(two, three)["three: A"]
    assert (found["accuracy"], found["against the baseline"]) == (
        "72.0% ± 1.4",
        "+1.0 [+1.0, +1.0]",
    )
    assert (
        "Compared on the seeds that all methods have run as far, on the same data: 1, 2."
        in lead(two, three)
    )
    other = Made({"A": BASE}, id="other", data="y")
    first = Made({"A": BASE}, id="first")
    assert lead(first, other) == [
        "These runs are not on the same data, which may explain their differences.",
        NOT_RANKED,
    ]
    assert result_table(Results([first, other])).title == "Methods, not ranked"
    with pytest.raises(RunError, match="different metrics"):
        Results([first, Made({"A": BASE}, metric="mape")])


def test_methods_are_compared_at_the_same_round_or_not_at_all() -> None:
    up = [number / 1000 for number in range(1, 101)]
    run = Made({"A": dict.fromkeys((1, 2), up[:50]), "B": dict.fromkeys((1, 2), up)})
    assert lead(run) == [
        "B: accuracy 10.0% in round 100.",
        "Not all methods have run 100 rounds: A 50. These are not ranked; differences are taken in the last round "
        "that both have run.",
        "B against A (baseline): no difference in round 50, the last that both have run (95% confidence interval "
        "+0.0 to +0.0, 2 seeds), not statistically significant (p = 1).",
    ]
    assert summary(run)["A"]["accuracy"] == "5.0% ± 0.0 (round 50)"
    begun = Made({"A": {1: up, 2: up[:3]}, "B": {1: up}})
    assert lead(begun)[0] == "A and B have the same accuracy (10.0% in round 100)."


def test_a_seed_that_stopped_early_keeps_its_metric() -> None:
    curve = [0.5, 0.6, 0.7, 0.7]
    run = Made({"A": {1: curve[:2], 2: curve}, "B": {1: curve, 2: curve}}).set(
        "held_out_loss", [0.5, 0.6, *[0.9, 0.8, 0.7, 0.6] * 3]
    )
    run.lanes["finished"] = True
    assert summary(run)["A"]["accuracy"] == "65.0% ± 7.1"
    run.config["keep"] = "best"
    assert "A: predictions and exports use the model of round 1 (seed 1)" in lead(run)[0]


def test_what_went_wrong_comes_before_any_verdict() -> None:
    flat = {1: [0.1] * 4, 2: [0.1] * 4}
    good = {1: [0.2, 0.4, 0.6, 0.8], 2: [0.2, 0.4, 0.6, 0.9]}
    run = Made(
        {"good": good, "flat": flat},
        constant_metric=0.1,
        report_samples=400,
        warnings=["no sample of class 3"],
    )
    assert describe(Results([run]))["lead"][-1] == "Warning: no sample of class 3"
    assert lead(run)[0] == (
        "No better than a constant prediction (10.0%): flat (10.0%). Try another training.learning_rate, more rounds, "
        "or another evaluation.metric."
    )
    wild = Made({"good": good, "wild": good}).set("loss", [0.5] * 8 + [2.3, 0.1, 1.0, 9.5e34] * 2)
    assert lead(wild)[:2] == [
        "wild diverged (seed 1, 2): the loss in the last round is 9.5e+34. Its metric says nothing else.",
        "Try a smaller training.learning_rate.",
    ]
    wild.facts.computed = BY_HOST  # it has no config
    assert not any("Try a smaller" in line for line in lead(wild))
    assert not any(
        "diverged" in line
        for line in lead(Made({"good": good}).set("loss", [2.3, 1e-6, 1e-6, 1.9] * 2))
    )
    kept = Made({"good": good, "braked": good}).set(
        "kept", [None] * 10 + [["zero weights", ""]] * 6
    )
    assert lead(kept)[0].startswith(
        "braked: the model did not change in 6 of 8 rounds (all weights are zero"
    )
    few = Made({"good": good, "flat": good}, report_samples=12)
    assert lead(few) == [TOO_FEW]
    change = SimpleNamespace(
        date="2026-11-16 09:00", rounds=2, what=["other code in the plugin own"]
    )
    assert lead(Made({"good": good}, changes=[change]))[0] == (
        "made was resumed with changes on 2026-11-16 09:00, after 2 rounds in total: other code in the plugin own. The "
        "rounds before and after may not be of one experiment."
    )


def test_refusals_of_honest_clients_come_first_with_the_likely_cause() -> None:
    run = Made({"A": BASE, "B": BASE})
    refused = run.frame("weights").query("method == 'B' and client < 2")
    run.frames["refusals"] = refused.assign(reason="model norm is not finite", kind="diverged")
    said = lead(run)
    assert said[0] == "B: 12 of 24 updates were refused: model norm is not finite."
    assert said[1].startswith("Most likely training diverges: try a smaller training.learning_rate")
    run.facts.computed = BY_HOST  # whose clients do not know our config
    assert not any("training.learning_rate" in line for line in lead(run))
    several = run.frame("refusals")
    several.loc[several.index[:5], "reason"] = "late"
    assert lead(run)[0] == (
        "B: 12 of 24 updates were refused, most often (7 times): model norm is not finite."
    )
    run.frames["refusals"] = run.frame("refusals").assign(
        kind="absent"
    )  # late: no fault of the update
    assert not any("refused" in line for line in lead(run))
    run.frames["refusals"] = (
        run.frame("weights").query("method == 'B'").assign(reason="late", kind=None)
    )
    assert lead(run)[0].startswith(
        "B: no update was accepted (24 refused); its model is the initial one"
    )


def test_what_is_not_available_in_practice_is_never_the_best() -> None:
    run = Made(
        {"A": BASE, "B": around(0.75, *OFFSETS), "told": around(0.9, *OFFSETS)},
        about={"told": {"is_available": False}},
    )
    assert lead(run)[0].startswith("B has the highest accuracy")
    assert list(summary(run)) == ["told\xa0†", "B", "A"]
    assert "† Not available in practice" in result_table(Results([run])).note


def test_the_clients_that_lost_their_weight_by_evidence_are_named() -> None:
    run = Made({"A": BASE, "B": BASE}, about={"B": {"evidence": "significance"}})
    weights = run.frame("weights")
    own = weights["method"] == "B"
    weights.loc[own, "posterior"] = numpy.where(weights.loc[own, "client"] >= 2, 0.1, 0.4)
    assert lead(run)[-1] == (
        "Evidence took more than half of their weight from clients in the last round of at least one seed: B from 2 "
        "of 4 (Graz, Bern). A lowered weight proves nothing."
    )
    weights.loc[own, "copies"] = 2.0  # that share the weight of one: that is no loss
    assert "Evidence" not in lead(run)[-1]
    run.frames["clients"]["hostile"] = numpy.where(
        run.frame("clients")["client"] == 3, "wrong_labels", None
    )
    weights["copies"], weights["hostile"] = (
        1.0,
        numpy.where(weights["client"] == 3, "wrong_labels", None),
    )
    assert (
        "B from 2 of 4 (Graz, Bern); 1 of the 2 clients that lost weight was hostile."
        in lead(run)[-1]
    )


def test_an_undertrained_baseline_is_said() -> None:
    rising, flat = [0.05 * number for number in range(1, 13)], [0.9] * 12
    run = Made({"A": {1: rising, 2: rising}, "B": {1: flat, 2: [0.89, *flat[1:]]}})
    assert any(
        line.startswith("A (baseline) is still improving: 15.0 points") for line in lead(run)
    )


def test_unequal_tuning_is_said() -> None:
    run = Made({"A": BASE, "B": BASE}, about={"B": {"tuned": {"trials": 8}}})
    assert lead(run)[0].startswith("Methods were not tuned alike (not tuned: A; 8 trials: B)")

"""The audit of weights that evidence, bounds and rules moved: columns, picture and sentences."""

from __future__ import annotations

import io
import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pandas
import pytest
from rich.console import Console

import clientwise as cw
from clientwise.errors import RunError
from clientwise.record.run import RunFolder
from clientwise.report import audit as audits_of
from clientwise.report.audit import audit, audits, last_audits, why
from clientwise.report.explanation import Evidence, Explanation, Round, explain
from clientwise.report.items import Table
from clientwise.report.terminal import print_items
from reported import is_harmful

CHAINS = {
    "all of it": {
        "score": "score",
        "weight by criteria": "prior",
        "harm": "harm",
        "z": "z",
        "weight after evidence": "posterior",
        "weight within bounds": "weight",
        "final share": "influence",
    },
    "evidence alone": {
        "score": "score",
        "weight by criteria": "prior",
        "harm": "harm",
        "z": "z",
        "final share": "influence",
    },
    "bounds": {"score": "score", "weight by criteria": "prior", "final share": "influence"},
    "rule": {"score": "score", "weight within bounds": "weight", "final share": "influence"},
}


@pytest.fixture(scope="module")
def frames(moved: cw.Run) -> RunFolder:
    return RunFolder(moved.folder)


def rows(run: RunFolder, method: str, round_num: int = 5) -> dict[int, Any]:
    own = run.frame("weights").query("method == @method and round == @round_num")
    return {row.client: row for row in own.itertuples()}


def by_client(run: Any, method: str, round_num: int) -> dict[int, Explanation]:
    found = explain(Round(run, method, 1, round_num))
    return {one.client: one for one in reversed(found)}  # those refused are the last


def table_of(run: RunFolder, method: str) -> Table:
    """The clients of the last round."""
    return next(item for item in audit(Round(run, method, 1, 5)) if isinstance(item, Table))


def printed(items: Any, width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    print_items(console, items)
    return console.export_text()


@pytest.mark.parametrize("method", list(CHAINS))
def test_the_audit_has_the_places_of_the_method_and_no_others(
    frames: RunFolder, method: str
) -> None:
    chain = CHAINS[method]
    table = table_of(frames, method)
    criteria = list(frames.about(method).criteria)
    assert table.columns == ["client", "reason", *chain, *criteria]
    stored = rows(frames, method)
    for row in table.frame.to_dict("records"):
        own = stored[int(row["client"])]
        assert [row[name] for name in chain] == [getattr(own, key) for key in chain.values()]
    assert ("Harm is by how much" in table.note) == ("harm" in chain)


class Changed:
    """A run with other weights, and with other facts about its methods or another config."""

    def __init__(
        self, run: Any, weights: pandas.DataFrame, config: Any = None, **about: Any
    ) -> None:
        self.run, self.weights, self.changed = run, weights, about
        self.config = run.config if config is None else config
        self.change = -0.12

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run, name)

    def about(self, method: str) -> Any:
        return replace(self.run.about(method), **self.changed)

    def frame(self, name: str) -> pandas.DataFrame:
        if name == "weights":
            return self.weights
        found = self.run.frame(name)
        return found.assign(held_out_change=self.change) if name == "rounds" else found


@pytest.fixture
def made(frames: RunFolder) -> Changed:
    """The run with a made-up history of its clients under `all of it`."""
    rows = frames.frame("weights").query("method == 'all of it'").copy()

    def put(clients: Collection[int], rounds: Collection[int], **values: Any) -> None:
        chosen = rows["client"].isin(clients) & rows["round"].isin(rounds)
        for name, value in values.items():
            rows.loc[chosen, name] = value

    every = range(1, 6)
    put(range(8), every, prior=0.1, z=0.0, posterior=0.1, weight=0.1, influence=0.1)
    put(range(8), every, harm=0.0, harm_error=0.01)
    worse = {"z": 4.1, "harm": 0.0312, "harm_error": 0.0042}
    put([0], [1, 3, 4, 5], posterior=0.05, weight=0.05, influence=0.05, **worse)
    put([1], [2, 3, 4, 5], posterior=0.05, weight=0.05, influence=0.031)
    put([1], [2], z=7.0, harm=0.2, harm_error=0.03)
    put([2], [5], z=3.2, harm=0.05, harm_error=0.01, posterior=0.5, weight=0.2, influence=0.2)
    put([3], [5], posterior=0.001, weight=0.02, influence=0.0)
    put([4], [5], weight=0.15, influence=0.15)
    put([5], [5], weight=0.105, influence=0.1)  # too little for words
    put([7], [2], z=4.5)  # without a harm beyond the margin
    put([7], [4, 5], posterior=0.05, weight=0.05, influence=0.05)
    unknown = dict.fromkeys(["score", "prior", "z", "posterior", "weight", "influence"], math.nan)
    put([6], [5], refusal="late", **unknown)
    put([0], [4], refusal="late", **unknown)
    # What a client sends twice is refused, the first one counts
    twice = rows.query("client == 0 and round == 5").assign(refusal="sent twice", **unknown)
    return Changed(frames, pandas.concat([rows, twice]))


RULE = "Clip (times 1.0) and then the rule multi_krum (hostile 0.3)"


def test_sentences_say_what_the_record_shows(made: Changed) -> None:
    found = by_client(made, "all of it", 5)
    moves = {client: one.moves() for client, one in found.items()}
    assert moves == {
        # Refused in round 4, which therefore does not interrupt the rounds since 3.
        0: (
            "Evidence lowers the weight from 10.0% to 5.0% (since round 3): with its update, the "
            "held-out loss would be 0.031 ± 0.004 higher than with the mean of all; the mean lowered it by 0.12.",
        ),
        1: (
            "Evidence of earlier rounds lowers the weight from 10.0% to 5.0% (since round 2). It was last "
            "significant in round 2: with its update, the held-out loss would have been 0.2 ± 0.03 "
            "higher than with the mean of all; the mean lowered it by 0.12. In round 5, it is not significant.",
            f"{RULE} lowers the share from 5.0% to 3.1%.",
        ),
        2: (
            "Evidence against the client is significant: with its update, the held-out loss would be "
            "0.05 ± 0.01 higher than with the mean of all; the mean lowered it by 0.12. Other clients lost at "
            "least as much weight.",
            "The cap of 20% lowers the weight from 50.0%.",
        ),
        3: (
            "Evidence lowers the weight from 10.0% to 0.1% (since round 5).",
            "The floor of 2% raises the weight from 0.1%.",
            f"{RULE} excludes the update.",
        ),
        4: ("The bounds raise the weight from 10.0% to 15.0%.",),
        5: (),
        6: (),
        7: (
            "Evidence of earlier rounds lowers the weight from 10.0% to 5.0% (since round 4). It was last "
            "significant in round 2: its size is not recorded. In round 5, it is not significant.",
        ),
    }
    assert [client for client, one in found.items() if is_harmful(one)] == [0, 2]
    assert found[6].brief() == "refused: late"
    assert (found[0].cause, found[1].cause, found[4].cause) == (
        "evidence",
        "past evidence",
        "bounds",
    )
    assert by_client(made, "all of it", 1)[0].evidence.since == 1  # not later
    assert by_client(made, "all of it", 2)[0].moves() == ()
    words = [item for item in audit(Round(made, "all of it", 1, 5)) if isinstance(item, Table)][1]
    shown = {(int(client), text) for client, text in words.frame.itertuples(index=False)}
    told = {(one.client, one.reasons()) for one in found.values() if one.reasons()}
    assert shown - told == {(6, found[6].answer()), (0, shown_twice(made))}
    assert why(made, 0, "all of it", 1).splitlines()[0] == (
        "all of it, seed 1: client 0 has 5.0% of round 5's model; an equal share is 14.3%."
    )


def shown_twice(run: Changed) -> str:
    """What is said of the update that client 0 sent in addition."""
    return explain(Round(run, "all of it", 1, 5), [0])[1].answer()


@pytest.mark.parametrize(
    ("changes", "witness", "loss"),
    [
        ({}, "loss", "the held-out loss"),
        (
            {"config": {"server_set": {"source": "clients"}}},
            "loss",
            "the loss that judging clients measured",
        ),
        ({"margin": 0.5}, "unknown", "the held-out loss"),
        ({"threshold": math.inf}, "unknown", "the loss"),
        ({"config": {"methods": 3, "server_set": "x"}}, "loss", "the loss"),
    ],
)
def test_a_harm_is_stated_only_where_it_is_known_what_is_significant(
    made: Changed, changes: dict[str, Any], witness: str, loss: str
) -> None:
    own = by_client(Changed(made, made.weights, **changes), "all of it", 5)
    assert own[0].evidence is not None
    found = own[0].evidence
    assert (found.since, found.witness, found.loss) == (3, witness, loss)
    assert is_harmful(own[0]) == (witness == "loss")
    assert ("would be" in own[0].by_evidence()) == (witness == "loss")


def test_a_harm_that_is_small_by_itself_is_shown_with_the_sum_over_the_rounds() -> None:
    found = Evidence(0.1, 1, last=2, witness="loss", z=4.1, harm=0.0095, error=0.009, change=0.016)
    assert found.size(is_past=False) == (
        "with its update, the loss would be 0.0095 ± 0.009 higher than with the mean of all or with no update, "
        "whichever is better (small by itself: summed over the rounds, z is 4.1); the mean raised it by 0.016"
    )


@pytest.mark.parametrize(
    ("harms", "change", "source", "said"),
    [
        (
            [0.05, 0.03, 0.01],
            0.12,
            "held_out",
            "and so would those of 5 of 7 other clients: the model may be",
        ),
        ([0.05, 0.03, 0.01], 0.12, "clients", "higher than with the mean of all; the mean raised"),
        (
            [0.05, -0.01, 0.01],
            0.12,
            "held_out",
            "raise the held-out loss by 0.05 ± 0.01; the mean raised",
        ),
        (
            [0.05, -0.06, 0.0],
            0.12,
            "held_out",
            "the mean of all or with no update, whichever is better; the",
        ),
        (
            [0.05, 0.03, 0.01],
            -0.12,
            "held_out",
            "higher than with the mean of all; the mean lowered",
        ),
    ],
)
def test_it_is_said_where_most_updates_raise_the_loss(
    made: Changed, harms: list[float], change: float, source: str, said: str
) -> None:
    """Clients 0, and 1 to 3, and 4 and 5; the last two have no harm."""
    rows = made.weights.assign(harm=0.0, harm_error=0.01, z=0.0, posterior=0.1, refusal=None)
    rows["harm"] = (
        rows["client"]
        .map(dict(zip(range(6), [harms[0], *3 * [harms[1]], *2 * [harms[2]]], strict=True)))
        .fillna(0)
    )
    rows.loc[rows["client"] == 0, "z"] = 4.1
    run = Changed(made, rows, {"server_set": {"source": source}})
    run.change = change
    assert said in by_client(run, "all of it", 1)[0].by_evidence()


def test_the_terminal_shows_the_chain(frames: RunFolder) -> None:
    text = printed(audits(frames, 5, "all of it"))
    assert "…" not in text  # nothing cut off at 80 columns
    assert "Not shown in 80 columns: harm, score, reason." in text
    wide = " ".join(printed(audits(frames, 5, "all of it"), 250).split())
    for one in explain(Round(frames, "all of it", 1, 5)):
        assert one.brief() in wide
        assert not one.reasons() or one.reasons() in wide


def test_of_a_very_large_round_the_heaviest_are_shown(
    frames: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits_of, "MOST_CLIENTS", 2)
    items = [*audit(Round(frames, "all of it", 1, 5))]
    heaviest = [one.label for one in explain(Round(frames, "all of it", 1, 5))][:2]
    shown = [item.frame["client"].tolist() for item in items if isinstance(item, Table)]
    assert shown == [heaviest, heaviest]
    assert any("6 more clients have less weight" in item for item in items if type(item) is str)


def test_the_page_has_the_last_round_and_those_of_the_first_refusals(shown: cw.Run) -> None:
    run = RunFolder(shown.folder)
    refusals = run.frame("refusals").query("seed == 1")
    for method in run.methods:
        first = refusals[refusals["method"] == method].groupby("reason")["round"].min()
        titles = {f"{method}, seed 1, round {number}" for number in {5, *first}}
        assert titles <= {title for title, _ in last_audits(run, run.methods)}
        assert len(titles) == 2  # one client sends broken updates from its first round on


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (
            lambda run: explain(Round(run, "FedAvgg", 1, 1)),
            "no method 'FedAvgg'; did you mean 'FedAvg'",
        ),
        (lambda run: explain(Round(run, "FedAvg", 9, 1)), "no seed 9 of FedAvg; known: 1, 2, 3"),
        (lambda run: explain(Round(run, "FedAvg", 1, 99)), "no round 99; it has rounds 1 to 5"),
        (lambda run: [*audits(run, 99)], "no round 99; it has rounds 1 to 5"),
        (lambda run: [*audits(run, 1, "FedAvgg")], "did you mean 'FedAvg'"),
        (lambda run: [*audits(run, 1, None, 7)], "no seed 7 of FedAvg; known: 1, 2, 3"),
        (lambda run: why(run, 99, "FedAvg", 1), "no client 99; known: 0, 1, "),
        (lambda run: why(run, 0, "FedAvg", 1, 99), "no round 99; it has rounds 1 to 5"),
    ],
)
def test_what_is_not_there_is_named(shown: cw.Run, call: Any, reason: str) -> None:
    with pytest.raises(RunError, match=reason):
        call(RunFolder(shown.folder))

"""The audit of weights that evidence, bounds and rules moved: columns, picture and sentences."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from rich.console import Console

import clientwise as cw
from clientwise.report import terminal, views
from clientwise.report.audit.explanation import Explanation, explain
from clientwise.report.audit.parameters import UNKNOWN
from clientwise.report.audit.round_audit import audit
from clientwise.report.document import Table
from clientwise.report.terminal import audit_tables

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
        "weight": "weight",
    },
    "bounds": {"score": "score", "weight by criteria": "prior", "weight within bounds": "weight"},
    "rule": {"score": "score", "weight": "weight", "final share": "influence"},
}


@pytest.mark.parametrize("method", list(CHAINS))
def test_the_audit_has_the_places_of_the_method_and_no_others(moved: cw.Run, method: str) -> None:
    chain = CHAINS[method]
    stored = {row.client: row for row in moved.participants(method, 1, 5)}
    found = audit(moved, method, 1, 5)
    assert [stage.label for stage in found.stages] == list(chain)
    _, table, *_ = views.audit_round(moved, method, 1, 5).sections[0].items
    assert isinstance(table, Table)
    labels = [column.label for column in table.columns]
    assert labels == ["client", "reason", *chain, *found.criteria]
    for row in table.rows:
        client = row[0].value
        own = [cell.value for cell in row[2 : 2 + len(chain)]]
        assert own == [getattr(stored[client], key) for key in chain.values()]


@pytest.mark.parametrize(
    ("method", "steps"),
    [
        ("all of it", ["criteria", "evidence", "bounds", "rule"]),
        ("evidence alone", ["dataset_size", "evidence"]),
        ("bounds", ["dataset_size", "bounds"]),
        ("rule", ["dataset_size", "rule"]),
    ],
)
def test_the_picture_leads_step_by_step_to_what_the_record_holds(
    moved: cw.Run, method: str, steps: list[str]
) -> None:
    found = audit(moved, method, 1, 5)
    assert list(found.steps) == steps
    known = [one for one in found.participants if one.path]
    for one in known:
        assert one.path[0] == one.why.prior
        assert one.path[-1] == one.why.share
    for place in range(len(steps) - 1):  # a rule may leave out some of the weight
        assert sum(one.path[place] for one in known) == pytest.approx(1)
    picture, *_ = views.audit_round(moved, method, 1, 5).sections[0].items
    groups = picture.mark.groups
    assert [group.name for group in groups] == [*steps, found.stages[-1].label]
    before = [1 / len(known)] * len(known)
    for index, group in enumerate(groups[:-1]):
        assert group.starts == before
        assert group.ends == [one.path[index] for one in known]
        before = group.ends
    assert (groups[-1].starts, groups[-1].ends) == (None, before)


def test_the_parameters_name_all_that_moves_weights(moved: cw.Run) -> None:
    assert audit(moved, "all of it", 1, 5).parameters == (
        "Weight by the criteria = score / sum of scores. Score: prioritized. "
        "Criteria: dataset_size > label_diversity (most important first).",
        "Claimed by clients: dataset_size, label_diversity.",
        "Evidence: significance (threshold 2.0, slack 1.0, strength 0.5, margin 0.1, liars 0.3).",
        "Harm is by how much following the client instead of the mean would raise the held-out "
        "loss. z sums up its significance over the rounds, in standard errors; below 0, it favours "
        "the client.",
        "Bounds: cap 20%, floor 2%.",
        "Final share: the client's part of the aggregate after clip (times 1.0) and then the rule "
        "multi_krum (hostile 0.3).",
    )


def test_since_when_evidence_lowers_a_weight(moved: cw.Run) -> None:
    rounds = [
        {row.client: row for row in moved.participants("evidence alone", 1, r)} for r in range(1, 6)
    ]
    found = by_client(moved, "evidence alone", 5)
    for client, last in rounds[-1].items():
        evidence = found[client].evidence
        assert evidence is not None
        lowered = [row[client].posterior < row[client].prior * (1 - 1e-9) for row in rounds]
        significant = [number for number, row in enumerate(rounds, 1) if row[client].z > 2]
        since = max((number for number, low in enumerate(lowered, 1) if not low), default=0) + 1
        assert evidence.since == (since if lowered[-1] else None)
        assert evidence.last == (significant[-1] if significant else None)
        if significant:
            row = rounds[significant[-1] - 1][client]
            assert (evidence.harm, evidence.error, evidence.z) == (row.harm, row.harm_error, row.z)
        assert found[client].is_significant == (last.z > 2)
    assert all(found[client].is_lowered for client in moved.hostile_clients(1))


def by_client(run: cw.Run, method: str, round_num: int) -> dict[int, Explanation]:
    found = explain(run, method, 1, round_num)
    return {one.client: one for one in reversed(found)}  # those refused are the last


def test_a_frame_has_the_weight_as_influence_where_no_rule_changed_it(moved: cw.Run) -> None:
    rows = moved.frame("weights")
    of_mean = rows[rows["method"].isin(["evidence alone", "bounds"])]
    assert of_mean["influence"].equals(of_mean["weight"])
    of_rule = rows[(rows["method"] == "rule") & (rows["round"] == 5)]
    recorded = {row.client: row.influence for row in moved.participants("rule", 1, 5)}
    assert dict(zip(of_rule["client"], of_rule["influence"], strict=True)) == recorded
    assert not of_rule["influence"].equals(of_rule["weight"])
    for row in moved.participants("bounds", 1, 5):  # audits show an influence where it differs
        assert row.influence is None


@pytest.fixture
def made(moved: cw.Run, tmp_path: Path) -> cw.Run:
    """The run with a made-up history of its clients under `all of it`."""
    folder = shutil.copytree(moved.folder, tmp_path / "made")
    lane = moved.lane("all of it", 1)
    with contextlib.closing(
        sqlite3.connect(folder / "run.sqlite", isolation_level=None)
    ) as database:

        def put(client: int, rounds: str, **values: float) -> None:
            columns = ", ".join(f"{key} = {value}" for key, value in values.items())
            database.execute(
                f"UPDATE participants SET {columns} WHERE lane = {lane} AND client = {client} AND round_num {rounds}"
            )

        for client in range(8):
            put(client, "> 0", prior=0.1, z=0.0, posterior=0.1, weight=0.1, influence=0.1)
            put(client, "> 0", harm=0.0, harm_error=0.01)
        worse = {"z": 4.1, "harm": 0.0312, "harm_error": 0.0042}
        put(0, "IN (1, 3, 4, 5)", posterior=0.05, weight=0.05, influence=0.05, **worse)
        put(1, "IN (2, 3, 4, 5)", posterior=0.05, weight=0.05, influence=0.031)
        put(1, "= 2", z=7.0, harm=0.2, harm_error=0.03)
        put(2, "= 5", z=3.2, harm=0.05, harm_error=0.01, posterior=0.5, weight=0.2, influence=0.2)
        put(3, "= 5", posterior=0.001, weight=0.02, influence=0.0)
        put(4, "= 5", weight=0.15, influence=0.15)
        put(5, "= 5", weight=0.105, influence=0.1)  # too little for words
        put(7, "= 2", z=4.5)  # without a harm beyond the margin
        put(7, ">= 4", posterior=0.05, weight=0.05, influence=0.05)
        database.execute(f"UPDATE rounds SET held_out_change = -0.12 WHERE lane = {lane}")
        database.execute(
            f"UPDATE participants SET refusal = 'late', score = NULL, prior = NULL, z = NULL, posterior = NULL, "
            f"weight = NULL, influence = NULL WHERE lane = {lane} AND ((client = 6 AND round_num = 5) "
            "OR (client = 0 AND round_num = 4))"
        )
        database.execute(  # what a client sends twice is refused, the first one counts
            "INSERT INTO participants (lane, round_num, client, refusal) VALUES (?, 5, 0, 'sent twice')",
            (lane,),
        )
    return cw.Run(folder)


def test_sentences_say_what_the_record_shows(made: cw.Run) -> None:
    found = by_client(made, "all of it", 5)
    moves = {client: one.moves() for client, one in found.items()}
    assert moves == {
        # Refused in round 4, which therefore does not interrupt the rounds since 3.
        0: (
            "Evidence lowers the weight from 10.0% to 5.0% (since round 3): in place of the mean, its "
            "update would raise the held-out loss by 0.031 ± 0.004; the mean lowered it by 0.12.",
        ),
        1: (
            "Evidence of earlier rounds lowers the weight from 10.0% to 5.0% (since round 2). It was last "
            "significant in round 2: in place of the mean, its update would have raised the held-out loss "
            "by 0.20 ± 0.03; the mean lowered it by 0.12. In round 5, it is not significant.",
            "Clip and then the rule multi_krum lowers the share from 5.0% to 3.1%.",
        ),
        2: (
            "Evidence against the client is significant: in place of the mean, its update would raise the "
            "held-out loss by 0.05 ± 0.01; the mean lowered it by 0.12. Other clients lost at least as much "
            "weight.",
            "The cap of 20% lowers the weight from 50.0%.",
        ),
        3: (
            "Evidence lowers the weight from 10.0% to 0.1% (since round 5).",
            "The floor of 2% raises the weight from 0.1%.",
            "Clip and then the rule multi_krum excludes the update.",
        ),
        4: ("The bounds raise the weight from 10.0% to 15.0%.",),
        5: (),
        6: (),
        7: (
            "Evidence of earlier rounds lowers the weight from 10.0% to 5.0% (since round 4). It was last "
            "significant in round 2: its size is not recorded. In round 5, it is not significant.",
        ),
    }
    assert [client for client, one in found.items() if one.is_harmful] == [0, 2]
    assert found[6].brief() == "refused: late"
    assert (found[0].cause, found[1].cause, found[4].cause) == (
        "evidence",
        "past evidence",
        "bounds",
    )
    assert by_client(made, "all of it", 1)[0].evidence.since == 1  # not later
    assert by_client(made, "all of it", 2)[0].moves() == ()
    *_, words = views.audit_round(made, "all of it", 1, 5).sections[0].items
    shown = {row[0].value: row[1] for row in words.rows}
    assert shown.keys() == {client for client, said in moves.items() if said}
    for client, text in shown.items():
        assert text.startswith(" ".join(moves[client]))
    _, last = views.audit_client(made, "all of it", 1, 0).lead
    assert last.startswith(
        "client 0 has 5.0% of round 5's model; an equal share is 14.3%. Evidence"
    )


@pytest.mark.parametrize(
    ("old", "new", "witness", "loss"),
    [
        (
            'source = "held_out"',
            'source = "clients"',
            "loss",
            "the loss that judging clients measured",
        ),
        ("threshold = 2.0", "threshold = 100.0", "unknown", "the loss"),
        ('name = "multi_krum"', 'name = "a_plugin"', "loss", "the held-out loss"),
        ('name = "significance"', 'name = "a_plugin"', "loss", "the held-out loss"),
        ("threshold = 2.0", 'threshold = "high"', "unknown", "the loss"),
        ("margin = 0.1", "margin = 0.5", "unknown", "the held-out loss"),
        ("[[methods]]", "not toml [", "unknown", "the loss"),
    ],
)
def test_a_harm_is_stated_only_where_the_config_says_what_is_significant(
    made: cw.Run, old: str, new: str, witness: str, loss: str
) -> None:
    path = made.folder / "config.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    found = audit(made, "all of it", 1, 5)
    assert [stage.label for stage in found.stages] == list(CHAINS["all of it"])
    own = {one.client: one.why for one in reversed(found.participants)}
    assert own[0].evidence is not None
    assert (own[0].evidence.since, own[0].evidence.witness, own[0].evidence.loss) == (
        3,
        witness,
        loss,
    )
    assert own[0].is_harmful == (witness == "loss")
    assert ("would raise" in own[0].by_evidence()) == (witness == "loss")
    if "not toml" in new:  # which of the bounds, and which rule, is unknown
        assert own[2].by_bounds() == "The bounds lower the weight from 50.0% to 20.0%."
        assert own[3].by_rule() == "The rule excludes the update."


def test_bounds_that_moved_nothing_say_so(moved: cw.Run, tmp_path: Path) -> None:
    folder = shutil.copytree(moved.folder, tmp_path / "within")
    with contextlib.closing(
        sqlite3.connect(folder / "run.sqlite", isolation_level=None)
    ) as database:
        database.execute(
            "UPDATE participants SET prior = NULL WHERE lane = ?", (moved.lane("bounds", 1),)
        )
    found = audit(cw.Run(folder), "bounds", 1, 5)
    assert [stage.label for stage in found.stages] == ["score", "weight"]
    assert "Bounds: cap 15%." in found.parameters
    assert not any(one.why.by_bounds() for one in found.participants)


def test_a_client_over_the_rounds(moved: cw.Run) -> None:
    client = min(moved.hostile_clients(1))
    document = views.audit_client(moved, "all of it", 1, client)
    weight, z, _, table = document.sections[0].items
    rows = moved.client_rounds("all of it", 1, client)
    assert {line.name: [*line.y] for line in weight.mark.lines} == {
        "weight": [row.weight for row in rows],
        "weight by criteria": [row.prior for row in rows],
        "final share": [row.influence for row in rows],
    }
    assert (z.id, [*z.mark.lines[0].y]) == ("client-z", [row.z for row in rows])
    assert not z.mark.y.percent
    labels = [column.label for column in table.columns]
    assert labels == ["round", *CHAINS["all of it"], "training loss", "refused because"]
    assert [row[5].value for row in table.rows] == [row.posterior for row in rows]
    own = by_client(moved, "all of it", 5)[client]
    assert document.lead[1:] == [" ".join([own.answer(), *own.moves(), own.known_facts()])]
    plain = views.audit_client(moved, "rule", 1, client).sections[0].items
    assert [item.id for item in plain] == ["client-weight", "client-own", "rounds"]


def test_of_a_very_large_round_the_terminal_shows_the_heaviest(
    moved: cw.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "MOST_LINES", 2)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(*audit_tables(moved, 5, "all of it"))
    text, found = console.export_text(), audit(moved, "all of it", 1, 5)
    assert f"{len(found.participants) - 2} more clients are not shown" in text
    lines = text.splitlines()
    told = [
        one.client
        for one in found.participants
        if any(x.startswith(f"{one.client}: ") for x in lines)
    ]
    assert set(told) <= {one.client for one in found.participants[:2]}


@pytest.mark.parametrize(
    "content", ["x = " + "[" * 50_000, f"x = {'9' * 5_000}", "a." * 9_999 + "a = 1", None]
)
def test_a_config_that_cannot_be_read_takes_only_the_explanation(
    moved: cw.Run, tmp_path: Path, content
) -> None:
    folder = tmp_path / "odd"
    shutil.copytree(moved.folder, folder)
    (folder / "config.toml").unlink()
    if content is None:
        os.mkfifo(folder / "config.toml")  # which has no end, and not even a beginning
    else:
        (folder / "config.toml").write_text(content)
    found = audit(cw.Run(folder), "all of it", 1, 5)
    assert found.parameters == (UNKNOWN,)
    assert [one.why.weight for one in found.participants] == [
        row.weight for row in moved.participants("all of it", 1, 5)
    ]


def test_the_terminal_shows_the_chain(moved: cw.Run) -> None:
    def printed(*, details: bool) -> str:
        console = Console(width=80, record=True, file=io.StringIO())
        for shown in audit_tables(moved, 5, "all of it", details=details):
            console.print(shown)
        return console.export_text()

    text = printed(details=False)
    assert "…" not in text  # nothing cut off at 80 columns
    assert "Not shown in 80 columns: harm." in text
    words = " ".join(text.split())
    found = audit(moved, "all of it", 1, 5)
    for one in found.participants:
        cells = [stage.cell(one.row).text for stage in found.stages if stage.label != "harm"]
        raw = [f"{criterion.value:.4g}" for criterion in one.why.criteria]
        assert " ".join([str(one.client), *cells, *raw]) in words
        said = " ".join(text for text in (*one.why.moves(), one.why.known_facts()) if text)
        assert not said or f"{one.client}: {said}" in words
    assert "threshold" not in words
    assert " ".join(found.parameters) in " ".join(printed(details=True).split())

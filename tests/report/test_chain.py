"""The audit of weights that evidence, bounds and rules moved."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest
from rich.console import Console
from torch import Tensor

import clientwise as cw
from clientwise.core.weights.scores import SCORES, Score
from clientwise.record.reading.config_view import RecordedConfig
from clientwise.report import views
from clientwise.report.audit.round_audit import Audit, audit, weighing
from clientwise.report.document import Table
from clientwise.report.output import terminal
from clientwise.report.output.terminal import audit_tables

SINCE = "evidence has lowered its weight since round 3"
CHAINS = {
    "all of it": {
        "score": "score",
        "prior weight": "prior",
        "z": "z",
        "weight after evidence": "posterior",
        "weight within bounds": "weight",
        "influence": "influence",
    },
    "evidence alone": {"score": "score", "prior weight": "prior", "z": "z", "weight": "weight"},
    "bounds": {"score": "score", "prior weight": "prior", "weight within bounds": "weight"},
    "rule": {"score": "score", "weight": "weight", "influence": "influence"},
}


@pytest.mark.parametrize("method", list(CHAINS))
def test_the_audit_has_the_places_of_the_method_and_no_others(moved: cw.Run, method: str) -> None:
    chain = CHAINS[method]
    stored = {row.client: row for row in moved.participants(method, 1, 5)}
    found = audit(moved, method, 1, 5)
    assert [stage.label for stage in found.stages] == list(chain)
    for one in found.participants:
        assert [cell.value for cell in one.chain] == [
            getattr(stored[one.client], key) for key in chain.values()
        ]
    _, table, *_ = views.audit_round(moved, method, 1, 5).sections[0].items
    assert isinstance(table, Table)
    labels = [column.label for column in table.columns]
    assert labels[2 : 2 + len(chain)] == list(chain)
    assert all(len(row) == len(labels) for row in table.rows)
    assert [row[2:][: len(chain)] for row in table.rows] == [
        list(one.chain) for one in found.participants
    ]


@pytest.mark.parametrize(
    ("method", "steps"),
    [
        ("all of it", ["dataset_size", "label_diversity", "evidence", "bounds", "rule"]),
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
    stored = {row.client: row for row in moved.participants(method, 1, 5)}
    criteria = len(found.criteria)
    for one in known:
        row = stored[one.client]
        assert one.path[criteria - 1] == (row.weight if row.prior is None else row.prior)
        assert one.path[-1] == (row.weight if row.influence is None else row.influence)
    for place in range(criteria):
        assert sum(one.path[place] for one in known) == pytest.approx(1)
    sizes = {one.client: one.raw[0] for one in known}
    shares = {client: size / sum(sizes.values()) for client, size in sizes.items()}
    assert {one.client: one.path[0] for one in known} == pytest.approx(
        shares
    )  # by the first criterion alone
    picture, *_ = views.audit_round(moved, method, 1, 5).sections[0].items
    groups = picture.mark.groups
    assert [group.name for group in groups] == [*steps, found.stages[-1].label]
    before = [1 / len(known)] * len(known)
    for index, group in enumerate(groups[:-1]):
        assert group.starts == before
        assert group.ends == [one.path[index] for one in known]
        before = group.ends
    assert (groups[-1].starts, groups[-1].ends) == (None, before)


def said(found: Audit) -> dict[int, tuple[str, ...]]:
    assert not any(one.moved for one in found.participants if "refused" in one.remark)
    return {
        one.client: one.moved for one in reversed(found.participants)
    }  # those refused are the last


def test_what_would_change_a_weight_is_said_of_the_prior(moved: cw.Run) -> None:
    found = audit(moved, "all of it", 1, 5)
    for one, row in zip(found.participants, moved.participants("all of it", 1, 5), strict=True):
        for index in range(len(found.criteria)):
            assert one.what_if[index] >= row.prior - 1e-12
    _, table, *_ = views.audit_round(moved, "all of it", 1, 5).sections[0].items
    assert table.columns[-1].label == "prior weight with the best label_diversity"
    assert table.note.startswith("“Prior weight with the best” is")
    _, table, *_ = views.audit_round(moved, "rule", 1, 5).sections[0].items
    assert table.columns[-1].label == "weight with the best dataset_size"


def test_the_explanation_names_all_that_moved_the_weights(moved: cw.Run) -> None:
    assert audit(moved, "all of it", 1, 5).explanation == (
        "Prior weight = score / sum of scores. Score function: prioritized. "
        "Criteria: dataset_size > label_diversity (most important first). "
        "Evidence adjusts the prior weight: significance (threshold 2.0, slack 1.0, "
        "strength 0.5, step 0.1). Bounds limit the weight: cap 20%, floor 2%. "
        "z is the accumulated evidence against a client in standard errors; z < 0 favours it. "
        "Influence is a client's share of the aggregate after clip (times 1.0) and then "
        "the rule multi_krum (hostile 0.3)."
    )
    assert audit(moved, "rule", 1, 5).explanation == (
        "Weight = score / sum of scores. Score function: prioritized. Criteria: dataset_size. "
        "Influence is a client's share of the aggregate after the rule median."
    )


def test_since_when_evidence_lowers_a_weight(moved: cw.Run) -> None:
    rounds = [
        {row.client: row for row in moved.participants("evidence alone", 1, r)} for r in range(1, 6)
    ]
    remarks = said(audit(moved, "evidence alone", 1, 5))
    for client, last in rounds[-1].items():
        assert last.z is not None
        lowered = [row[client].posterior < row[client].prior * (1 - 1e-9) for row in rounds]
        harmful = [number for number, row in enumerate(rounds, 1) if row[client].z > 2]
        if not lowered[-1]:
            assert bool(remarks[client]) == (last.z > 2)
            continue
        since = max((number for number, low in enumerate(lowered, 1) if not low), default=0) + 1
        assert harmful[-1] >= since
        when = "" if harmful[-1] == 5 else f"last in round {harmful[-1]}, "
        assert remarks[client] == (
            f"evidence has lowered its weight since round {since}: its updates increased the loss "
            f"on held-out samples ({when}z = {rounds[harmful[-1] - 1][client].z:.1f})",
        )
    assert all(remarks[client] for client in moved.hostile_clients(1))


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
        put(0, "IN (1, 3, 4, 5)", z=4.1, posterior=0.05, weight=0.05, influence=0.05)
        put(1, "IN (2, 3, 4, 5)", posterior=0.05, weight=0.05, influence=0.031)
        put(1, "= 2", z=7.0)
        put(2, "= 5", z=3.2, posterior=0.5, weight=0.2, influence=0.2)
        put(3, "= 5", posterior=0.001, weight=0.02, influence=0.0)
        put(4, "= 5", weight=0.15, influence=0.15)
        put(5, "= 5", weight=0.105, influence=0.1)  # too little for words
        put(7, "= 2", z=4.5)
        put(7, ">= 4", posterior=0.05, weight=0.05, influence=0.05)
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


def test_remarks_say_what_the_record_shows(made: cw.Run) -> None:
    worse = "its updates increased the loss on held-out samples"
    assert said(audit(made, "all of it", 1, 5)) == {
        # Refused in round 4, which therefore does not interrupt the rounds since 3.
        0: (f"evidence has lowered its weight since round 3: {worse} (z = 4.1)",),
        1: (
            f"evidence has lowered its weight since round 2: {worse} (last in round 2, z = 7.0)",
            "clip and then the rule multi_krum lowered its influence from 5.0% to 3.1%",
        ),
        2: (
            f"{worse} (z = 3.2), but other clients lost at least as much weight",
            "lowered from 50.0% to the cap of 20%",
        ),
        3: (
            "evidence has lowered its weight since round 5",
            "raised from 0.1% to the floor of 2%",
            "clip and then the rule multi_krum excluded its update",
        ),
        4: ("the bounds raised its weight from 10.0% to 15.0%",),
        5: (),
        6: (),
        7: (
            f"{worse} (last in round 2, z = 4.5); its weight has been below its prior weight since "
            "round 4",
        ),
    }
    assert said(audit(made, "all of it", 1, 1))[0][0].startswith(
        "evidence has lowered its weight since round 1"
    )  # not later
    assert said(audit(made, "all of it", 1, 2))[0] == ()
    *_, words = views.audit_round(made, "all of it", 1, 5).sections[0].items
    assert [(row[0].value, row[1]) for row in words.rows] == [
        (one.client, "; ".join(one.moved))
        for one in audit(made, "all of it", 1, 5).participants
        if one.moved
    ]
    assert (
        views.audit_client(made, "all of it", 1, 0)
        .lead[1]
        .startswith("Round 5: evidence has lowered its weight since")
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            'source = "held_out"',
            'source = "clients"',
            f"{SINCE}: its updates increased the loss measured by the",
        ),
        ("threshold = 2.0", "threshold = 100.0", SINCE),
        (
            'name = "multi_krum"',
            'name = "a_plugin"',
            f"{SINCE}: its updates increased the loss on held-out",
        ),
        (
            'name = "significance"',
            'name = "a_plugin"',
            f"{SINCE}: its updates increased the loss on held-out",
        ),
        (
            "threshold = 2.0",
            'threshold = "high"',
            f"{SINCE}: its updates increased the loss on held-out",
        ),
        ("[[methods]]", "not toml [", f"{SINCE}: its updates increased the loss (z"),
    ],
)
def test_the_config_only_names_what_the_record_shows(
    made: cw.Run, old: str, new: str, words: str
) -> None:
    path = made.folder / "config.toml"
    path.write_text(path.read_text().replace(old, new))
    found = audit(made, "all of it", 1, 5)
    assert [stage.label for stage in found.stages] == list(CHAINS["all of it"])
    assert words in said(found)[0][0]
    assert ("z = 4.1" in said(found)[0][0]) == ("100.0" not in new)
    if "not toml" in new:
        assert (
            said(found)[2][-1] == "the bounds lowered its weight from 50.0% to 20.0%"
        )  # which of them is unknown
        assert said(found)[3][-1] == "the rule excluded its update"


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
    assert (
        "Bounds limit the weight: cap 15%. No weight was changed in this round."
        in found.explanation
    )


def test_a_client_over_the_rounds(moved: cw.Run) -> None:
    client = min(moved.hostile_clients(1))
    document = views.audit_client(moved, "all of it", 1, client)
    weight, z, _, table = document.sections[0].items
    rows = moved.client_rounds("all of it", 1, client)
    assert {line.name: [*line.y] for line in weight.mark.lines} == {
        "weight": [row.weight for row in rows],
        "prior weight": [row.prior for row in rows],
        "influence": [row.influence for row in rows],
    }
    assert (z.id, [*z.mark.lines[0].y]) == ("client-z", [row.z for row in rows])
    assert not z.mark.y.percent
    labels = [column.label for column in table.columns]
    assert labels == ["round", *CHAINS["all of it"], "training loss", "refused because"]
    assert [row[4].value for row in table.rows] == [row.posterior for row in rows]
    remarks = said(audit(moved, "all of it", 1, 5))[client]
    assert document.lead[1:] == [f"Round 5: {'; '.join(remarks)}."]
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
    assert [one.client for one in found.participants if f"Client {one.client}:" in text] == [
        one.client for one in found.participants[:2]
    ]


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
    assert "the score was computed is unknown" in found.explanation
    assert [one.weight for one in found.participants] == [
        row.weight for row in moved.participants("all of it", 1, 5)
    ]


def test_the_terminal_shows_the_chain(moved: cw.Run) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    for shown in audit_tables(moved, 5, "all of it"):
        console.print(shown)
    text = console.export_text()
    assert "…" not in text  # nothing cut off at 80 columns
    words = " ".join(text.split())
    found = audit(moved, "all of it", 1, 5)
    assert found.explanation in words
    for one in found.participants:
        assert (
            " ".join(
                [
                    str(one.client),
                    *(cell.text for cell in one.chain),
                    *(f"{raw:.4g}" for raw in one.raw),
                ]
            )
            in words
        )
        assert f"Client {one.client}: {'; '.join(filter(None, [one.remark, *one.moved]))}." in words


def test_what_if_weights_of_a_plugin_s_score_are_computed_from_tensors() -> None:
    @SCORES.register("doubled")
    class Doubled(Score):
        """Twice the sum of the criteria."""

        def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
            return 2 * values.double().detach().sum(1)

    table = {"name": "A", "criteria": ["dataset_size", "label_diversity"], "score": "doubled"}
    how = weighing(RecordedConfig({"methods": [table]}).method("A"), None)
    assert how is not None
    weights = how.weights(numpy.array([[1.0, 2.0], [3.0, 2.0]]))
    assert isinstance(weights, numpy.ndarray)
    assert weights.tolist() == pytest.approx([0.375, 0.625])
    cohorts = how.weights_of_cohorts(numpy.array([[[1.0, 2.0], [3.0, 2.0]]]))
    assert cohorts.tolist() == [pytest.approx([0.375, 0.625])]

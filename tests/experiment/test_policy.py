"""A policy on weights: checked before the run, kept in every round, recorded, changed with a note only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest

import clientwise as cw
from clientwise.errors import ConfigError, RunError
from clientwise.experiment.checks.describe import describe
from clientwise.experiment.config.named import merge
from clientwise.experiment.load import load_experiment
from clientwise.record.reading.folder import RunFolder
from clientwise.report.audit.explanation import explain
from reported import audited, headline_of

RURAL = {"name": "rural", "clients": [2, 3], "floor": 0.5}
CONFIG: dict[str, Any] = {
    "name": "policy",
    "rounds": 3,
    "checkpoint_seconds": 0.0,
    "data": "digits",
    "partition": {"name": "quantity", "clients": 4, "concentration": 1.0},
    "model": "linear",
    "training": {"epochs": 1, "batch_size": 20, "learning_rate": 0.1},
    "server_set": {"fraction": 0.2},
}


def config(bounds: dict[str, Any], **changes: Any) -> dict[str, Any]:
    method = {"name": "A", "criteria": ["dataset_size", "model_divergence"], "bounds": bounds}
    return merge(CONFIG, changes) | {"methods": [method]}


def weights(folder: Path, round_num: int) -> dict[int, float | None]:
    return {row.client: row.weight for row in RunFolder(folder).participants("A", 1, round_num)}


def test_the_weights_of_every_round_meet_the_policy(tmp_path: Path) -> None:
    bounds = {"cap": 0.4, "floor": 0.05, "groups": [RURAL, {"clients": [0], "cap": 0.3}]}
    folder = cw.run(config(bounds), tmp_path / "run")
    for round_num in (1, 2, 3):
        found = weights(folder, round_num)
        assert sum(found.values()) == pytest.approx(1)
        assert all(0.05 - 1e-9 <= one <= 0.4 + 1e-9 for one in found.values())
        assert found[0] <= 0.3 + 1e-9
        assert found[2] + found[3] >= 0.5 - 1e-9
    (policy,) = RunFolder(folder).policies("A", 1)
    assert policy.round_num == 1
    assert policy.policy["groups"][0] == RURAL
    page = audited(RunFolder(folder), "A", 1, 2)
    assert "cap 40%, floor 5%; rural: floor 50% together; 0: cap 30%" in page
    assert "Claimed by clients: dataset_size. Measured by the server: model_divergence." in page


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ({"cap": 0.2}, "the caps sum to 4 × 0.2 = 0.8, less than 1"),
        (
            {"cap": 0.3, "groups": [{"clients": [0, 1], "floor": 0.7, "name": "big"}]},
            "Round 1: group 'big': the caps sum to 2 × 0.3 = 0.6, less than its floor 0.7",
        ),
        ({"quorum": 5}, "Round 1: quorum = 5, and there are 4 clients"),
        ({"groups": [{"clients": ["x"], "cap": 0.5}]}, "no client is called 'x'"),
        (
            {"cap": 0.3, "probation": {"cap": 0.05, "rounds": 9, "clients": [0]}},
            "the caps sum to 1 × 0.05 + 3 × 0.3 = 0.95, less than 1",
        ),
    ],
)
def test_a_policy_that_no_round_can_meet_is_refused_before_the_run(
    bounds: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        cw.run(config(bounds), tmp_path / "run")
    assert said in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_rounds_whose_cohort_cannot_meet_it_are_told_and_keep_the_model(tmp_path: Path) -> None:
    sampled = config({"groups": [RURAL]}, federation={"clients_per_round": 2}, rounds=6)
    (warning,) = [line for line in describe(load_experiment(sampled)) if "policy" in line]
    folder = cw.run(sampled, tmp_path / "run")
    run = RunFolder(folder)
    kept = []
    for round_num in range(1, 7):
        (note,) = run.round("A", 1, round_num).notes or ("",)
        is_absent = not {2, 3} & {*weights(folder, round_num)}
        assert note.endswith("the model stays as it was") == is_absent
        if is_absent:
            kept.append(round_num)
            assert note.startswith("no weights meet the bounds (group 'rural': none takes part")
            assert set(weights(folder, round_num).values()) == {0.0}
            assert note in audited(run, "A", 1, round_num)
            for one in explain(run, "A", 1, round_num):
                assert (one.share, one.cause, one.kept) == (0.0, "kept", note)
                assert one.answer() == (
                    f"{one.called} has no part in round {round_num}'s model: {note}."
                )
    assert 0 < len(kept) < 6
    assert f"{len(kept)} of 6 rounds cannot meet the policy" in warning
    assert f"The first is round {kept[0]}: group 'rural'" in warning
    assert any("stays as it was" in line for line in headline_of(run))


def test_a_newcomer_is_capped_until_its_probation_ends(tmp_path: Path) -> None:
    probation = {"cap": 0.01, "rounds": 2, "clients": [1]}
    folder = cw.run(config({"probation": probation}), tmp_path / "run")
    found = [weights(folder, round_num)[1] for round_num in (1, 2, 3)]
    assert found[:2] == pytest.approx([0.01, 0.01])
    assert found[2] > 0.02
    moved = audited(RunFolder(folder), "A", 1, 1)
    assert "The cap of 1% for newcomers lowers the weight from" in moved
    # A run that is interrupted goes on with the same probation.
    short = cw.run(config({"probation": probation}) | {"rounds": 1}, tmp_path / "short")
    cw.run(config({"probation": probation}), short, resume=True)
    assert weights(short, 2) == weights(folder, 2)
    assert weights(short, 3) == weights(folder, 3)


def test_a_policy_changes_with_a_note_only(tmp_path: Path) -> None:
    folder = cw.run(config({"cap": 0.3}), tmp_path / "run")
    longer = config({"cap": 0.5}, rounds=5)
    with pytest.raises(RunError, match=r"bounds\.cap = 0\.5 \(was 0\.3\).*new bounds\.note"):
        cw.run(longer, folder, resume=True)
    note = "The board raised the cap on 3 March"
    changed = config({"cap": 0.5, "note": note}, rounds=5)
    cw.run(changed, folder, resume=True)
    first, second = RunFolder(folder).policies("A", 1)
    assert (first.round_num, first.policy["cap"], first.note) == (1, 0.3, "")
    assert (second.round_num, second.policy["cap"], second.note) == (4, 0.5, note)
    assert max(weights(folder, 3).values()) == pytest.approx(0.3)
    assert max(weights(folder, 4).values()) > 0.3
    run = RunFolder(folder)
    assert "cap 30%" in audited(run, "A", 1, 3)
    assert f"Bounds since round 4: cap 50%. Reason for the bounds: {note}." in audited(
        run, "A", 1, 5
    )
    with pytest.raises(RunError, match=r"bounds\.cap"):  # the same note explains no other change
        cw.run(config({"cap": 0.6, "note": note}, rounds=6), folder, resume=True)
    other = merge(changed, {"training": {"epochs": 2}})
    with pytest.raises(RunError, match=r"training\.epochs"):
        cw.run(other | {"rounds": 6}, folder, resume=True)
    # Probation may begin with a change.
    late = {"cap": 0.5, "note": "1 is new", "probation": {"cap": 0.02, "rounds": 1, "clients": [1]}}
    cw.run(config(late, rounds=6), folder, resume=True)
    assert weights(folder, 6)[1] == pytest.approx(0.02)


def test_clients_are_named_by_their_names(tmp_path: Path) -> None:
    random = numpy.random.default_rng(0)
    inputs = random.normal(size=(90, 3)).astype("float32")
    targets = (inputs.sum(1) > 0).astype(int)
    parts = {"Alpha": slice(0, 60), "Beta": slice(60, 80), "Gamma": slice(80, 90)}
    clients = {name: (inputs[part], targets[part]) for name, part in parts.items()}
    bounds = {"groups": [{"clients": ["Gamma"], "floor": 0.3}]}
    folder = cw.run(
        {k: v for k, v in config(bounds).items() if k not in ("data", "partition")},
        tmp_path / "run",
        data=cw.Samples.from_clients(clients),
    )
    assert weights(folder, 1)[2] == pytest.approx(0.3)


def test_check_says_which_criteria_are_claims() -> None:
    lines = describe(load_experiment(config({"cap": 0.5})))
    (line,) = [line for line in lines if line.startswith("criteria")]
    assert line.split(None, 1)[1] == (
        "claimed by the clients: dataset_size; measured by the server: model_divergence"
    )


def test_a_policy_is_recorded_as_it_was_given(tmp_path: Path) -> None:
    folder = cw.run(config({"cap": 0.5}) | {"rounds": 1}, tmp_path / "run")
    rows = RunFolder(folder).query("SELECT policy FROM policies")
    assert json.loads(rows[0][0]) == {
        "cap": 0.5,
        "floor": 0.0,
        "groups": [],
        "quorum": 1,
        "note": "",
    }

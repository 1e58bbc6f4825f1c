"""Runs of a whole consortium, with the library's own loop: plain and masked, honest and not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from clientwise.experiment.running import lanes
from clientwise.record.run import RunFolder

from clientwise_consortium.keys import public_keys
from clientwise_consortium.record import FIRST, LINES, ROWS, Record, read, statement
from clientwise_consortium.verify import rounds, verify
from conftest import NAMES, Keys
from federation import Federation


def checked(
    federation: Federation, record: Path, heads: dict[str, list[str]] | None = None
) -> list[str]:
    keys = federation.keys
    coordinator = public_keys(keys.signers, "clientwise-coordinator")["coordinator"]
    members = public_keys(keys.signers, "clientwise-member")
    return verify(record, federation.experiment, coordinator, members, heads or federation.heads())


def test_a_run_and_its_record(keys: Keys, tmp_path: Path) -> None:
    federation = Federation(tmp_path, keys)
    record = federation.serve()
    found = list(rounds(record))
    assert [body["round"] for body, _ in found] == [1, 2, 3]
    for _, rows in found:
        assert list(rows) == NAMES
        assert sum(row["weight"] for row in rows.values()) == pytest.approx(1)
        # Whole groups of five rows of each class: 20, 25 and 30 of each
        assert [row["criteria"]["dataset_size"] for row in rows.values()] == [40.0, 50.0, 60.0]
    assert checked(federation, record) == []
    for name in NAMES:
        events = federation.events(name)
        assert events.count("asked") == 3
        assert events.count("answered") == 3
        assert events.count("head") == 3
        assert federation.ledger(name).released()["train"]["without_noise"] == 0
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        assert summary["released"]["train"]["requests"] == 3
        assert len(summary["heads"]) == 3
        assert summary["rounds"] == [[1, 1], [1, 2], [1, 3]]


def test_the_mailbox_reads_nothing(keys: Keys, tmp_path: Path) -> None:
    federation = Federation(tmp_path, keys)
    federation.serve()
    carried = b"".join(federation.mailbox.carried)
    assert len(carried) > 5000
    for word in (b"dataset_size", b"criterion", b"numpy", b"request", b"refused", b"ledger"):
        assert word not in carried


def test_a_masked_run(keys: Keys, tmp_path: Path) -> None:
    federation = Federation(tmp_path, keys, masked=True, noise=False)
    record = federation.serve()
    lines = [one["body"] for one in read(record / LINES)]
    assert [line.get("round") for line in lines] == [None, 1, 2, 3]
    assert all(line["kept"] is None for line in lines[1:])
    assert checked(federation, record) == []
    for name in NAMES:
        assert federation.events(name).count("summed") == 3


def test_masked_and_plain_means_agree(keys: Keys, tmp_path: Path) -> None:
    """The same rows, the same batches: the masked mean is that of the simulation, but for rounding."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    plain = Federation(tmp_path / "a", keys, noise=False)
    masked = Federation(tmp_path / "b", keys, noise=False, masked=True)
    results = []
    for federation in (plain, masked):
        for name in NAMES:  # the order of rows follows from the ledger's key
            federation.approve(name, cell=1)
            federation.restart(name)
        federation.serve()
        results.append(federation)
    frames = [RunFolder(one.folder / "run").frame("rounds") for one in results]
    assert frames[0]["metric"].tolist() == pytest.approx(frames[1]["metric"].tolist(), abs=1e-6)


def test_a_statement_is_a_members_own(keys: Keys, tmp_path: Path) -> None:
    federation = Federation(tmp_path, keys)
    record = federation.serve()
    own = list(statement(record, "north"))
    assert [one["row"] and one["row"]["criteria"]["dataset_size"] for one in own] == [
        None,
        *3 * [50.0],
    ]
    assert "40.0" not in json.dumps(own)


def test_a_line_that_a_killed_coordinator_did_not_sign_is_written_at_the_restart(
    keys: Keys, tmp_path: Path
) -> None:
    """Killed after the library wrote a round, before its line: at the last round, and at one before it."""
    federation = Federation(tmp_path, keys)
    record = federation.serve()
    before = list(rounds(record))
    for name in (LINES, ROWS):  # as it was before the last two rounds were signed
        path = record / name
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    federation.serve()
    after = list(rounds(record))
    for (old, old_rows), (new, new_rows) in zip(before, after, strict=True):
        assert new_rows == old_rows
        same = ("method", "seed", "round", "criteria", "priority", "kept")
        assert [new[key] for key in same] == [old[key] for key in same]
    assert ["interrupted" in str(body["remarks"]) for body, _ in after] == [False, True, True]
    heads = {name: [FIRST] for name in NAMES}
    assert checked(federation, record, heads) == []
    (fault, *_) = checked(federation, record)
    assert (
        "heads that this record does not have" in fault
    )  # of the lines that were lost: a member tells


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("signs_first", [False, True])
def test_a_round_that_is_on_record_is_not_run_again(
    keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, masked: bool, signs_first: bool
) -> None:
    """The coordinator is killed before, or after it signs the second round."""
    federation = Federation(tmp_path, keys, masked=masked)
    sign = Record.round_done
    with monkeypatch.context() as patch:

        def killed(self: Record, body: Any, rows: Any) -> None:
            if signs_first or body.get("round") != 2:
                sign(self, body, rows)
            if body.get("round") == 2:
                raise KeyboardInterrupt

        patch.setattr(Record, "round_done", killed)
        patch.setattr(lanes.Lane, "end", lambda self: None)  # which saves a checkpoint
        with pytest.raises(KeyboardInterrupt):
            federation.serve()
    record = federation.serve()
    lines = [body for body, _ in rounds(record)]
    assert [(line["round"], line["kept"]) for line in lines] == [(1, None), (2, None), (3, None)]
    assert ["interrupted" in str(line["remarks"]) for line in lines] == [
        False,
        not signs_first,
        False,
    ]
    assert checked(federation, record) == []
    assert federation.ledger("north").released()["train"]["requests"] == 3
    assert federation.events("north").count("repeated") == 0

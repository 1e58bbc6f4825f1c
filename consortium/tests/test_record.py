"""The record: every mutation is a fault, and nothing is imported before the faults are found."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from clientwise_consortium.canonical import encode
from clientwise_consortium.claims import claimed
from clientwise_consortium.keys import UntrustedError, public_keys
from clientwise_consortium.record import (
    LINES,
    ROWS,
    Record,
    faults,
    read,
    statement,
    statement_faults,
)
from clientwise_consortium.verify import verify
from conftest import NAMES, Keys

SIZES = {"east": 40.0, "north": 50.0, "south": 60.0}
EXPERIMENT: dict[str, Any] = {
    "rounds": 3,
    "seeds": [1],
    "engine": "flower",
    "model": "linear",
    "methods": [{"name": "Sizes", "criteria": ["dataset_size"]}],
    "flower": {"clients": NAMES, "input_shape": [4], "num_classes": 2},
}
SECRET = b"s" * 32


class Written:
    """A record of three rounds, as an honest coordinator writes it."""

    def __init__(self, folder: Path, keys: Keys, table: dict[str, Any] = EXPERIMENT) -> None:
        self.keys = keys
        self.folder = folder / "record"
        self.folder.mkdir()
        self.experiment = folder / "experiment.toml"
        self.experiment.write_text(tomli_w.dumps(table))
        self.coordinator = keys.private("coordinator")
        self.members = public_keys(keys.signers, "clientwise-member")
        self.heads: list[str] = []
        self.write()

    def write(self, sizes: dict[str, float] = SIZES) -> None:
        from clientwise_consortium.canonical import digest

        name = digest(self.experiment.read_bytes())
        record = Record(self.folder, self.coordinator, SECRET)
        shown = {member: key.public_bytes_raw().hex() for member, key in self.members.items()}
        record.round_done({"experiment": name, "members": shown}, {})
        for number in (1, 2, 3):
            self.heads.append(record.head())
            body = {
                "method": "Sizes",
                "seed": 1,
                "round": number,
                "criteria": ["dataset_size"],
                "priority": None,
            }
            rows = {}
            for member, size in sizes.items():
                weight = size / sum(sizes.values())
                criteria = {"dataset_size": size}
                signed = claimed(self.keys.private(member), member, name, 1, number, criteria)
                rows[member] = {
                    "criteria": criteria,
                    "prior": weight,
                    "weight": weight,
                    "signed": signed,
                }
            record.round_done(body, rows)

    def verify(self, heads: list[str] | None = None) -> list[str]:
        kept = {"north": self.heads if heads is None else heads}
        trusted = self.coordinator.public_key()
        return verify(self.folder, self.experiment, trusted, self.members, kept)


@pytest.fixture
def written(keys: Keys, tmp_path: Path) -> Written:
    return Written(tmp_path, keys)


def test_an_honest_record_has_no_fault(written: Written) -> None:
    assert written.verify() == []


def lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[bytes], bytes]:
    return lambda content: b"".join(change(content.splitlines(keepends=True)))


MUTATIONS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "the last round is cut": (LINES, lines(lambda all_: all_[:-1])),
    "all is cut": (LINES, lambda content: b""),
    "two rounds are swapped": (LINES, lines(lambda a: [a[0], a[2], a[1], a[3]])),
    "a round is repeated": (LINES, lines(lambda a: [*a, a[-1]])),
    "a round is left out": (LINES, lines(lambda a: [a[0], a[1], a[3]])),
    "a round has another number": (LINES, lambda c: c.replace(b'"round":2', b'"round":5')),
    "a signature is changed": (LINES, lambda c: c.replace(b'"signature":"', b'"signature":"00', 1)),
    "spaces are added": (LINES, lambda c: c.replace(b'{"body":', b'{"body": ', 1)),
    "a key is added": (LINES, lambda c: c.replace(b'{"body":', b'{"a":1,"body":', 1)),
    "a weight is changed": (ROWS, lambda c: c.replace(b'"weight":0.26', b'"weight":0.36', 1)),
    "a criterion is changed": (ROWS, lambda c: c.replace(b'size":50.0', b'size":99.0', 1)),
    "a salt is changed": (
        ROWS,
        lambda c: c.replace(b'"salts":{"east":"', b'"salts":{"east":"0', 1),
    ),
    "rows are cut": (ROWS, lines(lambda all_: all_[:-1])),
    "rows are swapped": (ROWS, lines(lambda a: [a[0], a[2], a[1], a[3]])),
    "rows are repeated": (ROWS, lines(lambda a: [*a, a[-1]])),
    "a member's name is changed": (ROWS, lambda c: c.replace(b'"north"', b'"west"')),
    "rows are no rows": (ROWS, lambda c: c.replace(b'"rows":{"east"', b'"rows":[],"x":{"east"', 1)),
    "a line is no JSON": (LINES, lambda c: c + b"{\n"),
    "a line is deep": (LINES, lambda c: c + 100_000 * b"[" + b"\n"),
    "a line is a list": (LINES, lambda c: c + b"[]\n"),
}


@pytest.mark.parametrize("name", [*MUTATIONS])
def test_every_mutation_is_a_fault_and_imports_nothing(written: Written, name: str) -> None:
    """In a process of its own, in which importing the library would be seen."""
    file, change = MUTATIONS[name]
    path = written.folder / file
    before = path.read_bytes()
    path.write_bytes(change(before))
    swapped = name in ("rows are swapped",)
    assert path.read_bytes() != before
    (written.folder / "north.json").write_text(json.dumps({"heads": written.heads}))
    code = (
        "import sys; from clientwise_consortium.command import main; "
        f"status = main(['verify', {str(written.folder)!r}, '--experiment', {str(written.experiment)!r}, "
        f"'--signers', {str(written.keys.signers)!r}, '--heads', {str(written.folder / 'north.json')!r}]); "
        "print('IMPORTED' if 'clientwise' in sys.modules or 'torch' in sys.modules else 'nothing'); "
        "sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if swapped:  # the order of rows says nothing: each names its line
        assert done.returncode == 0
        return
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAULT" in done.stdout or "error:" in done.stderr
    assert "IMPORTED" not in done.stdout


def test_a_record_that_its_owner_rewrote_is_found_by_a_members_heads(written: Written) -> None:
    shutil.rmtree(written.folder)
    written.folder.mkdir()
    heads = written.heads[:]
    written.write({**SIZES, "south": 600.0})
    (fault,) = written.verify(heads)
    assert "north was shown 2 heads" in fault
    assert written.verify([]) == []  # without a member's heads, nobody can tell


def resigned(written: Written, change: Callable[[dict[str, Any]], None]) -> list[str]:
    """The faults of a record whose coordinator put something else in before it signed."""
    rows = read(written.folder / ROWS)
    shutil.rmtree(written.folder)
    written.folder.mkdir()
    record = Record(written.folder, written.coordinator, SECRET)
    for one in rows:
        change(one)
        body = {k: v for k, v in one["body"].items() if k not in ("leaves", "previous")}
        record.round_done(body, one["rows"])
    return written.verify([])


def test_weights_follow_from_criteria(written: Written) -> None:
    def change(one: dict[str, Any]) -> None:
        if one["body"].get("round") == 2:
            one["rows"]["north"]["prior"] = one["rows"]["north"]["weight"] = 0.9

    (fault,) = resigned(written, change)
    assert (
        "Sizes, seed 1, round 2: north has the prior weight 0.9, its criteria give 0.333" in fault
    )


def test_a_weight_is_the_prior_where_nothing_else_is_asked(written: Written) -> None:
    def change(one: dict[str, Any]) -> None:
        if one["body"].get("round") == 2:
            one["rows"]["north"]["weight"] = 0.9

    (fault,) = resigned(written, change)
    assert "north has the weight 0.9" in fault


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row["criteria"].update(dataset_size=99.0),
        lambda row: row["signed"]["claim"]["criteria"].update(dataset_size=99.0),
        lambda row: row["signed"]["claim"].update(criteria={}),
        lambda row: row.update(signed=None),
        lambda row: row["signed"]["claim"].update(seed=2),
    ],
)
def test_the_coordinator_cannot_invent_criteria(
    written: Written, change: Callable[[dict[str, Any]], None]
) -> None:
    def in_round_2(one: dict[str, Any]) -> None:
        if one["body"].get("round") == 2:
            change(one["rows"]["north"])

    found = resigned(written, in_round_2)
    assert found
    assert "round 2 of Sizes: north" in found[0]


@pytest.mark.parametrize("key", ["method", "criteria", "priority", "seed"])
def test_a_signed_line_of_another_form_is_a_fault(written: Written, key: str) -> None:
    def change(one: dict[str, Any]) -> None:
        one["body"].pop(key, None)

    (fault,) = resigned(written, change)
    assert "another form" in fault


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (4, "1 rounds of Sizes, seed 1 before round 4 have no line"),
        (10**30, "have no line"),
        (2, "round 2 of Sizes, seed 1 is there again"),
        (3.5, "no round has the number 3.5"),
    ],
)
def test_rounds_follow_each_other(written: Written, number: float, fault: str) -> None:
    def change(one: dict[str, Any]) -> None:
        if one["body"].get("round") == 3:
            one["body"]["round"] = number

    (found,) = resigned(written, change)
    assert fault in found


def test_an_experiment_with_foreign_code_is_not_run(keys: Keys, tmp_path: Path) -> None:
    marker = tmp_path / "PWNED"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w')")
    written = Written(tmp_path, keys, {**EXPERIMENT, "plugins": ["evil"]})
    (fault,) = written.verify()
    assert "plugins" in fault
    assert not marker.exists()


def test_another_experiment_or_other_members_are_faults(written: Written, keys: Keys) -> None:
    (tmp := written.experiment).write_text(tomli_w.dumps({**EXPERIMENT, "rounds": 4}))
    (fault,) = written.verify()
    assert "not the experiment of this record" in fault
    tmp.write_text(tomli_w.dumps(EXPERIMENT))
    written.members = {**written.members, "north": keys.private("doctor").public_key()}
    (fault,) = written.verify()
    assert "members' keys" in fault


def test_a_crash_between_rows_and_line(written: Written) -> None:
    path = written.folder / LINES
    all_lines = path.read_bytes().splitlines(keepends=True)
    for end in (b"", all_lines[-1][:40]):
        path.write_bytes(b"".join(all_lines[:-1]) + end)
        record = Record(written.folder, written.coordinator, SECRET)
        assert path.read_bytes() == b"".join(all_lines)
        assert written.verify() == []
        record.head()
    rows = written.folder / ROWS
    rows.write_bytes(rows.read_bytes() + b'{"body":')
    Record(written.folder, written.coordinator, SECRET).round_done({"round": 4}, {})
    assert len(read(rows)) == 5


def test_statements(written: Written, tmp_path: Path) -> None:
    path = tmp_path / "north.jsonl"
    trusted = written.coordinator.public_key()

    def found(content: list[dict[str, Any]], site: str = "north") -> list[str]:
        path.write_bytes(b"".join(encode(one) + b"\n" for one in content))
        rounds = [[1, number] for number in (1, 2, 3)]
        summary = {"heads": written.heads, "rounds": rounds}
        return list(statement_faults(path, site, trusted, summary))

    own = list(statement(written.folder, "north"))
    assert found(own) == []
    assert "40.0" not in json.dumps(own)  # of another member
    assert any("2 heads" in fault for fault in found(own[:1]))
    assert any("trained in round 3 of seed 1" in fault for fault in found(own[:3]))
    assert found([own[0], own[2], own[1], own[3]])
    changed = json.loads(json.dumps(own))
    changed[2]["row"]["weight"] = 0.9
    assert "row is not the one" in found(changed)[0]
    changed[2]["row"] = None
    assert "missing" in found(changed)[0]
    assert found(own, "south")
    changed[2] = {"line": {"body": {}, "signature": "00"}}
    assert "not signed" in found(changed)[0]


def test_the_rows_cannot_be_guessed_from_the_lines(written: Written) -> None:
    text = (written.folder / LINES).read_text()
    assert "50.0" not in text
    assert "weight" not in text
    trusted = written.coordinator.public_key()
    (written.folder / ROWS).write_text("7\n")
    with pytest.raises(UntrustedError):
        list(faults(written.folder, trusted, {}))

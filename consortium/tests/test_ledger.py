"""The ledger: once is once, the allowance is a count, nothing is changed."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clientwise_consortium.ledger import Ledger, LedgerError, Limits

LIMITS = Limits(a_round=2, in_all=4)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.db", begin=True)


def ask(ledger: Ledger, *questions: str, round_num: int = 1, limits: Limits = LIMITS) -> list[str]:
    return ledger.ask("A", "train", 1, round_num, questions, 0.25, limits)


def test_a_missing_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="missing"):
        Ledger(tmp_path / "ledger.db")


def test_the_key_stays(ledger: Ledger, tmp_path: Path) -> None:
    assert len(ledger.key) == 32
    assert Ledger(tmp_path / "ledger.db").key == ledger.key
    assert Ledger(tmp_path / "ledger.db", begin=True).key == ledger.key


def test_what_is_once_is_once(ledger: Ledger) -> None:
    assert ledger.note("approved", "A", question="A")
    assert not ledger.note("approved", "A", question="A")
    where = {"kind": "sum", "seed": 1, "round": 1}
    assert ledger.note("summed", "A", **where)
    assert not ledger.note("summed", "B", **where)  # also under another approval
    assert ledger.note("answered", "A")
    assert ledger.note("answered", "A")


def test_questions_are_counted_once_and_limited(ledger: Ledger) -> None:
    assert ask(ledger, "q1", "q2", "q1") == ["q1", "q2"]
    assert ask(ledger, "q1") == []
    with pytest.raises(LedgerError, match="round 1: the approval covers 2 a round"):
        ask(ledger, "q3")
    assert ask(ledger, "q3", "q4", round_num=2) == ["q3", "q4"]
    with pytest.raises(LedgerError, match="4 in all"):
        ask(ledger, "q5", round_num=3)
    assert ask(ledger, "q1", "q2") == []  # known ones are free
    assert ledger.released()["train"] == {"requests": 4, "without_noise": 0, "mu": 1.0}


def test_a_refused_request_leaves_nothing(ledger: Ledger) -> None:
    before = ledger.length
    with pytest.raises(LedgerError):
        ask(ledger, "q1", "q2", "q3")
    assert ledger.length == before


def test_mu_is_limited_over_the_approval(ledger: Ledger) -> None:
    limits = Limits(9, 9, mu_squared=0.5)
    ask(ledger, "q1", "q2", limits=limits)
    with pytest.raises(LedgerError, match="μ"):
        ask(ledger, "q3", limits=limits)
    with pytest.raises(LedgerError, match="μ"):  # without noise, under an approval with it
        ledger.ask("B", "train", 1, 1, ["q1"], None, limits)


def test_two_processes_do_not_exceed_the_limit_together(ledger: Ledger) -> None:
    def one(number: int) -> bool:
        try:
            return bool(ask(ledger, f"q{number}", limits=Limits(5, 5)))
        except LedgerError:
            return False

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(one, range(24))) == 5


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM events",
        "UPDATE events SET mu_squared = 0",
        "UPDATE secret SET key = x'00'",
        "DELETE FROM secret",
    ],
)
def test_nothing_is_changed(ledger: Ledger, tmp_path: Path, query: str) -> None:
    ask(ledger, "q1")
    with pytest.raises(sqlite3.IntegrityError, match="only grows"):
        sqlite3.connect(tmp_path / "ledger.db").execute(query)


def test_length_and_last(ledger: Ledger) -> None:
    assert (ledger.length, ledger.last("approved")) == (0, None)
    ledger.note("approved", "A", question="A")
    ledger.note("approved", "B", question="B")
    ledger.note("measured", "B", {"loss": 1.5}, question="q")
    assert (ledger.length, ledger.last("approved")) == (3, "B")
    assert ledger.answers("B", ["q", "r"]) == {"q": {"loss": 1.5}}
    assert ledger.answers("A", ["q"]) == {}


def test_a_ledger_that_was_set_back_and_grew_again_is_another_one(
    ledger: Ledger, tmp_path: Path
) -> None:
    path = next(tmp_path.glob("*.db"))
    for number in range(3):
        ledger.note("answered", "A", number)
    before = path.read_bytes()
    ledger.note("answered", "A", 3)
    four = ledger.state()
    ledger.note("answered", "A", 4)
    assert ledger.has(*four)
    path.write_bytes(before)
    assert not ledger.has(*four)
    ledger.note("answered", "A", 3)  # the same but for its time
    assert ledger.length == four[0]
    assert not ledger.has(*four)

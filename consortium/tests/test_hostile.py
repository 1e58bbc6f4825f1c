"""A hostile member, mailbox or coordinator in a whole run: it goes on, or the round is void and says why."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from clientwise.errors import RunError
from clientwise.experiment.load import load_experiment
from clientwise.hosts.flower.wire import ARRAYS, pack, unpack

from clientwise_consortium.envelope import sign
from clientwise_consortium.fixed_point import Sums, Void
from clientwise_consortium.keys import UntrustedError
from clientwise_consortium.mailbox import from_bytes, to_bytes
from clientwise_consortium.masked import Scoring, fixed_of
from clientwise_consortium.post import Post
from clientwise_consortium.record import LINES, read
from clientwise_consortium.session import HERE, ServerSide, join, split
from conftest import NAMES, Keys
from federation import Federation
from test_federation import checked

Site = Callable[[bytes], bytes]


def attempted(federation: Federation) -> Path:
    """The record of a run that may end without any accepted update."""
    with suppress(RunError):
        federation.serve()
    return federation.folder / "run-record"


def kept(record: Path) -> list[str | None]:
    return [one["body"]["kept"] for one in read(record / LINES)[1:]]


def remarks(record: Path) -> str:
    return " ".join(str(one["body"]["remarks"]) for one in read(record / LINES)[1:])


def rows(record: Path) -> list[set[str]]:
    from clientwise_consortium.verify import rounds

    return [set(found) for _, found in rounds(record)]


def test_a_mailbox_that_changes_a_members_replies(keys: Keys, tmp_path: Path) -> None:
    federation = Federation(tmp_path, keys)

    def flip(name: str, message: bytes, site: Site) -> bytes:
        reply = site(message)
        is_sealed = b'"kind":"sealed"' in reply
        return reply[:-1] + bytes([reply[-1] ^ 1]) if name == "north" and is_sealed else reply

    federation.mailbox.change = flip
    record = federation.serve()
    assert rows(record) == 3 * [{"east", "south"}]
    assert checked(federation, record) == []


def test_a_mailbox_that_gives_one_members_replies_as_anothers(keys: Keys, tmp_path: Path) -> None:
    federation = Federation(tmp_path, keys)
    last: dict[str, bytes] = {}

    def swap(name: str, message: bytes, site: Site) -> bytes:
        last[name] = site(message)
        is_sealed = b'"kind":"sealed"' in message
        return last["east"] if name == "north" and is_sealed else last[name]

    federation.mailbox.change = swap
    record = federation.serve()
    assert rows(record) == 3 * [{"east", "south"}]


def test_a_mailbox_that_repeats_and_drops(keys: Keys, tmp_path: Path) -> None:
    federation = Federation(tmp_path, keys)

    def repeat(name: str, message: bytes, site: Site) -> bytes:
        reply = site(message)
        if b'"kind":"sealed"' in message:
            again = site(message)
            assert b'"kind":"unknown"' in again
        return reply

    federation.mailbox.change = repeat
    record = federation.serve()
    assert rows(record) == 3 * [set(NAMES)]
    assert federation.ledger("north").released()["train"]["requests"] == 3
    assert federation.events("north").count("strange") == 3


def test_garbage_ends_nothing(keys: Keys, tmp_path: Path) -> None:
    federation = Federation(tmp_path, keys)

    def garbage(name: str, message: bytes, site: Site) -> bytes:
        reply = site(message)
        if name == "north" and b'"kind":"sealed"' in message:
            return secrets.token_bytes(300)
        return reply

    federation.mailbox.change = garbage
    record = federation.serve()
    assert rows(record) == 3 * [{"east", "south"}]
    node = federation.nodes["north"]
    for message in (
        b"",
        b"{}",
        b"[]\n",
        b"\xff\xfe\n",
        100_000 * b"[",
        b'{"kind":"hello"}\n',
        b'{"kind":"sealed"}\n',
    ):
        header, _ = split(node.answer(message))
        assert header == {"kind": "unknown"}


@pytest.mark.parametrize("opening", [bytes(32), b"", bytes(31)])
def test_a_member_whose_key_is_none_is_left_out(keys: Keys, tmp_path: Path, opening: bytes) -> None:
    """With a point of low order, everybody would know the shared secret."""
    federation = Federation(tmp_path, keys)

    def here(header: dict[str, Any]) -> bytes:
        parts = (header["session"], "north", header["opening"], opening.hex())
        signature = sign(keys.private("north"), HERE, *parts).hex()
        return join({"member": "north", "opening": opening.hex(), "signature": signature})

    def forged(name: str, message: bytes, site: Site) -> bytes:
        header, _ = split(message)
        return here(header) if name == "north" and header["kind"] == "hello" else site(message)

    federation.mailbox.change = forged
    record = federation.serve()
    assert rows(record) == 3 * [{"east", "south"}]


def test_a_site_that_is_restarted_in_a_run(keys: Keys, tmp_path: Path) -> None:
    federation = Federation(tmp_path, keys)
    count = 0

    def restart(name: str, message: bytes, site: Site) -> bytes:
        nonlocal count
        if name == "north" and b'"kind":"sealed"' in message:
            count += 1
            if count == 2:
                federation.restart("north")
        return site(message)

    federation.mailbox.change = restart
    record = federation.serve()
    assert rows(record) == 3 * [set(NAMES)]


def test_a_coordinator_that_lowers_noise_or_asks_more_gets_refusals(
    keys: Keys, tmp_path: Path
) -> None:
    """It runs an experiment that was not approved, with its own good key."""
    federation = Federation(tmp_path, keys)
    table = federation.experiment.read_text()
    federation.experiment.write_text(table.replace("sample_noise = 4.0", "sample_noise = 0.01"))
    from clientwise_consortium.approval import Experiment

    federation.read = Experiment.read(federation.experiment.read_bytes())
    record = attempted(federation)
    assert rows(record) == 3 * [set()]
    assert federation.ledger("north").released() == {}
    assert federation.events("north").count("refused") == 3


def test_a_ledger_that_was_set_back_is_reported(keys: Keys, tmp_path: Path) -> None:
    federation = Federation(tmp_path, keys)
    path = tmp_path / "north" / "ledger.db"
    before = path.read_bytes()
    federation.serve()
    path.write_bytes(before)
    with pytest.raises(UntrustedError, match="was set back"):
        federation.restart("north")
    (tmp_path / "north" / "ledger.last").unlink()
    federation.restart("north")
    (tmp_path / "run").rename(tmp_path / "old")  # it begins another run
    record = federation.serve()
    assert remarks(record).count("the ledger of north went back") == 1
    assert federation.events("north").count("went back") == 1


def test_replies_that_overtake_each_other_are_no_ledger_that_was_set_back(
    keys: Keys, tmp_path: Path
) -> None:
    federation = Federation(tmp_path, keys)
    side = ServerSide(keys.private("coordinator"), federation.members)
    post = Post(federation.mailbox, side, lambda: "0", {})
    post.exchange("train", {"north": b""}, 5)
    names = [post.send("train", {"north": b""})["north"] for _ in range(3)]
    pull = federation.mailbox.pull_messages
    replies = {name: list(pull([name])) for name in names}  # in order, and then read in another
    federation.mailbox.pull_messages = lambda ids: replies[next(iter(ids))]
    for name in reversed(names):
        while not post.receive([name]):
            pass
    assert post.remarks == []
    length, _ = post.ledgers["north"]
    assert length == federation.ledger("north").length


@pytest.mark.parametrize("kind", ["random", "hundredfold", "too short"])
def test_a_member_that_sends_an_impossible_part_makes_the_round_void(
    keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    changes: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "random": lambda values: torch.randint(-(2**62), 2**62, values.shape),
        "hundredfold": lambda values: 100 * values,
        "too short": lambda values: values[:-1],
    }

    honest = Sums.update
    calls = 0

    def forged(self: Sums, score: float, update: torch.Tensor) -> torch.Tensor:
        """What one member of three adds."""
        nonlocal calls
        calls += 1
        values = honest(self, score, update)
        return changes[kind](values) if calls == 2 else values

    monkeypatch.setattr(Sums, "update", forged)
    federation = Federation(tmp_path, keys, masked=True, rounds=1)
    record = attempted(federation)
    assert kept(record) != [None]
    assert "void" in remarks(record)


@pytest.mark.parametrize("step", ["key", "criteria", "update"])
def test_a_member_that_is_missing_in_a_step_makes_the_round_void_and_not_repeated(
    keys: Keys, tmp_path: Path, step: str
) -> None:
    federation = Federation(tmp_path, keys, masked=True, rounds=2)
    dropped = 0

    def restart(name: str, message: bytes, site: Site) -> bytes:
        """The site is killed when it gets this step, once."""
        nonlocal dropped
        if name == "north" and f'"purpose":"{step}"'.encode() in message and not dropped:
            dropped += 1
            federation.restart("north")
        return site(message)

    federation.mailbox.change = restart
    record = federation.serve()
    if step == "key":  # nothing had begun: it is greeted again
        assert kept(record) == [None, None]
        return
    assert kept(record)[0] is not None
    assert kept(record)[1] is None
    assert "void" in remarks(record)
    for name in NAMES:
        assert federation.events(name).count("summed") == 2


def test_a_masked_site_answers_no_plain_request_and_sums_a_round_once(
    keys: Keys, tmp_path: Path
) -> None:
    federation = Federation(tmp_path, keys, masked=True, rounds=1)
    federation.serve()
    first = {"round": 1, "seed": 1}
    assert "was summed before" in federation.ask("north", "key", first)
    for number in (0, 2, 1.0):  # no coordinator can use up rounds of other experiments
        assert "round" in federation.ask("north", "key", {"round": number, "seed": 1})
    assert federation.events("north").count("summed") == 1
    for purpose in ("train", "evaluate"):
        assert "masked sums alone" in federation.ask("north", purpose, {})
    federation.approve("north")
    federation.restart("north")  # under another approval
    assert "was summed before" in federation.ask("north", "key", first)


def test_a_coordinator_that_tells_one_member_other_sums_reads_noise(
    keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = Federation(tmp_path, keys, masked=True, rounds=1)
    exchange = Post.exchange

    def unequal(self: Post, purpose: str, contents: Any, seconds: float, facts: Any) -> Any:
        if purpose != "update":
            return exchange(self, purpose, contents, seconds, facts)
        found = {}
        for name, content in contents.items():
            sums = [facts["sums"][0] * (2 if name == "north" else 1)]
            found |= exchange(self, purpose, {name: content}, seconds, {**facts, "sums": sums})
        return found

    monkeypatch.setattr(Post, "exchange", unequal)
    record = attempted(federation)
    assert kept(record) != [None]
    assert "void" in remarks(record)


def test_a_coordinator_that_gives_the_others_a_useless_model_reads_noise(
    keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Updates that are not finite add nothing. The sum would be the last member's own update."""
    federation = Federation(tmp_path, keys, masked=True, rounds=1)
    exchange = Post.exchange
    totals: list[torch.Tensor] = []

    def useless(self: Post, purpose: str, contents: Any, seconds: float, facts: Any) -> Any:
        if purpose == "criteria":
            for name in ("east", "south"):
                request = from_bytes(contents[name])
                model = unpack(request.array_records[ARRAYS])
                request[ARRAYS] = pack(torch.full_like(model, torch.nan))
                contents = {**contents, name: to_bytes(request)}
        if purpose == "update":
            facts = {**facts, "sums": [150.0]}  # what it expects
        replies = exchange(self, purpose, contents, seconds, facts)
        if purpose == "update" and len(replies) == 3:
            totals.append(sum(fixed_of(one.content) for one in replies.values()))
        return replies

    monkeypatch.setattr(Post, "exchange", useless)
    monkeypatch.setattr(Sums, "read_criteria", lambda self, total: [150.0])
    attempted(federation)
    assert totals
    experiment = load_experiment(federation.read.for_library())
    for total in totals:
        with pytest.raises(Void):
            Scoring.of(experiment, 2.0).sums.read_update(total)

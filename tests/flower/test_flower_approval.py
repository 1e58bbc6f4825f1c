"""What a node releases in its life: approvals are events, and nothing but an approval adds to them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from approvals import approve_again
from test_flower_ledger import CONFIG, Node, content_of
from test_flower_secure import Deployment, reason_of
from test_flower_secure import _own_data as own_data

from clientwise.experiment.load import load_experiment
from clientwise.flower import client_app
from clientwise.hosts.deployment import ledger as ledger_file
from clientwise.hosts.deployment.approval import lifetime, released, withdraw
from clientwise.hosts.deployment.gate import MOST_REPEATS
from clientwise.hosts.deployment.ledger import Ledger, read

NOISE = {"epochs": 1, "batch_size": 20, "sample_clip": 1.0, "sample_noise": 3.2}
PRIVATE = CONFIG | {"training": NOISE}


def edit(node: Node, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the node's file."""
    with numpy.load(node.data) as found:
        arrays = dict(found)
    change(arrays)
    numpy.savez(node.data, **arrays)


def answers(node: Node, times: int, change: Callable[[dict[str, Any]], None]) -> list[Tensor]:
    """The different models that the same request gets, while the data change between its repetitions."""
    found: list[Tensor] = []
    for _ in range(times):
        edit(node, change)
        reply = node.train(1, 1)
        if reply.has_error():
            continue
        model = torch.tensor(content_of(reply)[0])
        if not any(torch.equal(model, one) for one in found):
            found.append(model)
    return found


def spent(node: Node) -> float:
    return sum(entry.get("cost", 0.0) for entry in read(node.ledger))


CHANCE = numpy.random.default_rng(5)


def correct_a_test_value(arrays: dict[str, Any]) -> None:
    arrays["test_inputs"][0, 0] += 0.01


def return_in_any_order(arrays: dict[str, Any]) -> None:
    order = CHANCE.permutation(60)
    for name in ("train_inputs", "train_targets"):
        arrays[name] = arrays[name][order]


def correct_a_training_value(arrays: dict[str, Any]) -> None:
    arrays["train_inputs"][0, 0] += 0.01


@pytest.mark.parametrize("change", [correct_a_test_value, return_in_any_order])
def test_a_repeated_request_has_one_answer_whatever_the_loader_does(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    """Noise that is new at every repetition averages out."""
    node = Node(tmp_path, PRIVATE)
    assert len(answers(node, 12, change)) == 1
    assert spent(node) == pytest.approx(1 / 8)


def test_every_answer_with_new_noise_is_counted(tmp_path: Path) -> None:
    node = Node(tmp_path, PRIVATE)
    assert len(answers(node, 12, correct_a_training_value)) == 2  # as many as a round may have
    assert spent(node) == pytest.approx(2 / 8)
    assert (
        "trained 2 times already, with other models or training rows"
        in node.train(1, 1).error.reason
    )


def test_without_groups_another_order_is_counted(tmp_path: Path) -> None:
    """SMALLEST_CELL=1: rows stay in the loader's order, on which the batches depend."""
    node = Node(tmp_path, PRIVATE, cell=1)
    assert len(answers(node, 12, return_in_any_order)) == 2
    assert spent(node) == pytest.approx(2 / 8)


def test_a_request_is_repeated_a_few_times(tmp_path: Path) -> None:
    """The answer is the same; the time that a row takes could be averaged."""
    node = Node(tmp_path)
    assert not any(node.train(1, 1).has_error() for _ in range(1 + MOST_REPEATS))
    assert "repeated 10 times already" in node.train(1, 1).error.reason
    assert not node.train(2, 1).has_error()


def test_the_ledger_tells_no_row(tmp_path: Path) -> None:
    """Names of requests follow from the rows: by a public hash, a row could be guessed and confirmed."""
    names = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        folder.mkdir()
        node = Node(folder, PRIVATE)
        node.train(1, 1)
        names.append([one for entry in read(node.ledger) for one in entry.get("models", ())])
    assert len(names[0]) == 1
    assert names[0] != names[1]  # the same request and rows, another node


def test_without_an_approval_nothing_is_answered(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert not node.train(1, 1).has_error()
    withdraw(Ledger(node.ledger), "the officer says so")
    assert "nothing is approved" in node.train(1, 1).error.reason
    node.ledger.unlink()
    assert "nothing is approved" in node.train(1, 1).error.reason
    assert "nothing is approved" in node.evaluate(2, 1).error.reason
    node.approve()
    node.ledger.with_name("ledger.jsonl.key").unlink()
    assert "the key of this node's ledger is missing" in node.train(1, 1).error.reason


def test_nothing_but_an_approval_grants_more(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for round_num in range(1, 5):
        for seed in (1, 2):
            assert not node.train(round_num, seed).has_error()
    (tmp_path / "agreed").write_text("")  # of version 0.2.0
    assert "trained 2 times already" in node.train(1, 3).error.reason
    withdraw(Ledger(node.ledger), "")
    assert "nothing is approved" in node.train(1, 3).error.reason
    node.approve()
    assert not node.train(1, 3).has_error()


def test_an_approval_ends_the_earlier_ones(tmp_path: Path) -> None:
    node = Node(tmp_path)
    old = node.config
    assert not node.train(1, 1).has_error()
    node.approve(CONFIG | {"name": "newer"})
    assert not node.train(1, 1).has_error()
    node.config = old
    assert "the last names another app" in node.train(1, 2).error.reason
    assert "the last names another app" in node.evaluate(2, 2).error.reason
    # The same app again: the run that began before has ended, too. Its code may be another one.
    node.config = CONFIG | {"name": "newer"}
    approve_again(node.ledger, node.config)
    assert "run 8 began under an earlier approval" in node.train(2, 1).error.reason
    node.run = 9
    assert not node.train(2, 1).has_error()


def test_an_approval_during_a_training_ends_it(tmp_path: Path) -> None:
    node = Node(tmp_path)
    loader = tmp_path / "data.py"
    loader.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from approvals import approve_again\n"
        "from clientwise.flower import load_npz\n"
        "from test_flower_ledger import CONFIG\n"
        "def load(path):\n"
        f"    approve_again({str(node.ledger)!r}, CONFIG | {{'name': 'newer'}})\n"
        "    return load_npz(path)\n"
    )
    reply = node.train(1, 1, loader=str(loader))
    assert "the last names another app" in reply.error.reason


def test_a_round_is_summed_once_over_all_experiments_and_approvals(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    """Two versions that sum a round over different cohorts would reveal one update."""
    nodes = Deployment(tiny, tmp_path)
    assert reason_of(nodes.begin(1, nodes.fresh_context(1), 3)) == "answered"
    other = nodes.table | {"name": "another version", "rounds": 4}
    nodes.trial.app = client_app(other, load=lambda path: own_data())
    approve_again(nodes.settings[1]["ledger"], other, cell=1)
    context = nodes.fresh_context(1)
    context.run_id = 2
    assert "round 3 of seed 1, and a round is summed once" in reason_of(nodes.begin(1, context, 3))
    assert reason_of(nodes.begin(1, context, 4)) == "answered"


def test_the_cell_is_that_of_the_approval(tmp_path: Path) -> None:
    """Otherwise results would be exact that were approved with noise."""
    node = Node(tmp_path)
    node.cell = 1
    assert "approved with SMALLEST_CELL=5, started with 1" in node.evaluate(2, 1).error.reason


def test_a_ledger_of_the_last_version_keeps_what_it_spent(tmp_path: Path) -> None:
    """Its approvals were hashes of a file."""
    node = Node(tmp_path)
    for path in node.ledger.parent.iterdir():
        path.unlink()
    old = {"time": "2026-01-02T03:04:05+0100", "approval": "0123456789ab", "run": "7"}
    old |= {"experiment": "ba9876543210", "seed": 1}
    asked = {"event": "asked", "models": ["a"], "asked": 1, "cost": 0.1}
    lines = [{"kind": "train", "round": 1}, {"kind": "evaluate", "round": 2}]
    text = "".join(f"\n{json.dumps(old | asked | one)}\n" for one in lines)
    node.ledger.write_text(text)
    reason = node.train(1, 1).error.reason
    assert "approvals of version 0.2.0 ended with the upgrade" in reason
    node.approve()
    assert not node.train(1, 1).has_error()
    found = read(node.ledger)
    assert released(found, "train").models == 2
    told = list(lifetime(found, load_experiment(PRIVATE), 5))
    assert "2 models trained before, 2 of them without noise, or by version 0.2.0" in told[0]


def test_the_sum_over_all_approvals_is_what_a_row_has_spent(tmp_path: Path) -> None:
    node = Node(tmp_path, PRIVATE)
    for run in range(4):
        if run:
            node.approve()
        for round_num in (1, 2, 3, 4):
            for seed in (1, 2):
                assert not node.train(round_num, seed + 10 * run).has_error()
    entries = read(node.ledger)
    one_run = (8 / 3.2**2) ** 0.5
    assert released(entries, "train").mu == pytest.approx(2 * one_run)  # √4
    first, second = lifetime(entries, load_experiment(PRIVATE), 5)
    assert f"(μ = {2 * one_run:.2g}); with this approval at most μ = 2" in first  # √5 · 0.88
    assert (
        "a test row: 0 models evaluated before; with this approval at most μ = 1, ε = 4.4" in second
    )


def test_entries_that_were_lost_are_missed(tmp_path: Path) -> None:
    """A file that was cut, rotated, or restored alone, and a line that cannot be read any more."""
    node = Node(tmp_path)
    assert not node.train(1, 1).has_error()
    whole = node.ledger.read_bytes()
    lines = whole.splitlines(keepends=True)
    for damaged in (b"".join(lines[:-2]), lines[0] + b"\xff\n" + b"".join(lines[2:])):
        node.ledger.write_bytes(damaged)
        for _ in range(3):  # what is noted of the refusals does not fill the gap
            assert "of this node's ledger are missing" in node.train(1, 1).error.reason
    node.ledger.write_bytes(whole)
    node.ledger.with_name("ledger.jsonl.count").unlink()
    assert "of this node's ledger are missing" in node.train(1, 1).error.reason
    node.approve()  # says so, and goes on
    assert read(node.ledger)[-1]["missing"] > 0
    assert not node.train(1, 1).has_error()


def test_a_disk_that_is_full_ends_in_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    write = os.write
    room = 0

    def some_bytes(file: int, content: bytes) -> int:
        """One byte a call; an error when the disk is full."""
        nonlocal room
        if room <= 0:
            raise OSError(28, "No space left on device")
        room -= 1
        return write(file, content[:1])

    monkeypatch.setattr(ledger_file.os, "write", some_bytes)
    for room in (0, 10, 200):  # noqa: B007  the next request finds so much room
        assert node.train(1, 1).error.reason.startswith("OSError")
    room = 10**6
    assert not node.train(1, 1).has_error()
    monkeypatch.undo()
    assert [entry["event"] for entry in read(node.ledger)].count("asked") == 1


def test_two_processes_make_one_key(tmp_path: Path) -> None:
    found: list[bytes] = []
    ledgers = [Ledger(tmp_path / str(number // 8) / "ledger.jsonl") for number in range(64)]

    def make(one: Ledger) -> None:
        one.make_key()
        found.append(one.key())

    threads = [Thread(target=make, args=[one]) for one in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 64
    assert len(set(found)) == 8


def test_a_clock_that_is_set_back_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    assert not node.train(1, 1).has_error()

    class Past(ledger_file.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls(1999, 1, 1)

    monkeypatch.setattr(ledger_file, "datetime", Past)
    node.approve()
    assert not node.train(1, 1).has_error()
    assert not node.train(1, 2).has_error()
    assert "trained 2 times already" in node.train(1, 3).error.reason

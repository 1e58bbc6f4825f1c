"""Whole runs of real processes: unpatched Flower, nginx, three sites, a coordinator, each in a network namespace.

Three runs, in which parties misbehave, and die by SIGKILL. What they do in which round is in the runs' plans.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.version import package_version

from conftest import NAMES, Keys
from federation import Federation
from processes import HIDDEN, Processes, imported, why_not

pytestmark = [pytest.mark.flower, pytest.mark.timeout(420)]
SECONDS = 15.0  # for the replies to a message; Flower's services look for messages every three
FLOWER = {"clients": NAMES, "input_shape": [4], "num_classes": 2, "reply_seconds": SECONDS}


@pytest.fixture(scope="module")
def context() -> Iterator[Any]:
    if reason := why_not():
        pytest.skip(reason)
    with imported() as found:
        yield found


@pytest.fixture
def begin(context: Any, keys: Keys, tmp_path: Path) -> Iterator[Callable[..., Processes]]:
    begun: list[Processes] = []

    def start(plan: dict[str, Any], **changes: Any) -> Processes:
        federation = Federation(tmp_path, keys, flower=FLOWER, **changes)
        if changes.get("evaluation"):  # south approves exact results
            for name in NAMES:
                federation.approve(name, evaluations=20, cell=1 if name == "south" else 5)
        parties = Processes(federation, context, str(len(begun)), plan)
        begun.append(parties)
        parties.begin()
        return parties

    yield start
    for one in begun:
        one.end()


# Parts of reasons
IMPOSSIBLE = "is possible"  # the end of a sentence about a sum
NOT_APPROVED = "those of no method that was approved"
NOT_BEGUN = "no round was begun"


def nothing_more_was_released(parties: Processes) -> None:
    """By the sites' ledgers, which also show that rounds were summed once."""
    approved = parties.federation.read
    for name in NAMES:
        trained = parties.federation.ledger(name).released()["train"]
        assert trained["without_noise"] == 0
        assert trained["requests"] <= approved.trainings
        assert trained["mu"] <= approved.mu


def used_or_void(parties: Processes) -> dict[int, str]:
    """Why a round of masked sums is void, by its number; "": its sum was used."""
    found = {}
    for line in parties.lines():
        (void, *more) = [one for one in line["remarks"] if one.startswith("void: ")] or [""]
        assert (line["kept"] is None) == (not void), line
        assert not more, line
        found[line["round"]] = void
    assert list(found) == list(range(1, len(found) + 1))
    return found


def test_plain_rounds_over_a_mailbox_that_disturbs(begin: Callable[..., Processes]) -> None:
    """All updates have noise, and the results of two sites. The mailbox drops, repeats, and holds back."""
    deaths = [["server: before it signs"], ["north: train"]]
    plan = {"mailbox": "disturbs", "2": "noise", "3": "twice", "deaths": deaths}
    parties = begin(plan, rounds=6, evaluation={"clients_every": 3})
    strangers_are_refused(parties)
    doors_are_closed(parties)
    parties.ends()
    assert sorted(parties.deaths) == ["node-north", "server"]
    assert parties.who_ran_the_bundle() == {"flwr"}
    assert parties.verified() == []
    assert [line["round"] for line in parties.lines()] == [1, 2, 3, 4, 5, 6]
    remarks = str([line["remarks"] for line in parties.lines()])
    assert "the coordinator was interrupted before it signed this line" in remarks
    assert "went back" not in remarks
    assert parties.used(2) == set()
    # The mailbox chooses whose letters are lost
    assert len(set.union(*(parties.used(number) for number in (1, 3, 4, 5, 6)))) >= 2

    nothing_more_was_released(parties)
    refused = [one for name in NAMES for one in parties.refusals(name)]
    assert any(NOT_APPROVED in one for one in refused)
    assert any("the approval covers 2 a round" in one for one in refused)
    answers = [sent for name in NAMES for sent in parties.answers(name).values()]
    assert max(map(len, answers)) > 1  # to one question
    assert all(len(set(sent)) <= 1 for sent in answers)  # with the same noise
    tested = {name: parties.federation.ledger(name).released().get("evaluate") for name in NAMES}
    assert any(tested.values())
    for name, one in tested.items():
        if one is not None:
            assert one["without_noise"] == (one["requests"] if name == "south" else 0)

    disturbed = json.loads((parties.folder / "disturbed.json").read_text())
    assert set(disturbed) == {"held back", "repeated", "requests dropped", "answers dropped"}
    nothing_was_read(parties)


def nothing_was_read(parties: Processes) -> None:
    carried = (parties.folder / "read-by-the-mailbox").read_bytes()
    assert len(carried) > 20_000
    assert b'{"kind":"sealed"}' in carried
    for word in (b"dataset_size", b"criterion", b"refused", b"ledger", b"sample_noise", b"roster"):
        assert word not in carried


DEEDS = {  # what the coordinator or a member does, and a word of the reason why the round is void; "": it is not
    "honest": "",
    "roster": "the roster must have every member",
    "broadcast": IMPOSSIBLE,
    "sums": IMPOSSIBLE,
    "noise": NOT_APPROVED,
    "twice": "",
    "random": IMPOSSIBLE,
    "hundredfold": IMPOSSIBLE,
    "replayed": IMPOSSIBLE,
    "others": "not an envelope of this sender",
    "honest again": "",
}


def test_masked_rounds_in_which_coordinator_and_member_cheat(
    begin: Callable[..., Processes],
) -> None:
    plan = {str(number): deed for number, deed in enumerate(DEEDS, 1)}
    parties = begin({"mailbox": "reads", **plan}, masked=True, rounds=len(DEEDS))
    parties.ends()
    assert parties.who_ran_the_bundle() == {"flwr"}
    assert parties.verified() == []
    for why, (deed, reason) in zip(used_or_void(parties).values(), DEEDS.items(), strict=True):
        assert bool(why) == bool(reason), deed
        # A sum of a criterion that is noise may be a possible one: then the members refuse it, or the next sum is not
        assert reason in why or (deed == "broadcast" and "own part" in why), deed

    nothing_more_was_released(parties)
    again = json.loads((parties.folder / "again.json").read_text())
    assert [NOT_BEGUN in reason for reason in again.values()] == 3 * [True]
    for name in NAMES:
        assert parties.federation.events(name).count("summed") == len(DEEDS)
        refused = parties.refusals(name)
        for reason in ("the roster must have every member", NOT_APPROVED, NOT_BEGUN):
            assert len([one for one in refused if reason in one]) == 1, (name, reason)
    nothing_was_read(parties)


def test_masked_rounds_in_which_every_party_dies(begin: Callable[..., Processes]) -> None:
    """North's machine in every step, after its work and before its reply; the coordinator before and after a sum."""
    deaths = ["north: key", "north: criteria", "north: update"]
    deaths += ["server: in the round", "server: before it signs"]
    parties = begin({"deaths": [deaths]}, masked=True, rounds=8)
    parties.ends()
    assert parties.deaths == [*3 * ["node-north"], *2 * ["server"]]
    assert parties.who_ran_the_bundle() == {"flwr"}
    assert parties.verified() == []
    reasons = [why for why in used_or_void(parties).values() if why]
    for step in ("key", "criteria", "update"):
        assert f"void: {step}: north: no reply in time" in reasons
    assert len([why for why in reasons if "was summed before, and is summed once" in why]) == 1
    *_, last = parties.lines()
    assert last["kept"] is None
    (unsigned,) = [line for line in parties.lines() if "interrupted" in str(line["remarks"])]
    assert unsigned["kept"] is None

    nothing_more_was_released(parties)
    begun = parties.federation.events("east").count("summed")
    assert begun == len(parties.lines())
    assert parties.federation.events("north").count("summed") <= begun


def strangers_are_refused(parties: Processes) -> None:
    """A local stranger has not the secret that the services share."""
    asked = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP, TaskType.CLIENT_APP])
    (parties.folder / "asked").write_bytes(asked.SerializeToString())
    command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--data-binary", "@asked"]
    for name in ("content-type: application/protobuf", "accept: application/protobuf"):
        command += ["-H", name]
    for name, value in (("name", "flwr"), ("version", package_version)):
        command += ["-H", f"flwr-package-{name}: {value}"]
    command += ["-H", "flwr-component-name: stranger"]
    url = f"http://127.0.0.1:{HIDDEN}/v1/runtime/acquire-task"
    assert parties.at("coordinator", [*command, url]).stdout == "401"


def doors_are_closed(parties: Processes) -> None:
    """The commands of the guide, at a site."""
    guide = (Path(__file__).parents[1] / "docs" / "guide.md").read_text()
    (block,) = re.findall(r"<!-- doors -->\n```\n(.*?)```", guide, re.DOTALL)
    answers = []
    for line in block.replace("coordinator.clientwise", "10.77.0.1").splitlines():
        done = parties.at("north", ["sh", "-c", line])
        answers.append(done.stdout.strip() if done.returncode == 0 else "fails")
    *closed, last = answers
    assert closed == ["404", "404", "404", "fails", "403"]
    assert last[0] == "4", last
    assert parties.status("POST", "/v1/fleet/pull-messages/../../runtime/acquire-task") == 404

"""Deadlines with real processes and TLS: nobody waits for a slow client; its update is kept."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs clientwise[deployment]")

from federation import Federation

import clientwise as cw
import processes
from clientwise.record.lock import is_locked

pytestmark = [pytest.mark.flower, pytest.mark.timeout(3600)]  # the waits have limits of their own


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    one = Federation(tmp_path, ["ward-a", "ward-b", "ward-c"])
    yield one
    one.stop()


def test_a_slow_process_is_not_waited_for_and_its_update_counts_when_it_comes(
    federation: Federation,
) -> None:
    deadline = (
        60 * processes.pace()
    )  # seconds: on a busy machine a process takes half of that to start
    sleep = 1.5 * deadline
    method = {"name": "timely", "criteria": ["dataset_size", "staleness"], "score": "product"}
    federation.configure(
        {
            "rounds": 200,  # more than the others train until the late update comes
            "engine": "flower",
            "evaluation": {"test_fraction": 0.0, "clients_every": 0},
            "methods": [method | {"pace": {"deadline": deadline, "late": "keep"}}],
        }
    )
    federation.set_moods("ward-c", "", f"sleep {sleep}")
    federation.start()
    federation.wait_for_nodes()
    number = federation.begin()
    where = "client = 2 AND criterion = 'staleness'"
    came_late = f"SELECT 1 FROM criteria WHERE {where} AND round_num > 2"
    federation.wait_for(lambda: federation.query(came_late) != [], 900, "the late update")
    federation.script("stop.sh", number)
    federation.wait_for(lambda: not is_locked(federation.run_folder), 120, "the run to stop")

    run = cw.Run(federation.run_folder)
    ends = [0.0, *run.times("timely", run.first_seed("timely")).values()]
    longest = max(end - begin for begin, end in pairwise(ends))
    assert longest < deadline + 20 * processes.pace()
    staleness = dict(federation.query(f"SELECT round_num, raw FROM criteria WHERE {where}"))
    ages = {round_num: (1 / raw) ** 2 - 1 for round_num, raw in staleness.items()}
    assert 2 not in ages  # the round in which it slept went on without it
    late = min(round_num for round_num in ages if round_num > 2)
    assert ages[late] == pytest.approx(late - 2)
    assert federation.refused(2) == {}
    (took,) = federation.query(
        f"SELECT seconds FROM participants WHERE client = 2 AND round_num = {late}"
    )
    assert took[0] > sleep

"""Deadlines hold with processes that are really slow, and what comes late is kept, on a federation with TLS."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from federation import Federation

import clientwise as cw

pytestmark = [pytest.mark.flower, pytest.mark.timeout(1500)]
DEADLINE = 60  # seconds: on a busy machine a process takes half of that to start
SLEEP = 90


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    one = Federation(tmp_path, ["ward-a", "ward-b", "ward-c"])
    yield one
    one.stop()


def test_a_slow_process_is_not_waited_for_and_its_update_counts_when_it_comes(federation: Federation) -> None:
    method = {"name": "timely", "criteria": ["dataset_size", "staleness"], "score": "product"}
    federation.configure(
        {
            "rounds": 12,  # enough that it comes while others still train, however fast they are
            "engine": "flower",
            "evaluation": {"test_fraction": 0.0, "clients_every": 0},
            "methods": [method | {"pace": {"deadline": float(DEADLINE), "late": "keep"}}],
        }
    )
    federation.set_moods("ward-c", "", f"sleep {SLEEP}")
    federation.start()
    federation.wait_for_nodes()
    federation.begin()
    federation.wait_for(lambda: federation.rounds() == 12, 900, "all rounds")
    federation.wait_for(lambda: cw.Run(federation.run_folder).finished, 60, "the run to be finished")

    run = cw.Run(federation.run_folder)
    ends = [0.0, *run.times("timely", run.first_seed("timely")).values()]
    assert max(end - begin for begin, end in pairwise(ends)) < DEADLINE + 20
    ages = {
        round_num: (1 / raw) ** 2 - 1
        for round_num, raw in federation.query(
            "SELECT round_num, raw FROM criteria WHERE client = 2 AND criterion = 'staleness' ORDER BY 1"
        )
    }
    assert 2 not in ages  # the round in which it slept went on without it
    late = min(round_num for round_num in ages if round_num > 2)
    assert ages[late] == pytest.approx(late - 2)
    assert federation.refused(2) == {}
    (took,) = federation.query(f"SELECT seconds FROM participants WHERE client = 2 AND round_num = {late}")
    assert took[0] > SLEEP

"""How rounds of lanes follow each other: none lost, none written twice, nobody left waiting."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import clientwise as cw
from clientwise.engine.local import LocalEngine
from clientwise.experiment.running import lanes
from clientwise.experiment.trackers import Progress
from recorded import everything


def alone(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "rounds": 5, "seeds": [1], "methods": [{"name": "FedAvg"}]}


def rounds(folder: Path) -> list[int]:
    return cw.Run(folder).frame("rounds")["round"].tolist()


class Busy(LocalEngine):
    """Never finds the time to let anybody write."""

    idle_work = property(lambda self: None, lambda self, value: None)  # type: ignore[assignment]


@pytest.mark.bits
def test_an_engine_that_finds_no_time_loses_no_round(tiny: dict[str, Any], tmp_path: Path) -> None:
    def connect(engine: LocalEngine, seed: int) -> LocalEngine:
        engine.__class__ = Busy
        return engine

    told: list[int] = []
    engines = nullcontext(connect)
    cw.run(
        alone(tiny),
        tmp_path / "run",
        engines=engines,
        on_round=lambda _, one: told.append(one.record.round_num),
    )
    assert rounds(tmp_path / "run") == told == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("short", [0.0, 60.0], ids=["written at once", "written within the next"])
def test_what_fails_in_a_round_leaves_those_before_it(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: float
) -> None:
    monkeypatch.setattr(lanes, "SHORT", short)
    whole = cw.Run(cw.run(alone(tiny), tmp_path / "whole"))
    original = LocalEngine.evaluate_server

    def fail(self: LocalEngine, models: Any, part: Any) -> Any:
        if len(told) == 3:
            raise OSError("out of luck")
        return original(self, models, part)

    told: list[int] = []
    monkeypatch.setattr(LocalEngine, "evaluate_server", fail)
    with pytest.raises(OSError, match="out of luck"):
        cw.run(
            alone(tiny), tmp_path / "run", on_round=lambda _, one: told.append(one.record.round_num)
        )
    assert rounds(tmp_path / "run") == told == [1, 2, 3]
    monkeypatch.setattr(LocalEngine, "evaluate_server", original)
    again = cw.Run(cw.run(alone(tiny), tmp_path / "run", resume=True))
    assert everything(again) == everything(whole)


@pytest.mark.alone
def test_the_time_of_a_round_and_of_its_clients_is_theirs(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "SHORT", 60.0)
    clock, spent = time.perf_counter, 0.0

    def look(_: cw.Run, progress: Progress) -> None:
        nonlocal spent
        spent += 1000.0  # as if looking took so long

    monkeypatch.setattr(time, "perf_counter", lambda: clock() + spent)
    run = cw.Run(cw.run(alone(tiny), tmp_path / "run", on_round=look))
    for name in ("rounds", "weights"):
        assert run.frame(name)["seconds"].max() < 60


def test_interrupted_before_all_lanes_have_begun_nobody_waits_for_the_others(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, submitted = ThreadPoolExecutor.submit, []

    def interrupted(self: ThreadPoolExecutor, work: Any, *given: Any) -> Any:
        if getattr(work, "__name__", "") == "run_round":
            if len(submitted) == 2:
                raise KeyboardInterrupt
            submitted.append(work)
        return submit(self, work, *given)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    tiny["seeds"] = [1, 2]
    with pytest.raises(KeyboardInterrupt):
        cw.run(tiny, tmp_path / "run")
    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
    assert rounds(tmp_path / "run") == []
    cw.run(tiny, tmp_path / "run", resume=True)
    assert len(rounds(tmp_path / "run")) == 4 * tiny["rounds"]


@pytest.mark.bits
def test_lanes_that_train_on_the_server_set_do_not_wait_for_each_other(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    """FLTrust's server trains in the middle of a round: lanes of two seeds must still meet."""
    folder = cw.run(
        tiny | {"rounds": 2, "seeds": [1, 2, 3], "methods": ["FLTrust"]}, tmp_path / "run"
    ).folder
    assert cw.Run(folder).finished

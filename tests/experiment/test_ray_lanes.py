from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from test_runner import content

import clientwise as cw
import shards_here
from clientwise.data.folder import DataError
from clientwise.engine.scheduler import Scheduler
from clientwise.engine.shards import answers
from clientwise.errors import ClientwiseError
from clientwise.experiment.running import runner
from clientwise.experiment.running.lanes import Lane, run_lanes
from clientwise.experiment.running.ray_lanes import connected_to_ray
from test_trackers import assert_same, stored, tensorboard


@pytest.mark.slow  # real processes of Ray, each of which imports PyTorch
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_on_ray_the_run_is_the_same_and_trackers_follow_it(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    tiny["seeds"] = [1, 2]
    here = cw.run({**tiny, "workers": 1}, tmp_path / "here")
    there = cw.run(
        {**tiny, "workers": "ray", "trackers": ["tensorboard"]}, tmp_path / "there"
    ).folder
    assert content(there) == content(here)
    for method in ("FedAvg", "all of it"):
        for seed in (1, 2):
            assert_same(
                tensorboard(there / "tensorboard" / f"{method}-seed{seed}"),
                stored(there, method, seed),
            )
    gc.collect()  # Ray leaves files open; warnings about them are ignored only in this test


def test_without_ray_it_says_what_to_install(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ClientwiseError, match=r"clientwise\[ray\]"):
        cw.run({**tiny, "workers": "ray"}, tmp_path / "run")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "127.0.0.1:99999", "elsewhere"])
def test_an_address_without_a_cluster_is_named_at_once(
    address: str, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ClientwiseError, match=rf"RAY_ADDRESS = '{re.escape(address)}'.*--resume"):
        cw.run({**tiny, "workers": "ray"}, tmp_path / "run")
    monkeypatch.delenv("RAY_ADDRESS")
    cw.run({**tiny, "workers": 1}, tmp_path / "run", resume=True)


@pytest.mark.slow  # real processes of Ray
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_failures_on_ray_and_sigterm_end_a_run_as_without_it() -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")

    class Failing:  # here, so that it is sent to Ray's processes, which cannot import this file
        def refuse(self) -> None:
            raise DataError("no such file")

        def end(self) -> None:
            os._exit(1)

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as the command does
    try:
        with connected_to_ray():
            failing = ray.remote(Failing).remote()
            with pytest.raises(ClientwiseError, match=r"^in a process of Ray: no such file$"):
                answers([failing.refuse.remote()])
            with pytest.raises(
                ClientwiseError, match=r"^a process of Ray has ended \(.*--resume \(resume=True"
            ):
                answers([failing.end.remote()])
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    gc.collect()  # Ray leaves files open; warnings about them are ignored only in this test


def test_lanes_are_told_where_this_process_finds_the_data(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes of a cluster have another current folder, and other environment variables."""
    told = []
    shards_here.without_ray(monkeypatch, count=0)  # no room for shards
    monkeypatch.setattr(runner, "run_on_ray", lambda _, config, *__: told.append(config))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLIENTWISE_DATA", raising=False)
    with pytest.raises(ClientwiseError):
        cw.run({**tiny, "workers": "ray"}, tmp_path / "current")
    monkeypatch.setenv("CLIENTWISE_DATA", "named")
    with pytest.raises(ClientwiseError):
        cw.run({**tiny, "workers": "ray"}, tmp_path / "environment")
    assert [one["data_dir"] for one in told] == [str(tmp_path), str(tmp_path / "named")]


def test_lanes_keep_their_order_where_some_are_in_shards(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports compare with the first method, whichever ran first."""

    def run_here(lanes: Sequence[Lane], _config: Any, _data: Any) -> None:
        for lane in lanes:
            run_lanes([lane], Scheduler(lane.engine.executor))

    shards_here.without_ray(monkeypatch, count=2)
    monkeypatch.setattr(runner, "run_on_ray", run_here)
    methods = ["FedAvg", "Pooled", "SCAFFOLD"]
    folder = cw.run({**tiny, "workers": "ray", "methods": methods}, tmp_path / "run").folder
    assert cw.Run(folder).methods == methods

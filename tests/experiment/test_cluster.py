from __future__ import annotations

import gc
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

import clientwise as cw
import shards_here
from clientwise.data.folder import DataError
from clientwise.engine.shards import answers
from clientwise.errors import ClientwiseError
from clientwise.experiment.running.cluster import connected_to_ray


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


def test_lanes_keep_their_order_where_some_are_in_shards(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports compare with the first method."""
    shards_here.without_ray(monkeypatch, count=2)
    methods = ["FedAvg", "Pooled", "SCAFFOLD"]
    folder = cw.run({**tiny, "workers": "ray", "methods": methods}, tmp_path / "run").folder
    assert cw.Run(folder).methods == methods

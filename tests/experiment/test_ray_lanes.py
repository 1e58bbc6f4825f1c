from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_runner import content

import clientwise as cw
from clientwise.errors import ClientwiseError
from clientwise.experiment.config import load_experiment
from clientwise.experiment.describe import describe
from test_trackers import assert_same, stored, tensorboard


@pytest.mark.slow  # real processes of Ray, each of which imports PyTorch
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_on_ray_the_run_is_the_same_and_trackers_follow_it(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    tiny["seeds"] = [1, 2]
    here = cw.run({**tiny, "workers": 1}, tmp_path / "here")
    there = cw.run({**tiny, "workers": "ray", "trackers": ["tensorboard"]}, tmp_path / "there")
    assert content(there) == content(here)
    for method in ("FedAvg", "all of it"):
        for seed in (1, 2):
            assert_same(
                tensorboard(there / "tensorboard" / f"{method}-seed{seed}"),
                stored(there, method, seed),
            )


def test_without_ray_it_says_what_to_install(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ClientwiseError, match=r"clientwise\[ray\]"):
        cw.run({**tiny, "workers": "ray"}, tmp_path / "run")


def test_check_says_what_shards_send(tiny: dict[str, Any]) -> None:
    def said(**changes: Any) -> str:
        lines = describe(load_experiment(tiny | {"workers": "ray"} | changes))
        (line,) = [line for line in lines if line.startswith("on Ray")]
        return line

    assert "no models" in said()
    assert "every model, 0.0 MB a round, for Recommended" in said(methods=["FedAvg", "Recommended"])
    assert "for FedAvg" in said(methods=["FedAvg"], evaluation={"counterfactuals": True})

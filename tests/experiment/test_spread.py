from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_runner import content

import clientwise as cw
from clientwise.errors import ClientwiseError, ConfigError


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_on_ray_the_run_is_the_same(tiny: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    tiny["seeds"] = [1, 2]
    here = cw.run({**tiny, "workers": 1}, tmp_path / "here")
    there = cw.run({**tiny, "workers": "ray"}, tmp_path / "there")
    assert content(there) == content(here)


def test_without_ray_it_says_what_to_install(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ClientwiseError, match=r"clientwise\[ray\]"):
        cw.run({**tiny, "workers": "ray"}, tmp_path / "run")


def test_trackers_follow_one_lane_at_a_time(tiny: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one lane at a time"):
        cw.run({**tiny, "workers": "ray", "trackers": ["tensorboard"]}, tmp_path / "run")
    assert not (tmp_path / "run").exists()

"""A checkpoint holds all of a lane's state, to the bit; one that does not fit is refused with what to do."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

import clientwise as cw
from clientwise.core.objective.loss import CrossEntropy, RobustLoss
from clientwise.core.types import ServerState
from clientwise.errors import RunError
from clientwise.record.checkpoint import load_checkpoint, save_checkpoint

pytestmark = pytest.mark.bits

FIRST = ServerState(0, torch.zeros(5), CrossEntropy(), {"criteria": {"trust": torch.ones(3)}})


@pytest.fixture
def state() -> ServerState:
    torch.manual_seed(1)
    return ServerState(
        round_num=7,
        model=torch.randn(5),
        loss=CrossEntropy(class_weights=(0.1, 1 / 3)),
        memory={
            "criteria": {"trust": torch.rand(3)},
            "server_step": {"sums": torch.rand(2), "1": {"first": torch.randn(5)}},
        },
        priority=("size", "trust"),
        quality=0.1 + 0.2,
    )


def test_what_is_loaded_is_what_was_saved(state: ServerState, tmp_path: Path) -> None:
    for one in (
        state,
        replace(
            state,
            priority=None,
            quality=None,
            memory={"criteria": state.kept("criteria")},
            loss=RobustLoss(shape=0.7),
        ),
    ):
        save_checkpoint(tmp_path / "lane", one, {"4": one.model + 1})
        loaded, engine_state = load_checkpoint(
            tmp_path / "lane", replace(FIRST, priority=one.priority)
        )
        assert (loaded.round_num, loaded.loss, loaded.priority) == (
            one.round_num,
            one.loss,
            one.priority,
        )
        assert loaded.quality == one.quality
        assert torch.equal(loaded.model, one.model)
        torch.testing.assert_close(loaded.memory, one.memory, rtol=0, atol=0)
        assert torch.equal(engine_state["4"], one.model + 1)


def test_one_that_cannot_be_read_is_refused(state: ServerState, tmp_path: Path) -> None:
    path = tmp_path / "lane"
    save_checkpoint(path, state, {})
    tensors, whole = (
        {"model": state.model, "criteria/trust": state.kept("criteria")["trust"]},
        path.read_bytes(),
    )
    for content in (
        b"garbage",
        whole[:-3],
        save(tensors),
        save(tensors, {"state": "{"}),
        save(tensors, {"state": json.dumps({"round_num": 7})}),
        save(
            tensors,
            {
                "state": json.dumps(
                    {"round_num": "7", "loss": {}, "priority": None, "quality": None}
                )
            },
        ),
    ):
        path.write_bytes(content)
        with pytest.raises(
            RunError, match=r"lane: not a checkpoint of clientwise \(.*\); delete it to start"
        ):
            load_checkpoint(path, FIRST)
        path.unlink()
    path.mkdir()
    with pytest.raises(RunError, match="lane: not a file; delete it to start"):
        load_checkpoint(path, FIRST)


def test_one_of_another_shape_or_without_numbers_is_refused(
    state: ServerState, tmp_path: Path
) -> None:
    path = tmp_path / "lane"
    for wrong, reason in (
        (replace(state, model=torch.zeros(6)), r"model is of \[6\], not of \[5\]"),
        (replace(state, model=torch.zeros(5, dtype=torch.float64)), "model"),
        (
            replace(state, memory={"criteria": {"trust": torch.ones(4)}}),
            r"criteria/trust is of \[4\], not of \[3\]",
        ),
        (
            replace(state, model=torch.tensor([0.0, 1.0, float("nan"), 0.0, 0.0])),
            "its model has NaN or Inf",
        ),
        (replace(state, memory={}), r"criteria/trust is missing"),
        (replace(state, priority=("size",)), "not a checkpoint of this method"),
    ):
        save_checkpoint(path, wrong, {})
        with pytest.raises(RunError, match=f"{reason}.*; delete it to start this lane again"):
            load_checkpoint(path, replace(FIRST, priority=state.priority))


def test_the_checkpoint_of_another_lane_or_run_is_refused(tmp_path: Path) -> None:
    config = {
        "name": "owner",
        "rounds": 2,
        "data": "digits",
        "partition": {"name": "iid", "clients": 4},
        "model": "linear",
        "methods": ["FedAvg", "Uniform"],
    }
    for name in ("one", "other"):
        cw.run(config, tmp_path / name)
    lane = Path("checkpoints") / "lane-1.safetensors"
    for source in ("one/checkpoints/lane-2.safetensors", "other/checkpoints/lane-1.safetensors"):
        shutil.copytree(tmp_path / "one", tmp_path / "copy")
        shutil.copy(tmp_path / source, tmp_path / "copy" / lane)
        with pytest.raises(RunError, match="the checkpoint of another run, method or seed"):
            cw.run(config | {"rounds": 3}, tmp_path / "copy", resume=True)
        shutil.rmtree(tmp_path / "copy")
    shutil.copytree(tmp_path / "one", tmp_path / "moved")
    cw.run(config | {"rounds": 3}, tmp_path / "moved", resume=True)  # a whole folder may move

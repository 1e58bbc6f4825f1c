"""Rounds on a virtual clock: what is late, what is kept, and that it is the same however it is computed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import clientwise as cw
from clientwise.core.clock import DROPPED_OUT
from clientwise.core.round import first_state, run_round
from clientwise.core.types import RoundRecord, Task
from clientwise.engine.timed import TimedEngine
from clientwise.errors import ClientwiseError, ConfigError
from clientwise.experiment.build.data import build_data, load_samples
from clientwise.experiment.build.engine import build_engine, build_executor, build_plan
from clientwise.experiment.load import load_experiment
from clientwise.experiment.trackers import Progress
from engine_contract import check_engine

pytestmark = pytest.mark.bits

SLOW = {"speed": {"name": "lognormal", "median": 50.0, "sigma": 1.5}, "up": 2000.0}
PACES: dict[str, dict[str, Any]] = {
    "all": {},
    "over-selection": {"extra": 0.7},
    "deadline": {"deadline": 4.0},
    "late ones kept": {"deadline": 4.0, "late": "keep"},
    "buffered": {"buffer": 2},
}


@pytest.fixture
def config(tiny: dict[str, Any]) -> dict[str, Any]:
    methods = [{"name": name, "pace": pace} for name, pace in PACES.items()]
    return tiny | {"rounds": 6, "checkpoint_seconds": 0.0, "devices": SLOW, "methods": methods}


def engine_of(config: dict[str, Any], name: str) -> TimedEngine:
    experiment = load_experiment(config)
    data, hostile = build_data(experiment, load_samples(experiment), 1)
    (method,) = (one for one in experiment.build_methods() if one.name == name)
    executor = build_executor(experiment, data.samples, torch.device("cpu"))
    engine = build_engine(experiment, data, hostile, 1, executor, method)
    assert isinstance(engine, TimedEngine)
    return engine


def rounds_of(config: dict[str, Any], name: str, count: int = 6) -> list[RoundRecord]:
    experiment, engine = load_experiment(config), engine_of(config, name)
    (method,) = (one for one in experiment.build_methods() if one.name == name)
    state, records = first_state(engine.initial_model, method, engine), []
    for _ in range(count):
        state, record = run_round(state, method, build_plan(experiment, 6, 1), engine)
        records.append(record)
    return records


def outcome(folder: Path) -> list[Any]:
    """What was recorded of every lane, and what its checkpoint holds, without real times."""
    run = cw.Run(folder)
    asked = run.frame("weights")[["method", "round", "client", "refusal", "weight", "seconds"]]
    rounds = run.frame("rounds")[["method", "round", "metric", "loss", "models_moved"]]
    kept = [load_file(path) for path in sorted((folder / "checkpoints").iterdir())]
    bits = [{name: tensor.numpy().tobytes() for name, tensor in one.items()} for one in kept]
    return [asked.to_csv(), rounds.to_csv(), bits]


def test_devices_that_are_all_alike_change_no_bit(tiny: dict[str, Any], tmp_path: Path) -> None:
    plain, timed = (
        cw.run(tiny | more, tmp_path / name) for name, more in (("a", {}), ("b", {"devices": {}}))
    )
    for lane in (1, 2):
        one, other = (
            load_file(run.folder / f"checkpoints/lane-{lane}.safetensors") for run in (plain, timed)
        )
        assert {*other} - {*one} == {"engine.clock.now"}
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_round_lasts_as_long_as_its_slowest_answer(config: dict[str, Any]) -> None:
    ended = 0.0
    for record in rounds_of(config, "all"):
        assert record.ended == pytest.approx(ended + float(record.seconds.max()))
        ended = record.ended or 0.0


def test_after_a_deadline_updates_are_refused_or_kept(config: dict[str, Any]) -> None:
    refused, kept = rounds_of(config, "deadline"), rounds_of(config, "late ones kept")
    assert any(record.refusals for record in refused)
    assert not any(record.refusals for record in kept)
    assert all(
        record.ended is not None and record.ended <= 4.0 * record.round_num
        for record in refused + kept
    )
    assert all(float(record.seconds.max()) <= 4.0 for record in refused if record.client_ids)
    assert any(float(record.seconds.max()) > 4.0 for record in kept if record.client_ids)


def test_asynchronous_rounds_need_so_many_updates_and_no_more(config: dict[str, Any]) -> None:
    records = rounds_of(config, "buffered")
    assert [len(record.client_ids) for record in records] == [2] * 6
    assert [record.models_moved for record in records] == [
        3 + 2,
        *[2 + 2] * 5,
    ]  # who has answered is replaced


def test_a_late_update_is_added_to_the_model_of_then(config: dict[str, Any]) -> None:
    engine = engine_of(config, "late ones kept")
    model, training = engine.initial_model, load_experiment(config).build_methods()[0].training
    first, *others = (Task(number, training, engine.problem.loss, ()) for number in range(1, 100))
    assert engine.data.devices is not None
    assert engine.clock is not None
    slowest = int(engine.data.devices.speed.argmin())
    (nothing,) = engine.train([slowest], model, first)
    assert (nothing.client_ids, engine.clock.at_work) == ((), {slowest})
    (alone,) = engine.inner.train([slowest], model, first)
    later = model + 1.0
    for task in others:
        if found := [one for one in engine.train([], later, task) if one.client_ids]:
            break
    assert found[0].ages is not None
    assert (found[0].client_ids, found[0].ages.tolist()) == ((slowest,), [task.round_num - 1])
    assert torch.equal(found[0].models, later + (alone.models - model))
    assert not engine.clock.at_work


def test_criteria_read_the_clock_and_old_updates_weigh_less(config: dict[str, Any]) -> None:
    config["methods"] = [
        {"name": "aged", "criteria": ["staleness", "response_time"], "score": "product"}
    ]
    config["methods"][0]["pace"] = {"buffer": 2}
    records = rounds_of(config, "aged", 12)
    ages = [record.raw[:, 0].tolist() for record in records]
    assert any(age < 1 for row in ages for age in row)
    for record in records:
        assert record.raw[:, 1].tolist() == pytest.approx((1 / (1 + record.seconds / 60)).tolist())
        weights = record.raw.prod(1)
        assert record.weights.tolist() == pytest.approx((weights / weights.sum()).tolist())


def test_timeliness_is_kept_over_a_resume_and_falls_for_the_slow(
    config: dict[str, Any], tmp_path: Path
) -> None:
    config["methods"] = [{"name": "timely", "criteria": ["timeliness"], "pace": {"deadline": 4.0}}]
    cw.run(config | {"rounds": 3}, tmp_path / "run")
    cw.run(config, tmp_path / "run", resume=True)
    memory = load_file(tmp_path / "run" / "checkpoints/lane-1.safetensors")["criteria/timeliness"]
    refused = cw.Run(tmp_path / "run").frame("refusals")["client"].unique()
    assert len(refused)
    assert all(memory[client] < 1 for client in refused)
    assert outcome(tmp_path / "run") == outcome(cw.run(config, tmp_path / "whole").folder)


def test_who_drops_out_is_refused_and_sends_nothing(config: dict[str, Any]) -> None:
    config["devices"] = {"dropout": 0.3}
    records = rounds_of(config | {"federation": {}}, "all", 40)
    gone = [refusal for record in records for refusal in record.refusals]
    assert {refusal.reason for refusal in gone} == {DROPPED_OUT.text}
    assert 0.2 < len(gone) / 240 < 0.4
    assert sum(record.models_moved for record in records) == 240 + 240 - len(gone)


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(
    config: dict[str, Any], tmp_path: Path
) -> None:
    def stop(_: cw.Run, progress: Progress) -> None:
        if progress.done == 17:  # all lanes are somewhere in the middle, with updates in flight
            raise KeyboardInterrupt

    config["devices"] = SLOW | {"dropout": 0.1, "available_hours": 20.0}
    config["methods"][-1]["criteria"] = [
        "dataset_size",
        "label_diversity",
    ]  # what late clients measured is kept
    with pytest.raises(KeyboardInterrupt):
        cw.run(config, tmp_path / "stopped", on_round=stop)
    resumed = cw.run(config, tmp_path / "stopped", resume=True).folder
    assert outcome(resumed) == outcome(cw.run(config, tmp_path / "whole").folder)


def test_however_it_is_computed_the_same_updates_come_at_the_same_time(
    config: dict[str, Any], tmp_path: Path
) -> None:
    config |= {"rounds": 4, "methods": config["methods"][-2:]}
    ways = {
        "alone": {"mode": "loop", "workers": 1},
        "two workers": {"mode": "loop", "workers": 2},
        "stacked lanes": {"mode": "stacked", "workers": 1},
    }
    found = {
        name: outcome(cw.run(config | way, tmp_path / name).folder) for name, way in ways.items()
    }
    assert found["alone"][:2] == found["two workers"][:2]
    one, other = (cw.Run(tmp_path / name).frame("weights") for name in ("alone", "stacked lanes"))
    same = ["method", "round", "client", "refusal"]
    assert one[same].equals(other[same])
    for value in ("weight", "seconds"):
        near = pytest.approx(other[value].tolist(), abs=1e-6, nan_ok=True)
        assert one[value].tolist() == near


def test_a_late_model_of_another_size_is_refused_like_any_other(config: dict[str, Any]) -> None:
    cw.parts.ATTACKS.register("half")(_Half)
    config["hostile"] = [{"clients": 6, "attack": "half"}]
    reasons = {
        refusal.reason
        for record in rounds_of(config, "late ones kept", 3)
        for refusal in record.refusals
    }
    assert len(reasons) == 1
    assert reasons.pop().startswith("model of the wrong size")


class _Half(cw.parts.Attack):
    """Sends half of a model."""

    def forge(self, known: Any) -> torch.Tensor:
        return known.model[: len(known.model) // 2]


def test_a_timed_engine_is_an_engine(config: dict[str, Any]) -> None:
    check_engine(engine_of(config, "all"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": None}, r"methods\[1\].pace: needs clients that take time: add \[devices\]"),
        ({"engine": "flower"}, r"devices: are simulated: use engine = \"local\""),
        ({"devices": {"speed": "fast"}}, "devices.speed: unknown distribution 'fast'"),
        ({"devices": {"speed": {"name": "uniform", "low": 3.0}}}, "devices.speed.high: is missing"),
        (
            {"devices": None, "methods": [{"name": "x", "criteria": ["compute_speed"]}]},
            r"criteria\[0\]: compute_speed needs clients that take time: add \[devices\]",
        ),
        ({"devices": {"speeed": 1.0}}, "devices.speeed: unknown option; did you mean 'speed'?"),
        ({"devices": {"up": -1.0}}, "devices.up.value"),
        (
            {
                "methods": [
                    {"name": "x", "pace": {"late": "keep"}, "training": {"control_variates": True}}
                ]
            },
            "training.control_variates: are kept by the clients and sent beside the models, in time",
        ),
    ],
)
def test_what_cannot_be_is_said_before_anything_runs(
    config: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    wrong = {key: value for key, value in (config | changes).items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        load_experiment(wrong)


def test_a_pace_that_can_never_be_is_refused(config: dict[str, Any], tmp_path: Path) -> None:
    config["methods"] = [{"name": "x", "pace": {"late": "keep"}}]
    with pytest.raises(ConfigError, match=r"pace.late: \"keep\" needs a deadline or extra"):
        cw.run(config, tmp_path / "run")
    config["methods"] = [{"name": "x", "pace": {"buffer": 9}}]
    with pytest.raises(
        ConfigError, match=r"pace.buffer = 9: must be at most 3, the number of clients at work"
    ):
        cw.run(config, tmp_path / "run")


def test_a_checkpoint_of_another_lane_is_refused(config: dict[str, Any], tmp_path: Path) -> None:
    config["methods"] = [
        "FedAvg",
        {"name": "timely", "criteria": ["timeliness", "dataset_size"], "score": "prioritized"},
    ]
    folder = cw.run(config, tmp_path / "run").folder
    ours, others = (folder / "checkpoints" / f"lane-{lane}.safetensors" for lane in (1, 2))
    shutil.copy(ours, others)
    with pytest.raises(ClientwiseError, match="the checkpoint of another run, method or seed"):
        cw.run(config | {"rounds": 7}, folder, resume=True)
    del config["devices"]
    without = cw.run(config | {"methods": ["FedAvg"]}, tmp_path / "without").folder
    shutil.copy(without / "checkpoints" / "lane-1.safetensors", ours)
    with pytest.raises(ClientwiseError, match="the checkpoint of another run, method or seed"):
        cw.run(config | {"rounds": 7, "devices": SLOW}, folder, resume=True)

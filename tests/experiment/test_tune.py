"""Tuning on real digits: budgets, seeds and samples, what is written, and what a run says of it."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

import clientwise as cw
from clientwise.errors import ConfigError
from clientwise.experiment.build.data import build_data, hold_back, load_samples
from clientwise.experiment.load import load_experiment
from clientwise.experiment.tune import (
    Trial,
    Tuning,
    draws,
    load_tuning,
    loss,
    tune,
)
from clientwise.record.run import RunFolder
from clientwise.report.about import about
from reported import headline_of

RATE = "training.learning_rate"
STEP = "server_step.learning_rate"
SEEDS = [1001, 1002, 1003]


def rates(*values: float) -> dict[str, Any]:
    return {"training": {"learning_rate": list(values)}}


def tuned(config: dict[str, Any], folder: Path, **options: Any) -> Tuning:
    experiment, settings = load_tuning(config)
    return tune(experiment, settings, folder / "trials", **options)


@pytest.fixture
def config(tiny: dict[str, Any]) -> dict[str, Any]:
    tiny |= {"rounds": 2, "methods": ["FedAvg", "FedYogi"]}
    over = {"training": {"learning_rate": [0.001, 0.01, 0.1, 1.0]}}
    own = {"FedYogi": {"server_step": {"learning_rate": [0.001, 0.1]}}}
    tiny["tune"] = {"trials": 4, "over": over, "methods": own}
    return tiny


def test_every_method_gets_the_same_trials_on_other_seeds(
    config: dict[str, Any], tmp_path: Path
) -> None:
    config["seeds"] = [1, 1002]
    tuning = tuned(config, tmp_path)
    assert {method: len(own) for method, own in tuning.trials.items()} == {
        "FedAvg": 4,
        "FedYogi": 4,
    }
    lanes = cw.Run(tmp_path / "trials").lanes
    assert set(lanes["seed"]) == {1001, 1003, 1004}
    assert len(lanes) == 2 * 4 * 3
    assert {trial.values[STEP] for trial in tuning.trials["FedYogi"]} == {0.001, 0.1}
    file = tmp_path / "tuned.toml"
    file.write_text(tuning.experiment.to_toml())
    loaded = load_experiment(file)
    fedavg, yogi = loaded.methods
    assert fedavg.training.learning_rate == tuning.trials["FedAvg"][0].values[RATE]
    assert yogi.server_step.options["learning_rate"] == tuning.trials["FedYogi"][0].values[STEP]
    with pytest.raises(
        ConfigError, match=r"methods\[0\].tuned.seeds: 1003: the method was tuned on this seed"
    ):
        load_experiment(file, replaced={"seeds": [1, 1003]})
    run = RunFolder(cw.run(file, tmp_path / "run", seeds=[1]).folder)
    said = dict(about(run))["tuning"]
    assert said.startswith("FedAvg: trials 4, seeds 1001, 1003, 1004, rounds 2, over training.")
    assert f"values training.learning_rate {fedavg.training.learning_rate}; " in said
    assert not any("tuned alike" in line for line in headline_of(run))
    grown = load_experiment(file, replaced={"methods": ["FedAvg", "FedYogi", "Krum"], "seeds": [1]})
    run = RunFolder(cw.run(grown, tmp_path / "run", resume=True).folder)
    (line,) = (line for line in headline_of(run) if "tuned alike" in line)
    assert "(4 trials: FedAvg, FedYogi; not tuned: Krum)" in line


def test_an_interrupted_search_goes_on(config: dict[str, Any], tmp_path: Path) -> None:
    def stop(progress: cw.Progress) -> None:
        if progress.done == 20:
            raise KeyboardInterrupt

    again = tmp_path / "again"
    with pytest.raises(KeyboardInterrupt):
        tuned(config, again, on_round=stop)
    whole = tuned(config, tmp_path)
    seen: list[cw.Progress] = []
    assert tuned(config, again, on_round=seen.append).trials == whole.trials
    assert len(seen) < 2 * 2 * 4 * 3
    with pytest.raises(cw.ClientwiseError, match="was run with another config"):
        tuned(config | {"training": {"epochs": 3}}, again)


def test_methods_by_name_and_overrides_are_tuned(config: dict[str, Any], tmp_path: Path) -> None:
    mine = {"name": "mine", "like": "FedYogi", "server_step": {"tau": 0.01}}
    config |= {"methods": ["FedAvg", "fedyogi", mine]}
    config["tune"] |= {"trials": 1}
    file = tmp_path / "given.toml"
    file.write_text(tomli_w.dumps(config))
    experiment, settings = load_tuning(file, ["rounds=1", "training.proximal=0.5"])
    found = tune(experiment, settings, tmp_path / "trials")
    again = load_experiment(tomllib.loads(found.experiment.to_toml()))
    assert again.to_dict() == found.experiment.to_dict()
    assert (again.rounds, again.training.proximal) == (1, 0.5)
    fedavg, _, own = again.methods
    assert fedavg.training.learning_rate == found.trials["FedAvg"][0].values[RATE]
    assert own.server_step.options["tau"] == 0.01


def test_a_config_that_names_no_method(tiny: dict[str, Any], tmp_path: Path) -> None:
    del tiny["methods"]
    experiment, settings = load_tuning(tiny | {"tune": {"over": rates(0.1)}, "rounds": 1})
    found = tune(experiment, settings, tmp_path / "trials")
    again = load_experiment(tomllib.loads(found.experiment.to_toml()))
    assert again.to_dict() == found.experiment.to_dict()


def test_the_best_values_are_better_on_what_was_held_back(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    over = {"over": rates(1e-5, 0.1)}
    tuning = tuned(tiny | {"rounds": 4, "methods": ["FedAvg"], "tune": over}, tmp_path)
    fast, slow = tuning.trials["FedAvg"]
    assert fast.metrics[0] > slow.metrics[0] + 0.2


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"methods": {"FedYogy": {}}}, "no method 'FedYogy'; did you mean 'FedYogi'"),
        ({"over": {"training": {"learning_rate": 0.1}}}, "learning_rate = 0.1: give a list of val"),
        ({"over": {"training": {"learning_rate": []}}}, "give a list of values"),
        ({"over": {"training": {"epochs": {"low": 3}}}}, "epochs.low = 3: give a list"),
        ({"over": {"trainig": {"epochs": [1]}}}, "did you mean 'training'"),
        (
            {"over": {"server_step": {"momentum": [0.9]}}},
            "FedAvg.*server_step.momentum = 0.9: unkn",
        ),
        ({"over": {"training": {"learning_rate": [-1]}}}, "learning_rate = -1: .*greater than 0"),
        ({"trials": 0}, r"tune\.trials = 0: must be greater than 0"),
        ({"trails": 3}, r"tune\.trails.*did you mean 'trials'"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_the_first_trial(
    config: dict[str, Any], table: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        tuned(config | {"tune": table}, tmp_path)
    assert not (tmp_path / "trials").exists()


def test_values_that_are_invalid_together_fail_and_the_search_goes_on(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    criteria = ["dataset_size", "uniform"]
    score = {"name": "weighted_mean", "weights": {"dataset_size": 1.0, "uniform": 1.0}}
    over = {"score": {"weights": {"dataset_size": [0.0, 1.0], "uniform": [0.0, 2.0]}}}
    mine = {"name": "mine", "criteria": criteria, "score": score}
    tiny |= {"rounds": 1, "methods": [mine], "tune": {"over": over}}
    found = tuned(tiny, tmp_path)
    assert len(found.trials["mine"]) == 3
    (line,) = found.failed
    assert line.startswith("mine: score.weights.dataset_size = 0.0, score.weights.uniform = 0.0: ")
    assert line.endswith("weights must be zero or more, and not all zero")


def test_a_matrix_says_what_to_tune_instead(tiny: dict[str, Any]) -> None:
    matrix = {"attacks": {"flip": {"attack": "sign_flip"}}, "shares": [0.2]}
    with pytest.raises(ConfigError, match=r"matrix: .* tune a copy of this file"):
        load_tuning(tiny | {"matrix": matrix})


def test_a_space_that_fits_the_budget_is_tried_completely() -> None:
    space: dict[str, list[Any]] = {"a": [1, 2], "b.c": ["x", "y", "z"]}
    for trials in (6, 100):
        found = draws(space, trials)
        assert sorted((one["a"], one["b.c"]) for one in found) == [
            (a, c) for a in (1, 2) for c in "xyz"
        ]


def test_of_a_larger_space_a_sample_is_tried_that_is_the_same_again() -> None:
    space: dict[str, list[Any]] = {f"key{number}": list(range(10)) for number in range(9)}
    drawn = draws(space, 50)
    assert drawn == draws(space, 50)
    assert len({repr(values) for values in drawn}) == 50
    for key in space:  # each key gets most of its values
        assert len({values[key] for values in drawn}) > 7


def test_samples_of_hostile_clients_do_not_count(tiny: dict[str, Any], tmp_path: Path) -> None:
    tiny |= {"rounds": 8, "methods": ["FedAvg"], "federation": {"clients_per_round": 6}}
    tiny |= {"hostile": [{"clients": [1, 2, 3], "attack": "wrong_labels"}]}
    tiny["tune"] = {"over": rates(0.1)}
    ((trial,),) = tuned(tiny, tmp_path).trials.values()
    assert max(trial.metrics) > 0.55  # with theirs it would be about half of that
    tiny["hostile"] = [{"clients": 6, "attack": "wrong_labels"}]
    with pytest.raises(ConfigError, match="hostile: no honest client has two samples"):
        tuned(tiny, tmp_path / "all")


def test_a_metric_that_is_no_number_is_the_worst() -> None:
    low, high, none = (Trial({}, (metric, 0.5)) for metric in (0.1, 0.9, math.nan))
    assert sorted([none, low, high], key=lambda one: loss(one, -1.0)) == [high, low, none]
    assert sorted([none, low, high], key=lambda one: loss(one, 1.0)) == [low, high, none]


def test_samples_are_held_back_from_training(tiny: dict[str, Any]) -> None:
    experiment = cw.load(tiny)
    data, _ = build_data(experiment, load_samples(experiment), 1)
    held = hold_back(data, 0.25, 1)
    for client in range(data.num_clients):
        before = data.train.indices[data.train.slice(client)]
        train, validation = (
            shares.indices[shares.slice(client)] for shares in (held.train, held.test)
        )
        assert torch.equal(torch.cat([train, validation]).sort().values, before.sort().values)
        assert len(validation) == max(1, round(len(before) * 0.25))
        places = held.test.slice(client)
        assert torch.equal(held.test.targets[places], data.samples.targets[validation])


def test_every_method_by_name_can_be_tuned(tiny: dict[str, Any], tmp_path: Path) -> None:
    controls = ["Pooled", "ServerOnly", "Alone", "Recommended", "SCAFFOLD"]
    tiny |= {"rounds": 1, "methods": controls}
    tiny["tune"] = {"over": {"training": {"epochs": [1, 2]}}}
    tuning = tuned(tiny, tmp_path)
    assert [one.tuned["trials"] for one in tuning.experiment.methods if one.tuned] == [2] * 5
    load_experiment(tuning.experiment.to_dict())

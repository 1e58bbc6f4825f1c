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
from clientwise.experiment.build.data import build_data, load_samples
from clientwise.experiment.load import load_experiment
from clientwise.experiment.tune.search import (
    Range,
    read_space,
    search,
    search_by_optuna,
)
from clientwise.experiment.tune.tune import (
    Trial,
    Tuning,
    best_trial,
    hold_back,
    load_tuning,
    tune,
)
from clientwise.experiment.tune.written import changed_values, tuned_toml
from clientwise.record.reading.folder import RunFolder
from clientwise.report.about import about
from reported import headline_of

RATE = ("training", "learning_rate")
STEP = ("server_step", "learning_rate")


@pytest.fixture
def config(tiny: dict[str, Any]) -> dict[str, Any]:
    tiny |= {"rounds": 2, "methods": ["FedAvg", "FedYogi"]}
    rates = {"training": {"learning_rate": {"low": 0.001, "high": 1.0}}}
    own = {"FedYogi": {"server_step": {"learning_rate": [0.001, 0.1]}}}
    tiny["tune"] = {"trials": 4, "seeds": [11, 12], "over": rates, "methods": own}
    return tiny


def test_every_method_gets_the_same_trials_on_other_seeds(
    config: dict[str, Any], tmp_path: Path
) -> None:
    seen: list[tuple[str, int, int]] = []
    tuning = tune(*load_tuning(config), on_trial=lambda *trial: seen.append(trial))
    assert {method: len(own) for method, own in tuning.trials.items()} == {
        "FedAvg": 4,
        "FedYogi": 4,
    }
    assert {seed for _, _, seed in seen} == {11, 12}
    assert len(seen) == 2 * 4 * 2
    rates = [[trial.values[RATE] for trial in own] for own in tuning.trials.values()]
    assert rates[0] == rates[1], "the draws of a shared key are paired"
    assert {trial.values[STEP] for trial in tuning.trials["FedYogi"]} == {0.001, 0.1}
    _check_what_a_run_says(tuning, tmp_path)


def _check_what_a_run_says(tuning: Tuning, folder: Path) -> None:
    """The file can be run, its values are the best ones, and its report says how they were found."""
    file = folder / "tuned.toml"
    file.write_text(tuning.experiment.to_toml())
    loaded = load_experiment(file)
    fedavg, yogi = loaded.methods
    assert fedavg.training.learning_rate == tuning.best["FedAvg"].values[RATE]
    assert yogi.server_step.options["learning_rate"] == tuning.best["FedYogi"].values[STEP]
    with pytest.raises(
        ConfigError, match=r"methods\[0\].tuned.seeds: 12: FedAvg was tuned on these"
    ):
        load_experiment(file, replaced={"seeds": [1, 12]})
    run = RunFolder(cw.run(file, folder / "run"))
    said = dict(about(run))["tuning"]
    assert said.startswith(f"FedAvg: training.learning_rate = {fedavg.training.learning_rate} of ")
    assert "4 trials of 2 rounds on seeds 11, 12, by metric" in said
    assert not any("tuned alike" in line for line in headline_of(run))
    grown = load_experiment(file, replaced={"methods": ["FedAvg", "FedYogi", "Krum"]})
    run = RunFolder(cw.run(grown, folder / "run", resume=True))
    (line,) = (line for line in headline_of(run) if "tuned alike" in line)
    assert "(4 trials: FedAvg, FedYogi; not tuned: Krum)" in line


def test_the_written_config_has_only_what_differs(config: dict[str, Any], tmp_path: Path) -> None:
    mine = {"name": "mine", "like": "FedYogi", "brake": 3, "server_step": {"tau": 0.01}}
    config |= {"methods": ["FedAvg", "fedyogi", mine]}
    config["tune"] |= {"trials": 1, "seeds": [11]}
    file = tmp_path / "given.toml"
    file.write_text(tomli_w.dumps(config))
    given = (file, ["rounds=1", "training.momentum=0.5"])
    experiment, settings = load_tuning(*given)
    found = tune(experiment, settings)

    toml = tuned_toml(found, *given)
    assert load_experiment(tomllib.loads(toml)).to_dict() == found.experiment.to_dict()
    written = tomllib.loads(toml)
    methods = written.pop("methods")
    given_keys = {key for key in config if key not in ("tune", "methods")}
    assert written.keys() == given_keys
    assert written["training"] == config["training"] | {"momentum": 0.5}
    fedavg, yogi, own = methods
    rate = {"learning_rate": found.best["FedAvg"].values[RATE]}
    step = {"learning_rate": found.best["FedYogi"].values[STEP]}
    assert fedavg == {"name": "FedAvg", "training": rate, "tuned": fedavg["tuned"]}
    assert yogi.keys() == {"name", "training", "server_step", "tuned"}
    assert yogi["server_step"] == step
    assert own == mine | {"training": rate, "tuned": own["tuned"]}

    before = config["training"]["learning_rate"]
    line, yogi_line, _ = changed_values(experiment, found.best)
    assert line == f"FedAvg: training.learning_rate = {rate['learning_rate']} (was {before})"
    assert yogi_line.startswith("FedYogi: ")
    same = Trial("FedAvg", {RATE: before}, (0.5,), (None,))
    unchanged = experiment.model_copy(update={"methods": experiment.methods[:1]})
    assert list(changed_values(unchanged, {"FedAvg": same})) == ["FedAvg: no value changed"]

    file.write_text(tomli_w.dumps(config | {"model": "mlp"}))  # edited during the search
    assert tuned_toml(found, *given) == found.experiment.to_toml()


def test_a_schedule_spans_the_rounds_of_the_run_not_of_the_trials(tiny: dict[str, Any]) -> None:
    """Otherwise its rate would be 0 for the rest of the run."""
    own = {
        "name": "own",
        "like": "FedAvg",
        "training": {"schedule": {"name": "cosine", "end": 0.5}},
    }
    config = tiny | {"rounds": 7, "methods": ["FedAvg", own]}
    config["training"] = {"schedule": "cosine"}
    searched = {"own": {"training": {"learning_rate": [0.1]}}}
    config["tune"] = {
        "trials": 1,
        "seeds": [11],
        "over": {"training": {"schedule": ["cosine"]}},
        "methods": searched,
    }
    tuning = tune(*load_tuning(config, replaced={"rounds": 1}))
    as_written, _ = load_tuning(config)
    toml = tuned_toml(tuning.applied_to(as_written), config)
    again = load_experiment(tomllib.loads(toml))
    assert again.rounds == 7
    for method in again.build_methods():
        assert method.schedule is not None
        assert [method.schedule(number) for number in (1, 8)] == [1.0, 0.0]
    assert tomllib.loads(toml)["training"] == {"schedule": "cosine"}


def test_the_best_values_are_better_on_what_was_held_back(tiny: dict[str, Any]) -> None:
    tiny |= {"rounds": 4, "methods": ["FedAvg"]}
    rates = {"training": {"learning_rate": [1e-5, 0.1]}}
    tuning = tune(*load_tuning(tiny | {"tune": {"over": rates, "seeds": [7]}}))
    slow, fast = tuning.trials["FedAvg"]
    assert fast.metrics[0] > slow.metrics[0] + 0.2
    assert tuning.best["FedAvg"] is fast
    (line,) = tuning.at_an_end()
    assert line.startswith("FedAvg: the best training.learning_rate, 0.1, is at an end")


@pytest.mark.parametrize("report_fraction", [0.5, 1.0])
def test_trials_stop_early_as_runs_do(tiny: dict[str, Any], report_fraction: float) -> None:
    """No loss falls by `min_delta` after the first: a trial ends in round 2."""
    tiny |= {"methods": ["FedAvg"], "server_set": {"report_fraction": report_fraction}}
    tiny["tune"] = {"over": {"training": {"learning_rate": [0.1]}}, "seeds": [7]}
    stopping = {"rounds": 6, "stop_early": {"rounds": 1, "min_delta": 1e9}}

    def metrics(**keys: Any) -> tuple[float, ...]:
        ((trial,),) = tune(*load_tuning(tiny | keys)).trials.values()
        return trial.metrics

    assert metrics(**stopping) == metrics(rounds=2) != metrics(rounds=6)


def test_by_rounds_half_of_the_clients_reach_the_target_first(tiny: dict[str, Any]) -> None:
    tiny |= {"rounds": 8, "evaluation": {"target": 0.6}, "methods": ["FedAvg"]}
    rates = {"training": {"learning_rate": [1e-5, 0.1]}}
    tiny["tune"] = {"by": "rounds", "over": rates, "seeds": [11, 12]}
    tuning = tune(*load_tuning(tiny))
    slow, fast = tuning.trials["FedAvg"]
    assert slow.rounds == (None, None)
    assert all(number is not None and number < 8 for number in fast.rounds)
    assert tuning.best["FedAvg"] is fast
    with pytest.raises(ConfigError, match=r"evaluation\.target: is missing\. Trials are compared"):
        tune(*load_tuning(tiny | {"evaluation": {}}))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"seeds": [11, 1]}, r"tune.seeds: 1: the experiment reports these seeds"),
        ({"methods": {"FedYogy": {}}}, "no method 'FedYogy'; did you mean 'FedYogi'"),
        ({"over": {"training": {"learning_rate": 0.1}}}, "give a list of values, or { low"),
        ({"over": {"brake": {"low": 3, "high": 1}}}, "low = 3 must be less than high = 1"),
        ({"over": {"brake": {"low": 3}}}, "give a list of values, or { low"),
        ({"over": {"trainig": {"epochs": [1]}}}, "did you mean 'training'"),
        (
            {"over": {"server_step": {"momentum": [0.9]}}},
            "FedAvg: server_step.momentum = 0.9: unkn",
        ),
        (
            {"over": {"training": {"learning_rate": [0.1, -1]}}},
            "learning_rate = -1: .*greater than 0",
        ),
        ({"by": "rounds", "sampler": "optuna"}, 'tune.sampler: "optuna" learns from the metric'),
        ({"trials": 0}, r"tune\.trials = 0: must be greater than 0"),
        ({"trails": 3}, r"tune\.trails.*did you mean 'trials'"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    config: dict[str, Any], table: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        tune(*load_tuning(config | {"tune": table}))


def test_values_that_are_invalid_together_fail_and_the_search_goes_on(tiny: dict[str, Any]) -> None:
    score = {"name": "iowa", "by": "dataset_size", "best": 0.2, "most": 0.9, "end": 0.8}
    tiny |= {"rounds": 1, "methods": [{"name": "ranked", "score": score}]}

    def tuned(best: list[float], end: list[float]) -> Tuning:
        over = {"score": {"best": best, "end": end}}
        return tune(*load_tuning(tiny | {"tune": {"over": over, "seeds": [7]}}))

    found = tuned(best=[0.2, 0.6], end=[0.5, 0.8])
    assert len(found.trials["ranked"]) == 3
    (line,) = found.failed
    assert line == (
        "ranked: score.best = 0.6, score.end = 0.5: best must be below end, got 0.6 and 0.5"
    )
    with pytest.raises(ConfigError, match="no values of ranked are valid together"):
        tuned(best=[0.6], end=[0.5])


def test_a_matrix_says_what_to_tune_instead(tiny: dict[str, Any]) -> None:
    matrix = {"attacks": {"flip": {"attack": "sign_flip"}}, "shares": [0.2]}
    with pytest.raises(ConfigError, match=r"matrix: .* tune a copy of this file"):
        load_tuning(tiny | {"matrix": matrix})


def test_a_space_that_fits_the_budget_is_tried_completely() -> None:
    space = read_space({"a": [1, 2], "b": {"c": ["x", "y", "z"]}})
    assert len({repr(values) for values, _ in search(space, 6)}) == 6
    drawn = [values for values, _ in search(space, 4)]
    assert len({repr(values) for values in drawn}) == 4
    assert {values["b", "c"] for values in drawn} == {"x", "y", "z"}, "every third has a draw"


def test_ranges_are_covered_evenly() -> None:
    space = read_space({"rate": {"low": 0.01, "high": 1.0}, "epochs": {"low": 1, "high": 10}})
    drawn = [values for values, _ in search(space, 8)]
    assert sum(values["rate",] < 0.1 for values in drawn) == 4, "half of them, on a log scale"
    assert all(type(values["epochs",]) is int and 1 <= values["epochs",] <= 10 for values in drawn)
    assert Range(-1.0, 1.0).at(0.5) == 0.0


def test_optuna_learns_from_earlier_trials() -> None:
    space = read_space({"rate": {"low": 0.0, "high": 1.0}, "kind": ["bad", "good"]})
    drawn = []
    for values, tell in search_by_optuna(space, 40):
        drawn.append(values)
        tell(abs(values["rate",] - 0.25) + (values["kind",] == "bad"))
    late = drawn[20:]
    assert sum(values["kind",] == "good" for values in late) > 12
    assert sum(abs(values["rate",] - 0.25) for values in late) / len(late) < 0.2


def test_samples_of_hostile_clients_do_not_count(tiny: dict[str, Any]) -> None:
    tiny |= {"rounds": 8, "methods": ["FedAvg"], "federation": {"clients_per_round": 6}}
    tiny["hostile"] = [{"clients": [1, 2, 3], "attack": "wrong_labels"}]
    tiny["tune"] = {"over": {"training": {"learning_rate": [0.1]}}, "seeds": [2]}
    ((trial,),) = tune(*load_tuning(tiny)).trials.values()
    assert trial.metrics[0] > 0.55  # with theirs it would be about half of that
    tiny["hostile"] = [{"clients": 6, "attack": "wrong_labels"}]
    with pytest.raises(ConfigError, match="hostile: no honest client has two samples"):
        tune(*load_tuning(tiny))


def test_trials_are_ranked_by_seeds_that_reach_it_then_rounds_then_metric() -> None:
    def best(*rows: tuple[list[int | None], float], higher: bool = True) -> int:
        trials = [Trial("A", {}, (metric,), tuple(rounds)) for rounds, metric in rows]
        return trials.index(best_trial(trials, "rounds", higher))

    assert best(([9], 0.5), ([8], 0.5)) == 1
    assert best(([9, 9], 0.5), ([2, None], 0.9)) == 0
    assert best(([5], 0.5), ([5], 0.6), ([5], 0.4)) == 1
    assert best(([None], 0.5), ([None], 0.6)) == 1
    assert best(([None], 0.5), ([None], 0.6), higher=False) == 0
    assert best(([None], math.nan), ([None], 0.1)) == 1
    assert best(([None], math.nan), ([None], 0.1), higher=False) == 1


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


def test_every_method_by_name_can_be_tuned(tiny: dict[str, Any]) -> None:
    controls = ["Pooled", "ServerOnly", "Alone", "Recommended", "SCAFFOLD"]
    tiny |= {"rounds": 1, "methods": controls}
    tiny["tune"] = {"over": {"training": {"epochs": [1, 2]}}, "seeds": [7]}
    tuning = tune(*load_tuning(tiny))
    assert [method.tuned.trials for method in tuning.experiment.methods if method.tuned] == [2] * 5
    load_experiment(tuning.experiment.to_dict())

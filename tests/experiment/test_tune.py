"""The learning-rate search on real digits: how it compares rates, and that it uses no test sample."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import clientwise as cw
from clientwise.errors import ConfigError
from clientwise.experiment.build import build_data, load_samples
from clientwise.experiment.tune import Trial, best_rate, hold_back, tune


def test_the_best_rate_brings_half_of_the_clients_to_the_target_first(tiny: dict[str, Any]) -> None:
    tiny |= {"rounds": 8, "seeds": [1, 2]}
    tiny["evaluation"] = {"target": 0.6}
    seen: list[Trial] = []
    trials, best = tune(cw.load(tiny), [1e-5, 0.1], on_trial=seen.append)
    assert trials == seen
    assert [(trial.learning_rate, trial.seed) for trial in trials] == [
        (1e-5, 1),
        (0.1, 1),
        (1e-5, 2),
        (0.1, 2),
    ]
    assert all(
        trial.rounds is None and trial.metric < 0.5
        for trial in trials
        if trial.learning_rate == 1e-5
    )
    assert all(
        trial.rounds is not None and trial.metric > 0.5
        for trial in trials
        if trial.learning_rate == 0.1
    )
    assert best == 0.1
    with pytest.raises(ConfigError, match=r"evaluation\.target: is missing\. Rates are compared"):
        tune(cw.load(tiny | {"evaluation": {}}), [0.1])


def test_samples_of_hostile_clients_do_not_count(tiny: dict[str, Any]) -> None:
    tiny |= {"rounds": 8, "seeds": [1], "evaluation": {"target": 0.6}}
    tiny["hostile"] = [{"clients": [1, 2, 3], "attack": "wrong_labels"}]
    tiny["federation"] = {"clients_per_round": 6}
    ((trial,), _) = tune(cw.load(tiny), [0.1])
    assert trial.metric > 0.55  # with theirs it would be about half of that


def test_an_honest_client_must_hold_back_a_sample(tiny: dict[str, Any]) -> None:
    tiny |= {"evaluation": {"target": 0.6}, "hostile": [{"clients": 6, "attack": "wrong_labels"}]}
    with pytest.raises(ConfigError, match="hostile: no honest client has two samples"):
        tune(cw.load(tiny), [0.1])


def test_rates_are_ranked_by_seeds_that_reach_it_then_rounds_then_metric() -> None:
    def trials(*rows: tuple[float, int | None, float]) -> list[Trial]:
        return [
            Trial(rate, seed, rounds, metric) for seed, (rate, rounds, metric) in enumerate(rows)
        ]

    assert best_rate(trials((0.1, 9, 0.5), (0.2, 8, 0.5))) == 0.2
    assert best_rate(trials((0.1, 9, 0.5), (0.1, 9, 0.5), (0.2, 2, 0.9), (0.2, None, 0.9))) == 0.1
    assert best_rate(trials((0.1, 5, 0.5), (0.2, 5, 0.6), (0.3, 5, 0.4))) == 0.2
    assert best_rate(trials((0.1, None, 0.5), (0.2, None, 0.6))) == 0.2
    assert best_rate(trials((0.1, None, 0.5), (0.2, None, 0.6)), higher_is_better=False) == 0.1


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


def test_every_method_can_have_a_rate_of_its_own(tiny: dict[str, Any]) -> None:
    tiny |= {"rounds": 2, "seeds": [1], "evaluation": {"target": 0.5, "metric": "macro_f1"}}
    tiny["methods"] += [
        {
            "name": "slow",
            "training": {"epochs": 1},
            "server_step": {"name": "sgd", "learning_rate": 1e-6},
        }
    ]
    experiment = cw.load(tiny)
    ((fedavg,), _), ((slow,), _) = tune(experiment, [0.1]), tune(experiment, [0.1], method="slow")
    assert fedavg.metric > 2 * slow.metric
    with pytest.raises(ConfigError, match="methods: there is no method 'slo'; did you mean 'slow'"):
        tune(experiment, [0.1], method="slo")

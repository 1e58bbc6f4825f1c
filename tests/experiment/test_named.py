"""Methods by name: what a name stands for, how it is changed, and that every one of them runs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import clientwise as cw
from clientwise.errors import ConfigError
from clientwise.experiment.config.named import METHODS, method_toml, write_out
from clientwise.experiment.load import load_experiment
from recorded import curve, rows


def test_a_name_is_what_its_toml_says(tiny: dict[str, Any]) -> None:
    tiny["devices"] = {}
    by_name = load_experiment(tiny | {"methods": list(METHODS)})
    written = [method for name in METHODS for method in tomllib.loads(method_toml(name))["methods"]]
    assert by_name == load_experiment(tiny | {"methods": written})
    assert by_name == load_experiment(tiny | {"methods": [{"name": name} for name in METHODS]})
    assert by_name.to_dict() == load_experiment(by_name.to_dict()).to_dict(), (
        "a run folder needs no names"
    )


@pytest.mark.parametrize("name", METHODS)
def test_a_known_name_with_an_option_is_that_method(name: str, tiny: dict[str, Any]) -> None:
    tiny["devices"] = {}
    changed = {"training": {"learning_rate": 0.02}}
    (wanted,) = load_experiment(tiny | {"methods": [{"like": name, **changed}]}).methods
    for spelling in (name, name.lower(), name.upper()):
        (method,) = load_experiment(tiny | {"methods": [{"name": spelling, **changed}]}).methods
        assert method == wanted.model_copy(update={"name": spelling})
    (method,) = load_experiment(tiny | {"methods": [name.lower()]}).methods
    assert method.name == name


def test_a_resolved_config_means_what_it_states(tiny: dict[str, Any]) -> None:
    stated = {"name": "Recommended", "like": "FedAvg", "training": {"epochs": 2}}
    before = load_experiment(tiny | {"methods": [stated]})
    assert load_experiment(before.to_dict()).to_dict() == before.to_dict()


def test_like_takes_what_is_not_said_otherwise(tiny: dict[str, Any]) -> None:
    mine = {
        "name": "mine",
        "like": "FedYogi",
        "server_step": {"learning_rate": 0.5},
        "training": {"epochs": 3},
    }
    (method,) = load_experiment(tiny | {"methods": [mine]}).methods
    assert (method.name, method.server_step.name, method.server_step.options["learning_rate"]) == (
        "mine",
        "yogi",
        0.5,
    )
    assert method.training.epochs == 3
    other = {"like": "FedYogi", "server_step": "sgd"}
    (method,) = load_experiment(tiny | {"methods": [other]}).methods
    assert (method.name, method.server_step.name) == ("FedYogi", "sgd")
    for proximal in (0.5, 0.1):  # and what the name stands for stays as it is
        changes = [f"methods.0.training.proximal={proximal}"] if proximal == 0.5 else []
        (method,) = load_experiment(tiny | {"methods": ["FedProx"]}, changes).methods
        assert method.training.proximal == proximal
    assert load_experiment(tiny, ['methods=["DGA"]']).methods[0].criteria[0].name == "exp_loss"


def test_an_unknown_name_is_refused_with_the_nearest(tiny: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"methods\[1\]: there is no method 'FedYogy'; did you mean 'FedYogi'"
    ):
        load_experiment(tiny | {"methods": ["FedAvg", "FedYogy"]})
    with pytest.raises(ConfigError, match=r"methods\[0\].like: there is no method 3"):
        load_experiment(tiny | {"methods": [{"name": "mine", "like": 3}]})
    with pytest.raises(ConfigError, match=r"methods\[0\].name"):
        load_experiment(tiny | {"methods": [{"name": ["FedAvg"]}]})


@pytest.mark.parametrize(
    ("name", "said"), [("FedProxx", "did you mean 'FedProx'"), ("P1", "known: ")]
)
def test_an_unknown_name_alone_is_not_fedavg(tiny: dict[str, Any], name: str, said: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"methods\[0\].name: there is no method '{name}'; {said}"
    ):
        cw.load(tiny | {"methods": [{"name": name}]})
    (named,) = cw.load(tiny | {"methods": [{"name": name, "like": "FedAvg"}]}).methods
    assert named.unlike_fedavg() == []


def test_a_preset_picks_methods_by_their_names(tiny: dict[str, Any]) -> None:
    config = tiny | {
        "methods": ["FedAvg", {"like": "DGA"}, "AFL"],
        "presets": {"quick": {"methods": ["AFL", "DGA"]}},
    }
    assert [method.name for method in load_experiment(config, preset="quick").methods] == [
        "DGA",
        "AFL",
    ]


def test_a_part_that_reads_a_criterion_needs_it_measured(tiny: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"before\[0\]: nova reads the criterion 'local_steps': add it"
    ):
        load_experiment(tiny | {"methods": [{"name": "nova", "before": ["nova"]}]})


def test_a_label_does_not_make_a_criterion_another_one(tiny: dict[str, Any]) -> None:
    method = {
        "name": "nova",
        "before": ["nova"],
        "criteria": [{"name": "class_balance", "as": "local_steps"}],
    }
    with pytest.raises(
        ConfigError, match=r"before\[0\]: nova reads the criterion 'local_steps': add it"
    ):
        load_experiment(tiny | {"methods": [method]})
    method["criteria"] = [{"name": "local_steps", "as": "steps"}]
    load_experiment(tiny | {"methods": [method]})


def test_a_server_without_samples_cannot_train(tiny: dict[str, Any]) -> None:
    judged_by_clients = tiny | {"server_set": {"source": "clients"}, "methods": ["FLTrust"]}
    with pytest.raises(ConfigError, match=r"criteria\[0\]: needs samples of the server"):
        load_experiment(judged_by_clients)


def test_every_method_runs_and_learns(tiny: dict[str, Any], tmp_path: Path) -> None:
    config = tiny | {"rounds": 2, "federation": {}, "devices": {}, "methods": list(METHODS)}
    config["partition"] = {
        "name": "iid",
        "clients": 6,
    }  # so that one client alone, as Krum's, learns what counts
    run = cw.Run(cw.run(config, tmp_path / "run"))
    for name in METHODS:
        before, after = curve(run, "loss", name).values()
        assert after < before, f"{name}: {before:.3f}, {after:.3f}"
        assert rows(run, "rounds", name)["notes"].sum() == [], name


def test_focus_takes_the_weight_of_wrong_labels(tiny: dict[str, Any], tmp_path: Path) -> None:
    harder = {"name": "harder", "like": "FOCUS", "evidence": {"alpha": 5.0}}
    config = tiny | {"rounds": 6, "federation": {}, "methods": ["FedAvg", "FOCUS", harder]}
    config["partition"] = {"name": "iid", "clients": 6}
    config["hostile"] = [{"attack": "wrong_labels", "clients": [5]}]
    weights = cw.run(config, tmp_path / "run").weights
    assert weights.loc[("FedAvg", 5), 6] == pytest.approx(1 / 6, rel=0.1)
    assert weights.loc[("FOCUS", 5), 6] < 0.14
    assert weights.loc[("harder", 5), 6] < 0.03
    assert weights.loc["harder"][6].drop(5).min() > 0.18


def test_a_control_federates_nothing(tiny: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match="control: is not federated learning: rule would have no effect"
    ):
        load_experiment(tiny | {"methods": [{"like": "Pooled", "rule": "median"}]})
    with pytest.raises(
        ConfigError, match=r'control: needs all samples in this process: use engine = "local"'
    ):
        load_experiment(tiny | {"engine": "flower", "methods": ["Alone"]})
    with pytest.raises(ConfigError, match="control: needs samples of the server"):
        load_experiment(tiny | {"server_set": {"source": "clients"}, "methods": ["ServerOnly"]})


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (
            ["all of it,FedAvg"],
            ["FedAvg", "all of it"],
        ),  # the order of the config: its first is the baseline
        (["FedYogi", "FedAvg"], ["FedAvg", "FedYogi"]),  # one that the config has not
        (["a, b"], ["a, b"]),
        ("FedAvg", ["FedAvg"]),
    ],
)
def test_methods_are_picked_by_name(tiny: dict[str, Any], given: Any, names: list[str]) -> None:
    tiny["methods"].append({"name": "a, b", "criteria": ["label_diversity"]})
    assert [
        method.name for method in load_experiment(tiny, replaced={"methods": given}).methods
    ] == names
    assert [method.name for method in load_experiment(tiny, [f"methods={given}"]).methods] == names
    with pytest.raises(
        ConfigError, match="methods: there is no method 'FedAvgg'; did you mean 'FedAvg'"
    ):
        load_experiment(tiny, ["methods=['FedAvgg']"])
    with pytest.raises(ConfigError, match="two methods are called 'FedAvg'"):
        load_experiment({**tiny, "methods": ["FedAvg", "FedYogi", "FedAvg"]})


def test_fedavg_under_another_name_can_be_written_out_twice(tiny: dict[str, Any]) -> None:
    once = write_out([{"name": "DS", "like": "FedAvg"}])
    assert write_out(once) == once

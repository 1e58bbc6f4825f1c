"""Honest clients that swap their data in a round: still honest everywhere, and recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import clientwise as cw
from clientwise.errors import ConfigError
from clientwise.experiment.build.data import build_data, load_samples
from clientwise.experiment.load import load_experiment
from clientwise.experiment.matrix.grid import load_matrix
from clientwise.record.run import RunFolder
from clientwise.report.explanation import Round, explain
from recorded import curve, everything, rows

CONFIG: dict[str, Any] = {
    "name": "new data",
    "rounds": 6,
    "device": "cpu",
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 10, "concentration": 0.3},
    "model": "linear",
    "training": {"batch_size": 20, "learning_rate": 0.1},
    "server_set": {"fraction": 0.3, "report_fraction": 0.6},
    "hostile": [{"clients": [2, 5, 7], "attack": "new_data", "from_round": 4}],
    "methods": ["Recommended", "KnowsHonestTuned"],
}


@pytest.mark.parametrize(("clients", "swapped"), [([2, 5, 7], (2, 5, 7)), ([9], (9, 0))])
def test_each_client_of_a_group_gets_the_samples_of_the_next(
    clients: list[int], swapped: tuple[int, ...]
) -> None:
    group = CONFIG["hostile"][0] | {"clients": clients}
    experiment = load_experiment(CONFIG | {"hostile": [group]})
    data, hostile = build_data(experiment, load_samples(experiment), 1)
    assert hostile == {}
    assert data.train_in(3) is data.train
    after = data.train_in(4)
    assert data.new_data[0].clients == swapped
    others = set(range(10)) - set(swapped)
    sources = dict(zip(swapped, (*swapped[1:], swapped[0]), strict=True))
    for client, source in [*sources.items(), *((other, other) for other in others)]:
        held = after.indices[after.slice(client)]
        assert torch.equal(held, data.train.indices[data.train.slice(source)])


def test_clients_with_new_data_are_honest_and_the_audit_names_them(tmp_path: Path) -> None:
    run = cw.Run(cw.run(CONFIG, tmp_path / "run"))
    plain = cw.Run(cw.run(CONFIG | {"hostile": []}, tmp_path / "plain"))
    clients = run.frame("clients").set_index("client")
    assert clients["hostile"].isna().all()
    assert run.facts.new_data == {1: [(4, [2, 5, 7])]}
    assert plain.facts.new_data == {}
    curves = [list(curve(one, "metric", "Recommended").values()) for one in (run, plain)]
    assert curves[0][:3] == curves[1][:3]
    assert curves[0][3:] != curves[1][3:]
    assert rows(run, "weights", "KnowsHonestTuned", 1, 6)["weight"].min() > 0
    reported = rows(run, "criteria", "Recommended", 1, 6).set_index("client")["raw"]
    assert reported[2] == clients.loc[5, "num_train"]
    facts = {one.client: one for one in explain(Round(RunFolder(run.folder), "Recommended", 1, 4))}
    assert facts[2].new_data_since == 4
    assert "It has new data since round 4." in facts[2].known_facts()
    assert facts[0].new_data_since is None
    before = explain(Round(RunFolder(run.folder), "Recommended", 1, 3))
    assert {one.new_data_since for one in before} == {None}


@pytest.mark.bits
def test_a_change_survives_a_checkpoint_to_the_bit(tmp_path: Path) -> None:
    whole = cw.Run(cw.run(CONFIG, tmp_path / "whole"))
    cw.run(CONFIG | {"rounds": 4}, tmp_path / "parts")
    parts = cw.Run(cw.run(CONFIG, tmp_path / "parts", resume=True))
    assert everything(whole) == everything(parts)


def test_attackers_and_changed_clients_go_together(tmp_path: Path) -> None:
    poisoned = {"clients": [0, 1], "attack": "mirrored_labels", "from_round": 2}
    run = cw.Run(cw.run(CONFIG | {"hostile": [*CONFIG["hostile"], poisoned]}, tmp_path / "run"))
    clients = run.frame("clients")
    assert clients.loc[clients["hostile"].notna(), "client"].tolist() == [0, 1]
    assert rows(run, "refusals", "Recommended").empty


@pytest.mark.parametrize(
    "changed",
    [{"from_round": 1}, {"attack": ["new_data", "sign_flip"]}, {"probability": 0.5}],
)
def test_what_does_not_go_with_it_is_refused(changed: dict[str, Any]) -> None:
    message = (
        r"hostile\[0\]\.attack: new_data .*: use it alone, from round 2 on, without probability"
    )
    with pytest.raises(ConfigError, match=message):
        load_experiment(CONFIG | {"hostile": [CONFIG["hostile"][0] | changed]})


def test_every_kind_of_column_has_every_share_and_clean_stands_once() -> None:
    config = {key: value for key, value in CONFIG.items() if key != "hostile"}
    flip = {"name": "sign_flip", "strength": 2.0}
    attacks = {
        "delayed": {"attack": flip, "from_round": 4},
        "on-off": {"attack": flip, "probability": 0.4},
        "new data": {"attack": "new_data", "from_round": 4},
    }
    matrix = load_matrix(config | {"matrix": {"attacks": attacks, "shares": [0.2, 0.4]}})
    expected = ["clean"]
    for name in attacks:
        expected += [f"{name} 20%", f"{name} 40%"]
    assert [cell.column for cell in matrix.cells] == expected
    for cell in matrix.cells[1:]:
        (group,) = cell.experiment.hostile
        data, hostile = build_data(cell.experiment, load_samples(cell.experiment), 1)
        changed = {client for one in data.new_data for client in one.clients}
        assert len(changed | hostile.keys()) == round(10 * group.clients)

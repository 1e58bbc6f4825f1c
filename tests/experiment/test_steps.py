"""Batches by default, and the steps that clients and the server train in a round."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import clientwise as cw
from clientwise.cli import app
from clientwise.core.types import LocalTraining
from clientwise.experiment.build.data import build_data, load_samples
from clientwise.experiment.build.engine import build_plan
from clientwise.experiment.checks.describe import describe
from clientwise.experiment.checks.steps import count_steps
from clientwise.experiment.config.named import METHODS
from clientwise.experiment.load import load_experiment
from clientwise.experiment.running.about import about_method
from clientwise.record.run import RunFolder
from clientwise.report.about import about
from reported import headline_of, items_of, printed

ON_SERVER = ["BR-DRAG", "FLTrust", "FedLAW", "KnowsHonestTuned", "Recommended", "ServerOnly"]
ON_SERVER += ["ServerTuning"]


@pytest.fixture
def unequal(tiny: dict[str, Any]) -> dict[str, Any]:
    """One step of a client in a round, and twelve of the server."""
    methods = ["FedAvg", "ServerTuning", "ServerOnly", "Pooled"]
    return tiny | {"rounds": 1, "training": {"batch_size": "full"}, "methods": methods}


def test_clients_train_in_batches_by_default(tiny: dict[str, Any]) -> None:
    del tiny["training"]
    assert load_experiment(tiny).training.build() == LocalTraining()
    assert LocalTraining().batch_size == 32
    full = load_experiment(tiny | {"training": {"batch_size": "full"}})
    assert full.training.build().batch_size is None


def test_steps_are_those_that_are_trained(tiny: dict[str, Any]) -> None:
    tiny["methods"] = ["FedAvg", {"name": "ServerTuning", "training": {"epochs": 3}}, "FLTrust"]
    experiment = load_experiment(tiny)
    data, _ = build_data(experiment, load_samples(experiment), 1)
    fedavg, tuning, trust = count_steps(experiment, [data])
    assert data.weigh is not None
    sizes = data.train.sizes.tolist()
    weighing = len(data.weigh.indices)
    assert (fedavg.least, fedavg.most) == (-(-min(sizes) // 20), -(-max(sizes) // 20))
    assert (tuning.least, tuning.server) == (3 * (fedavg.least or 0), 4 * -(-weighing // 80))
    assert (fedavg.server, trust.server) == (0, -(-weighing // 20))
    cohort = build_plan(experiment, len(sizes), 1).cohort_size
    mean = statistics.mean(-(-size // 20) for size in sizes)
    in_round = (1 + 3 + 1) * cohort * mean + tuning.server + trust.server
    (cost,) = [line for line in describe(experiment) if line.startswith("cost")]
    assert f"about {in_round * experiment.rounds:,.0f} training steps" in cost


def test_check_says_the_steps_and_warns_where_they_differ_by_much(
    tiny: dict[str, Any], unequal: dict[str, Any]
) -> None:
    said = "\n".join(describe(load_experiment(unequal)))
    assert "steps/round client 1; server 12 (ServerTuning), 1 (ServerOnly)" in said
    assert "warning     ServerTuning trains 12 steps a round on the server's samples" in said
    tiny["methods"] = ["FedAvg", "ServerTuning"]
    assert "warning" not in "\n".join(describe(load_experiment(tiny)))


def test_a_run_records_its_steps_and_marks_who_trains_on_the_server(
    unequal: dict[str, Any], tmp_path: Path
) -> None:
    run = RunFolder(cw.run(unequal, tmp_path / "run"))
    assert dict(about(RunFolder(run.folder)))["steps a round"].startswith(
        "client 1; server 12 (ServerTuning)"
    )
    shown = CliRunner().invoke(app, ["show", str(run.folder)]).output
    assert "steps a round  client 1; server 12" in shown
    assert headline_of(run)[0].startswith("ServerTuning trains 12 steps a round")
    footnote = "‡ Trains on the server's samples, which the other methods do not."
    assert footnote in printed(run)
    table = items_of(run)["summary"]
    assert footnote in table.note
    marked = {row[0] for row in table.texts() if "‡" in row[0]}
    assert marked == {"ServerTuning\xa0‡", "ServerOnly\xa0‡"}


def test_the_mark_follows_from_what_a_method_needs(tiny: dict[str, Any]) -> None:
    methods = load_experiment(tiny | {"devices": {}, "methods": list(METHODS)}).methods
    marked = [one.name for one in methods if about_method(one).trains_on_server]
    assert sorted(marked) == sorted(ON_SERVER)


def test_a_run_goes_on_with_the_batches_it_began_with(
    unequal: dict[str, Any], tmp_path: Path
) -> None:
    folder = cw.run(unequal, tmp_path / "run")
    assert cw.load(folder / "config.toml").training.batch_size == "full"
    cw.run(folder / "config.toml", folder, resume=True)
    changed = unequal | {"training": {}, "rounds": 2}
    with pytest.raises(cw.ClientwiseError, match=r"training.batch_size = 32 \(was 'full'\)"):
        cw.run(changed, folder, resume=True)

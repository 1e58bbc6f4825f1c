"""The model of the best round, by the held-out loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import clientwise as cw
from clientwise.experiment.checks.describe import describe
from clientwise.experiment.load import load_experiment
from clientwise.record.run import RunFolder
from recorded import curve
from reported import headline_of

CONFIG: dict[str, Any] = {
    "data": "digits",
    "model": "linear",
    "rounds": 12,
    "partition": {"name": "iid", "clients": 4},
    "methods": ["FedAvg"],
    "training": {"learning_rate": 3.0, "optimizer": "adam"},  # too large: the loss jumps
    "device": "cpu",
}
KEEPS = {**CONFIG, "keep": "best"}


@pytest.mark.parametrize("settings", [{"keep": "best"}, {}])
def test_it_says_where_the_server_trains_on_the_samples_that_choose(
    settings: dict[str, Any],
) -> None:
    methods = ["FedAvg", "Recommended", "ServerOnly"]
    text = "\n".join(describe(load_experiment({**CONFIG, **settings, "methods": methods})))
    for name in methods:
        said = f"{name}: the held-out loss (keep) is a training loss"
        assert (said in text) == (bool(settings) and name != "FedAvg")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> cw.Run:
    return cw.run(KEEPS, tmp_path_factory.mktemp("kept") / "run", progress=False)


def best_round(run: cw.Run) -> int:
    number, _ = RunFolder(run.folder).trained("FedAvg", 1)
    return number


def vector(run: cw.Run) -> torch.Tensor:
    _, tensors = RunFolder(run.folder).trained("FedAvg", 1)
    return torch.cat([one.flatten() for one in tensors.values()])


@pytest.mark.bits
def test_the_kept_model_is_that_of_the_best_round(kept: cw.Run, tmp_path: Path) -> None:
    best = best_round(kept)
    rounds = kept.frame("rounds").set_index("round")
    assert rounds["held_out_loss"].idxmin() == best < len(rounds)
    metrics = curve(kept, "metric", "FedAvg")
    assert max(metrics, key=metrics.__getitem__) != best  # otherwise the metric may have chosen
    plain = cw.run({**CONFIG, "rounds": best}, tmp_path / "best", progress=False)
    assert torch.equal(vector(kept), vector(plain))
    longer = cw.run(CONFIG, tmp_path / "last", progress=False)
    assert not torch.equal(vector(kept), vector(longer))
    assert rounds["loss"].tolist() == longer.frame("rounds")["loss"].tolist()
    module = torch.cat([one.detach().flatten() for one in kept.module.parameters()])
    assert torch.equal(module, vector(kept))


def test_the_page_says_which_round_and_that_results_are_of_the_last(
    kept: cw.Run, tmp_path: Path
) -> None:
    page = kept.report(tmp_path).read_text(encoding="utf-8")
    assert f"use the model of round {best_round(kept)} (seed 1)" in page
    assert "Reported results are of the last round." in page


@pytest.mark.bits
def test_a_resumed_run_keeps_the_same_model(kept: cw.Run, tmp_path: Path) -> None:
    best = best_round(kept)
    for rounds in (best - 1, best + 1, 12):
        config = {**KEEPS, "rounds": rounds}
        again = cw.run(config, tmp_path / "run", resume=rounds >= best, progress=False)
    assert best_round(again) == best
    assert torch.equal(vector(again), vector(kept))


def test_clients_that_train_alone_have_no_model_to_keep(tmp_path: Path) -> None:
    run = cw.run({**KEEPS, "methods": ["FedAvg", "Alone"]}, tmp_path / "run", progress=False)
    assert [RunFolder(run.folder).about(name).control for name in run.methods] == [None, "alone"]
    assert not any("Alone: predictions" in line for line in headline_of(run))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"server_set": {"fraction": 0.0}, "evaluation": {"test_fraction": 0.0}},
            "keep: needs held-out samples",
        ),
        ({"keep": "bset"}, "keep = 'bset': must be 'last' or 'best'"),
    ],
)
def test_what_cannot_choose_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(cw.ClientwiseError) as caught:
        load_experiment({**KEEPS, **options})
    assert said in str(caught.value)

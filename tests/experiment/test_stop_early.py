"""Runs that end by their held-out loss, and the model of the best round."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import clientwise as cw
from clientwise.experiment.checks.describe import describe
from clientwise.experiment.load import load_experiment
from clientwise.experiment.running.lanes import HeldOut, is_watched
from clientwise.record.run import RunFolder
from clientwise.report.about import about
from recorded import curve
from reported import headline_of, printed, results_of

CONFIG: dict[str, Any] = {
    "data": "digits",
    "model": "linear",
    "rounds": 12,
    "partition": {"name": "iid", "clients": 4},
    "methods": ["FedAvg"],
    "training": {"learning_rate": 3.0, "optimizer": "adam"},  # too large: the loss jumps
    "device": "cpu",
}
STOPS = {
    **CONFIG,
    "rounds": 60,
    "stop_early": 3,
    "keep": "best",
}  # it stops long before


def held_out(losses: list[float]) -> HeldOut:
    found = HeldOut()
    for number, loss in enumerate(losses, 1):
        found = found.after(loss, torch.full((2,), number))
    return found


def stop(losses: list[float], rounds: int) -> int | None:
    numbers = range(1, len(losses) + 1)
    return next((one for one in numbers if held_out(losses[:one]).stops(rounds)), None)


def test_it_stops_after_rounds_in_a_row_without_a_lower_loss() -> None:
    assert stop([5, 4, 4, 5, 3, 3, 3, 3], rounds=3) == 8
    assert stop([5, 4, 4, 5, 3, 3, 3, 3], rounds=2) == 4
    assert stop([5, 4, 3, 2, 1], rounds=1) is None
    assert stop([math.nan, math.nan, math.nan], rounds=2) == 2
    assert stop([5, math.nan, 4, math.nan, math.nan], rounds=2) == 5


@pytest.mark.parametrize("settings", [{"stop_early": 2}, {"keep": "best"}, {}])
def test_it_says_where_the_server_trains_on_the_samples_that_choose(
    settings: dict[str, Any],
) -> None:
    methods = ["FedAvg", "Recommended", "ServerOnly"]
    text = "\n".join(describe(load_experiment({**CONFIG, **settings, "methods": methods})))
    for name in methods:
        said = f"{name}: the held-out loss (stop_early, keep) is a training loss"
        assert (said in text) == (bool(settings) and name != "FedAvg")


def test_the_best_round_is_the_first_with_the_lowest_loss_and_its_model_is_kept() -> None:
    losses = [3, math.nan, 1, 2, 1]
    for until, best in enumerate([None, 1, 1, 3, 3, 3]):
        found = held_out(losses[:until])
        assert found.best == best
        again = HeldOut.of(found.tensors())
        assert again.best == best
        assert best is None or again.model.tolist() == [best, best]  # type: ignore[union-attr]
    assert held_out([math.nan]).best is None


def test_a_lane_that_runs_all_its_rounds_has_not_stopped_early(tmp_path: Path) -> None:
    """It does once rounds are added that are not run."""
    config = {**CONFIG, "stop_early": 2, "training": {"learning_rate": 1e-30}}
    for rounds, stopped in ((3, False), (5, True)):
        config["rounds"] = rounds
        run = cw.run(config, tmp_path / "run", resume=rounds > 3, progress=False)
        assert len(run.frame("rounds")) == 3
        assert run.finished
        assert (run.lanes["rounds"].item() < run.facts.rounds) is stopped
        page = run.report(tmp_path / "page").read_text(encoding="utf-8")
        assert ("stopped early" in page) is stopped
    told: list[Any] = []
    config["seeds"] = [1, 2]
    cw.run(
        config,
        tmp_path / "run",
        resume=True,
        progress=False,
        on_round=lambda _, one: told.append(one),
    )
    assert told[-1].done == told[-1].total == 6


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped") / "run"
    cw.run(STOPS, folder, progress=False)
    return folder


def vector(run: cw.Run) -> torch.Tensor:
    _, tensors = RunFolder(run.folder).trained("FedAvg", 1)
    return torch.cat([one.flatten() for one in tensors.values()])


@pytest.mark.bits
def test_the_kept_model_is_that_of_the_best_round(stopped: Path, tmp_path: Path) -> None:
    run = cw.Run(stopped)
    best, _ = RunFolder(run.folder).trained("FedAvg", 1)
    last = len(run.frame("rounds"))
    assert last == best + 3 < 60
    plain = cw.run({**CONFIG, "rounds": best}, tmp_path / "best", progress=False)
    assert torch.equal(vector(run), vector(plain))
    longer = cw.run({**CONFIG, "rounds": last}, tmp_path / "last", progress=False)
    assert not torch.equal(vector(run), vector(longer))
    module = torch.cat([one.detach().flatten() for one in run.module.parameters()])
    assert torch.equal(module, vector(run))
    kept = run.frame("rounds")["loss"].tolist()
    assert kept == longer.frame("rounds")["loss"].tolist()


def test_the_record_and_the_page_say_it(stopped: Path, tmp_path: Path) -> None:
    run = cw.Run(stopped)
    best, _ = RunFolder(run.folder).trained("FedAvg", 1)
    last = best + 3
    assert run.finished
    rounds = run.frame("rounds")
    assert rounds.set_index("round")["held_out_loss"].idxmin() == best
    (note,) = rounds["notes"].iloc[-1]
    assert note == (
        f"stopped early: the held-out loss did not fall for 3 rounds; it was lowest in round {best}"
    )
    path = run.report(tmp_path)
    page = path.read_text(encoding="utf-8")
    said = (
        f"after round {last} (seed 1) of 60: the held-out loss was lowest in round {best} (seed 1)"
    )
    assert said in page
    shown = [*printed(run), *map(str, about(results_of(run).runs[0]))]
    assert " ".join(shown).count("stopped early") == 1  # what `show` prints
    assert page.count("stopped early") == 2  # in the headline, and in the audit of its last round
    assert "Reported results are of the last round." in page


def test_clients_that_train_alone_have_no_model_to_keep(tmp_path: Path) -> None:
    config = {**STOPS, "methods": ["FedAvg", "Alone"]}
    run = cw.run(config, tmp_path / "run", progress=False)
    assert [RunFolder(run.folder).about(name).control for name in run.methods] == [None, "alone"]
    assert not any("Alone: predictions" in line for line in headline_of(run))


def test_a_stopped_run_has_nothing_to_resume(stopped: Path) -> None:
    before = cw.Run(stopped).frame("rounds")
    told: list[Any] = []
    for rounds in (60, 75):
        config = {**STOPS, "rounds": rounds}
        cw.run(
            config, stopped, resume=True, progress=False, on_round=lambda _, one: told.append(one)
        )
        after = cw.Run(stopped)
        assert after.finished
        assert after.frame("rounds").equals(before)
    assert not told


@pytest.mark.bits
def test_a_resumed_run_stops_in_the_same_round(stopped: Path, tmp_path: Path) -> None:
    whole = cw.Run(stopped)
    best, _ = RunFolder(whole.folder).trained("FedAvg", 1)
    for rounds in (best - 1, best + 1, 60):
        config = {**STOPS, "rounds": rounds}
        cw.run(config, tmp_path / "run", resume=rounds >= best, progress=False)
    again = cw.Run(tmp_path / "run")
    assert again.frame("rounds")["loss"].tolist() == whole.frame("rounds")["loss"].tolist()
    assert torch.equal(vector(again), vector(whole))


def test_lanes_side_by_side_stop_on_their_own(tmp_path: Path) -> None:
    config = {**STOPS, "seeds": [1, 2], "methods": ["FedAvg", "FedYogi"]}
    told: list[Any] = []
    run = cw.run(config, tmp_path / "run", progress=False, on_round=lambda _, one: told.append(one))
    counts = run.frame("rounds").groupby(["method", "seed"]).size().to_dict()
    assert len({*counts.values()}) > 1
    assert run.finished
    assert told[-1].done == told[-1].total == sum(counts.values())
    for one in results_of(run).methods:
        assert one.metric.shape == (60, 2), (
            "the model stays where a seed stopped, and so does its metric"
        )
        assert one.metric.iloc[-1].mean() == pytest.approx(one.mean_metric)


def test_without_held_out_samples_it_is_refused() -> None:
    config = {**STOPS, "server_set": {"fraction": 0.0}, "evaluation": {"test_fraction": 0.0}}
    with pytest.raises(cw.ClientwiseError) as caught:
        load_experiment(config)
    assert "stop_early: needs held-out samples" in str(caught.value)
    assert "keep: needs held-out samples" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stop_early": 0}, "stop_early = 0: must be greater than 0"),
        ({"keep": "bset"}, "keep = 'bset': must be 'last' or 'best'"),
    ],
)
def test_what_is_out_of_range_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(cw.ClientwiseError) as caught:
        load_experiment({**CONFIG, **options})
    assert said in str(caught.value)


def test_by_default_no_round_is_evaluated_once_more() -> None:
    assert is_watched(load_experiment(STOPS))
    assert not is_watched(load_experiment(CONFIG))
    assert HeldOut().tensors() == {}


def test_best_is_by_the_held_out_loss(stopped: Path) -> None:
    run = cw.Run(stopped)
    kept, _ = RunFolder(run.folder).trained("FedAvg", 1)
    metrics = curve(run, "metric", "FedAvg")
    assert max(metrics, key=metrics.__getitem__) != kept  # otherwise nothing is tested

"""Runs that evaluate a sample of their clients: what is recorded, what is shown, and how they resume."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
from test_runner import content

import clientwise as cw
from clientwise.errors import ConfigError
from clientwise.experiment.load import load_experiment
from clientwise.record.run import RunFolder
from recorded import curve, rows
from reported import items_of, printed

pytestmark = pytest.mark.bits

CLIENTS = 40
DRAWN = 25
CONFIG: dict[str, Any] = {
    "name": "sampled",
    "rounds": 3,
    "device": "cpu",
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": CLIENTS, "concentration": 0.5},
    "model": "linear",
    "federation": {"fraction": 0.5},
    "hostile": [{"clients": [0, 1, 2, 3], "attack": "wrong_labels"}],
    "methods": ["FedAvg", {"name": "diverse", "criteria": ["label_diversity"]}],
    "server_set": {"report_fraction": 0.0},
    "evaluation": {"clients_sample": DRAWN},
}


def config(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(CONFIG) | changes


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same run with a sample, and with all clients."""
    folder = tmp_path_factory.mktemp("runs")
    return (
        cw.run(config(), folder / "part", progress=False),
        cw.run(config(evaluation={}), folder / "whole", progress=False),
    )


def test_methods_of_a_seed_evaluate_the_same_clients_to_the_same_bits(
    folders: tuple[Path, Path],
) -> None:
    part, whole = (RunFolder(folder) for folder in folders)
    some, all_ = (one.frame("local") for one in (part, whole))
    assert len(some) < len(all_)
    assert len(some.merge(all_, on=list(some))) == len(some)
    samples = {key: {*clients} for key, clients in some.groupby(["method", "round"])["client"]}
    for round_num in (1, 2, 3):
        assert samples["FedAvg", round_num] == samples["diverse", round_num]
    assert samples["FedAvg", 1] != samples["FedAvg", 2]
    assert content(folders[0])["checkpoints"] == content(folders[1])["checkpoints"]


def test_the_error_is_recorded_with_the_mean(folders: tuple[Path, Path]) -> None:
    """By hand, from the rows of the honest clients that were drawn."""
    part, whole = (RunFolder(folder) for folder in folders)
    sizes = part.frame("clients").set_index("client")["num_test"]
    own = rows(part, "local", "FedAvg", 1, 3)
    own = own[own["hostile"].isna()]
    held = list(zip(sizes[own["client"]], own["metric"], strict=True))
    total = sum(size for size, _ in held)
    mean = sum(size * metric for size, metric in held) / total
    squares = sum((size * (metric - mean)) ** 2 for size, metric in held)
    error = math.sqrt((1 - DRAWN / CLIENTS) * DRAWN / (DRAWN - 1) * squares) / total
    (reported,) = rows(part, "rounds", "FedAvg", 1, 3).to_dict("records")
    assert (reported["metric"], reported["local_mean"]) == pytest.approx((mean, mean))
    assert reported["sampling_error"] == pytest.approx(error)
    assert 0 < abs(mean - curve(whole, "metric", "FedAvg")[3]) < 4 * error
    assert set(part.frame("rounds")["sampled"]) == {DRAWN}
    assert not {"sampled", "sampling_error"} & {*whole.frame("rounds")}
    assert RunFolder(part.folder).right("FedAvg", 1) is None  # other rounds have other samples


def test_it_says_that_results_are_of_a_sample(folders: tuple[Path, Path]) -> None:
    part, whole = (RunFolder(folder) for folder in folders)
    said = " ".join(printed(part))
    assert "on a random sample of 25 clients in a round; the standard error" in said
    largest = rows(part, "rounds", round_num=3)["sampling_error"].max()
    assert f"is at most {100 * largest:.2g} points." in said
    assert "a tenth of the honest sampled clients" in said
    assert "25 clients" in items_of(part)["summary"].note
    assert "sample" not in " ".join(printed(whole))


def test_a_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """With held-out samples, round 1 is evaluated as the last one and no longer due in a longer run."""
    longer = config(server_set={}, evaluation={"clients_sample": DRAWN, "clients_every": 2})
    whole = cw.run(longer, tmp_path / "whole", progress=False)
    grown = cw.run(longer | {"rounds": 1}, tmp_path / "grown", progress=False)
    assert cw.Run(grown).frame("rounds")["sampled"].tolist() == [DRAWN] * 2
    cw.run(longer, grown, resume=True, progress=False)
    assert content(grown) == content(whole)
    for method in whole.methods:
        assert curve(whole, "sampled", method) == {2: DRAWN, 3: DRAWN}


def test_a_sample_as_large_as_the_federation_is_all_of_it(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    everyone = cw.run(config(evaluation={"clients_sample": CLIENTS}), tmp_path / "all")
    assert content(everyone) == content(folders[1])
    assert "sampled" not in cw.Run(everyone).frame("rounds")


def test_check_refuses_what_cannot_be_sampled(tiny: dict[str, Any]) -> None:
    def load(**evaluation: Any) -> None:
        load_experiment(tiny | {"evaluation": evaluation})

    with pytest.raises(ConfigError, match=r"adjust: .* leave out evaluation.clients_sample"):
        load(clients_sample=3)
    tiny["methods"] = ["FedAvg"]
    load(clients_sample=3)
    with pytest.raises(ConfigError, match="clients_sample = 1: must be at least 2"):
        load(clients_sample=1)

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
from clientwise.record.reading.folder import RunFolder
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
OWN = "SELECT lane, round_num, client, metric, loss FROM local ORDER BY 1, 2, 3"


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
    some = part.query(OWN)
    assert {*some} < {*whole.query(OWN)}
    samples: dict[tuple[int, int], set[int]] = {}
    for lane, round_num, client, *_ in some:
        samples.setdefault((lane, round_num), set()).add(client)
    for round_num in (1, 2, 3):
        assert samples[1, round_num] == samples[2, round_num]
    assert samples[1, 1] != samples[1, 2]
    assert content(folders[0])["checkpoints"] == content(folders[1])["checkpoints"]


def test_the_error_is_recorded_with_the_mean(folders: tuple[Path, Path]) -> None:
    """By hand, from the rows of the honest clients that were drawn."""
    part, whole = (RunFolder(folder) for folder in folders)
    sizes = dict(part.query("SELECT client, num_test FROM clients WHERE hostile IS NULL"))
    own = part.query("SELECT client, metric FROM local WHERE lane = 1 AND round_num = 3")
    held = [(sizes[client], metric) for client, metric in own if client in sizes]
    total = sum(size for size, _ in held)
    mean = sum(size * metric for size, metric in held) / total
    squares = sum((size * (metric - mean)) ** 2 for size, metric in held)
    error = math.sqrt((1 - DRAWN / CLIENTS) * DRAWN / (DRAWN - 1) * squares) / total
    (reported,) = part.query(
        "SELECT metric, local_mean FROM rounds WHERE lane = 1 AND round_num = 3"
    )
    assert reported == pytest.approx((mean, mean))
    assert dict(part.sampling_errors("FedAvg", 1))[3] == pytest.approx(error)
    ((true_mean,),) = whole.query("SELECT metric FROM rounds WHERE lane = 1 AND round_num = 3")
    assert 0 < abs(mean - true_mean) < 4 * error
    assert part.clients_drawn() == DRAWN
    assert whole.clients_drawn() is None
    assert not whole.sampling_errors("FedAvg", 1)
    assert part.best_round("FedAvg", 1) is None  # other rounds have other samples


def test_it_says_that_results_are_of_a_sample(folders: tuple[Path, Path]) -> None:
    part, whole = (RunFolder(folder) for folder in folders)
    said = " ".join(printed(part))
    assert "on a random sample of 25 clients in a round; the standard error" in said
    largest = max(dict(part.sampling_errors(method, 1))[3] or 0 for method in part.methods)
    assert f"is at most {100 * largest:.2g} points." in said
    assert "a tenth of the honest sampled clients" in said
    assert "25 clients" in items_of(part)["summary"].note
    assert "sample" not in " ".join(printed(whole))


def test_a_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """With held-out samples, round 1 is evaluated as the last one and no longer due in a longer run."""
    longer = config(server_set={}, evaluation={"clients_sample": DRAWN, "clients_every": 2})
    sql = "SELECT * FROM sampled ORDER BY 1, 2"
    whole = cw.run(longer, tmp_path / "whole", progress=False)
    grown = cw.run(longer | {"rounds": 1}, tmp_path / "grown", progress=False)
    assert len(cw.Run(grown).query(sql)) == 2
    cw.run(longer, grown, resume=True, progress=False)
    assert content(grown) == content(whole)
    assert cw.Run(grown).query(sql) == cw.Run(whole).query(sql)
    assert [row[:3] for row in cw.Run(whole).query(sql)] == [
        (lane, round_num, DRAWN) for lane in (1, 2) for round_num in (2, 3)
    ]


def test_rows_of_the_sample_are_kept_where_the_record_is_thinned(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    thin = cw.run(config(record={"clients": 3}), tmp_path / "thin", progress=False)
    part = RunFolder(folders[0])
    assert cw.Run(thin).query(OWN) == part.query(OWN)
    assert cw.Run(thin).sampling_errors("FedAvg", 1) == part.sampling_errors("FedAvg", 1)


def test_a_sample_as_large_as_the_federation_is_all_of_it(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    everyone = cw.run(config(evaluation={"clients_sample": CLIENTS}), tmp_path / "all")
    assert content(everyone) == content(folders[1])
    assert cw.Run(everyone).clients_drawn() is None


def test_check_refuses_what_cannot_be_sampled(tiny: dict[str, Any]) -> None:
    def load(**evaluation: Any) -> None:
        load_experiment(tiny | {"evaluation": evaluation})

    with pytest.raises(ConfigError, match=r"clients_sample: the search of all of it \(adjust\)"):
        load(clients_sample=3)
    tiny["methods"] = ["FedAvg"]
    load(clients_sample=3)
    with pytest.raises(ConfigError, match="no effect with clients_every = 0"):
        load(clients_sample=3, clients_every=0)
    with pytest.raises(ConfigError, match="clients_sample = 1: must be at least 2"):
        load(clients_sample=1)

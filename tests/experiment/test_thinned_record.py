"""A run that records rows of some clients alone: counts, sums and weights are still those of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from clientwise.report.audit.round_audit import audit

import clientwise as cw
from clientwise.errors import RunError
from clientwise.experiment.checks.describe import describe
from clientwise.experiment.load import load_experiment
from clientwise.record.reading.folder import RunFolder
from clientwise.report.audit.explanation import explain

CLIENTS = 20
KEPT = 5
CONFIG: dict[str, Any] = {
    "name": "thinned",
    "rounds": 2,
    "device": "cpu",
    "data": "digits",
    "partition": {"name": "iid", "clients": CLIENTS},
    "model": "linear",
    "hostile": [
        {"clients": [0, 1, 2, 3], "attack": "sign_flip"},
        {"clients": [4, 5, 6, 7, 8, 9], "attack": "broken"},
    ],
    "methods": [
        {"name": "sums", "criteria": ["dataset_size", "label_diversity"]},
        {"name": "Recommended"},
    ],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same run with all rows, and with those of five clients."""
    folder = tmp_path_factory.mktemp("runs")
    thin = CONFIG | {"record": {"clients": KEPT}}
    return (
        cw.run(CONFIG, folder / "full", progress=False),
        cw.run(thin, folder / "thin", progress=False),
    )


@pytest.fixture
def runs(folders: tuple[Path, Path]) -> tuple[RunFolder, RunFolder]:
    full, thin = folders
    return RunFolder(full), RunFolder(thin)


def test_rows_are_those_of_the_full_record(runs: tuple[RunFolder, RunFolder]) -> None:
    full, thin = runs
    ((clients,),) = thin.query("SELECT COUNT(DISTINCT client) FROM participants")
    assert clients == KEPT
    for table in ("participants", "criteria", "local", "look_back"):
        columns = {"participants": "lane, round_num, client, refusal, score, weight"}.get(
            table, "*"
        )
        everything = set(full.query(f"SELECT {columns} FROM {table}"))
        some = set(thin.query(f"SELECT {columns} FROM {table}"))
        assert some < everything
        assert some


def test_counts_and_sums_are_over_all_clients(runs: tuple[RunFolder, RunFolder]) -> None:
    full, thin = runs
    for method in full.methods:
        assert thin.arrived(method) == full.arrived(method)
        assert dict(thin.refusal_counts(method)) == dict(full.refusal_counts(method))
        expected = dict(full.hostile_influences(method, 1))
        assert dict(thin.hostile_influences(method, 1)) == pytest.approx(expected)
        omitted = thin.omitted(method, 1, 1)
        recorded = thin.participants(method, 1, 1)
        assert omitted is not None
        assert omitted.total + len(recorded) == CLIENTS
        assert omitted.weight + sum(row.weight or 0 for row in recorded) == pytest.approx(1)
    for here, there in zip(full.summary(), thin.summary(), strict=True):
        assert there.refused == here.refused
        assert there.metric == here.metric
    columns = "metric, loss, local_mean, local_p10, local_p90, reached, notes"
    sql = f"SELECT {columns} FROM rounds ORDER BY lane, round_num"
    assert thin.query(sql) == full.query(sql)


def test_the_audit_says_what_is_left_out(runs: tuple[RunFolder, RunFolder]) -> None:
    full, thin = runs
    assert "rows of 5 of 20 participants" in audit(thin, "sums", 1, 1).notes[-1]
    whole = {one.client: one for one in explain(full, "sums", 1, 1)}
    for one in explain(thin, "sums", 1, 1):
        assert one.equal_share == whole[one.client].equal_share
        for own in one.criteria:  # the mean of a few is not that of all
            assert (own.mean, own.is_constant) == (None, False)


def test_a_run_in_which_the_recorded_clients_alone_are_refused_has_learned(tmp_path: Path) -> None:
    experiment = load_experiment(CONFIG | {"record": {"clients": 1}, "methods": ["FedAvg"]})
    (kept,) = experiment.record.of(CLIENTS, 1) or ()
    broken = {"hostile": [{"clients": [kept], "attack": "broken"}]}
    cw.run(CONFIG | broken | {"record": {"clients": 1}, "methods": ["FedAvg"]}, tmp_path / "a")
    others = [client for client in range(CLIENTS) if client != kept]
    broken = {"hostile": [{"clients": others, "attack": "broken"}]}
    cw.run(CONFIG | broken | {"record": {"clients": 1}, "methods": ["FedAvg"]}, tmp_path / "b")
    broken = {"hostile": [{"clients": list(range(CLIENTS)), "attack": "broken"}]}
    with pytest.raises(RunError, match=r"no update was ever accepted .*, 40 times"):
        cw.run(CONFIG | broken | {"record": {"clients": 1}, "methods": ["FedAvg"]}, tmp_path / "c")


def test_check_says_what_will_be_written() -> None:
    (line,) = [
        line
        for line in describe(load_experiment(CONFIG | {"record": {"clients": KEPT}}))
        if line.startswith("record")
    ]
    assert "rows of 5 of 20 clients" in line

"""The signed record and the counterfactuals of a deployment, with real processes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs clientwise[deployment]")

from federation import Federation

import clientwise as cw
from clientwise.experiment.running.recompute import recompute
from clientwise.hosts.deployment.ledger import read
from clientwise.record.reading.folder import RunFolder
from clientwise.record.signed.verify import verify

pytestmark = [pytest.mark.flower, pytest.mark.timeout(1800)]
NAMES = ["ward-a", "ward-b", "ward-c"]
ROUNDS = 2
SQL = """SELECT round_num, kind, excluded, tested, metric, loss FROM counterfactuals
         WHERE kind != 'size' ORDER BY 1, 2, 3, 4"""


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    one = Federation(tmp_path, NAMES)
    one.environment["SMALLEST_CELL"] = "1"  # exact results, to compare with a run in this process
    yield one
    one.stop()


def test_nodes_evaluate_what_they_agreed_to_and_have_receipts_of_all_rounds(
    federation: Federation,
) -> None:
    method = {"name": "FedAvg", "bounds": {"cap": 0.6}}
    evaluation = {"counterfactuals": True, "clients_every": 1}
    federation.configure({"rounds": ROUNDS, "evaluation": evaluation, "methods": [method]})
    federation.start()
    said = federation.agree("ward-a")
    agreed = int(re.findall(r"evaluate at most (\d+) models", said)[0])
    federation.wait_for_nodes()
    federation.begin()
    federation.wait_for_rounds(ROUNDS)
    federation.wait_until_finished()
    ended = federation.state / "run-events.jsonl"
    federation.wait_for(lambda: "finished" in ended.read_text(), 120, "the end of the run")

    # Chosen, uniform, without each of three, in one message a round
    for name in NAMES:
        noted = read(federation.state / "nodes" / name / "ledger.jsonl")
        asked = [one for one in noted if one["event"] == "asked" and one["kind"] == "evaluate"]
        assert [(one["round"], one["asked"]) for one in asked] == [(1, 5), (2, 5)]
        assert sum(one["cost"] for one in asked) == pytest.approx(2 * 5 / agreed)
    experiment = cw.load(federation.app / "federation" / "experiment.toml")
    local = cw.Run(cw.run(experiment, federation.app.parent / "local"))
    found, expected = federation.query(SQL), local.query(SQL)
    assert len(found) == len(expected) == ROUNDS * 5 * (1 + len(NAMES))
    for one, other in zip(found, expected, strict=True):
        assert one[:4] == other[:4]
        assert one[4:] == pytest.approx(other[4:], rel=1e-4, abs=1e-5)

    kept = [federation.state / "nodes" / name / "ledger-receipts.jsonl" for name in NAMES]
    verified = verify(federation.run_folder, receipts=kept)
    assert verified.faults == []
    assert verified.receipts == ROUNDS * len(NAMES)
    assert recompute(RunFolder(federation.run_folder), verified.members).faults == []

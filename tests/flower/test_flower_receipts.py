"""Receipts of the signed record: sent with the next request, kept and checked by the node."""

from __future__ import annotations

import json
import logging
import sqlite3
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.app import ConfigRecord, RecordDict
from grid import LoopGrid

import clientwise as cw
from clientwise.experiment.load import load_experiment
from clientwise.experiment.running.runner import run as run_experiment
from clientwise.flower import client_app
from clientwise.hosts.deployment.receipts import RECORD, Outbox, keep_receipts
from clientwise.hosts.deployment.signing import Signer
from clientwise.hosts.flower.connections import connector, simulated_clients
from clientwise.record.signed.chain import SignedChain
from clientwise.record.signed.keys import make_private_key, private_key
from clientwise.record.signed.receipts import receipts
from clientwise.record.signed.verify import verify

CONFIG: dict[str, Any] = {
    "name": "receipts",
    "engine": "flower",
    "rounds": 3,
    "data": "digits",
    "model": "linear",
    "partition": {"name": "iid", "clients": 3},
    "methods": ["FedAvg"],
}


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """A node's config."""
    make_private_key(tmp_path / "key")
    return {"ledger": str(tmp_path / "node.jsonl"), "server-keys": str(tmp_path / "key.pub")}


def kept(settings: dict[str, Any]) -> Path:
    return Path(settings["ledger"]).with_name("node-receipts.jsonl")


def test_every_node_gets_the_receipt_of_an_earlier_round(
    tmp_path: Path, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    experiment = load_experiment(CONFIG)
    outbox = Outbox()
    grid = LoopGrid(client_app(CONFIG))
    connect = connector(experiment, grid, simulated_clients(grid, 3), outbox=outbox)
    folder = run_experiment(
        experiment,
        tmp_path / "run",
        on_round=lambda progress: outbox.fill(tmp_path / "run"),
        engines=nullcontext(connect),
        signing_key=tmp_path / "key",
    )
    assert outbox.send(grid, {client: 2 + client for client in range(3)}, Signer()) == []
    # Short rounds are recorded during the next one, so their receipts travel one round later.
    with_receipt = [message for message in grid.sent if RECORD in message.content.config_records]
    with_receipt = [one for one in with_receipt if one.metadata.message_type != "query"]
    assert len(with_receipt) in (3, 6)
    assert grid.exchanges == 3 + 1 + 1  # three rounds, the last evaluation, the last receipts
    last = [message for message in grid.sent if message.metadata.message_type == "query"]
    assert len(last) == 3
    for message in [*with_receipt, *last]:
        if message.metadata.dst_node_id == 2 + 1:
            keep_receipts(message.content, settings)
            keep_receipts(message.content, settings)  # sent again
    assert not caplog.records
    found = verify(folder, receipts=[kept(settings)])
    assert found.faults == []
    assert found.receipts == 3


def message_with(receipt: dict[str, Any] | str) -> RecordDict:
    text = receipt if isinstance(receipt, str) else json.dumps(receipt)
    return RecordDict({RECORD: ConfigRecord({"receipts": [text]})})


def test_a_wrong_receipt_is_logged(
    tmp_path: Path, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    config = CONFIG | {"engine": "local", "rounds": 1}
    own = []
    for name in ("one", "two"):  # a server that keeps two records
        folder = cw.run(config, tmp_path / name, progress=False, signing_key=tmp_path / "key")
        own.append(receipts(folder)["client-0"][0])
    with caplog.at_level(logging.ERROR, "flwr.clientwise"):
        keep_receipts(message_with(own[0]), settings)
        assert not caplog.records
        for wrong in ("", "[]", "{}", own[0] | {"rows": []}, own[0] | {"signature": "00" * 64}):
            caplog.clear()
            keep_receipts(message_with(wrong), settings)
            assert "NOT VALID" in caplog.text
        caplog.clear()
        keep_receipts(message_with("x" * 2**21), settings)
        assert "not kept" in caplog.text
        caplog.clear()
        keep_receipts(message_with(own[1]), settings)  # of another run: no contradiction
        assert not caplog.records


def test_a_receipt_that_contradicts_an_earlier_one_is_logged(
    tmp_path: Path, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    config = CONFIG | {"engine": "local", "rounds": 1}
    folder = cw.run(config, tmp_path / "run", progress=False, signing_key=tmp_path / "key")
    first = receipts(folder)["client-0"][0]
    with sqlite3.connect(folder / "run.sqlite") as database:
        run = json.loads(first["entry"])["run"]
        database.execute("DELETE FROM chain")
        database.execute("UPDATE participants SET weight = 0.5 WHERE client = 0")
        chain = SignedChain(database, private_key(tmp_path / "key"), run)
        chain.add_facts()
        chain.add_missing()
    with caplog.at_level(logging.ERROR, "flwr.clientwise"):
        keep_receipts(message_with(first), settings)
        assert not caplog.records
        keep_receipts(message_with(receipts(folder)["client-0"][0]), settings)
        assert "CONTRADICTS" in caplog.text
    assert len(kept(settings).read_text().splitlines()) == 2

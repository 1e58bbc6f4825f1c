"""What the tests of the page share: runs written at once, and what a report file carries."""

from __future__ import annotations

import base64
import copy
import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clientwise.experiment.config.named import METHODS
from clientwise.experiment.load import load_experiment
from clientwise.record.store import Store

CONFIG: dict[str, Any] = {
    "name": "small",
    "device": "cpu",
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 6, "concentration": 0.5},
    "model": "linear",
    "training": {"epochs": 1, "batch_size": 20, "learning_rate": 0.1},
    "federation": {"fraction": 0.5},
    "evaluation": {"target": 0.5},
}
HOSTILE_NAME = "<img src=x onerror=alert(1)>"


def config(methods: Sequence[str], rounds: int) -> dict[str, Any]:
    """A small real experiment."""
    return {
        **copy.deepcopy(CONFIG),
        "rounds": rounds,
        "methods": [
            name if name in METHODS else {"name": name, "like": "FedAvg"} for name in methods
        ],
    }


def write_run(
    folder: Path, methods: Sequence[str] = ("FedAvg",), rounds: int = 5, clients: int = 6
) -> Path:
    """A finished run in which every client takes part in every round, written straight into the database."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(
        load_experiment(config(methods, rounds)).to_toml(), encoding="utf-8"
    )
    store = Store(folder)
    facts = {
        "name": folder.name,
        "metric": "accuracy",
        "target": 0.5,
        "rounds": rounds,
        "lanes": len(methods),
    }
    store.set_facts({**facts, "model_bytes": 2600})
    store.set_clients(1, [50] * clients, [10] * clients, {clients - 1: "wrong_labels"})
    for method in methods:
        lane = store.open_lane(method, 1)
        _write_rounds(store, lane, rounds, clients)
        store.finish_lane(lane)
    store.close()
    return folder


def _write_rounds(store: Store, lane: int, rounds: int, clients: int) -> None:
    grid = f"""WITH RECURSIVE
        r(round_num) AS (SELECT 1 UNION ALL SELECT round_num + 1 FROM r WHERE round_num < {rounds}),
        k(client) AS (SELECT 0 UNION ALL SELECT client + 1 FROM k WHERE client < {clients - 1})"""
    reached = json.dumps([0.9 - 0.05 * place for place in range(10)])
    shares = json.dumps([0.5 + 0.04 * label for label in range(10)])
    share = "ABS(RANDOM() % 1000) / 1000.0"
    with store._database as database:
        database.execute(
            f"""{grid} INSERT INTO rounds (lane, round_num, metric, macro_f1, loss, local_mean, local_p10, local_p90,
                    reached, testing_rounds, per_class_f1, no_effect, notes, seconds, models_moved, evaluations)
                SELECT {lane}, round_num, {share}, {share}, {share}, 0.7, 0.5, 0.9, '{reached}', 0, '{shares}', '[]',
                    '[]', 0.1, 12, 1 FROM r"""
        )
        database.execute(
            f"""{grid} INSERT INTO participants (lane, round_num, client, refusal, score, weight,
                    training_loss, seconds)
                SELECT {lane}, round_num, client,
                CASE WHEN client = 3 AND round_num = 2 THEN 'not finite' END, {share},
                1.0 / {clients}, 0.5, 0.1
                FROM r, k"""
        )
        database.execute(
            f"{grid} INSERT INTO criteria SELECT {lane}, round_num, client, 'dataset_size', 50, 0.1 FROM r, k"
        )
        database.execute(
            f"{grid} INSERT INTO local SELECT {lane}, round_num, client, {share}, 0.5 FROM r, k"
        )


def carried(page: Path) -> dict[str, Any]:
    """What a report file carries: its document, and what that opens."""
    return unpacked(page.read_text(encoding="utf-8"))


def unpacked(text: str) -> dict[str, Any]:
    """What the text of a report file carries."""
    (document,) = re.findall(r'id="document">([^<]*)<', text)
    (letters,) = re.findall(r'id="audits">([^<]*)<', text)
    audits = gzip.decompress(base64.b64decode(letters))
    return {"document": json.loads(document), "audits": json.loads(audits)}

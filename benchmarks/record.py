"""The record of a long run with large cohorts: seconds to write a round, bytes on disk, seconds until the page is made.

python benchmarks/record.py [--clients 1000000] [--cohort 100000] [--rounds 1000] [--recorded 1000] [--hostile 0.1]
python benchmarks/record.py --clients 10000 --cohort 10000 --rounds 20 --recorded 10000    # bytes per participant

The rounds are made up: random weights and criteria of evenly spaced clients, others in every round. With the defaults,
the run has 10^8 participants. Exits with status 1 if the page takes more than two seconds of processor time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

import clientwise as cw
from clientwise.core.objective.problem import Classification
from clientwise.core.types import Refusal, RoundRecord
from clientwise.experiment.config.settings import RecordSettings
from clientwise.record.database import DATABASE
from clientwise.record.run import RunFolder
from clientwise.record.store import Store
from clientwise.report.page import write_report

MOST_SECONDS = 2.0
SHOWN = 3  # times that the page is made; the fastest counts
REFUSED = 100  # clients of a round
CONFIG = {
    "name": "record",
    "rounds": 1,
    "data": "digits",
    "model": "linear",
    "partition": {"name": "iid", "clients": 20},
    "methods": [
        {"name": "three", "criteria": ["dataset_size", "label_diversity", "model_divergence"]}
    ],
}


def made_up(record: RoundRecord, round_num: int, clients: int, cohort: int) -> RoundRecord:
    """A round with a cohort of this size, like a recorded one."""
    random = torch.Generator().manual_seed(round_num)
    refused = torch.randint(0, clients, (REFUSED,), generator=random).tolist()
    step = clients // cohort
    raw = torch.rand(cohort, 3, dtype=torch.float64, generator=random)
    scores = raw.prod(1)
    weights = scores / scores.sum()
    return replace(
        record,
        round_num=round_num,
        client_ids=tuple(range(round_num % step, cohort * step, step)),
        raw=raw,
        normalised=raw / raw.sum(0),
        scores=scores,
        prior=weights,
        weights=weights,
        training_loss=raw[:, 0],
        seconds=raw[:, 1],
        refusals=tuple(Refusal(client, "model has NaN or Inf") for client in refused),
    )


def main() -> None:
    """Write the run, read it, print a line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--cohort", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--recorded", type=int, default=1_000)
    parser.add_argument("--hostile", type=float, default=0.0, help="share of the clients")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = measure(
            Path(place), given.clients, given.cohort, given.rounds, given.recorded, given.hostile
        )
    print(json.dumps(found))
    sys.exit(found["page_seconds"] > MOST_SECONDS)


def measure(
    place: Path, clients: int, cohort: int, rounds: int, recorded: int, hostile: float
) -> dict[str, float]:
    """The figures of a made-up run in a new folder."""
    seen: list[RoundRecord] = []
    folder = cw.run(CONFIG, place / "run", on_round=lambda step: seen.append(step.record))
    kept = RecordSettings(clients=recorded).of(clients, 1)
    recorded_cohort = cohort * min(recorded, clients) / clients
    store = Store(folder)
    attacks = dict.fromkeys(range(round(hostile * clients)), "wrong_labels")
    store.set_clients(1, [10] * clients, [2] * clients, attacks)
    store.set_facts({"rounds": rounds})
    spent = 0.0
    for round_num in range(2, rounds + 1):
        record = made_up(seen[0], round_num, clients, cohort)
        began = time.process_time()
        store.write_round(1, record, Classification(10), attacks, 1.0, kept)
        spent += time.process_time() - began
    store.close()
    pages = []
    for _ in range(SHOWN):
        began = time.process_time()
        page = write_report([RunFolder(folder)], place / "report")
        pages.append(time.process_time() - began)
    return {
        "participants": cohort * rounds,
        "write_seconds_per_round": spent / max(1, rounds - 1),
        "disk_mib": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        / 2**20,
        "bytes_per_participant": (folder / DATABASE).stat().st_size / (recorded_cohort * rounds),
        "page_mib": page.stat().st_size / 2**20,
        "first_page_seconds": pages[0],
        "page_seconds": min(pages),
    }


if __name__ == "__main__":
    main()

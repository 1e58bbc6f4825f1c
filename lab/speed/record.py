"""The record of a long run: milliseconds to write a round, bytes on disk, seconds until its frames are read.

python lab/speed/record.py [--cohort 20] [--rounds 2000] [--lanes 1] [--hostile 0.1]
python lab/speed/record.py --cohort 1000 --rounds 100

The rounds are made up: random weights and criteria, fifty of them again and again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

import clientwise as cw
from clientwise.core.objective.problem import Classification
from clientwise.core.types import RoundRecord
from clientwise.record.database import DATABASE
from clientwise.record.store import Store

DIFFERENT = 50  # rounds
FRAMES = ("rounds", "weights", "criteria")
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


def made_up(record: RoundRecord, number: int, cohort: int) -> RoundRecord:
    """A round with a cohort of this size, like a recorded one."""
    random = torch.Generator().manual_seed(number)
    raw = torch.rand(cohort, 3, dtype=torch.float64, generator=random)
    raw[:, 0] = (500 * raw[:, 0]).ceil()
    scores = raw.prod(1)
    weights = scores / scores.sum()
    return replace(
        record,
        client_ids=tuple(range(cohort)),
        raw=raw,
        normalised=raw / raw.sum(0),
        scores=scores,
        prior=weights,
        weights=weights,
        training_loss=torch.rand(cohort, dtype=torch.float64, generator=random),
        seconds=torch.rand(cohort, dtype=torch.float64, generator=random),
        local=None,
    )


def main() -> None:
    """Write the run, read it, print a line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cohort", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--hostile", type=float, default=0.0, help="share of the clients")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(measure(Path(place), **vars(given))))


def measure(place: Path, cohort: int, rounds: int, lanes: int, hostile: float) -> dict[str, float]:
    """The figures of a made-up run in a new folder."""
    seen: list[RoundRecord] = []
    cw.run(CONFIG, place / "run", on_round=lambda _, step: seen.append(step.record), progress=False)
    made = [made_up(seen[0], number, cohort) for number in range(min(rounds, DIFFERENT))]
    folder = place / "made up"
    folder.mkdir()
    store = Store(folder)
    attacks = dict.fromkeys(range(round(hostile * cohort)), "wrong_labels")
    store.set_clients(1, [10] * cohort, [2] * cohort, attacks)
    store.set_facts(
        {"name": "made up", "metric": "accuracy", "target": None, "rounds": rounds, "lanes": lanes}
    )
    spent = 0.0
    for number in range(lanes):
        lane = store.open_lane(f"method {number}", 1)
        for round_num in range(1, rounds + 1):
            record = replace(made[round_num % len(made)], round_num=round_num)
            began = time.process_time()
            store.write_round(lane, record, Classification(10), attacks, 1.0)
            spent += time.process_time() - began
        store.finish_lane(lane)
    store.close()
    found = {
        "write_milliseconds": 1000 * spent / (rounds * lanes),
        "bytes_per_participant": (folder / DATABASE).stat().st_size / (cohort * rounds * lanes),
    }
    run = cw.Run(folder)
    for name in FRAMES:
        began = time.process_time()
        run.frame(name)
        found[f"{name}_seconds"] = time.process_time() - began
    return found


if __name__ == "__main__":
    main()

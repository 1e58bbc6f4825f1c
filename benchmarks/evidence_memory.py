"""Memory of a round with evidence: what `clientwise check` foretells beside what a run takes.

python benchmarks/evidence_memory.py [--cohort 10000]
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

import clientwise as cw
from clientwise.core.problem import Classification
from clientwise.data.federated import Holdings, Samples
from ours import evenly
from scale import CLASSES, FEATURES, HIDDEN, memory

HELD = 2  # samples of each client
SAMPLES = 200  # of the server


def measure(cohort: int) -> dict[str, float]:
    """MiB that the second round takes beyond what was there before it; its seconds."""
    random = torch.Generator().manual_seed(0)
    inputs = torch.rand(cohort * HELD, FEATURES, generator=random)
    labels = inputs[:, :CLASSES].argmax(1)
    data = evenly(Samples(inputs, labels, Classification(CLASSES)), cohort)
    held = (torch.arange(SAMPLES), labels[:SAMPLES])
    data = replace(data, weigh=Holdings.of([held]))
    config = {
        "name": "memory",
        "rounds": 2,
        "device": "cpu",
        "model": {"name": "mlp", "hidden": [HIDDEN]},
        "training": {"epochs": 1, "batch_size": HELD, "learning_rate": 0.1},
        "evaluation": {"clients_every": 0},
        "methods": ["Recommended"],
    }
    before = {}
    began = time.perf_counter()

    def note(progress: object) -> None:
        if not before:
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            before["mib"] = memory("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew

    with tempfile.TemporaryDirectory() as folder:
        cw.run(config, Path(folder) / "run", data=data, on_round=note)
    return {"mib": memory("VmHWM") - before["mib"], "seconds": time.perf_counter() - began}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cohort", type=int, default=10_000)
    print(json.dumps(measure(parser.parse_args().cohort)))

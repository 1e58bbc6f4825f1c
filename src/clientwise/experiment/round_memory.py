"""The memory that the models of a round take, known before it runs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..core.method import Method
from ..core.types import ModelSpec
from ..data.federated import FederatedData
from ..engine.executor import DeviceExecutor
from ..limits import gigabytes, memory
from .build import build_plan
from .messages import Issue
from .schema import Experiment

FLOAT_BYTES = 4
# Of every model: as it came, its update, a candidate or clipped update, and one while it is computed
KEPT_COPIES = 4
# Of the factors of an adapted layer, in float64: as they came, scaled, and their QR decompositions
FACTOR_COPIES = 10
# Of a GPU, measured on an H200: the driver's context and the kernels; the handles of a lane's thread
GPU_PROCESS_BYTES = 600 * 2**20
GPU_LANE_BYTES = 6 * 2**20
SAMPLE_BYTES = 64  # per candidate and held-out sample: losses and values, in float32 and float64


def round_bytes(
    method: Method, cohort: int, spec: ModelSpec, samples: int, *, counterfactuals: bool = False
) -> int:
    """Bytes for the models of a round where they are kept until its end; 0 where they are folded.

    bytes = 4·copies·n·d + 40·n·f + 64·n·N for n clients in a round, d numbers in a model, f numbers in the
    factors of the largest adapted layer (LoRA) whose products are averaged, and N held-out samples by which
    evidence judges n candidates.

    Args:
        method: whose rounds.
        cohort: clients in a round, n.
        spec: the layout of a model: d and f.
        samples: held-out samples that the server weighs by, N.
        counterfactuals: whether there is one more model for each client.
    """
    factors = [math.prod(a.shape) + math.prod(b.shape) for a, b in method.averaged_pairs(spec)]
    if not method.keeps_models and not counterfactuals and not factors:
        return 0
    copies = KEPT_COPIES + int(counterfactuals)
    numbers = copies * spec.size + FACTOR_COPIES * max(factors, default=0)
    models = FLOAT_BYTES * cohort * numbers
    if method.evidence is None:
        return models
    return models + SAMPLE_BYTES * cohort * samples


def largest_round(experiment: Experiment, data: FederatedData, spec: ModelSpec) -> int:
    """Bytes of the method that needs most."""
    cohort = build_plan(experiment, data.num_clients, experiment.seeds[0]).cohort_size
    samples = len(data.weigh.indices) if data.weigh else 0
    built = experiment.build_methods()
    others = experiment.evaluation.counterfactuals or experiment.evaluation.shapley
    return max(
        round_bytes(method, cohort, spec, samples, counterfactuals=others) for method in built
    )


def gpu_bytes(experiment: Experiment, data: FederatedData, executor: DeviceExecutor) -> int:
    """About how many bytes of a GPU a run takes: its data, models that train together, its lanes."""
    cohort = build_plan(experiment, data.num_clients, experiment.seeds[0]).cohort_size
    lanes = len(experiment.seeds) * len(experiment.methods)
    largest = int(data.train.sizes.max())
    together = 0
    for method in experiment.build_methods():
        count = min(lanes * cohort, executor.clients_at_once(method.training, largest))
        together = max(together, count * executor.bytes_per_client(method.training, largest))
    models = KEPT_COPIES * FLOAT_BYTES * executor.spec.size
    per_lane = GPU_LANE_BYTES + models + largest_round(experiment, data, executor.spec)
    return GPU_PROCESS_BYTES + executor.samples.inputs.nbytes + together + lanes * per_lane


def memory_issues(experiment: Experiment, data: FederatedData, spec: ModelSpec) -> Iterator[Issue]:
    """Rounds whose models do not fit into memory."""
    needed = largest_round(experiment, data, spec)
    if needed > memory():
        what = (
            f"the models of a round take {gigabytes(needed)}, and there are {gigabytes(memory())}"
        )
        yield "federation", f"{what}; ask fewer clients in a round (clients_per_round)"

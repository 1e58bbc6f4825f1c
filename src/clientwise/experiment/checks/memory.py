"""The memory that a run takes, known before it begins: an upper bound, so that no round runs out of it."""

from __future__ import annotations

import math

from ...core.aggregation import robust
from ...core.cohort import count_sums
from ...core.method import Method, Plan
from ...core.types import FLOAT_BYTES, ModelSpec
from ...data.federated import FederatedData
from ...engine.device import KEPT_BYTES
from ..build.engine import build_plan
from ..config.schema import Experiment

DOUBLE_BYTES = 8
# tests/experiment/test_round_memory.py compares these numbers with what every method takes.
# Copies of a model: kept beside others in one matrix; where a part computes with its update
STACKED_COPIES = 2
UPDATE_COPIES = 4
COUNTERFACTUAL_COPIES = 2  # and the updates that one is made of
KEPT_COPIES = 3  # between rounds: of the last one, of this one, and while it is renewed
FACTOR_COPIES = 10  # of the factors of an adapted layer, in float64, with their QR decompositions
PAIR_COPIES = 7  # matrices [n, n] of a part that declares pairs, in float64
BLOCKS = 12  # of `robust.AT_ONCE` values that a part works on at once, in float64
SAMPLE_BYTES = 64  # results of a model on a sample


def round_bytes(method: Method, plan: Plan, data: FederatedData, spec: ModelSpec) -> int:
    """Bytes of a round that grow with its clients; `fixed_bytes` are those that do not.

    For n clients in a round, K clients in all, d numbers in a model, N held-out samples, up to

    - 4·copies·n·d for the models of a round that are kept, or 8·t·d for t sums over them;
    - 4·3·k·K·d for k models that are kept of every client from round to round;
    - 8·7·n² for a part that holds matrices of all pairs of clients;
    - 64·N·n where n models are judged at once, on the server's samples or by the clients of a round.

    Args:
        method: whose rounds.
        plan: of its rounds.
        data: of its clients, and of the server.
        spec: the layout of a model.
    """
    clients = plan.cohort_size if plan.asks is None else len(plan.asks)
    sums = count_sums(method, plan, spec, data.samples.problem, clients)
    pairs = method.averaged_pairs(spec)  # of LoRA adapters
    others = plan.counterfactuals or plan.shapley
    copies = 0 if sums else STACKED_COPIES
    if method.evidence or method.before or method.rule or method.memories or method.noises_mean:
        copies = UPDATE_COPIES + len(method.before)
    if pairs or others:
        copies = UPDATE_COPIES + len(method.before) + COUNTERFACTUAL_COPIES * others
    if data.devices is not None and method.pace.keeps_late:
        copies += KEPT_COPIES
    factors = max((math.prod(a.shape) + math.prod(b.shape) for a, b in pairs), default=0)
    models = copies * clients + KEPT_COPIES * method.client_models * data.num_clients
    needed = spec.size * (FLOAT_BYTES * models + DOUBLE_BYTES * sums)
    needed += FLOAT_BYTES * FACTOR_COPIES * clients * factors
    if method.compares_pairs:
        needed += DOUBLE_BYTES * PAIR_COPIES * clients**2
    judged = data.num_clients if method.control == "alone" else 0
    if method.evidence or (method.needs("server_set") and method.sees_whole_cohort):
        judged = clients
    samples = max(len(held.indices) if held else 0 for held in (data.weigh, data.report))
    if plan.judged_by == "clients":
        samples = int(data.test.sizes.sort(descending=True).values[:clients].sum())
    return needed + judged * SAMPLE_BYTES * samples * data.samples.problem.values_kept


def largest_round(
    experiment: Experiment, data: FederatedData, spec: ModelSpec, lanes: int = 1
) -> int:
    """Bytes of the rounds of so many lanes, side by side, that need most together."""
    needed = []
    for method in experiment.build_methods():
        plan = build_plan(experiment, data.num_clients, experiment.seeds[0], method.control)
        needed.append(round_bytes(method, plan, data, spec))
    return sum(sorted(needed * len(experiment.seeds))[-lanes:])


def fixed_bytes(workers: int) -> int:
    """Bytes of rounds that do not grow with their clients: blocks, and what a chunk of clients has freed."""
    return BLOCKS * DOUBLE_BYTES * robust.AT_ONCE + workers * KEPT_BYTES

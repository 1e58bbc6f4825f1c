"""Recompute every weight of a run from its recorded criteria, by the recorded config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...core.method import Method
from ...core.weights.bounds import Bounds, InfeasibleError
from ...core.weights.weighting import divide, to_weights
from ...errors import RunError
from ...record.files import CONFIG
from ...record.reading.folder import RunFolder
from ...record.reading.rows import CriterionRow, ParticipantRow
from ..config.methods import BOUNDS
from .resume import changed_keys, config_so_far, written_config

TOLERANCE = 1e-9  # of a weight, a score or a normalised criterion


@dataclass
class Recomputed:
    """Which rounds were recomputed, and what differs."""

    rounds: int = 0
    skipped: dict[str, str] = field(default_factory=dict)  # why, by method
    taken: set[str] = field(default_factory=set)  # what is taken as recorded, in words
    faults: list[str] = field(default_factory=list)


def recompute(run: RunFolder, members: Mapping[tuple[str, int, int], int]) -> Recomputed:
    """Recompute normalised criteria, scores and weights of all rounds.

    Criteria are taken as recorded, and so is the weight after evidence: it follows from samples and
    updates that the record does not hold. Who was on probation follows from the accepted updates of
    the rounds before.

    Args:
        run: the run.
        members: how many clients the run had, by method, seed and round (`record.signed.verify`). Rounds that
            are missing had all clients of the run.
    """
    found = Recomputed()
    try:
        recorded = config_so_far(run.folder)
    except RunError as error:  # the file was edited
        found.faults.append(str(error))
        return found
    if recorded is None:
        found.faults.append("the config of the run is missing")
        return found
    written = written_config(run.folder)
    for key in changed_keys(recorded.to_dict(), written.to_dict()):
        found.faults.append(f"{CONFIG}, {key}: was changed")
    methods = {method.name: method for method in recorded.build_methods()}
    for lane in run.lanes:
        method = methods.get(lane.method)
        if method is None:
            found.faults.append(f"{lane.method}: the config has no such method")
            continue
        if reason := _why_not(method):
            found.skipped[lane.method] = reason
            continue
        if method.evidence:
            found.taken.add(f"{lane.method}: weights after evidence are taken as recorded")
        try:
            policies = _policies(run, method, lane.seed)
        except ValueError:
            found.faults.append(f"{lane.method}, seed {lane.seed}: a policy cannot be read")
            continue
        memory: Mapping[str, Tensor] = {}
        num_clients = 0
        for round_num in run.round_nums(lane.method, lane.seed):
            found.rounds += 1
            lane_round = (lane.method, lane.seed, round_num)
            bounds = [policy for first, policy in policies if first <= round_num][-1]
            now = members.get(lane_round) or len(run.clients(lane.seed))
            num_clients = max(num_clients, now)
            accepted = [row for row in run.participants(*lane_round) if row.refusal is None]
            newcomers: frozenset[int] = frozenset()
            if bounds:
                memory = memory or bounds.first_memory(num_clients)
                newcomers = bounds.newcomers(memory, num_clients)
            for fault in _faults(run, method, lane_round, accepted, bounds, newcomers):
                found.faults.append(f"{lane.method}, seed {lane.seed}, round {round_num}, {fault}")
            ids = [row.client for row in accepted if 0 <= row.client < num_clients]
            memory = bounds.memory_after(memory, ids, num_clients) if bounds else {}
    return found


def _why_not(method: Method) -> str | None:
    if method.secure:
        return "secure aggregation: the server has no criteria and no weights"
    if method.noises_mean:
        return "differential privacy: weights come with the noise"
    if method.control:
        return "a reference without weights"
    return None


def _policies(run: RunFolder, method: Method, seed: int) -> list[tuple[int, Bounds | None]]:
    """The bounds on the weights, each with the first round that it holds for."""
    clients = run.clients(seed)
    names = [row.name or "" for row in clients]
    found: list[tuple[int, Bounds | None]] = [(0, None)]
    for row in run.policies(method.name, seed):
        bounds = BOUNDS.read(row.policy) if row.policy else None
        found.append((row.round_num, bounds and bounds.for_clients(names, len(clients))))
    return found


def _faults(
    run: RunFolder,
    method: Method,
    lane_round: tuple[str, int, int],
    accepted: Sequence[ParticipantRow],
    bounds: Bounds | None,
    newcomers: frozenset[int],
) -> Iterator[str]:
    measured = run.criteria(*lane_round)
    if not accepted:
        return
    values = _values(method, accepted, measured)
    if values is None:
        yield "the criteria of a client are missing"
        return
    raw, recorded = values
    order = run.round(*lane_round).priority
    omitted = run.omitted(*lane_round)
    scales = torch.tensor(omitted.scales) if omitted else method.normaliser(raw)
    normalised = divide(raw, scales.double())
    score = method.score.with_order(order)
    scores = score(method.names, normalised)
    prior = to_weights(method.averaging(score)(method.names, normalised))
    if omitted and method.averaging(score) is not score:
        prior = torch.full_like(scores, 1 / (len(accepted) + omitted.accepted))
    elif omitted and omitted.scores:
        prior = scores / omitted.scores
    posterior = _column([row.posterior for row in accepted])
    weights = prior if posterior is None else posterior
    if bounds and weights.any() and not omitted:
        weights = _bounded(bounds, weights, [row.client for row in accepted], newcomers)
    compared = [
        ("score", scores, _column([row.score for row in accepted])),
        ("prior weight", prior, _column([row.prior for row in accepted])),
    ]
    if not (bounds and omitted):  # bounds need the weights of all participants
        compared.append(("weight", weights, _column([row.weight for row in accepted])))
    for column, name in enumerate(method.names):
        compared.append((f"{name}, normalised", normalised[:, column], recorded[:, column]))
    for what, expected, written in compared:
        if written is None:
            continue
        close = torch.isclose(
            expected.double(), written, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True
        )
        for row in (~close).nonzero().flatten().tolist():
            client = accepted[row].name or f"client {accepted[row].client}"
            yield f"{client}: {what} is {written[row]:.6g}, recomputed {expected[row]:.6g}"


def _bounded(
    bounds: Bounds, weights: Tensor, clients: Sequence[int], newcomers: frozenset[int]
) -> Tensor:
    try:
        bounded, _ = bounds.apply(weights, clients, newcomers)
    except InfeasibleError:
        return torch.zeros_like(weights)
    return bounded


def _values(
    method: Method, accepted: Sequence[ParticipantRow], measured: Sequence[CriterionRow]
) -> tuple[Tensor, Tensor] | None:
    """Raw and normalised criteria, both [n, m]; None where one is missing."""
    by_client = {(row.client, row.criterion): (row.raw, row.normalised) for row in measured}
    try:
        table = [[by_client[row.client, name] for name in method.names] for row in accepted]
    except KeyError:
        return None
    values = torch.tensor(table, dtype=torch.float64)
    return values[..., 0], values[..., 1]


def _column(values: Sequence[float | None]) -> Tensor | None:
    """Recorded values [n]; None where they are not recorded."""
    if any(value is None for value in values):
        return None
    return torch.tensor(values, dtype=torch.float64)

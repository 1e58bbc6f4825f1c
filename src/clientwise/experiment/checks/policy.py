"""Whether a run can meet its policy on weights, known before it begins.

Cohorts follow from the seed, so every round can be tried. A member that does not answer is known only
in the round itself: the round then keeps the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...core.method import Method, Plan
from ...core.weights.bounds import Bounds, InfeasibleError
from ...data.federated import FederatedData
from ..build.engine import build_plan
from ..config.messages import Issue
from ..config.schema import Experiment


def policy_issues(
    method_key: str, method: Method, plan: Plan, names: Sequence[str], num_clients: int
) -> Iterator[Issue]:
    """Bounds that name unknown clients, or that no round can meet."""
    if method.bounds is None or method.control:
        return
    key = f"{method_key}.bounds"
    try:
        bounds = method.bounds.for_clients(names, num_clients)
        if bounds.is_plain:
            bounds.check(range(plan.cohort_size))
    except ValueError as error:
        yield key, f"{error}; a round has {plan.cohort_size} clients"
        return
    unmet = unmet_rounds(bounds, method, plan, num_clients)
    if unmet and len(unmet) == plan.rounds:
        yield key, f"no round can meet the policy. Round 1: {unmet[1]}"


def policy_doubts(experiment: Experiment, data: FederatedData, seed: int) -> Iterator[str]:
    """Rounds whose cohort cannot meet the policy, where others can."""
    plan = build_plan(experiment, data.num_clients, seed)
    for method in experiment.build_methods():
        if method.bounds is None or method.control:
            continue
        bounds = method.bounds.for_clients(data.names, data.num_clients)
        unmet = unmet_rounds(bounds, method, plan, data.num_clients)
        if unmet:
            first = min(unmet)
            counted = f"{len(unmet)} of {plan.rounds} rounds cannot meet the policy"
            yield (
                f"{method.name}: {counted} and will keep the model (seed {seed}). "
                f"The first is round {first}: {unmet[first]}"
            )


def unmet_rounds(bounds: Bounds, method: Method, plan: Plan, num_clients: int) -> dict[int, str]:
    """The rounds whose cohort cannot meet the bounds even if all its updates are accepted, and why."""
    if bounds.is_plain or method.pace.buffer or plan.rounds is None:
        return {}
    if method.sampling:  # cohorts are not known before the run
        return {}
    tried: dict[tuple[tuple[int, ...], frozenset[int]], str | None] = {}
    memory = bounds.first_memory(num_clients)
    unmet = {}
    for round_num in range(1, plan.rounds + 1):
        cohort = plan.cohort(num_clients, round_num)
        newcomers = bounds.newcomers(memory, num_clients)
        memory = bounds.memory_after(memory, cohort, num_clients)
        if (cohort, newcomers) not in tried:
            tried[cohort, newcomers] = _why_unmet(bounds, cohort, newcomers)
        reason = tried[cohort, newcomers]
        if reason is not None:
            unmet[round_num] = reason
    return unmet


def _why_unmet(bounds: Bounds, cohort: Sequence[int], newcomers: frozenset[int]) -> str | None:
    try:
        bounds.check(cohort, newcomers)
    except InfeasibleError as error:
        return str(error)
    return None

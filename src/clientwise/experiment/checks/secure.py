"""What secure aggregation refuses, with the reason and what to use instead (docs/privacy.md)."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.method import Method
from ...core.objective.problem import Problem
from ...core.privacy import FEWEST
from ...core.weights.weighting import NORMALISERS, DividesBySums, KeepsUnits
from ..build.engine import build_plan
from ..config.messages import Issue
from ..config.methods import MethodSettings
from ..config.schema import Experiment

KEY = "secure_aggregation"
LARGEST_COARSENESS = 1e-3
SEES_MODELS = "compares single updates, which the server does not see under secure aggregation"
ALLOWED = {"adapt_loss", "criteria", "fine_tune", "normalise", "score", "server_step"}
ALLOWED |= {"adapters", "name", "training", "tuned", KEY}
# Keys that differ from FedAvg's and are not allowed: why, and what to use instead
REFUSED = {
    "evidence": f"{SEES_MODELS}: use criteria that clients measure",
    "rule": f"{SEES_MODELS}: leave it out; secure_aggregation.clip bounds the norm of every update",
    "before": f"{SEES_MODELS}: remove it; clients clip their own updates (secure_aggregation.clip)",
    "bounds": "needs all weights, which the server does not see under secure aggregation: remove it",
    "adjust": "evaluates several weighted sums of the same updates, from which the server can compute "
    "every update: use a fixed order of priority",
    "brake": "keeps the old model after its sum is known, and the next sum of updates of the same model "
    "would differ by the clients that dropped out: remove it",
    "sampling": "draws clients by criteria that the server does not see under secure aggregation: remove it",
    "pace": "lets updates of other rounds in, and masks cancel within one round: remove it",
    "control": "has no clients that send anything: remove secure_aggregation",
    "privacy": "noise of the server is added after the sum is known to it, and noise of the clients "
    "inside the masked sum is not implemented: use either of the two",
}
SIMULATED = "is simulated in one process, and clients on Flower would send everything in the clear"
NOT_SUPPORTED = "is not supported together with secure aggregation: remove one of the two"


def secure_issues(
    settings: MethodSettings, method: Method, experiment: Experiment
) -> Iterator[Issue]:
    """What the config alone can tell."""
    if method.secure is None:
        return
    if method.secure.threshold < 0.5:
        yield (
            f"{KEY}.threshold = {method.secure.threshold:g}",
            "must be at least 0.5: below a majority, a server can have two groups of clients "
            "unmask the same client in two ways",
        )
    for key in settings.unlike_fedavg():
        if key not in ALLOWED:
            yield key, REFUSED.get(key, NOT_SUPPORTED)
    for index, criterion in enumerate(method.criteria):
        if criterion.measured_by != "client":
            hint = "is measured by the server, which sees no single update or client under secure "
            hint += "aggregation: use a criterion that clients measure"
            yield f"criteria[{index}]", f"{criterion.name} {hint}"
    yield from _score_issues(settings, method)
    if experiment.federation.sampling == "poisson":
        hint = (
            "a Poisson cohort can have more clients than the sum has room for, and too few for the"
        )
        yield KEY, f'{hint} threshold: set federation.sampling = "fixed"'
    if method.training.control_variates:
        yield "training.control_variates", f"sends a second vector: it {NOT_SUPPORTED}"
    if experiment.engine == "flower" or experiment.flower.clients:
        yield KEY, f'{SIMULATED}: use engine = "local", without flower.clients'


def secure_data_issues(
    experiment: Experiment, problem: Problem, num_clients: int
) -> Iterator[Issue]:
    """What the problem and the number of clients can tell: too few clients, too coarse a rounding."""
    for index, method in enumerate(experiment.build_methods()):
        if method.secure is None:
            continue
        key = f"methods[{index}].{KEY}"
        size = build_plan(experiment, num_clients, experiment.seeds[0]).cohort_size
        if size < FEWEST:
            hint = f"needs at least {FEWEST} clients in a round, and a round asks {size}"
            yield key, f"{hint}: of two clients, each can subtract its own update from the sum"
            continue
        if method.secure.needed(size) > size:
            yield f"{key}.threshold", "must be below 1: a threshold of all clients or more fails"
            continue
        sums = method.secret_sum(problem, size)
        if sums.coarseness > LARGEST_COARSENESS:
            hint = f"a sum of {size} clients overflows unless values are rounded by up to "
            hint += (
                f"{sums.coarseness:.2g} of clip, and more than {LARGEST_COARSENESS:g} is too coarse"
            )
            if not method.uses_sums and sums.highest > 1:
                hint += f': scores may reach {sums.highest:.2g}; use normalise = "sum"'
            else:
                hint += ": use bits = 64"
            yield f"{key}.bits = {method.secure.bits}", hint


def _score_issues(settings: MethodSettings, method: Method) -> Iterator[Issue]:
    if method.score.terms(method.names) is None:
        hint = "sorts or compares criteria, so its weights are no sum of products of criteria: use "
        hint += '"prioritized", "mean", "weighted_mean" or "product"'
        yield "score", f"{settings.score.name} {hint}"
    name = settings.normalise.name if settings.normalise else method.score.default_normaliser
    if not isinstance(NORMALISERS.declared(name), DividesBySums | KeepsUnits):
        hint = "needs more than sums of the criteria, which are all that clients are told: "
        yield "normalise", f'{name} {hint}use "sum", or "none" for criteria with a known range'

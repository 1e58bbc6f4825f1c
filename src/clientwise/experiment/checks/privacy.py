"""What `check` refuses under differential privacy: whatever would make ε wrong.

Noise covers what one client can do to the released models, if three things hold. No client changes
what another one contributes, nothing else about the clients is released, and the cohort is drawn as
the accountant assumes. docs/privacy.md has the reason for each refusal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...core.accountant import accountant_of
from ...core.method import Method, Plan
from ...core.privacy import gaussian_epsilon
from ...core.weights.weighting import is_constant
from ...data.federated import Samples
from ..config.messages import Issue
from ..config.methods import MethodSettings
from ..config.schema import Experiment

SEES_SINGLE = "makes what one client contributes depend on the others, so that ε is unknown"
ROW_DELTA = 1e-5  # at which ε of a training sample is given
ON_CLIENTS = "evaluates on the clients' samples, which the noise does not cover"


def privacy_issues(
    settings: MethodSettings, method: Method, experiment: Experiment
) -> Iterator[Issue]:
    """What the config alone can tell of one method."""
    privacy = method.privacy
    if privacy is None:
        return
    yield from _other_releases(method, experiment)
    if method.sampling:
        yield (
            "sampling",
            "draws some clients more often, and ε assumes that all are alike: remove it",
        )
    if privacy.noise_multiplier is None and privacy.epsilon is None:
        hint = "is missing: give it, or give epsilon, and `check` says which multiplier spends that"
        yield "privacy.noise_multiplier", hint
    if privacy.secret and experiment.workers == "ray":
        yield "privacy.secret", 'needs workers of this process: set workers = "auto"'
    if privacy.local:
        if privacy.secret and experiment.engine == "flower" and not experiment.flower.clients:
            hint = (
                "is for the nodes of a deployment: clients of Flower's simulation draw their noise"
            )
            yield "privacy.secret", f'{hint} from the seed. Leave it out, or use engine = "local"'
        yield from _local_issues(method)
    else:
        yield from _central_issues(settings, method, experiment)


def _other_releases(method: Method, experiment: Experiment) -> Iterator[Issue]:
    """What would tell of the clients beside the noised updates."""
    if experiment.evaluation.clients_every:
        hint = f"{ON_CLIENTS}: set evaluation.clients_every = 0"
        yield "privacy", hint
    server = experiment.server_set
    if server.source != "held_out":
        hint = f'server_set.source = "{server.source}" uses samples of the clients: use "held_out"'
        yield "privacy", hint
    elif not server.shared_set and not server.report_fraction:
        hint = "the model must be measured on samples of the server: set report_fraction > 0"
        yield "privacy", hint
    if method.adjust:
        yield "adjust", f"{ON_CLIENTS}: privacy needs a fixed order of priority"
    if method.training.control_variates:
        yield "training.control_variates", "are sent to all clients, without noise"
    if experiment.devices:
        hint = "needs cohorts that are drawn at random, not by availability: leave out [devices]"
        yield "privacy", hint
    elif method.pace.extra or method.pace.keeps_late or method.pace.deadline:
        yield "pace", f"{SEES_SINGLE}: leave it out"


def _central_issues(
    settings: MethodSettings, method: Method, experiment: Experiment
) -> Iterator[Issue]:
    """Noise of the server: which parts have a sensitivity that is known."""
    privacy = method.privacy
    assert privacy is not None
    if method.bounds is None or method.bounds.cap == 1:
        hint = "privacy needs a cap: the noise is proportional to the largest weight"
        yield "bounds", f"{hint}. Give bounds = {{ cap = ... }}, at least 1/cohort"
    elif method.bounds.floor:
        yield "bounds.floor", "does not go with privacy: leave it out"
    if method.evidence:
        yield "evidence", f"{SEES_SINGLE}: leave it out, or use privacy.local"
    if method.rule:
        yield "rule", f"{settings.rule.name} {SEES_SINGLE}: use the mean, or privacy.local"
    if method.before:
        yield "before", f"{SEES_SINGLE}: privacy clips by itself. Or use privacy.local"
    for index, criterion in enumerate(method.criteria):
        if criterion.memory or criterion.needs & {"models", "whole_cohort", "clock"}:
            hint = f"{criterion.part.name} {SEES_SINGLE}: use another, or privacy.local"
            yield f"criteria[{index}]", hint
    if method.score.compares_clients:
        yield "score", f"{settings.score.name} {SEES_SINGLE}: use another score"
    yield from _normaliser_issues(settings, method)
    if privacy.public:
        hint = "is for privacy.local: here the noise covers all criteria"
        yield "privacy.public", hint
    federation = experiment.federation
    if federation.sampling == "poisson" and federation.clients_per_round:
        hint = (
            "with clients_per_round, the probabilities of Poisson sampling follow from the number"
        )
        yield "privacy", f"{hint} of clients: give federation.fraction"
    flower = experiment.flower
    if experiment.engine == "flower" or flower.clients:
        if flower.min_replies > 1:
            hint = "one client could make a whole round void: set flower.min_replies = 1"
            yield "privacy", hint
        if flower.grace_seconds is not None:
            yield "privacy", f"flower.grace_seconds {SEES_SINGLE}: leave it out"


def _normaliser_issues(settings: MethodSettings, method: Method) -> Iterator[Issue]:
    """Scales that depend on the cohort, where they do not cancel out of the weights."""
    privacy = method.privacy
    assert privacy is not None
    name = settings.normalise.name if settings.normalise else method.score.default_normaliser
    if is_constant(name):
        given = settings.normalise.options.get("by") if settings.normalise else None
        if given is not None and len(given) != len(method.names):
            count = len(method.names)
            yield "normalise.by", f"has {len(given)} values for {count} criteria"
        return
    terms = method.score.terms(method.names)
    cancels = terms is not None and len(terms) == 1 and privacy.denominator is None
    if not cancels:
        hint = f'"{name}" depends on all clients of the cohort, so that ε is unknown: use public'
        hint += ' constants, normalise = { name = "fixed", by = [...] }, one for each criterion'
        yield "normalise", hint


def _local_issues(method: Method) -> Iterator[Issue]:
    """Noise of the clients: whatever else they send."""
    privacy = method.privacy
    assert privacy is not None
    if privacy.denominator is not None:
        hint = "is for noise of the server: leave it out with local = true"
        yield "privacy.denominator", hint
    measured = {one.name: one for one in method.criteria if one.measured_by == "client"}
    for label in privacy.public:
        if label not in measured:
            known = ", ".join(measured) or "none"
            yield "privacy.public", f"{label!r} is no client-measured criterion; there are: {known}"
    for label, criterion in measured.items():
        if label not in privacy.public and not criterion.alike:
            hint = f"{label} is sent by the clients without noise: declare it in privacy.public,"
            yield "criteria", f"{hint} or use criteria that the server measures (uniform)"


def cohort_privacy_issues(
    key: str, method: Method, plan: Plan, num_clients: int, rounds: int
) -> Iterator[Issue]:
    """What depends on the number of clients."""
    privacy = method.privacy
    accountant = accountant_of(method, plan, num_clients)
    if privacy is None or accountant is None:
        return
    members = accountant.num_clients
    if privacy.delta >= 1 / members:
        hint = f"must be below 1/n = {1 / members:.3g} for n = {members} clients: otherwise"
        hint += " a mechanism that publishes one client's update in full would pass"
        yield f"{key}.privacy.delta = {privacy.delta:g}", hint
        return
    if privacy.noise_multiplier is None:
        if privacy.epsilon is None:
            return
        found = accountant.noise_for(privacy.epsilon, rounds)
        hint = f"is missing: {found:.3f} spends" if found else "is missing: no multiplier spends"
        hint += f" epsilon = {privacy.epsilon:g} at delta = {privacy.delta:g} in {rounds} rounds"
        yield f"{key}.privacy.noise_multiplier", hint
        return
    if privacy.epsilon is not None:
        once = accountant.epsilon(1)
        if once > privacy.epsilon:
            hint = f"the first round alone spends {once:.3g}: raise epsilon or noise_multiplier"
            yield f"{key}.privacy.epsilon = {privacy.epsilon:g}", hint


def private_data_issues(experiment: Experiment, samples: Samples) -> Iterator[Issue]:
    """Inputs that are computed from the samples of several clients: they get no noise."""
    if samples.after_partition is None or samples.each_alone:
        return
    name = experiment.data.name if experiment.data else "the dataset"
    for index, settings in enumerate(experiment.methods):
        if settings.privacy:
            hint = f"{name} prepares its inputs by the samples of all clients (means, categories,"
            hint += " words), and these get no noise: use prepared numbers"
            yield f"methods[{index}].privacy", hint


def deployed_privacy_issues(experiment: Experiment) -> Iterator[Issue]:
    """What differential privacy needs in a deployment."""
    private = [one for one in experiment.methods if one.privacy]
    for index, settings in enumerate(experiment.methods):
        if settings.privacy and not settings.privacy.secret:
            hint = "must be true in a deployment: whoever knows the seed can subtract the noise"
            yield f"methods[{index}].privacy.secret", hint
    if private and len(experiment.methods) * len(experiment.seeds) > 1:
        hint = "with privacy, a deployment has one method and one seed: each spends ε on its own"
        yield "methods", hint


def held_out_doubts(experiment: Experiment, samples: Samples) -> list[str]:
    """A warning where the server's samples are of the same people as the clients'."""
    if samples.ids is None or not any(method.privacy for method in experiment.methods):
        return []
    text = "the server's held-out samples are of the same ids as the clients' and get no noise: ε"
    return [f"{text} covers the clients' training samples alone (docs/privacy.md)"]


def describe_privacy(method: Method, plan: Plan, num_clients: int, rounds: int) -> str:
    """The promise of a method, in a line for `clientwise check`; empty without differential privacy."""
    privacy = method.privacy
    accountant = accountant_of(method, plan, num_clients)
    if privacy is None or accountant is None:
        return ""
    spent = accountant.epsilon(rounds)
    text = f"{method.name}: ε = {spent:.3g}"
    if privacy.epsilon is not None and spent > privacy.epsilon:
        text = f"{method.name}: stops before ε = {privacy.epsilon:g}"
        text += f" (all {rounds} rounds would spend {spent:.3g})"
    else:
        text += f" after {rounds} rounds"
    where = "noise of the clients" if privacy.local else "noise of the server"
    drawn = "secret noise" if privacy.secret else "simulated noise, known from the seed"
    what = f"{accountant.relation}; training samples alone, not the server's; {where}; {drawn}"
    return f"{text} at δ = {privacy.delta:g} ({what})"


def describe_sample_noise(method: Method, rounds: int) -> str:
    """What noise of single samples promises, in a line; empty without it.

    A sample is in one batch an epoch, and every step on it is 1/z-Gaussian differentially private.
    """
    training = method.training
    if training.sample_noise is None:
        return ""
    mu = math.sqrt(rounds * training.epochs) / training.sample_noise
    spent = f"μ = {mu:.2g}, ε = {gaussian_epsilon(mu, ROW_DELTA):.2g} at δ = {ROW_DELTA:g}"
    return f"{method.name}: {spent} for one training sample, given its class, after {rounds} rounds"

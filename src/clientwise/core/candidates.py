"""The last steps of the formula, from the weights of a cohort to one model: rule and server step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .aggregation.rules import Ruled, mean
from .aggregation.server_step import StepState
from .aggregation.sums import average_products
from .cohort import Cohort
from .privacy import release
from .types import Candidate, Posterior
from .weights.scores import Score
from .weights.weighting import divide, to_weights


def apply_rule(cohort: Cohort, weights: Tensor) -> Ruled | None:
    """The steps before the rule, then the rule; None for a plain weighted mean."""
    method = cohort.method
    if cohort.averages_models:
        return None
    gathered = cohort.gathered
    steps = []
    for step in method.before:
        mixed = step(gathered, weights)
        gathered = replace(gathered, updates=mixed.updates)
        steps.append(replace(mixed, updates=mixed.updates[:0]))  # the last updates are enough
    rule = method.rule or mean
    ruled = rule(gathered.updates, weights, cohort.state.kept("rule"))
    if cohort.pairs:
        ruled = _with_products(cohort, ruled, gathered.updates)
    influence = ruled.influence
    for mixed in reversed(steps):
        influence = mixed.passed_on(influence)
    return replace(ruled, influence=influence)


def take_server_step(
    cohort: Cohort, aggregate: Tensor, posterior: Posterior | None = None
) -> tuple[Tensor, StepState]:
    """The model of every server step that is tried [s, d], and the state after them.

    The buffers are those of the aggregate [d].

    The evidence's factor multiplies the parameters of the aggregate. Buffers are statistics of the data,
    such as batch norm's running variance, and stay what they are: a server step with momentum would make
    variances negative.
    """
    state = cohort.state
    num_parameters = cohort.engine.spec.num_parameters
    if posterior and posterior.scale != 1:
        aggregate[:num_parameters] *= posterior.scale
    moved, step_state = cohort.method.server_step(state.model, aggregate, state.kept("server_step"))
    models = moved.reshape(-1, len(aggregate))
    if num_parameters < len(aggregate):
        buffers = aggregate[num_parameters:].expand(len(models), -1)
        models = torch.cat([models[:, :num_parameters], buffers], dim=1)
    return models, step_state


def noised(cohort: Cohort, score: Score) -> Candidate:
    """The weighted mean of clipped updates with noise; see `privacy.py`."""
    method = cohort.method
    state = cohort.state
    plan = cohort.plan
    assert method.privacy is not None
    assert method.bounds is not None, "validation refuses privacy without a cap"
    normalised = divide(cohort.raw, cohort.scales)
    # One by one: then no client changes the score of another, whatever the score computes.
    each = [score(method.names, row[None]) for row in normalised]
    scores = torch.cat(each) if each else torch.zeros(0, dtype=torch.float64)
    scores = scores.nan_to_num(nan=0.0)
    released = release(
        method.privacy,
        list(cohort.updates()) if cohort.client_ids else [],
        scores,
        state.model,
        cap=method.bounds.cap,
        replaced=plan.probability is None,
        key=plan.key,
        round_num=state.round_num + 1,
    )
    aggregate = (state.model.double() + released.update).to(state.model.dtype)
    prior = to_weights(scores)
    return stepped(
        cohort, state.priority, scores, prior, released.weights, aggregate, released=released
    )


def stepped(
    cohort: Cohort,
    priority: tuple[str, ...] | None,
    scores: Tensor,
    prior: Tensor,
    weights: Tensor,
    aggregate: Tensor | None,
    *,
    posterior: Posterior | None = None,
    **more: Any,
) -> Candidate:
    """The candidate of an aggregate [d] after the server step; None: the model and all states stay."""
    state = cohort.state
    models, step_state = state.model[None], state.kept("server_step")
    if aggregate is None:
        more["rule_state"] = state.kept("rule")
    else:
        models, step_state = take_server_step(cohort, aggregate, posterior)
    more |= {"model": models[0], "stepped": models, "step_state": step_state}
    return Candidate(priority, scores, prior, weights, posterior, **more)


def with_old_model(chosen: Candidate, cohort: Cohort) -> Candidate:
    """The candidate with its weights, but with the model, order and states of the round before."""
    state = cohort.state
    return replace(
        chosen,
        model=state.model,
        priority=state.priority,
        step_state=state.kept("server_step"),
        rule_state=state.kept("rule"),
    )


def _with_products(cohort: Cohort, ruled: Ruled, updates: Tensor) -> Ruled:
    """The result of a rule with the mean of the adapters' products, by the influence of every client."""
    before = cohort.state.model
    factors, residual = average_products(before + updates, ruled.influence, cohort.pairs)
    update = ruled.update.clone()
    for layer, values in factors:
        where = slice(layer.start, layer.stop)
        update[where] = (values - before[where]).to(update)
    return replace(ruled, update=update, residual=residual)

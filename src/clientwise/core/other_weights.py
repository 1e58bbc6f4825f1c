"""Counterfactuals: the aggregate of a round's own updates under other weights.

- `chosen`: the weights of the method. Without fine-tuning, this is the model of the round.
- `uniform`: equal weights, without bounds.
- `size`: weights by the number of training samples, without bounds.
- `without`: the method's weights without one client, divided by their sum and brought within the
  same bounds.

Evidence is not judged anew: its weights are those of the round. What a run without a client would
have learned is another run (`clientwise run RUN --without CLIENT`).
Contributions are Shapley values of a game whose players are the clients. The worth v(S) of a coalition S is
a number; v(∅) is that of nobody. The Shapley value of player a is its marginal gain v(S ∪ a) − v(S),
averaged over all orders in which the players can join (Shapley, 1953).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from .candidates import model_of, within_bounds
from .cohort import Cohort
from .engine import Engine
from .evidence.rivals import all_coalitions, exact_shapley
from .seeding import generator
from .types import Candidate, Contributions, Counterfactual, Evaluation
from .weights.weighting import InfeasibleError

AT_ONCE = 64  # models evaluated together
LARGEST_ERROR = 10.0  # one beyond counts as this much, or one client would dominate all values
MOST_CLIENTS = 50  # in a round: each is one more model to evaluate
UNKNOWN_SIZES = "the server does not know the sizes of the clients' data"


def counterfactuals(cohort: Cohort, chosen: Candidate) -> tuple[Counterfactual, ...]:
    """All of a round, with their models; none where the round has no weights.

    Args:
        cohort: the clients of the round.
        chosen: what the method made of them, before fine-tuning.
    """
    if not chosen.weights.any():
        return ()
    return tuple(_all_of(cohort, chosen))


def evaluated(
    found: tuple[Counterfactual, ...],
    report: Evaluation | None,
    local: Evaluation | None,
) -> tuple[Counterfactual, ...]:
    """The counterfactuals with their results instead of their models.

    Args:
        found: counterfactuals.
        report: of those that have a model, on the server's reporting part.
        local: of those, on the clients' own test sets.
    """
    results = []
    row = 0
    for one in found:
        if one.model is None:
            results.append(one)
            continue
        on_server = report.pick(row) if report else None
        on_clients = local.pick(row) if local else None
        results.append(replace(one, model=None, report=on_server, local=on_clients))
        row += 1
    return tuple(results)


def contributions(cohort: Cohort, chosen: Candidate) -> Contributions | None:
    """Shapley values [n] of a round's clients on the server's reporting part; None without weights.

    The worth of a coalition is the metric of the aggregate of its updates, weighted by their weights in the
    round divided by their sum; that of nobody is the metric of the model before the round. A metric for
    which lower is better counts negatively, so that a positive value is a gain.

    The bounds are not applied anew: few clients alone can rarely meet them.
    """
    if not chosen.weights.any():
        return None

    def worth(members: Tensor) -> Tensor:
        found = []
        for some in torch.split(members, AT_ONCE):
            models = [_coalition_model(cohort, chosen, one) for one in some]
            found.append(_reported(cohort.engine, torch.stack(models)))
        return torch.cat(found)

    random = generator(cohort.plan.seed, "contributions", cohort.state.round_num + 1)
    return shapley(worth, len(cohort.client_ids), random)


def _reported(engine: Engine, models: Tensor) -> Tensor:
    """The metric of models [c, d] on the server's reporting part [c]; negative if lower is better."""
    found = engine.evaluate_server(models, "report")
    assert found is not None, "validation refuses contributions without reporting samples"
    metric = found.overall().double()
    if engine.problem.higher_is_better:
        return metric.nan_to_num(nan=0.0)
    return -metric.nan_to_num(nan=torch.inf).clamp(max=LARGEST_ERROR)


def _coalition_model(cohort: Cohort, chosen: Candidate, members: Tensor) -> Tensor:
    """The model [d] of a coalition, given as 0 and 1 [n]."""
    rows = members.nonzero().flatten().tolist()
    weights = chosen.weights[rows]
    if not weights.any():
        return cohort.state.model
    return model_of(cohort, weights / weights.sum(), rows, chosen)


def _all_of(cohort: Cohort, chosen: Candidate) -> Iterator[Counterfactual]:
    count = len(cohort.client_ids)
    everybody = range(count)
    yield Counterfactual("chosen", model=chosen.model)
    equal = torch.full((count,), 1 / count, dtype=torch.float64)
    yield Counterfactual("uniform", model=model_of(cohort, equal, everybody, chosen))
    sizes = cohort.sizes
    if sizes is None:
        yield Counterfactual("size", reason=UNKNOWN_SIZES)
    else:
        yield Counterfactual("size", model=model_of(cohort, sizes / sizes.sum(), everybody, chosen))
    for row, client in enumerate(cohort.client_ids):
        yield _without(cohort, chosen, row, client)


def _without(cohort: Cohort, chosen: Candidate, row: int, client: int) -> Counterfactual:
    rows = [other for other in range(len(cohort.client_ids)) if other != row]
    try:
        weights = coalition_weights(cohort, chosen, rows)
    except InfeasibleError as error:
        return Counterfactual("without", client, reason=str(error))
    return Counterfactual("without", client, model=model_of(cohort, weights, rows, chosen))


def coalition_weights(cohort: Cohort, chosen: Candidate, rows: list[int]) -> Tensor:
    """The weights of some clients of the round, alone within the bounds; InfeasibleError if none are."""
    before_bounds = chosen.posterior.weights if chosen.posterior else chosen.prior
    weights = before_bounds[rows]
    if not weights.any():
        raise InfeasibleError("the other clients have no weight")
    return within_bounds(cohort, weights / weights.sum())[0]


# Worths [c] of coalitions [c, n], whose entries are 1 for members and 0 for others
Worth = Callable[[Tensor], Tensor]
MOST_EXACT = 10  # players whose coalitions are all evaluated: 1,024
ORDERS = 40  # random orders of more players


def sampled_shapley(
    worth: Worth, count: int, orders: int, random: torch.Generator
) -> Contributions:
    """Mean marginal gains over random orders [n], with the standard error of that mean.

    Half of the orders are the other half reversed, so that early and late positions balance out
    (antithetic sampling). The error is that of the means of such pairs.

    Args:
        worth: worths of coalitions.
        count: number of players.
        orders: number of orders, rounded down to pairs; at least two pairs.
        random: draws the orders.
    """
    pairs = max(2, orders // 2)
    means = []
    for _ in range(pairs):
        order = torch.randperm(count, generator=random)
        both = [_gains(worth, order), _gains(worth, order.flip(0))]
        means.append(torch.stack(both).mean(0))
    found = torch.stack(means)
    return Contributions(found.mean(0), found.std(0) / pairs**0.5)


def shapley(worth: Worth, count: int, random: torch.Generator) -> Contributions:
    """Exact values of up to ten players; sampled ones of more."""
    if count <= MOST_EXACT:
        values = exact_shapley(worth(all_coalitions(count)))
        return Contributions(values, torch.zeros_like(values))
    return sampled_shapley(worth, count, ORDERS, random)


def _gains(worth: Worth, order: Tensor) -> Tensor:
    """What each player adds as the players join in an order [n]; the sum is v(all) − v(∅)."""
    count = len(order)
    joined = torch.zeros(count + 1, count, dtype=torch.int64)
    for position, player in enumerate(order.tolist()):
        joined[position + 1 :, player] = 1
    steps = worth(joined).double().diff()
    gains = torch.zeros(count, dtype=torch.float64)
    gains[order] = steps
    return gains

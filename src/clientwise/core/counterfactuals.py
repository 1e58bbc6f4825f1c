"""Counterfactuals: the aggregate of a round's own updates under other weights.

- `chosen`: the weights of the method. Without fine-tuning, this is the model of the round.
- `uniform`: equal weights, without bounds.
- `size`: weights by the number of training samples, without bounds.
- `without`: the method's weights without one client, divided by their sum and brought within the
  same bounds.

Evidence is not judged anew: its weights are those of the round. What a run without a client would
have learned is another run (`clientwise counterfactual`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from .candidates import model_of, within_bounds
from .cohort import Cohort
from .contributions import Contributions, shapley
from .engine import Engine
from .seeding import generator
from .types import Candidate, Counterfactual, Evaluation
from .weights.bounds import InfeasibleError

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
    return within_bounds(cohort, weights / weights.sum(), rows)[0]

"""Criteria that the server measures about one client: its model, and facts that the server knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from annotated_types import MinLen
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ...registry import Names, PositiveFloat
from ..objective.metrics import METRICS, highest_performance, performance
from .base import ANY, Arrivals, criterion

Fact = str | bool | float  # about a client: a word, yes or no, a number
SHORT_ROW = 2**15  # values that PyTorch adds up in one thread
MOST_WORDS = 1_000  # different words of one attribute; each takes a column
HONEST = "honest, as the simulation knows"  # attribute of the clients, in simulations


@criterion("uniform", measured_by="server", high=1.0, alike=True)
def uniform(arrivals: Arrivals) -> Tensor:
    """1 for all clients: the plain mean of the models, whatever the sizes of the datasets."""
    return torch.ones(len(arrivals.client_ids))


@criterion("model_divergence", measured_by="server", high=1.0)
def model_divergence(arrivals: Arrivals, *, per_layer: bool = False) -> Tensor:
    """1/√(‖Θ − Θ_a‖₂ + 1) (P1 5.1, MW); `per_layer`: the mean norm over the kernels, as in the papers' code.

    Args:
        arrivals: models [n, d] and the global model [d]; buffers do not count.
        per_layer: take the mean of the norms of all tensors with two or more dimensions.

    Returns:
        Values [n] in (0, 1]: 1 for a model that did not move.
    """
    difference = arrivals.models - arrivals.global_model  # [n, d]
    if per_layer:
        kernels = [layer for layer in arrivals.spec.layers if len(layer.shape) > 1]
        norms = [_row_norms(difference[:, layer.start : layer.stop]) for layer in kernels]
        norm = torch.stack(norms).mean(0)
    else:
        norm = _row_norms(difference[:, : arrivals.spec.num_parameters])
    return (norm.double() + 1).rsqrt()


def _row_norms(rows: Tensor) -> Tensor:
    """Norms [n]. Their last bits do not depend on the number of rows.

    On a GPU, and where PyTorch shares a long row among threads, they would: such rows come one by one.
    """
    if not rows.is_cuda and rows.shape[1] <= SHORT_ROW:
        norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
        return norms
    return torch.stack([torch.linalg.vector_norm(row) for row in rows])


@criterion(
    "server_performance",
    measured_by="server",
    needs={"server_set"},
    high=lambda problem, metric: min(ANY, highest_performance(metric or problem.weighed_by)),
)
def server_performance(
    arrivals: Arrivals, *, metric: Annotated[str | None, Names(METRICS)] = None
) -> Tensor:
    """The model's performance on the server's set (P3): accuracy unless `metric` says otherwise; errors as 1/error.

    Args:
        arrivals: models [n, d], and who evaluates them.
        metric: a registered metric; None takes the problem's: accuracy, RMSE (MAPE if that is the metric), concordance.

    Returns:
        Values [n]: the metric, or 1/(error + 10⁻⁶).
    """
    return performance(metric or arrivals.metric, arrivals.evaluation().counts)


@criterion("server_cosine", measured_by="server", high=1.0, needs={"server_samples"})
def server_cosine(arrivals: Arrivals) -> Tensor:
    """max(0, cos(Δ_a, Δ_s)) with Δ_s, the update of the server's own training (FLTrust, Cao et al., 2021).

    Returns:
        Values [n] in [0, 1].
    """
    if arrivals.server_update is None:
        raise KeyError("server_cosine needs a server that trains on samples of its own")
    count = arrivals.spec.num_parameters
    trusted = arrivals.server_update()[:count].double()
    updates = (arrivals.models - arrivals.global_model)[:, :count]
    # Row by row: on a GPU the last bits may otherwise depend on the number of rows.
    cosines = [cosine_similarity(row.double(), trusted, dim=0) for row in updates]
    return torch.stack(cosines).clamp(0.0, 1.0)


@criterion("attribute", measured_by="server", high=lambda problem, of, high: high)
def attribute(arrivals: Arrivals, *, of: str, high: PositiveFloat = ANY) -> Tensor:
    """A boolean or graded fact about the client that the server knows (P1 4.2, commercial targets), by its name.

    Args:
        arrivals: n clients and their attributes.
        of: name of the attribute.
        high: largest possible value: 1 for a share, 120 for an age.

    Returns:
        Values [n] in [0, high].
    """
    if of in arrivals.attributes:
        return arrivals.attributes[of]
    has_words = any(name.startswith(category(of, "")) for name in arrivals.attributes)
    if has_words:
        raise KeyError(f"the attribute {of!r} has words: use the criterion is_one_of")
    raise KeyError(
        f"the clients have no attribute {of!r}; they have {_listed(arrivals.attributes)}"
    )


@criterion("is_one_of", measured_by="server", high=1.0)
def is_one_of(arrivals: Arrivals, *, of: str, values: Annotated[list[Fact], MinLen(1)]) -> Tensor:
    """1 for clients whose attribute `of` is one of `values` (P1 4.2: nationality, job ...), 0 for the others.

    Args:
        arrivals: n clients and their attributes.
        of: name of the attribute.
        values: words, numbers or booleans.

    Returns:
        0 or 1 for each client [n].
    """
    known = arrivals.attributes
    found = torch.zeros(len(arrivals.client_ids), dtype=torch.bool)
    for value in values:
        if of in known and not isinstance(value, str):
            found |= known[of] == value
        elif isinstance(value, str) and category(of, value) in known:
            found |= known[category(of, value)] > 0
        else:
            raise KeyError(f"no client has {of!r} = {value!r}; the attributes are {_listed(known)}")
    return found.double()


@criterion("honest", measured_by="server", high=1.0, needs={"simulation"})
def honest(arrivals: Arrivals) -> Tensor:
    """1 for honest clients and 0 for hostile ones: a control, for simulations only.

    Combine it with what the method weighs by: `criteria = ["honest", "dataset_size"]`, `score = "product"`.
    """
    if HONEST not in arrivals.attributes:
        raise KeyError(
            "honest is for simulations: elsewhere it is unknown which clients are hostile"
        )
    return arrivals.attributes[HONEST]


def category(attribute: str, word: str) -> str:
    """Name of the column that is 1 for clients with a word as an attribute.

    >>> category("job", "nurse")
    'job = nurse'
    """
    return f"{attribute} = {word}"


def fact_columns(attributes: Mapping[str, Sequence[Fact]]) -> dict[str, Tensor]:
    """Facts about n clients as columns of numbers, each [n]: yes is 1, and every word has its own column.

    >>> {name: column.tolist() for name, column in fact_columns({"job": ["nurse", "cook", "nurse"]}).items()}
    {'job = cook': [0.0, 1.0, 0.0], 'job = nurse': [1.0, 0.0, 1.0]}
    """
    columns: dict[str, Tensor] = {}
    for name, values in attributes.items():
        words = sorted({value for value in values if isinstance(value, str)})
        if not words:
            columns[name] = torch.as_tensor(values).double()
        elif not all(isinstance(value, str) for value in values):
            raise ValueError(f"{name!r} has words and numbers: give every client one or the other")
        elif len(words) > MOST_WORDS:
            raise ValueError(
                f"{name!r} has {len(words):,} different words: at most {MOST_WORDS:,} are allowed"
            )
        for word in words:
            columns[category(name, word)] = torch.tensor(
                [value == word for value in values]
            ).double()
    return columns


def _listed(attributes: Mapping[str, Tensor]) -> str:
    """Names of attributes for a message, without the one that only simulations have."""
    return str(sorted(attributes.keys() - {HONEST}))

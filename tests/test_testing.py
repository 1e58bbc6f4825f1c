"""The checks for parts: all of ours pass them, and parts that declare wrongly do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

import clientwise as cw
from clientwise.core.aggregation.rules import RULES, Ruled, State
from clientwise.core.criteria import CRITERIA, Arrivals
from clientwise.core.weights.scores import Score, Term
from clientwise.engine.local import LocalEngine
from clientwise.registry import needs
from clientwise.testing import (
    check_criterion,
    check_rule,
    check_score,
)
from engine_contract import check_engine

OPTIONS: dict[str, dict[str, Any]] = {
    "attribute": {"of": "premium", "attributes": {"premium": [1.0, 0.0, 0.5]}},
    "sharpness": {
        "blurry": "Blurry",
        "sample_attributes": {"Blurry": [-1, -1, -1, 1, 1, 1, -1, -1, -1]},
    },
}


@pytest.mark.parametrize("name", list(CRITERIA))
def test_every_criterion_passes(name: str) -> None:
    check_criterion(name, **OPTIONS.get(name, {}))


@pytest.mark.parametrize("name", list(RULES))
def test_every_rule_passes(name: str) -> None:
    check_rule(name)


@pytest.mark.parametrize("options", [{}, {"chunk_size": 1}], ids=["together", "one by one"])
def test_the_embedded_engine_passes(
    make_engine: Callable[..., LocalEngine], options: dict[str, Any]
) -> None:
    check_engine(make_engine(**options))


def test_a_criterion_that_compares_clients_must_say_so() -> None:
    @cw.criterion("rank", measured_by="server", high=1.0)
    def rank(arrivals: Arrivals) -> Tensor:
        """How many of the others moved farther."""
        distance = (arrivals.models - arrivals.global_model).norm(dim=1)
        return (distance[:, None] <= distance).double().mean(1)

    with pytest.raises(AssertionError, match=r"on the server with needs=\{'whole_cohort'\}"):
        check_criterion("rank")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda clients: clients.num_samples[:1], "one value per client"),
        (lambda clients: clients.num_samples / 0, "must be finite and not negative"),
        (lambda clients: -clients.num_samples, "must be finite and not negative"),
        (lambda clients: clients.num_samples, "above its bound 1"),
    ],
)
def test_criteria_that_cannot_be_right(value: Callable[[Any], Tensor], message: str) -> None:
    @cw.criterion("wrong", measured_by="client", high=1.0)
    def wrong(clients: cw.parts.ClientFacts) -> Tensor:
        """Wrong in one way or another."""
        return value(clients)

    with pytest.raises((AssertionError, TypeError), match=message):
        check_criterion("wrong")


def test_scores_that_cannot_be_right() -> None:
    class Falling(Score):
        def __call__(self, names: Any, values: Tensor) -> Tensor:
            return 1 / (1 + values.sum(1))

    class Boasting(Score):
        def __call__(self, names: Any, values: Tensor) -> Tensor:
            return values.sum(1)

        def terms(self, names: Any) -> tuple[Term, ...]:
            return (Term(1.0, (1.0,) * len(names)),)

    with pytest.raises(AssertionError, match="falls when a rises"):
        check_score(Falling())
    with pytest.raises(AssertionError, match="terms do not add up"):
        check_score(Boasting())


def test_rules_that_cannot_be_right() -> None:
    @RULES.register("unweighted", needs("models"))
    def unweighted(updates: Tensor, weights: Tensor, state: State) -> Ruled:
        """The plain mean, whatever the weights."""
        return Ruled(updates.mean(0), weights)

    with pytest.raises(AssertionError, match="with weight 0 must not change the result"):
        check_rule("unweighted")

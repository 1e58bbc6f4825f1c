"""What `check` refuses together with secure aggregation: the reason, and what to use instead."""

from __future__ import annotations

import re
from typing import Any

import pytest

from clientwise.errors import ConfigError
from clientwise.experiment.checks.against_data import validate
from clientwise.experiment.checks.combinations import ALLOWED_IF_SECURE, REFUSED_IF_SECURE
from clientwise.experiment.config.methods import MethodSettings
from clientwise.experiment.load import load_experiment

CRITERIA = ["label_diversity", "dataset_size"]
NOISE = {"clip": 1.0, "delta": 0.01, "noise_multiplier": 1.0}
ADDED_LATE = "noise of the server is added after the sum is known"


def refusal(tiny: dict[str, Any], method: dict[str, Any], **changes: Any) -> str:
    """The message, or "" where nothing is refused."""
    secret = {"name": "secret", "criteria": CRITERIA, "secure_aggregation": {}} | method
    table = tiny | {"federation": {}} | changes | {"methods": [secret, *changes.get("others", [])]}
    table.pop("others", None)
    try:
        validate(load_experiment(table), None)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "method",
    [
        {},
        {"criteria": ["dataset_size"]},
        {"score": "mean"},
        {
            "score": {
                "name": "weighted_mean",
                "weights": {"label_diversity": 1.0, "dataset_size": 2.0},
            }
        },
        {"score": "product", "normalise": "sum"},
        {"criteria": ["class_balance"], "score": "product"},
        {"server_step": "adam", "fine_tune": {}, "adapt_loss": "class_weights"},
        {"secure_aggregation": {"threshold": 0.5, "bits": 64, "clip": 1.0}},
    ],
)
def test_what_works_together(tiny: dict[str, Any], method: dict[str, Any]) -> None:
    assert refusal(tiny, method) == ""


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ({"criteria": ["server_performance"]}, "use a criterion that clients measure"),
        ({"criteria": ["model_divergence"]}, "use a criterion that clients measure"),
        ({"criteria": ["trust"]}, "use a criterion that clients measure"),
        ({"evidence": "significance"}, "use criteria that clients measure"),
        ({"evidence": "history"}, "use criteria that clients measure"),
        ({"score": {"name": "owa", "quantifier": "most"}}, 'use "prioritized", "mean"'),
        ({"rule": "median"}, "secure_aggregation.clip bounds the norm"),
        ({"rule": "krum"}, "secure_aggregation.clip bounds the norm"),
        ({"before": ["clip"]}, r"clients clip their own updates \(secure_aggregation.clip\)"),
        ({"bounds": {"cap": 0.5}}, "needs all weights"),
        ({"brake": 3.0}, "keeps the old model after its sum is known"),
        ({"adjust": "first_improvement"}, "use a fixed order of priority"),
        ({"normalise": "max"}, 'use "sum", or "none"'),
        ({"score": "product"}, 'overflows unless .* use normalise = "sum"'),
        ({"secure_aggregation": {"threshold": 0.49}}, "must be at least 0.5: below a majority"),
        ({"secure_aggregation": {"threshold": 1.0}}, "must be below 1"),
        ({"secure_aggregation": {"bits": 16}}, "must be 32 or 64"),
        ({"control": "pooled"}, "remove secure_aggregation"),
        (
            {"training": {"control_variates": True}},
            "sent beside the models, in time and in the clear",
        ),
        ({"privacy": NOISE}, ADDED_LATE),
        ({"privacy": NOISE | {"local": True}}, ADDED_LATE),
    ],
)
def test_what_needs_single_models_or_weights_is_refused(
    tiny: dict[str, Any], method: dict[str, Any], reason: str
) -> None:
    assert re.search(reason, refusal(tiny, method))


def test_a_coarse_rounding_and_too_few_clients_are_refused(tiny: dict[str, Any]) -> None:
    two = {"federation": {"clients_per_round": 2}}
    assert "needs at least 3 clients" in refusal(tiny, {}, **two)
    many = {"partition": {"name": "dirichlet", "clients": 300, "concentration": 5.0}}
    method = {"criteria": [*CRITERIA, "class_balance"], "score": "product", "normalise": "sum"}
    assert "use bits = 64" in refusal(tiny, method, **many)
    assert refusal(tiny, method | {"secure_aggregation": {"bits": 64}}, **many) == ""


def test_cohorts_of_any_size_are_refused(tiny: dict[str, Any]) -> None:
    """The sum has room for the planned number of clients."""
    cohorts = {"federation": {"fraction": 0.6, "sampling": "poisson"}}
    assert 'set federation.sampling = "fixed"' in refusal(tiny, {}, **cohorts)


def test_on_flower_nothing_would_be_secret(tiny: dict[str, Any]) -> None:
    assert 'use engine = "local"' in refusal(tiny, {}, engine="flower")
    assert 'use engine = "local"' in refusal(tiny, {}, flower={"clients": ["a", "b", "c"]})


def test_every_key_of_a_method_is_allowed_or_refused_with_a_reason() -> None:
    """A new key is refused until someone says that it works; better with a reason of its own."""
    keys = set(MethodSettings.model_fields)
    assert keys - ALLOWED_IF_SECURE <= set(REFUSED_IF_SECURE)

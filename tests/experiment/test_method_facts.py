"""What the record says of a method follows from its parts."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import inf
from typing import Any

import pytest
from pydantic import TypeAdapter

from clientwise.experiment.config_file import METHODS
from clientwise.experiment.load import load_experiment, load_method
from clientwise.experiment.running.about import about_method
from clientwise.record.facts import MethodFacts


def facts(**table: Any) -> MethodFacts:
    return about_method(load_method({"name": "A", "like": "FedAvg", **table}, "method"))


def test_names_options_and_bounds() -> None:
    found = facts(
        criteria=[{"name": "dataset_size", "as": "size"}, "label_diversity"],
        evidence={"name": "significance", "threshold": 2, "margin": 0.1},
        bounds={"cap": 0.2},
        rule="median",
    )
    assert found.criteria == ("size", "label_diversity")
    assert (found.score, found.rule, found.has_rule) == ("prioritized", "median", True)
    assert (found.evidence, found.threshold, found.margin) == ("significance", 2.0, 0.1)
    assert found.bounds is not None
    assert found.bounds["cap"] == 0.2
    plain = facts()
    assert (plain.evidence, plain.bounds, plain.privacy) == (None, None, {})
    assert (plain.threshold, plain.has_rule, plain.is_control) == (inf, False, False)


@pytest.mark.parametrize(
    ("table", "is_control", "is_available"),
    [
        ({}, False, True),
        ({"control": "pooled"}, True, False),
        ({"control": "alone"}, True, True),
        ({"criteria": ["honest"]}, True, False),
    ],
)
def test_which_methods_are_references_only(
    table: dict[str, Any], is_control: bool, is_available: bool
) -> None:
    assert (facts(**table).is_control, facts(**table).is_available) == (is_control, is_available)


def test_facts_of_every_method_come_back_from_json(tiny: dict[str, Any]) -> None:
    for settings in load_experiment(tiny | {"devices": {}, "methods": [*METHODS]}).methods:
        found = about_method(settings)
        text = json.dumps(found.plain())
        assert TypeAdapter(MethodFacts).validate_json(text, strict=True) == found
        assert asdict(found)["criteria"]

"""The schema for editors says what the config's own checks say."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from clientwise.experiment.reference import config_schema

jsonschema = pytest.importorskip("jsonschema")
ROOT = Path(__file__).parents[2]
FILES = [*sorted((ROOT / "experiments").glob("*.toml")), ROOT / "src" / "clientwise" / "demo.toml"]


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json.loads(json.dumps(config_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_it_takes_every_config_we_ship(validator: Any) -> None:
    assert len(FILES) > 10
    for path in FILES:
        errors = list(validator.iter_errors(tomllib.loads(path.read_text(encoding="utf-8"))))
        assert not errors, f"{path.name}: {errors[0].json_path}: {errors[0].message[:300]}"


@pytest.mark.parametrize(
    "text",
    [
        "rouns = 3",
        "rounds = 0",
        "training.learnin_rate = 0.1",
        "training.learning_rate = -0.1",
        'data = "mnits"',
        'model = { name = "mlp", hiden = [3] }',
        'model = { name = "mlp", hidden = 3 }',
        'methods = ["FedAvgg"]',
        'methods = [{ name = "x", score = "prioritised" }]',
        'methods = [{ name = "x", criteria = [{ name = "server_performance", metric = "acuracy" }] }]',
        'hostile = [{ clients = 2, attack = "wrong_label" }]',
        "evaluation.target = 0",
    ],
)
def test_it_marks_what_is_wrong(text: str, validator: Any, tiny: dict[str, Any]) -> None:
    assert validator.is_valid(tiny)
    assert not validator.is_valid(tiny | tomllib.loads(text))


def test_seeds_are_a_list_or_a_text(validator: Any, tiny: dict[str, Any]) -> None:
    for seeds in ([1, 2], "1-5, 9"):
        assert validator.is_valid(tiny | {"seeds": seeds})
    assert not validator.is_valid(tiny | {"seeds": 5})

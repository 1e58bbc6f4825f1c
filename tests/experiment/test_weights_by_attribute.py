"""Stated weights in the embedded engine: an attribute by client, or a function of criteria as the score."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clientwise as cw
from clientwise.errors import ClientwiseError
from recorded import rows

WEIGHTS = [4.0, 2.0, 1.0, 1.0]
STATED: dict[str, Any] = {"name": "stated", "criteria": [{"name": "attribute", "of": "weight"}]}


def clients() -> dict[str, tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    found = {}
    for number in range(4):
        labels = torch.arange(30) % 2
        found[f"site-{number}"] = (torch.randn(30, 4, generator=draw) + labels[:, None], labels)
    return found


def fit(**options: Any) -> cw.Run:
    return cw.fit(nn.Linear(4, 2), clients(), rounds=4, progress=False, **options)


def test_a_client_that_is_not_asked_takes_no_share() -> None:
    federation = {"clients_per_round": 2}
    run = fit(method=STATED, attributes={"weight": WEIGHTS}, federation=federation)
    cohorts = set()
    for round_num in range(1, 5):
        found = run.weights[round_num].dropna()
        stated = {name: WEIGHTS[int(name[-1])] for name in found.index}
        total = sum(stated.values())
        assert len(found) == 2
        assert found.to_dict() == pytest.approx({name: one / total for name, one in stated.items()})
        cohorts.add(tuple(found.index))
    assert len(cohorts) > 1


def test_weights_by_the_clients_names() -> None:
    by_name = {"site-3": 1.0, "site-1": 2.0, "site-0": 4.0, "site-2": 1.0}
    run = fit(method=STATED, attributes={"weight": by_name})
    assert run.weights[4].to_dict() == pytest.approx(
        {"site-0": 0.5, "site-1": 0.25, "site-2": 0.125, "site-3": 0.125}
    )
    with pytest.raises(ClientwiseError, match=r"of site-0, site-9; the clients are site-0, site-1"):
        fit(method=STATED, attributes={"weight": {"site-0": 1.0, "site-9": 1.0}})
    several = list(clients().values())
    with pytest.raises(ClientwiseError, match="clients have no names: give a list"):
        cw.fit(nn.Linear(4, 2), several, method=STATED, attributes={"weight": by_name})


def test_a_function_of_criteria_is_a_score() -> None:
    def root(dataset_size: Tensor) -> Tensor:
        return dataset_size.sqrt()

    run = fit(method={"name": "mine", "criteria": ["dataset_size"], "score": root})
    measured = rows(run, "criteria", "mine", 1, 4)["raw"].tolist()
    roots = torch.tensor(measured, dtype=torch.float64).sqrt()
    assert run.weights[4].tolist() == pytest.approx((roots / roots.sum()).tolist())
    assert len(set(roots.tolist())) > 1


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ([1.0, -1.0, 1.0, 1.0], r"weight\[1\] = -1: must be finite and not negative"),
        ([math.nan, 1.0, 1.0, 1.0], r"weight\[0\] = nan"),
        ([0.0] * 4, "all weights were zero"),
        ([1.0] * 3, "has 3 values for 4 clients"),
    ],
)
def test_weights_that_no_round_can_use_are_refused(weights: list[float], why: str) -> None:
    with pytest.raises(ClientwiseError, match=why) as error:
        fit(method=STATED, attributes={"weight": weights})
    assert "\n" not in str(error.value)


def test_a_fact_above_its_range_is_refused() -> None:
    aged = {"name": "aged", "criteria": [{"name": "attribute", "of": "age", "high": 120}]}
    with pytest.raises(ClientwiseError, match=r"age\[3\] = 130: .* at most 120"):
        fit(method=aged, attributes={"age": [40.0, 50.0, 60.0, 130.0]})

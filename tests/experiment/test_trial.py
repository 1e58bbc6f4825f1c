"""What `check` finds by trying a client: faults of a user's own parts and data."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import clientwise as cw
from clientwise.core.objective.problem import Classification
from clientwise.errors import ConfigError

CONFIG: dict[str, Any] = {
    "name": "trial",
    "rounds": 1,
    "data": "digits",
    "partition": {"name": "iid", "clients": 4},
    "model": "linear",
}


@pytest.fixture
def criteria() -> Any:
    """Criteria of the user's own, which are forgotten afterwards."""

    @cw.criterion("share_of_cohort", measured_by="client", high=1.0)
    def share_of_cohort(clients: cw.ClientFacts) -> torch.Tensor:
        """Compares clients, which a client cannot do."""
        return clients.num_samples / clients.num_samples.sum()

    @cw.criterion("charge", measured_by="client", high=1.0)
    def charge(clients: cw.ClientFacts) -> torch.Tensor:
        """Needs an attribute."""
        return clients.attributes["battery"]

    yield
    for name in ("share_of_cohort", "charge"):
        del cw.CRITERIA._parts[name]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("share_of_cohort", "depends on the other clients: measure it on the server"),
        ("charge", r"clients have no attribute 'battery'; add it to \[attributes\]"),
    ],
)
def test_a_criterion_that_cannot_be_measured_is_refused(
    criteria: None, name: str, message: str, tmp_path: Any
) -> None:
    method = {"name": "mine", "criteria": [name]}
    with pytest.raises(ConfigError, match=message):
        cw.run(CONFIG | {"methods": [method]}, tmp_path / "run")


def test_labels_beyond_the_classes_are_one_line(tmp_path: Any) -> None:
    @cw.DATASETS.register("four labels")
    def four_labels(folder: Any) -> cw.Samples:
        """Four labels where three classes are declared."""
        inputs = torch.zeros(40, 3)
        return cw.Samples(inputs, torch.arange(40) % 4, Classification(3))

    try:
        with pytest.raises(cw.ClientwiseError, match="labels go from 0 to 3"):
            cw.run(CONFIG | {"data": "four labels"}, tmp_path / "run")
    finally:
        del cw.DATASETS._parts["four labels"]


def test_a_network_without_parameters_and_data_by_name_are_one_line(tmp_path: Any) -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.AvgPool1d(6, 6))
    without_model = {key: value for key, value in CONFIG.items() if key != "model"}
    with pytest.raises(cw.ClientwiseError, match="no parameters"):
        cw.run(without_model, tmp_path / "run", model=network)
    with pytest.raises(cw.ClientwiseError, match="data: must be FederatedData or Samples"):
        cw.run(CONFIG, tmp_path / "run", data="diabetes")  # type: ignore[arg-type]

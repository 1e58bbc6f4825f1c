"""What the examples in docstrings need; pytest runs them."""

from importlib.util import find_spec

import pytest
import torch

collect_ignore = [] if find_spec("flwr") else ["clientwise/flower", "clientwise/hosts/flower"]


@pytest.fixture(scope="session")
def run_of_examples(tmp_path_factory: pytest.TempPathFactory) -> object:
    """The run that the examples of `Run` are about."""
    from sklearn.datasets import load_digits
    from torch import nn

    import clientwise as cw

    inputs, labels = load_digits(return_X_y=True)
    starts = range(0, 1200, 200)
    parts = [(inputs[at : at + 200] / 16, labels[at : at + 200]) for at in starts]
    sites = dict(zip(["north", "east", "south", "west"], parts, strict=False))
    sites["west"] = (parts[3][0], 9 - parts[3][1])
    folder = tmp_path_factory.mktemp("examples") / "run"
    network = nn.Linear(64, 10)
    return cw.fit(network, sites, held_out=parts[4], test=parts[5], rounds=5, out=folder)


@pytest.fixture(autouse=True)
def _examples_of_runs(request: pytest.FixtureRequest, doctest_namespace: dict[str, object]) -> None:
    if request.node.name.startswith("clientwise.results.Run"):
        doctest_namespace["torch"] = torch
        doctest_namespace["run"] = request.getfixturevalue("run_of_examples")

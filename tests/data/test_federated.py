from __future__ import annotations

from dataclasses import replace

import numpy
import pytest
import torch

from clientwise.core.objective.problem import Classification
from clientwise.data import federated
from clientwise.data.federated import FederatedData, Holdings, Samples
from clientwise.data.folder import DataError
from clientwise.data.partition import iid
from dividing import federate


def test_your_own_arrays() -> None:
    random = numpy.random.default_rng(1)
    clients = [(random.normal(size=(n, 3)), random.integers(0, 4, n)) for n in (5, 9, 2)]
    tests = [(random.normal(size=(2, 3)), random.integers(0, 4, 2)) for _ in range(3)]
    report = (random.normal(size=(6, 3)), random.integers(0, 4, 6))
    data = FederatedData.from_clients(
        clients, tests, report=report, num_classes=4, attributes={"premium": [True, False, True]}
    )
    assert data.num_clients == 3
    assert data.train.sizes.tolist() == [5, 9, 2]
    assert data.weigh is None
    numpy.testing.assert_allclose(
        data.samples.batch(data.train.indices[data.train.slice(1)]), clients[1][0], rtol=1e-6
    )
    assert data.report.targets.tolist() == report[1].tolist()
    assert data.samples.problem.num_classes == 4
    assert data.attributes["premium"].tolist() == [1, 0, 1]
    sharp = FederatedData.from_clients(
        clients, tests, sample_attributes={"Blurry": [numpy.ones(5), numpy.zeros(9), numpy.ones(2)]}
    )
    assert (
        sharp.samples.sample_attributes["Blurry"][sharp.train.indices].tolist()
        == [1] * 5 + [0] * 9 + [1] * 2
    )


ZEROS = numpy.zeros((2, 2))
FINE = [(ZEROS, [0, 1])] * 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"test": []}, "give one for each client, got {'training sets': 2, 'test sets': 0}"),
        ({"attributes": {"age": [1, 2, 3]}}, "'age': 3}"),
        (
            {"sample_attributes": {"dark": [[0, 1], [1]]}},
            "'dark': give one value for each training",
        ),
        (
            {"train": [(numpy.zeros((3, 2)), [0, 1])] * 2},
            "client 0, training: has 3 inputs, 2 targets",
        ),
        ({"train": [(ZEROS, [0, -1])] * 2}, "labels must be 0 to 1"),
        ({"report": (ZEROS[:1], [10**9])}, "1,000,000,001 classes: must be 2 to 10,000"),
        ({"report": (numpy.zeros(()), numpy.zeros((), int))}, "report: is a single number"),
        (
            {"report": (numpy.zeros((1, 3)), [0])},
            r"of one shape: report: inputs \(3,\) of numbers, targets \(\), client 0, training: inputs \(2,\)",
        ),
        (
            {"train": [FINE[0], (ZEROS * [[1], [numpy.nan]], [0, 1])], "names": ["north", "south"]},
            r"client 1 \(south\), training: 1 of its 2 samples have inputs or targets that are not finite numbers, the "
            "first is its sample 1; correct them",
        ),
    ],
)
def test_arrays_that_do_not_fit(changes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        FederatedData.from_clients(**({"train": FINE, "test": FINE} | changes))


def test_what_a_plugin_gives_must_be_finite() -> None:
    holes = torch.tensor([[0.0, 1.0], [torch.nan, 1.0]]).repeat(2, 1)
    samples = Samples(holes, torch.tensor([0, 1, 0, 1]), Classification(2))
    options = {"test_fraction": 0.5, "server_fraction": 0.0, "report_fraction": 0.0}
    with pytest.raises(
        DataError, match="client 0: 2 of its 4 samples have inputs or targets that are not"
    ):
        federate(samples, lambda pool, seed: iid(pool, seed, clients=1), 1, **options)
    held = Holdings.of([(torch.tensor([0, 2]), torch.tensor([0, 0]))])
    FederatedData(samples, held, held, None, None).check_finite()  # nobody holds the others


def test_all_that_was_given_counts_in_the_fingerprint() -> None:
    def made(second: float = 0.0, scale: float = 1.0, age: float = 3.0) -> str:
        shares = [(numpy.zeros((2, 2)), [0, 1]), (numpy.full((2, 2), second), [0, 1])]
        data = FederatedData.from_clients(
            shares, shares[:1] * 2, report=shares[0], attributes={"age": [1.0, age]}
        )
        return replace(data, samples=replace(data.samples, scale=scale)).fingerprint()

    assert made() == made()
    assert len({made(), made(second=1.0), made(age=4.0), made(scale=50.0)}) == 4


def test_clients_whose_samples_are_elsewhere_may_join() -> None:
    def fingerprint(clients: int, first: float = 0.0) -> str:
        server = numpy.full((2, 2), first), [0, 1]
        nothing = numpy.zeros((0, 2)), numpy.zeros(0, dtype=int)
        own = [nothing] * clients
        return FederatedData.from_clients(own, own, report=server).fingerprint()

    assert fingerprint(3) == fingerprint(4) != fingerprint(4, first=1.0)


def test_a_fingerprint_is_made_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is the same wherever blocks end, on every CPU and with every version."""
    targets = torch.tensor([0, 1, 2, 0, 1, 2])
    samples = Samples(
        torch.arange(24, dtype=torch.uint8).view(6, 2, 2),
        targets,
        Classification(3),
        scale=0.5,
        sample_attributes={"age": torch.arange(6).double()},
    )
    rows = torch.tensor([5, 0, 3, 2])
    data = FederatedData(
        samples,
        train=Holdings(rows, targets[rows], torch.tensor([0, 2, 2, 4])),
        test=Holdings(torch.tensor([1]), targets[1:2], torch.tensor([0, 0, 1, 1])),
        weigh=None,
        report=Holdings.of([(torch.tensor([4]), targets[4:5])]),
        attributes={"power": torch.tensor([1.0, 2.5, 3.0])},
    )
    recorded = "ae39de99898001e9236a50268179a65c"
    assert data.fingerprint() == recorded
    monkeypatch.setattr(federated, "ROWS_AT_ONCE", 1)
    assert data.fingerprint() == recorded

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clientwise.data.datasets import diabetes, digits
from clientwise.data.partition import PARTITIONS, dirichlet, federate, iid, quantity, shards

TARGETS = torch.arange(1000) % 10


@pytest.mark.parametrize("name", list(PARTITIONS))
@given(clients=st.integers(1, 50), seed=st.integers(0, 5))
def test_every_sample_is_given_out_once_and_the_seed_decides(name: str, clients: int, seed: int) -> None:
    partition = PARTITIONS.get(name)
    parts = partition(TARGETS, seed, clients=clients)
    assert len(parts) == clients
    assert torch.cat(parts).sort().values.tolist() == list(range(1000))
    again = partition(TARGETS, seed, clients=clients)
    assert all(torch.equal(one, two) for one, two in zip(parts, again, strict=True))
    if clients > 1:
        other = partition(TARGETS, seed + 1, clients=clients)
        assert not all(torch.equal(one, two) for one, two in zip(parts, other, strict=True))


def test_iid_is_even_and_shards_hold_few_labels() -> None:
    assert {len(part) for part in iid(TARGETS, 1, clients=10)} == {100}
    for part in shards(TARGETS, 1, clients=20, per_client=2):
        assert len(part) == 50
        assert len(TARGETS[part].unique()) <= 2


def test_concentration_makes_clients_alike_or_not() -> None:
    def spread(concentration: float) -> float:
        parts = dirichlet(TARGETS, 1, clients=10, concentration=concentration)
        return torch.tensor([len(part) for part in parts], dtype=torch.float64).std().item()

    assert spread(100.0) < spread(1.0) < spread(0.1)
    sizes = [len(part) for part in quantity(TARGETS, 1, clients=10, concentration=0.3)]
    assert max(sizes) > 5 * (min(sizes) + 1)


def split(**changes):
    options = {"test_fraction": 0.2, "server_fraction": 0.2, "report_fraction": 0.5} | changes
    samples = digits(None)
    return samples, federate(samples, lambda targets, seed: iid(targets, seed, clients=7), 1, **options)


def test_nobody_shares_a_sample_with_anybody() -> None:
    samples, data = split()
    every = torch.cat([data.train.numbers, data.test.numbers, data.weigh.numbers, data.report.numbers])
    assert every.sort().values.tolist() == list(range(len(samples.targets)))
    assert len(data.weigh.numbers) + len(data.report.numbers) == round(0.2 * len(samples.targets))
    for part in (data.train, data.test, data.weigh, data.report):
        assert torch.equal(part.targets, samples.targets[part.numbers])


def test_the_servers_parts_have_all_classes_in_proportion() -> None:
    _, data = split()
    for part in (data.weigh, data.report):
        counts = torch.bincount(part.targets, minlength=10)
        assert int(counts.max() - counts.min()) <= 3


def test_shared_set_is_the_papers_way() -> None:
    _, data = split(shared_set=True)
    assert torch.equal(data.weigh.numbers, data.report.numbers)


def test_a_contributed_set_comes_from_every_client_with_its_labels() -> None:
    samples, data = split(
        contributed_fraction=0.1, relabel=lambda client, targets: (targets + 1) % 10 if client == 2 else targets
    )
    given = set(data.weigh.numbers.tolist())
    for client in range(7):
        mine = data.train.numbers[data.train.slice(client)].tolist()
        assert len(given.intersection(mine)) == round(0.1 * len(mine))
    liar = set(data.train.numbers[data.train.slice(2)].tolist())
    wrong = data.weigh.targets != samples.targets[data.weigh.numbers]
    assert set(data.weigh.numbers[wrong].tolist()) == given & liar
    assert len(data.report.numbers) == round(0.2 * len(samples.targets))


def test_everyone_has_something_to_train_and_to_test_on() -> None:
    samples = digits(None)
    data = federate(
        samples,
        lambda targets, seed: dirichlet(targets, seed, clients=150, concentration=0.02),
        1,
        test_fraction=0.1,
        server_fraction=0.1,
        report_fraction=0.5,
    )
    assert int(data.train.sizes.min()) >= 1
    assert int(data.test.sizes.min()) >= 1
    with pytest.raises(ValueError, match="too few for 1000 clients"):
        federate(
            samples,
            lambda targets, seed: iid(targets, seed, clients=1000),
            1,
            test_fraction=0.2,
            server_fraction=0,
            report_fraction=0,
        )


def test_regression_and_no_server_set() -> None:
    data = federate(
        diabetes(None),
        lambda targets, seed: iid(targets, seed, clients=4),
        1,
        test_fraction=0.2,
        server_fraction=0,
        report_fraction=0.5,
    )
    assert data.weigh is None
    assert data.report is None
    assert data.train.targets.dtype == torch.float32

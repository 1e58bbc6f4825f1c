from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clientwise.data.datasets import digits
from clientwise.data.division import _at_least
from clientwise.data.partition import (
    PARTITIONS,
    Pool,
    by_id,
    iid,
    shards,
    table,
)
from dividing import federate

TARGETS = torch.arange(1000) % 10
POOL = Pool(TARGETS, 10, ids=torch.arange(1000) // 10)  # ten samples of each of a hundred ids


@pytest.mark.parametrize("name", ["iid", "quantity", "shards", "dirichlet"])
@given(clients=st.integers(1, 50), seed=st.integers(0, 5))
def test_every_sample_is_given_out_once_and_the_seed_decides(
    name: str, clients: int, seed: int
) -> None:
    partition = PARTITIONS.get(name)
    parts = partition(POOL, seed, clients=clients)
    assert len(parts) == clients
    assert torch.cat(parts).sort().values.tolist() == list(range(1000))
    again = partition(POOL, seed, clients=clients)
    assert all(torch.equal(one, two) for one, two in zip(parts, again, strict=True))
    if clients > 1:
        other = partition(POOL, seed + 1, clients=clients)
        assert not all(torch.equal(one, two) for one, two in zip(parts, other, strict=True))


def test_a_table_gives_exactly_what_it_says() -> None:
    counts = [[10, 0, 30, 10, 30, 50, 20, 20, 10, 10], [0, 10, 10, 10, 10, 40, 10, 0, 10, 90]]
    parts = table(POOL, 1, counts=counts)
    assert [torch.bincount(TARGETS[part], minlength=10).tolist() for part in parts] == counts
    assert len(torch.cat(parts).unique()) == sum(map(sum, counts))  # nobody shares


def test_a_table_shares_only_where_it_says_so_and_only_what_is_short() -> None:
    counts = [[80] + [0] * 9, [50] + [10] * 9]
    with pytest.raises(
        ValueError, match="ask for 130 samples of class 0, there are 100; with overlap = true"
    ):
        table(POOL, 1, counts=counts)
    first, second = table(POOL, 1, counts=counts, overlap=True)
    assert (len(first.unique()), len(second.unique())) == (80, 140)  # a client has no sample twice
    assert len(set(first.tolist()) & set(second.tolist())) == 30
    with pytest.raises(ValueError, match=r"counts\[0\] has 2 numbers, for 10 classes"):
        table(POOL, 1, counts=[[1, 2]])
    with pytest.raises(ValueError, match=r"counts\[0\] gives 1 samples; a client needs 2 at least"):
        table(replace(POOL, least=2), 1, counts=[[1] + [0] * 9])


def test_by_id_is_one_client_per_person() -> None:
    parts = by_id(POOL, 1)
    assert [POOL.ids[part].unique().tolist() for part in parts] == [
        [person] for person in range(100)
    ]
    assert torch.cat(parts).sort().values.tolist() == list(range(1000))
    few = by_id(POOL, 1, clients=7)
    assert len(few) == 7


def test_by_id_leaves_out_the_small_and_the_ownerless() -> None:
    ids = torch.tensor([5, 5, 5, 2, 2, 9, -1, -1, -1, -1])
    pool = Pool(torch.zeros(10, dtype=torch.int64), 2, ids)
    assert [part.tolist() for part in by_id(pool, 1)] == [[3, 4], [0, 1, 2]]
    assert [part.tolist() for part in by_id(pool, 1, minimum=3)] == [[0, 1, 2]]
    assert len(by_id(pool, 1, minimum=1)) == 3
    assert (
        len(by_id(replace(pool, least=2), 1, minimum=1)) == 2
    )  # nobody is given what is somebody else's
    assert sum(map(len, by_id(POOL, 1, sample_fraction=0.5, minimum=1))) == 500
    with pytest.raises(ValueError, match="0 of 3 ids have at least 4 samples"):
        by_id(pool, 1, minimum=4)
    with pytest.raises(ValueError, match="2 of 3 ids have at least 2 samples; 3 wanted"):
        by_id(pool, 1, clients=3)
    with pytest.raises(ValueError, match="QMNIST's label files"):
        by_id(Pool(ids, 2), 1)


def split(**changes):
    options = {"test_fraction": 0.2, "server_fraction": 0.2, "report_fraction": 0.5} | changes
    samples = digits(None)
    return samples, federate(samples, lambda pool, seed: iid(pool, seed, clients=7), 1, **options)


def test_nobody_shares_a_sample_with_anybody() -> None:
    samples, data = split()
    every = torch.cat(
        [data.train.indices, data.test.indices, data.weigh.indices, data.report.indices]
    )
    assert every.sort().values.tolist() == list(range(len(samples.targets)))
    assert len(data.weigh.indices) + len(data.report.indices) == round(0.2 * len(samples.targets))
    for part in (data.train, data.test, data.weigh, data.report):
        assert torch.equal(part.targets, samples.targets[part.indices])


def test_a_contributed_set_comes_from_every_client_with_its_labels() -> None:
    samples, data = split(
        report_fraction=1.0,
        contributed_fraction=0.1,
        relabel=lambda client, targets: (targets + 1) % 10 if client == 2 else targets,
    )
    given = set(data.weigh.indices.tolist())
    for client in range(7):
        mine = data.train.indices[data.train.slice(client)].tolist()
        assert len(given.intersection(mine)) == round(0.1 * len(mine))
    liar = set(data.train.indices[data.train.slice(2)].tolist())
    wrong = data.weigh.targets != samples.targets[data.weigh.indices]
    assert set(data.weigh.indices[wrong].tolist()) == given & liar
    assert len(data.report.indices) == round(0.2 * len(samples.targets))


def official(partition, **options):
    """The digits with the last 297 as their official test split."""
    samples = replace(digits(None), test_from=1500)
    settings = {"test_fraction": 0.2, "server_fraction": 0.0, "report_fraction": 0.5} | options
    return samples, federate(samples, partition, 1, **settings)


def test_the_official_test_split_may_be_the_servers() -> None:
    samples, data = official(
        lambda pool, seed: iid(pool, seed, clients=5), official_test="server", server_fraction=0.3
    )
    assert sorted(data.weigh.indices.tolist() + data.report.indices.tolist()) == list(
        range(1500, 1797)
    )
    assert sorted(data.train.indices.tolist() + data.test.indices.tolist()) == list(range(1500))
    counts = torch.bincount(samples.targets[data.report.indices], minlength=10)
    assert (
        int((counts - torch.bincount(samples.targets[1500:]) / 2).abs().max()) <= 1
    )  # halves alike
    _, shared = official(
        lambda pool, seed: iid(pool, seed, clients=5), official_test="server", shared_set=True
    )
    assert len(shared.weigh.indices) == len(shared.report.indices) == 297


def test_the_official_test_split_may_be_the_clients() -> None:
    _, data = official(
        lambda pool, seed: shards(pool, seed, clients=30),
        official_test="clients",
        server_fraction=0.2,
    )
    assert sorted(data.test.indices.tolist()) == list(range(1500, 1797))
    assert len(data.train.indices) == 1200
    assert len(data.report.indices) + len(data.weigh.indices) == 300
    assert set(data.test.sizes.tolist()) == {9, 10}
    known = 0
    for client in range(30):
        trained = set(data.train.targets[data.train.slice(client)].tolist())
        known += sum(
            label in trained for label in data.test.targets[data.test.slice(client)].tolist()
        )
    assert (
        known / 297 > 0.9
    )  # clients are tested on what they train on; a few digits lie next to a border


def test_people_test_on_their_own_part_of_the_official_test_split() -> None:
    samples = replace(digits(None), test_from=1500, ids=torch.arange(1797) % 30)
    options = {
        "test_fraction": 0.2,
        "server_fraction": 0.0,
        "report_fraction": 0.5,
        "official_test": "clients",
    }
    data = federate(samples, lambda pool, seed: by_id(pool, seed, clients=12), 1, **options)
    for client in range(12):
        (trains,) = samples.ids[data.train.indices[data.train.slice(client)]].unique()
        (tests,) = samples.ids[data.test.indices[data.test.slice(client)]].unique()
        assert trains == tests
    assert int(data.test.indices.min()) >= 1500
    others = replace(samples, ids=torch.cat([samples.ids[:1500], samples.ids[1500:] + 25]))
    with pytest.raises(
        ValueError,
        match="25 of 30 clients have nothing in the official test split; use test_fraction",
    ):
        federate(others, by_id, 1, **options)


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=12), count=st.integers(1, 2))
def test_who_has_too_few_gets_from_the_largest(sizes: list[int], count: int) -> None:
    parts = list(torch.arange(sum(sizes)).split(sizes))
    if sum(sizes) < count * len(sizes):
        with pytest.raises(ValueError, match="too few"):
            _at_least(count, parts)
        return
    wanted = [part.tolist() for part in parts]
    for mine in wanted:
        while len(mine) < count:
            mine.append(max(wanted, key=len).pop())  # the first of the largest gives its last
    assert [part.tolist() for part in _at_least(count, parts)] == wanted

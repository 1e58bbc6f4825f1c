"""A client's own past and copies of an update, as witnesses of the evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy
import pytest
import torch
from torch import Tensor

import clientwise as cw
from clientwise.core.evidence.significance import (
    SKETCH,
    count_copies,
    larger,
    look_back,
    sketch,
)
from clientwise.core.types import Gathered, ModelSpec
from recorded import rows

SIZE = 5_000


def directions(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, SIZE, generator=torch.Generator().manual_seed(seed))


def seen(memory: Mapping[str, Tensor], client: int, update: Tensor) -> tuple[dict, float]:
    """A round in which one client takes part: what is remembered after it, and z."""
    gathered = Gathered(
        client_ids=(client,),
        updates=update[None],
        global_model=torch.zeros_like(update),
        spec=ModelSpec((), len(update), len(update)),
        criteria={},
        judge=lambda models: pytest.fail("the past evaluates no model"),
        train_server=lambda model: pytest.fail("the past trains no model"),
    )
    found = look_back(gathered, memory, history=True, copies=False)
    return found.kept_in(memory), float(found.z[0])


def test_cosines_of_sketches_estimate_those_of_updates() -> None:
    first, second = directions(200), directions(200, seed=2)
    mixed = 0.6 * first + 0.8 * second  # a cosine of 0.6 with the first
    found = (sketch(first) * sketch(mixed)).sum(1)
    assert float(found.mean()) == pytest.approx(0.6, abs=0.02)
    assert float(found.std()) == pytest.approx((1 - 0.36) / SKETCH**0.5, rel=0.2)


def test_an_update_against_the_own_past_is_evidence_and_does_not_rewrite_it() -> None:
    memory: dict[str, Tensor] = {}
    (way,) = directions(1)
    zs = []
    for update in (way, way, way, way, -way, -way, -way, way):
        memory, z = seen(memory, 7, update)
        zs.append(z)
    assert all(z != z for z in zs[:3])  # three updates make a past
    assert zs[3] < -16
    assert min(zs[4:7]) >= 1.5
    assert zs[7] < -16  # its past is still the one of the honest rounds


def test_the_past_is_that_of_the_first_updates_however_slowly_a_client_turns() -> None:
    memory: dict[str, Tensor] = {}
    way, aside = orthogonal()
    zs = []
    for degrees in (0, 0, 0, 0, 0, *range(15, 181, 15)):
        angle = math.radians(degrees)
        memory, z = seen(memory, 7, math.cos(angle) * way + math.sin(angle) * aside)
        zs.append(z)
    assert memory["times"].tolist() == [5]
    assert zs[10] < 0  # at 90 degrees
    assert min(zs[12:]) > 0  # from 120 degrees on
    assert zs[-1] >= 1.5


def test_where_most_clients_turn_none_is_told_apart() -> None:
    ways = directions(4)
    memory: Mapping[str, Tensor] = {}
    turned = {0: [1, 1, 1, 1], 1: [-1, 1, 1, 1], 3: [-1, -1, -1, 1]}
    for number in (0, 0, 0, 1, 3):
        signs = torch.tensor(turned[number])[:, None]
        gathered = Gathered(
            client_ids=(0, 1, 2, 3),
            updates=signs * ways,
            global_model=torch.zeros(SIZE),
            spec=ModelSpec((), SIZE, SIZE),
            criteria={},
            judge=lambda models: pytest.fail("the past evaluates no model"),
            train_server=lambda model: pytest.fail("the past trains no model"),
        )
        found = look_back(gathered, memory, history=True, copies=False)
        memory = found.memory
        assert found.z is not None
        if number == 1:
            assert (found.z > 1).tolist() == [True, False, False, False]
    assert float(found.z.max()) < 1


def test_only_clients_that_were_seen_take_memory() -> None:
    memory: dict[str, Tensor] = {}
    for client in (900_000, 3, 900_000):
        memory, _ = seen(memory, client, directions(1)[0])
    assert memory["ids"].tolist() == [900_000, 3]
    assert memory["past"].shape == (2, SKETCH)
    assert memory["times"].tolist() == [2, 1]


def test_copies_are_counted_and_share_the_weight_of_one() -> None:
    one, other = directions(2)
    noisy = one + 0.3 * directions(1, seed=3)[0]
    counts = count_copies(sketch(torch.stack([one, one, noisy, other])))
    assert counts.tolist() == [3, 3, 3, 1]


def test_a_model_of_few_parameters_is_no_witness() -> None:
    memory: dict[str, Tensor] = {}
    way = torch.tensor([1.0, 0.5, -0.2])
    for update in (way, way, way):
        memory, _ = seen(memory, 0, update)
    _, z = seen(memory, 0, -way)
    assert z != z


def orthogonal() -> tuple[Tensor, Tensor]:
    """Two directions of the same norm."""
    way, aside = directions(2)
    aside = aside - (aside @ way) / (way @ way) * way
    return way, aside * way.norm() / aside.norm()


def test_z_is_fishers_test_of_a_cosine_below_a_fifth() -> None:
    way, aside = orthogonal()
    memory: dict[str, Tensor] = {}
    for _ in range(3):
        memory, _ = seen(memory, 0, way)
    for cosine in (0.5, -0.1, -0.21, -0.26, -0.9):
        update = cosine * way + (1 - cosine**2) ** 0.5 * aside
        found = float(torch.nn.functional.cosine_similarity(*sketch(torch.stack([way, update])), 0))
        _, z = seen(memory, 0, update)
        expected = (numpy.arctanh(-found) - numpy.arctanh(0.2)) * 253**0.5
        assert z == pytest.approx(min(expected, 1.5), rel=1e-4)


def test_copies_are_not_merged_without_held_out_samples(tmp_path) -> None:
    config = CONFIG | {"rounds": 2, "server_set": {"fraction": 0.3, "report_fraction": 0.99}}
    config |= {"hostile": [{"clients": [1, 4, 8], "attack": "alie"}]}
    run = cw.Run(cw.run(config, tmp_path / "run"))
    assert rows(run, "weights", "Recommended", 1, 1)["copies"].isna().all()
    assert "fewer than 8" in str(run.frame("rounds")["notes"].tolist())


def test_the_larger_z_counts_and_agreement_is_no_merit() -> None:
    nan = torch.nan
    history = torch.tensor([nan, -16.0, 16.0])
    assert larger(torch.tensor([1.0, 2.0, -5.0]), history).tolist() == [1, 2, 16]
    assert larger(None, history).tolist() == [0, 0, 16]
    assert larger(None, None) is None


CONFIG = {
    "name": "history",
    "rounds": 10,
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 10, "concentration": 0.5},
    "model": {"name": "mlp", "hidden": [16]},
    "training": {"epochs": 1, "batch_size": 20, "learning_rate": 0.1},
    "server_set": {"fraction": 0.3, "report_fraction": 0.6},
    "methods": ["Recommended"],
}


def test_clients_that_send_the_same_count_as_one(tmp_path) -> None:
    hostile = [{"clients": [1, 4, 8], "attack": "alie"}]
    run = cw.Run(cw.run(CONFIG | {"rounds": 3, "hostile": hostile}, tmp_path / "run"))
    weights = rows(run, "weights", "Recommended", 1, 1).set_index("client")
    assert weights.loc[[1, 4, 8], "copies"].tolist() == [3, 3, 3]
    # Their share is a third of what dataset sizes alone would give, before it is renormalised.
    ratio = weights["weight"] / weights["prior"]
    assert ratio[1] / ratio[0] == pytest.approx(1 / 3)

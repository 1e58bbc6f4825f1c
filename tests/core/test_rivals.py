"""FoolsGold, AlignIns and BR-DRAG against their papers' equations in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from clientwise.core.aggregation.before import BEFORE
from clientwise.core.evidence import EVIDENCE
from clientwise.core.types import Gathered, ModelSpec

Array = NDArray[numpy.float64]
PARAMETERS = 40


def randoms(seed: int) -> numpy.random.Generator:
    return numpy.random.default_rng(seed)


def gathered(
    updates: Array, model: Array | None = None, own: Array | None = None, ids: Sequence[int] = ()
) -> Gathered:
    """A round with one buffer after the parameters; every client moves the buffer by 1."""

    def with_buffer(rows: Array) -> Tensor:
        return torch.from_numpy(numpy.append(rows, numpy.ones((len(rows), 1)), 1)).float()

    start = with_buffer(numpy.zeros((1, PARAMETERS)) if model is None else model[None])[0]
    trained = start if own is None else start + with_buffer(own[None])[0]
    return Gathered(
        client_ids=tuple(ids or range(len(updates))),
        updates=with_buffer(updates),
        global_model=start,
        spec=ModelSpec((), PARAMETERS, PARAMETERS + 1),
        criteria={},
        judge=lambda models: pytest.fail("these methods evaluate no model"),
        train_server=lambda model: trained,
    )


def equal(count: int) -> Tensor:
    return torch.full((count,), 1 / count, dtype=torch.float64)


def cosine(one: Array, other: Array) -> float:
    return float(one @ other / numpy.linalg.norm(one) / numpy.linalg.norm(other))


def papers_foolsgold(sums: Sequence[Array]) -> list[float]:
    """Algorithm 1 of Fung et al., with kappa = 1 and all features."""
    count = len(sums)
    similar = numpy.zeros((count, count))
    for i in range(count):
        for j in range(count):
            if i != j:
                similar[i, j] = cosine(sums[i], sums[j])
    largest = similar.max(1)
    for i in range(count):
        for j in range(count):
            if largest[j] > largest[i]:
                similar[i, j] *= largest[i] / largest[j]
    alpha = 1 - similar.max(1)
    alpha = numpy.clip(alpha, 0, 1)
    alpha /= alpha.max()
    rates = []
    for value in alpha:
        if value == 1:
            rates.append(1.0)
        elif value <= 0:
            rates.append(0.0)
        else:
            rates.append(float(numpy.clip(numpy.log(value / (1 - value)) + 0.5, 0, 1)))
    return rates


def test_foolsgold_is_the_papers_algorithm_over_rounds_with_some_of_the_clients() -> None:
    random = randoms(1)
    sums: dict[int, Array] = {}
    memory: Mapping[str, Tensor] = {}
    common = random.normal(size=PARAMETERS)
    foolsgold = EVIDENCE.get("foolsgold")()
    prior = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    for ids in ([0, 1, 2, 3], [4, 2, 1, 0], [3, 5, 0, 1]):
        updates = 0.7 * common + random.normal(size=(4, PARAMETERS))
        for client, update in zip(ids, updates, strict=True):
            sums[client] = sums.get(client, 0) + update
        posterior = foolsgold(gathered(updates, ids=ids), prior, memory)
        memory = posterior.memory
        expected = prior.numpy() * papers_foolsgold([sums[client] for client in ids])
        assert (expected > 0).sum() > 0
        numpy.testing.assert_allclose(posterior.weights, expected / expected.sum(), atol=1e-5)
    assert sorted(memory["ids"].tolist()) == [0, 1, 2, 3, 4, 5]
    assert len(memory["sums"]) == 6, "clients that were not seen take no memory"


def papers_alignins(updates: Array, model: Array) -> list[int]:
    """The clients that Xu et al. keep, with lambda_s = lambda_c = 1 and k = 0.3·d."""
    principal = numpy.sign(numpy.sign(updates).sum(0))
    count = int(0.3 * updates.shape[1])
    temporal = numpy.array([cosine(update, model) for update in updates])
    aligned = []
    for update in updates:
        largest = numpy.argsort(-numpy.abs(update))[:count]
        aligned.append(float(numpy.mean(numpy.sign(update[largest]) == principal[largest])))
    signs = numpy.array(aligned)
    direction_score = numpy.abs(temporal - numpy.median(temporal)) / temporal.std()
    sign_score = numpy.abs(signs - numpy.median(signs)) / signs.std()
    return [i for i in range(len(updates)) if direction_score[i] <= 1 and sign_score[i] <= 1]


@pytest.mark.parametrize("seed", range(5))
def test_alignins_keeps_the_papers_clients_and_clips_to_their_median_norm(seed: int) -> None:
    random = randoms(seed)
    updates = random.normal(size=(9, PARAMETERS)) * random.uniform(0.5, 3, (9, 1)) + 0.3
    model = random.normal(size=PARAMETERS)
    seen = gathered(updates, model)
    kept = papers_alignins(updates, model)
    assert 0 < len(kept) < 9
    weights = EVIDENCE.get("alignins")()(seen, equal(9), {}).weights
    expected = numpy.zeros(9)
    expected[kept] = 1 / len(kept)
    numpy.testing.assert_allclose(weights, expected)
    norms = numpy.linalg.norm(updates, axis=1)
    limit = numpy.median(norms[kept])
    clipped = updates[kept] * numpy.minimum(1, limit / norms[kept])[:, None]
    mean = weights @ BEFORE.get("clip")(seen, weights).updates.double()
    numpy.testing.assert_allclose(mean[:PARAMETERS], clipped.mean(0), atol=1e-5)


def test_br_drag_is_the_papers_equation() -> None:
    random = randoms(4)
    own = random.normal(size=PARAMETERS)
    updates = random.normal(size=(4, PARAMETERS)) * 3
    updates[3] = -7 * own
    expected = []
    for update in updates:
        divergence = 0.5 * (1 - cosine(update, own))
        scaled = update * numpy.linalg.norm(own) / numpy.linalg.norm(update)
        expected.append((1 - divergence) * scaled + divergence * own)
    mixed = BEFORE.get("drag")(gathered(updates, own=own), equal(4))
    numpy.testing.assert_allclose(mixed.updates[:, :PARAMETERS], expected, atol=1e-5)
    numpy.testing.assert_allclose(mixed.updates[3, :PARAMETERS], own, atol=1e-5)
    assert bool((mixed.updates[:, PARAMETERS] == 1).all()), "a buffer is no parameter"
    still = BEFORE.get("drag")(gathered(0 * updates, own=own), equal(4))
    numpy.testing.assert_allclose(still.updates[0, :PARAMETERS], 0.5 * own, atol=1e-5)

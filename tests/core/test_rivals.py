"""FoolsGold, FLDetector, FoundationFL, AlignIns and BR-DRAG against their papers' equations in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from clientwise.core.aggregation.before import BEFORE
from clientwise.core.aggregation.rules import RULES
from clientwise.core.evidence import EVIDENCE
from clientwise.core.evidence.fldetector import hessian_of, suspicious_cluster
from clientwise.core.method import Method, Plan
from clientwise.core.round import first_state, run_round
from clientwise.core.types import Gathered, LocalTraining, ModelSpec
from clientwise.engine.local import LocalEngine
from clientwise.record.checkpoint import load_checkpoint, save_checkpoint

Array = NDArray[numpy.float64]
PARAMETERS = 40
KEEPS_STATE = ["foolsgold", "fldetector"]


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


@pytest.mark.parametrize("base", ["trimmed_mean", "median"])
def test_foundation_fl_adds_copies_of_the_update_farthest_from_the_extremes(base: str) -> None:
    updates = randoms(3).normal(size=(10, 12))
    largest = updates.max(0)
    smallest = updates.min(0)
    scores = []
    for update in updates:
        distances = numpy.linalg.norm(update - largest), numpy.linalg.norm(update - smallest)
        scores.append(min(distances))
    chosen = int(numpy.argmax(scores))
    together = numpy.concatenate([updates, numpy.repeat(updates[[chosen]], 5, 0)])
    ordered = numpy.sort(together, 0)
    expected = {"trimmed_mean": ordered[2:-2].mean(0), "median": numpy.median(together, 0)}[base]
    rule = RULES.get("foundation")
    ruled = rule(torch.from_numpy(updates).float(), equal(10), {}, hostile=0.2, base=base)
    numpy.testing.assert_allclose(ruled.update, expected, atol=1e-6)
    assert int(ruled.influence.argmax()) == chosen
    assert float(ruled.influence.sum()) == pytest.approx(1)


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


def papers_hessian_product(steps: Array, changes: Array, vector: Array) -> Array:
    """B·v of L-BFGS, by its definition: rank-two updates of sigma·I, one pair after the other."""
    hessian = changes[-1] @ steps[-1] / (steps[-1] @ steps[-1]) * numpy.eye(len(vector))
    for step, change in zip(steps, changes, strict=True):
        image = hessian @ step
        hessian = hessian - numpy.outer(image, image) / (step @ image)
        hessian = hessian + numpy.outer(change, change) / (change @ step)
    return hessian @ vector


def quadratic_pairs(random: numpy.random.Generator, count: int) -> tuple[Array, Array]:
    root = random.normal(size=(PARAMETERS, PARAMETERS))
    curvature = -(root @ root.T / PARAMETERS + numpy.eye(PARAMETERS))  # updates are −η·gradient
    steps = random.normal(size=(count, PARAMETERS))
    return steps, steps @ curvature


def test_fldetector_predicts_with_the_hessian_of_l_bfgs() -> None:
    random = randoms(5)
    steps, changes = quadratic_pairs(random, 4)
    updates, last, moved = random.normal(size=(3, 6, PARAMETERS))
    expected = []
    for now, before, travelled in zip(updates, last, moved, strict=True):
        prediction = before + papers_hessian_product(steps, changes, travelled)
        expected.append(numpy.linalg.norm(prediction - now))
    hessian = hessian_of(torch.from_numpy(steps), torch.from_numpy(changes))
    found = [
        float((torch.from_numpy(before - now) + hessian(torch.from_numpy(far))).norm())
        for before, now, far in zip(last, updates, moved, strict=True)
    ]
    numpy.testing.assert_allclose(found, expected, rtol=1e-8)


def best_two_means(values: Array) -> tuple[float, float]:
    """The least sum of squares of two clusters, over all ways to divide the values, and its split."""
    ordered = numpy.sort(values)
    best = (numpy.inf, 0.0)
    for split in range(1, len(values)):
        parts = ordered[:split], ordered[split:]
        squares = sum(float(((part - part.mean()) ** 2).sum()) for part in parts)
        best = min(best, (squares, ordered[split - 1]))
    return best


@pytest.mark.parametrize("apart", [0.0, 0.05, 0.2, 0.5, 3.0])
def test_fldetector_finds_a_cluster_where_the_gap_statistic_does(apart: float) -> None:
    scores = randoms(6).uniform(0.9, 1.1, 20)
    scores[:6] += apart
    unit = (scores - scores.min()) / (scores.max() - scores.min())
    references = randoms(8).uniform(size=(400, 20))  # many, where the part draws ten
    of_one = numpy.log([((row - row.mean()) ** 2).sum() for row in references])
    of_two = numpy.log([best_two_means(row)[0] for row in references])
    squares, split = best_two_means(unit)
    gap_one = of_one.mean() - numpy.log(((unit - unit.mean()) ** 2).sum())
    gap_two = of_two.mean() - numpy.log(squares)
    margin = gap_two - gap_one - numpy.sqrt(1.1) * of_two.std()
    assert abs(margin) > 0.1, "ten references must not decide by chance"
    expected = unit > split if margin > 0 else numpy.zeros(20, bool)
    found = suspicious_cluster(torch.from_numpy(scores), seed=1)
    assert found.tolist() == expected.tolist()


def test_fldetector_removes_inconsistent_clients_once_its_window_is_full() -> None:
    """Clients of a quadratic problem; four of them send something else from round 6 on."""
    random = randoms(9)
    model = random.normal(size=PARAMETERS)
    targets = 0.1 * random.normal(size=(20, PARAMETERS))
    memory: Mapping[str, Tensor] = {}
    detector = EVIDENCE.get("fldetector")(window=4)
    removed_in = 0
    for round_num in range(1, 15):
        ids = sorted(random.choice(20, size=15, replace=False).tolist())
        updates = 0.2 * (targets[ids] - model) + 0.001 * random.normal(size=(15, PARAMETERS))
        for row, client in enumerate(ids):
            if client < 4 and round_num >= 6:
                updates[row] = random.normal(size=PARAMETERS)
        posterior = detector(gathered(updates, model, ids=ids), equal(15), memory)
        memory = posterior.memory
        if posterior.notes:
            removed_in = removed_in or round_num
        model = model + posterior.weights.numpy() @ updates
    removed = memory["ids"][memory["removed"]].tolist()
    assert sorted(removed) == [0, 1, 2, 3]
    assert removed_in >= 6
    hostile_rows = [row for row, client in enumerate(ids) if client < 4]
    assert posterior.weights[hostile_rows].sum() == 0
    assert float(posterior.weights.sum()) == pytest.approx(1)
    assert len(memory["steps"]) == 4


@pytest.mark.bits
@pytest.mark.parametrize("name", KEEPS_STATE)
def test_a_resumed_run_has_the_same_bits(
    name: str, make_engine: Callable[..., LocalEngine], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"window": 2} if name == "fldetector" else {}
    method = Method(evidence=EVIDENCE.get(name)(**options), training=LocalTraining(batch_size=8))
    engine = make_engine()
    plan = Plan(seed=1, cohort_size=6)
    first = first_state(engine.initial_model, method, engine)
    state = first
    for _ in range(4):
        state, _ = run_round(state, method, plan, engine)
    save_checkpoint(tmp_path / "lane", state, {}, "owner")
    resumed, _ = load_checkpoint(tmp_path / "lane", first, "owner")
    for _ in range(3):
        state, record = run_round(state, method, plan, engine)
        resumed, again = run_round(resumed, method, plan, engine)
        assert torch.equal(record.weights, again.weights)
    assert torch.equal(state.model, resumed.model)
    assert state.evidence.keys() == resumed.evidence.keys()
    for key, values in state.evidence.items():
        assert torch.equal(values.nan_to_num(), resumed.evidence[key].nan_to_num()), key


def test_a_round_in_which_no_client_has_a_weight_keeps_the_model(
    make_engine: Callable[..., LocalEngine],
) -> None:
    class Nobody:
        def first(self, num_clients: int) -> Mapping[str, Tensor]:
            return {}

        def __call__(self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]) -> Any:
            posterior = EVIDENCE.get("alignins")()(gathered, prior, memory)
            return replace(posterior, weights=torch.zeros_like(prior))

    engine = make_engine()
    for rule in (None, RULES.get("krum")):
        method = Method(evidence=Nobody(), rule=rule)
        start = first_state(engine.initial_model, method, engine)
        state, record = run_round(start, method, Plan(seed=1, cohort_size=3), engine)
        assert torch.equal(state.model, start.model)
        assert "all weights are zero: the model stays as it was" in record.notes

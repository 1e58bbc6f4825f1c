"""Thousands of hostile updates: whatever arrives, a round ends, with a finite model and weights that sum to one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from clientwise.core.aggregation.before import BEFORE
from clientwise.core.aggregation.rules import RULES
from clientwise.core.criteria import make_criterion
from clientwise.core.evidence import EVIDENCE
from clientwise.core.feedback import best_order, class_weights
from clientwise.core.method import Method, Plan
from clientwise.core.round import first_state, run_round
from clientwise.core.types import LocalTraining, Updates
from clientwise.core.weights.scores import (
    Choquet,
    Mean,
    Owa,
    Prioritized,
    Product,
)
from clientwise.core.weights.weighting import max_scale, no_scale, sum_scale
from clientwise.engine.local import LocalEngine
from clientwise.experiment.config.parts import make
from clientwise.registry import Part
from fire_share import EVERY

TRAINING = LocalTraining(epochs=1, batch_size=None, learning_rate=0.1)
SIZE, LABELS, TRUST = (
    make_criterion(name) for name in ("dataset_size", "label_diversity", "trust")
)
PERFORMANCE, START, STEPS = (
    make_criterion(name) for name in ("server_performance", "start_loss", "local_steps")
)
FEW = {"law": {"steps": 2}}  # of what would take most of the time
make_method = partial(Method, training=TRAINING)
METHODS = [
    make_method(
        criteria=(SIZE, LABELS),
        score=Prioritized(),
        adjust=best_order,
        normaliser=max_scale,
    ),
    make_method(criteria=(SIZE, LABELS), score=Mean()),
    make_method(criteria=(SIZE, TRUST), score=Owa(quantifier="most")),
    make_method(
        criteria=(SIZE, LABELS),
        score=Choquet(
            {"dataset_size": 0.5, "label_diversity": 0.5, "dataset_size+label_diversity": 1.0}
        ),
    ),
    *(
        make_method(
            criteria=(SIZE, LABELS),
            score=Product({"dataset_size": power}),
            normaliser=scale,
        )
        for power in (0.5, 3.0, 30.0, 140.0)
        for scale in (sum_scale, max_scale, no_scale)
    ),
    make_method(
        criteria=(PERFORMANCE, SIZE),
        score=Product({"server_performance": 3.0}),
        adapt_loss=class_weights,
    ),
    *(make_method(criteria=(SIZE,), rule=RULES.get(name)) for name in RULES if name != "mean"),
    *(make_method(criteria=(SIZE, START, STEPS), before=(BEFORE.get(name),)) for name in BEFORE),
    *(
        make_method(
            criteria=(SIZE, START),
            evidence=make(EVIDENCE, Part(name, FEW.get(name, {}))),
        )
        for name in EVIDENCE
    ),
    make_method(
        criteria=(SIZE, START),
        before=(make(BEFORE, Part("q_fair", {"q": 20.0})),),
    ),
]
NUMBERS = [
    0.0,
    -1.0,
    1e-300,
    5e-324,
    1.0,
    1e6,
    4e9,
    1e12,
    1.1e12,
    1e30,
    1e308,
    float("inf"),
    float("nan"),
]


def spoiled(update: Updates, draw: random.Random) -> Updates:
    """One client's update with one thing wrong, or nothing."""
    kind = draw.randrange(9)
    models, size = update.models, update.models.shape[1]
    if kind == 0:
        return replace(update, models=models * draw.choice(NUMBERS))
    if kind == 1:
        models = models.double()
        models[0, draw.randrange(size)] = draw.choice(NUMBERS)
        return replace(update, models=models)
    if kind == 2:
        return replace(
            update,
            models=draw.choice([models[:, 1:], models[0], models.int(), models.double() * 1e300]),
        )
    if kind == 3:
        lies = {
            name: torch.tensor([draw.choice(NUMBERS)], dtype=torch.float64)
            for name in update.measurements
        }
        return replace(
            update, measurements={**lies, draw.choice(["trust", "seconds", "x"]): torch.ones(1)}
        )
    if kind == 4:
        wrong: list[Any] = [torch.zeros(0), torch.zeros(2), torch.tensor([1j]), [1.0], None, "much"]
        return replace(
            update, measurements={name: draw.choice(wrong) for name in update.measurements}
        )
    if kind == 5:
        return replace(update, client_ids=(draw.choice([-1, 0, 7, 99, 2**70, "me", None]),))
    if kind == 6:
        return replace(
            update, training_loss=torch.tensor([draw.choice(NUMBERS)], dtype=torch.float64)
        )
    if kind == 7:
        return replace(update, measurements={})
    return update


class Hostile:
    """A real engine whose clients' updates arrive one by one, in any order, most of them tampered with."""

    def __init__(self, engine: LocalEngine, draw: random.Random) -> None:
        self._engine, self._draw = engine, draw

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def train(self, client_ids, model, task) -> Iterator[Updates]:
        chunks = [
            chunk for chunk in self._engine.train(client_ids, model, task) if chunk.client_ids
        ]
        self._draw.shuffle(chunks)
        for chunk in chunks:
            yield spoiled(chunk, self._draw)
            if self._draw.random() < 0.2:
                yield spoiled(chunk, self._draw)


def attack(make_engine: Callable[..., LocalEngine], rounds: int, seed: int) -> None:
    draw, engine = random.Random(seed), make_engine(chunk_size=1)
    plan = Plan(seed=1, cohort_size=4, evaluate_clients_every=0)
    for number in range(rounds):
        method = METHODS[number % len(METHODS)]
        state = first_state(engine.initial_model, method, engine)
        after, record = run_round(state, method, plan, Hostile(engine, draw))
        assert bool(after.model.isfinite().all())
        total = float(record.weights.sum())
        assert total == 0 or total == pytest.approx(1)
        assert total or record.notes
        assert all(values.isfinite().all() for values in after.kept("criteria").values())


def test_hostile_updates_end_no_round(make_engine: Callable[..., LocalEngine]) -> None:
    attack(make_engine, len(METHODS), seed=1)


@pytest.mark.fire
@pytest.mark.timeout(0)
def test_twenty_thousand_hostile_updates(make_engine: Callable[..., LocalEngine]) -> None:
    attack(make_engine, 4500 // EVERY, seed=2)

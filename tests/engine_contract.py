"""What every engine must do: train who is asked, the same from the same state, and evaluate on every client."""

from __future__ import annotations

import torch

from clientwise.core.engine import Engine
from clientwise.core.types import LocalTraining, Task, Updates
from clientwise.registry import Part


def check_engine(engine: Engine) -> None:
    """Train the first clients twice from one state, and evaluate two models."""
    training = LocalTraining(epochs=1, batch_size=20, learning_rate=0.1)
    task = Task(1, training, engine.problem.loss, (Part("dataset_size", {}),))
    asked = tuple(range(min(3, engine.num_clients)))
    start = engine.initial_model
    kept = dict(engine.state())

    def trained() -> Updates:
        chunks = [one for one in engine.train(asked, start, task) if one.client_ids]
        return Updates.joined(chunks).by_client()

    updates = trained()
    assert sorted(updates.client_ids) == sorted(asked)
    assert tuple(updates.models.shape) == (len(asked), engine.spec.size)
    assert bool(updates.models.isfinite().all())
    assert "dataset_size" in updates.measurements
    assert not torch.equal(updates.models[0], start)
    engine.load_state(kept)
    assert torch.equal(trained().models, updates.models)
    found = engine.evaluate(range(engine.num_clients), torch.stack([start, updates.models[0]]))
    assert tuple(found.values.shape) == tuple(found.losses.shape) == (2, engine.num_clients)
    assert tuple(found.num_samples.shape) == (engine.num_clients,)
    assert {len(values) for values in engine.attributes.values()} <= {engine.num_clients}

"""Judging: models evaluated in order to weight them, by the server on its set or by clients on theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from .engine import Engine
from .method import Method, Plan
from .types import Evaluation, LocalTraining, ServerState, Task


class Judge:
    """Evaluates models in one round, and trains models on the server's set.

    Args:
        judges: the clients that judge, if clients do.
        state: before the round.
        method: whose round.
        plan: says who judges.
        engine: evaluates and trains.
    """

    def __init__(
        self, judges: Sequence[int], state: ServerState, method: Method, plan: Plan, engine: Engine
    ) -> None:
        self.count = 0  # models judged so far
        self._judges = judges
        self._state = state
        self._method = method
        self._by_clients = plan.judged_by == "clients"
        self._engine = engine
        self._server_model: Tensor | None = None  # the global model, trained on the server's set

    def __call__(self, models: Tensor) -> Evaluation:
        """AdaFed's evaluation of models [c, d]: on the server's set, or by the cohort (P3 III.C)."""
        self.count += len(models)
        if self._by_clients:
            judged = self._engine.evaluate(self._judges, models)
            return replace(judged, right=None, sample_losses=None)  # these stay with the clients
        evaluation = self._engine.evaluate_server(models, "weigh")
        if evaluation is None:
            raise RuntimeError(
                f"{self._method.name} weighs by a server set, but the engine has none"
            )
        return evaluation

    @property
    def gradients(self) -> Callable[[Tensor, Sequence[Sequence[int]]], Tensor] | None:
        """See `Engine.server_gradients`; None where clients judge."""
        return None if self._by_clients else self._engine.server_gradients

    @property
    def sent(self) -> int:
        """Number of models sent to clients to be judged."""
        return self.count * len(self._judges) if self._by_clients else 0

    def train(self, model: Tensor, training: LocalTraining | None = None) -> Tensor:
        """A model trained on the server's set; the global one, trained as a client would, once a round."""
        is_usual = model is self._state.model and training is None
        if is_usual and self._server_model is not None:
            return self._server_model
        round_num = self._state.round_num + 1
        training = training or self._method.scheduled(self._method.training, round_num)
        task = Task(round_num, training, self._state.loss, ())
        trained = self._engine.train_server(model[None], task)[0]
        # Kept by hand: a cached property locks all judges, so that lanes would wait for each other.
        if is_usual:
            self._server_model = trained
        return trained

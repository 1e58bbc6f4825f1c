"""The control of every paper: each client trains a model of its own, and nobody averages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..core.types import Evaluation, ServerPart, Task, Updates
from .jobs import TrainJob
from .local import LocalEngine


class AloneEngine(LocalEngine):
    """Clients that go on with their own models, whatever they are sent, and are evaluated by them.

    Everybody begins with the initial model. Where a federation's model would be evaluated on a client's test set, its
    own is; on the server's set all of them are, and what is reported is their mean, without those of hostile clients.
    """

    def __init__(self, *given: Any, hostile: Collection[int] = (), **options: Any) -> None:
        super().__init__(*given, **options)
        self._models: dict[int, Tensor] = {}  # of clients that have trained
        honest = [client for client in range(self.num_clients) if client not in hostile]
        self._reported = honest or range(self.num_clients)

    def train(self, client_ids: Sequence[int], model: Tensor, task: Task) -> Iterator[Updates]:
        """See `core.types.Engine`: `model` is nobody's."""
        for updates in super().train(client_ids, model, task):
            self._models |= dict(zip(updates.client_ids, updates.models.clone(), strict=True))
            yield updates

    def _train_job(self, clients: Sequence[int], model: Tensor, task: Task) -> TrainJob:
        return replace(super()._train_job(clients, model, task), starts=self._own(clients))

    def _own(self, clients: Sequence[int]) -> Tensor:
        return torch.stack([self._models.get(client, self.initial_model) for client in clients])

    def evaluate(self, client_ids: Sequence[int], models: Tensor) -> Evaluation:
        """See `core.types.Engine`: every client's own model on its own test set."""
        evaluate = super().evaluate
        each = [evaluate([client], own[None]) for client, own in zip(client_ids, self._own(client_ids), strict=True)]
        return Evaluation(
            torch.cat([one.num_samples for one in each]),
            torch.cat([one.values for one in each], 1),
            torch.cat([one.losses for one in each], 1),
            torch.stack([one.counts for one in each]).sum(0),
            right=torch.cat([one.right for one in each if one.right is not None], 1)
            if each[0].right is not None
            else None,
        )

    def evaluate_server(self, models: Tensor, part: ServerPart) -> Evaluation | None:
        """See `core.types.Engine`: the mean over everybody's own model."""
        every = super().evaluate_server(self._own(self._reported), part)
        if every is None:
            return None
        mean_value, mean_loss = every.values.mean(0, keepdim=True), every.losses.mean(0, keepdim=True)
        return Evaluation(every.num_samples, mean_value, mean_loss, every.counts.sum(0, keepdim=True))

    def state(self) -> dict[str, Tensor]:
        """See `core.types.Engine`: everybody's model."""
        return {str(client): model for client, model in self._models.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `core.types.Engine`."""
        self._models = {int(client): model.to(self.device) for client, model in state.items()}

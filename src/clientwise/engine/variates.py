"""SCAFFOLD's control variates: the mean gradient of every client when it last trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..core.types import LocalTraining, Updates

KEY = "variate "  # before the client's number, in an engine's state


class ControlVariates:
    """c_a of all clients, zero for those that never trained, and their mean c (Karimireddy et al., 2020)."""

    def __init__(self, num_clients: int, like: Tensor, num_parameters: int) -> None:
        self._num_clients = num_clients
        self._num_parameters = num_parameters
        self._none = torch.zeros_like(like)
        self._own: dict[int, Tensor] = {}
        self._mean = self._none

    def begin_round(self) -> None:
        """c = Σ c_a/K, the same for a whole cohort. Added up anew, so that a resumed run goes on to the same bits."""
        total = self._none.double()
        for _, variate in sorted(self._own.items()):
            total += variate
        self._mean = (total / self._num_clients).float()

    def of(self, clients: Sequence[int]) -> ControlVariates:
        """c_a of some clients and the c of this round, on the CPU: they travel."""
        part = ControlVariates(self._num_clients, self._none.cpu(), self._num_parameters)
        part._mean = self._mean.cpu()
        part._own = {client: self._own[client].cpu() for client in clients if client in self._own}
        return part

    def corrections(self, clients: Sequence[int]) -> Tensor:
        """c − c_a of some clients [G, d]: what is added to their gradients."""
        return self._mean - torch.stack([self._own.get(client, self._none) for client in clients])

    def update(self, sent: Updates, model: Tensor, sizes: Tensor, training: LocalTraining) -> None:
        """c_a ← c_a − c + (Θ − Θ_a)/(τη), option II, by the models that were sent."""
        if sent.models.shape[1:] != model.shape:  # a forged one: it will be refused
            return
        steps = training.num_steps(sizes[list(sent.client_ids)]).clamp(min=1).tolist()
        for client, theirs, count in zip(sent.client_ids, sent.models, steps, strict=True):
            gradient = (model.to(theirs.device) - theirs) / (count * training.rate)
            gradient[self._num_parameters :] = 0  # buffers have none
            renewed = self._own.get(client, self._none) - self._mean + gradient
            # NaN must not reach the other clients through the mean
            if bool(renewed.isfinite().all()):
                self._own[client] = renewed

    def state(self) -> dict[str, Tensor]:
        """All of them, by name."""
        return {f"{KEY}{client}": variate for client, variate in self._own.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` returned; other names are left alone."""
        self._own = {
            int(name.removeprefix(KEY)): value
            for name, value in state.items()
            if name.startswith(KEY)
        }

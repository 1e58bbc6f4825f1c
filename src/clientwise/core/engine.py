"""The engine: where clients live, as the round sees it.

`engine/local.py`, `hosts/flower/engine.py` and `hosts/engine.py` implement it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from .clock import Clock
from .objective.problem import Problem
from .types import (
    Evaluation,
    Folded,
    ModelSpec,
    ServerNetwork,
    ServerPart,
    ServerState,
    Task,
    Updates,
)


class Engine(Protocol):
    """Trains and evaluates clients, by number. The round knows nothing else about them."""

    num_clients: int  # K
    problem: Problem
    spec: ModelSpec
    device: torch.device  # of the models
    initial_model: Tensor  # [d]
    # What the server knows of the clients without asking, each [K]
    attributes: Mapping[str, Tensor]
    idle_work: Callable[[], None] | None  # called now and then while clients train
    clock: Clock | None  # the clients' time; None: time is counted in rounds

    def train(self, client_ids: Sequence[int], model: Tensor, task: Task) -> Iterator[Updates]:
        """Train `model` [d] on every client of the cohort; yield updates in chunks as they arrive."""
        ...

    def evaluate(self, client_ids: Sequence[int], models: Tensor) -> Evaluation:
        """Evaluate every candidate [c, d] on the test set of every client, in one pass."""
        ...

    def evaluate_server(self, models: Tensor, part: ServerPart) -> Evaluation | None:
        """Evaluate every candidate [c, d] on a part of the server's set; None if there is none."""
        ...

    def train_server(self, models: Tensor, task: Task) -> Tensor:
        """Train models [c, d] as a client would, each by itself, on the samples the server weighs by."""
        ...

    def server_gradients(self, model: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
        """Gradients [g, d] at `model` [d] of the mean loss of g groups of the samples the server weighs by.

        The loss is that of an evaluation: no dropout, no adapted loss. Buffers have no gradient.
        """
        ...

    def server_network(self) -> ServerNetwork | None:
        """The network as a function, with the samples the server weighs by.

        None without such samples, or where inputs cannot be changed a little: tokens, several inputs.
        """
        ...

    def state(self) -> Mapping[str, Tensor]:
        """What simulated clients keep between rounds; a checkpoint stores it with the `ServerState`."""
        ...

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        ...


@runtime_checkable
class FoldingEngine(Protocol):
    """An engine whose clients train elsewhere, where their models can be added up as well."""

    def fold(self, client_ids: Sequence[int], state: ServerState) -> Sequence[Folded]:
        """Train these clients from `state` by the engine's own method, and add up their models, part by part."""
        ...


@runtime_checkable
class RemembersClaims(Protocol):
    """An engine that compares what clients claim about their data with what they claimed first."""

    def remember_claims(self, client_ids: Sequence[int]) -> None:
        """Keep what these clients claimed in this round: their updates were accepted."""
        ...


@runtime_checkable
class CountsLabels(Protocol):
    """An engine that knows the labels of the clients' training samples."""

    @property
    def label_counts(self) -> Tensor:
        """Training samples of each class over all clients [C]."""
        ...

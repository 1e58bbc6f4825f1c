"""Shards in this process, for tests without Ray."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from clientwise.data.federated import FederatedData
from clientwise.engine.shards import (
    Build,
    Shard,
    Shards,
    Slot,
    divided,
)
from clientwise.experiment.running import cluster, runner


def slots(count: int) -> list[Slot]:
    """A slot for each shard, with more cores than there are lanes."""
    return [Slot(f"node {index}", cores=64) for index in range(count)]


def without_ray(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let `workers = "ray"` mean so many shards in this process."""
    monkeypatch.setattr(runner, "connected_to_ray", nullcontext)
    monkeypatch.setattr(runner, "slots", lambda on_gpu: slots(count))
    monkeypatch.setattr(cluster, "Shards", AllHere)


class Here(Shard):
    """A shard in this process, without Ray."""

    def _read(self, stored: Sequence[Any]) -> FederatedData:
        (data,) = stored
        return data


class AllHere(Shards):
    """The shards of all clients in this process. What travels is pickled, as by Ray."""

    def __init__(self, data: FederatedData, build: Build, where: Sequence[Slot]) -> None:
        self._here = []
        for index, _ in enumerate(where):
            shard = Here(build, 1)
            shard._ready([data.only(range(index, data.num_clients, len(where)))])
            self._here.append(shard)

    def close(self) -> None:
        self._here.clear()

    def ask(
        self,
        what: str,
        client_ids: Sequence[int],
        shared: Sequence[Any],
        own: Callable[[Sequence[int]], Sequence[Any]] = lambda _: (),
        meanwhile: Callable[[], None] | None = None,
    ) -> list[tuple[list[int], Any]]:
        answers = []
        for index, clients in divided(client_ids, len(self._here)):
            call = getattr(self._here[index], what)
            sent = pickle.loads(pickle.dumps((clients, *shared, *own(clients))))
            answers.append((clients, pickle.loads(pickle.dumps(call([], *sent)))))
        if meanwhile:
            meanwhile()
        return answers

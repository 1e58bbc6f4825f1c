"""A site's gate: what it lets in, which rows it gives, and that nothing else leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.app import RecordDict
from grid import LoopGrid, asked_by, deployed, rounds_of

from clientwise.core.types import Evaluation, RoundRecord, Updates
from clientwise.flower import OwnData, client_app, load_npz, write_parts
from clientwise.hosts.flower.wire import ARRAYS, NUMBERS, unpack
from clientwise.hosts.protocols import Exact, Permit, Refused, Request

NOISE = {"epochs": 1, "batch_size": "full", "sample_clip": 1.0, "sample_noise": 3.2}
NAMES = ["a", "b", "c"]


class OnceARound:
    """Trains once a round, on all rows but the first, and tells no training loss."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.trained: set[tuple[int, int]] = set()
        self.reads = 0
        self.exact: list[Updates | Evaluation] = []

    def rows(self, load: Callable[[], OwnData]) -> OwnData:
        self.reads += 1
        own = load()
        return replace(own, train=(own.train[0][1:], own.train[1][1:]))

    def admit(self, request: Request, models: Tensor) -> Permit:
        if request.task is not None:
            asked = (request.client, request.task.round_num)
            if asked in self.trained:
                raise Refused(f"round {asked[1]} was trained before")
            self.trained.add(asked)
        return Permit(self.key)

    def release(self, permit: Permit, exact: Exact) -> Exact:
        assert permit.noise_key == self.key
        self.exact.append(exact)
        if isinstance(exact, Updates):
            return replace(exact, training_loss=torch.zeros_like(exact.training_loss))
        return exact


class Site:
    """A server, and three clients with files of their own behind one gate."""

    def __init__(self, tiny: dict[str, Any], folder: Path, gate: OnceARound | None) -> None:
        tiny["partition"]["clients"] = len(NAMES)
        settings = {"clients": NAMES, "input_shape": [1, 8, 8], "num_classes": 10}
        config = tiny | {"federation": {}, "flower": settings, "methods": [{"name": "FedAvg"}]}
        self.path = write_parts(config, folder)[0]
        self.config = config
        self.grid = LoopGrid(client_app(config, gate=gate), {"data": str(self.path)})

    def rounds(self, count: int) -> list[RoundRecord]:
        return rounds_of(self.config, deployed(self.config, self.grid), count)

    def updates(self) -> list[RecordDict]:
        trained = {one.metadata.message_id for one in self.grid.sent if asked_by(one)[1] == "train"}
        replies = [one for one in self.grid.answers if one.metadata.reply_to_message_id in trained]
        return [one.content for one in replies]


def test_a_gate_chooses_the_rows_and_what_leaves(tiny: dict[str, Any], tmp_path: Path) -> None:
    gate = OnceARound(b"secret")
    site = Site(tiny, tmp_path, gate)
    (record,) = site.rounds(1)
    assert len(record.client_ids) == len(NAMES)
    rows = len(load_npz(str(site.path)).train[0])
    for content in site.updates():
        assert content.metric_records[NUMBERS]["criterion.dataset_size"] == rows - 1
        assert content.metric_records[NUMBERS]["training_loss"] == 0.0
    kinds = [type(one) for one in gate.exact]
    assert kinds.count(Updates) == len(NAMES)
    assert kinds.count(Evaluation) == len(gate.exact) - len(NAMES) > 0
    assert all(float(one.training_loss) > 0 for one in gate.exact if isinstance(one, Updates))


def test_what_a_gate_refuses_reads_no_row_and_says_why(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    gate = OnceARound(b"secret")
    site = Site(tiny, tmp_path, gate)
    site.rounds(1)
    reads = gate.reads
    released = len(gate.exact)
    (again,) = site.rounds(1)  # as a server that asks for a round a second time
    assert not again.client_ids
    reasons = {refusal.reason for refusal in again.refusals}
    assert reasons == {"Refused: round 1 was trained before"}
    evaluated = len(gate.exact) - released
    assert all(isinstance(one, Evaluation) for one in gate.exact[released:])
    assert gate.reads - reads == evaluated


def test_the_noise_follows_from_the_gates_key_alone(tiny: dict[str, Any], tmp_path: Path) -> None:
    """Without a gate a node draws it anew: the server knows the seed."""

    def models(gate: OnceARound | None) -> list[Tensor]:
        site = Site(tiny | {"training": NOISE | {"learning_rate": 0.1}}, tmp_path, gate)
        site.rounds(1)
        return [unpack(content.array_records[ARRAYS]) for content in site.updates()]

    first = models(OnceARound(b"one"))
    assert all(map(torch.equal, first, models(OnceARound(b"one")))), "the same key, the same noise"
    for others in (models(OnceARound(b"another")), models(None), models(None)):
        assert not any(map(torch.equal, first, others))
    assert not any(map(torch.equal, models(None), models(None)))

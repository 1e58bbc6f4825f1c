"""Secure aggregation with the real client apps, and a changed server that wants rows of patients.

The server sends made-up networks (`trap_model`), and chooses who is in a sum and what clients are told.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from approvals import approve_once
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from curious_server import NEAR, patients_in_traps, trap_model
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import clientwise.secrecy.masks.client
import clientwise.secrecy.masks.server
from clientwise.core.objective.loss import CrossEntropy
from clientwise.core.objective.problem import Classification
from clientwise.core.secrecy import SecretScores
from clientwise.core.types import Task
from clientwise.experiment.load import load_experiment
from clientwise.flower import client_app, load_npz, write_parts
from clientwise.hosts.deployment.small_numbers import USUAL_CELL, in_groups
from clientwise.hosts.flower.secure_wire import (
    SecureRun,
    Step,
    read_reply,
    write_step,
)
from clientwise.hosts.flower.wire import Request, pack, write_request
from clientwise.secrecy.masks import statements
from clientwise.secrecy.masks.server import SecureServer
from clientwise.secrecy.masks.terms import VoidError

HOSPITALS = ["Cleveland", "Hungarian", "Switzerland", "VA"]
UNITS = 32
ROUNDS = 5
EVERYONE = range(len(HOSPITALS))
TWO_THIRDS = 2 / 3
ALL = 0.8  # so that t = n = 4
BATCHES = {"epochs": 2, "batch_size": 20, "learning_rate": 0.1}
FULL = {"epochs": 1, "batch_size": "full", "learning_rate": 0.1}
NOISE = FULL | {"sample_clip": 1.0, "sample_noise": 3.2}
Told = Callable[[int], list[float]]  # the sums of the criteria that a client is told


class Federation:
    """Four hospitals with nodes, ledgers and identities of their own, and the server's root account."""

    def __init__(
        self, folder: Path, threshold: float, training: Mapping[str, Any], cohort: int
    ) -> None:
        self.parts = parts_in(folder)
        self.rows = []
        for part in self.parts:
            inputs, targets = in_groups(load_npz(str(part)), USUAL_CELL).train
            rows = [torch.as_tensor(inputs).double(), torch.as_tensor(targets).double()[:, None]]
            self.rows.append(torch.cat(rows, 1))
        self.attributes = self.rows[0].shape[1] - 1
        identities = {}
        self.contexts = []
        for number, (name, part) in enumerate(zip(HOSPITALS, self.parts, strict=True)):
            key = Ed25519PrivateKey.generate()
            file = folder / f"{name}.identity"
            file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            identities[name] = key.public_key().public_bytes_raw().hex()
            paths = {"data": str(part), "identity": str(file)}
            settings = paths | {"ledger": str(folder / f"{name}.{threshold}.ledger")}
            self.contexts.append(Context(1, number + 2, settings, RecordDict(), {}))
        flower = {"clients": HOSPITALS, "identities": identities}
        config = {
            "name": "curious",
            "rounds": ROUNDS,
            "device": "cpu",
            "model": {"name": "mlp", "hidden": [UNITS]},
            "training": dict(training),
            "federation": {"clients_per_round": cohort},
            "evaluation": {"clients_every": 0},
            "flower": flower | {"num_classes": 2, "input_shape": [self.attributes]},
            "methods": [
                {
                    "name": "secret",
                    "adapt_loss": "class_weights",
                    "secure_aggregation": {"threshold": threshold},
                }
            ],
        }
        self.experiment = load_experiment(config)
        (self.method,) = self.experiment.build_methods()
        self.scores = SecretScores.of(self.method, Classification(2), cohort)
        self.app = client_app(config)
        for context in self.contexts:
            approve_once(context.node_config["ledger"], config)
        self.refusals: list[str] = []
        self.round = 0

    def ask(self, step: Step, training: RecordDict | None = None) -> dict[str, Any] | None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        message = Message(write_step(step, training), step.client + 2, "train")
        message.metadata.__dict__["_message_id"] = f"{step.round_num} {step.name}"
        reply = self.app(message, self.contexts[step.client])
        if reply.has_error():
            self.refusals.append(str(reply.error.reason))
            return None
        return read_reply(reply.content)

    def sum(
        self,
        model: Tensor,
        members: Sequence[int],
        told: Told,
        confirming: Sequence[int] | None = None,
    ) -> Tensor:
        """Σ s·Δ of the next round over these members, whatever they are told of the sums.

        Raises:
            VoidError: the members did not go along.
        """
        self.round += 1
        task = Task(
            self.round,
            self.method.training,
            CrossEntropy((0.01, 0.01)),
            self.method.client_criteria,
        )
        run = SecureRun.of(self.experiment, 1, len(HOSPITALS), simulated=False)
        terms = run.terms(1, model, task, self.scores)
        server = SecureServer(terms, run.identities)

        def ask(name: str, messages: Mapping[int, Any]) -> dict[int, Any]:
            replies = {}
            for client, message in messages.items():
                training = None
                if name == "keys":
                    training = write_request(Request(client, 1, task), pack(model))
                reply = self.ask(Step(client, 1, self.round, name, message), training)
                if reply is not None:
                    replies[client] = reply
            return replies

        roster = server.take_keys(ask("keys", {client: {} for client in members}))
        packets = server.take_shares(ask("shares", dict.fromkeys(members, roster)))
        for purpose in terms.purposes:
            usual = None if purpose == "criteria" else told(-1)
            server.begin_sum(purpose, usual)
            for client, packet in packets.items():
                said = None if purpose == "criteria" else told(client)
                requests = {client: packet | {"broadcast": said}}
                for one, reply in ask(f"mask {purpose}", requests).items():
                    server.add(purpose, one, reply)
            listed = server.close_sum(purpose)
            signing = members if purpose == "criteria" else (confirming or members)
            signed = server.take_confirmed(
                purpose, ask(f"confirm {purpose}", dict.fromkeys(signing, listed))
            )
            unmasking = dict.fromkeys(map(int, signed["signatures"]), signed)
            total = server.take_unmasked(purpose, ask(f"unmask {purpose}", unmasking))
            packets = {client: {} for client in server.survivors}
        return self.scores.weighted.decode(total[1:])

    def true_sums(self, client: int) -> list[float]:
        """The number of training rows, which is the only criterion."""
        return [float(sum(map(len, self.rows)))]

    def read_by(self, change: Tensor, members: Sequence[int]) -> set[tuple[int, int]]:
        """Training rows of these hospitals that a change of a trap model tells, with the diagnosis."""
        found = patients_in_traps(change, UNITS)
        read = set()
        for member in members:
            near = (found[:, None] - self.rows[member][None]).abs().amax(2) < NEAR
            read |= {(member, row) for row in near.any(0).nonzero().flatten().tolist()}
        return read


def parts_in(folder: Path) -> list[Path]:
    heart = {"data": "heart", "partition": "by_id", "flower": {"clients": HOSPITALS}}
    base = {"name": "parts", "rounds": 1, "model": "linear", "methods": [{"name": "FedAvg"}]}
    return write_parts(base | heart, folder / "data")[: len(HOSPITALS)]


def traps(attributes: int, middle: float, spacing: float) -> Tensor:
    """A network whose thresholds lie at quantiles around one, with a spacing in shares of the patients."""
    direction = 0.1 * numpy.random.default_rng(0).normal(size=attributes)
    direction[0] = 1.0
    direction /= numpy.linalg.norm(direction)
    quantiles = middle + spacing * (numpy.arange(UNITS) - UNITS / 2)
    return trap_model(direction, torch.special.ndtri(torch.from_numpy(quantiles)).numpy())


@pytest.fixture
def federation(tmp_path: Path) -> Callable[..., Federation]:
    if not (Path(os.environ.get("CLIENTWISE_DATA", "")) / "heart").is_dir():
        pytest.skip("needs the heart data")

    def make(
        threshold: float = TWO_THIRDS,
        training: Mapping[str, Any] = BATCHES,
        cohort: int = len(HOSPITALS),
    ) -> Federation:
        return Federation(tmp_path, threshold, training, cohort)

    return make


def rows_in_sums(hospitals: Federation) -> int:
    """Rows that a run of five sums over all members tells, the best that is known for this network."""
    patients = sum(map(len, hospitals.rows))
    read = set()
    for number in range(ROUNDS):
        middle = 0.5 + (number - ROUNDS // 2) * UNITS / patients
        model = traps(hospitals.attributes, middle, 1 / patients)
        read |= hospitals.read_by(hospitals.sum(model, EVERYONE, hospitals.true_sums), EVERYONE)
    return len(read)


@pytest.mark.slow
@pytest.mark.parametrize(("training", "least", "most"), [(BATCHES, 30, 60), (NOISE, 0, 0)])
def test_rows_in_sums_over_all_members(
    federation: Callable[..., Federation], training: Any, least: int, most: int
) -> None:
    """docs/security.md has these numbers. Only noise bounds every attack."""
    assert least <= rows_in_sums(federation(training=training)) <= most


@pytest.mark.parametrize("bound", [True, False])
def test_one_member_that_is_told_other_sums_is_not_read(
    federation: Callable[..., Federation], bound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its score is 1 and all other scores are 0. Only the others are asked to confirm.

    Where the masks do not follow from what a member was told, the sum is this member's update.
    """
    hospitals = federation()
    if not bound:
        for side in (clientwise.secrecy.masks.client, clientwise.secrecy.masks.server):
            monkeypatch.setattr(side, "sum_view", view_of_any_broadcast)
    model = traps(hospitals.attributes, 0.5, 1 / len(hospitals.rows[0]))
    found = hospitals.sum(
        model, EVERYONE, lambda client: [1.0] if client == 0 else [1e300], confirming=[1, 2, 3]
    )
    read = hospitals.read_by(found, EVERYONE)
    if bound:
        assert not read
        assert float(found.abs().median()) > hospitals.scores.weighted.limit / 10
    else:
        assert len(read) > 5
        assert {member for member, _ in read} == {0}


def view_of_any_broadcast(view: str, purpose: str, peers: list[int], broadcast: Any) -> str:
    return statements.sum_view(view, purpose, peers, None)


def test_differences_of_two_sums_tell_of_one_member_unless_all_are_in_each(
    federation: Callable[..., Federation],
) -> None:
    """What docs/privacy.md says is open ("Repeated models"), and what closes it: t = n."""
    for threshold in (TWO_THIRDS, ALL):
        hospitals = federation(threshold, FULL)
        model = traps(hospitals.attributes, 0.5, 1 / len(hospitals.rows[1]))
        whole = hospitals.sum(model, EVERYONE, hospitals.true_sums)
        rest = [0, 2, 3]
        if threshold == ALL:
            with pytest.raises(VoidError, match="3 of 4 clients sent keys"):
                hospitals.sum(model, rest, hospitals.true_sums)
        else:
            difference = whole - hospitals.sum(model, rest, hospitals.true_sums)
            assert hospitals.read_by(difference, [1]), (
                "differences have become safe: change the docs"
            )


def test_a_threshold_of_the_whole_cohort_does_not_close_it_if_the_cohort_is_a_part(
    federation: Callable[..., Federation],
) -> None:
    """Three of four members a round, t = n = 3: four sums, each without another member."""
    hospitals = federation(ALL, FULL, cohort=3)
    model = traps(hospitals.attributes, 0.5, 1 / len(hospitals.rows[1]))
    without = []
    for left_out in EVERYONE:
        members = [member for member in EVERYONE if member != left_out]
        without.append(hospitals.sum(model, members, hospitals.true_sums))
    everyone = torch.stack(without).sum(0) / 3
    assert hospitals.read_by(everyone - without[1], [1]), "change docs/privacy.md"

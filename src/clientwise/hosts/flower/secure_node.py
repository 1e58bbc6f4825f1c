"""A client's side of secure aggregation: between the steps of a round, its secrets stay with its node.

They are in the state that Flower keeps for the node's run: the keys, the shares of others, and the
client's own update. All are deleted at the end of the round, or when the next one begins.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from flwr.app import ConfigRecord, Context, RecordDict
from torch import Tensor

from ...core.guard import inspect_models
from ...core.secrecy import SecretScores
from ...core.types import Updates
from ...data.datasets import DataError
from ...engine.wrappers.engine import EmbeddedEngine
from ...experiment.build.engine import build_plan
from ...experiment.checks.secure import has_secrets
from ...experiment.config.schema import Experiment
from ...secrecy.masks.client import SecureClient
from ...secrecy.masks.primitives import Masked
from ...secrecy.masks.terms import KEYS, MASK, SHARES, Message, ProtocolError, Sum, Terms
from ..deployment.gate import Gate, RefusedError, refuse_other_types, refuse_other_weights
from .secure_wire import (
    CRITERIA,
    SECURE,
    SecureRun,
    Step,
    read_step,
    simulated_identity,
    write_reply,
)
from .wire import Request, pack, read_request, unpack

log = logging.getLogger("clientwise")
IN_CLEAR = "the experiment has secure aggregation: this client sends nothing in the clear"


def refuse_in_clear(experiment: Experiment, content: RecordDict) -> bool:
    """Whether a request belongs to secure aggregation; refuses others where the experiment has it."""
    if SECURE in content.config_records:
        if not has_secrets(experiment):
            raise RefusedError("the experiment has no secure aggregation")
        return True
    if has_secrets(experiment):
        raise RefusedError(IN_CLEAR)
    return False


def answer_secure(
    content: RecordDict,
    experiment: Experiment,
    engine_of: Callable[[Request], EmbeddedEngine],
    gate: Gate | None,
    context: Context,
) -> RecordDict:
    """Answer one step of the protocol.

    Args:
        content: a request, as `secure_wire.write_step` writes it.
        experiment: the approved one.
        engine_of: returns the engine that holds the client's data; used in the first step alone.
        gate: a node's rules; None in a simulation.
        context: holds the node's state between steps.
    """
    try:
        step = read_step(content)
        node = _Node(experiment, step, gate, context)
        if step.name == KEYS:
            reply = node.begin(content, engine_of)
        else:
            reply = node.go_on()
    except ProtocolError as error:  # about the request alone
        raise RefusedError(str(error)) from None
    answer = write_reply(reply)
    if gate is not None:
        gate.sent(answer)
    return answer


class _Node:
    """The client's state before and after one step."""

    def __init__(
        self, experiment: Experiment, step: Step, gate: Gate | None, context: Context
    ) -> None:
        self._experiment = experiment
        self._step = step
        self._gate = gate
        self._context = context
        self._state_key = f"secure state {step.client}"
        self._update_key = f"secure update {step.client}"
        approval = gate.approval if gate is not None else ""
        self._round = [approval, step.seed, step.round_num]
        (self._method,) = experiment.build_methods()

    def begin(self, content: RecordDict, engine_of: Callable[[Request], EmbeddedEngine]) -> Message:
        """Train, measure, and make keys. On a node, a round begins once."""
        request, models, _ = read_request(content)
        task = request.task
        asked = (request.client, request.seed, task.round_num if task else 0)
        if task is None or asked != (self._step.client, self._step.seed, self._step.round_num):
            raise ProtocolError("the step and the request to train do not fit")
        refuse_other_types(models)
        if self._gate is not None:
            self._gate.admit(request, models)
            self._gate.note_step(request.seed, task.round_num, KEYS)
            self._gate.claim_step()
        engine = engine_of(request)
        refuse_other_weights(request, engine)
        if self._gate is not None:
            engine.noise_key = self._gate.noise_key(engine.data)
        model = models.to(engine.device)
        trained = engine.train([request.client], model, task)
        (updates,) = (one for one in trained if one.client_ids)
        if self._gate is not None:
            updates = self._gate.update(updates)
        plan = build_plan(self._experiment, engine.num_clients, request.seed)
        scores = SecretScores.of(self._method, engine.problem, plan.cohort_size)
        update = (updates.models[0] - model).cpu()
        raw = torch.stack([updates.measurements[name][0].double() for name in self._method.names])
        if reason := _why_unusable(updates, raw, scores):
            if self._gate is None:
                raise ValueError("the update or a criterion cannot be used")
            # An error would tell the server of a sample for which its made-up model fails.
            log.warning("this node adds an update of zero to the round: %s", reason)
            update = torch.zeros_like(update)
            raw = raw.nan_to_num(nan=0.0).clamp(min=0.0).minimum(scores.highs)
        terms = self._run(engine.num_clients).terms(request.seed, models, task, scores)
        client = self._client(terms, engine.num_clients, None)
        reply = client.keys()
        self._context.state[self._update_key] = pack(update)
        facts = {
            "raw": raw.tolist(),
            "highs": scores.highest_criteria,
            "num_parameters": engine.spec.num_parameters,
            "num_clients": engine.num_clients,
            "round": self._round,
            "terms": asdict(terms),
        }
        self._save(facts, client)
        return reply

    def go_on(self) -> Message:
        """A later step of the round that began."""
        if self._gate is not None:
            self._gate.note_step(self._step.seed, self._step.round_num, self._step.name)
        facts = self._load()
        if facts.get("round") != self._round:
            raise ProtocolError(f"round {self._step.round_num} did not begin here")
        plain = facts["terms"]
        terms = Terms(**plain | {"sums": tuple(Sum(**one) for one in plain["sums"])})
        client = self._client(terms, facts["num_clients"], facts.pop("protocol"))
        kind, _, purpose = self._step.name.partition(" ")
        if self._step.name not in terms.steps:
            raise ProtocolError("the round has no such step")
        if kind == SHARES:
            reply = client.shares(self._step.message)
        elif kind == MASK:
            scores = SecretScores(self._method, tuple(facts["highs"]), terms.cohort)
            reply = client.masked(
                purpose, self._step.message, lambda told: self._values(purpose, told, facts, scores)
            )
        else:
            answer = getattr(client, kind)  # confirm or unmask: the steps have no other kinds
            reply = answer(purpose, self._step.message)
        if self._gate is not None:
            self._gate.claim_step()
        if self._step.name == terms.steps[-1]:
            self._forget()
        else:
            self._save(facts, client)
        return reply

    def _values(
        self, purpose: str, told: Any, facts: Mapping[str, Any], scores: SecretScores
    ) -> Masked:
        """What this client adds to a sum."""
        raw = torch.tensor(facts["raw"], dtype=torch.float64)
        if purpose == CRITERIA:
            return scores.encode_criteria(raw)
        sums = _read_sums(told, len(raw)) if self._method.uses_sums else torch.ones_like(raw)
        update = unpack(self._context.state.array_records[self._update_key])
        return scores.encode_vector(scores.score(raw, sums), update, facts["num_parameters"])

    def _client(self, terms: Terms, num_clients: int, state: dict[str, Any] | None) -> SecureClient:
        number = self._step.client
        identities = self._run(num_clients).identities
        if self._gate is None:
            identity = simulated_identity(self._experiment, number)
        else:
            identity = own_identity(self._context.node_config)
        if identities.get(number) != identity.public_key().public_bytes_raw():
            raise ProtocolError(f"this node is not client {number} by the list of identities")
        return SecureClient(terms, number, identity, identities, state)

    def _run(self, num_clients: int) -> SecureRun:
        run_id = self._context.run_id
        return SecureRun.of(self._experiment, run_id, num_clients, simulated=self._gate is None)

    def _load(self) -> dict[str, Any]:
        record = self._context.state.config_records.get(self._state_key, ConfigRecord())
        found: dict[str, Any] = json.loads(str(record.get("json", "{}")))
        return found

    def _save(self, facts: Mapping[str, Any], client: SecureClient) -> None:
        text = json.dumps({**facts, "protocol": client.state})
        self._context.state[self._state_key] = ConfigRecord({"json": text})

    def _forget(self) -> None:
        """Keep nothing of the round. That it took place is in the node's ledger."""
        del self._context.state[self._state_key]
        del self._context.state[self._update_key]


def own_identity(node_config: Mapping[str, Any]) -> Ed25519PrivateKey:
    """The node's own identity key, from the file that its node config names."""
    if "identity" not in node_config:
        raise DataError(
            "secure aggregation needs this node's identity key: start it with --node-config "
            "'identity=\"/path/of/the/key\"' (deploy/node-key.sh makes one)"
        )
    key = load_pem_private_key(Path(str(node_config["identity"])).read_bytes(), None)
    if not isinstance(key, Ed25519PrivateKey):
        raise DataError("the node's identity is not an Ed25519 key; run deploy/node-key.sh")
    return key


def _why_unusable(updates: Updates, raw: Tensor, scores: SecretScores) -> str | None:
    """Why a client's update or its criteria [m] cannot be added up; None if they can."""
    (reason,) = inspect_models(updates.models)
    return reason or scores.why_outside(raw)


def _read_sums(told: Any, count: int) -> Tensor:
    """The sums of the criteria, as the server broadcasts them."""
    if not isinstance(told, list) or len(told) != count:
        raise ProtocolError("the server did not send the sums of the criteria")
    if not all(isinstance(value, float | int) for value in told):
        raise ProtocolError("the sums of the criteria are not numbers")
    sums = torch.tensor(told, dtype=torch.float64)
    if not bool((sums.isfinite() & (sums >= 0)).all()):
        raise ProtocolError("the sums of the criteria are negative or not finite")
    return sums

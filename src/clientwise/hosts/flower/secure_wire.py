"""The messages of secure aggregation, and what server and clients compute alike about a round.

A request has the record `secure`: the protocol's version, client, seed, round, step, and the protocol's
own message as JSON. The first step of a round also has the usual request to train (`wire.py`). A reply
has the version and the protocol's message, and the masked values as an array.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from ...core.secrecy import CRITERIA_BITS, SecretScores
from ...core.types import Task
from ...experiment.config.schema import Experiment
from ...secrecy.masks.primitives import derive
from ...secrecy.masks.terms import PROTOCOL, Message, ProtocolError, Sum, Terms, digest
from .wire import VERSION, Request, plain_request

SECURE = "secure"  # the record of a message that belongs to secure aggregation
CRITERIA = "criteria"
VECTOR = "vector"
# What of an approved experiment a client's values depend on, besides the task that a request has
APPROVED = ("methods", "training", "model", "features", "federation")
APPROVED_MEMBERS = ("clients", "identities", "input_shape", "num_classes", "table")


@dataclass(frozen=True)
class Step:
    """One request of the protocol."""

    client: int
    seed: int
    round_num: int
    name: str  # as in `Terms.steps`
    message: Message


def write_step(step: Step, content: RecordDict | None = None) -> RecordDict:
    """A request; `content` is the request to train of the first step."""
    content = content or RecordDict()
    plain = {
        "client": step.client,
        "seed": step.seed,
        "round": step.round_num,
        "step": step.name,
        "message": step.message,
    }
    content[SECURE] = _record(plain)
    return content


def read_step(content: RecordDict) -> Step:
    """A request that `write_step` wrote."""
    try:
        plain = json.loads(_text(content, "server"))
        numbers = [int(plain[key]) for key in ("client", "seed", "round")]
        name, message = str(plain["step"]), plain["message"]
    except ProtocolError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"no step of secure aggregation: {type(error).__name__}") from None
    if not isinstance(message, dict):
        raise ProtocolError("the step has no message")
    return Step(numbers[0], numbers[1], numbers[2], name, message)


def write_reply(message: Message) -> RecordDict:
    """A reply of the protocol."""
    content = RecordDict()
    rest = {key: value for key, value in message.items() if key != "masked"}
    content[SECURE] = _record(rest)
    if "masked" in message:
        content["masked"] = ArrayRecord({"data": Array(message["masked"])})
    return content


def read_reply(content: RecordDict) -> Message:
    """The message of a reply, unchecked: the protocol checks it."""
    message = json.loads(_text(content, "node"))
    if not isinstance(message, dict):
        raise ValueError("the reply has no message")
    if "masked" in content.array_records:
        message["masked"] = content.array_records["masked"]["data"].numpy().copy()
    return message


def _record(plain: Message) -> ConfigRecord:
    return ConfigRecord({"protocol": PROTOCOL, "json": json.dumps(plain)})


def _text(content: RecordDict, sender: str) -> str:
    """The message as JSON, of a sender with the same protocol."""
    record = content.config_records[SECURE]
    found = str(record.get("protocol", "clientwise secure 1"))  # 0.2.0 did not name it
    if found != PROTOCOL:
        raise ProtocolError(
            f"the {sender}'s version of secure aggregation is {found[:40]!r}, here it is {PROTOCOL!r}: "
            "install the same version of clientwise on the server and all nodes"
        )
    return str(record["json"])


@dataclass(frozen=True)
class SecureRun:
    """What server and clients know of a run before its first round.

    Args:
        run_id: Flower's number of the run.
        approved: hash of the experiment, as far as clients' values depend on it.
        identities: the public keys of all clients.
    """

    run_id: int
    approved: str
    identities: Mapping[int, bytes]

    @staticmethod
    def of(experiment: Experiment, run_id: int, num_clients: int, *, simulated: bool) -> SecureRun:
        """Of an experiment. `simulated` clients have identities that everybody can compute."""
        table = experiment.to_dict()
        approved = {key: table.get(key) for key in APPROVED}
        approved |= {key: table["flower"].get(key) for key in APPROVED_MEMBERS}
        if simulated:
            identities = simulated_identities(experiment, num_clients)
        else:
            identities = identities_of(experiment)
        return SecureRun(run_id, digest("approved", approved), identities)

    def terms(self, seed: int, model: Tensor, task: Task, scores: SecretScores) -> Terms:
        """The public facts of a round. Clients with another model, task or experiment have others."""
        settings = scores.secure
        sums = [Sum(VECTOR, 1 + len(model), settings.bits)]
        if scores.method.uses_sums:
            sums.insert(0, Sum(CRITERIA, len(scores.method.criteria), CRITERIA_BITS))
        data = numpy.ascontiguousarray(model.detach().cpu().numpy()).tobytes()
        agreed = digest(
            hashlib.sha256(data).hexdigest(),
            [str(model.dtype), list(model.shape)],  # the same bytes can be another model
            plain_request(Request(0, seed, task)),
            VERSION,
            self.approved,
            scores.highest_criteria,
        )
        run = f"run {self.run_id}, seed {seed}, round {task.round_num}"
        return Terms(run, agreed, scores.cohort, settings.needed(scores.cohort), tuple(sums))


def identities_of(experiment: Experiment) -> dict[int, bytes]:
    """The public keys of the clients of a deployment, which the approved experiment lists."""
    listed: Mapping[str, str] = experiment.flower.identities
    names = experiment.flower.clients
    return {
        client: bytes.fromhex(listed[name]) for client, name in enumerate(names) if name in listed
    }


def simulated_identity(experiment: Experiment, client: int) -> Ed25519PrivateKey:
    """The key of a simulated client, which everybody can compute: a simulation has no secrets."""
    return Ed25519PrivateKey.from_private_bytes(
        derive(b"simulated", "identity", experiment.name, client)
    )


def simulated_identities(experiment: Experiment, num_clients: int) -> dict[int, bytes]:
    """The public keys of all simulated clients."""
    keys: dict[int, Ed25519PublicKey] = {}
    for client in range(num_clients):
        keys[client] = simulated_identity(experiment, client).public_key()
    return {client: key.public_bytes_raw() for client, key in keys.items()}

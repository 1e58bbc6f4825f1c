"""The nodes and the server of secure aggregation as processes of their own, joined by sockets on loopback.

Only Flower's transport is missing: a frame has a message's number and kind, and its records as protobuf. The
file `wire` gets all frames as they are sent, in both directions.

A node is a process that listens, with a child for its connection. The child holds the node's state. What the
nodes know of themselves is appended to the file `canaries`, in hex.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import numpy
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as RecordDictProto
from flwr.supercore.task_identity import TaskIdentity
from grid import LoopGrid

import clientwise.secrecy.masks.statements
from clientwise.core.secrecy import SecretScores
from clientwise.experiment.load import load_experiment
from clientwise.experiment.running.runner import run
from clientwise.flower import client_app
from clientwise.hosts.flower import secure_node
from clientwise.hosts.flower.connections import connector
from clientwise.hosts.flower.data import server_side
from clientwise.hosts.flower.secure_rounds import SecureRound
from clientwise.hosts.flower.secure_wire import VECTOR, read_step
from clientwise.secrecy.masks.primitives import Masked, value_type
from clientwise.secrecy.masks.terms import (
    CONFIRM,
    MASK,
    UNMASK,
    VoidError,
    step_of,
)
from clientwise.secrecy.masks.terms import Message as Plain

PIECE = 16  # bytes of a vector: so many in a row occur nowhere by chance
LENGTHS = struct.Struct(">II")
LEFT = 5  # Flower's code for a node that is not connected any more
FIRST_NODE = 2


def main(settings: Mapping[str, Any]) -> None:
    """Be the nodes or the server."""
    torch.set_num_threads(1)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    if not settings["masked"]:
        clientwise.secrecy.masks.statements.mask = no_mask
    if settings["role"] == "nodes":
        os.setsid()  # the test ends the whole group
        for client in range(len(settings["nodes"])):
            if not os.fork():
                listen(client, settings)
        signal.pause()
    else:
        serve_rounds(settings)


# Frames -------------------------------------------------------------------------------------------


def send(stream: BinaryIO, header: Mapping[str, Any], content: RecordDict | None) -> bytes:
    """Send a message; returns what was sent."""
    plain = json.dumps(header).encode()
    body = b"" if content is None else recorddict_to_proto(content).SerializeToString()
    frame = LENGTHS.pack(len(plain), len(body)) + plain + body
    stream.write(frame)
    stream.flush()
    return frame


def receive(stream: BinaryIO) -> tuple[dict[str, Any], RecordDict, bytes]:
    """The next message, and what was received."""
    lengths = stream.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        raise EOFError
    plain_length, length = LENGTHS.unpack(lengths)
    plain = stream.read(plain_length)
    body = stream.read(length)
    content = recorddict_from_proto(RecordDictProto.FromString(body))
    return json.loads(plain), content, lengths + plain + body


# Nodes --------------------------------------------------------------------------------------------


def listen(client: int, settings: Mapping[str, Any]) -> None:
    """A node: a child answers on each connection, one after the other."""
    plant_canaries(Path(settings["canaries"]))
    door = socket.create_server(("127.0.0.1", 0))
    ready = Path(settings["folder"], f"port-{client}")
    ready.with_suffix(".part").write_text(str(door.getsockname()[1]), encoding="utf-8")
    ready.with_suffix(".part").rename(ready)
    app = client_app(settings["config"])
    while True:
        connection, _ = door.accept()
        if not os.fork():
            answer_all(connection, app, client, settings)
            os._exit(0)
        connection.close()
        os.wait()


def answer_all(
    connection: socket.socket, app: Any, client: int, settings: Mapping[str, Any]
) -> None:
    """Answer until the server hangs up."""
    context = Context(1, client + FIRST_NODE, dict(settings["nodes"][client]), RecordDict(), {})
    stream = connection.makefile("rwb")
    with contextlib.suppress(EOFError):
        while True:
            header, content, _ = receive(stream)
            message = Message(content, client + FIRST_NODE, header["kind"])
            message.metadata.__dict__["_message_id"] = header["id"]
            step = read_step(content)
            reply = app(message, context)
            now, action = settings["moods"].get(f"{client} {step.round_num}", ("", ""))
            if now == step.name:
                ACTIONS[action](step.message, reply)
            if reply.has_error():
                send(stream, {"error": reply.error.reason}, None)
            else:
                send(stream, {}, reply.content)


def vanish(request: Plain, reply: Message) -> None:
    """As a power cut does."""
    os.kill(os.getpid(), signal.SIGKILL)


def garbage(request: Plain, reply: Message) -> None:
    """Random bytes in the place of all shares, encrypted or not."""

    def replaced(table: Mapping[str, str]) -> dict[str, str]:
        return {name: os.urandom(len(text) // 2).hex() for name, text in table.items()}

    change(reply, lambda plain: {
        key: replaced(value) if key in ("packets", "shares") else value
        for key, value in plain.items()
    })  # fmt: skip


def false_key(request: Plain, reply: Message) -> None:
    """Keys that this node's identity did not sign."""
    other = X25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    signature = Ed25519PrivateKey.generate().sign(b"anything").hex()
    change(reply, lambda plain: {"keys": plain["keys"] | {"vector": other}, "signature": signature})


def change(reply: Message, to: Callable[[Plain], Plain]) -> None:
    """Change the protocol's message of a reply."""
    record = reply.content.config_records["secure"]
    record["json"] = json.dumps(to(json.loads(str(record["json"]))))


ACTIONS = {"vanish": vanish, "garbage": garbage, "false key": false_key}


def plant_canaries(file: Path) -> None:
    """Note what only a node knows of itself, whenever it computes it."""
    vector, criteria, usable = (
        SecretScores.encode_vector,
        SecretScores.encode_criteria,
        secure_node._why_unusable,
    )

    def note(*pieces: bytes) -> None:
        with file.open("a", encoding="utf-8") as lines:
            lines.writelines(f"{piece.hex()}\n" for piece in pieces)

    def note_numbers(*numbers: float) -> None:
        # Whole numbers are everywhere, whatever is sent.
        some = [number for number in numbers if number != round(number)]
        note(*(struct.pack("<d", number) for number in some))
        note(*(repr(number).encode() for number in some))

    def noted_vector(self: SecretScores, score: float, update: Any, count: int) -> Masked:
        steps = vector(self, score, update, count)
        exact = update.double().numpy()
        secrets = [update.numpy(), exact]
        if steps.any():  # zeros are everywhere: a server can choose sums that make a score vanish
            secrets += [score * exact, steps]
        for values in secrets:
            note(values.tobytes()[-PIECE:])
        note_numbers(score)
        return steps

    def noted_criteria(self: SecretScores, raw: Any) -> Masked:
        steps = criteria(self, raw)
        note(steps.tobytes()[-PIECE:])
        note_numbers(*raw.tolist())
        return steps

    def noted_model(updates: Any, *others: Any) -> Any:
        note(updates.models[0].numpy().tobytes()[-PIECE:])
        return usable(updates, *others)

    SecretScores.encode_vector = noted_vector  # type: ignore[method-assign]
    SecretScores.encode_criteria = noted_criteria  # type: ignore[method-assign]
    secure_node._why_unusable = noted_model


def no_mask(key: bytes, length: int, bits: int) -> Masked:
    """Masks that hide nothing."""
    return numpy.zeros(length, dtype=value_type(bits))


# The server ---------------------------------------------------------------------------------------


class SocketGrid(LoopGrid):
    """Sends messages over the nodes' sockets, and writes down every byte."""

    def __init__(self, folder: Path, wire: BinaryIO) -> None:
        super().__init__(app=None)  # type: ignore[arg-type]
        self._folder = folder
        self._wire = wire
        self._streams: dict[int, BinaryIO] = {}

    def _answer(self, message: Message) -> Message:
        client = message.metadata.dst_node_id - FIRST_NODE
        header = {"id": message.metadata.message_id, "kind": message.metadata.message_type}
        try:
            stream = self._stream(client)
            self._wire.write(send(stream, header, message.content))
            said, content, frame = receive(stream)
        except (EOFError, OSError):
            del self._streams[client]
            return Message(Error(LEFT, "the node left"), reply_to=message)
        self._wire.write(frame)
        self._wire.flush()
        if "error" in said:
            return Message(Error(2, said["error"]), reply_to=message)
        return Message(content, reply_to=message)

    def _stream(self, client: int) -> BinaryIO:
        if client not in self._streams:
            ready = self._folder / f"port-{client}"
            while not ready.exists():
                time.sleep(0.05)
            connection = socket.create_connection(("127.0.0.1", int(ready.read_text())))
            self._streams[client] = connection.makefile("rwb")
        return self._streams[client]


def serve_rounds(settings: Mapping[str, Any]) -> None:
    """Run all rounds, say so, and keep the memory until the input ends."""
    folder = Path(settings["folder"])
    lie_in(settings["lies"], folder / "obtained")
    experiment = load_experiment(settings["config"], replaced={"engine": "flower"})
    with (folder / "wire").open("wb") as wire:
        grid = SocketGrid(folder, wire)
        nodes = {client: client + FIRST_NODE for client in range(len(settings["nodes"]))}
        connect = connector(experiment, grid, lambda: nodes, run_id=1, simulated=False)
        data = server_side(experiment, settings["server_data"])
        run(experiment, folder / "run", data=data, engines=nullcontext(connect))
    (folder / "done").touch()
    signal.pause()


def lie_in(rounds: Mapping[str, str], obtained: Path) -> None:
    """Deviate in some rounds: "criteria" and "vector" name the sum with a lie about dropouts.

    Half of the clients are told that client 0 dropped out, and the server unmasks with either list. In a
    round with "other sums", client 0 is told sums of the criteria with which its score is largest, the
    others sums with which theirs is zero, and only the others confirm.
    """
    honest = SecureRound._sum

    def write(line: str) -> None:
        with obtained.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def with_other_sums(
        self: SecureRound, purpose: str, packets: Mapping[int, Plain], broadcast: list[float]
    ) -> Masked:
        server = self._server
        zero = [1e300] * len(broadcast)
        server.begin_sum(purpose, zero)
        asked = {client: {**packet, "broadcast": zero} for client, packet in packets.items()}
        asked[0]["broadcast"] = [1e-300] * len(broadcast)
        for client, reply in self._ask(step_of(MASK, purpose), asked):
            server.add(purpose, client, reply)
        listed = server.close_sum(purpose)
        others = dict.fromkeys(server.survivors[1:], listed)
        signed = server.take_confirmed(purpose, dict(self._ask(step_of(CONFIRM, purpose), others)))
        unmasking = dict.fromkeys(others, signed)
        replies = dict(self._ask(step_of(UNMASK, purpose), unmasking))
        total = server.take_unmasked(purpose, replies)
        values = numpy.abs(total.view(f"<i{total.itemsize}").astype("float64"))
        small = float((values < values.max() / 100).mean())  # of noise, one in a hundred
        write(f"{self._round}: {len(replies)} secrets, {'noise' if small < 0.05 else 'an update'}")
        raise VoidError("the server lied")

    def lying(
        self: SecureRound, purpose: str, packets: Mapping[int, Plain], broadcast: object
    ) -> Masked:
        if rounds.get(str(self._round)) == "other sums" and purpose == VECTOR:
            assert isinstance(broadcast, list)
            return with_other_sums(self, purpose, packets, broadcast)
        if rounds.get(str(self._round)) != purpose:
            return honest(self, purpose, packets, broadcast)
        server = self._server
        request = server.begin_sum(purpose, broadcast)
        asked = {client: {**packet, **request} for client, packet in packets.items()}
        for client, reply in self._ask(step_of(MASK, purpose), asked):
            server.add(purpose, client, reply)
        everyone = server.survivors
        lists = {client: everyone if client < 3 else everyone[1:] for client in everyone}
        signed: dict[int, Plain] = {}
        for told in (lists, dict.fromkeys(everyone, everyone)):  # then it tries again
            requests = {client: {"survivors": told[client]} for client in everyone}
            for client, reply in self._ask(step_of(CONFIRM, purpose), requests):
                signed.setdefault(client, reply)
        requests = {}
        for client in everyone:
            same = [other for other in signed if lists[other] == lists[client]]
            signatures = {str(other): signed[other]["signature"] for other in same}
            requests[client] = {"signatures": signatures}
        found = dict(self._ask(step_of(UNMASK, purpose), requests))
        write(f"{self._round}: {len(signed)} signatures, {len(found)} secrets")
        raise VoidError("the server lied")

    SecureRound._sum = lying  # type: ignore[method-assign]


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))

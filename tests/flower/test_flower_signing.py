"""A node answers only instructions that its server signed: for this node, this run, now, and once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from grid import LoopGrid

from clientwise.core.objective.loss import CrossEntropy
from clientwise.core.types import Task
from clientwise.errors import ClientwiseError
from clientwise.experiment.build.clients import build_data
from clientwise.experiment.build.engine import build_engine, build_executor
from clientwise.experiment.build.samples import load_samples
from clientwise.experiment.config.settings import FlowerSettings
from clientwise.experiment.load import load_experiment
from clientwise.flower import client_app
from clientwise.hosts.deployment.gate import RefusedError
from clientwise.hosts.deployment.sealing import seal
from clientwise.hosts.deployment.signing import (
    CLOCK_TOLERANCE,
    RECORD,
    Signer,
    digest,
    verify,
)
from clientwise.hosts.flower.engine import FlowerEngine

NODE = 2
RUN = 1
CONFIG = {
    "name": "signed",
    "rounds": 1,
    "model": "linear",
    "flower": {"clients": ["a"], "input_shape": [4], "num_classes": 2},
}

RECORDS = {
    "plain": {("arrays", "numbers", "versions"), ("arrays", "numbers")},
    "signed": {("sealed",)},
}


def make_key(folder: Path, name: str = "server") -> Path:
    """A new key: NAME.key, and NAME.pub for the nodes."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / f"{name}.key").write_bytes(private)
    (folder / f"{name}.pub").write_bytes(public)
    return folder / f"{name}.key"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    settings: dict[str, Any] = {
        "server-keys": str(tmp_path / "server.pub"),
        "seen": str(tmp_path / "seen"),
    }
    return Context(RUN, NODE, settings, RecordDict(), {})


def request(ttl: float = 60.0) -> Message:
    """An instruction to the node, with a record of every kind."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, 1, 1
    content = RecordDict(
        {
            "arrays": ArrayRecord({"data": Array(numpy.arange(6.0).reshape(2, 3))}),
            "request": ConfigRecord({"json": json.dumps({"client": 0}), "more": [1, 2]}),
            "numbers": MetricRecord({"loss": 0.1}),
        }
    )
    return Message(content, NODE, "train", ttl=ttl)


def delivered(message: Message) -> Message:
    """The message as the node gets it: as bytes, record by record."""
    message.metadata.__dict__["_message_id"] = message.object_id
    contents = {name: one.deflate() for name, one in get_all_nested_objects(message).items()}
    arrived = inflate_object_from_contents(message.object_id, contents)
    assert isinstance(arrived, Message)
    return arrived


def test_a_signed_instruction_is_accepted_once(key: Path, context: Context) -> None:
    message = delivered(Signer(key).sign(request()))
    verify(message, context)
    with pytest.raises(RefusedError, match="was answered before"):
        verify(message, context)
    verify(delivered(Signer(key).sign(request())), context)  # the same request, asked again


def test_an_unsigned_instruction_is_refused(key: Path, context: Context, tmp_path: Path) -> None:
    for message in (request(), Signer(None).sign(request())):
        with pytest.raises(RefusedError, match="is not signed"):
            verify(delivered(message), context)
    verify(delivered(request()), Context(RUN, NODE, {}, RecordDict(), {}))  # no key is pinned
    stranger = Signer(make_key(tmp_path, "stranger"))
    with pytest.raises(RefusedError, match="not signed with a key of `server-keys`"):
        verify(delivered(stranger.sign(request())), context)


def change_array(message: Message) -> None:
    message.content["arrays"] = ArrayRecord({"data": Array(numpy.arange(6.0).reshape(3, 2))})


def change_request(message: Message) -> None:
    message.content.config_records["request"]["json"] = json.dumps({"client": 1})


def change_number(message: Message) -> None:
    message.content.metric_records["numbers"]["loss"] = 0.2


def add_record(message: Message) -> None:
    message.content["kept"] = ConfigRecord({})


def drop_record(message: Message) -> None:
    del message.content["numbers"]


def longer(message: Message) -> None:
    message.metadata.ttl *= 2


def later(message: Message) -> None:
    message.metadata.created_at += 1


def other_kind(message: Message) -> None:
    message.metadata.message_type = "evaluate"


def other_reply_key(message: Message) -> None:
    message.content.config_records[RECORD]["reply_key"] = bytes(32)


def new_number(message: Message) -> None:
    message.content.config_records[RECORD]["number"] = bytes(16)


CHANGES = [
    change_array,
    change_request,
    change_number,
    add_record,
    drop_record,
    longer,
    later,
    other_kind,
    new_number,
    other_reply_key,
]


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_can_be_changed(
    change: Callable[[Message], None], key: Path, context: Context
) -> None:
    message = Signer(key).sign(request())
    change(message)
    with pytest.raises(RefusedError, match="not signed with a key"):
        verify(delivered(message), context)


def test_an_instruction_for_another_node_or_run_is_refused(key: Path, context: Context) -> None:
    message = delivered(Signer(key).sign(request()))
    for run, node, reason in ((RUN, 9, "another node"), (9, NODE, "another run")):
        elsewhere = Context(run, node, context.node_config, RecordDict(), {})
        with pytest.raises(RefusedError, match=reason):
            verify(message, elsewhere)
    # Redirected by whoever carries the message: the signature says otherwise.
    message.metadata.dst_node_id = 9
    with pytest.raises(RefusedError, match="not signed with a key"):
        verify(message, Context(RUN, 9, context.node_config, RecordDict(), {}))


def test_an_old_instruction_is_refused_and_forgotten(
    key: Path, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = delivered(Signer(key).sign(request(ttl=60)))
    verify(message, context)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 2 * CLOCK_TOLERANCE)
    with pytest.raises(RefusedError, match="has expired"):
        verify(message, context)
    monkeypatch.setattr(time, "time", lambda: now - 2 * CLOCK_TOLERANCE)
    with pytest.raises(RefusedError, match="is from the future"):
        verify(message, context)
    monkeypatch.setattr(time, "time", lambda: now + 2 * CLOCK_TOLERANCE)
    fresh = request()
    fresh.metadata.created_at = time.time()
    verify(delivered(Signer(key).sign(fresh)), context)
    assert len(list((tmp_path / "seen").iterdir())) == 1


def test_a_key_is_replaced_without_a_break(key: Path, context: Context, tmp_path: Path) -> None:
    new = make_key(tmp_path, "new")
    pinned = tmp_path / "server.pub"
    old = pinned.read_text()
    pinned.write_text(old + (tmp_path / "new.pub").read_text())
    for signed_with in (key, new):
        verify(delivered(Signer(signed_with).sign(request())), context)
    pinned.write_text((tmp_path / "new.pub").read_text())  # read again for every instruction
    with pytest.raises(RefusedError, match="not signed with a key"):
        verify(delivered(Signer(key).sign(request())), context)
    pinned.write_text("")
    with pytest.raises(ClientwiseError, match="has no Ed25519 public key"):
        verify(delivered(Signer(new).sign(request())), context)


def test_the_digest_differs_wherever_the_content_does() -> None:
    contents: list[dict[str, Any]] = [
        {},
        {"a": ConfigRecord({})},
        {"a": MetricRecord({})},
        {"b": ConfigRecord({})},
        {"a": ConfigRecord({"b": "1"})},
        {"a": ConfigRecord({"b": 1})},
        {"a": ConfigRecord({"b": 1.0})},
        {"a": ConfigRecord({"b": True})},
        {"a": ConfigRecord({"b": b"1"})},
        {"a": ConfigRecord({"b": [1]})},
        {"a": ArrayRecord({"b": Array(numpy.zeros(2, "float32"))})},
        {"a": ArrayRecord({"b": Array(numpy.zeros(1, "float64"))})},
        {"a": ArrayRecord({"b": Array(numpy.zeros((2, 1), "float32"))})},
    ]
    assert len({digest(RecordDict(one)) for one in contents}) == len(contents)


def test_the_client_app_refuses_before_it_reads_data(
    key: Path, context: Context, tmp_path: Path
) -> None:
    context.node_config["data"] = str(tmp_path / "data.npz")  # there is none
    app: ClientApp = client_app(CONFIG)
    refused = app(delivered(request()), context)
    assert refused.error.reason == "RefusedError: the instruction is not signed"
    tried = app(delivered(Signer(key).sign(request())), context)
    assert "signed" not in str(tried.error.reason)


def test_a_key_of_another_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "wrong.key").write_text("nothing")
    with pytest.raises(ClientwiseError, match=r"wrong.key: no private key can be read"):
        Signer(tmp_path / "wrong.key")


def reply_to(message: Message, value: float) -> tuple[Message, RecordDict]:
    """A sealed reply to an instruction, and what is in it."""
    content = RecordDict(
        {
            "arrays": ArrayRecord({"data": Array(numpy.full(2, value))}),
            "numbers": MetricRecord({"loss": value}),
        }
    )
    reply_key = message.content.config_records[RECORD]["reply_key"]
    assert isinstance(reply_key, bytes)
    sealed = seal(content, reply_key, message.metadata.message_id)
    return delivered(Message(sealed, reply_to=message)), content


def test_only_the_server_reads_a_reply(key: Path) -> None:
    server = Signer(key)
    message = server.sign(request())
    message.metadata.__dict__["_message_id"] = message.object_id
    reply, content = reply_to(message, 0.5)
    asked = message.metadata.message_id
    assert server.open(reply.content, asked) == content
    # The same reply again: no hash is the same, so none tells what is in it.
    again, _ = reply_to(message, 0.5)
    assert not get_all_nested_objects(reply).keys() & get_all_nested_objects(again).keys()
    # Another process, also with the same key file; a reply moved to another instruction.
    for opener, name in ((Signer(key), asked), (server, "another")):
        with pytest.raises(ValueError, match="not sealed for this instruction"):
            opener.open(reply.content, name)
    assert server.open(content, asked) == content  # of a node without the server's key


@pytest.mark.parametrize("data", [b"", bytes(31), bytes(32), bytes(80)])
def test_a_reply_that_cannot_be_opened_is_refused(data: bytes, key: Path) -> None:
    array = Array(numpy.frombuffer(data, dtype=numpy.uint8))
    content = RecordDict({"sealed": ArrayRecord({"data": array})})
    with pytest.raises(ValueError, match="not sealed for this instruction"):
        Signer(key).open(content, "asked")


def test_a_signed_run_gives_the_same_results(
    tiny: dict[str, Any], key: Path, context: Context
) -> None:
    """The engine signs and opens, the node verifies and seals; the results are the same bits."""
    experiment = load_experiment(tiny)
    data, _ = build_data(experiment, load_samples(experiment), 1)
    executor = build_executor(experiment, data.samples, torch.device("cpu"))
    local = build_engine(experiment, data, {}, 1, executor)
    task = Task(1, experiment.build_methods()[0].training, CrossEntropy(), ())
    model = local.initial_model
    found = {}
    for name, file, settings in (("plain", None, {}), ("signed", key, context.node_config)):
        grid = LoopGrid(client_app(tiny), {"partition-id": 0, **settings})
        engine = FlowerEngine(
            local, grid, lambda: {0: NODE}, seed=1, settings=FlowerSettings(), signer=Signer(file)
        )
        (update,) = engine.train([0], model, task)
        found[name] = (update.models, engine.evaluate([0], model[None]).losses)
        assert {tuple(reply.content) for reply in grid.answers} == RECORDS[name]
    for plain, signed in zip(found["plain"], found["signed"], strict=True):
        assert torch.equal(plain, signed)

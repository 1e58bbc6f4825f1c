"""Flower as a mailbox that is not trusted: the only file that knows Flower's own names.

A service of ours takes the tasks that Flower starts apps for, and ignores the app that comes with them: the bundle is
never unpacked. These names are not public in Flower, hence `flwr==1.42.*`: with another version, imports or calls fail,
and nothing is answered.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.constant import SubStatus
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto, run_from_proto
from flwr.proto.recorddict_pb2 import RecordDict as RecordDictMessage
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
)
from flwr.supercore.auth import load_superexec_auth_secret
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"  # the one method that needs the services' shared secret
PAUSE = 0.5  # seconds between two looks for a task
ENVELOPE = "envelope"  # the one record of a message
log = logging.getLogger("clientwise.consortium")


def answer_tasks(address: str, secret: Path, answer: Callable[[bytes], bytes]) -> None:
    """At a site: one message after the other, until the service ends.

    Args:
        address: of the SuperNode's runtime interface on this machine.
        secret: the file with the secret that both services share.
        answer: makes the bytes of a reply from the bytes of a message. It raises nothing.
    """
    service = _service(address, secret)
    while True:
        found = service.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        if not (found.HasField("task") and found.token):
            time.sleep(PAUSE)
            continue
        client = _client(address, RuntimeTokenHttpInterceptor(found.token))
        try:
            _answer_task(client, answer)
        except Exception:  # of one message: the service goes on
            log.exception("a message could not be answered")
        finally:
            client.close()


def _answer_task(client: RuntimeHttpClient, answer: Callable[[bytes], bytes]) -> None:
    context: Context | None = None
    status = SubStatus.FAILED
    with _heartbeat(client):
        try:
            message, context, _, _ = pull_task_input(client)  # the last one is the bundle
            reply = Message(wrapped(answer(unwrapped(message))), reply_to=message)
            push_message(client, reply, context)
            status = SubStatus.COMPLETED
        finally:
            push_task_output(client, context, status, "")


@contextmanager
def server_task(address: str, secret: Path) -> Iterator[HttpGrid]:
    """At the coordinator: wait for `flwr run`, and reach the sites as its server app would."""
    service = _service(address, secret)
    while True:
        asked = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        found = service.AcquireTask(asked)
        if found.HasField("task") and found.token:
            break
        time.sleep(PAUSE)
    grid = HttpGrid(address, insecure=True, token=found.token)
    client = grid._runtime_client
    task = client.PullTaskInput(PullTaskInputRequest())
    grid.set_run(run_from_proto(task.run))
    be_task(task.task_id, task.run.run_id, task.context.node_id)
    status = SubStatus.FAILED
    try:
        with _heartbeat(client):
            yield grid
            status = SubStatus.COMPLETED
    finally:
        output = PushTaskOutputRequest(context=task.context, sub_status=status, details="")
        client.PushTaskOutput(output)
        grid.close()


def wrapped(content: bytes) -> RecordDict:
    """Bytes as the content of a message."""
    return RecordDict({ENVELOPE: ConfigRecord({"bytes": content})})


def unwrapped(message: Message) -> bytes:
    """The bytes of a message; ValueError where it has none."""
    if message.has_error():
        raise ValueError(f"the mailbox reports: {message.error.reason}")
    records = message.content.config_records
    content = records[ENVELOPE].get("bytes") if ENVELOPE in records else None
    if not isinstance(content, bytes):
        raise ValueError("a message without an envelope")
    return content


def to_bytes(content: RecordDict) -> bytes:
    """The library's records as bytes."""
    return bytes(recorddict_to_proto(content).SerializeToString(deterministic=True))


def from_bytes(content: bytes) -> RecordDict:
    """What `to_bytes` wrote: numbers, text and arrays, no pickle."""
    return recorddict_from_proto(RecordDictMessage.FromString(content))


def be_task(task_id: int, run_id: int, node_id: int) -> None:
    """Let this process be a task: Flower wants one of who makes a message."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task_id, run_id, node_id


@contextmanager
def _heartbeat(client: RuntimeHttpClient) -> Iterator[None]:
    sender = HeartbeatSender(make_task_heartbeat_fn_http(client))
    sender.start()
    try:
        yield
    finally:
        sender.stop()


def _service(address: str, secret: Path) -> RuntimeHttpClient:
    master = load_superexec_auth_secret(secret_file=str(secret))
    assert master is not None, "it reads the file, or raises"
    auth = SuperExecAuthHttpInterceptor(
        master_secret=master, protected_methods=frozenset({ACQUIRE})
    )
    return _client(address, auth)


def _client(address: str, auth: ProtobufClientInterceptor) -> RuntimeHttpClient:
    """In plain text: both services are on one machine, behind its loopback interface."""
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="clientwise"), auth],
        retry_invoker=make_simple_http_retry_invoker(),
    )

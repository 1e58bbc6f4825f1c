"""Flower still has, and still calls, what `clientwise.hosts.deployment.patches` and `node` build on.

Run against every supported version of Flower; pyproject.toml names them.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import shutil
import ssl
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import message_to_proto
from flwr.proto.fab_pb2 import Fab as FabProto
from flwr.proto.fab_pb2 import GetFabResponse
from flwr.proto.fleet_pb2 import (
    ActivateNodeResponse,
    PullMessagesRequest,
    PullMessagesResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.run_pb2 import GetRunResponse
from flwr.proto.run_pb2 import Run as RunProto
from flwr.server.superlink.linkstate import SqlLinkState
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor import ExecutionSpec, subprocess_executor
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink import config_loader
from flwr.superlink import main as superlink_main
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.fleet_http_client import FleetHttpClient
from packaging.requirements import Requirement
from starlette.middleware import Middleware

from clientwise.errors import ClientwiseError
from clientwise.hosts.deployment import node, patches, superexec
from clientwise.hosts.deployment.ledger import Ledger
from clientwise.hosts.deployment.link import HeldCalls, OwnCalls
from clientwise.hosts.deployment.retention import keep_updates_in_memory
from clientwise.hosts.deployment.zygote import PROGRAM

pytestmark = pytest.mark.filterwarnings(
    "ignore:GitWildMatchPattern"
)  # Flower's, where it builds a bundle
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
NEEDED = [Requirement(one) for one in PROJECT["dependencies"]]
EXTRAS = {
    extra: [Requirement(one) for one in needed]
    for extra, needed in PROJECT["optional-dependencies"].items()
}
NEEDED_HERE = [
    needed
    for one in EXTRAS["deployment"]
    for needed in (one, *(each for extra in one.extras for each in EXTRAS.get(extra, [])))
]


class Ended(BaseException):
    """Ends the SuperNode's loop; nothing in Flower catches it."""


class FakeSuperLink:
    """Answers the calls of one SuperNode: one message of one run, with this bundle."""

    def __init__(self, bundle: bytes) -> None:
        self.calls: list[str] = []
        self.fab_hash = hashlib.sha256(bundle).hexdigest()
        # A SuperLink may claim that a bundle is verified. The node must not believe it.
        claims = {"valid_license": "Valid", patches.SIGNER: '{"signed_at": 1, "signature": "AAAA"}'}
        self._fab = FabProto(hash_str=self.fab_hash, content=bundle, verifications=claims)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        message = Message(RecordDict({"config": ConfigRecord({"a": 1})}), 7, "train")
        message.metadata.__dict__["_message_id"] = message.object_id
        self._pulled = PullMessagesResponse(
            messages_list=[message_to_proto(message)],
            message_object_trees=[get_object_tree(message)],
        )

    def answer(
        self, client: object, *, path: str, response_type: Callable[[], Any], **_: Any
    ) -> Any:
        """In the place of `FleetHttpClient._unary_unary`."""
        call = path.rsplit("/", 1)[-1]
        self.calls.append(call)
        if call in ("push-messages", "pull-object"):  # the error reply; or the start of a task
            raise Ended
        answers = {
            "activate-node": ActivateNodeResponse(node_id=7),
            "send-node-heartbeat": SendNodeHeartbeatResponse(success=True),
            "pull-messages": self._pulled,
            "get-run": GetRunResponse(run=RunProto(run_id=1, fab_hash=self.fab_hash)),
            "get-fab": GetFabResponse(fab=self._fab),
            "pull-object": PullObjectResponse(object_found=True, object_available=True),
        }
        return answers.get(call) or response_type()


@pytest.fixture
def bundle(tmp_path: Path) -> bytes:
    return build_fab_from_disk(
        Path(
            shutil.copytree(
                str(files("clientwise") / "hosts" / "deployment" / "template"), tmp_path / "app"
            )
        )
    )


@pytest.fixture
def quiet_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SuperNode without a port, signal handlers or a process for the app.

    All of Flower's else.
    """
    command = import_module("flwr.supernode.cli.flower_supernode")
    monkeypatch.setattr(command, "_start_supernode_http_api", lambda *_: (SimpleNamespace(), None))
    monkeypatch.setattr(command, "add_exit_handler", lambda _: None)
    monkeypatch.setattr(start_client_internal, "register_signal_handlers", lambda **_: None)
    monkeypatch.setattr(
        fleet_http_connection, "FleetHttpClient", FleetHttpClient
    )  # restored afterwards
    monkeypatch.setattr(sys, "argv", [])


def run_node(ledger: Path) -> None:
    arguments = ["--insecure", "--superlink", "127.0.0.1:9", "--isolation", "process"]
    with pytest.raises(Ended):
        node.start(ledger, None, None, arguments)


def approve_bundle(ledger: Path, bundle: bytes) -> None:
    with Ledger(ledger).locked() as entries:
        found = hashlib.sha256(bundle).hexdigest()
        Ledger(ledger).add(entries, "approved", bundle=found)


@pytest.mark.usefixtures("quiet_node")
@pytest.mark.parametrize("approved", [False, True])
def test_flower_runs_a_bundle_only_if_the_operator_approved_it(
    approved: bool, bundle: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    superlink = FakeSuperLink(bundle)
    monkeypatch.setattr(
        FleetHttpClient, "_unary_unary", lambda self, **given: superlink.answer(self, **given)
    )
    stored: list[str] = []
    monkeypatch.setattr(
        start_client_internal,
        "get_fused_config_from_fab",
        lambda content, run: stored.append(hashlib.sha256(content).hexdigest()) or {},
    )
    if approved:
        approve_bundle(tmp_path / "ledger", bundle)
    run_node(tmp_path / "ledger")
    assert "get-fab" in superlink.calls
    assert ("pull-object" in superlink.calls) == approved  # a task was begun
    assert ("push-messages" in superlink.calls) != approved  # an error was answered
    assert stored == ([superlink.fab_hash] if approved else [])


@pytest.mark.usefixtures("quiet_node")
def test_without_our_client_no_bundle_is_run(
    bundle: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Flower that no longer uses the replaced class refuses everything, approved or not."""
    superlink = FakeSuperLink(bundle)
    monkeypatch.setattr(
        FleetHttpClient, "_unary_unary", lambda self, **given: superlink.answer(self, **given)
    )
    monkeypatch.setattr(node, "replace_fleet_client", lambda *_: None)
    approve_bundle(tmp_path / "ledger", bundle)
    run_node(tmp_path / "ledger")
    assert "push-messages" in superlink.calls


def test_flowers_client_has_the_parts_that_are_replaced() -> None:
    parameters = inspect.signature(FleetHttpClient.__init__).parameters
    assert parameters["verify"].kind is inspect.Parameter.KEYWORD_ONLY
    assert list(inspect.signature(FleetHttpClient.GetFab).parameters) == ["self", "request"]
    assert isinstance(FleetHttpClient("https://127.0.0.1:9")._client, httpx.Client)
    made = inspect.getsource(fleet_http_connection.http_request_response)
    assert "FleetHttpClient.from_server_address(" in made


def test_certificate_and_socket_reach_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        fleet_http_connection, "FleetHttpClient", FleetHttpClient
    )  # restored afterwards
    certificate = (tmp_path / "one.crt", tmp_path / "one.pem")
    patches.replace_fleet_client(
        patches.BundleSigner(), lambda fab: True, certificate, tmp_path / "uplink.sock"
    )
    loaded: list[tuple[Path, ...]] = []
    context = ssl.create_default_context()
    monkeypatch.setattr(
        ssl.SSLContext, "load_cert_chain", lambda self, *paths: loaded.append(paths)
    )
    client = fleet_http_connection.FleetHttpClient("https://127.0.0.1:9", verify=context)
    assert loaded == [certificate]
    assert client._client._transport._pool._uds == str(tmp_path / "uplink.sock")  # type: ignore[attr-defined]
    client.close()


def test_a_flower_without_the_class_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(fleet_http_connection, "FleetHttpClient")
    with pytest.raises(ClientwiseError, match="does not support this version of Flower"):
        patches.replace_fleet_client(patches.BundleSigner(), lambda fab: True)


@pytest.mark.usefixtures("quiet_node")
def test_a_node_starts_our_superexec_with_flowers_arguments(
    bundle: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_client_internal, "subprocess", subprocess)  # restored afterwards
    started: list[list[str]] = []
    monkeypatch.setattr(node, "_start_superexec", started.append)
    superlink = FakeSuperLink(bundle)
    monkeypatch.setattr(
        FleetHttpClient, "_unary_unary", lambda self, **given: superlink.answer(self, **given)
    )
    with pytest.raises(Ended):
        node.start(tmp_path / "agreed", None, None, ["--insecure", "--superlink", "127.0.0.1:9"])
    (command,) = started
    assert command[0] == "flower-superexec"
    assert "--parent-pid" in command


def test_flowers_superexec_starts_apps_by_what_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess_executor, "subprocess", subprocess)  # restored afterwards
    started: list[list[str]] = []
    patches.replace_popen(subprocess_executor, started.append)
    spec = ExecutionSpec(
        task_type=TaskType.CLIENT_APP,
        runtime_api_address="127.0.0.1:9",
        token="secret",
        insecure=True,
        root_certificates_path=None,
        runtime_dependency_install=False,
        parent_pid=1,
        suppress_output=False,
        task_id=1,
    )
    subprocess_executor.SubprocessExecutor().launch(spec)
    assert started[0][0] == PROGRAM
    assert superexec.POLL[0] == run_superexec._TASK_POLL_INTERVAL_ENV


def test_a_flower_that_starts_programs_in_another_way_does_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(subprocess_executor, "subprocess")
    patches.replace_popen(subprocess_executor, print)
    assert "rounds take longer" in caplog.text
    assert not hasattr(subprocess_executor, "subprocess")


@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        ([(0, 1)], 1),  # a message at once
        ([(0, 0), (0, 0)], 2),  # a SuperLink that holds no calls: Flower waits before the next one
        ([(10, 0), (0, 0), (10, 0), (7, 1)], 4),  # held calls, one of which came too early
    ],
)
def test_a_node_asks_again_at_once_where_calls_are_held(
    answers: list[tuple[float, int]], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        fleet_http_connection, "FleetHttpClient", FleetHttpClient
    )  # restored afterwards
    patches.replace_fleet_client(patches.BundleSigner(), lambda fab: True)
    now = 0.0
    given = iter(answers)

    def answer(self: object, **_: object) -> PullMessagesResponse:
        nonlocal now
        seconds, messages = next(given)
        now += seconds
        return PullMessagesResponse(messages_list=[MessageProto()] * messages)

    monkeypatch.setattr(FleetHttpClient, "_unary_unary", answer)
    monkeypatch.setattr(patches, "time", SimpleNamespace(monotonic=lambda: now))
    context = ssl.create_default_context()
    client = fleet_http_connection.FleetHttpClient("https://127.0.0.1:9", verify=context)
    response = client.PullMessages(PullMessagesRequest())
    assert len(response.messages_list) == answers[calls - 1][1]
    assert list(given) == answers[calls:]
    client.close()


def test_the_superlink_calls_our_check_after_it_knows_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(superlink_main, "_get_middleware", superlink_main._get_middleware)
    patches.add_to_superlink(Middleware(OwnCalls))
    patches.add_to_superlink(Middleware(HeldCalls))
    called = [one.cls for one in superlink_main.create_app().user_middleware]
    assert called.index(ProtobufTranslationMiddleware) < called.index(NodeAuthMiddleware)
    assert called.index(NodeAuthMiddleware) < called.index(OwnCalls) < called.index(HeldCalls)
    monkeypatch.delattr(superlink_main, "_get_middleware")
    with pytest.raises(ClientwiseError, match="does not support this version of Flower"):
        patches.add_to_superlink(Middleware(OwnCalls))


def test_the_installed_flower_is_a_supported_version() -> None:
    installed = version("flwr")
    (flower,) = (one for one in NEEDED_HERE if one.name == "flwr")
    assert flower.specifier.contains(installed), f"flwr {installed} is not supported: {flower}"


def test_a_program_says_in_one_line_that_it_needs_another_flower() -> None:
    lines = [
        "import runpy, sys",
        "sys.modules['flwr.supernode.fleet_http_client'] = None  # as in Flower 1.29",
        "runpy.run_module('clientwise.hosts.deployment.node', run_name='__main__')",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: a deployment does not support this version of Flower, ")
    assert line.endswith('pip install "clientwise[deployment]"')


def test_nothing_else_of_flower_is_replaced() -> None:
    """Assignments to attributes of Flower's modules are in patches.py alone."""
    found = []
    for path in sorted((Path(patches.__file__).parent).glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        theirs = {
            name.asname or name.name
            for one in ast.walk(tree)
            if isinstance(one, ast.ImportFrom) and (one.module or "").startswith("flwr")
            for name in one.names
        }
        for one in ast.walk(tree):
            targets = one.targets if isinstance(one, ast.Assign) else []
            for target in targets:
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id in theirs
                ):
                    found.append((path.name, target.attr))
        assert "setattr(" not in path.read_text(encoding="utf-8"), path.name
    replaced = ("FleetHttpClient", "_get_middleware", "ObjectStoreFactory")
    assert found == [("patches.py", name) for name in replaced]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's database library
def test_the_superlink_holds_messages_in_memory_whatever_its_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = config_loader.ObjectStoreFactory
    monkeypatch.setattr(config_loader, "ObjectStoreFactory", usual)  # restores it
    database = str(tmp_path / "link.sqlite")
    manager = config_loader.get_federation_manager(is_simulation=False)
    store, _ = config_loader.get_objectstore_linkstate_factories(database, manager)
    assert isinstance(store.store(), SqlObjectStore)
    keep_updates_in_memory(["flower-superlink", "--database", database])
    store, state = config_loader.get_objectstore_linkstate_factories(database, manager)
    assert isinstance(store.store(), InMemoryObjectStore)
    assert isinstance(state.state(), SqlLinkState)
    assert state.state().object_store is store.store()
    with pytest.raises(ClientwiseError, match="does not use ObjectStoreFactory"):
        keep_updates_in_memory([])


def test_every_package_that_this_room_imports_is_declared() -> None:
    imported = set()
    for path in Path(patches.__file__).parent.glob("*.py"):
        for one in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(one, ast.Import):
                imported |= {name.name.split(".")[0] for name in one.names}
            elif isinstance(one, ast.ImportFrom) and one.level == 0:
                imported.add((one.module or "").split(".")[0])
    declared = {one.name for one in (*NEEDED, *NEEDED_HERE)}
    declared.add("ray")  # of exactly the version that flwr[simulation] names
    assert imported - set(sys.stdlib_module_names) <= declared

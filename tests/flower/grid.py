"""A grid whose nodes are a real `ClientApp` in this process.

Only the transport is missing, so it can misbehave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

import json
from pathlib import Path

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from clientwise.core.round import first_state, run_round
from clientwise.core.types import RoundRecord
from clientwise.experiment.build.engine import build_engine, build_executor, build_plan
from clientwise.experiment.load import load_experiment
from clientwise.flower import client_app
from clientwise.hosts.flower.data import server_side
from clientwise.hosts.flower.engine import FlowerEngine

Behaviour = Callable[[Message, Callable[[], Message]], Message | None]  # None: no answer yet


def become_task() -> None:
    """Let this process be a task of Flower, which newer versions ask of whoever makes a message."""
    with suppress(ModuleNotFoundError):
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


class FakeClock:
    """In the place of the module `time`.

    Time passes when the engine sleeps, and costs no real seconds.
    """

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        self.now += 0.001  # computing takes time as well
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class LoopGrid(Grid):
    """Answers what is pulled, the last sent first.

    `behaviour` says which clients do something else.
    """

    def __init__(self, app: ClientApp, node_config: Mapping[str, Any] | None = None) -> None:
        become_task()
        self.app, self.node_config = app, dict(node_config or {"partition-id": 0})
        self.behaviour: dict[int, Behaviour] = {}
        self.sent: list[Message] = []
        self.answers: list[Message] = []
        self.exchanges = 0  # how often replies were waited for after messages had been sent
        self._has_news = False
        self._waiting: dict[str, Message] = {}

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **options: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise NotImplementedError("polls too slowly in a deployment; the engine must not use it")

    def get_node_ids(self) -> Iterable[int]:
        return range(2, 5)

    def get_nodes(self) -> Iterable[Any]:
        return []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            name = f"message-{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = name
            self.sent.append(message)
            self._waiting[name] = message
            names.append(name)
        self._has_news = True
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        names = list(message_ids)
        self.exchanges += self._has_news
        self._has_news = False
        replies = []
        for name in reversed(names):
            message = self._waiting[name]
            reply = self._answer(message)
            if reply is not None:
                del self._waiting[name]
                replies.append(reply)
        self.answers += replies
        return replies

    def _answer(self, message: Message) -> Message | None:
        behave = self.behaviour.get(client_of(message)) if self.behaviour else None

        def honest() -> Message:
            context = Context(1, 2, dict(self.node_config), RecordDict(), {})
            return self.app(message, context)

        return behave(message, honest) if behave else honest()


class FilesGrid(LoopGrid):
    """Every node has a file of its own, and all of them are connected."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        super().__init__(client_app(config))
        self._paths = [folder / f"{name}.npz" for name in config["flower"]["clients"]]
        self.behaviour = dict.fromkeys(range(len(self._paths)), self._with_own_data)

    def _with_own_data(self, message: Message, honest: Callable[[], Message]) -> Message:
        self.node_config = {"data": str(self._paths[client_of(message)])}
        return honest()

    def connected(self) -> dict[int, int]:
        return {client: 2 + client for client in range(len(self._paths))}


def deployed(config: dict[str, Any], grid: Grid, server: Path | str = "") -> FlowerEngine:
    """The server's engine of a deployment, whose clients all have a node."""
    experiment = load_experiment(config)
    data = server_side(experiment, str(server))
    executor = build_executor(experiment, data.samples, torch.device("cpu"))
    local = build_engine(experiment, data, {}, 1, executor)
    nodes = {client: 2 + client for client in range(local.num_clients)}
    return FlowerEngine(local, grid, lambda: nodes, settings=experiment.flower)


def rounds_of(config: dict[str, Any], engine: FlowerEngine, count: int) -> list[RoundRecord]:
    """The records of rounds of the config's only method."""
    experiment = load_experiment(config)
    (method,) = experiment.build_methods()
    plan = build_plan(experiment, engine.num_clients, 1)
    state = first_state(engine.initial_model, method, engine)
    records = []
    for _ in range(count):
        state, record = run_round(state, method, plan, engine)
        records.append(record)
    return records


def client_of(message: Message) -> int:
    """Which client a request means."""
    return int(json.loads(str(message.content.config_records["request"]["json"]))["client"])


def asked_by(message: Message) -> tuple[int, str, int]:
    """The client, the kind and the round of a request."""
    request = json.loads(str(message.content.config_records["request"]["json"]))
    round_num = request["task"]["round_num"] if request["task"] else request["round_num"]
    return request["client"], message.metadata.message_type, round_num


def never(message: Message, honest: Callable[[], Message]) -> None:
    """No answer, as long as one waits."""


def dies(message: Message, honest: Callable[[], Message]) -> Message:
    """What Flower says for a client process that was killed."""
    return Message(Error(code=8, reason="ClientApp process crashed."), reply_to=message)

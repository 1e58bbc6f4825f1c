"""Secure aggregation over Flower's messages: real apps in this process, only the transport is missing."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

import numpy
import torch
from approvals import approve_again, approve_once
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_to_proto
from grid import FakeClock, LoopGrid
from torch import Tensor

import clientwise.secrecy.masks.statements
from clientwise.core.method import Method
from clientwise.core.round import first_state, run_round
from clientwise.core.secrecy import SecretScores
from clientwise.core.types import RoundRecord, Task
from clientwise.experiment.build.clients import build_data
from clientwise.experiment.build.engine import build_engine, build_executor, build_plan
from clientwise.experiment.build.samples import load_samples
from clientwise.experiment.config.schema import Experiment
from clientwise.experiment.load import load_experiment
from clientwise.flower import client_app
from clientwise.hosts.flower.connections import connector
from clientwise.hosts.flower.secure_wire import (
    SecureRun,
    Step,
    read_step,
    write_step,
)
from clientwise.hosts.flower.wire import Request, pack, write_request
from clientwise.secrecy.masks.primitives import value_type
from clientwise.secrecy.masks.terms import PROTOCOL

CLIENTS = 5
STEPS = ["keys", "shares"]
STEPS += [
    f"{kind} {what}" for what in ("criteria", "vector") for kind in ("mask", "confirm", "unmask")
]
Change = Callable[[str, int, Message], Message | None]


@pytest.fixture(autouse=True)
def no_waiting(clock: FakeClock) -> None:
    """The clock of the engine is a fake one."""


class KeepingGrid(LoopGrid):
    """Every client has a node of its own, which keeps its state. `change` may replace replies."""

    def __init__(self, app: ClientApp) -> None:
        super().__init__(app)
        self.contexts: dict[int, Context] = {}
        self.gone: set[int] = set()  # clients that vanished
        self.change: Change = lambda step, client, reply: reply

    def _answer(self, message: Message) -> Message | None:
        plain = json.loads(str(message.content.config_records["secure"]["json"]))
        client = plain["client"]
        if client in self.gone:
            return None
        fresh = Context(1, client + 2, dict(self.node_config), RecordDict(), {})
        context = self.contexts.setdefault(client, fresh)
        reply = self.change(plain["step"], client, self.app(message, context))
        if reply is None:
            self.gone.add(client)
        return reply


class Trial:
    """One experiment, with a local engine and, by `grid`, with clients that mask what they send."""

    def __init__(self, tiny: dict[str, Any], **method: Any) -> None:
        secret = {"name": "secret", "criteria": ["class_balance", "dataset_size"]}
        changes = {
            "engine": "flower",
            "partition": {"name": "dirichlet", "clients": CLIENTS, "concentration": 0.5},
            "federation": {},
            "evaluation": {"clients_every": 0},
            "flower": {"train_seconds": 20.0, "evaluate_seconds": 20.0},
            "methods": [secret | {"secure_aggregation": {}} | method],
        }
        self.experiment: Experiment = load_experiment(tiny | changes)
        self.app = client_app(self.experiment.to_dict())
        self.grid = KeepingGrid(self.app)
        data, hostile = build_data(self.experiment, load_samples(self.experiment), 1)
        executor = build_executor(self.experiment, data.samples, torch.device("cpu"))
        self.method: Method = self.experiment.build_methods()[0]
        self.local = build_engine(self.experiment, data, hostile, 1, executor, self.method)
        nodes = {client: client + 2 for client in range(CLIENTS)}
        connect = connector(self.experiment, self.grid, lambda: nodes, run_id=1)
        self.remote = connect(self.local, 1)

    def run(self, engine: Any) -> tuple[Tensor, RoundRecord]:
        plan = build_plan(self.experiment, CLIENTS, 1)
        state = first_state(engine.initial_model, self.method, engine)
        state, record = run_round(state, self.method, plan, engine)
        return state.model, record

    def training(self, client: int = 0, round_num: int = 1, seed: int = 1) -> RecordDict:
        task = Task(
            round_num,
            self.method.training,
            self.local.problem.loss,
            self.method.client_criteria,
        )
        return write_request(Request(client, seed, task), pack(self.local.initial_model))


@pytest.mark.parametrize(
    "method",
    [
        {},
        {"criteria": ["dataset_size"]},
        {"score": "mean", "secure_aggregation": {"bits": 64}},
        {"score": "product", "normalise": "sum", "secure_aggregation": {"threshold": 0.5}},
        {"criteria": ["class_balance"], "score": "product", "server_step": "momentum"},
    ],
)
def test_the_model_is_the_embedded_engines_to_the_last_bit(
    tiny: dict[str, Any], method: dict[str, Any]
) -> None:
    trial = Trial(tiny, **method)
    model, record = trial.run(trial.remote)
    expected, known = trial.run(trial.local)
    assert torch.equal(model, expected)
    assert record.refusals == ()
    assert record.notes == known.notes
    assert bool(record.weights.isnan().all() & record.raw.isnan().all())


@pytest.mark.parametrize("step", STEPS)
def test_a_client_that_vanishes_in_any_step_is_not_exposed(tiny: dict[str, Any], step: str) -> None:
    """The sum is that of the others; between the two sums, the round is void with the reason."""
    trial = Trial(tiny)
    trial.grid.change = lambda now, client, reply: None if (now, client) == (step, 2) else reply
    model, record = trial.run(trial.remote)
    place = STEPS.index(step)
    if place > STEPS.index("mask vector"):
        assert len(record.client_ids) == 5
        return
    assert [one.reason for one in record.refusals] == [f"{step}: no answer in time"]
    is_void = place > STEPS.index("mask criteria")
    assert torch.equal(model, trial.local.initial_model) == is_void
    assert len(record.client_ids) == (0 if is_void else 4)
    assert ("between the two sums" in record.notes[0]) == is_void


def test_a_void_round_leaves_the_model_and_the_next_one_goes_on(tiny: dict[str, Any]) -> None:
    trial = Trial(tiny)
    trial.grid.change = lambda now, client, reply: (
        None if now == "unmask vector" and client in (1, 3) else reply
    )
    plan = build_plan(trial.experiment, CLIENTS, 1)
    state = first_state(trial.remote.initial_model, trial.method, trial.remote)
    after, record = run_round(state, trial.method, plan, trial.remote)
    assert torch.equal(after.model, state.model)
    assert "the round is void: only 3 of 5 clients sent their shares" in record.notes[0]
    trial.grid.change = lambda now, client, reply: reply
    trial.grid.gone.clear()
    after, record = run_round(after, trial.method, plan, trial.remote)
    assert len(record.client_ids) == 5
    assert not torch.equal(after.model, state.model)


@pytest.mark.parametrize("masked", [True, False])
def test_no_reply_has_a_clients_update_criteria_or_score(
    tiny: dict[str, Any], masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All replies of a round are searched. Without masks, the search must find everything."""
    if not masked:
        monkeypatch.setattr(clientwise.secrecy.masks.statements, "mask", no_mask)
    trial = Trial(tiny)
    trial.run(trial.remote)
    _, known = trial.run(trial.local)
    wire = b"".join(
        recorddict_to_proto(answer.content).SerializeToString() for answer in trial.grid.answers
    )
    scores = SecretScores.of(trial.method, trial.local.problem, CLIENTS)
    task = Task(1, trial.method.training, trial.local.problem.loss, trial.method.client_criteria)
    spec = trial.local.spec
    for client in range(CLIENTS):
        (updates,) = trial.local.train([client], trial.local.initial_model, task)
        score = float(known.scores[client])
        update = updates.models[0] - trial.local.initial_model
        vectors = (updates.models[0], update, update.double(), update.double() * score)
        assert not any(vector[-8:].numpy().tobytes() in wire for vector in vectors)
        values = (*known.raw[client].tolist(), score)
        assert not any(struct.pack("<d", value) in wire for value in values)
        assert not any(f" {value!r}".encode() in wire for value in values)
        steps = scores.encode_vector(score, update, spec.num_parameters)[-8:].tobytes()
        criteria = scores.encode_criteria(known.raw[client]).tobytes()
        assert (steps in wire, criteria in wire) == (not masked, not masked)


def no_mask(key: bytes, length: int, bits: int) -> Any:
    return numpy.zeros(length, dtype=value_type(bits))


def test_a_node_keeps_no_secret_after_the_round(tiny: dict[str, Any]) -> None:
    trial = Trial(tiny)
    trial.run(trial.remote)
    for client, context in trial.grid.contexts.items():
        assert list(context.state) == [], client


def ask(trial: Trial, content: RecordDict, context: Context | None = None) -> Message:
    context = context or Context(1, 2, {"partition-id": 0}, RecordDict(), {})
    message = Message(content, 2, "train")
    message.metadata.__dict__["_message_id"] = "one"
    return trial.app(message, context)


def reason_of(reply: Message) -> str:
    return str(reply.error.reason) if reply.has_error() else "answered"


def test_a_client_sends_nothing_in_the_clear(tiny: dict[str, Any]) -> None:
    trial = Trial(tiny)
    assert "sends nothing in the clear" in reason_of(ask(trial, trial.training()))
    evaluate = write_request(Request(0, 1, round_num=1), pack(trial.local.initial_model[None]))
    assert "sends nothing in the clear" in reason_of(ask(trial, evaluate))


def test_steps_belong_to_the_round_that_began(tiny: dict[str, Any]) -> None:
    trial = Trial(tiny)
    context = Context(1, 2, {"partition-id": 0}, RecordDict(), {})
    first = write_step(Step(0, 1, 1, "keys", {}), trial.training())
    assert reason_of(ask(trial, first, context)) == "answered"
    other = write_step(Step(0, 1, 2, "shares", {}))
    assert "round 2 did not begin here" in reason_of(ask(trial, other, context))
    mixed = write_step(Step(1, 1, 1, "keys", {}), trial.training())
    assert "do not fit" in reason_of(ask(trial, mixed, context))
    early = write_step(Step(0, 1, 1, "unmask vector", {"signatures": {}}))
    assert "'shares' comes next" in reason_of(ask(trial, early, context))
    strange = write_step(Step(0, 1, 1, "state", {}))
    assert "no such step" in reason_of(ask(trial, strange, context))


@pytest.mark.parametrize(
    "change",
    [lambda model: model.view(torch.int32), lambda model: model[None]],
    ids=["dtype", "shape"],
)
def test_the_same_bytes_are_not_the_same_model(
    tiny: dict[str, Any], change: Callable[[Tensor], Tensor]
) -> None:
    """A client with int32 weights would train another model than the others under the same hash."""
    trial = Trial(tiny)
    model = trial.local.initial_model
    content = trial.training()
    content["arrays"] = pack(change(model))
    reason = reason_of(ask(trial, write_step(Step(0, 1, 1, "keys", {}), content)))
    assert "a model of shape" in reason
    scores = SecretScores.of(trial.method, trial.local.problem, CLIENTS)
    task = Task(1, trial.method.training, trial.local.problem.loss, trial.method.client_criteria)
    run = SecureRun.of(trial.experiment, 1, CLIENTS, simulated=True)
    honest = run.terms(1, model, task, scores)
    assert run.terms(1, change(model), task, scores).agreed != honest.agreed


class Deployment:
    """Five nodes with identities and ledgers of their own."""

    def __init__(self, tiny: dict[str, Any], folder: Path, seeds: tuple[int, ...] = (1,)) -> None:
        self.trial = Trial(tiny | {"seeds": list(seeds)})
        self.settings: list[dict[str, Any]] = []
        identities = {}
        for client in range(CLIENTS):
            key = Ed25519PrivateKey.generate()
            file = folder / f"identity-{client}"
            file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            identities[f"ward-{client}"] = key.public_key().public_bytes_raw().hex()
            paths = {"identity": str(file), "ledger": str(folder / f"ledger-{client}.jsonl")}
            self.settings.append(paths | {"data": "here", "smallest-cell": 1})
        table = self.trial.experiment.to_dict()
        table["flower"] |= {"clients": list(identities), "identities": identities}
        table["flower"] |= {"input_shape": [1, 8, 8], "num_classes": 10}
        self.trial.experiment = load_experiment(table)
        self.table = table
        self.trial.app = client_app(table, load=lambda path: _own_data())
        for settings in self.settings:
            approve_once(settings["ledger"], table, cell=1)
        self.contexts = [self.fresh_context(client) for client in range(CLIENTS)]

    def fresh_context(self, client: int, run: int = 1) -> Context:
        return Context(run, 2, dict(self.settings[client]), RecordDict(), {})

    def begin(self, client: int, context: Context, round_num: int = 1, seed: int = 1) -> Message:
        step = Step(client, seed, round_num, "keys", {})
        return ask(
            self.trial, write_step(step, self.trial.training(client, round_num, seed)), context
        )


def test_a_deployed_node_has_an_identity_and_a_ledger(tiny: dict[str, Any], tmp_path: Path) -> None:
    """Another client's number, a round that was summed before: refused, also after a restart."""
    nodes = Deployment(tiny, tmp_path)

    def begin(client: int, round_num: int) -> str:
        return reason_of(nodes.begin(client, nodes.fresh_context(1), round_num))

    assert "not client 2 by the list" in begin(2, 2)
    assert begin(1, 3) == "answered"
    assert "round 3 of seed 1, and a round is summed once" in begin(1, 3)
    del nodes.settings[1]["identity"]
    assert "DataError" in begin(1, 1)


def test_another_version_of_the_experiment_is_another_round(tiny: dict[str, Any]) -> None:
    """Nodes with different approved versions must not add up: one could give all weight to a client."""
    trial = Trial(tiny)
    scores = SecretScores.of(trial.method, trial.local.problem, CLIENTS)
    task = Task(1, trial.method.training, trial.local.problem.loss, trial.method.client_criteria)
    found = set()
    for change in (
        {},
        {"score": "mean"},
        {"criteria": [{"name": "class_balance", "as": "other"}, "dataset_size"]},
        {"secure_aggregation": {"clip": 5.0}},
    ):
        table = trial.experiment.to_dict()
        table["methods"][0] |= change
        run = SecureRun.of(load_experiment(table), 1, CLIENTS, simulated=True)
        found.add(run.terms(1, trial.local.initial_model, task, scores).agreed)
    assert len(found) == 4


def test_another_version_of_the_protocol_ends_with_a_sentence(tiny: dict[str, Any]) -> None:
    """0.2.0 does not name its version."""
    trial = Trial(tiny)
    content = write_step(Step(0, 1, 1, "keys", {}), trial.training())
    del content.config_records["secure"]["protocol"]
    said = (
        "version of secure aggregation is 'clientwise secure 1', here it is 'clientwise secure 2': "
    )
    said += "install the same version"
    assert f"the server's {said}" in reason_of(ask(trial, content))

    def change(step: str, client: int, reply: Message) -> Message:
        if client == 2:
            del reply.content.config_records["secure"]["protocol"]
        return reply

    trial.grid.change = change
    _, record = trial.run(trial.remote)
    (refusal,) = record.refusals
    assert f"the node's {said}" in refusal.reason
    assert len(record.client_ids) == 4


def test_a_round_is_summed_once_over_all_experiments_and_approvals(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    """Two versions that sum a round over different cohorts would reveal one update."""
    nodes = Deployment(tiny, tmp_path)
    assert reason_of(nodes.begin(1, nodes.fresh_context(1), 3)) == "answered"
    other = nodes.table | {"name": "another version", "rounds": 4}
    nodes.trial.app = client_app(other, load=lambda path: _own_data())
    approve_again(nodes.settings[1]["ledger"], other, cell=1)
    context = nodes.fresh_context(1)
    context.run_id = 2
    assert "round 3 of seed 1, and a round is summed once" in reason_of(nodes.begin(1, context, 3))
    assert reason_of(nodes.begin(1, context, 4)) == "answered"


def test_a_round_that_version_0_2_0_summed_does_not_begin_again(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    """Its ledger has the later steps of a round."""
    nodes = Deployment(tiny, tmp_path)
    old = {"event": "step", "approval": "0123456789ab", "run": "7", "experiment": "ba9876543210"}
    old |= {"time": "2026-01-02T03:04:05+0100", "seed": 1, "round": 3}
    ledger = Path(nodes.settings[1]["ledger"])
    approval = ledger.read_text()
    ledger.write_text(json.dumps(old | {"kind": "secure aggregation, shares"}) + "\n" + approval)
    reason = reason_of(nodes.begin(1, nodes.fresh_context(1), 3))
    assert "round 3 of seed 1, and a round is summed once" in reason
    assert reason_of(nodes.begin(1, nodes.fresh_context(1), 2)) == "answered"


def test_another_model_for_a_round_that_began_is_refused(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    """One training a round is what `Allowance` counts, also if a node dies before it trains."""
    nodes = Deployment(tiny, tmp_path)
    content = nodes.trial.training(0, 1)
    content["arrays"] = pack(nodes.trial.local.initial_model + 1)
    other = write_step(Step(0, 1, 1, "keys", {}), content)
    data = nodes.settings[0].pop("identity")
    assert "DataError" in reason_of(nodes.begin(0, nodes.fresh_context(0)))
    nodes.settings[0]["identity"] = data
    assert "trained once already" in reason_of(ask(nodes.trial, other, nodes.fresh_context(0)))


def test_whether_training_fails_is_not_told(tiny: dict[str, Any], tmp_path: Path) -> None:
    """A made-up model that overflows for some samples alone would tell of them by an error."""
    nodes = Deployment(tiny, tmp_path)
    content = nodes.trial.training(0, 1)
    model = torch.full_like(nodes.trial.local.initial_model, 3e38)
    content["arrays"] = pack(model)
    content = write_step(Step(0, 1, 1, "keys", {}), content)
    context = nodes.fresh_context(0)
    assert reason_of(ask(nodes.trial, content, context)) == "answered"
    update = context.state.array_records["secure update 0"]["data"].numpy()
    assert not update.any()


class DoublingGrid(LoopGrid):
    """Sends every request twice at once: both find the state that the node had before."""

    def __init__(self, nodes: Deployment) -> None:
        super().__init__(nodes.trial.app)
        self.nodes = nodes
        self.second: dict[str, set[str]] = {}  # by step, the answers to the second requests

    def _answer(self, message: Message) -> Message:
        step = read_step(message.content)
        context = self.nodes.contexts[step.client]
        before = copy.deepcopy(context)
        reply = self.app(message, context)
        self.second.setdefault(step.name, set()).add(reason_of(self.app(message, before)))
        return reply


def test_of_two_requests_for_a_step_at_once_one_is_answered(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    """Two vectors with different sums of the criteria would reveal an update."""
    nodes = Deployment(tiny, tmp_path)
    trial = nodes.trial
    grid = DoublingGrid(nodes)
    numbers = {client: client + 2 for client in range(CLIENTS)}
    connect = connector(trial.experiment, grid, lambda: numbers, run_id=1, simulated=False)
    _, record = trial.run(connect(trial.local, 1))
    assert len(record.client_ids) == CLIENTS
    assert list(grid.second) == STEPS
    for step, reasons in grid.second.items():
        (reason,) = reasons
        assert f"{step}: this node answered it before in round 1 of seed 1" in reason


def test_a_step_names_the_round_that_began_last_under_the_present_approval(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    """Under the label of another seed, or after a new approval, a step could be claimed again."""
    nodes = Deployment(tiny, tmp_path, seeds=(1, 2))
    context = nodes.fresh_context(0)
    replies = [nodes.begin(0, context, seed=seed) for seed in (1, 2)]
    assert [reason_of(reply) for reply in replies] == ["answered", "answered"]
    of_seed = [write_step(Step(0, seed, 1, "shares", {"roster": {}})) for seed in (1, 2)]
    assert "round 1 did not begin here" in reason_of(ask(nodes.trial, of_seed[0], context))
    assert "only 0 clients sent keys" in reason_of(ask(nodes.trial, of_seed[1], context))
    approve_again(nodes.settings[0]["ledger"], nodes.table, cell=1)
    assert "round 1 did not begin here" in reason_of(ask(nodes.trial, of_seed[1], context))


def _own_data() -> Any:
    from clientwise.flower import OwnData

    inputs = torch.rand(40, 1, 8, 8)
    targets = torch.arange(40) % 10
    return OwnData((inputs, targets), (inputs, targets))


STRANGE = ["", "{", "[]", "null", '{"message": []}', '{"masked": 3}', "{}", '"text"', "[" * 100_000]


AT_STEPS = [("shares", text) for text in STRANGE]
AT_STEPS += [(step, STRANGE[1]) for step in ("keys", "mask vector", "unmask vector")]


@pytest.mark.parametrize(("step", "text"), AT_STEPS)
def test_a_strange_reply_drops_its_client_alone(tiny: dict[str, Any], step: str, text: str) -> None:
    trial = Trial(tiny)

    def change(now: str, client: int, reply: Message) -> Message:
        if (now, client) == (step, 2):
            reply.content["secure"] = ConfigRecord({"protocol": PROTOCOL, "json": text})
        return reply

    trial.grid.change = change
    _, record = trial.run(trial.remote)
    is_void = step == "mask vector"  # a client is missing in the second sum
    assert len(record.client_ids) == (0 if is_void else 5 if step == "unmask vector" else 4)
    assert ("between the two sums" in record.notes[0]) == is_void


@pytest.mark.parametrize("text", STRANGE)
def test_a_strange_request_is_refused(tiny: dict[str, Any], text: str) -> None:
    trial = Trial(tiny)
    content = trial.training()
    content["secure"] = ConfigRecord({"protocol": PROTOCOL, "json": text})
    assert reason_of(ask(trial, content)) != "answered"

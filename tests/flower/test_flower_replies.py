"""Hostile members on Flower's real wire: nothing they send ends a run or takes another one's place."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from grid import client_of
from link import Link, Parcel

from clientwise.core.method import Method
from clientwise.core.round import first_state, run_round
from clientwise.core.types import RoundRecord, ServerState
from clientwise.experiment.build.data import build_data, load_samples
from clientwise.experiment.build.engine import build_engine, build_executor, build_plan
from clientwise.experiment.config.settings import FlowerSettings
from clientwise.experiment.load import load_experiment
from clientwise.hosts.flower.client_app import client_app
from clientwise.hosts.flower.engine import FlowerEngine
from clientwise.hosts.flower.wire import ARRAYS, NUMBERS, pack
from fire_share import EVERY

pytestmark = pytest.mark.usefixtures("clock")
Hostile = Callable[[Message, Parcel], list[Parcel]]  # what a node sends instead of its honest reply
ESCAPE = "\x1b[2J\x1b]0;all is well\x07"


class Federation:
    """Six nodes behind a SuperLink, and the server's engine."""

    def __init__(self, tiny: dict[str, Any], is_deployment: bool = False) -> None:
        config = tiny | {"federation": {"fraction": 1.0}}
        experiment = load_experiment(config)
        samples = load_samples(experiment)
        data, hostile = build_data(experiment, samples, 1)
        executor = build_executor(experiment, samples, torch.device("cpu"))
        local = build_engine(experiment, data, hostile, 1, executor)
        self.app = client_app(config)
        self.link = Link(local.num_clients)
        self.hostile: dict[int, Hostile] = {}
        self.engine = FlowerEngine(
            local,
            self.link.grid,
            lambda: dict(enumerate(self.link.nodes)),
            settings=FlowerSettings(reply_seconds=50.0),
            is_deployment=is_deployment,
        )
        self.engine.idle_work = self.answer  # called once the requests are with the SuperLink
        self.plan = build_plan(experiment, local.num_clients, 1)
        self.methods = {method.name: method for method in experiment.build_methods()}
        self.known: dict[tuple[int, str], RecordDict] | None = None  # honest replies, to be reused

    def answer(self) -> None:
        """Every node takes its request and replies."""
        for client, node in enumerate(self.link.nodes):
            for request in self.link.requests_to(node):
                parcel = Parcel(Message(self.honest(request), reply_to=request))
                change = self.hostile.get(client)
                for one in change(request, parcel) if change else [parcel]:
                    self.link.send(node, one)

    def honest(self, request: Message) -> RecordDict:
        key = (client_of(request), request.metadata.message_type)
        if self.known is None or key not in self.known:
            context = Context(1, 2, {"partition-id": 0}, RecordDict(), {})
            content = self.app(request, context).content
            if self.known is None:
                return content
            self.known[key] = content
        return self.known[key]

    def rounds(self, count: int = 1, method: Method | None = None) -> list[RoundRecord]:
        method = method or Method()
        self.state: ServerState = first_state(self.engine.initial_model, method, self.engine)
        records = []
        plan = replace(self.plan, rounds=count)  # nobody is asked for a round after the last
        for _ in range(count):
            self.state, record = run_round(self.state, method, plan, self.engine)
            records.append(record)
        return records


def refusals(record: RoundRecord) -> dict[int, str]:
    return {one.client_id: one.reason for one in record.refusals}


def only_training(change: Callable[[Message, Parcel], None]) -> Hostile:
    """Replies to training requests are changed; evaluations stay honest."""

    def behave(request: Message, parcel: Parcel) -> list[Parcel]:
        if request.metadata.message_type == "train":
            change(request, parcel)
        return [parcel]

    return behave


def says(make: Callable[[], RecordDict | Error]) -> Hostile:
    def behave(request: Message, parcel: Parcel) -> list[Parcel]:
        if request.metadata.message_type != "train":
            return [parcel]
        return [Parcel(Message(make(), reply_to=request))]

    return behave


def with_body(parcel: Parcel, name: str, body: bytes) -> None:
    """Replace an object's body; its head says the right length, so the SuperLink stores it."""

    def change(content: bytes) -> bytes:
        head = content.partition(b"\x00")[0].rpartition(b" ")[0]
        return head + b" %d\x00" % len(body) + body

    parcel.change(name, change)


@pytest.mark.parametrize("kind", ["MetricRecord", "Message", "RecordDict", "Array"])
def test_garbage_refuses_its_member_and_nobody_else(tiny: dict[str, Any], kind: str) -> None:
    federation = Federation(tiny)

    def garbage(request: Message, parcel: Parcel) -> None:
        with_body(parcel, parcel.named(kind)[0], bytes(range(200, 237)))

    federation.hostile = {2: only_training(garbage)}
    first, second = federation.rounds(2)
    for record in (first, second):
        assert sorted(record.client_ids) == [0, 1, 3, 4, 5]
        assert list(refusals(record)) == [2]
        assert refusals(record)[2].startswith(("answer cannot be read", "answer refused"))
    assert len(federation.link.state.object_store) == 0  # nothing of a round is kept


def test_a_superlink_out_of_reach_is_no_clients_fault(
    tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = Federation(tiny)

    def unreachable(*_: Any) -> None:
        raise ConnectionError("the SuperLink was killed")

    def killed() -> None:
        federation.answer()
        monkeypatch.setattr(federation.link.grid._client, "_call", unreachable)

    federation.engine.idle_work = killed
    with pytest.raises(ConnectionError, match="the SuperLink was killed"):
        federation.rounds()


def test_no_member_replies_for_another_or_to_an_earlier_request(tiny: dict[str, Any]) -> None:
    federation = Federation(tiny)
    victim = 0
    seen: list[Message] = []

    def for_another(request: Message, parcel: Parcel) -> None:
        # Inside, where Flower does not look, the reply names the request of another member
        other = seen[-1]
        assert client_of(other) == victim
        fake = Message(RecordDict({NUMBERS: MetricRecord({})}), reply_to=other)
        stolen = Parcel(fake)
        stolen.stored.metadata.reply_to_message_id = parcel.stored.metadata.reply_to_message_id
        stolen.stored.metadata.src_node_id = parcel.stored.metadata.src_node_id
        parcel.__dict__.update(stolen.__dict__)

    def look(request: Message, parcel: Parcel) -> None:
        seen.append(request)

    federation.hostile = {victim: only_training(look), 3: only_training(for_another)}
    (record,) = federation.rounds()
    assert sorted(record.client_ids) == [0, 1, 2, 4, 5]
    assert list(refusals(record)) == [3]
    assert len({request.metadata.group_id for request in seen}) == len(seen)
    assert all(len(request.metadata.group_id) == 64 for request in seen)  # no id can be guessed


def test_replays_second_replies_and_replies_for_another_run_do_not_count(
    tiny: dict[str, Any],
) -> None:
    usual = Federation(tiny)
    usual.rounds(2)
    federation = Federation(tiny)
    kept: list[Parcel] = []

    def replays(request: Message, parcel: Parcel) -> list[Parcel]:
        kept.append(parcel)
        return [*kept[:-1], parcel]  # all replies so far, again

    def twice(request: Message, parcel: Parcel) -> list[Parcel]:
        zeros = RecordDict({ARRAYS: pack(torch.zeros(650)), NUMBERS: MetricRecord({})})
        return [parcel, Parcel(Message(zeros, reply_to=request)), parcel]

    def to_another_run(request: Message, parcel: Parcel) -> list[Parcel]:
        other = Parcel(Message(federation.honest(request), reply_to=request))
        other.stored.metadata.run_id = federation.link.run_id + 1
        other.run_id = federation.link.run_id + 1
        return [other, parcel]

    federation.hostile = {1: replays, 2: twice, 5: to_another_run}
    records = federation.rounds(2)
    assert all(sorted(record.client_ids) == list(range(6)) for record in records)
    assert torch.equal(federation.state.model, usual.state.model)


def test_instructions_to_the_server_are_not_taken_for_replies(tiny: dict[str, Any]) -> None:
    federation = Federation(tiny)

    def instructs(request: Message, parcel: Parcel) -> list[Parcel]:
        planted = Parcel(Message(RecordDict(), 1, "train", ttl=100.0))
        planted.change(planted.named("Message")[0], lambda content: content)
        with_body(planted, planted.named("RecordDict")[0], b"\xff" * 37)
        return [planted, parcel]

    federation.hostile = {0: instructs}
    (record,) = federation.rounds()
    assert sorted(record.client_ids) == list(range(6))
    assert not record.refusals


def claims_size(size: float) -> Hostile:
    return says(lambda: update_of(torch.zeros(650), {"criterion.dataset_size": size}))


def update_of(model: torch.Tensor, claimed: Mapping[str, float]) -> RecordDict:
    numbers = {"training_loss": 0.1, "seconds": 1.0, "criterion.dataset_size": 100.0, **claimed}
    return RecordDict({ARRAYS: pack(model), NUMBERS: MetricRecord(numbers)})


def test_a_size_is_stated_once_also_over_a_resume(tiny: dict[str, Any]) -> None:
    federation = Federation(tiny, is_deployment=True)
    (record,) = federation.rounds()
    sizes = record.raw[:, record.criteria.index("dataset_size")].tolist()
    assert record.client_ids == tuple(range(6))
    assert not record.refusals
    federation.hostile = {2: claims_size(1e12), 3: claims_size(1.4 * sizes[3])}
    (record,) = federation.rounds()
    assert list(refusals(record)) == [2]
    low, high = sizes[2] / 1.5, sizes[2] * 1.5
    assert refusals(record)[2] == (
        f"answer refused: dataset_size = 1e+12, at first {sizes[2]:g}: "
        f"{low:.6g} to {high:.6g} is allowed"
    )
    resumed = Federation(tiny, is_deployment=True)
    resumed.engine.load_state(federation.engine.state())
    resumed.hostile = federation.hostile
    (record,) = resumed.rounds()
    assert list(refusals(record)) == [2]


def test_a_claim_of_a_refused_update_does_not_count(tiny: dict[str, Any]) -> None:
    """Else what a node claims beside a broken model would shut out its later, honest updates."""
    federation = Federation(tiny, is_deployment=True)
    claimed = {"criterion.dataset_size": 1e6}
    broken = torch.full((650,), torch.nan)
    federation.hostile = {2: says(lambda: update_of(broken, claimed))}
    (record,) = federation.rounds()
    assert refusals(record) == {2: "model has NaN or Inf"}
    federation.hostile = {}
    (record,) = federation.rounds()
    assert not record.refusals


def test_no_escape_sequence_passes(
    tiny: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    federation = Federation(tiny)

    def wrong_records() -> RecordDict:
        numbers = {f"{ESCAPE}loss": 1.0}
        return RecordDict({ESCAPE: MetricRecord(numbers), NUMBERS: MetricRecord(numbers)})

    federation.hostile = {
        1: says(
            lambda: Error(code=2, reason=f"{ESCAPE}broken\ud800".encode("utf8", "ignore").decode())
        ),
        2: says(wrong_records),
        3: says(
            lambda: RecordDict({ARRAYS: ArrayRecord({"data": Array(ESCAPE, (1,), ESCAPE, b"")})})
        ),
    }
    (record,) = federation.rounds()
    assert sorted(refusals(record)) == [1, 2, 3]
    for reason in refusals(record).values():
        assert reason.isprintable()
    assert refusals(record)[1] == "[2J]0;all is wellbroken"


NUMBERS_OF_LIARS: list[Any] = [0, -1, 1e12, 1e308, float("nan"), float("inf"), 2**63, [], [1.0]]


def mutated(chance: random.Random, request: Message, parcel: Parcel) -> list[Parcel]:
    """A reply with one to three random changes."""
    for _ in range(chance.choice([1, 1, 2, 3])):
        change = chance.choice(
            [bytes_changed, bytes_changed, kind_changed, metadata, numbers, error]
        )
        parcel = change(chance, request, parcel)
    return [parcel]


def bytes_changed(chance: random.Random, request: Message, parcel: Parcel) -> Parcel:
    name = chance.choice(list(parcel.objects))
    body = bytearray(parcel.objects[name].partition(b"\x00")[2])
    for _ in range(chance.randint(1, 4)):
        place = chance.randint(0, len(body))
        body[place : place + chance.choice([0, 1, 1, 50])] = chance.randbytes(
            chance.choice([0, 1, 37])
        )
    with_body(parcel, name, bytes(body))
    return parcel


def kind_changed(chance: random.Random, request: Message, parcel: Parcel) -> Parcel:
    kinds = [
        b"ArrayChunk",
        b"Array",
        b"ArrayRecord",
        b"ConfigRecord",
        b"MetricRecord",
        b"RecordDict",
    ]
    name = chance.choice(list(parcel.objects))
    kind = chance.choice([*kinds, b"Message", b"CustomDataClass"])
    parcel.change(name, lambda content: kind + b" " + content.partition(b" ")[2])
    return parcel


def metadata(chance: random.Random, request: Message, parcel: Parcel) -> Parcel:
    values: Mapping[str, list[Any]] = {
        "run_id": [0, 1, 2**64 - 1],
        "src_node_id": [0, 1, 7, 2**64 - 1],
        "dst_node_id": [0, 1, 7],
        "reply_to_message_id": ["", "x", "0" * 64],
        "message_type": ["", "evaluate", ESCAPE, "query.x"],
        "ttl": [0.0, -1.0, 1e300, float("nan"), float("inf")],
        "created_at": [0.0, -1e300, float("nan")],
        "group_id": ["", ESCAPE],
    }
    key = chance.choice(list(values))
    setattr(parcel.stored.metadata, key, chance.choice(values[key]))
    return parcel


def numbers(chance: random.Random, request: Message, parcel: Parcel) -> Parcel:
    names = ["training_loss", "seconds", "criterion.dataset_size", "num_samples", "values", ESCAPE]
    claimed = {name: chance.choice(NUMBERS_OF_LIARS) for name in chance.sample(names, 4)}
    values = numpy.full(chance.choice([(), (0,), (650,), (1, 10, 10), (3, 3)]), chance.random())
    kind = chance.choice(["float16", "float32", "float64", "int8", "bool", "complex64", "U3"])
    arrays = ArrayRecord({chance.choice(["data", "more"]): Array(values.astype(kind))})
    content = RecordDict({ARRAYS: arrays, NUMBERS: MetricRecord(claimed)})
    return Parcel(Message(content, reply_to=request))


def error(chance: random.Random, request: Message, parcel: Parcel) -> Parcel:
    reason = chance.choice(["", ESCAPE, "x" * 10**5, "[red]"])
    return Parcel(Message(Error(code=chance.randint(-9, 99), reason=reason), reply_to=request))


@pytest.mark.parametrize(
    "messages",
    [
        120,
        pytest.param(10_000 // EVERY, marks=[pytest.mark.fire, pytest.mark.timeout(3600)]),
    ],
)
def test_mutated_messages_end_no_run(tiny: dict[str, Any], messages: int) -> None:
    # By the engine's fake clock; a message's real time to live follows from them
    federation = Federation(tiny)
    federation.known = {}
    federation.rounds()
    chance = random.Random(messages)
    sent = 0

    def hostile(request: Message, parcel: Parcel) -> list[Parcel]:
        nonlocal sent
        sent += 1
        return mutated(chance, request, parcel)

    unchanged = dict(federation.known)
    refused: set[str] = set()
    while sent < messages:
        federation.known = dict(unchanged)
        federation.hostile = dict.fromkeys(range(1, 6), hostile)
        (record,) = federation.rounds()
        assert 0 in record.client_ids, (sent, refusals(record), record.notes)
        answered = [*record.client_ids, *refusals(record)]
        assert sorted(answered) == list(range(6))
        assert bool(federation.state.model.isfinite().all())
        assert json.dumps(refusals(record)).isascii()
        assert all(reason.isprintable() and reason for reason in refusals(record).values())
        refused |= {reason.partition(":")[0] for reason in refusals(record).values()}
    assert {"answer cannot be read", "answer refused", "no answer in time"} < refused
    federation.hostile = {}
    (record,) = federation.rounds()
    assert sorted(record.client_ids) == list(range(6))

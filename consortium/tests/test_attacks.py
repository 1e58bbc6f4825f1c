"""Attacks, tried as someone would who only attacks. Each is a row of the table in `docs/attacks.md`.

What happens is asserted, also where an attack succeeds: then the row says so. To write the table anew:

    python tests/test_attacks.py > docs/attacks.md
"""

from __future__ import annotations

import io
import json
import pickle
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import tomli_w
import torch
from clientwise.core.types import Task
from clientwise.errors import ClientwiseError, RunError
from clientwise.hosts.flower.wire import (
    ARRAYS,
    CRITERION,
    NUMBERS,
    REQUEST,
    pack,
    unpack,
    write_request,
)
from clientwise.hosts.protocols import Refused, Request
from clientwise.registry import Part
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

import test_install
from clientwise_consortium.approval import Experiment, in_words, propose
from clientwise_consortium.canonical import ConsortiumError, digest, encode
from clientwise_consortium.claims import claimed
from clientwise_consortium.command import main, show
from clientwise_consortium.fixed_point import Sums, Void
from clientwise_consortium.keys import UntrustedError, public_keys, read_signers
from clientwise_consortium.ledger import LedgerError
from clientwise_consortium.mailbox import from_bytes, to_bytes
from clientwise_consortium.masked import fixed_of
from clientwise_consortium.masks import KEY, Masker
from clientwise_consortium.record import (
    LINES,
    ROWS,
    Record,
    by_line,
    read,
    statement,
    statement_faults,
)
from clientwise_consortium.session import HERE, ServerSide, join, split
from clientwise_consortium.settings import NodeSettings, credential
from clientwise_consortium.verify import rounds, verify
from conftest import NAMES, Keys
from federation import Federation, config
from test_record import SECRET, Written

HEAD = 64 * "0"
MODEL = torch.zeros(5)  # of two classes and four inputs
SUCCEEDED = "SUCCEEDED"  # begins the outcome of an attack that works
WHO = {
    "C": "coordinator",
    "M": "member",
    "B": "mailbox, network",
    "L": "local user",
    "U": "courier of updates",
    "R": "reader, or author, of a record",
    "A": "who tricks the approver, or root's installer",
}


@dataclass(frozen=True)
class Attack:
    """One row of the table."""

    id: str
    what: str
    outcome: str
    try_it: Callable[[World], None]


ATTACKS: list[Attack] = []


def attack(id_: str, what: str, outcome: str) -> Callable[[Any], Any]:
    """Put a function into the table."""

    def add(function: Any) -> Any:
        ATTACKS.append(Attack(id_, what, outcome, function))
        return function

    return add


class World:
    """What an attack needs: keys, folders, federations, and the coordinator's pen."""

    def __init__(self, folder: Path, keys: Keys, screen: Any) -> None:
        self.folder, self.keys, self.screen = folder, keys, screen
        self._federation: Federation | None = None
        self.side = self.new_side()

    @property
    def federation(self) -> Federation:
        if self._federation is None:
            self.begin()
        assert self._federation is not None
        return self._federation

    def begin(self, **changes: Any) -> Federation:
        """Three sites."""
        self._federation = Federation(self.folder, self.keys, **changes)
        return self._federation

    def begin_again(self) -> None:
        """Forget everything but the keys."""
        for path in self.folder.iterdir():
            if path != self.keys.folder:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._federation = None
        self.side = self.new_side()

    def new_side(self, key: Ed25519PrivateKey | None = None) -> ServerSide:
        """A coordinator's sessions, by default with its good key."""
        members = public_keys(self.keys.signers, "clientwise-member")
        return ServerSide(key or self.keys.private("coordinator"), members)

    def greet(self, name: str = "north") -> None:
        self.side.greeted(self.federation.nodes[name].answer(self.side.hello()))

    def ask(
        self, purpose: str, rest: bytes = b"", name: str = "north", **facts: Any
    ) -> tuple[dict[str, Any], bytes]:
        """What a coordinator that writes its own instructions is answered."""
        assert self.federation
        if name not in self.side._theirs:
            self.greet(name)
        content = join({"head": HEAD, **facts}, rest)
        number, message = self.side.instruction(name, purpose, content)
        reply = self.federation.nodes[name].answer(message)
        return split(self.side.reply(name, number, purpose, reply))

    def task(self, round_num: int = 1, **changes: Any) -> Task:
        from clientwise.core.objective.problem import Classification

        (method,) = self.federation.nodes["north"]._experiment.build_methods()
        task = method.task(round_num, method.first_loss(Classification(2)))
        return replace(task, **changes)

    def request(self, task: Task | None = None, model: Any = MODEL, **changes: Any) -> RecordDict:
        asked = {"client": NAMES.index("north"), "seed": 1, "task": task or self.task()}
        return write_request(Request(**(asked | changes)), pack(model))

    def train(self, *arguments: Any, **changes: Any) -> dict[str, Any]:
        """The facts of the answer to a request to train."""
        return self.ask("train", to_bytes(self.request(*arguments, **changes)))[0]

    def released(self) -> int:
        return int(
            self.federation.ledger("north").released().get("train", {"requests": 0})["requests"]
        )

    def run(self) -> Path:
        """A whole run; the record."""
        with suppress(RunError):
            self.federation.serve()
        return self.federation.folder / "run-record"

    def written(self) -> Written:
        return Written(self.folder, self.keys)

    def approval(self, **changes: Any) -> Path:
        """An approval that someone else wrote, and that the approver signed."""
        path = self.federation.folder / "north.toml"
        lines = dict(line.split(" = ", 1) for line in path.read_text().splitlines()[1:])
        for key, value in changes.items():
            lines.pop(key, None)
            if value is not None:
                lines[key] = value
        path.write_text("".join(f"{key} = {value}\n" for key, value in lines.items()))
        self.keys.sign(path, "doctor")
        return path


@pytest.fixture
def world(tmp_path: Path, keys: Keys, capsys: pytest.CaptureFixture[str]) -> World:
    return World(tmp_path, keys, capsys)


def refuses(
    error: type[Exception] | tuple[type[Exception], ...], said: str, act: Callable[[], Any]
) -> None:
    with pytest.raises(error, match=said):
        act()


# The coordinator: it has its good key, and writes any instruction.

TASKS: dict[str, tuple[str, Callable[[World], Task]]] = {
    "C01": ("asks for less noise", lambda w: training(w, sample_noise=0.1)),
    "C02": ("asks for no noise", lambda w: training(w, sample_noise=None, sample_clip=None)),
    "C03": ("asks for a larger clip", lambda w: training(w, sample_clip=1e9)),
    "C04": ("asks for 50 epochs", lambda w: training(w, epochs=50)),
    "C05": ("asks for another learning rate", lambda w: training(w, learning_rate=100.0)),
    "C06": ("asks for a batch of one patient", lambda w: training(w, batch_size=1)),
    "C07": ("asks for a criterion more", lambda w: criteria(w, Part("label_diversity", {}))),
    "C08": (
        "asks for a criterion with options",
        lambda w: criteria(w, Part("dataset_size", {"a": 1})),
    ),
    "C09": ("gives a class no weight", lambda w: w.task(loss=w.task().loss.weighted((1.0, 0.0)))),
    "C10": (
        "gives three weights for two classes",
        lambda w: w.task(loss=w.task().loss.weighted((1.0, 1, 1))),
    ),
    "C11": ("asks for round 1.5, another than 1", lambda w: w.task(round_num=1.5)),  # type: ignore[arg-type]
    "C12": ("asks for a round after the last", lambda w: w.task(4)),
    "C13": ("asks for round 0", lambda w: w.task(round_num=0)),
}


def training(world: World, **changes: Any) -> Task:
    task = world.task()
    return replace(task, training=replace(task.training, **changes))


def criteria(world: World, part: Part) -> Task:
    return replace(world.task(), criteria=(part,))


def _refused_task(make: Callable[[World], Task]) -> Callable[[World], None]:
    def try_it(world: World) -> None:
        assert "refused" in world.train(make(world))
        assert world.released() == 0

    return try_it


for _id, (_what, _make) in TASKS.items():
    attack(_id, _what, "refused, no row is read")(_refused_task(_make))

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "C14": ("asks with a seed that was not approved", {"seed": 2}),
    "C15": ("asks with the seed `true`, another than 1", {"seed": True}),
    "C16": ("asks as another client", {"client": 0}),
    "C17": ("asks as client 1.0", {"client": 1.0}),
    "C18": ("says that it runs another version", {"version": "9.9"}),
    "C19": ("sends a model of 64-bit floats", {"model": MODEL.double()}),
    "C20": ("sends two models at once", {"model": torch.zeros(2, 5)}),
    "C21": ("sends an empty model", {"model": MODEL[:0]}),
    "C22": ("sends whole numbers as a model", {"model": MODEL.int()}),
}


def _refused_request(changes: dict[str, Any]) -> Callable[[World], None]:
    def try_it(world: World) -> None:
        assert "refused" in world.train(**changes)
        assert world.released() == 0

    return try_it


for _id, (_what, _changes) in REQUESTS.items():
    attack(_id, _what, "refused, no row is read")(_refused_request(_changes))


@attack("C23", "says that its frozen weights are others", "refused; the request is counted")
def _(world: World) -> None:
    assert "frozen" in world.train(frozen="ff")["refused"]
    assert world.released() == 1


@attack("C24", "adds a field to the request", "refused, with the error's type alone")
def _(world: World) -> None:
    request = world.request()
    plain = json.loads(str(request.config_records[REQUEST]["json"]))
    request[REQUEST] = ConfigRecord({"json": json.dumps({**plain, "exact": True})})
    facts, _ = world.ask("train", to_bytes(request))
    assert facts["refused"].startswith("TypeError; the node's log")


@attack("C25", "adds a second model", "ignored: the same answer")
def _(world: World) -> None:
    plain, other = world.request(), world.request()
    other["more"] = pack(MODEL + 5)
    answers = [world.ask("train", to_bytes(one))[1] for one in (plain, other)]
    assert answers[0] == answers[1]


@attack("C26", "asks the same twice, to average the noise away", "the same noise, to the bit")
def _(world: World) -> None:
    first = world.ask("train", to_bytes(world.request()))[1]
    world.federation.restart("north")
    world.side = world.new_side()
    assert world.ask("train", to_bytes(world.request()))[1] == first
    assert world.released() == 1


@attack("C27", "asks the same eleven times more, to measure times", "refused after ten repetitions")
def _(world: World) -> None:
    for _ in range(11):
        assert "signed" in world.train()
    assert "repeated 10 times" in world.train()["refused"]


@attack("C28", "asks a round with three models", "the third is refused")
def _(world: World) -> None:
    facts = [world.train(model=MODEL + number) for number in range(3)]
    assert "2 a round" in facts[2]["refused"]


@attack("C29", "writes minus zero, the same model in other bytes", "counted as another request")
def _(world: World) -> None:
    world.train()
    world.train(model=-MODEL)
    assert world.released() == 2


@attack("C30", "evaluates chosen models", "refused: the approval covers 0")
def _(world: World) -> None:
    request = write_request(Request(NAMES.index("north"), 1, None, round_num=1), pack(MODEL[None]))
    assert "covers 0" in world.ask("evaluate", to_bytes(request))[0]["refused"]


@attack("C31", "sends a pickle as a model", "refused; its code does not run")
def _(world: World) -> None:
    facts, _ = world.ask("train", to_bytes(with_pickle(world, world.request())))
    assert "refused" in facts
    assert not (world.folder / "PWNED").exists()


class Evil:
    """What runs if someone unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


def with_pickle(world: World, content: RecordDict) -> RecordDict:
    file = io.BytesIO()
    numpy.save(file, numpy.array([Evil(world.folder / "PWNED")], dtype=object), allow_pickle=True)
    for stype in ("numpy.ndarray",):
        data = Array(dtype="object", shape=(1,), stype=stype, data=file.getvalue())
        content[ARRAYS] = ArrayRecord({"data": data})
    assert pickle.dumps(1)
    return content


@attack("C32", "asks a plain site for masked sums", "refused")
def _(world: World) -> None:
    for purpose in ("key", "criteria", "update"):
        assert "not approved" in world.ask(purpose, seed=1, round=1)[0]["refused"]


@attack(
    "C33",
    "invents a purpose, or leaves it out",
    "not answered (a missing one ended the task: mended)",
)
def _(world: World) -> None:
    world.greet()
    for purpose, hidden in (("shell", False), ("None", True)):
        _, message = world.side.instruction("north", purpose, join({"head": HEAD}))
        header, envelope = split(message)
        if hidden:
            del header["purpose"]
        answer, _ = split(world.federation.nodes["north"].answer(join(header, envelope)))
        assert answer == {"kind": "unknown"}


@attack("C34", "fills the ledger with heads of a megabyte", "refused (it was kept: mended)")
def _(world: World) -> None:
    for head in (100_000 * "a", "\ud800", "../x", 3.5, None):
        assert "head" in world.ask("train", head=head)[0]["refused"]
    assert (world.folder / "north" / "ledger.db").stat().st_size < 100_000


@attack("C35", "repeats an instruction with the same number", "not answered, noted as strange")
def _(world: World) -> None:
    world.greet()
    content = join({"head": HEAD}, to_bytes(world.request()))
    _, message = world.side.instruction("north", "train", content)
    node = world.federation.nodes["north"]
    node.answer(message)
    assert split(node.answer(message))[0] == {"kind": "unknown"}
    assert "strange" in world.federation.events("north")


@attack("C36", "goes on under an approval that another one followed", "refused")
def _(world: World) -> None:
    world.greet()
    old = world.federation.nodes["north"]
    world.federation.approve("north")
    world.federation.restart("north")
    world.federation.nodes["north"] = old
    assert "has ended" in world.train()["refused"]


def start(world: World, **changes: Any) -> dict[str, bytes]:
    """A masked round that has begun at all sites; the roster."""
    world.begin(masked=True, **changes)
    return {name: world.ask("key", name=name, seed=1, round=1)[1] for name in NAMES}


def masked_request(world: World, round_num: int = 1, model: Any = MODEL) -> bytes:
    return to_bytes(world.request(world.task(round_num), model=model))


def in_hex(roster: dict[str, bytes]) -> dict[str, str]:
    return {name: key.hex() for name, key in roster.items()}


def criteria_step(world: World, roster: dict[str, bytes], model: Any = MODEL) -> list[Any]:
    rest = masked_request(world, model=model)
    return [world.ask("criteria", rest, name, roster=in_hex(roster)) for name in NAMES]


@attack("C37", "begins a masked round twice", "refused, also under another approval")
def _(world: World) -> None:
    start(world)
    assert "summed before" in world.ask("key", seed=1, round=1)[0]["refused"]
    world.federation.approve("north")
    world.federation.restart("north")
    world.greet()
    assert "summed before" in world.ask("key", seed=1, round=1)[0]["refused"]


@attack("C38", "uses up masked rounds that were not approved", "refused")
def _(world: World) -> None:
    world.begin(masked=True)
    for seed, number in ((1, 0), (1, 4), (1, 1.0), (2, 1), (True, 1), ("1", 1)):
        assert "refused" in world.ask("key", seed=seed, round=number)[0]
    assert "summed" not in world.federation.events("north")


@attack("C39", "asks a masked site for a plain update", "refused")
def _(world: World) -> None:
    start(world)
    for purpose in ("train", "evaluate"):
        assert "masked sums alone" in world.ask(purpose, masked_request(world))[0]["refused"]


def _bad_roster(
    change: Callable[[World, dict[str, bytes]], dict[str, bytes]],
) -> Callable[[World], None]:
    def try_it(world: World) -> None:
        roster = start(world)
        changed = in_hex(change(world, roster))
        facts, content = world.ask("criteria", masked_request(world), roster=changed)
        assert "refused" in facts
        assert not content

    return try_it


def own_key(world: World, roster: dict[str, bytes]) -> dict[str, bytes]:
    members = public_keys(world.keys.signers, "clientwise-member")
    terms = {"experiment": world.federation.read.digest, "seed": 1, "round": 1}
    forged = Masker("south", world.keys.private("coordinator"), members, terms)
    return {**roster, "south": forged.key()}


def of_round_2(world: World, roster: dict[str, bytes]) -> dict[str, bytes]:
    return {**roster, "south": world.ask("key", name="south", seed=1, round=2)[1]}


attack("C40", "leaves a member out of the roster", "refused")(
    _bad_roster(lambda _, roster: {n: k for n, k in roster.items() if n != "south"})
)
attack("C41", "puts its own key into the roster", "refused: not signed")(_bad_roster(own_key))
attack("C42", "puts a key of another round into the roster", "refused: not signed for it")(
    _bad_roster(of_round_2)
)
attack("C43", "puts one key for two members into the roster", "refused")(
    _bad_roster(lambda _, roster: {**roster, "south": roster["east"]})
)
attack("C44", "puts a key of zeros into the roster", "refused")(
    _bad_roster(lambda _, roster: {**roster, "south": bytes(KEY) + roster["south"][KEY:]})
)


@attack("C45", "asks for the update before the criteria", "refused; the round is over")
def _(world: World) -> None:
    roster = in_hex(start(world))
    assert "come first" in world.ask("update", roster=roster, sums=[150.0])[0]["refused"]
    assert "no round" in world.ask("criteria", masked_request(world), roster=roster)[0]["refused"]


@attack("C46", "begins a round and sends another round's request", "refused")
def _(world: World) -> None:
    roster = in_hex(start(world))
    facts, _ = world.ask("criteria", masked_request(world, 2), roster=roster)
    assert "not of the round" in facts["refused"]


@attack("C47", "asks for the update twice, with two sums", "the second is refused")
def _(world: World) -> None:
    roster = start(world)
    criteria_step(world, roster)
    assert "refused" not in world.ask("update", roster=in_hex(roster), sums=[150.0])[0]
    assert "no round" in world.ask("update", roster=in_hex(roster), sums=[300.0])[0]["refused"]


@attack(
    "C48", "asks for the criteria twice, to see two masks of one value", "the second is refused"
)
def _(world: World) -> None:
    roster = start(world)
    criteria_step(world, roster)
    facts, _ = world.ask("criteria", masked_request(world), roster=in_hex(roster))
    assert "masked it before" in facts["refused"]


def update_sum(
    world: World, roster: dict[str, bytes], sums: dict[str, list[float]]
) -> torch.Tensor:
    parts = [world.ask("update", name=n, roster=in_hex(roster), sums=sums[n]) for n in NAMES]
    assert not any("refused" in facts for facts, _ in parts)
    return sum((fixed_of(content) for _, content in parts), torch.zeros(6, dtype=torch.int64))


@attack("C49", "tells one member other sums", "the sum is noise, the round void")
def _(world: World) -> None:
    roster = start(world)
    criteria_step(world, roster)
    sums = {name: [150.0] for name in NAMES} | {"north": [300.0]}
    total = update_sum(world, roster, sums)
    scoring = world.federation.nodes["north"]._scoring()
    refuses(Void, "", lambda: scoring.sums.read_update(total))


@attack("C50", "gives the others a model without updates", "the sum is noise, the round void")
def _(world: World) -> None:
    roster = start(world)
    for name in NAMES:
        model = MODEL if name == "north" else torch.full_like(MODEL, torch.nan)
        world.ask("criteria", masked_request(world, model=model), name, roster=in_hex(roster))
    total = update_sum(world, roster, {name: [150.0] for name in NAMES})
    scoring = world.federation.nodes["north"]._scoring()
    refuses(Void, "", lambda: scoring.sums.read_update(total))


@attack(
    "C51",
    "tells all members sums so small that large scores are cut: such rounds separate the members",
    "refused by the members (it worked without noise: mended)",
)
def _(world: World) -> None:
    roster = start(world)
    criteria_step(world, roster)
    found = [world.ask("update", name=n, roster=in_hex(roster), sums=[45.0])[0] for n in NAMES]
    # 40, 50 and 60 rows: the first one cannot know
    assert ["refused" in facts for facts in found] == [False, True, True]


@attack("C52", "tells sums that are no numbers, negative, or too few", "refused")
def _(world: World) -> None:
    world.begin(masked=True)
    scoring = world.federation.nodes["north"]._scoring()
    for sums in ([float("nan")], [-1.0], [], [150.0, 150.0]):
        refuses(
            (Refused, ValueError, RuntimeError, IndexError),
            "",
            lambda s=sums: checked_score(scoring, s),
        )  # type: ignore[arg-type, misc]


def checked_score(scoring: Any, sums: list[float]) -> float:
    score = float(scoring.score([50.0], sums))
    if len(sums) != 1:  # torch repeats a number: the sum of the scores is then checked
        raise ValueError(sums)
    return score


@attack(
    "C53",
    "without noise: repeats one model in rounds with other sums of TWO criteria",
    f"{SUCCEEDED}: two different sums of the same updates. Only noise, or one criterion, prevents it",
)
def _(world: World) -> None:
    updates = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])]
    facts = [(40.0, 0.9), (60.0, 0.1)]
    sums = Sums(3, 1.0, 2.0, [1e6, 1.0])
    totals = []
    for said in ((100.0, 1e6), (1e6, 1.0)):  # both larger than every part
        scores = [(a / said[0] + b / said[1]) / 2 for a, b in facts]
        parts = [sums.update(s, u) for s, u in zip(scores, updates, strict=True)]
        totals.append(sums.read_update(sum(parts, torch.zeros(3, dtype=torch.int64)))[1])
    assert float((totals[0] - totals[1]).abs().max()) > 0.1


@attack(
    "C54",
    "without noise: subtracts the sums of two experiments whose rosters differ by one site",
    f"{SUCCEEDED}: it reads that site's update. Approve noise, or one roster",
)
def _(world: World) -> None:
    torch.manual_seed(0)
    updates = {name: torch.randn(4) / 9 for name in (*NAMES, "west")}

    def summed(names: list[str]) -> torch.Tensor:
        sums = Sums(len(names), 1.0, 2.0, [1.0])
        parts = [sums.update(0.5, updates[name]) for name in names]
        score, mean = sums.read_update(sum(parts, torch.zeros(5, dtype=torch.int64)))
        return mean * score

    difference = (summed([*NAMES, "west"]) - summed(NAMES)) / 0.5
    assert torch.allclose(difference, updates["west"].double(), atol=1e-6)


@attack("C55", "asks two members for a sum", "refused: three at least")
def _(world: World) -> None:
    known = public_keys(world.keys.signers, "clientwise-member")
    two = {name: known[name] for name in NAMES[:2]}
    refuses(Refused, "at least 3", lambda: Masker("east", world.keys.private("east"), two, {}))


@attack("C56", "lists a member twice, so that two look like three", "the node does not start")
def _(world: World) -> None:
    clients = ["east", "east", "north"]
    table = config(masked=True) | {"flower": config()["flower"] | {"clients": clients}}
    read_ = Experiment.read(tomli_w.dumps(table).encode())
    from clientwise.experiment.load import load_experiment

    refuses(ClientwiseError, "twice", lambda: load_experiment(read_.for_library()))


@attack("C57", "sends a model of NaN or infinities", "the answer has no finite number")
def _(world: World) -> None:
    facts, content = world.ask("train", to_bytes(world.request(model=MODEL + torch.inf)))
    if content:
        assert not bool(unpack(from_bytes(content).array_records[ARRAYS]).isfinite().any())
    else:
        assert "refused" in facts


# A member: it has its good key, and writes any reply.


def lying(
    world: World, change: Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]
) -> Path:
    """A run in which north's replies to requests to train are changed before they are sealed; the record."""
    node = world.federation.nodes["north"]
    honest = node._obeyed

    def lies(purpose: str, content: bytes) -> bytes:
        facts, rest = split(honest(purpose, content))
        return join(*change(facts, rest))

    node._obeyed = lies  # type: ignore[method-assign]
    return world.run()


def members_of(record: Path) -> list[set[str]]:
    return [set(found) for _, found in rounds(record)]


def is_sound(world: World, record: Path) -> bool:
    federation = world.federation
    trusted = world.keys.private("coordinator").public_key()
    members = public_keys(world.keys.signers, "clientwise-member")
    return not verify(record, federation.experiment, trusted, members, federation.heads())


def signs(world: World, facts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Another claim, with north's good signature."""
    from clientwise_consortium.claims import LABEL
    from clientwise_consortium.envelope import sign

    claim = facts["signed"]["claim"] | changes
    signature = sign(world.keys.private("north"), LABEL, "north", claim).hex()
    return {**facts, "signed": {"claim": claim, "signature": signature}}


LEFT_OUT = "its update is left out; the run and its record are sound"
CLAIMS: dict[str, tuple[str, str, Callable[[World, dict[str, Any]], dict[str, Any]]]] = {
    "M01": (
        "signs its criteria for another seed, so that the honest record has a fault for ever",
        f"{LEFT_OUT} (it worked: mended)",
        lambda w, facts: signs(w, facts, seed=9),
    ),
    "M02": (
        "signs its criteria for a round that is no number, so that `verify` fails",
        f"{LEFT_OUT} (it worked: mended)",
        lambda w, facts: signs(w, facts, round="x"),
    ),
    "M03": (
        "signs a megabyte more, to fill the record",
        f"{LEFT_OUT} (it worked: mended)",
        lambda w, facts: signs(w, facts, more=10_000 * "x"),
    ),
    "M04": (
        "puts a megabyte beside its signature",
        f"{LEFT_OUT} (it worked: mended)",
        lambda w, facts: {**facts, "signed": {**facts["signed"], "more": 10_000 * "x"}},
    ),
    "M05": (
        "signs other criteria than it sends",
        LEFT_OUT,
        lambda w, f: signs(w, f, criteria={"dataset_size": 1.0}),
    ),
    "M06": ("signs criteria that are a list", LEFT_OUT, lambda w, f: signs(w, f, criteria=[])),
    "M07": ("signs for another experiment", LEFT_OUT, lambda w, f: signs(w, f, experiment="ff")),
    "M08": ("signs nothing", LEFT_OUT, lambda w, f: {**f, "signed": None}),
    "M09": ("sends no signature", LEFT_OUT, lambda w, f: {"ledger": f["ledger"]}),
}


def _lying_claim(
    change: Callable[[World, dict[str, Any]], dict[str, Any]],
) -> Callable[[World], None]:
    def try_it(world: World) -> None:
        world.begin(rounds=1)
        record = lying(world, lambda facts, rest: (change(world, facts), rest))
        assert members_of(record) == [{"east", "south"}]
        assert is_sound(world, record)
        assert (record / ROWS).stat().st_size < 20_000

    return try_it


for _id, (_what, _outcome, _claim) in CLAIMS.items():
    attack(_id, _what, _outcome)(_lying_claim(_claim))


@attack("M10", "signs as another member", "no signature of that member: refused")
def _(world: World) -> None:
    from clientwise_consortium.claims import read_claim

    signed = claimed(world.keys.private("north"), "south", "e", 1, 1, {"dataset_size": 1.0})
    known = world.keys.private("south").public_key()
    refuses(UntrustedError, "", lambda: read_claim(signed, "south", known, "e"))


@attack(
    "M11",
    "writes a megabyte, and commands for a terminal, as its reason",
    "300 printable characters are kept (all was: mended)",
)
def _(world: World) -> None:
    world.begin(rounds=1)
    reason = "\x1b[2J\n" + 10_000 * "x"
    record = lying(world, lambda facts, rest: ({"refused": reason}, b""))
    text = (record / ROWS).read_text() + (record / LINES).read_text()
    assert len(text) < 20_000
    assert "\\u001b" not in text


CONTENTS: dict[str, tuple[str, Callable[[World, bytes], bytes]]] = {
    "M12": ("sends bytes that are no message", lambda w, rest: b"\xff" * 100),
    "M13": ("sends nothing", lambda w, rest: b""),
    "M14": (
        "sends a pickle as its model",
        lambda w, rest: to_bytes(with_pickle(w, from_bytes(rest))),
    ),
    "M15": ("sends a model of NaN", lambda w, rest: changed(rest, lambda m: m * torch.nan)),
    "M16": ("sends a model that is too short", lambda w, rest: changed(rest, lambda m: m[:-1])),
    "M17": ("sends a model that is text", lambda w, rest: changed(rest, None)),
}


def changed(rest: bytes, change: Callable[[torch.Tensor], torch.Tensor] | None) -> bytes:
    content = from_bytes(rest)
    if change is None:
        content[ARRAYS] = ArrayRecord({"data": Array(numpy.array(["x"] * 10))})
    else:
        content[ARRAYS] = pack(change(unpack(content.array_records[ARRAYS])))
    return to_bytes(content)


def _lying_content(change: Callable[[World, bytes], bytes]) -> Callable[[World], None]:
    def try_it(world: World) -> None:
        world.begin(rounds=1)
        record = lying(world, lambda facts, rest: (facts, change(world, rest)))
        assert members_of(record) == [{"east", "south"}]
        assert not (world.folder / "PWNED").exists()
        assert is_sound(world, record)

    return try_it


for _id, (_what, _content) in CONTENTS.items():
    attack(_id, _what, LEFT_OUT)(_lying_content(_content))


@attack(
    "M18",
    "sends an update a thousand times too large",
    f"{SUCCEEDED} where the method has no robust rule: it is averaged. The server's samples show the damage",
)
def _(world: World) -> None:
    world.begin(rounds=1)
    record = lying(world, lambda facts, rest: (facts, changed(rest, lambda m: 1000 * m)))
    assert members_of(record) == [set(NAMES)]


@attack(
    "M19",
    "states a million patients",
    f"{SUCCEEDED}: it gets nearly all weight. Its signature is on record",
)
def _(world: World) -> None:
    world.begin(rounds=1)

    def lie(facts: dict[str, Any], rest: bytes) -> tuple[dict[str, Any], bytes]:
        content = from_bytes(rest)
        content[NUMBERS]["criterion.dataset_size"] = 1e6  # type: ignore[index]
        return signs(world, facts, criteria={"dataset_size": 1e6}), to_bytes(content)

    record = lying(world, lie)
    ((_, found),) = rounds(record)
    assert found["north"]["weight"] > 0.99
    assert found["north"]["signed"]["claim"]["criteria"] == {"dataset_size": 1e6}


@attack("M20", "sets its ledger back", "a remark in the record")
def _(world: World) -> None:
    world.begin(rounds=2)
    states = iter(([50, 64 * "a"], [7, 64 * "b"]))
    record = lying(world, lambda facts, rest: ({**facts, "ledger": next(states)}, rest))
    assert "went back: it has no longer the 50 events" in (record / LINES).read_text()


@attack("M21", "states a ledger length that is no number, or a name of a megabyte", "ignored")
def _(world: World) -> None:
    world.begin(rounds=5)
    name = 64 * "a"
    states = iter(("many", [1.5, name], [10**400, name], [True, name], [10**6, 10**6 * "a"]))
    record = lying(world, lambda facts, rest: ({**facts, "ledger": next(states)}, rest))
    assert members_of(record) == 5 * [set(NAMES)]
    text = (record / LINES).read_text()
    assert "went back" not in text
    assert len(text) < 20_000


PARTS: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "M22": (
        "adds random numbers to a masked sum",
        lambda v: torch.randint(-(2**62), 2**62, v.shape),
    ),
    "M23": ("adds its part a hundredfold", lambda v: 100 * v),
    "M24": ("adds a negative score", lambda v: v * torch.tensor([-9] + [1] * (len(v) - 1))),
    "M25": ("adds a part that is too short", lambda v: v[:-1]),
    "M26": ("adds nothing at all", lambda v: v[:0]),
}


def _lying_part(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[World], None]:
    class Forged(Sums):
        def update(self, score: float, update: torch.Tensor) -> torch.Tensor:
            return change(super().update(score, update))

    def try_it(world: World) -> None:
        node = world.begin(masked=True, rounds=1).nodes["north"]
        honest = node._scoring()
        hostile = replace(honest, sums=Forged(**vars(honest.sums)))
        node._scoring = lambda: hostile  # type: ignore[method-assign]
        record = world.run()
        assert "void" in (record / LINES).read_text()

    return try_it


for _id, (_what, _part) in PARTS.items():
    attack(_id, _what, "the round is void, the model stays")(_lying_part(_part))


@attack(
    "M27",
    "takes the whole range of a masked sum, which is the others' too",
    f"{SUCCEEDED}: in a sum of n, one member can have up to n times its own range",
)
def _(world: World) -> None:
    sums = Sums(members=3, most_score=1.0, clip=2.0, highs=[100.0])
    honest = 2 * sums.update(1 / 3, torch.tensor([0.1, 0.0]))
    greedy = 2 * sums.update(1.0, torch.tensor([0.0, 2.0]))
    score, mean = sums.read_update(honest + greedy)
    assert score == pytest.approx(2 + 2 / 3)
    assert float(mean[1]) == pytest.approx(1.5)


@attack(
    "M28", "gives a key of another size for a masked sum", "all others refuse: the round is void"
)
def _(world: World) -> None:
    node = world.begin(masked=True, rounds=1).nodes["north"]
    node._key = lambda asked, rest: b"short"  # type: ignore[method-assign]
    assert "void" in (world.run() / LINES).read_text()


@attack("M29", "answers no message", "plain: the run goes on; masked: every round is void")
def _(world: World) -> None:
    federation = world.begin(rounds=1)
    federation.mailbox.sites["north"] = lambda message: join({"kind": "unknown"})
    assert members_of(world.run()) == [{"east", "south"}]


@attack("M30", "gives a session key that everybody knows (a point of low order)", "it is left out")
def _(world: World) -> None:
    federation = world.begin(rounds=1)
    key = world.keys.private("north")

    def here(header: dict[str, Any]) -> bytes:
        from clientwise_consortium.envelope import sign

        none = bytes(32).hex()
        parts = (header["session"], "north", header["opening"], none)
        return join(
            {"member": "north", "opening": none, "signature": sign(key, HERE, *parts).hex()}
        )

    federation.nodes["north"]._session.here = here  # type: ignore[method-assign]
    assert members_of(world.run()) == [{"east", "south"}]


# The mailbox: it reads, drops, changes and repeats what it carries, and has no key.


def a_message(world: World) -> tuple[int, bytes]:
    world.federation  # noqa: B018
    world.greet()
    return world.side.instruction("north", "train", join({"head": HEAD}, to_bytes(world.request())))


def _changed_message(change: Callable[[World, bytes], bytes]) -> Callable[[World], None]:
    def try_it(world: World) -> None:
        _, message = a_message(world)
        answer, _ = split(world.federation.nodes["north"].answer(change(world, message)))
        assert answer == {"kind": "unknown"}
        assert world.released() == 0

    return try_it


def with_header(message: bytes, **changes: Any) -> bytes:
    header, rest = split(message)
    return join({**header, **changes}, rest)


MESSAGES: dict[str, tuple[str, Callable[[World, bytes], bytes]]] = {
    "B01": ("changes the last bit of an instruction", lambda w, m: m[:-1] + bytes([m[-1] ^ 1])),
    "B02": ("cuts an instruction", lambda w, m: m[:-20]),
    "B03": ("changes its purpose", lambda w, m: with_header(m, purpose="evaluate")),
    "B04": ("changes its number", lambda w, m: with_header(m, number=7)),
    "B05": ("writes its number as `true`", lambda w, m: with_header(m, number=True)),
    "B06": ("changes its session", lambda w, m: with_header(m, session="x")),
    "B07": (
        "gives a number of 5,000 digits",
        lambda w, m: b'{"kind":"sealed","number":' + b"9" * 5000 + b"}\n",
    ),
    "B08": ("sends nothing", lambda w, m: b""),
    "B09": ("sends 100,000 brackets", lambda w, m: 100_000 * b"["),
    "B10": ("sends text of another encoding", lambda w, m: b"\xff\xfe\n"),
    "B11": ("sends a greeting without a signature", lambda w, m: b'{"kind":"hello"}\n'),
    "B12": (
        "sends a greeting of its own",
        lambda w, m: w.new_side(Ed25519PrivateKey.generate()).hello(),
    ),
    "B13": ("gives one site's message to another", lambda w, m: for_south(w)),
}


def for_south(world: World) -> bytes:
    world.greet("south")
    return world.side.instruction("south", "train", join({"head": HEAD}))[1]


for _id, (_what, _change) in MESSAGES.items():
    attack(_id, _what, "not answered")(_changed_message(_change))


@attack(
    "B14", "repeats a recorded instruction after the site's restart", "not answered: keys ended"
)
def _(world: World) -> None:
    _, message = a_message(world)
    world.federation.nodes["north"].answer(message)
    world.federation.restart("north")
    answer, _ = split(world.federation.nodes["north"].answer(message))
    assert answer == {"kind": "unknown"}
    assert world.released() == 1


@attack(
    "B15", "repeats the greeting of an ended session", "answered, but nobody can use the session"
)
def _(world: World) -> None:
    _, _message = a_message(world)
    old, world.side = world.side, world.new_side()
    world.federation.nodes["north"].answer(old.hello())
    world.greet()
    assert "signed" in world.train()


def _changed_reply(change: Callable[[World, bytes], bytes]) -> Callable[[World], None]:
    def try_it(world: World) -> None:
        number, message = a_message(world)
        reply = world.federation.nodes["north"].answer(message)
        refuses(
            UntrustedError,
            "",
            lambda: world.side.reply("north", number, "train", change(world, reply)),
        )

    return try_it


attack("B16", "changes the last bit of a reply", "refused")(
    _changed_reply(lambda w, reply: reply[:-1] + bytes([reply[-1] ^ 1]))
)
attack("B17", "gives another member's reply as north's", "refused")(
    _changed_reply(lambda w, reply: reply_of_south(w))
)
attack("B18", "writes a reply of its own", "refused")(
    _changed_reply(lambda w, reply: join({"kind": "sealed"}, bytes(200)))
)


def reply_of_south(world: World) -> bytes:
    world.greet("south")
    _, message = world.side.instruction("south", "train", join({"head": HEAD}))
    return world.federation.nodes["south"].answer(message)


@attack("B19", "gives the reply to an earlier message", "refused")
def _(world: World) -> None:
    _number, message = a_message(world)
    reply = world.federation.nodes["north"].answer(message)
    later, _ = world.side.instruction("north", "train", join({"head": HEAD}))
    refuses(UntrustedError, "", lambda: world.side.reply("north", later, "train", reply))


@attack("B20", "answers the greeting in a member's name", "refused: not its signature")
def _(world: World) -> None:
    side = world.new_side()
    for answer in (
        b"",
        b'{"member":[]}\n',
        b'{"member":"north","opening":"00","signature":"00"}\n',
    ):
        refuses(UntrustedError, "", lambda a=answer: side.greeted(a))  # type: ignore[misc]


@attack("B21", "reads everything that it carries", "no name, number or word of it is readable")
def _(world: World) -> None:
    world.begin(rounds=1)
    world.run()
    carried = b"".join(world.federation.mailbox.carried)
    for word in (b"dataset_size", b"numpy", b"request", b"ledger", b"refused", b"Sizes"):
        assert word not in carried


@attack(
    "B22",
    "sends rubbish without end, to fill the ledger",
    "1,000 are noted in one process, no more",
)
def _(world: World) -> None:
    node = world.federation.nodes["north"]
    node._strange["strange"] = 995
    for _ in range(20):
        node.answer(b"rubbish")
    assert world.federation.events("north").count("strange") == 5


@attack(
    "B23",
    "gives a member's good greeting from another node of the VPN",
    f"{SUCCEEDED}: letters go there and are lost; nothing is read. The site's round is missed",
)
def _(world: World) -> None:
    federation = world.begin(rounds=1)
    mailbox = federation.mailbox
    stolen = {}

    def steal(name: str, message: bytes, site: Callable[[bytes], bytes]) -> bytes | None:
        if b'"kind":"hello"' not in message:
            return None if name == "thief" else site(message)
        if name == "thief":
            return stolen.get("north")
        stolen[name] = site(message)
        return None if name == "north" else stolen[name]

    mailbox.sites["thief"] = lambda message: b""
    mailbox.change = steal
    side = world.side
    side.greeted(federation.nodes["north"].answer(side.hello()))
    _, message = side.instruction("north", "train", b"secret words")
    assert b"secret" not in message


# A local user of a site: no root, none of the services' accounts.


@attack(
    "L01",
    "reads another service's key",
    "each unit is given its own credentials alone, in a private folder",
)
def _(world: World) -> None:
    from test_units import SECRETS, UNITS, settings

    for unit in UNITS:
        loaded = {v.split(":")[0] for k, v in settings(unit) if k == "LoadCredential"}
        assert loaded == SECRETS[unit.stem]
    assert "identity" not in SECRETS["flower-supernode"] | SECRETS["flower-superlink"]


@attack("L02", "starts a service itself", "it has no credentials and ends")
def _(world: World) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CREDENTIALS_DIRECTORY", raising=False)
        refuses(FileNotFoundError, "systemd", lambda: credential("identity"))


@attack("L03", "starts a node with a key of its own", "not the key in the signers file: it ends")
def _(world: World) -> None:
    from clientwise_consortium.node import Node

    settings = world.federation.settings("north")
    refuses(UntrustedError, "not the one", lambda: Node(settings, world.keys.private("south")))


@attack("L04", "deletes the ledger (with root's help)", "the node does not start")
def _(world: World) -> None:
    (world.federation.folder / "north" / "ledger.db").unlink()
    refuses(LedgerError, "missing", lambda: world.federation.restart("north"))


@attack(
    "L05",
    "empties the ledger, as a full disk might",
    "the node does not start (it began anew, without a word: mended)",
)
def _(world: World) -> None:
    path = world.federation.folder / "north" / "ledger.db"
    for content in (b"", b"rubbish" * 1000):
        path.write_bytes(content)
        refuses(LedgerError, "damaged", lambda: world.federation.restart("north"))
        assert path.read_bytes() == content


@attack(
    "L06",
    "changes, deletes or replaces a line of the ledger by our own code",
    "the triggers refuse",
)
def _(world: World) -> None:
    ledger = world.federation.ledger("north")
    for query in (
        "UPDATE events SET approval = 'x'",
        "DELETE FROM events",
        "REPLACE INTO events SELECT * FROM events LIMIT 1",
        "DELETE FROM secret",
    ):
        refuses(sqlite3.IntegrityError, "only grows", lambda q=query: ledger._read(q))  # type: ignore[misc]


@attack(
    "L07",
    "puts back a ledger that is one answer shorter (with root's help)",
    "the node does not start; where its copy of the state is removed: a remark in the record (it grew again, and "
    "nobody noticed: mended)",
)
def _(world: World) -> None:
    federation = world.begin(rounds=2)
    path = federation.folder / "north" / "ledger.db"
    before = path.read_bytes()
    count = 0

    def restore(name: str, message: bytes, site: Callable[[bytes], bytes]) -> bytes:
        nonlocal count
        if name == "north" and b'"kind":"sealed"' in message:
            count += 1
            if count == 2:
                assert federation.ledger("north").length > 2
                path.write_bytes(before)
                with pytest.raises(UntrustedError, match="was set back"):
                    federation.restart("north")
                (path.parent / "ledger.last").unlink()
                federation.restart("north")
                return federation.nodes["north"].answer(message)
        return site(message)

    federation.mailbox.change = restore
    assert "the ledger of north went back" in (world.run() / LINES).read_text()
    assert federation.events("north").count("went back") == 1


@attack(
    "L08", "reads `summary.json`", f"{SUCCEEDED}: counts, μ and heads are meant to be read; no rows"
)
def _(world: World) -> None:
    world.begin(rounds=1)
    world.run()
    found = json.loads((world.folder / "north" / "summary.json").read_text())
    assert set(found) == {"released", "heads", "rounds"}


@attack("L09", "puts an unsigned approval there", "the node does not start")
def _(world: World) -> None:
    (world.federation.folder / "north.toml.sig").unlink()
    refuses(UntrustedError, "not signed", lambda: world.federation.restart("north"))


@attack("L10", "changes a number of the signed approval", "the node does not start")
def _(world: World) -> None:
    path = world.federation.folder / "north.toml"
    path.write_text(path.read_text().replace("trainings = 6", "trainings = 60"))
    refuses(UntrustedError, "not signed", lambda: world.federation.restart("north"))


@attack("L11", "puts another experiment there", "the node does not start")
def _(world: World) -> None:
    path = world.federation.experiment
    path.write_text(path.read_text().replace("4.0", "0.4"))
    refuses(UntrustedError, "not the experiment", lambda: world.federation.restart("north"))


@attack("L12", "changes the rows in a run", "refused: not those that the approval began with")
def _(world: World) -> None:
    from federation import write_rows

    assert "signed" in world.train()
    write_rows(world.folder / "north.npz", 5)
    assert "approve anew" in world.train(world.task(2))["refused"]


@attack("L13", "puts a pickle in the place of the rows", "refused; its code does not run")
def _(world: World) -> None:
    evil = numpy.array([Evil(world.folder / "PWNED")], dtype=object)
    world.federation  # noqa: B018
    numpy.savez(world.folder / "north.npz", train_inputs=evil, allow_pickle=True)
    assert "refused" in world.train()
    assert not (world.folder / "PWNED").exists()


@attack("L14", "adds a key to `node.toml`, or a limit that is no number", "the node does not start")
def _(world: World) -> None:
    about = {"site": "north", "approver": "doctor", "data": "x"}
    for changes in ({"plugins": ["evil"]}, {"most_mu": float("nan")}, {"most_mu": float("inf")}):
        refuses(ValueError, "", lambda c=changes: NodeSettings(**about, **c))  # type: ignore[misc]


@attack("L15", "asks the runtime for tasks, without the services' secret", "401 (`test_loopback`)")
def _(world: World) -> None:
    from test_units import UNITS, settings

    flower = [unit for unit in UNITS if unit.stem.startswith("flower-")]
    assert all(
        "--superexec-auth-secret-file" in dict(settings(unit))["ExecStart"] for unit in flower
    )


@attack(
    "L16",
    "types `flwr run` or `flwr stop` on the coordinator's machine",
    f"{SUCCEEDED}: on loopback, Flower asks for no login. The task that starts is the approved run",
)
def _(world: World) -> None:
    from test_units import UNITS, settings

    (link,) = [unit for unit in UNITS if unit.stem == "flower-superlink"]
    assert "--insecure" in dict(settings(link))["ExecStart"]
    assert "--host 127.0.0.1" in dict(settings(link))["ExecStart"]


# A courier of updates: it changes the delivery before, or while, it is installed.


def _delivery(change: Callable[[test_install.Delivery], None]) -> Callable[[World], None]:
    def try_it(world: World) -> None:
        delivery = test_install.Delivery(world.folder, world.keys)
        change(delivery)
        assert delivery.install() != 0
        assert not delivery.marker.exists()

    return try_it


def no_signature(delivery: test_install.Delivery) -> None:
    delivery.lock.with_name("requirements.lock.sig").unlink()


def no_wheel(delivery: test_install.Delivery) -> None:
    for path in delivery.wheels.iterdir():
        path.unlink()


def line_more(delivery: test_install.Delivery) -> None:
    delivery.lock.write_text(delivery.lock.read_text() + "evil==1.0 --hash=sha256:00\n")


DELIVERIES: dict[str, tuple[str, Callable[[test_install.Delivery], None]]] = {
    "U01": ("changes a wheel", test_install.changed_wheel),
    "U02": ("puts source code that runs in the place of a wheel", test_install.sdist_instead),
    "U03": ("and its hash into the list", test_install.sdist_with_its_hash),
    "U04": ("writes another list", test_install.another_list),
    "U05": ("signs it as a member", test_install.signed_by_a_member),
    "U06": ("has it signed for another purpose", test_install.signed_for_another_purpose),
    "U07": ("takes the signature away", no_signature),
    "U08": ("takes a wheel away, so that pip might look elsewhere", no_wheel),
    "U09": ("adds a line to the signed list", line_more),
}
for _id, (_what, _deliver) in DELIVERIES.items():
    attack(_id, _what, "not installed; nothing of it runs")(_delivery(_deliver))


@attack("U10", "adds a Python, modules, a `.pth` and settings beside the list", "ignored")
def _(world: World) -> None:
    delivery = test_install.Delivery(world.folder, world.keys)
    test_install.check_that_other_files_are_not_run(delivery)


@attack(
    "U11",
    "exchanges list and wheel after the signature was checked (a share that it can write)",
    "the guide's commands work on a copy (they did not, and its code was installed: mended)",
)
def _(world: World) -> None:
    delivery = test_install.Delivery(world.folder, world.keys)
    script = test_install.commands(world.keys.signers, delivery.opt)
    check = next(line for line in script.splitlines() if line.startswith("ssh-keygen"))
    other = delivery.folder.with_name("other")
    shutil.copytree(delivery.folder, other)
    delivery.lock, delivery.wheels, there = (
        other / "requirements.lock",
        other / "wheels",
        delivery.folder,
    )
    test_install.another_list(delivery)
    swap = f"{check}\ncp -r {other}/. {there}/"
    import subprocess

    text = script.replace(check, swap)
    done = subprocess.run(["sh"], input=text, cwd=there, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert delivery.value() == "1"
    assert not delivery.marker.exists()


@attack(
    "U12",
    "delivers an older signed release",
    "it is installed, but the node does not start: not approved",
)
def _(world: World) -> None:
    world.federation.lock.write_text("clientwise==0.2.0 --hash=sha256:00\n")
    refuses(UntrustedError, "other code", lambda: world.federation.restart("north"))


# Who reads a record, or wrote it.


def resigned(written: Written, change: Callable[[dict[str, Any]], None]) -> list[str]:
    """The faults of a record whose author changed rows before it signed them."""
    from test_record import resigned as again

    return again(written, change)


def _forged(change: Callable[[dict[str, Any]], None]) -> Callable[[World], None]:
    def in_round_2(one: dict[str, Any]) -> None:
        if one["body"].get("round") == 2:
            change(one)

    def try_it(world: World) -> None:
        assert resigned(world.written(), in_round_2)

    return try_it


FORGED: dict[str, tuple[str, Callable[[dict[str, Any]], None]]] = {
    "R01": (
        "gives a friend a larger weight, and signs",
        lambda one: one["rows"]["north"].update(weight=0.9),
    ),
    "R02": (
        "invents a member's criteria",
        lambda one: one["rows"]["north"]["criteria"].update(dataset_size=99.0),
    ),
    "R03": (
        "leaves a member's signature out",
        lambda one: one["rows"]["north"].update(signed=None),
    ),
    "R04": (
        "uses a signature of another seed",
        lambda one: one["rows"]["north"]["signed"]["claim"].update(seed=2),
    ),
    "R05": ("names a method that nobody approved", lambda one: one["body"].update(method="Other")),
    "R06": ("signs a line of another form", lambda one: one["body"].update(criteria=3)),
}
for _id, (_what, _forge) in FORGED.items():
    attack(_id, _what, "a fault")(_forged(_forge))


@attack("R07", "rewrites the whole record afterwards", "a fault: members kept its heads")
def _(world: World) -> None:
    written = world.written()
    heads = written.heads[:]
    shutil.rmtree(written.folder)
    written.folder.mkdir()
    written.write({"east": 40.0, "north": 50.0, "south": 600.0})
    assert "2 heads" in written.verify(heads)[0]


@attack(
    "R08",
    "rewrites it, and no member gives its heads",
    f"{SUCCEEDED}: without heads, nobody can tell; `verify` says that none were compared",
)
def _(world: World) -> None:
    written = world.written()
    shutil.rmtree(written.folder)
    written.folder.mkdir()
    written.write({"east": 40.0, "north": 50.0, "south": 600.0})
    assert written.verify([]) == []


@attack("R09", "changes a byte of a line, a row or a salt", "a fault, before anything is imported")
def _(world: World) -> None:
    written = world.written()
    for name in (LINES, ROWS):
        path = written.folder / name
        before = path.read_bytes()
        for position in range(5, len(before), len(before) // 40):
            path.write_bytes(
                before[:position] + bytes([before[position] ^ 1]) + before[position + 1 :]
            )
            with suppress(ConsortiumError):
                assert written.verify()
        path.write_bytes(before)
    assert written.verify() == []


@attack("R10", "signs the record with another key", "a fault")
def _(world: World) -> None:
    written = world.written()
    written.coordinator = world.keys.private("east")
    assert "not signed" in written.verify()[0]


@attack(
    "R11",
    "guesses another member's row and tries to confirm it",
    "not without its salt of 256 bits",
)
def _(world: World) -> None:
    from clientwise_consortium.record import leaf

    written = world.written()
    own = list(statement(written.folder, "north"))[1]
    row = by_line(written.folder)[own["line"]["body"]["previous"]]["rows"]["east"]
    assert leaf(own["salt"], "east", row) != own["line"]["body"]["leaves"]["east"]
    assert "40.0" not in json.dumps(own)


def checked_statement(world: World, *arguments: str, content: bytes | None = None) -> int:
    written = world.written()
    path = world.folder / "north.jsonl"
    lines = b"".join(encode(one) + b"\n" for one in statement(written.folder, "north"))
    path.write_bytes(lines if content is None else content)
    summary = {"heads": written.heads, "rounds": [[1, 1], [1, 2], [1, 3]]}
    for name in ("north", "summary"):
        (world.folder / f"{name}.json").write_text(json.dumps(summary))
    begin = ["verify", str(path), "--signers", str(world.keys.signers)]
    return main([*begin, *(one.format(folder=world.folder) for one in arguments)])


NORTH = ("--site", "north", "--heads", "{folder}/north.json")


@attack("R12", "gives a site an empty statement", "a fault, with the site's summary")
def _(world: World) -> None:
    assert checked_statement(world, *NORTH, content=b"") == 1


@attack(
    "R13",
    "gives an empty statement to who compares it with `summary.json`, not `north.json`",
    'refused (it printed "No fault was found": mended)',
)
def _(world: World) -> None:
    wrong = ("--site", "north", "--heads", "{folder}/summary.json")
    assert checked_statement(world, *wrong, content=b"") == 1
    assert "No fault" not in world.screen.readouterr().out


@attack(
    "R14",
    "gives a statement to who names no site",
    'refused (it printed "No fault was found": mended)',
)
def _(world: World) -> None:
    assert checked_statement(world, content=b"") == 1
    assert "No fault" not in world.screen.readouterr().out


@attack(
    "R15",
    "signs a line that is a list, or has unhashable numbers",
    "a fault (it ended in a traceback: mended)",
)
def _(world: World) -> None:
    from clientwise_consortium.envelope import sign
    from clientwise_consortium.record import LABEL

    key = world.keys.private("coordinator")
    for body in ([], {"leaves": []}, {"leaves": {"north": "x"}, "seed": []}):
        line = {"body": body, "signature": sign(key, LABEL, body).hex()}
        content = encode({"line": line, "row": {}, "salt": ""}) + b"\n"
        shutil.rmtree(world.folder / "record", ignore_errors=True)
        assert checked_statement(world, *NORTH, content=content) == 1


@attack("R16", "gives one site another's statement", "a fault")
def _(world: World) -> None:
    assert checked_statement(world, *NORTH) == 0
    lines = b"".join(encode(o) + b"\n" for o in statement(world.folder / "record", "east"))
    shutil.rmtree(world.folder / "record")
    assert checked_statement(world, *NORTH, content=lines) == 1


@attack(
    "R17", "gives an experiment with foreign code to who verifies", "a fault; nothing is imported"
)
def _(world: World) -> None:
    marker = world.folder / "PWNED"
    (world.folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')")
    written = world.written()
    text = written.experiment.read_text()
    written.experiment.write_text(f'plugins = ["evil"]\nplugin_dir = "{world.folder}"\n{text}')
    assert written.verify()
    assert not marker.exists()


@attack("R18", "writes commands for the terminal into a record", "printed as question marks")
def _(world: World) -> None:
    show("FAULT: \x1b[2J\u202e\x07")
    assert world.screen.readouterr().out == "FAULT: ?[2J??\n"


# Who tricks the approver, the officer or the installer.


def agree(world: World, **changes: Any) -> tuple[int, str]:
    """The status of `agree`, and what it printed."""
    table = config() | changes
    path = world.folder / "experiment.toml"
    path.write_text(tomli_w.dumps({k: v for k, v in table.items() if v is not None}))
    return agree_file(world, path)


def agree_file(world: World, path: Path) -> tuple[int, str]:
    (world.folder / "lock").write_text("a==1 --hash=sha256:00")
    out = world.folder / "approval.toml"
    about = ["--site", "north", "--lock", str(world.folder / "lock"), "--reason", "r"]
    status = main(["agree", str(path), *about, "--out", str(out)])
    printed = world.screen.readouterr()
    return status, printed.out + printed.err


def with_training(**changes: Any) -> dict[str, Any]:
    return {"training": config()["training"] | changes}


def with_method(**changes: Any) -> dict[str, Any]:
    return {"methods": [config()["methods"][0] | changes]}


NOT_AGREED: dict[str, tuple[str, dict[str, Any]]] = {
    "A01": ("names plugins", {"plugins": ["evil"]}),
    "A02": ("names a folder of plugins", {"plugin_dir": "/tmp"}),
    "A03": ("takes settings from elsewhere (`like`)", with_method(like="Recommended")),
    "A04": ("simulates hostile clients", {"hostile": [{"clients": 1, "attack": "scaling"}]}),
    "A05": ("starts from a file of the site", {"initial_model": "/etc/passwd"}),
    "A06": ("writes `sample_noise = nan`", with_training(sample_noise=float("nan"))),
    "A07": ("writes `sample_noise = inf`", with_training(sample_noise=float("inf"))),
    "A08": ("writes minus five epochs", with_training(epochs=-5)),
    "A09": ("writes no epochs: no μ", with_training(epochs=0)),
    "A10": (
        "hides a method without noise",
        {
            "methods": [
                {"name": "a", "criteria": ["dataset_size"], "training": {"sample_noise": 1e-9}},
                {"name": "b", "criteria": []},
            ],
            **{"training": {}},
        },
    ),
    "A11": ("leaves the noise out", {"training": {"epochs": 1}}),
    "A12": (
        "writes a name that reads as words of `agree`",
        {
            "name": "x. Your site trains at most 0 models on its patients' rows. They have noise (μ = 0.001)"
        },
    ),
    "A13": ("clears the screen with a name", {"name": "\x1b[2J\x1b[H"}),
    "A14": (
        "turns the writing direction with a member's name",
        {"flower": config()["flower"] | {"clients": ["north", "\u202e", "south"]}},
    ),
    "A15": (
        "writes a clip of nan for masked sums",
        with_method(secure_aggregation={"clip": float("nan")}),
    ),
    "A16": ("adds a robust rule to masked sums", with_method(secure_aggregation={}, rule="median")),
    "A17": ("writes 10^400 rounds", {"rounds": 10**400}),
}


def _not_agreed(changes: dict[str, Any]) -> Callable[[World], None]:
    def try_it(world: World) -> None:
        status, printed = agree(world, **changes)
        assert status == 1, printed
        assert "error" in printed
        assert "\x1b" not in printed
        assert not (world.folder / "approval.toml").exists()

    return try_it


MENDED = {"A06", "A07", "A09", "A12", "A13", "A14", "A15", "A17"}
for _id, (_what, _experiment) in NOT_AGREED.items():
    _outcome = "refused; no approval is written"
    attack(_id, _what, f"{_outcome} (mended)" if _id in MENDED else _outcome)(
        _not_agreed(_experiment)
    )


@attack("A18", "writes 100,000 brackets", "refused (it ended in a traceback: mended)")
def _(world: World) -> None:
    path = world.folder / "deep.toml"
    path.write_text("a = " + 100_000 * "[")
    assert agree_file(world, path)[0] == 1


@attack("A19", "overrides the noise in one method", "counted: the μ is that of the method")
def _(world: World) -> None:
    _, before = agree(world)
    _, after = agree(world, **with_method(training={"sample_noise": 0.5}))
    assert "μ = 0.612" in before
    assert "μ = 4.9" in after


@attack(
    "A20",
    "hides earlier runs with another `summary.json`",
    "the words are wrong, but the node counts its own ledger and does not start",
)
def _(world: World) -> None:
    federation = world.federation
    world.train()
    federation.approve("north")
    refuses(UntrustedError, "earlier approvals", lambda: federation.restart("north", most_mu=0.65))


SIGNED: dict[str, tuple[str, dict[str, Any], str]] = {
    "A21": (
        "has μ = nan signed, of which every comparison is false",
        {"mu": "nan"},
        "mu is a number",
    ),
    "A22": ("has μ = inf signed", {"mu": "inf"}, "mu is a number"),
    "A23": ("has a negative μ signed", {"mu": "-3.0"}, "mu is a number"),
    "A24": ("has μ as text signed", {"mu": '"low"'}, "mu is a number"),
    "A25": ("has a μ beyond the house's limit signed", {"mu": "50.0"}, "the house allows"),
    "A26": ("has no limit signed", {"mu": None}, "either mu"),
    "A27": (
        "has a reason instead of noise signed",
        {"mu": None, "without_noise": '"x"'},
        "allow_no_noise",
    ),
    "A28": ("has exact tests signed", {"cell": "1", "evaluations": "5"}, "allow_no_noise"),
    "A29": ("has groups of no patient signed", {"cell": "0"}, "whole"),
    "A30": ("has 1.5 trainings signed", {"trainings": "1.5"}, "whole"),
    "A31": ("has masks signed for a plain experiment", {"masked": "true"}, "masked"),
    "A32": ("has another site's approval signed", {"site": '"south"'}, "approved for"),
    "A33": ("has a key more signed", {"exact": "true"}, "not an approval"),
}


def _signed(changes: dict[str, Any], said: str) -> Callable[[World], None]:
    def try_it(world: World) -> None:
        federation = world.federation
        world.approval(**changes)
        refuses(UntrustedError, said, lambda: federation.restart("north", allow_no_noise=False))

    return try_it


for _id, (_what, _approval, _said) in SIGNED.items():
    _outcome = "the node does not start"
    if _id == "A21":
        _outcome += " (it started, beyond every limit: mended)"
    attack(_id, _what, _outcome)(_signed(_approval, _said))


@attack(
    "A34",
    "has an approval with an earlier one's id signed: what was spent counts for neither",
    "the node does not start (it did: mended)",
)
def _(world: World) -> None:
    federation = world.federation
    world.train()
    world.approval(mu="3.0")
    refuses(Refused, "had this id", lambda: federation.restart("north"))


@attack("A35", "puts an ended approval back", "the node does not start")
def _(world: World) -> None:
    path = world.federation.folder / "north.toml"
    before = path.read_bytes()
    world.federation.approve("north")
    world.federation.restart("north")
    path.write_bytes(before)
    world.keys.sign(path, "doctor")
    refuses(Refused, "has ended", lambda: world.federation.restart("north"))


@attack("A36", "signs an approval as a member", "the node does not start")
def _(world: World) -> None:
    world.keys.sign(world.federation.folder / "north.toml", "north")
    refuses(UntrustedError, "not signed", lambda: world.federation.restart("north"))


@attack(
    "A37",
    "hides a second line in the comment of a public key (U+2028, a carriage return)",
    "one line, as OpenSSH reads it (it was two: mended)",
)
def _(world: World) -> None:
    public = (world.keys.folder / "doctor.pub").read_text().strip()
    for hidden in ("\u2028", "\x0c", "\r", "\x85"):
        text = f'north namespaces="clientwise-member" {public}{hidden}evil namespaces="clientwise-member" {public}\n'
        world.keys.signers.write_bytes(text.encode())
        assert [one.name for one in read_signers(world.keys.signers)] == ["north"]


@attack(
    "A38",
    "puts a pattern, two names, a certificate or another namespace into a line",
    "the node does not start",
)
def _(world: World) -> None:
    public = (world.keys.folder / "doctor.pub").read_text().strip()
    for begin in (
        '* namespaces="clientwise-approval"',
        'a,b namespaces="clientwise-approval"',
        "a",
        'a cert-authority,namespaces="clientwise-approval"',
        'a namespaces="clientwise-*"',
    ):
        world.keys.signers.write_text(f"{begin} {public}\n")
        refuses(UntrustedError, "line 1", lambda: read_signers(world.keys.signers))


@attack(
    "A39",
    "lists its key a second time, under another member's name",
    "refused: a key is one member's",
)
def _(world: World) -> None:
    text = world.keys.signers.read_text()
    north = next(line for line in text.splitlines() if line.startswith("north"))
    world.keys.signers.write_text(f"{text}{north.replace('north', 'west', 1)}\n")
    refuses(UntrustedError, "twice", lambda: public_keys(world.keys.signers, "clientwise-member"))


@attack(
    "A40",
    "has someone sign without reading",
    f"{SUCCEEDED} up to the house's limit (`most_mu`, `allow_no_noise`), which root sets",
)
def _(world: World) -> None:
    world.federation.restart("north", most_mu=0.7, allow_no_noise=False)
    assert "signed" in world.train()


# A second day, in places that the first one left out.


@attack(
    "C58",
    "says that the site's ledger was set back, when it was not",
    f"{SUCCEEDED}: a false remark, in its own record and in the site's ledger; nothing leaves",
)
def _(world: World) -> None:
    facts, content = world.ask("train", to_bytes(world.request()), ledger=[1, 64 * "0"])
    assert facts["went_back"] is True
    again, same = world.ask("train", to_bytes(world.request()), ledger=facts["ledger"])
    assert "went_back" not in again
    assert content == same
    assert world.released() == 1


@attack(
    "C59",
    "asks for names of the ledger's beginnings, to learn or confirm what is in it",
    "they are keyed",
)
def _(world: World) -> None:
    world.train()
    ledger = world.federation.ledger("north")
    length, name = ledger.state()
    events = ledger._read("SELECT * FROM events WHERE number <= ? ORDER BY number", length)
    assert digest(encode(["clientwise ledger", events])) != name
    for known in ([length, 64 * "0"], [-1, name], [10**30, name], [length], "x", {"a": 1}):
        facts, _ = world.ask("train", to_bytes(world.request()), ledger=known)
        assert name not in json.dumps(facts)


@attack(
    "C60",
    "gives heads without end, and asks what is refused, to fill the disk",
    "refused; 1,000 refusals are noted in one process (all were: mended)",
)
def _(world: World) -> None:
    world.begin(rounds=1)
    before = world.federation.ledger("north").length
    for number in range(1, 110):
        facts, _ = world.ask("train", b"", head=f"{number:x}")
    assert "more lines" in facts["refused"]
    node = world.federation.nodes["north"]
    node._strange["failed"] = node._strange["refused"] = 999
    for number in range(5):
        world.ask("train", b"", head=f"{number:x}", roster=number)
        world.ask("key", b"", head="1")
    heads, noted = 102, 109 + 2
    assert world.federation.ledger("north").length <= before + heads + noted


@attack("C61", "runs two seeds of masked rounds at once", "one round after the other")
def _(world: World) -> None:
    world.begin(masked=True, seeds=[1, 2], rounds=2)
    record = world.run()
    lines = [one["body"] for one in read(record / LINES)[1:]]
    assert [one["kept"] for one in lines] == 4 * [None], [one["remarks"] for one in lines]


@attack("C62", "tells sums so large that all scores vanish", "the round is void")
def _(world: World) -> None:
    roster = start(world)
    criteria_step(world, roster)
    total = update_sum(world, roster, {name: [1e25] for name in NAMES})
    scoring = world.federation.nodes["north"]._scoring()
    refuses(Void, "", lambda: scoring.sums.read_update(total))


@attack(
    "C63",
    "tells sums that are infinite, true, text, a matrix, or a table",
    "refused (a matrix was not: mended)",
)
def _(world: World) -> None:
    scoring = world.begin(masked=True).nodes["north"]._scoring()
    for sums in ([True], [150], ["150"], [[150.0]], None, {"a": 1}, "1"):
        refuses(Refused, "as many numbers", lambda s=sums: scoring.score([50.0], s))  # type: ignore[misc]
    world.begin_again()
    roster = in_hex(start(world))
    world.ask("criteria", masked_request(world), roster=roster)
    text = json.dumps({"head": HEAD, "roster": roster, "sums": [float("inf")]})
    number, message = world.side.instruction("north", "update", text.encode() + b"\n")
    reply = world.federation.nodes["north"].answer(message)
    assert "refused" in split(world.side.reply("north", number, "update", reply))[0]


@attack("C64", "writes the model's numbers in another byte order, another model", "refused")
def _(world: World) -> None:
    request = world.request()
    file = io.BytesIO()
    numpy.save(file, MODEL.numpy().astype(">f4"))
    data = Array(dtype=">f4", shape=tuple(MODEL.shape), stype="numpy.ndarray", data=file.getvalue())
    request[ARRAYS] = ArrayRecord({"data": data})
    assert "refused" in world.ask("train", to_bytes(request))[0]
    assert world.released() == 0


@attack("C65", "evaluates with another seed, round or client", "refused")
def _(world: World) -> None:
    world.begin().approve("north", evaluations=5)
    world.federation.restart("north")
    about = {"client": NAMES.index("north"), "seed": 1, "round_num": 1, "task": None}
    for changes in ({"seed": 2}, {"round_num": 99}, {"client": 0}):
        request = write_request(Request(**(about | changes)), pack(MODEL[None]))  # type: ignore[arg-type]
        assert "refused" in world.ask("evaluate", to_bytes(request))[0]
    assert world.federation.ledger("north").released() == {}


@attack(
    "M31",
    "signs a masked round's key that everybody knows (a point of low order)",
    "all others fail: the round is void",
)
def _(world: World) -> None:
    from clientwise_consortium.envelope import sign

    node = world.begin(masked=True, rounds=1).nodes["north"]
    begin = node._key

    def zeros(asked: Any, rest: bytes) -> bytes:
        begin(asked, rest)
        masker = node._masked.masker
        masker._public = bytes(32)
        masker._signature = sign(
            world.keys.private("north"), "clientwise sum 1", masker._terms, "north", bytes(32).hex()
        )
        return masker.key()

    node._key = zeros  # type: ignore[method-assign]
    assert "void: criteria: east: ValueError" in (world.run() / LINES).read_text()


@attack(
    "M32",
    "sends a thousand criteria more, and signs them, so that the honest record has a fault",
    f"{LEFT_OUT} (it worked: mended)",
)
def _(world: World) -> None:
    world.begin(rounds=1)

    def lies(facts: dict[str, Any], rest: bytes) -> Any:
        content = from_bytes(rest)
        more = {f"x{number}": 1.0 for number in range(1000)}
        for name, value in more.items():
            content.metric_records[NUMBERS][CRITERION + name] = value
        criteria = facts["signed"]["claim"]["criteria"] | more
        return signs(world, facts, criteria=criteria), to_bytes(content)

    record = lying(world, lies)
    assert members_of(record) == [{"east", "south"}]
    assert is_sound(world, record)
    assert sum(path.stat().st_size for path in record.iterdir()) < 20_000


@attack("M33", "states minus fifty patients, or infinitely many", LEFT_OUT)
def _(world: World) -> None:
    for size in (-50.0, 1e308, float("nan"), float("inf")):
        world.begin_again()
        world.begin(rounds=1)

        def lies(facts: dict[str, Any], rest: bytes, size: float = size) -> Any:
            content = from_bytes(rest)
            content.metric_records[NUMBERS][CRITERION + "dataset_size"] = size
            try:
                return signs(world, facts, criteria={"dataset_size": size}), to_bytes(content)
            except ValueError:
                return facts, to_bytes(content)

        record = lying(world, lies)
        assert members_of(record) == [{"east", "south"}]
        assert is_sound(world, record)


@attack(
    "M34",
    "says in every reply that its ledger went back",
    "a remark in every round, in its own name",
)
def _(world: World) -> None:
    world.begin(rounds=2)
    record = lying(world, lambda facts, rest: ({**facts, "went_back": True}, rest))
    assert (record / LINES).read_text().count("the ledger of north went back") == 2
    assert is_sound(world, record)


@attack(
    "B24",
    "answers a greeting with a site's earlier answer, of a process that ended",
    "nobody can read the letters; the site's round is missed, as if they were dropped",
)
def _(world: World) -> None:
    federation = world.begin(rounds=1)
    old: list[bytes] = []

    def replay(name: str, message: bytes, site: Callable[[bytes], bytes]) -> bytes:
        reply = site(message)
        if name == "north" and b'"kind":"hello"' in message:
            if not old:
                old.append(reply)
                federation.restart("north")
            return old[0]
        return reply

    federation.mailbox.change = replay
    assert members_of(world.run()) == [{"east", "south"}]
    assert set(federation.events("north")) == {"approved", "strange"}


@attack(
    "B25",
    "says in a site's name that there is no session, after the site has answered",
    "the site is asked once more, and gives the same answer",
)
def _(world: World) -> None:
    federation = world.begin(rounds=1)
    denied: list[bytes] = []

    def deny(name: str, message: bytes, site: Callable[[bytes], bytes]) -> bytes:
        reply = site(message)
        if name == "north" and b'"kind":"sealed"' in message and not denied:
            denied.append(reply)
            return join({"kind": "unknown"})
        return reply

    federation.mailbox.change = deny
    record = world.run()
    assert members_of(record) == [set(NAMES)]
    assert federation.events("north").count("repeated") == 1
    assert world.released() == 1
    assert is_sound(world, record)


@attack(
    "B26",
    "gives a site its own reply, or the coordinator's greeting as an instruction",
    "not answered",
)
def _(world: World) -> None:
    _, message = a_message(world)
    node = world.federation.nodes["north"]
    header, _ = split(message)
    answer = node.answer(message)
    _, sealed = split(answer)
    for forged in (answer, join(header, sealed), join({**header, "number": 2}, sealed)):
        assert split(node.answer(forged))[0] == {"kind": "unknown"}


def _recorded(change: Callable[[World, dict[str, Any]], None]) -> Callable[[World], list[str]]:
    """Another last round in a good record, which the coordinator signs; the faults."""

    def faults_of(world: World) -> list[str]:
        written = world.written()
        line = read(written.folder / ROWS)[-1]
        for name in (LINES, ROWS):
            path = written.folder / name
            path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
        change(world, line)
        body = {key: line["body"][key] for key in line["body"].keys() - {"previous", "leaves"}}
        Record(written.folder, written.coordinator, SECRET).round_done(body, line["rows"])
        return written.verify([])

    return faults_of


@attack(
    "R19",
    "weighs by numbers of its own, in the place of the criteria that members signed",
    "a fault (`verify` found none: mended)",
)
def _(world: World) -> None:
    def friend(world: World, line: dict[str, Any]) -> None:
        line["body"]["criteria"] = ["mine"]
        for name, row in line["rows"].items():
            row["criteria"]["mine"] = 98.0 if name == "north" else 1.0
            row["prior"] = row["weight"] = row["criteria"]["mine"] / 100

    assert "weighed by ['mine']" in _recorded(friend)(world)[0]


@attack("R20", "signs a weight of 400 digits", "a fault (it ended in a traceback: mended)")
def _(world: World) -> None:
    def huge(world: World, line: dict[str, Any]) -> None:
        line["rows"]["north"]["prior"] = 10**400

    assert "another form" in _recorded(huge)(world)[0]


@attack(
    "R21",
    "leaves all members out of a round that they were in",
    "a fault of every member's statement, not of the record",
)
def _(world: World) -> None:
    def empty(world: World, line: dict[str, Any]) -> None:
        line["rows"].clear()

    assert _recorded(empty)(world) == []
    own = world.folder / "north.jsonl"
    record = world.folder / "record"
    own.write_bytes(b"".join(encode(line) + b"\n" for line in statement(record, "north")))
    summary = {"heads": [], "rounds": [[1, 1], [1, 2], [1, 3]]}
    trusted = world.keys.private("coordinator").public_key()
    (fault,) = statement_faults(own, "north", trusted, summary)
    assert "trained in round 3" in fault


@attack(
    "R22",
    "uses what a member signed in an earlier round again",
    "a fault (`verify` found none: mended)",
)
def _(world: World) -> None:
    def stale(world: World, line: dict[str, Any]) -> None:
        shown = read(world.folder / "record" / ROWS)[-1]["rows"]
        line["rows"]["north"]["signed"] = shown["north"]["signed"]

    assert "used before" in _recorded(stale)(world)[0]


@attack(
    "R23",
    "adds a round, or a seed, that the experiment has not",
    "a fault (without masks, it had no signatures; with them, `verify` found none: mended)",
)
def _(world: World) -> None:
    def other_seed(world: World, line: dict[str, Any]) -> None:
        line["body"].update(seed=7, round=1)

    assert "no such round" in _recorded(other_seed)(world)[0]


@attack("R24", "gives the row of a member to a stranger", "a fault")
def _(world: World) -> None:
    def renamed(world: World, line: dict[str, Any]) -> None:
        line["rows"] = {"stranger": line["rows"]["north"]}

    assert _recorded(renamed)(world)


@attack(
    "R25",
    "keeps two records, and shows each to other members",
    f"{SUCCEEDED} until two members compare: each statement is sound by itself",
)
def _(world: World) -> None:
    trusted = world.keys.private("coordinator").public_key()
    heads = {}
    for name, size in (("north", 50.0), ("south", 500.0)):
        folder = world.folder / f"for-{name}"
        folder.mkdir()
        written = Written(folder, world.keys)
        shutil.rmtree(written.folder)
        written.folder.mkdir()
        written.heads.clear()
        written.write({"east": 40.0, "north": size, "south": 60.0})
        heads[name] = written.heads
        own = folder / "statement"
        lines = statement(written.folder, name)
        own.write_bytes(b"".join(encode(line) + b"\n" for line in lines))
        summary = {"heads": written.heads, "rounds": [[1, 1], [1, 2], [1, 3]]}
        assert list(statement_faults(own, name, trusted, summary)) == []
    members = public_keys(world.keys.signers, "clientwise-member")
    (fault,) = verify(written.folder, written.experiment, trusted, members, heads)
    assert "north was shown" in fault


@attack(
    "A41",
    "writes words of `agree` as the name of a criterion",
    "in quotes; more than one line, or 200 characters, are refused (all was printed: mended)",
)
def _(world: World) -> None:
    def words(name: str) -> str:
        table = config()
        table["methods"][0]["criteria"] = [name]
        found = Experiment.read(tomli_w.dumps(table).encode())
        about = {"site": "north", "lock": b"", "reason": "x", "evaluations": 0}
        approval = propose(found, without_noise=None, **about)  # type: ignore[arg-type]
        return " ".join(in_words(approval, found, None))

    assert ": 'size. They have no patient in them'." in words("size. They have no patient in them")
    for name in ("size.\nYour site trains 0 models", 201 * "a"):
        refuses(ConsortiumError, "printable", lambda n=name: words(n))  # type: ignore[misc]


@attack(
    "U13",
    "puts an index that points elsewhere among the wheels",
    "not installed; nothing of it runs",
)
def _(world: World) -> None:
    delivery = test_install.Delivery(world.folder, world.keys)
    (delivery.wheels / "index.html").write_text(
        '<a href="http://127.0.0.1:9/evil-1.0.whl">evil-1.0.whl</a>'
    )
    for path in delivery.wheels.glob("*.whl"):
        path.unlink()
    assert delivery.install() != 0
    assert not delivery.marker.exists()


@attack(
    "L17",
    "puts back the ledger and its copy between two runs (with root's help)",
    f"{SUCCEEDED}: another coordinator's record has no earlier state to compare",
)
def _(world: World) -> None:
    federation = world.begin(rounds=1)
    folder = federation.folder / "north"
    before = {path: path.read_bytes() for path in folder.glob("ledger.*")}
    world.run()
    for path in folder.glob("ledger.*"):
        path.unlink()
    for path, content in before.items():
        path.write_bytes(content)
    federation.restart("north")
    facts = world.train()
    assert "signed" in facts
    assert world.released() == 1


@attack("L18", "damages the copy of the ledger's state", "the node does not start")
def _(world: World) -> None:
    world.train()
    path = world.federation.folder / "north" / "ledger.last"
    for content in (b"", b"{}", b"[1]", b'[1, "a"]', b"[null, null]", b"[1, 2, 3]"):
        path.write_bytes(content)
        refuses((UntrustedError, ValueError), "", lambda: world.federation.restart("north"))


# The tests


@pytest.mark.parametrize("one", ATTACKS, ids=lambda one: one.id)
def test_attack(one: Attack, world: World) -> None:
    one.try_it(world)


def table() -> Iterator[str]:
    """The page with all rows."""
    won = sum(SUCCEEDED in one.outcome for one in ATTACKS)
    mended = sum("mended" in one.outcome for one in ATTACKS)
    yield "# Attacks"
    yield ""
    yield f"{len(ATTACKS)} attacks on this package, each tried in code: `test_attack[ID]` in `tests/test_attacks.py`."
    yield f"{mended} of them worked when they were first tried, and are mended. {won} succeed, at least in part; the"
    yield "[security page](security.md) says what is left to do about them. Real processes: `tests/test_loopback.py`."
    for letter, who in WHO.items():
        yield ""
        yield f"## {letter}: {who}"
        yield ""
        yield "|id|attack|what happened|"
        yield "|---|---|---|"
        for one in sorted(ATTACKS, key=lambda row: row.id):
            if one.id.startswith(letter):
                yield f"|{one.id}|{one.what}|{one.outcome.replace(SUCCEEDED, f'**{SUCCEEDED.lower()}**')}|"


def test_the_page_has_every_attack() -> None:
    assert len({one.id for one in ATTACKS}) == len(ATTACKS) >= 100
    page = Path(__file__).parents[1] / "docs" / "attacks.md"
    assert page.read_text() == "\n".join(table()) + "\n"


if __name__ == "__main__":
    sys.stdout.write("\n".join(table()) + "\n")

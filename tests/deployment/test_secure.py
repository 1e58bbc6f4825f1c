"""Secure aggregation with real processes: the server's memory, disk and wire hold no single client's values."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="needs clientwise[deployment]")

from federation import Federation
from torch import Tensor

import processes
from clientwise.core.secrecy import SecretScores
from clientwise.core.types import Task
from clientwise.experiment.build.clients import build_data
from clientwise.experiment.build.engine import build_engine, build_executor, build_plan
from clientwise.experiment.load import load_experiment
from clientwise.hosts.flower.data import from_files

pytestmark = [pytest.mark.flower, pytest.mark.timeout(3600)]  # the waits have limits of their own
NAMES = ["ward-a", "ward-b", "ward-c", "ward-d"]
CRITERIA = ["class_balance", "label_diversity"]
PIECE = 16  # bytes of a canary: so many in a row occur nowhere by chance
# Python imports it first. TLS hides the wire, so the SuperLink writes down the nodes' calls as it reads
# them, and the process that runs the rounds the replies that it opens.
LISTENING = """
import os, sys

FILE = os.open(os.environ["CLIENTWISE_WIRE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

def heard(message):
    if message is not None:
        os.write(FILE, message.SerializeToString())

if "clientwise.hosts.deployment.link" in sys.orig_argv:
    from clientwise.hosts.deployment.fleet_calls import FleetCalls
    refusal, answered = FleetCalls.refusal, FleetCalls.answered
    def heard_request(self, request):
        heard(request)
        return refusal(self, request)
    def heard_response(self, request, response):
        heard(response)
        return answered(self, request, response)
    FleetCalls.refusal, FleetCalls.answered = heard_request, heard_response
elif "flwr-serverapp" in " ".join(sys.orig_argv):
    from flwr.common.serde import recorddict_to_proto
    from clientwise.hosts.deployment.sealing import ReplyKey
    opened = ReplyKey.open
    def heard_reply(self, content, message_id):
        found = opened(self, content, message_id)
        heard(recorddict_to_proto(found))
        return found
    ReplyKey.open = heard_reply
"""


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    one = Federation(tmp_path, NAMES)
    one.environment["SMALLEST_CELL"] = "1"  # exact criteria, which can be looked for
    yield one
    one.stop()


def start(federation: Federation, seconds: float) -> None:
    """As `Federation.start`, with every member's identity in the approved experiment."""
    printed = {name: federation.script("node-key.sh", name) for name in NAMES}
    identities = {
        name: re.findall(r'= "([0-9a-f]{64})"', text)[-1] for name, text in printed.items()
    }
    federation.change(
        {
            "rounds": 20,
            "training": {"epochs": 1, "batch_size": 20, "learning_rate": 0.1},
            "flower": {
                "identities": identities,
                "train_seconds": seconds,
                "evaluate_seconds": seconds,
                "min_replies": 1,
            },
            "evaluation": {"clients_every": 0},
            "methods": [{"name": "secret", "criteria": CRITERIA, "secure_aggregation": {}}],
        }
    )
    federation.script("certificates.sh")
    (federation.logs / "sitecustomize.py").write_text(LISTENING, encoding="utf-8")
    paths = [str(federation.logs), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    listening = {"PYTHONPATH": os.pathsep.join(paths), "CLIENTWISE_WIRE": str(wire(federation))}
    usual = federation.environment
    federation.environment = usual | listening
    federation.start_superlink()
    federation.environment = usual
    federation.agree()
    for name in NAMES:
        federation.register(name)
        federation.start_node(name)
    federation.wait_for_nodes()


def wire(federation: Federation) -> Path:
    """What nodes and server send each other, without TLS."""
    return federation.logs / "wire"


def first_round(federation: Federation) -> tuple[dict[str, list[bytes]], Tensor]:
    """What only each client knows about round 1, as bytes to look for; and the initial model."""
    experiment = load_experiment(federation.app / "federation" / "experiment.toml")
    data, hostile = build_data(
        experiment, from_files(experiment).samples, 1, from_files(experiment)
    )
    executor = build_executor(experiment, data.samples, torch.device("cpu"))
    (method,) = experiment.build_methods()
    engine = build_engine(experiment, data, hostile, 1, executor)
    model = engine.initial_model
    task = Task(1, method.training, engine.problem.loss, method.client_criteria)
    plan = build_plan(experiment, len(NAMES), 1)
    scores = SecretScores.of(method, engine.problem, plan.cohort_size)
    rows = []
    trained = []
    for client in range(len(NAMES)):
        (updates,) = (one for one in engine.train([client], model, task) if one.client_ids)
        rows.append(torch.stack([updates.measurements[name][0].double() for name in method.names]))
        trained.append(updates.models[0])
    sums = torch.stack(rows).sum(0)
    canaries: dict[str, list[bytes]] = {}
    own = [scores.score(row, sums) for row in rows]
    for name, row, after, score in zip(NAMES, rows, trained, own, strict=True):
        update = after - model
        weighted = score * update.double()
        steps = scores.encode_vector(score, update, engine.spec.num_parameters)
        vectors = [after.numpy(), update.numpy(), update.double().numpy(), weighted.numpy(), steps]
        found = [vector.tobytes()[-PIECE:] for vector in vectors]
        numbers = [score, float(row[0])]
        found += [struct.pack("<d", number) for number in numbers]
        found += [repr(number).encode() for number in numbers]
        canaries[name] = found
    return canaries, model


def server_processes(federation: Federation) -> list[int]:
    """The SuperLink and the process that runs the rounds."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        is_server = b"flwr-serverapp" in command or b"clientwise.hosts.deployment.link" in command
        if is_server and str(federation.state).encode() in environment:
            found.append(int(folder.name))
    return found


def server_files(federation: Federation) -> Iterator[Path]:
    for path in federation.state.rglob("*"):
        of_a_node = {"nodes", "keys"} & set(path.relative_to(federation.state).parts)
        if path.is_file() and not of_a_node:
            yield path
    yield from (federation.logs / "superlink.log",)


def test_the_server_learns_the_sum_alone_and_survives_members_that_vanish(
    federation: Federation,
) -> None:
    seconds = 100 * processes.pace()
    federation.configure({"seeds": [1]})
    start(federation, seconds)
    canaries, initial = first_round(federation)
    federation.begin()
    federation.wait_for_rounds(1, 8 * seconds)

    wanted = {piece: name for name, found in canaries.items() for piece in found}
    assert all(any(piece) for piece in wanted)
    known = initial.numpy().tobytes()[-PIECE:]
    searched = dict.fromkeys(("memory", "wire", "files"), 0)
    has_model = set[str]()
    seen = set[str]()

    def search(place: str, chunk: bytes) -> None:
        searched[place] += len(chunk)
        found = processes.pieces_in(chunk, {*wanted, known})
        seen.update(f"{wanted[piece]} in {place}" for piece in found - {known})
        if known in found:
            has_model.add(place)

    servers = server_processes(federation)
    assert len(servers) >= 2, servers
    for pid in servers:
        for chunk in processes.memory_of(pid):
            search("memory", chunk)
    for path in server_files(federation):
        search("files", path.read_bytes())
    sent = wire(federation).read_bytes()
    search("wire", sent)
    assert searched["memory"] > 2**26
    assert {"memory", "wire"} <= has_model, "the search does not even find the initial model"
    assert all(word in sent for word in (b"signature", b"commitments", b"masked"))
    assert not seen

    # The sum is right, and the record has no weight and no criterion of anybody.
    assert federation.query("SELECT COUNT(*) FROM criteria") == [(0,)]
    assert set(federation.weights(1).values()) == {None}

    # One member vanishes: the others go on. A second one: rounds are void, and the run goes on.
    def noted(text: str) -> bool:
        return text in str(federation.query("SELECT notes FROM rounds"))

    federation.kill("ward-d")
    federation.wait_for(
        lambda: noted("3 of 4 clients are in the sum"), 8 * seconds, "three members"
    )
    federation.kill("ward-c")
    federation.wait_for(
        lambda: noted("the round is void: only 2 of 4"), 8 * seconds, "a void round"
    )
    assert noted("the model stays as it was")

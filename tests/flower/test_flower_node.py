"""A node runs what its operator approved, to the byte, and tells the operator what that means.

With real processes: tests/deployment/test_intruders.py.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import shutil
import tomllib
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy
import pytest
import tomli_w

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab import Fab

import processes
from clientwise.errors import ClientwiseError
from clientwise.hosts.deployment.agree import Node, agree
from clientwise.hosts.deployment.approval import config_digest, withdraw
from clientwise.hosts.deployment.ledger import Ledger, read
from clientwise.hosts.deployment.node import is_agreed

pytestmark = pytest.mark.filterwarnings(
    "ignore:GitWildMatchPattern"
)  # Flower's, where it builds a bundle


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return Path(
        shutil.copytree(
            str(files("clientwise") / "hosts" / "deployment" / "template"), tmp_path / "app"
        )
    )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node with 60 + 30 samples."""
    arrays: dict[str, Any] = {}
    for part, count in (("train", 60), ("test", 30)):
        arrays[f"{part}_inputs"] = numpy.random.default_rng(1).random((count, 1, 8, 8), "float32")
        arrays[f"{part}_targets"] = numpy.arange(count) % 10
    numpy.savez(tmp_path / "own.npz", **arrays)
    template = str(files("clientwise") / "hosts" / "deployment" / "template" / "data.py")
    data = str(tmp_path / "own.npz")
    return Node(
        "ward-a", tmp_path / "ledger.jsonl", data, template, tmp_path / "a.identity", cell=5
    )


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second load of the data is in a process of the fork server, which has imported PyTorch."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda kind: processes.SERVER)


def bundle(app: Path) -> Fab:
    content = build_fab_from_disk(app)
    return Fab(hashlib.sha256(content).hexdigest(), content, {})


def change(app: Path, changes: dict[str, Any]) -> None:
    """Change the app's experiment."""
    path = app / "federation" / "experiment.toml"
    path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | changes))


@pytest.mark.usefixtures("quickly")
def test_an_app_is_agreed_to_by_the_byte(
    app: Path, node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fab = bundle(app)
    assert not is_agreed(fab, node.ledger)  # nothing is, as long as nobody said so
    assert f"approved {fab.hash_str}" in list(agree(app, node))
    assert is_agreed(fab, node.ledger)
    (approval,) = read(node.ledger)
    # The app on the node finds its own approval, wherever Flower unpacks it.
    assert approval["experiment"] == config_digest(app / "federation" / "experiment.toml")
    assert len(approval["experiment"]) == 64  # of a shorter hash, two apps can be made alike
    (app / "data.py").write_text("# a hospital's own, which does not travel\n")
    assert bundle(app) == fab

    changed = bytearray(fab.content)
    changed[len(changed) // 2] ^= 1
    assert not is_agreed(
        Fab(fab.hash_str, bytes(changed), {}), node.ledger
    )  # whatever the server calls it
    assert not is_agreed(Fab("0" * 64, fab.content, {}), node.ledger)
    config = app / "federation" / "experiment.toml"
    config.write_bytes(config.read_bytes() + b"\n")
    assert not is_agreed(bundle(app), node.ledger)
    assert (
        f"REFUSED an app that is not approved by the node's operator: its bundle {bundle(app).hash_str}"
        in caplog.text
    )
    (tmp_path / "app.fab").write_bytes(bundle(app).content)
    list(agree(tmp_path / "app.fab", node, "a new version"))
    assert is_agreed(bundle(app), node.ledger)
    assert not is_agreed(fab, node.ledger)  # an approval ends the earlier ones
    withdraw(Ledger(node.ledger), "")
    assert not is_agreed(bundle(app), node.ledger)


def refused(app: Path, node: Node, words: str = "") -> tuple[list[str], str]:
    """What the operator reads, and why the app is not approved."""
    told: list[str] = []
    try:
        told.extend(agree(app, node, words))
    except ClientwiseError as error:
        return told, str(error)
    pytest.fail("the app was approved")


@pytest.mark.usefixtures("quickly")
def test_another_approval_needs_words_that_say_why(app: Path, node: Node) -> None:
    said = list(agree(app, node))
    assert any("50 rows to train on and 0 to test on" in line for line in said)  # groups of 5
    before = node.ledger.read_bytes()
    told, reason = refused(app, node, "  ")
    assert "WHY='...' deploy/agree.sh" in reason
    assert node.ledger.read_bytes() == before
    bound = "a training row: 0 models trained before; with this approval at most μ = 0.99, ε = 4.3"
    assert any(bound in line for line in told)
    list(agree(app, node, "the pilot was stopped"))
    assert [entry["words"] for entry in read(node.ledger)] == ["", "the pilot was stopped"]
    # Also where the ledger is gone: its key tells that the node has answered.
    node.ledger.unlink()
    told, reason = refused(app, node)
    assert "WHY='...' deploy/agree.sh" in reason
    assert any("is empty, but its key is older" in line for line in told)


UNSTABLE = {
    "random rows": "own = load_npz(path); chosen = numpy.random.permutation(60)[:50]",
    "order of a set": "own = load_npz(path); chosen = [int(one) for one in {str(n) for n in range(60)}]",
}


@pytest.mark.parametrize(
    ("kind", "cell", "is_refused"),
    [("random rows", 5, True), ("order of a set", 5, False), ("order of a set", 1, True)],
)
def test_a_loader_must_return_the_same_rows(
    app: Path,
    node: Node,
    tmp_path: Path,
    kind: str,
    cell: int,
    is_refused: bool,
    request: pytest.FixtureRequest,
) -> None:
    """Their order does not matter, unless SMALLEST_CELL=1 keeps it."""
    loader = tmp_path / "data.py"
    loader.write_text(
        "import numpy\nfrom clientwise.flower import OwnData, load_npz\n"
        f"def load(path):\n    {UNSTABLE[kind]}\n"
        "    return OwnData((own.train[0][chosen], own.train[1][chosen]), own.test)\n"
    )
    changed = replace(node, loader=str(loader), cell=cell)
    if (kind, cell) != ("order of a set", 1):  # one with a process as an operator has it
        request.getfixturevalue("quickly")
    if is_refused:
        with pytest.raises(
            ClientwiseError, match=r"returned other rows of .* when it was called again"
        ):
            list(agree(app, changed))
        assert not read(node.ledger)
        request.getfixturevalue("quickly")
        list(agree(app, node))  # the first approval still
    else:
        list(agree(app, changed))
        assert read(node.ledger)


@pytest.mark.usefixtures("quickly")
def test_an_operator_is_told_what_no_noise_hides(app: Path, node: Node) -> None:
    said = list(agree(app, node))
    assert (
        "hidden by noise in all updates of the run together, given their class: μ = 0.99" in said[1]
    )
    (line,) = (line for line in said if line.startswith("not hidden"))
    assert "the class of every row, such as the diagnosis" in line


SECRET = {"name": "secret", "secure_aggregation": {}}


@pytest.mark.usefixtures("quickly")
def test_the_keys_of_secure_aggregation_are_shown_and_this_nodes_is_among_them(
    app: Path, node: Node
) -> None:
    key = Ed25519PrivateKey.generate()
    node.identity.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    own = key.public_key().public_bytes_raw().hex()
    identities = {"ward-a": own, "ward-b": "b" * 64, "ward-c": "c" * 64}
    settings = tomllib.loads((app / "federation" / "experiment.toml").read_text())["flower"]
    secret = {"methods": [SECRET], "evaluation": {"clients_every": 0}}
    change(app, secret | {"flower": settings | {"identities": identities}})
    said = list(agree(app, node))
    place = next(place for place, line in enumerate(said) if line.startswith("identities"))
    assert (
        "compare these 3 keys with the other members, one by one, not with the server"
        in said[place]
    )
    assert said[place + 1].split() == ["ward-a", "=", own, "(this", "node)"]
    assert said[place + 2].split() == ["ward-b", "=", "b" * 64]

    before = node.ledger.read_bytes()
    for wrong in ({"ward-a": "a" * 64}, {"ward-a": "b" * 64, "ward-b": own}):
        change(app, {"flower": settings | {"identities": identities | wrong}})
        with pytest.raises(ClientwiseError, match="Do not approve this app"):
            list(agree(app, node, "again"))
    assert node.ledger.read_bytes() == before


def test_an_app_that_cannot_be_approved(app: Path, node: Node, tmp_path: Path) -> None:
    with pytest.raises(ClientwiseError, match="no such app"):
        list(agree(tmp_path / "nowhere", node))
    (tmp_path / "broken.fab").write_text("no bundle")
    with pytest.raises(ClientwiseError, match="not a bundle"):
        list(agree(tmp_path / "broken.fab", node))
    with pytest.raises(ClientwiseError, match=r"ward-x is not in flower\.clients: ward-a, ward-b"):
        list(agree(app, replace(node, name="ward-x")))
    (app / "federation" / "experiment.toml").unlink()
    with pytest.raises(ClientwiseError, match=r"has 0 files \*/experiment.toml"):
        list(agree(app, node))

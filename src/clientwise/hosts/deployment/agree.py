"""What a node's operator reads before the node answers an app, and the approval itself."""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import secrets
import zipfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from flwr.cli.build import build_fab_from_disk

from ...errors import ClientwiseError
from ...experiment.checks.secure import has_secrets
from ...experiment.config.schema import Experiment
from ...experiment.load import load_experiment
from ..flower.data import data_held_by, loader_in
from ..flower.secure_node import own_identity
from .allowance import describe_nodes
from .approval import approve, lifetime
from .gate import rows_digest
from .ledger import Ledger, read
from .small_numbers import read_own

NOT_HIDDEN = (
    "the class of every row, such as the diagnosis, and the number of rows of each class: what is said "
    "above about rows holds for their other values, given the class"
)


@dataclass(frozen=True)
class Node:
    """A node, as `deploy/supernode.sh` starts it."""

    name: str
    ledger: Path
    data: str
    loader: str  # the Python file that reads the data
    identity: Path  # the key for secure aggregation, if there is one
    cell: int  # SMALLEST_CELL


def bundle_of(app: Path) -> bytes:
    """The bundle that Flower makes of an app's folder, or a bundle's own bytes."""
    if not app.exists():
        raise ClientwiseError(f"{app}: no such app")
    return build_fab_from_disk(app) if app.is_dir() else app.read_bytes()


def bundle_hash(app: Path) -> str:
    """SHA-256 of `bundle_of`."""
    return hashlib.sha256(bundle_of(app)).hexdigest()


def agree(app: Path, node: Node, words: str = "") -> Iterator[str]:
    """Approve an app for a node; yields what the operator has to read.

    Args:
        app: the app's folder, or a bundle.
        node: the node. Its data are loaded twice, and must be the same.
        words: why the node may answer another run; not needed for the first.

    Raises:
        ClientwiseError: the app is not approved; says why.
    """
    ledger = Ledger(node.ledger)
    was_used = ledger.was_used
    bundle = bundle_of(app)
    with _config_in(bundle) as config:
        experiment = _read(config)
        yield from describe_nodes(experiment, node.cell)
        yield f"{'not hidden':<12}{NOT_HIDDEN}"
        yield from _identities(experiment, node)
        # The first approval makes the key.
        yield from _data(config, node, ledger.key() if ledger.has_key else secrets.token_bytes())
        yield from _history(experiment, ledger, node.cell, was_used)
        if was_used and not words.strip():
            raise ClientwiseError(
                "this node has answered before, and an approval adds one run to what it has released. "
                "Say why it may, in words that its ledger keeps: WHY='...' deploy/agree.sh ..."
            )
        found = hashlib.sha256(bundle).hexdigest()
        approval = approve(ledger, config, experiment, node.cell, found, words)
    yield f"approved {found}"
    yield f"{'approval':<12}{approval['approval']}, for one run of this app; earlier approvals have ended"
    yield f"{'next':<12}restart this node, if it runs: it forgets the apps that it received before"


@contextmanager
def _config_in(bundle: bytes) -> Iterator[Path]:
    """The file experiment.toml of a bundle, unpacked."""
    with TemporaryDirectory(prefix="clientwise-agree-") as folder:
        try:
            with zipfile.ZipFile(io.BytesIO(bundle)) as packed:
                packed.extractall(folder)
        except zipfile.BadZipFile:
            raise ClientwiseError("not a bundle: `flwr build` writes one") from None
        found = sorted(Path(folder).glob("*/experiment.toml"))
        if len(found) != 1:
            raise ClientwiseError(
                f"the app has {len(found)} files */experiment.toml; a node answers apps with one"
            )
        yield found[0]


def _read(config: Path) -> Experiment:
    # The server has the file of the initial model; a node does not need it.
    return load_experiment(config, replaced={"initial_model": None})


def _identities(experiment: Experiment, node: Node) -> Iterator[str]:
    """The members' keys for secure aggregation; ClientwiseError if this node's is not among them."""
    if not has_secrets(experiment):
        return
    listed = experiment.flower.identities
    own = own_identity({"identity": node.identity}).public_key().public_bytes_raw().hex()
    if listed.get(node.name) != own:
        raise ClientwiseError(
            f"flower.identities has {listed.get(node.name, 'no key')} for {node.name}, but the key of "
            f"this node is {own}: the masks would protect nothing. Do not approve this app"
        )
    yield (
        f"{'identities':<12}compare these {len(listed)} keys with the other members, one by one, not with the "
        "server:"
    )
    for name, key in listed.items():
        mine = "  (this node)" if name == node.name else ""
        yield f"{'':<12}{name} = {key}{mine}"


def _data(config: Path, node: Node, key: bytes) -> Iterator[str]:
    """How many rows the node uses; ClientwiseError if its loader returns others the second time.

    Other rows are another release, with noise of its own.
    """
    train, test = first = _rows(config, node, key)
    # In a process of its own: the order of a set of texts, for one, differs between processes.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        second = pool.submit(_rows, config, node, key).result()
    if first != second:
        raise ClientwiseError(
            f"{node.loader} returned other rows of {node.data} when it was called again: every call would "
            "be another release. A loader must return the same rows for the same data: no random "
            "numbers, no LIMIT without ORDER BY"
        )
    yield f"{'data':<12}{train[0]:,} rows to train on and {test[0]:,} to test on; two loads gave the same"


def _rows(config: Path, node: Node, key: bytes) -> tuple[tuple[int, str], tuple[int, str]]:
    """Number and digest of a node's training rows and of its test rows."""
    experiment = _read(config)
    members = experiment.flower.clients
    if node.name not in members:
        raise ClientwiseError(f"{node.name} is not in flower.clients: {', '.join(members)}")
    own = read_own(loader_in(node.loader), node.data, node.cell, key)
    data = data_held_by(experiment, {members.index(node.name): own}, {})
    held = [(len(one.targets), rows_digest(key, data, one)) for one in (data.train, data.test)]
    return held[0], held[1]


def _history(experiment: Experiment, ledger: Ledger, cell: int, was_used: bool) -> Iterator[str]:
    """What this node has released about a row in its life, and the most that it will have."""
    entries = read(ledger.path)
    if was_used and not entries:
        yield f"{'warning':<12}{ledger.path} is empty, but its key is older: what was released is not known"
    if lost := ledger.missing(entries):
        yield f"{'warning':<12}{lost} entries of the ledger are missing: what they released is not known"
    for line in lifetime(entries, experiment, cell):
        yield f"{'lifetime':<12}{line}"

"""A SuperNode that runs only apps approved by the node's operator.

    python -m clientwise.flower.node agree AGREED APP    APP is the app's folder, or a bundle (.fab);
        [--smallest-cell K]                              prints what the node will answer
    python -m clientwise.flower.node hash APP            the hash of its bundle
    python -m clientwise.flower.node start AGREED ...    other arguments as for flower-supernode

Flower packs an app into one file, a bundle, and a SuperNode runs every bundle that its SuperLink
delivers. Here the SHA-256 of the bundle must be in the file AGREED. Any other bundle is answered
with an error before it is unpacked.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab import Fab
from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode

from ..errors import ClientwiseError
from ..experiment.config import load_experiment
from .allowance import describe_nodes
from .patches import BundleSigner, Certificate, replace_fleet_client, replace_popen
from .small_numbers import USUAL_CELL
from .watchdog import Watchdog, end_node

SILENCE = 180.0  # seconds without an answer of the server, after which a node ends
log = logging.getLogger("flwr.clientwise")


def bundle_hash(app: Path) -> str:
    """SHA-256 of the bundle that Flower makes of an app's folder, or of a bundle."""
    if not app.exists():
        raise ClientwiseError(f"{app}: no such app")
    content = build_fab_from_disk(app) if app.is_dir() else app.read_bytes()
    return hashlib.sha256(content).hexdigest()


def agree(agreed: Path, app: Path) -> str:
    """Approve an app for this node; returns the hash of its bundle."""
    found = bundle_hash(app)
    now = f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"
    with agreed.open("a", encoding="utf-8") as file:
        file.write(f"{found}  {app.resolve()}, {now}\n")
    return found


def answers_to(app: Path, cell: int) -> list[str]:
    """What this node will answer to an app; nothing for a bundle, or an app without an experiment."""
    lines = []
    for config in sorted(app.glob("*/experiment.toml")):
        lines += describe_nodes(load_experiment(config), cell)
    return lines


def approved_by(agreed: Path) -> set[str]:
    """The hashes of the bundles that a file names."""
    lines = agreed.read_text(encoding="utf-8").splitlines() if agreed.exists() else []
    return {line.split()[0] for line in lines if line.strip()}


def is_agreed(fab: Fab, agreed: Path) -> bool:
    """Whether the file names this bundle.

    The file is read every time, so a deleted line counts at once.
    """
    found = hashlib.sha256(fab.content).hexdigest()
    if found == fab.hash_str and found in approved_by(agreed):
        return True
    log.error(
        "REFUSED an app that is not approved by the node's operator: its bundle %s is not in %s",
        found,
        agreed,
    )
    return False


def start(
    agreed: Path,
    certificate: Certificate | None,
    uplink: Path | None,
    arguments: Sequence[str],
    silence: float = SILENCE,
) -> None:
    """Run `flower-supernode`; see `patches.py` for what is added to it.

    Args:
        agreed: file with the hashes of approved bundles.
        certificate: TLS client certificate and its key; None where the server asks for none.
        uplink: Unix socket that leads to the server, for a node without a network.
        arguments: as for `flower-supernode`.
        silence: seconds without an answer of the server, after which this process ends.
    """
    signer = BundleSigner()
    watchdog = Watchdog(silence)
    is_approved = partial(is_agreed, agreed=agreed)
    replace_fleet_client(signer, is_approved, certificate, uplink, watchdog.answered)
    replace_popen(start_client_internal, _start_superexec)
    with TemporaryDirectory(prefix="clientwise-node-") as folder:
        trusted = Path(folder, "trusted-entities.yaml")
        trusted.write_text(signer.trusted_entities(), encoding="utf-8")
        sys.argv = ["flower-supernode", *arguments, "--trusted-entities", str(trusted)]
        with watchdog:
            flower_supernode()


def _start_superexec(command: Sequence[str]) -> None:
    """Start our SuperExec with the arguments that Flower gives its own."""
    subprocess.Popen([sys.executable, "-m", "clientwise.flower.superexec", *command[1:]])


def main() -> None:
    """The commands `agree`, `hash` and `start`."""
    parser = argparse.ArgumentParser(prog="python -m clientwise.flower.node", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    approve = commands.add_parser("agree", help="approve an app for this node")
    approve.add_argument("agreed", type=Path)
    approve.add_argument("app", type=Path)
    approve.add_argument("--smallest-cell", type=int, metavar="K", default=USUAL_CELL)
    shown = commands.add_parser("hash", help="print the hash of an app's bundle")
    shown.add_argument("app", type=Path)
    node = commands.add_parser("start", help="run the SuperNode")
    node.add_argument("--certificate", type=Path, nargs=2, metavar=("FILE", "KEY"))
    node.add_argument("--uplink", type=Path, metavar="SOCKET")
    node.add_argument("--silence", type=float, metavar="SECONDS", default=SILENCE)
    node.add_argument("agreed", type=Path)
    node.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    try:
        if options.command == "agree":
            print(*answers_to(options.app, options.smallest_cell), sep="\n")
            print(f"approved {agree(options.agreed, options.app)}")
            if earlier := len(approved_by(options.agreed)) - 1:
                print(f"apps approved earlier, still valid: {earlier} (lines of {options.agreed})")
        elif options.command == "hash":
            print(bundle_hash(options.app))
        else:
            start(
                options.agreed,
                options.certificate,
                options.uplink,
                options.arguments,
                options.silence,
            )
            end_node("the connection to the server has ended")
    except ClientwiseError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

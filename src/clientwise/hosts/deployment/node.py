"""A SuperNode that runs only the app approved by the node's operator.

    python -m clientwise.hosts.deployment.node agree LEDGER APP ...   APP is the app's folder, or a bundle (.fab);
                                                            prints what the node will answer
    python -m clientwise.hosts.deployment.node withdraw LEDGER        the node answers nothing from now on
    python -m clientwise.hosts.deployment.node hash APP               the hash of its bundle
    python -m clientwise.hosts.deployment.node start LEDGER ...       other arguments as for flower-supernode

Flower packs an app into one file, a bundle, and a SuperNode runs every bundle that its SuperLink
delivers. Here the SHA-256 of the bundle must be that of the last approval in the node's ledger. Any
other bundle is answered with an error before it is unpacked.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from flwr.supercore.fab import Fab
from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode

from ...errors import ClientwiseError
from .agree import Node, agree, bundle_hash
from .approval import present, withdraw
from .ledger import Ledger, read
from .patches import BundleSigner, Certificate, replace_fleet_client, replace_popen
from .small_numbers import USUAL_CELL
from .watchdog import Watchdog, end_node

SILENCE = 180.0  # seconds without an answer of the server, after which a node ends
log = logging.getLogger("flwr.clientwise")


def is_agreed(fab: Fab, ledger: Path) -> bool:
    """Whether the present approval names this bundle.

    The ledger is read every time, so an approval that ended counts no more.
    """
    found = hashlib.sha256(fab.content).hexdigest()
    approval = present(read(ledger))
    if approval is not None and found == fab.hash_str == approval["bundle"]:
        return True
    log.error(
        "REFUSED an app that is not approved by the node's operator: its bundle %s is not that of the last "
        "approval in %s. Approvals of version 0.2.0 ended with the upgrade. Approve with deploy/agree.sh",
        found,
        ledger,
    )
    return False


def start(
    ledger: Path,
    certificate: Certificate | None,
    uplink: Path | None,
    arguments: Sequence[str],
    silence: float = SILENCE,
) -> None:
    """Run `flower-supernode`; see `patches.py` for what is added to it.

    Args:
        ledger: file with the node's approvals.
        certificate: TLS client certificate and its key; None where the server asks for none.
        uplink: Unix socket that leads to the server, for a node without a network.
        arguments: as for `flower-supernode`.
        silence: seconds without an answer of the server, after which this process ends.
    """
    signer = BundleSigner()
    watchdog = Watchdog(silence)
    is_approved = partial(is_agreed, ledger=ledger)
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
    subprocess.Popen([sys.executable, "-m", "clientwise.hosts.deployment.superexec", *command[1:]])


def main() -> None:
    """The commands `agree`, `withdraw`, `hash` and `start`."""
    parser = argparse.ArgumentParser(
        prog="python -m clientwise.hosts.deployment.node", description=__doc__
    )
    commands = parser.add_subparsers(dest="command", required=True)
    approve = commands.add_parser("agree", help="approve an app for this node")
    approve.add_argument("ledger", type=Path)
    approve.add_argument("app", type=Path)
    for option in ("--name", "--data", "--loader", "--identity"):
        approve.add_argument(option, required=True)
    approve.add_argument("--smallest-cell", type=int, metavar="K", default=USUAL_CELL)
    approve.add_argument("--words", default="")
    ended = commands.add_parser("withdraw", help="end the present approval")
    ended.add_argument("ledger", type=Path)
    ended.add_argument("--words", default="")
    shown = commands.add_parser("hash", help="print the hash of an app's bundle")
    shown.add_argument("app", type=Path)
    node = commands.add_parser("start", help="run the SuperNode")
    node.add_argument("--certificate", type=Path, nargs=2, metavar=("FILE", "KEY"))
    node.add_argument("--uplink", type=Path, metavar="SOCKET")
    node.add_argument("--silence", type=float, metavar="SECONDS", default=SILENCE)
    node.add_argument("ledger", type=Path)
    node.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    try:
        _run(options)
    except ClientwiseError as error:
        sys.exit(f"error: {error}")


def _run(options: argparse.Namespace) -> None:
    if options.command == "agree":
        node = Node(
            options.name,
            options.ledger,
            options.data,
            options.loader,
            Path(options.identity),
            options.smallest_cell,
        )
        for line in agree(options.app, node, options.words):
            print(line, flush=True)
    elif options.command == "withdraw":
        withdraw(Ledger(options.ledger), options.words)
        print("withdrawn: this node answers nothing until deploy/agree.sh approves an app")
    elif options.command == "hash":
        print(bundle_hash(options.app))
    else:
        start(
            options.ledger,
            options.certificate,
            options.uplink,
            options.arguments,
            options.silence,
        )
        end_node("the connection to the server has ended")


if __name__ == "__main__":
    main()

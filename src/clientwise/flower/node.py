"""What a member of a federation runs beside its data: a SuperNode that executes only what its hospital agreed to.

    python -m clientwise.flower.node agree AGREED APP      APP is the app's folder, or a bundle (.fab) made of one
    python -m clientwise.flower.node start AGREED ...      the other arguments are those of flower-supernode

Flower runs an app as a bundle, one file, and a SuperNode executes whatever bundle its SuperLink delivers. Here the
SHA-256 of the bundle must stand in the file AGREED; any other is answered with an error before it is unpacked.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import ssl
import sys
from collections.abc import Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.proto.fab_pb2 import GetFabRequest, GetFabResponse
from flwr.supercore.fab import Fab
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.fleet_http_client import FleetHttpClient

from ..errors import ClientwiseError

log = logging.getLogger("flwr.clientwise")
Certificate = tuple[Path, Path]  # and its key


def agree(agreed: Path, app: Path) -> str:
    """Allow an app to run on this node; the hash of its bundle."""
    if not app.exists():
        raise ClientwiseError(f"{app}: no such app")
    found = hashlib.sha256(build_fab_from_disk(app) if app.is_dir() else app.read_bytes()).hexdigest()
    with agreed.open("a", encoding="utf-8") as file:
        file.write(f"{found}  {app.resolve()}, {datetime.now().astimezone():%Y-%m-%d %H:%M %Z}\n")
    return found


def is_agreed(fab: Fab, agreed: Path) -> bool:
    """Whether a bundle is one that the file names; read anew every time, so that a line taken out counts at once."""
    found = hashlib.sha256(fab.content).hexdigest()
    lines = agreed.read_text(encoding="utf-8").splitlines() if agreed.exists() else []
    if found == fab.hash_str and any(line.split()[:1] == [found] for line in lines):
        return True
    log.error("REFUSED an app: its bundle is %s, and this node runs only what %s names", found, agreed)
    return False


def start(agreed: Path, certificate: Certificate | None, uplink: Path | None, arguments: Sequence[str]) -> None:
    """Run `flower-supernode` with these arguments; `certificate` is shown to whoever answers for the SuperLink.

    `uplink` is a Unix socket that leads there, for a node that has no network.

    Flower can demand of bundles that they are signed, and asks a licensed SuperLink whether they are. It is made to
    demand it here, and what it asks is answered by this node's own file.
    """
    command = import_module("flwr.supernode.cli.flower_supernode")
    usual = start_client_internal.start_client_internal

    def demanding(**options: Any) -> None:
        usual(**options | {"trusted_entities": {"agreed": str(agreed)}})

    class Client(FleetHttpClient):
        """Shows its certificate before anything is said, and takes the SuperLink's word for nothing about a bundle."""

        def __init__(self, base_url: str, *, verify: ssl.SSLContext, **options: Any) -> None:
            if certificate is not None:
                verify.load_cert_chain(*certificate)
            super().__init__(base_url, verify=verify, **options)
            if uplink is not None:
                way = httpx.HTTPTransport(verify=verify, uds=str(uplink))
                self._client = httpx.Client(transport=way, timeout=self._client.timeout)

        def GetFab(self, request: GetFabRequest) -> GetFabResponse:  # noqa: N802  Flower's name
            response = super().GetFab(request)
            response.fab.verifications.clear()
            response.fab.verifications["valid_license"] = "not asked for"
            return response

    _replace(fleet_http_connection, "FleetHttpClient", Client)
    _replace(start_client_internal, "_verify_fab", lambda fab, entities: is_agreed(fab, agreed))
    _replace(command, "start_client_internal", demanding)
    sys.argv = ["flower-supernode", *arguments]
    command.flower_supernode()


def _replace(module: object, name: str, value: object) -> None:
    """Put ours in the place of Flower's; where Flower has it no longer, nothing may run."""
    if not hasattr(module, name):
        raise ClientwiseError(f"this Flower has no {name}: clientwise cannot hold it to what was agreed")
    setattr(module, name, value)


def main() -> None:
    """The two commands."""
    parser = argparse.ArgumentParser(prog="python -m clientwise.flower.node", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("agree", help="allow an app to run on this node")
    one.add_argument("agreed", type=Path)
    one.add_argument("app", type=Path)
    other = commands.add_parser("start", help="run the SuperNode")
    other.add_argument("--certificate", type=Path, nargs=2, metavar=("FILE", "KEY"))
    other.add_argument("--uplink", type=Path, metavar="SOCKET")
    other.add_argument("agreed", type=Path)
    other.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    try:
        if options.command == "agree":
            print(f"agreed to {agree(options.agreed, options.app)}")
        else:
            start(options.agreed, options.certificate, options.uplink, options.arguments)
    except ClientwiseError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

"""The node of every client, and the engine that reaches them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path

from flwr.serverapp import Grid

from ...engine.wrappers.engine import EmbeddedEngine
from ...experiment.build.clients import choose_hostile
from ...experiment.checks.secure import has_secrets
from ...experiment.config.schema import Experiment
from ...experiment.running.runner import Connect
from ..deployment.receipts import Outbox
from ..deployment.signing import Signer
from .claims import Claims
from .engine import FlowerEngine
from .exchange import Connected
from .secure_wire import SecureRun

log = logging.getLogger("flwr.clientwise")  # a child of Flower's logger: `flwr log` shows it


def connector(
    experiment: Experiment,
    grid: Grid,
    connected: Connected,
    on_versions: Callable[[int, Mapping[str, str]], None] = lambda client, versions: None,
    on_repeat: Callable[[str], None] = lambda text: None,
    make_claims: Callable[[], Claims | None] = lambda: None,
    signing_key: Path | None = None,
    run_id: int = 0,
    simulated: bool = True,
    outbox: Outbox | None = None,
) -> Connect:
    """A function that replaces a lane's local engine by one that uses the grid.

    See `FlowerEngine`; `make_claims` is called for every lane. `signing_key` is the file of the key
    that signs instructions. `run_id` is Flower's number of the run; `simulated` clients have
    identities that everybody can compute. `outbox` has the receipts of the signed record.
    """
    signer = Signer(signing_key)

    def connect(local: EmbeddedEngine, seed: int) -> FlowerEngine:
        secure = None
        if has_secrets(experiment):
            secure = SecureRun.of(experiment, run_id, local.num_clients, simulated=simulated)
        hostile = choose_hostile(experiment, local.num_clients, seed, local.data.names)
        keepers = [client for client, one in hostile.items() if one.ignore_global]
        return FlowerEngine(
            local,
            grid,
            connected,
            seed=seed,
            settings=experiment.flower,
            keepers=keepers,
            on_versions=on_versions,
            signer=signer,
            outbox=outbox,
            on_repeat=on_repeat,
            claims=make_claims(),
            secure=secure,
            awaits_all=any(method.noises_mean for method in experiment.build_methods()),
        )

    return connect


def simulated_clients(grid: Grid, num_clients: int) -> Connected:
    """Clients dealt out to the nodes of a simulation.

    A message says which client its node plays.
    """

    def connected() -> Mapping[int, int]:
        nodes = sorted(grid.get_node_ids())
        if not nodes:
            return {}
        return {client: nodes[client % len(nodes)] for client in range(num_clients)}

    return connected


def registered_clients(grid: Grid, names: list[str]) -> Connected:
    """Nodes by the name under which their key was registered.

    Of two nodes with the same name, the one registered last is used: a member gets a new key before
    the old node ends.
    """
    logged: set[str] = set()

    def warn_once(text: str) -> None:
        if text not in logged:
            logged.add(text)
            log.warning("%s", text)

    def connected() -> Mapping[int, int]:
        found: dict[int, int] = {}
        for node in sorted(grid.get_nodes(), key=lambda node: node.registered_at):
            if node.name not in names:
                warn_once(_unknown_name(node.node_id, node.name, names))
                continue
            client = names.index(node.name)
            if client in found:
                warn_once(
                    f"two nodes are registered as {node.name}: node {node.node_id} is used, "
                    f"unregister node {found[client]}"
                )
            found[client] = node.node_id
        return found

    return connected


def _unknown_name(node_id: int, name: str, names: list[str]) -> str:
    text = f"node {node_id} is registered as {name!r}, which is not in flower.clients"
    for close in get_close_matches(name, names, 1):
        text += f"; did you mean {close}?"
    return text

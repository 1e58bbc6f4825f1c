"""Which client is at which node, and what the runner is given to reach them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from difflib import get_close_matches

from flwr.serverapp import Grid

from ..engine.wrapping import EmbeddedEngine
from ..experiment.build import choose_hostile
from ..experiment.runner import Connect
from ..experiment.schema import Experiment
from .engine import Connected, FlowerEngine

log = logging.getLogger("flwr.clientwise")  # below Flower's own logger, so that `flwr log` shows it


def connector(
    experiment: Experiment,
    grid: Grid,
    connected: Connected,
    on_versions: Callable[[int, Mapping[str, str]], None] = lambda client, versions: None,
) -> Connect:
    """What puts a grid between a lane's engine and its clients; `on_versions` is told what a client runs."""

    def connect(local: EmbeddedEngine, seed: int) -> FlowerEngine:
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
        )

    return connect


def simulated_clients(grid: Grid, num_clients: int) -> Connected:
    """Clients dealt out to whatever nodes there are: a message says which client its node is to play."""

    def connected() -> Mapping[int, int]:
        nodes = sorted(grid.get_node_ids())
        return {client: nodes[client % len(nodes)] for client in range(num_clients)} if nodes else {}

    return connected


def registered_clients(grid: Grid, names: list[str]) -> Connected:
    """Nodes by the name under which their key was registered.

    Of two with one name the key that was registered last counts: a member gets a new key before the old node ends.
    """
    said: set[str] = set()

    def warn_once(text: str) -> None:
        if text not in said:
            said.add(text)
            log.warning("%s", text)

    def connected() -> Mapping[int, int]:
        found: dict[int, int] = {}
        for node in sorted(grid.get_nodes(), key=lambda node: node.registered_at):
            if node.name not in names:
                (*_, hint) = ("", *(f"; did you mean {name}?" for name in get_close_matches(node.name, names, 1)))
                warn_once(f"node {node.node_id} is registered as {node.name!r}, no name in flower.clients{hint}")
            elif (client := names.index(node.name)) in found:
                warn_once(f"two nodes are {node.name}: {node.node_id} counts, unregister node {found[client]}")
                found[client] = node.node_id
            else:
                found[client] = node.node_id
        return found

    return connected

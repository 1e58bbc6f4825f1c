"""The node of every client, and the engine that reaches them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from difflib import get_close_matches

from flwr.serverapp import Grid

from ...engine.wrappers.engine import EmbeddedEngine
from ...experiment.build.data import choose_hostile
from ...experiment.config.schema import Experiment
from ...experiment.running.runner import Connect
from .claims import Claims
from .engine import FlowerEngine
from .exchange import Connected

log = logging.getLogger("flwr.clientwise")  # a child of Flower's logger: `flwr log` shows it


def connector(
    experiment: Experiment,
    grid: Grid,
    connected: Connected,
    make_claims: Callable[[], Claims | None] = lambda: None,
) -> Connect:
    """A function that replaces a lane's local engine by one that uses the grid.

    See `FlowerEngine`; `make_claims` is called for every lane.
    """

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
            claims=make_claims(),
            awaits_all=any(method.noises_mean for method in experiment.build_methods()),
        )

    return connect


def is_simulated(grid: Grid) -> bool:
    """Whether the nodes are those of a simulation.

    Flower does not export the class of its grid, and moves it between versions.
    """
    return "InMemoryGrid" in {kind.__name__ for kind in type(grid).__mro__}


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

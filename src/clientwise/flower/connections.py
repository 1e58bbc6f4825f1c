"""Which client is at which node, and what the runner is given to reach them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from flwr.serverapp import Grid

from ..engine.local import LocalEngine
from ..experiment.build import choose_hostile
from ..experiment.runner import Connect
from ..experiment.schema import Experiment
from .engine import Connected, FlowerEngine


def connector(experiment: Experiment, grid: Grid, connected: Connected) -> Connect:
    """What puts a grid between a lane's engine and its clients."""

    def connect(local: LocalEngine, seed: int) -> FlowerEngine:
        hostile = choose_hostile(experiment, local.num_clients, seed, local.data.names)
        keepers = [client for client, one in hostile.items() if one.ignore_global]
        return FlowerEngine(local, grid, connected, seed=seed, settings=experiment.flower, keepers=keepers)

    return connect


def simulated_clients(grid: Grid, num_clients: int) -> Connected:
    """Clients dealt out to whatever nodes there are: a message says which client its node is to play."""

    def connected() -> Mapping[int, int]:
        nodes = sorted(grid.get_node_ids())
        return {client: nodes[client % len(nodes)] for client in range(num_clients)} if nodes else {}

    return connected


def registered_clients(grid: Grid, names: list[str]) -> Connected:
    """Nodes by the name under which their key was registered; a name that two of them bear is nobody's."""

    def connected() -> Mapping[int, int]:
        nodes = list(grid.get_nodes())
        bearers = Counter(node.name for node in nodes)
        return {names.index(node.name): node.node_id for node in nodes if node.name in names and bearers[node.name] < 2}

    return connected

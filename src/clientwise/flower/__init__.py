"""clientwise on Flower: complete apps (`server_app`, `client_app`), or the weights alone.

    strategy = Weighted(FedAvg(), criteria=["label_diversity", "num-examples"])
    strategy.start(grid, initial_arrays, num_rounds=10)

See docs/frameworks.md. Needs `clientwise[flower]`.

The server app runs an experiment as `clientwise run` does, with its clients reached through a grid.
The code is in `hosts/flower/`: `engine.py` sends requests, `client_app.py` answers them with the embedded
engine, and `wire.py` defines the messages. This package is the import path for users.

In a simulation a client's data come from the config, so any node can play any client. In a
deployment a node is the client under whose name its key was registered, and its data come from the
path in its own node config.
"""

from ..errors import needing

with needing("flower", "clientwise.flower"):
    from ..hosts.flower.client_app import client_app
    from ..hosts.flower.data import load_npz, write_parts
    from ..hosts.flower.server_app import server_app
    from ..hosts.flower.strategy import MethodStrategy, RoundWeights, Weighted, measure
    from ..hosts.protocols import OwnData

__all__ = [
    "MethodStrategy",
    "OwnData",
    "RoundWeights",
    "Weighted",
    "client_app",
    "load_npz",
    "measure",
    "server_app",
    "write_parts",
]

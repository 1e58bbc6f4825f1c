"""clientwise on Flower: whole apps (`server_app`, `client_app`), or the weighting alone in an app of your own.

    strategy = Weighted(FedAvg(), criteria=["label_diversity", "num-examples"])
    strategy.start(grid, initial_arrays, num_rounds=10)

See docs/flower.md. Needs `clientwise[flower]`.

The server's app runs an experiment exactly as `clientwise run` does, with its clients reached through a grid:
`engine.py` asks, `client.py` answers with the embedded engine, `wire.py` is all that travels between them. In a
simulation a client's data come from the config, so any node can play any client; in a deployment a node is the client
under whose name its key was registered, and its data come from the path in its own node config.
"""

# ruff: noqa: E402  the switches come before what reads them
import os

# Nothing is reported to the makers of Flower and Ray. Both read these when they are imported.
for _switch, _value in {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what Ray will do anyway, without the warning that it will
}.items():
    os.environ.setdefault(_switch, _value)

# isort: split

from .client_app import client_app
from .data import OwnData, load_npz, write_parts
from .server_app import server_app
from .strategy import RoundWeights, Weighted, measure

__all__ = ["OwnData", "RoundWeights", "Weighted", "client_app", "load_npz", "measure", "server_app", "write_parts"]

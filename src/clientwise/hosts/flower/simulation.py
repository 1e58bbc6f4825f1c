"""Flower's simulation on this machine, for `clientwise run --set engine=flower`."""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import ray
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from ...errors import ClientwiseError
from ...experiment.build.data import count_clients
from ...experiment.config.schema import Experiment
from ...experiment.running.runner import Connect
from .client_app import client_app
from .server_app import connector, simulated_clients

# At most: a node can play many clients, and Flower's time grows with the number of nodes
SIMULATED_NODES = 64


@contextmanager
def simulation(experiment: Experiment) -> Iterator[Connect]:
    """Flower's simulation on this machine, as long as the context lasts."""
    for name in ("flwr", "ray._private.worker"):
        logging.getLogger(name).setLevel(logging.ERROR)
    num_clients = count_clients(experiment)
    num_nodes = min(num_clients, SIMULATED_NODES)
    clients = client_app(experiment.to_dict())
    begun: queue.Queue[Grid | BaseException] = queue.Queue()
    ended = threading.Event()
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        begun.put(grid)
        ended.wait()  # the rounds run in the thread that entered this context

    def simulate() -> None:
        try:
            run_simulation(
                server,
                clients,
                num_nodes,
                backend_config={
                    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                    "init_args": {
                        "logging_level": "error",
                        "log_to_driver": False,
                    },  # failures are in the replies
                },
            )
        except BaseException as error:  # raised in the waiting thread
            begun.put(error)

    thread = threading.Thread(target=simulate, name="flower-simulation")
    thread.start()
    try:
        grid = begun.get()
        if isinstance(grid, BaseException):
            raise ClientwiseError(f"Flower's simulation did not start: {grid}") from grid
        dealt = simulated_clients(grid, num_clients)

        def connected() -> Mapping[int, int]:
            if not thread.is_alive():
                raise ClientwiseError("Flower's simulation has ended; resume the run")
            return dealt()

        _keep_signals(thread)
        yield connector(experiment, grid, connected)
    finally:
        ended.set()
        thread.join()


def _keep_signals(thread: threading.Thread) -> None:
    """Restore the SIGTERM handler, which Ray replaces when it starts by one that aborts."""
    while not ray.is_initialized() and thread.is_alive():
        time.sleep(0.05)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))

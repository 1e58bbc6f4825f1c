"""The generic `ServerApp`, and Flower's simulation: an experiment whose clients are the nodes of a grid."""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ...engine.wrapping import EmbeddedEngine
from ...errors import ClientwiseError, needing
from ...experiment.build.data import count_clients
from ...experiment.config.schema import Experiment
from ...experiment.load import load_experiment
from ...experiment.running.runner import Connect, run
from ...experiment.trackers import Progress
from ...registry import suggest
from .client_app import client_app
from .data import Config, server_side
from .engine import FlowerEngine
from .exchange import Connected

log = logging.getLogger("flwr.clientwise")  # a child of Flower's logger: `flwr log` shows it
# At most: a node can play many clients, and Flower's time grows with the number of nodes
SIMULATED_NODES = 64


def server_app(
    config: Config, on_round: Callable[[Progress], None] = lambda progress: None
) -> ServerApp:
    """A Flower `ServerApp` that runs the config's experiment, or resumes it.

    Args:
        config: an experiment's file or table.
        on_round: called after every round that is recorded.

    Keys of the run config:

    - `out`: the run folder. A run that is in it is resumed.
    - `server-data`: path of the server's own samples in a deployment; "" for none.
    - `initial-model`: path of a model to start with.
    - `accept-changes`: resume although the server's samples, plugins or versions changed. The
      record says so.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = context.run_config
        replaced: dict[str, Any] = {"engine": "flower"}
        if settings.get("initial-model"):
            replaced["initial_model"] = settings["initial-model"]
        experiment = load_experiment(config, replaced=replaced)
        out = Path(str(settings.get("out") or f"runs/{experiment.name}"))
        is_deployment = not _is_simulated(grid)
        data = None
        if is_deployment:
            data = server_side(experiment, str(settings.get("server-data", "")))
            connected = registered_clients(grid, experiment.flower.clients)
        else:
            connected = simulated_clients(grid, count_clients(experiment))
        resume = (out / "config.toml").exists()

        def round_done(progress: Progress) -> None:
            _log_round(experiment, progress)
            on_round(progress)

        log.info("%s %s", "resuming the run in" if resume else "starting a run in", out.resolve())
        run(
            experiment,
            out,
            data=data,
            resume=resume,
            accept_changes=settings.get("accept-changes") is True,
            on_round=round_done,
            engines=nullcontext(
                connector(experiment, grid, connected, is_deployment=is_deployment)
            ),
        )
        log.info("finished: %s", out.resolve())

    return app


def _log_round(experiment: Experiment, progress: Progress) -> None:
    record = progress.record
    where = (
        f"{progress.method}, seed {progress.seed}, round {record.round_num} of {progress.rounds}"
    )
    shown = record.report or record.local
    quality = f", metric {float(shown.overall()[0]):.4f}" if shown else ""
    log.info("%s: %d clients weighed%s", where, len(record.client_ids), quality)
    names = dict(enumerate(experiment.flower.clients))
    missing = record.local.missing if record.local else ()
    for refusal in (*record.refusals, *missing):
        client = refusal.client_id
        name = names.get(client, "simulated")
        log.warning("%s: client %d (%s): %s", where, client, name, refusal.reason)


def connector(
    experiment: Experiment, grid: Grid, connected: Connected, *, is_deployment: bool = False
) -> Connect:
    """A function that replaces a lane's local engine by one that uses the grid; see `FlowerEngine`."""

    def connect(local: EmbeddedEngine, seed: int) -> FlowerEngine:
        return FlowerEngine(
            local,
            grid,
            connected,
            settings=experiment.flower,
            is_deployment=is_deployment,
            awaits_all=any(method.noises_mean for method in experiment.build_methods()),
        )

    return connect


def _is_simulated(grid: Grid) -> bool:
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
                known = suggest(node.name, names)
                warn_once(
                    f"node {node.node_id} is registered as {node.name!r}, which is not in "
                    f"flower.clients{known}"
                )
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


@contextmanager
def simulation(experiment: Experiment) -> Iterator[Connect]:
    """Flower's simulation on this machine, as long as the context lasts: `clientwise run --engine flower`."""
    with needing("flower", "Flower's simulation"):
        import ray
        from flwr.simulation import run_simulation

    for name in ("flwr", "ray._private.worker"):
        logging.getLogger(name).setLevel(logging.ERROR)
    num_clients = count_clients(experiment)
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
                min(num_clients, SIMULATED_NODES),
                backend_config={
                    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                    # Failures are in the replies
                    "init_args": {"logging_level": "error", "log_to_driver": False},
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

        while not ray.is_initialized() and thread.is_alive():
            time.sleep(0.05)
        _restore_sigterm()
        yield connector(experiment, grid, connected)
    finally:
        ended.set()
        thread.join()


def _restore_sigterm() -> None:
    """Ray replaces the handler when it starts, by one that aborts."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))

"""The generic `ServerApp`: runs an experiment whose clients are the nodes of a grid."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ...engine.wrapping import EmbeddedEngine
from ...experiment.build.data import choose_hostile, count_clients
from ...experiment.config.schema import Experiment
from ...experiment.load import load_experiment
from ...experiment.running.lanes import Progress
from ...experiment.running.runner import Connect, run
from ...record.files import is_locked, wait_until_free
from .data import Config, server_side
from .engine import Claims, FlowerEngine
from .exchange import Connected

log = logging.getLogger("flwr.clientwise")  # a child of Flower's logger: `flwr log` shows it
LOCK_SECONDS = 180  # longer than a server app takes to notice that its SuperLink was killed


def server_app(config: Config) -> ServerApp:
    """A Flower `ServerApp` that runs the config's experiment, or resumes it.

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
        flower = experiment.flower
        if is_simulated(grid):
            data = None
            connected = simulated_clients(grid, count_clients(experiment))
        else:
            data = server_side(experiment, str(settings.get("server-data", "")))
            connected = registered_clients(grid, flower.clients)

        def make_claims() -> Claims | None:
            if is_simulated(grid):
                return None
            return Claims(flower.max_change)

        resume = (out / "config.toml").exists()
        _wait_for_earlier(out)
        log.info("%s %s", "resuming the run in" if resume else "starting a run in", out.resolve())
        run(
            experiment,
            out,
            data=data,
            resume=resume,
            accept_changes=settings.get("accept-changes") is True,
            on_round=partial(_log_round, experiment),
            engines=nullcontext(connector(experiment, grid, connected, make_claims)),
        )
        log.info("finished: %s", out.resolve())

    return app


def _wait_for_earlier(out: Path) -> None:
    """Wait for the process of an earlier start: after its SuperLink was killed, it ends late."""
    if not is_locked(out):
        return
    log.warning(
        "%s: the process of an earlier start still writes to this run. Waiting up to %d s for its end",
        out.resolve(),
        LOCK_SECONDS,
    )
    wait_until_free(out, LOCK_SECONDS)


def _log_round(experiment: Experiment, progress: Progress) -> None:
    record = progress.record
    where = (
        f"{progress.method}, seed {progress.seed}, round {record.round_num} of {progress.rounds}"
    )
    quality = ""
    if record.report:
        quality = f", on the server's samples {float(record.report.overall()[0]):.4f}"
    elif record.local:
        quality = f", on the clients' samples {float(record.local.overall()[0]):.4f}"
    log.info("%s: %d clients weighed%s", where, len(record.client_ids), quality)
    names = dict(enumerate(experiment.flower.clients))
    missing = record.local.missing if record.local else ()
    for refusal in (*record.refusals, *missing):
        client = refusal.client_id
        name = names.get(client, "simulated")
        log.warning("%s: client %d (%s): %s", where, client, name, refusal.reason)


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

"""The generic `ServerApp`: runs an experiment whose clients are the nodes of a grid."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ...experiment.build.data import count_clients
from ...experiment.config.schema import Experiment
from ...experiment.load import load_experiment
from ...experiment.running.lanes import Progress
from ...experiment.running.runner import run
from ...record.lock import is_locked, wait_until_free
from .claims import Claims
from .connections import connector, is_simulated, registered_clients, simulated_clients
from .data import Config, found_by, from_files, server_side

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
    - `files`, `loader`: in a simulation, replace `flower.files` and `flower.loader`.

    The file members/declared beside the run folder has what members declared about their data, one
    line `NAME CRITERION VALUE` for each value.
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
            experiment = found_by(experiment, settings)
            data = from_files(experiment) if experiment.reads_files else None
            connected = simulated_clients(grid, count_clients(experiment))
        else:
            data = server_side(experiment, str(settings.get("server-data", "")))
            connected = registered_clients(grid, flower.clients)

        def make_claims() -> Claims | None:
            if is_simulated(grid):
                return None
            return Claims(flower.clients, flower.max_change, out.parent / "members" / "declared")

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

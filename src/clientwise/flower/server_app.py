"""The `ServerApp`: the experiment as everywhere else, with its clients at the nodes of a grid."""

from __future__ import annotations

import logging
import os
from contextlib import nullcontext
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid import InMemoryGrid

from ..experiment.build import count_clients
from ..experiment.config import load_experiment
from ..experiment.lanes import Progress
from ..experiment.runner import run
from ..experiment.schema import Experiment
from .connections import connector, registered_clients, simulated_clients
from .data import Config, found_by, from_files, server_side
from .events import Events

log = logging.getLogger("flwr.clientwise")  # below Flower's own logger, so that `flwr log` shows it


def server_app(config: Config) -> ServerApp:
    """A Flower `ServerApp` that runs the config's experiment, or goes on with it.

    Run config: `out` is the run folder (if there is a run in it, it is resumed), `server-data` the path of the
    server's own samples in a deployment ("" where it has none), `initial-model` that of a model to begin with,
    `accept-changes` whether it may be resumed with other samples of the server's, plugins or versions, which its
    record then says. `files` and `loader` are for a simulation: where `flower.files` and `flower.loader` are.

    Beside the run folder stands OUT-events.jsonl: what happened, at the server's time. The shell command in the
    environment's CLIENTWISE_ALERT gets a line of it for what needs a person: a member lost or refused, a round that
    left the model as it was, the end. OUT-stop has the number of the run that deploy/stop.sh stops, whose end is no
    failure.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        began = {"initial_model": path} if (path := context.run_config.get("initial-model")) else {}
        experiment = load_experiment(config, replaced={"engine": "flower", **began})
        out = Path(str(context.run_config.get("out") or f"runs/{experiment.name}"))
        own = str(context.run_config.get("server-data", ""))
        if isinstance(grid, InMemoryGrid):
            experiment = found_by(experiment, context.run_config)
            data = from_files(experiment) if experiment.reads_files else None
            connected = simulated_clients(grid, count_clients(experiment))
        else:
            data, connected = server_side(experiment, own), registered_clients(grid, experiment.flower.clients)
        resume = (out / "config.toml").exists()
        out.parent.mkdir(parents=True, exist_ok=True)
        file, command = out.with_name(f"{out.name}-events.jsonl"), os.environ.get("CLIENTWISE_ALERT", "")
        events = Events(file, experiment.flower.clients, command)
        events.begun(resume, experiment.flower.left)
        log.info("%s %s", "going on with the run in" if resume else "beginning a run in", out.resolve())
        engines = nullcontext(connector(experiment, grid, connected, events.versions))
        accept = context.run_config.get("accept-changes") is True

        def on_round(progress: Progress) -> None:
            _log_round(experiment, progress)
            events.round_done(progress)

        try:
            run(experiment, out, data=data, resume=resume, accept_changes=accept, on_round=on_round, engines=engines)
        except BaseException as error:
            events.ended(error, asked=was_asked_to_stop(out, context.run_id))
            raise
        events.ended(None)
        log.info("finished: %s", out.resolve())

    return app


def was_asked_to_stop(out: Path, run_id: int) -> bool:
    """Whether deploy/stop.sh stops this run. Any other signal ends its process in the same way."""
    said = out.with_name(f"{out.name}-stop")
    return said.exists() and said.read_text(encoding="utf-8").strip() == str(run_id)


def _log_round(experiment: Experiment, progress: Progress) -> None:
    record, shown = progress.record, progress.record.report or progress.record.local
    quality = f", {'reported' if record.report else 'on the clients'} {float(shown.overall()[0]):.4f}" if shown else ""
    where = f"{progress.method}, seed {progress.seed}, round {record.round_num} of {progress.rounds}"
    log.info("%s: %d clients weighed%s", where, len(record.client_ids), quality)
    names = dict(enumerate(experiment.flower.clients))
    for refusal in (*record.refusals, *(record.local.missing if record.local else ())):
        client = refusal.client_id
        log.warning("%s: client %d (%s): %s", where, client, names.get(client, "simulated"), refusal.reason)

"""The generic `ServerApp`: runs an experiment whose clients are the nodes of a grid."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ...experiment.build.samples import count_clients
from ...experiment.config.schema import Experiment
from ...experiment.load import load_experiment
from ...experiment.running.lanes import Progress
from ...experiment.running.runner import run
from ...record.lock import is_locked, wait_until_free
from ..deployment.events import Events
from ..deployment.receipts import Outbox
from ..deployment.signing import Signer
from .claims import Claims
from .connections import connector, registered_clients, simulated_clients
from .data import Config, found_by, from_files, server_side
from .exchange import Connected
from .grids import is_simulated

log = logging.getLogger("flwr.clientwise")  # a child of Flower's logger: `flwr log` shows it
BY_HAND = "`clientwise receipts` writes them, to be given to the members"
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

    Every member can read a run config. deploy/start.sh therefore writes these keys into OUT-start.json
    beside the run folder, and the environment variable CLIENTWISE_RUN names the folder. Both take
    precedence over the run config.

    The file OUT-events.jsonl beside the run folder lists the run's events. The shell command in the
    environment variable CLIENTWISE_ALERT gets those that need a person: a member lost or refused, a
    round that left the model as it was, the end. OUT-stop has the number of the run that
    deploy/stop.sh stops; its end is not reported as a failure. CLIENTWISE_SIGNING_KEY names the file
    of the key that signs instructions (`hosts/deployment/signing.py`). members/declared beside the run folder has what
    members declared about their data, one line `NAME CRITERION VALUE` for each value.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = {**context.run_config, **own_settings(os.environ)}
        replaced: dict[str, Any] = {"engine": "flower"}
        if settings.get("initial-model"):
            replaced["initial_model"] = settings["initial-model"]
        experiment = load_experiment(config, replaced=replaced)
        out = Path(str(settings.get("out") or f"runs/{experiment.name}"))
        if is_simulated(grid):
            experiment = found_by(experiment, settings)
            data = from_files(experiment) if experiment.reads_files else None
            connected = simulated_clients(grid, count_clients(experiment))
        else:
            data = server_side(experiment, str(settings.get("server-data", "")))
            connected = registered_clients(grid, experiment.flower.clients)
        resume = (out / "config.toml").exists()
        out.parent.mkdir(parents=True, exist_ok=True)
        _wait_for_earlier(out)
        file = out.with_name(f"{out.name}-events.jsonl")
        command = os.environ.get("CLIENTWISE_ALERT", "")
        events = Events(file, experiment.flower.clients, command)
        events.begun(resume, experiment.flower.left)
        log.info("%s %s", "resuming the run in" if resume else "starting a run in", out.resolve())
        key_file = os.environ.get("CLIENTWISE_SIGNING_KEY")
        signing_key = Path(key_file) if key_file else None
        outbox = Outbox()
        if signing_key is not None and resume:  # an interrupted run did not send its last ones
            outbox.fill(out)

        def make_claims() -> Claims | None:
            if is_simulated(grid):
                return None
            flower = experiment.flower
            declared = out.parent / "members" / "declared"
            return Claims(flower.clients, flower.max_change, declared, events.declared)

        engines = nullcontext(
            connector(
                experiment,
                grid,
                connected,
                events.versions,
                events.repeated,
                make_claims,
                signing_key,
                context.run_id,
                is_simulated(grid),
                outbox,
            )
        )
        accept = settings.get("accept-changes") is True

        def on_round(progress: Progress) -> None:
            _log_round(experiment, progress)
            events.round_done(progress)
            if signing_key is not None:
                outbox.fill(out)

        try:
            run(
                experiment,
                out,
                data=data,
                resume=resume,
                accept_changes=accept,
                on_round=on_round,
                engines=engines,
                signing_key=signing_key,
            )
        except BaseException as error:
            events.ended(error, asked=was_asked_to_stop(out, context.run_id))
            raise
        if signing_key is not None and not is_simulated(grid):
            _send_last_receipts(outbox, grid, connected, signing_key)
        events.ended(None)
        log.info("finished: %s", out.resolve())

    return app


def _send_last_receipts(
    outbox: Outbox, grid: Grid, connected: Connected, signing_key: Path
) -> None:
    """Send the receipts of the last round. The run has ended: nothing that fails here undoes it."""
    try:
        missing = outbox.send(grid, connected(), Signer(signing_key))
    except Exception as error:
        log.warning("the last receipts were not sent (%s): %s", type(error).__name__, BY_HAND)
        return
    if missing:
        clients = ", ".join(map(str, missing))
        log.warning("clients %s did not confirm their last receipts: %s", clients, BY_HAND)


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


def own_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Settings that stay on the server: the run folder, and what deploy/start.sh wrote beside it."""
    if "CLIENTWISE_RUN" not in environment:
        return {}
    out = Path(environment["CLIENTWISE_RUN"])
    file = out.with_name(f"{out.name}-start.json")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return found | {"out": str(out)}


def was_asked_to_stop(out: Path, run_id: int) -> bool:
    """Whether deploy/stop.sh stops this run. Any other signal ends its process in the same way."""
    file = out.with_name(f"{out.name}-stop")
    return file.exists() and file.read_text(encoding="utf-8").strip() == str(run_id)


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

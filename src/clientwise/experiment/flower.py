"""An experiment on Flower: its two apps, a simulation of both on this machine, and the data of a real federation.

The server's app runs the experiment exactly as `clientwise run` does, with its clients reached through the grid. In a
simulation a client's data come from the config, so any node can play any client; in a deployment a node is the client
under whose name its key was registered, and its data come from the path in its own node config.
"""

from __future__ import annotations

from ..engine import flower as _no_reports  # noqa: F401  before Flower itself: switches its reports home off

# isort: split

import logging
import queue
import threading
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from flwr.superlink.grid import InMemoryGrid

from ..data.datasets import DataError
from ..data.federated import FederatedData
from ..engine.flower.client import answer, answer_failure
from ..engine.flower.server import Connected, FlowerEngine, Patience
from ..engine.flower.wire import Request
from ..engine.local import LocalEngine, pick_device
from ..errors import ClientwiseError, ConfigError
from .build import build_data, build_engine, choose_hostile, load_samples, num_clients_of
from .config import load_experiment
from .runner import Progress, run
from .schema import Experiment

log = logging.getLogger("flwr.clientwise")  # below Flower's own logger, so that `flwr log` shows it
SIMULATED_NODES = 64  # at most: a node can play many clients, and Flower looks through its nodes one by one

Config = str | Path | Mapping[str, Any]
Connect = Callable[[LocalEngine, int], FlowerEngine]  # puts Flower between a lane's engine and its clients


@dataclass(frozen=True)
class OwnData:
    """What one node holds: (inputs, targets) to train on and to test on, as the model is to see them."""

    train: tuple[Any, Any]
    test: tuple[Any, Any]
    sample_attributes: Mapping[str, Any] = field(default_factory=dict)  # facts about the training samples


def load_npz(path: str) -> OwnData:
    """Arrays train_inputs, train_targets, test_inputs, test_targets of a NumPy file; others are sample attributes."""
    arrays = _read_npz(path)
    names = ("train_inputs", "train_targets", "test_inputs", "test_targets")
    if missing := [name for name in names if name not in arrays]:
        raise DataError(f"{path}: has no array {', '.join(missing)}; numpy.savez writes such a file")
    train_inputs, train_targets, test_inputs, test_targets = (arrays.pop(name) for name in names)
    return OwnData((train_inputs, train_targets), (test_inputs, test_targets), arrays)


# The two apps ----------------------------------------------------------------------------------------------------


def client_app(config: Config, load: Callable[[str], OwnData] = load_npz) -> ClientApp:
    """A Flower `ClientApp` that trains, measures its criteria and evaluates models, as the config says.

    `load` reads a node's own data from the path `data` in its node config.
    """
    text = load_experiment(config).to_toml()
    app = ClientApp()
    for register in (app.train(), app.evaluate()):
        register(partial(_answer, text, load))
    return app


def server_app(config: Config) -> ServerApp:
    """A Flower `ServerApp` that runs the config's experiment, or goes on with it.

    Run config: `out` is the run folder (if there is a run in it, it is resumed), `server-data` the path of the
    server's own samples in a deployment ("" where it has none).
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        experiment = load_experiment(config, replaced={"engine": "flower"})
        out, own = Path(str(context.run_config["out"])), str(context.run_config.get("server-data", ""))
        if isinstance(grid, InMemoryGrid):
            data, connected = None, _simulated_clients(grid, num_clients_of(experiment))
        else:
            data, connected = server_side(experiment, own), _registered_clients(grid, experiment.flower.clients)
        resume = (out / "config.toml").exists()
        log.info("%s %s", "going on with the run in" if resume else "beginning a run in", out.resolve())
        connect = _connector(experiment, grid, connected)
        run(experiment, out, data=data, resume=resume, on_round=_log_round, connect=connect)

    return app


@contextmanager
def simulation(experiment: Experiment) -> Iterator[Connect]:
    """Flower's simulation on this machine, as long as the context lasts."""
    for chatty in ("flwr", "ray"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    num_clients = num_clients_of(experiment)
    clients = client_app(experiment.to_dict())
    begun: queue.Queue[Grid | BaseException] = queue.Queue()
    ended = threading.Event()
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        begun.put(grid)
        ended.wait()  # the rounds are run by whoever entered this context

    def simulate() -> None:
        try:
            run_simulation(
                server,
                clients,
                min(num_clients, SIMULATED_NODES),
                backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
            )
        except BaseException as error:  # told to whoever waits
            begun.put(error)

    thread = threading.Thread(target=simulate, name="flower-simulation")
    thread.start()
    try:
        grid = begun.get()
        if isinstance(grid, BaseException):
            raise ClientwiseError(f"Flower's simulation did not start: {grid}") from grid
        dealt = _simulated_clients(grid, num_clients)

        def connected() -> Mapping[int, int]:
            if not thread.is_alive():
                raise ClientwiseError("Flower's simulation has ended; go on with --resume")
            return dealt()

        yield _connector(experiment, grid, connected)
    finally:
        ended.set()
        thread.join()


def _connector(experiment: Experiment, grid: Grid, connected: Connected) -> Connect:
    settings = experiment.flower
    patience = Patience(settings.train_seconds, settings.evaluate_seconds, settings.min_replies)

    def connect(local: LocalEngine, seed: int) -> FlowerEngine:
        hostile = choose_hostile(experiment, local.num_clients, seed)
        keepers = [client for client, one in hostile.items() if one.ignore_global]
        return FlowerEngine(local, grid, connected, seed=seed, patience=patience, keepers=keepers)

    return connect


def _log_round(progress: Progress) -> None:
    record, shown = progress.record, progress.record.report or progress.record.local
    quality = f", {'reported' if record.report else 'on the clients'} {float(shown.overall()[0]):.4f}" if shown else ""
    log.info(
        "%s, seed %d: round %d of %d%s, %d clients weighed",
        progress.method,
        progress.seed,
        record.round_num,
        progress.rounds,
        quality,
        len(record.client_ids),
    )
    for refusal in (*record.refusals, *(record.local.missing if record.local else ())):
        log.warning("round %d: client %d: %s", record.round_num, refusal.client_id, refusal.reason)


# Who is where ----------------------------------------------------------------------------------------------------


def _simulated_clients(grid: Grid, num_clients: int) -> Connected:
    """Clients dealt out to whatever nodes there are: a message says which client its node is to play."""

    def connected() -> Mapping[int, int]:
        nodes = sorted(grid.get_node_ids())
        return {client: nodes[client % len(nodes)] for client in range(num_clients)} if nodes else {}

    return connected


def _registered_clients(grid: Grid, names: list[str]) -> Connected:
    """Nodes by the name under which their key was registered; a name that two of them bear is nobody's."""

    def connected() -> Mapping[int, int]:
        nodes = list(grid.get_nodes())
        bearers = Counter(node.name for node in nodes)
        return {names.index(node.name): node.node_id for node in nodes if node.name in names and bearers[node.name] < 2}

    return connected


# Data ------------------------------------------------------------------------------------------------------------


def _answer(text: str, load: Callable[[str], OwnData], message: Message, context: Context) -> Message:
    """One message to one client: found its data, does the work, says what went wrong where it cannot."""
    path = context.node_config.get("data")
    try:
        if path is not None:
            return Message(answer(message.content, partial(_engine_of_node, text, load, str(path))), reply_to=message)
        if "partition-id" not in context.node_config:
            raise DataError("this node has no data: start it with --node-config 'data=\"/path/to/it\"'")
        return Message(answer(message.content, lambda request: _simulated_engine(text, request.seed)), reply_to=message)
    except Exception as error:  # the server is to hear of it, whatever it is
        return answer_failure(message, error, private=path is not None)


@lru_cache(maxsize=1)
def _simulated_engine(text: str, seed: int) -> LocalEngine:
    """All clients of a simulation: whoever is asked for is there. Kept for the next message to this process."""
    experiment = load_experiment(tomllib.loads(text))
    data, hostile = build_data(experiment, load_samples(experiment), seed)
    return build_engine(experiment, data, hostile, seed, torch.device("cpu"))


def _engine_of_node(text: str, load: Callable[[str], OwnData], path: str, request: Request) -> LocalEngine:
    """A federation in which only this client holds anything."""
    experiment = load_experiment(tomllib.loads(text))
    own = load(path)
    data = _federation(experiment, {request.client: own}, {})
    data, hostile = build_data(experiment, data.samples, request.seed, data)
    return build_engine(experiment, data, hostile, request.seed, pick_device(experiment.device))


def server_side(experiment: Experiment, path: str) -> FederatedData:
    """A federation as its server sees it: nothing of the clients, and the server's own samples if it has any.

    The file holds the arrays weigh_inputs and weigh_targets, report_inputs and report_targets; either pair may lack.
    """
    settings = experiment.flower
    missing = [key for key in ("clients", "input_shape") if not getattr(settings, key)]
    if missing:
        hint = "is needed in a deployment, where the server sees no data"
        raise ConfigError(experiment.source, [(f"flower.{key}", hint) for key in missing])
    arrays = _read_npz(path) if path else {}
    parts = {
        part: (arrays[f"{part}_inputs"], arrays[f"{part}_targets"])
        for part in ("weigh", "report")
        if f"{part}_inputs" in arrays
    }
    return _federation(experiment, {}, parts)


def _federation(
    experiment: Experiment, held: Mapping[int, OwnData], server: Mapping[str, tuple[Any, Any]]
) -> FederatedData:
    """A federation of which only some clients' data are here."""
    settings = experiment.flower
    shape, classes = tuple(settings.input_shape), settings.num_classes
    nothing = (torch.zeros(0, *shape), torch.zeros(0, dtype=torch.int64 if classes else torch.float32))
    blocks = [block for own in held.values() for block in (own.train, own.test)] + list(server.values())
    for inputs, targets in blocks:
        if tuple(inputs.shape[1:]) != shape:
            raise DataError(f"samples of shape {tuple(inputs.shape[1:])}, but flower.input_shape = {list(shape)}")
        if torch.as_tensor(targets).is_floating_point() == bool(classes):
            raise DataError(f"targets of type {targets.dtype}, but flower.num_classes = {classes}")
    clients = range(len(settings.clients))
    names = {name for own in held.values() for name in own.sample_attributes}
    return FederatedData.from_clients(
        [held[client].train if client in held else nothing for client in clients],
        [held[client].test if client in held else nothing for client in clients],
        num_classes=classes or None,
        sample_attributes={
            name: [held[client].sample_attributes[name] if client in held else [] for client in clients]
            for name in names
        },
        weigh=server.get("weigh"),
        report=server.get("report"),
    )


def _read_npz(path: str) -> dict[str, Any]:
    try:
        with numpy.load(path) as file:
            return dict(file)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a NumPy file of arrays (.npz): {error}") from None

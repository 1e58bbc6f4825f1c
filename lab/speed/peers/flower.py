"""Flower's simulation runtime: one Ray actor per process, each with data and model kept from task to task."""

from __future__ import annotations

import argparse
import functools
import os
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from peers.in_torch import final_loss, network, set_up, tensors, train
from peers.shared import Clock, arguments
from works import WORKS


@functools.cache
def belongings(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.nn.Module]:
    """What an actor keeps; Flower would load it anew for every client."""
    return *tensors(WORKS[name]), network(WORKS[name])


def make_client(name: str, threads: int) -> ClientApp:
    app = ClientApp()

    @app.train()
    def fit(message: Message, context: Context) -> Message:
        set_up(threads)
        inputs, labels, model = belongings(name)
        client = int(context.node_config["partition-id"])
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        loss = train(model, WORKS[name], inputs[client], labels[client])
        metrics = MetricRecord({"loss": loss.item(), "num-examples": WORKS[name].samples})
        return Message(
            RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}),
            reply_to=message,
        )

    return app


def make_server(given: argparse.Namespace) -> ServerApp:
    work, clock, app = given.work, Clock(), ServerApp()

    class Timed(FedAvg):
        def aggregate_train(self, *given: object, **named: object) -> object:
            result = super().aggregate_train(*given, **named)
            clock.round_ended()
            return result

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        inputs, labels, model = belongings(work.name)
        fraction = work.cohort / work.clients + 1e-9  # it rounds down
        strategy = Timed(
            fraction_train=fraction, fraction_evaluate=0.0, min_available_nodes=work.clients
        )
        result = strategy.start(
            grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=given.total
        )
        model.load_state_dict(result.arrays.to_torch_state_dict())
        clock.report("Flower", work, "flwr", "ray", "torch", loss=final_loss(model, inputs, labels))

    return app


def main() -> None:
    given = arguments()
    os.environ |= {
        "PYTHONPATH": str(Path(__file__).parents[1]),  # the actors import what they run from here
        "OMP_NUM_THREADS": str(given.threads),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    run_simulation(
        server_app=make_server(given),
        client_app=make_client(given.work.name, given.threads),
        num_supernodes=given.work.clients,
        backend_config={
            "init_args": {"num_cpus": given.processes, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    from peers import (
        flower,
    )  # by this name, not as __main__, the actors find it and keep what it caches

    flower.main()

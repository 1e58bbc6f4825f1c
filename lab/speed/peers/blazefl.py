"""BlazeFL: clients one after the other, in threads (`--threads`) or in processes (`--processes`).

Version 2 is for Python 3.12 and newer. Version 3 needs Python 3.14, where its threads run at once.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from blazefl.contrib.fedavg import (
    FedAvgBaseClientTrainer,
    FedAvgBaseServerHandler,
    FedAvgProcessPoolClientTrainer,
    FedAvgThreadPoolClientTrainer,
)
from blazefl.core import IPCMode
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from peers.in_torch import final_loss, network, set_up, tensors
from peers.shared import Clock, arguments
from works import WORKS, Work


class Networks:
    def select_model(self, model_name: str) -> nn.Module:
        return network(WORKS[model_name])


class Clients:
    def __init__(self, work: Work) -> None:
        self.inputs, self.labels = (tensor.share_memory_() for tensor in tensors(work))

    def get_dataloader(
        self, type_: Any, cid: int, batch_size: int, generator: torch.Generator | None = None
    ) -> DataLoader[Any]:
        return DataLoader(TensorDataset(self.inputs[cid], self.labels[cid]), batch_size=batch_size)

    def set_dataset(self, type_: Any, cid: int, dataset: object) -> None:
        """Clients do not change their samples."""


def main() -> None:
    given = arguments()
    work: Work = given.work
    set_up(1)
    clients = Clients(work)
    common = {"model_selector": Networks(), "model_name": work.name, "dataset": clients}
    common |= {"device": "cpu", "num_clients": work.clients, "batch_size": work.batch, "seed": 0}
    server = FedAvgBaseServerHandler(
        global_round=given.total, sample_ratio=work.cohort / work.clients + 1e-9, **common
    )
    local = common | {"epochs": work.epochs, "lr": work.rate}
    with tempfile.TemporaryDirectory() as folder:
        trainer: Any
        if given.processes > 1:
            trainer = FedAvgProcessPoolClientTrainer(
                share_dir=Path(folder) / "share",
                state_dir=Path(folder) / "state",
                num_parallels=given.processes,
                ipc_mode=IPCMode.SHARED_MEMORY,
                **local,
            )
        elif given.threads > 1:
            trainer = FedAvgThreadPoolClientTrainer(num_parallels=given.threads, **local)
        else:
            trainer = FedAvgBaseClientTrainer(**local)
        clock = Clock()
        while not server.if_stop():
            trainer.local_process(server.downlink_package(), server.sample_clients())
            for package in trainer.uplink_package():
                server.load(package)
            clock.round_ended()
    loss = final_loss(server.model, clients.inputs, clients.labels)
    clock.report("BlazeFL", work, "blazefl", "torch", loss=loss)


if __name__ == "__main__":
    main()

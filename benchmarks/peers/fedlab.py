"""FedLab, standalone: clients one after the other in one process."""

from __future__ import annotations

import logging

from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from peers.in_torch import final_loss, network, set_up, tensors, without_torchvision_operators
from peers.shared import Clock, arguments

without_torchvision_operators()
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402


class Clients:
    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self._inputs, self._labels = inputs, labels

    def get_dataloader(self, client: int, batch_size: int) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(
            TensorDataset(self._inputs[client], self._labels[client]), batch_size=batch_size
        )


class Pipeline(StandalonePipeline):
    clock = Clock()

    def evaluate(self) -> None:  # called after every round
        self.clock.round_ended()


def main() -> None:
    given = arguments()
    work = given.work
    set_up(given.threads)
    inputs, labels = tensors(work)
    model = network(work)
    handler = SyncServerHandler(
        model, given.total, work.cohort / work.clients + 1e-9
    )  # it rounds down
    trainer = SGDSerialClientTrainer(model, work.clients)
    trainer.setup_dataset(Clients(inputs, labels))
    trainer.setup_optim(work.epochs, work.batch, work.rate)
    logging.disable(logging.CRITICAL)
    Pipeline(handler, trainer).main()
    Pipeline.clock.report(
        "FedLab", work, "fedlab", "torch", loss=final_loss(handler.model, inputs, labels)
    )


if __name__ == "__main__":
    main()

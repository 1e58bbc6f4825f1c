"""fluke: clients one after the other in one process."""

from __future__ import annotations

from torch import nn

from peers.in_torch import final_loss, network, set_up, tensors, without_torchvision_operators
from peers.shared import Clock, arguments

without_torchvision_operators()
from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.client import Client  # noqa: E402
from fluke.config import OptimizerConfigurator  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402
from fluke.server import Server  # noqa: E402
from fluke.utils import ServerObserver  # noqa: E402


class Timing(ServerObserver):
    clock = Clock()

    def end_round(self, *_: object, **__: object) -> None:
        self.clock.round_ended()


def main() -> None:
    given = arguments()
    work = given.work
    inputs, labels = tensors(work)
    FlukeENV().set_seed(0)
    FlukeENV().set_device("cpu")
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, server=False, locals=False)
    set_up(given.threads)
    optimizer = OptimizerConfigurator(
        optimizer_cfg=DDict(name="SGD", lr=work.rate),
        scheduler_cfg=DDict(name="StepLR", step_size=given.total * work.epochs, gamma=1),
    )
    clients = [
        Client(
            index,
            FastDataLoader(x, y, num_labels=10, batch_size=work.batch, shuffle=True),
            None,
            optimizer,
            nn.CrossEntropyLoss(),
            local_epochs=work.epochs,
            persistency=False,
        )
        for index, (x, y) in enumerate(zip(inputs, labels, strict=True))
    ]
    server = Server(network(work), None, clients, weighted=True)
    algorithm = FedAVG(work.clients, None, None, clients=clients, server=server)
    algorithm.attach([Timing()])
    algorithm.run(given.total, work.cohort / work.clients, finalize=False)
    Timing.clock.report(
        "fluke", work, "fluke-fl", "torch", loss=final_loss(server.model, inputs, labels)
    )


if __name__ == "__main__":
    main()

"""Apple's pfl-research. Several processes: `torchrun --nproc_per_node 2 -m peers.pfl W3`."""

from __future__ import annotations

import os
from types import MethodType

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn

from peers.in_torch import final_loss, network, set_up, tensors
from peers.shared import Clock, arguments


class Timing(TrainingProcessCallback):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
        self._clock.round_ended()
        return False, Metrics()


def main() -> None:
    given, clock = arguments(), Clock()
    work = given.work
    set_up(given.threads)
    inputs, labels = tensors(work)
    module = network(work)
    module.loss = MethodType(lambda self, x, y: nn.functional.cross_entropy(self(x), y), module)
    module.metrics = MethodType(lambda self, x, y: {}, module)
    users = FederatedDataset(
        lambda user: Dataset(raw_data=[inputs[user], labels[user]], user_id=str(user)),
        get_user_sampler("minimize_reuse", list(range(work.clients))),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=given.total,
            evaluation_frequency=given.total + 1,
            train_cohort_size=work.cohort,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(
            training_data=users, val_data=None, postprocessors=[WeightByDatapoints()]
        ),
        model=PyTorchModel(
            model=module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_learning_rate=work.rate, local_num_epochs=work.epochs, local_batch_size=work.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=work.samples),
        callbacks=[Timing(clock)],
    )
    if int(os.environ.get("RANK", 0)) == 0:
        clock.report("pfl", work, "pfl", "torch", loss=final_loss(module, inputs, labels))


if __name__ == "__main__":
    main()

"""The controls: what is trained and evaluated where nobody federates."""

from __future__ import annotations

from copy import deepcopy

import torch

from clientwise.core.method import Method, Plan
from clientwise.core.round import first_state, run_round
from clientwise.core.types import LocalTraining, Task
from clientwise.data.federated import FederatedData
from clientwise.engine.local import LocalEngine
from clientwise.engine.wrapping import AloneEngine
from clientwise.models.networks import linear

TRAINING = LocalTraining(epochs=1, batch_size=20, learning_rate=0.1)


def some_data() -> FederatedData:
    """Three clients of 30, 20 and 10 samples; the last has nothing to test on."""
    random = torch.Generator().manual_seed(1)

    def samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(count, 4, generator=random)
        return inputs, (inputs[:, 0] > 0).long()

    return FederatedData.from_clients(
        [samples(30), samples(20), samples(10)],
        [samples(9), samples(6), samples(0)],
        weigh=samples(12),
        report=samples(15),
        num_classes=3,
    )


def trained(engine: LocalEngine, client: int, model: torch.Tensor, round_num: int) -> torch.Tensor:
    (updates,) = engine.train([client], model, Task(round_num, TRAINING, engine.problem.loss, ()))
    return updates.models[0]


def test_all_samples_centralised_are_one_clients() -> None:
    data = some_data()
    pooled, server = data.centralised("pooled"), data.centralised("server_only")
    assert pooled.train.sizes.tolist() == [60, 0, 0]
    assert server.train.sizes.tolist() == [12, 0, 0]
    assert torch.equal(server.train.indices, data.weigh.indices)
    assert pooled.test.sizes.tolist() == [9, 6, 0]
    module = linear((4,), 3)
    engine = LocalEngine(pooled, module, seed=1)
    method = Method(training=TRAINING)
    after, record = run_round(
        first_state(engine.initial_model, method, engine), method, Plan(1, 3, asks=(0,)), engine
    )
    assert record.client_ids == (0,)
    assert record.local.num_samples.tolist() == [9, 6, 0]
    torch.testing.assert_close(after.model, trained(engine, 0, engine.initial_model, 1))


def test_alone_everybody_keeps_and_is_evaluated_by_a_model_of_its_own() -> None:
    data, module = some_data(), linear((4,), 3)  # every engine has a copy of it
    engine, plain = (
        AloneEngine(LocalEngine(data, deepcopy(module), seed=1), hostile=[2]),
        LocalEngine(data, deepcopy(module), seed=1),
    )
    method, state = Method(training=TRAINING), first_state(plain.initial_model, Method(), plain)
    own = [plain.initial_model] * 3
    for round_num, asked in ((1, (0, 1)), (2, (1, 2))):
        own = [
            trained(plain, client, own[client], round_num) if client in asked else own[client]
            for client in range(3)
        ]
        state, record = run_round(state, method, Plan(1, 3, asks=asked), engine)
    expected = [plain.evaluate([client], own[client][None]) for client in range(3)]
    for client in range(2):
        torch.testing.assert_close(record.local.values[0, client], expected[client].values[0, 0])
        torch.testing.assert_close(record.local.losses[0, client], expected[client].losses[0, 0])
    assert record.local.num_samples.tolist() == [9, 6, 0]
    assert record.local.right.shape == (1, 15)
    on_server = plain.evaluate_server(torch.stack(own[:2]), "report")  # not the hostile one
    torch.testing.assert_close(record.report.overall()[0], on_server.values.mean())
    torch.testing.assert_close(record.report.overall_loss()[0], on_server.losses.mean())

    resumed = AloneEngine(LocalEngine(data, deepcopy(module), seed=1))
    resumed.load_state(engine.state())
    after, again = (
        run_round(state, method, Plan(1, 3, asks=(0, 1, 2)), one)[1] for one in (engine, resumed)
    )
    torch.testing.assert_close(after.local.losses, again.local.losses)

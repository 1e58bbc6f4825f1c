"""SCAFFOLD against a loop written from the paper, however clients are trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clientwise as cw
from clientwise.core.criteria import make_criterion
from clientwise.core.method import Method, Plan
from clientwise.core.round import first_state, run_round
from clientwise.core.types import LocalTraining, ServerState, Task
from clientwise.data.federated import FederatedData
from clientwise.engine.device import Mode
from clientwise.engine.executor import DeviceExecutor
from clientwise.engine.jobs import TrainJob
from clientwise.engine.local import LocalEngine
from clientwise.errors import ConfigError
from clientwise.models.networks import linear

pytestmark = pytest.mark.bits

RATE, EPOCHS, CLASSES = 0.2, 3, 3
METHOD = Method(
    criteria=(make_criterion("uniform"),),
    training=LocalTraining(epochs=EPOCHS, learning_rate=RATE, control_variates=True),
)
ASKED = [(0, 1), (1, 2), (0, 1, 2), (0, 2)]


def some_data() -> FederatedData:
    """Three clients who each know other classes best."""
    random = torch.Generator().manual_seed(1)
    clients = []
    for client, size in enumerate((12, 8, 10)):
        inputs = torch.randn(size, 4, generator=random)
        labels = torch.where(
            torch.rand(size, generator=random) < 0.7, client, (client + 1) % CLASSES
        )
        clients.append((inputs, labels))
    return FederatedData.from_clients(clients, clients, report=clients[0], num_classes=CLASSES)


def by_the_paper(data: FederatedData, model: Tensor) -> Tensor:
    """Algorithm 1 with option II, of one batch a step: x ← mean of y, c ← c + |S|/N · mean of (c_i⁺ − c_i)."""
    server, own = torch.zeros_like(model), [torch.zeros_like(model) for _ in range(3)]
    for asked in ASKED:
        moves, changes = [], []
        for client in asked:
            rows = data.train.slice(client)
            inputs, labels = data.samples.inputs[data.train.indices[rows]], data.train.targets[rows]
            mine = model.clone()
            for _ in range(EPOCHS):
                mine.requires_grad_()
                weight, bias = mine[: CLASSES * 4].view(CLASSES, 4), mine[CLASSES * 4 :]
                loss = nn.functional.cross_entropy(inputs @ weight.T + bias, labels)
                (gradient,) = torch.autograd.grad(loss, mine)
                mine = mine.detach() - RATE * (gradient - own[client] + server)
            renewed = own[client] - server + (model - mine) / (EPOCHS * RATE)
            moves.append(mine - model)
            changes.append(renewed - own[client])
            own[client] = renewed
        model = model + torch.stack(moves).mean(0)
        server = server + len(asked) / 3 * torch.stack(changes).mean(0)
    return model


def engine_of(mode: Mode, **options: Any) -> LocalEngine:
    data, module = some_data(), linear((4,), CLASSES)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.linspace(-0.5, 0.5, parameter.numel()).view(parameter.shape))
    executor = DeviceExecutor(data.samples, module, torch.device("cpu"), mode=mode, workers=1)
    return LocalEngine(data, module, seed=1, executor=executor, **options)


def run(
    engine: LocalEngine, rounds: list[tuple[int, ...]], state: ServerState | None = None
) -> ServerState:
    state = state or first_state(engine.initial_model, METHOD, engine)
    for asked in rounds:
        state, _ = run_round(state, METHOD, Plan(1, 3, asks=asked), engine)
    return state


@pytest.mark.parametrize("mode", ["loop", "stacked"])
@pytest.mark.parametrize("chunk", [None, 1])
def test_scaffold_is_the_papers_algorithm(mode: Mode, chunk: int | None) -> None:
    engine = engine_of(mode, chunk_size=chunk)
    expected = by_the_paper(some_data(), engine.initial_model)
    torch.testing.assert_close(run(engine, ASKED).model, expected, rtol=1e-4, atol=1e-5)
    plain, _ = run_round(
        first_state(engine.initial_model, Method(), engine),
        Method(),
        Plan(1, 3, asks=ASKED[0]),
        engine_of(mode),
    )
    assert not torch.allclose(plain.model, expected, atol=1e-3)


def test_control_variates_are_part_of_what_a_checkpoint_keeps() -> None:
    engine, other = engine_of("loop"), engine_of("loop")
    halfway = run(engine, ASKED[:2])
    other.load_state(dict(engine.state()))
    assert torch.equal(run(other, ASKED[2:], halfway).model, run(engine, ASKED[2:], halfway).model)


def test_corrections_stay_with_their_clients_when_jobs_are_joined_and_sorted() -> None:
    engine = engine_of("loop")
    run(engine, ASKED[:2])
    task = Task(3, METHOD.training, engine.problem.loss, ())
    jobs = [engine._train_job([client], engine.initial_model, task) for client in range(3)]
    together = TrainJob.joined(jobs).select(torch.tensor([2, 0, 1]))
    assert together.corrections is not None
    for row, client in enumerate((2, 0, 1)):
        assert torch.equal(together.corrections[row], engine.variates.corrections([client])[0])


def test_scaffold_is_refused_where_it_means_nothing(tiny: dict[str, Any]) -> None:
    momentum = {"name": "sgd", "momentum": 0.9}
    with pytest.raises(ConfigError, match=r"training\.control_variates: need plain sgd"):
        cw.run(tiny | {"methods": [{"like": "SCAFFOLD", "training": {"optimizer": momentum}}]})
    with pytest.raises(ConfigError, match=r"control_variates: are kept by the clients .*local"):
        cw.run(tiny | {"engine": "flower", "methods": ["SCAFFOLD"]})

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from clientwise.attacks import Attack, Broken, Hostile, Knowledge, SignFlip
from clientwise.attacks.forged import Noise
from clientwise.attacks.lies import Boast
from clientwise.attacks.samples import WrongLabels
from clientwise.core.objective.loss import CrossEntropy, Loss
from clientwise.core.objective.problem import Classification, Regression
from clientwise.core.seeding import client_keys, generator, mixed
from clientwise.core.training import part_of
from clientwise.core.types import LocalTraining, Task
from clientwise.data.datasets import diabetes
from clientwise.data.partition import iid
from clientwise.engine.device import pick_device
from clientwise.engine.local import LocalEngine
from clientwise.errors import ClientwiseError
from clientwise.models.networks import linear
from clientwise.registry import Part
from dividing import federate

pytestmark = pytest.mark.bits

MakeEngine = Callable[..., LocalEngine]
PLAIN = CrossEntropy()


def task(
    loss: Loss = PLAIN, round_num: int = 1, criteria: tuple[Part, ...] = (), **training
) -> Task:
    return Task(
        round_num,
        LocalTraining(**{"epochs": 2, "batch_size": 16, "learning_rate": 0.1} | training),
        loss,
        criteria,
    )


def trained(
    engine: LocalEngine, client: int, what: Task, model: torch.Tensor | None = None
) -> torch.Tensor:
    (updates,) = engine.train([client], engine.initial_model if model is None else model, what)
    return updates.models[0]


def by_hand(engine: LocalEngine, client: int, what: Task) -> torch.Tensor:
    """The same training in plain PyTorch: a module, an optimizer per tensor, a loop."""
    training = what.training
    module = linear((1, 8, 8), 10)
    nn.utils.vector_to_parameters(engine.initial_model, module.parameters())
    anchor = [parameter.detach().clone() for parameter in module.parameters()]
    if training.optimizer == "adam":
        optimizer = torch.optim.Adam(module.parameters(), lr=training.learning_rate)
    else:
        momentum = part_of(training.optimizer).options.get("momentum", 0.0)
        optimizer = torch.optim.SGD(
            module.parameters(), lr=training.learning_rate, momentum=momentum
        )
    share = engine.data.train.slice(client)
    inputs = engine.data.samples.inputs[engine.data.train.indices[share]].float() / 16
    targets = engine.data.train.targets[share]
    weights = (
        torch.ones(10) if what.loss.class_weights is None else torch.tensor(what.loss.class_weights)
    )
    key = client_keys(1, "training", what.round_num, [client])
    for epoch in range(training.epochs):
        size = training.batch_size or len(targets)
        rows = torch.arange(len(targets))
        if size < len(targets):
            rows = mixed(mixed(key + epoch) + rows).argsort()
        for batch in rows.split(size):
            losses = nn.functional.cross_entropy(
                module(inputs[batch]), targets[batch], reduction="none"
            )
            loss = (losses * weights[targets[batch]]).mean()
            for parameter, start in zip(module.parameters(), anchor, strict=True):
                loss = loss + training.proximal / 2 * (parameter - start).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach()


@pytest.mark.parametrize(
    "what",
    [
        task(),
        task(batch_size=None),
        task(optimizer=Part("sgd", {"momentum": 0.9})),
        task(optimizer="adam", learning_rate=0.01),
        task(proximal=0.5),
        task(CrossEntropy(class_weights=tuple(1.0 + k for k in range(10)))),
    ],
    ids=["sgd", "full batch", "momentum", "adam", "proximal", "class weights"],
)
def test_local_training_is_plain_pytorch(make_engine: MakeEngine, what: Task) -> None:
    engine = make_engine()
    for client in (0, 5):
        torch.testing.assert_close(
            trained(engine, client, what), by_hand(engine, client, what), rtol=1e-4, atol=1e-5
        )


def test_training_depends_on_seed_round_and_client_alone(make_engine: MakeEngine) -> None:
    engine = make_engine()
    first = trained(engine, 3, task())
    trained(engine, 4, task())
    assert torch.equal(first, trained(engine, 3, task()))
    assert torch.equal(first, trained(make_engine(chunk_size=1), 3, task()))
    assert not torch.equal(first, trained(engine, 3, task(round_num=2)))
    many = {
        client: model
        for updates in make_engine(chunk_size=3).train(range(8), engine.initial_model, task())
        for client, model in zip(updates.client_ids, updates.models, strict=True)
    }
    assert torch.equal(first, many[3])


@pytest.mark.parametrize(
    ("count", "workers", "at_once", "sizes"),
    [
        (8, 2, 3, [2, 2, 2, 2]),
        (5, 2, 2, [1, 1, 1, 2]),
        (8, 1, 100, [8]),
        (1, 4, 2, [1]),
        (0, 2, 2, []),
    ],
)
def test_a_cohort_is_cut_so_that_all_workers_have_equally_much_to_do(
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    workers: int,
    at_once: int,
    sizes: list[int],
) -> None:
    engine = make_engine(chunk_size=None)
    monkeypatch.setattr(engine.executor, "workers", workers)
    monkeypatch.setattr(engine.executor, "clients_at_once", lambda *given: at_once)
    chunks = engine._cut(range(count), task())
    assert [len(chunk) for chunk in chunks] == sizes
    assert [client for chunk in chunks for client in chunk] == list(range(count))


def test_evaluation_of_many_candidates_on_all_clients(make_engine: MakeEngine) -> None:
    engine = make_engine()
    candidates = torch.stack(
        [engine.initial_model, trained(engine, 0, task()), trained(engine, 1, task())]
    )
    together = engine.evaluate(range(8), candidates)
    assert together.values.shape == together.losses.shape == (3, 8)
    assert together.counts.shape == (3, 10, 10)
    for client in range(8):
        share = engine.data.test.slice(client)
        indices, targets = engine.data.test.indices[share], engine.data.test.targets[share]
        module = linear((1, 8, 8), 10)
        for index, candidate in enumerate(candidates):
            nn.utils.vector_to_parameters(candidate, module.parameters())
            with torch.no_grad():
                outputs = module(engine.data.samples.batch(indices))
            right = (outputs.argmax(1) == targets).double().mean()
            assert float(together.values[index, client]) == pytest.approx(float(right))
            assert float(together.losses[index, client]) == pytest.approx(
                float(nn.functional.cross_entropy(outputs, targets)), rel=1e-5
            )
    assert together.num_samples.tolist() == engine.data.test.sizes.tolist()
    pooled = together.counts.diagonal(dim1=1, dim2=2).sum(1) / together.counts.sum((1, 2))
    torch.testing.assert_close(together.overall(), pooled.double())


def test_the_server_set_may_be_absent(make_engine: MakeEngine) -> None:
    engine = make_engine()
    assert engine.evaluate_server(engine.initial_model[None], "report").values.shape == (1, 1)
    data = federate(
        diabetes(None),
        lambda targets, seed: iid(targets, seed, clients=3),
        1,
        test_fraction=0.2,
        server_fraction=0,
        report_fraction=0,
    )
    assert (
        LocalEngine(data, linear((10,), 1), seed=1).evaluate_server(torch.zeros(1, 11), "report")
        is None
    )


def test_buffers_travel_with_the_model(make_engine: MakeEngine) -> None:
    data = make_engine().data
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 10)
    )
    engine = LocalEngine(data, module, seed=1)
    statistics = slice(engine.spec.num_parameters, None)
    first = trained(engine, 0, task(batch_size=None))
    assert not torch.equal(first[statistics], engine.initial_model[statistics])
    assert torch.equal(
        first, trained(engine, 0, task(batch_size=None))
    )  # dropout too is drawn by (seed, round, client)


# Hostile clients ---------------------------------------------------------------------------------------------------


def test_forged_models_and_boasted_measurements(make_engine: MakeEngine) -> None:
    honest = make_engine()
    truth, start = trained(honest, 2, task()), honest.initial_model

    def sent(attack) -> torch.Tensor:
        return trained(make_engine(hostile={2: Hostile(attack)}), 2, task())

    torch.testing.assert_close(sent(SignFlip(2.0)), start - 2 * (truth - start))
    assert bool(sent(Broken()).isnan().all())
    noise = sent(Noise(3.0)) - start
    assert float(noise.std()) == pytest.approx(3.0, rel=0.1)

    liar = make_engine(hostile={2: Hostile(Boast(100.0))})
    (updates,) = liar.train([1, 2], start, task(criteria=(Part("dataset_size", {}),)))
    sizes = liar.data.train.sizes
    assert updates.measurements["dataset_size"].tolist() == [int(sizes[1]), 100 * int(sizes[2])]


def test_who_ignores_the_global_model_keeps_its_own(make_engine: MakeEngine) -> None:
    engine = make_engine(hostile={2: Hostile(SignFlip(0.0), ignore_global=True)})
    plain = make_engine()
    first = trained(plain, 2, task(round_num=1))
    second = trained(
        plain, 2, task(round_num=2), first
    )  # what it should have privately after two rounds
    elsewhere = torch.zeros_like(engine.initial_model)
    trained(engine, 2, task(round_num=1))
    trained(engine, 2, task(round_num=2), elsewhere)
    torch.testing.assert_close(engine.state()["2"], second)
    restored = make_engine(hostile={2: Hostile(SignFlip(0.0), ignore_global=True)})
    restored.load_state(engine.state())
    trained(restored, 2, task(round_num=3), elsewhere)
    trained(engine, 2, task(round_num=3), elsewhere)
    assert torch.equal(restored.state()["2"], engine.state()["2"])


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_wrong_labels_are_wrong(fraction: float) -> None:
    targets = torch.arange(1000) % 10
    changed = WrongLabels(fraction).relabel(targets, Classification(10), generator(1, "relabel"))
    assert int((changed != targets).sum()) == 1000 * fraction
    assert set(changed.tolist()) == set(range(10))
    mirrored = WrongLabels().relabel(
        torch.tensor([1.0, 2.0, 5.0]), Regression(), generator(1, "relabel")
    )
    assert mirrored.tolist() == [5, 4, 1]


class Odd(Attack):
    """What a client might do that nobody thought of."""

    def __init__(self, what: str) -> None:
        self.what = what

    def forge(self, known: Knowledge) -> torch.Tensor:
        if self.what == "raise":
            raise OSError("disk full")
        return known.model[:-1] if self.what == "short" else known.model

    def claim(self, measurements, known):
        return {**measurements, "extra": torch.tensor(1.0)}


def test_one_clients_misfortune_is_not_the_federations(make_engine: MakeEngine) -> None:
    from clientwise.core.method import Method, Plan
    from clientwise.core.round import first_state, run_round

    engine = make_engine(
        hostile={1: Hostile(Odd("raise")), 2: Hostile(Odd("short")), 3: Hostile(Odd("claim"))}
    )
    _, record = run_round(
        first_state(engine.initial_model, Method(), engine), Method(), Plan(1, 8), engine
    )
    assert record.client_ids == (0, 3, 4, 5, 6, 7)
    assert {refusal.client_id: refusal.reason for refusal in record.refusals} == {
        1: "OSError: disk full",
        2: "model of the wrong size: (649,), expected (650,)",
    }


def test_if_nobody_can_train_the_error_is_shown(make_engine: MakeEngine) -> None:
    engine = LocalEngine(make_engine().data, nn.Linear(3, 10), seed=1)  # it takes no images
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        list(engine.train(range(8), engine.initial_model, task()))


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_device("cpu").type == "cpu"
    if not torch.cuda.is_available():
        assert pick_device("auto").type == "cpu"
        with pytest.raises(ClientwiseError, match="finds no GPU"):
            pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert pick_device("cuda:0").type == pick_device("cuda").type == "cuda"
    with pytest.raises(
        ClientwiseError, match="CUDA_VISIBLE_DEVICES=1"
    ):  # a graph captured there would do nothing
        pick_device("cuda:1")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_and_cpu_agree(make_engine: MakeEngine) -> None:
    cpu, gpu = make_engine(), make_engine(device=torch.device("cuda"))
    model = trained(gpu, 0, task(), gpu.initial_model)
    torch.testing.assert_close(model.cpu(), trained(cpu, 0, task()), rtol=1e-3, atol=1e-4)

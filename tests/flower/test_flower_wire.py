"""What travels arrives as it was sent; what cannot be true is not read."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.app import MetricRecord, RecordDict

from clientwise.core.objective.loss import CrossEntropy, FocalLoss, RobustLoss
from clientwise.core.objective.problem import (
    Classification,
    Multilabel,
    Problem,
    Regression,
    Segmentation,
    Survival,
)
from clientwise.core.privacy import LocalNoise
from clientwise.core.types import (
    Evaluation,
    LocalTraining,
    Task,
    Updates,
)
from clientwise.engine.jobs import EvaluateJob
from clientwise.hosts.flower import wire
from clientwise.hosts.flower.wire import pack
from clientwise.hosts.protocols import Refused, Request
from clientwise.registry import Part

DIGITS, VALUES, TIMES = Classification(2), Regression(), Survival()
TASK = Task(
    3,
    LocalTraining(epochs=2, batch_size=None, optimizer="adam", proximal=0.1),
    CrossEntropy(class_weights=(1.0, 1 / 3)),
    (Part("dataset_size", {}), Part("attribute", {"of": "age"}, "age")),
    LocalNoise(clip=0.5, deviation=1.25),
)


TRAINED = LocalTraining(
    optimizer=Part("adamw", {"beta1": 0.5}),
    transform=Part("flip", {}),
    clip_gradients=1.0,
    rate_factor=1 / 3,
)


@pytest.mark.parametrize(
    "task",
    [
        TASK,
        Task(1, LocalTraining(), RobustLoss(shape=0.2), ()),
        Task(1, TRAINED, FocalLoss(gamma=0.5, class_weights=(1.0, 1 / 3)), ()),
        None,
    ],
)
def test_a_request_arrives_as_it_was_sent(task: Task | None) -> None:
    model = torch.randn(7)
    asked = Request(4, 2**62, task, frozen="digest")
    content = wire.write_request(asked, pack(model))
    request, models = wire.read_request(content)
    assert request == asked
    assert torch.equal(models, model)


def test_another_version_is_refused_before_its_request_is_read() -> None:
    content = wire.write_request(Request(4, 1, version="9.9"), pack(torch.zeros(1)))
    plain = json.loads(str(content.config_records[wire.REQUEST]["json"]))
    content.config_records[wire.REQUEST]["json"] = json.dumps(plain | {"new": "a key of 9.9"})
    with pytest.raises(Refused, match=r"the server runs clientwise 9\.9, this node"):
        wire.read_request(content)


def test_an_update_arrives_as_it_was_sent() -> None:
    sent = Updates(
        (5,),
        torch.randn(1, 7),
        {"age": torch.tensor([0.1])},
        torch.tensor([1.5]).double(),
        torch.tensor([2.0]).double(),
    )
    content = wire.write_update(sent)
    got = wire.read_update(5, content, [Part("age", {})])
    assert got.client_ids == (5,)
    assert torch.equal(got.models, sent.models)
    assert torch.equal(got.measurements["age"], sent.measurements["age"].double())
    assert (float(got.training_loss), float(got.seconds)) == (1.5, 2.0)


def classification() -> Evaluation:
    counts = torch.tensor([[[2, 1], [0, 1]], [[3, 0], [0, 1]]])
    return Evaluation(
        torch.tensor([4]), torch.tensor([[0.75], [1.0]]), torch.tensor([[0.5], [0.1]]), counts
    )


def regression(outputs: int = 1) -> Evaluation:
    """Two candidates on four samples, each with so many numbers to answer."""
    counts = torch.tensor(
        [[4.0 * outputs, 2.0, 3.0, 1.2, 6.0, 0.0, 9.0], [4.0 * outputs, 0, 0, 0, 6.0, 0, 9.0]],
        dtype=torch.float64,
    )
    return Evaluation(
        torch.tensor([4]), counts[:, 3:4] / counts[:, :1], torch.tensor([[0.5], [0.1]]), counts
    )


def survival() -> Evaluation:
    counts = torch.tensor([[4.0, 5.0, 2.5], [4.0, 0.0, 0.0]], dtype=torch.float64)
    return Evaluation(
        torch.tensor([4]), torch.tensor([[0.5], [0.5]]), torch.tensor([[0.5], [0.1]]), counts
    )


def read(content: RecordDict, problem: Problem, outputs: int = 1) -> Evaluation:
    return wire.read_evaluation(content, 2, problem, outputs=outputs)


@pytest.mark.parametrize(
    ("sent", "problem", "outputs"),
    [
        (classification(), DIGITS, 1),
        (regression(), VALUES, 1),
        (regression(3), VALUES, 3),
        (survival(), TIMES, 1),
    ],
)
def test_an_evaluation_arrives_as_it_was_sent(
    sent: Evaluation, problem: Problem, outputs: int
) -> None:
    got = read(wire.write_evaluation(sent), problem, outputs)
    for name in ("num_samples", "values", "losses", "counts"):
        assert torch.equal(getattr(got, name), getattr(sent, name).to(getattr(got, name).dtype))


def changed(sent: Evaluation, **changes: object) -> RecordDict:
    content = wire.write_evaluation(sent)
    for name, value in changes.items():
        if name == "counts":
            content[wire.ARRAYS] = pack(value)  # type: ignore[arg-type]
        else:
            content.metric_records[wire.NUMBERS][name] = value  # type: ignore[assignment]
    return content


@pytest.mark.parametrize(
    "changes",
    [
        {"num_samples": -4},
        {"num_samples": 5},
        {"num_samples": float("nan")},
        {"num_samples": float("inf")},
        {"num_samples": [4, 4]},
        {"values": [0.75]},
        {"values": [0.75, 1.5]},
        {"values": [0.75, float("nan")]},
        {"values": [0.75, 0.99]},  # the counts say 0.75 and 1
        {"losses": [0.1, 0.2, 0.3]},
        {"losses": [0.1, -0.2]},
        {"losses": [0.1, -float("inf")]},
        {"counts": torch.ones(2, 3, 3)},
        {"counts": torch.tensor([[[5, -1], [0, 0]], [[4, 0], [0, 0]]])},
        {"counts": torch.full((2, 2, 2), torch.nan)},
        {"counts": torch.tensor([[[2.5, 1], [0, 0.5]], [[3, 0], [0, 1]]])},
        {
            "counts": classification().counts * torch.tensor([1, 2])[:, None, None]
        },  # of twice as many samples
        {
            "counts": classification().counts * 10**6,
            "num_samples": 4 * 10**6,
        },  # more than anybody has
        {"counts": torch.zeros(2, 2, 2)},
    ],
    ids=str,
)
def test_an_evaluation_that_cannot_be_true_is_not_read(changes: dict[str, object]) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        read(changed(classification(), **changes), DIGITS)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_samples": -1},
        {"num_samples": 5},
        {"num_samples": float("nan")},
        {"num_samples": 4.5, "counts": regression().counts + torch.tensor([0.5] + [0] * 6)},
        {"num_samples": 4 * 10**6, "counts": regression().counts * 10**6},
        {"values": [0.0, 0.0]},
        {"losses": [-0.1, 0.1]},
        {"counts": regression(2).counts},
        {"counts": torch.full((2, 7), torch.inf)},
    ],
    ids=str,
)
def test_sums_of_errors_must_agree_too(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"counts|samples|mape|loss"):
        read(changed(regression(), **changes), VALUES)


@pytest.mark.parametrize("problem", [Multilabel(2), Segmentation(3)], ids=repr)
def test_labels_and_masks_are_counted_as_they_were_sent(problem: Problem) -> None:
    random = torch.Generator().manual_seed(1)
    targets = (torch.rand(4, 2, generator=random) > 0.5).float()
    outputs = torch.randn(2, 4, 2, generator=random)
    if isinstance(problem, Segmentation):
        targets = torch.randint(0, 3, (4, 5, 5), generator=random).byte()
        outputs = torch.randn(2, 4, 3, 5, 5, generator=random)
    losses, values, counts = problem.judge(outputs, targets)
    job = EvaluateJob(torch.arange(4), targets, torch.zeros(4).long(), torch.tensor([4]), problem)
    sent = problem.evaluation((losses.double(), values.double(), counts), job)
    pixels = problem.values_per_sample(targets.shape[1:])

    def received(evaluation: Evaluation) -> Evaluation:
        content = wire.write_evaluation(evaluation)
        return wire.read_evaluation(content, 2, problem, outputs=pixels)

    found = received(sent)
    assert torch.equal(found.counts, sent.counts)
    assert torch.equal(found.values, sent.values)
    with pytest.raises(ValueError, match="do not add up"):
        received(replace(sent, counts=sent.counts + 1))


@pytest.mark.parametrize("counts", [[4.0, 7.0, 3.5], [4.0, 5.0, 5.5], [3.0, 3.0, 1.5]], ids=str)
def test_there_are_so_many_pairs_and_no_more(counts: list[float]) -> None:
    claimed = torch.tensor([counts, counts], dtype=torch.float64)
    values = (claimed[:, 2] / claimed[:, 1]).tolist()
    with pytest.raises(ValueError, match=r"more pairs than 4 samples have|do not add up"):
        read(changed(survival(), counts=claimed, values=values), TIMES)


def test_a_model_may_answer_nothing_that_is_a_number() -> None:
    """That is the model's fault, not the client's."""
    for loss in (float("nan"), float("inf")):
        assert (
            not read(changed(classification(), losses=[loss, loss]), DIGITS).losses.isfinite().any()
        )


def test_counts_come_as_the_server_adds_them_up() -> None:
    floats = read(changed(classification(), counts=classification().counts.float()), DIGITS)
    assert torch.equal(floats.counts, classification().counts)
    assert floats.counts.dtype == torch.int64


def test_nothing_is_read_that_is_not_there() -> None:
    for content in (RecordDict(), RecordDict({wire.NUMBERS: MetricRecord({"seconds": [1.0]})})):
        with pytest.raises((KeyError, ValueError)):
            wire.read_update(0, content, [])
        with pytest.raises((KeyError, ValueError)):
            read(content, DIGITS)

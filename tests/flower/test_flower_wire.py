"""What travels arrives as it was sent; what cannot be true is not read."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.app import MetricRecord, RecordDict

from clientwise.core.loss import Loss
from clientwise.core.types import Evaluation, LocalTraining, Problem, Task, Updates
from clientwise.flower import wire
from clientwise.flower.wire import Request, pack
from clientwise.registry import Part

DIGITS, VALUES = Problem("classification", 2), Problem("regression")
TASK = Task(
    3,
    LocalTraining(epochs=2, batch_size=None, optimizer="adam", proximal=0.1),
    Loss("cross_entropy", class_weights=(1.0, 1 / 3)),
    (Part("dataset_size", {}), Part("attribute", {"of": "age"}, "age")),
)


@pytest.mark.parametrize("task", [TASK, Task(1, LocalTraining(), Loss("robust", shape=0.2), ()), None])
def test_a_request_arrives_as_it_was_sent(task: Task | None) -> None:
    model = torch.randn(7)
    request, models, kept = wire.read_request(wire.write_request(Request(4, 2**62, task), pack(model)))
    assert request == Request(4, 2**62, task)
    assert torch.equal(models, model)
    assert kept is None


def test_an_update_arrives_as_it_was_sent() -> None:
    sent = Updates(
        (5,),
        torch.randn(1, 7),
        {"age": torch.tensor([0.1])},
        torch.tensor([1.5]).double(),
        torch.tensor([2.0]).double(),
    )
    got, kept = wire.read_update(5, wire.write_update(sent, torch.ones(7)))
    assert got.client_ids == (5,)
    assert torch.equal(got.models, sent.models)
    assert torch.equal(got.measurements["age"], sent.measurements["age"].double())
    assert (float(got.training_loss), float(got.seconds)) == (1.5, 2.0)
    assert kept is not None
    assert torch.equal(kept, torch.ones(7))


def classification() -> Evaluation:
    counts = torch.tensor([[[2, 1], [0, 1]], [[3, 0], [0, 1]]])
    return Evaluation(torch.tensor([4]), torch.tensor([[0.75], [1.0]]), torch.tensor([[0.5], [0.1]]), counts)


def test_an_evaluation_arrives_as_it_was_sent() -> None:
    got = wire.read_evaluation(wire.write_evaluation(classification()), 2, DIGITS)
    for name in ("num_samples", "values", "losses", "counts"):
        assert torch.equal(getattr(got, name), getattr(classification(), name).to(getattr(got, name).dtype))
    sums = Evaluation(torch.tensor([4]), torch.tensor([[0.3]]), torch.tensor([[0.5]]), torch.rand(1, 4).double())
    assert torch.equal(wire.read_evaluation(wire.write_evaluation(sums), 1, VALUES).counts, sums.counts)


def changed(name: str, value: object) -> RecordDict:
    content = wire.write_evaluation(classification())
    if name == "counts":
        content[wire.ARRAYS] = pack(value)
    else:
        content.metric_records[wire.NUMBERS][name] = value
    return content


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_samples", -4),
        ("num_samples", 5),
        ("num_samples", float("nan")),
        ("num_samples", float("inf")),
        ("num_samples", [4, 4]),
        ("values", [0.75]),
        ("values", [0.75, 1.5]),
        ("values", [0.75, float("nan")]),
        ("losses", [0.1, 0.2, 0.3]),
        ("counts", torch.ones(2, 3, 3)),
        ("counts", torch.tensor([[[5, -1], [0, 0]], [[4, 0], [0, 0]]])),
        ("counts", torch.full((2, 2, 2), torch.nan)),
    ],
)
def test_an_evaluation_that_cannot_be_true_is_not_read(name: str, value: object) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        wire.read_evaluation(changed(name, value), 2, DIGITS)


def test_counts_come_as_the_server_adds_them_up() -> None:
    floats = wire.read_evaluation(changed("counts", classification().counts.float()), 2, DIGITS)
    assert torch.equal(floats.counts, classification().counts)
    assert floats.counts.dtype == torch.int64


@pytest.mark.parametrize("num_samples", [-1, 10**10, float("nan")])
def test_sums_of_errors_need_a_number_of_samples(num_samples: float) -> None:
    sums = Evaluation(torch.tensor([4]), torch.tensor([[0.3]]), torch.tensor([[0.5]]), torch.rand(1, 4).double())
    content = wire.write_evaluation(sums)
    content.metric_records[wire.NUMBERS]["num_samples"] = num_samples
    with pytest.raises(ValueError, match="counts out of range"):
        wire.read_evaluation(content, 1, VALUES)


def test_nothing_is_read_that_is_not_there() -> None:
    for content in (RecordDict(), RecordDict({wire.NUMBERS: MetricRecord({"seconds": [1.0]})})):
        with pytest.raises((KeyError, ValueError)):
            wire.read_update(0, content)
        with pytest.raises((KeyError, ValueError)):
            wire.read_evaluation(content, 1, DIGITS)

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from clientwise.core.criteria import (
    ANY,
    Arrivals,
    ClientFacts,
    Outcome,
    agreement_with_others,
    fact_columns,
    make_criterion,
)
from clientwise.core.objective.problem import Classification, Regression
from clientwise.core.types import (
    Evaluation,
    Layer,
    LocalTraining,
    ModelSpec,
)
from clientwise.registry import Part

SPEC = ModelSpec(
    (Layer("kernel", (2, 2), 0, 4), Layer("bias", (2,), 4, 6), Layer("buffer", (1,), 6, 7)), 6, 7
)


def some_clients() -> ClientFacts:
    """Three clients with 4, 2 and 3 samples of 5×5 images in three classes."""
    images = torch.rand(9, 1, 5, 5, generator=torch.Generator().manual_seed(1))
    return ClientFacts(
        num_samples=torch.tensor([4, 2, 3]),
        label_counts=torch.tensor([[2, 1, 1], [2, 0, 0], [1, 1, 1]]),
        training_loss=torch.tensor([0.0, 1.0, 3.0]),
        attributes={"premium": torch.tensor([1.0, 0.0, 0.5])},
        sample_attributes={"Blurry": torch.tensor([-1, -1, -1, 1, 1, 1, -1, -1, -1])},
        load_inputs=lambda: images,
        training=LocalTraining(epochs=2, batch_size=3),
        load_start_loss=lambda: torch.tensor([0.5, 2.0, 1.0]),
    )


def some_arrivals() -> Arrivals:
    models = torch.zeros(3, 7)
    models[1, :4] = 1.5  # a kernel that moved by a norm of 3
    models[2, 4] = 8.0  # a bias that moved by 8
    models[:, 6] = 100.0  # a buffer: no parameter, no divergence
    counts = torch.tensor([[[9, 1], [1, 9]], [[5, 5], [5, 5]], [[0, 10], [10, 0]]])

    def judge(models: Tensor) -> Evaluation:
        return Evaluation(torch.tensor([20]), torch.zeros(3, 1), torch.zeros(3, 1), counts)

    known = {"premium": torch.tensor([1.0, 0.0, 0.5])}
    memory = {"trust": torch.tensor([1.0, 0.5, 0.2])}
    return Arrivals(
        (4, 5, 6), models, torch.zeros(7), SPEC, judge, memory, known, lambda: 3 * torch.ones(7)
    )


def measured(name: str, **options) -> list[float]:
    one = make_criterion(name, **options)
    return one.measure(some_clients() if one.measured_by == "client" else some_arrivals()).tolist()


def test_dataset_size_and_label_diversity() -> None:
    assert measured("dataset_size") == [4, 2, 3]
    assert measured("label_diversity") == [3, 1, 3]


def test_class_balance_of_many_classes_is_normalised_entropy() -> None:
    entropy = -(0.5 * math.log(0.5) + 2 * 0.25 * math.log(0.25)) / math.log(3)
    assert measured("class_balance") == pytest.approx([entropy, 0, 1])


def test_class_balance_of_two_classes_is_p1_eq_9() -> None:
    clients = replace(some_clients(), label_counts=torch.tensor([[3, 1], [2, 0], [0, 0]]))
    assert make_criterion("class_balance").measure(clients).tolist() == pytest.approx([1 / 3, 0, 0])


def test_sharpness_from_an_attribute() -> None:
    assert measured("sharpness", blurry="Blurry") == [0.75, 0, 1]
    with pytest.raises(KeyError, match="no sample attribute 'Blury'"):
        measured("sharpness", blurry="Blury")


def test_commercial_targets_are_numbers_and_booleans() -> None:
    known = fact_columns({"member": [True, False, True], "age": [30, 45, 60]})
    arrivals = replace(some_arrivals(), attributes=known)
    assert make_criterion("attribute", of="member").measure(arrivals).tolist() == [1, 0, 1]
    assert make_criterion("attribute", of="age").measure(arrivals).tolist() == [30, 45, 60]
    with pytest.raises(KeyError, match=r"no attribute 'job'; they have \['age', 'member'\]"):
        make_criterion("attribute", of="job").measure(arrivals)


def test_training_loss_is_better_when_smaller() -> None:
    assert measured("training_loss") == [1, 0.5, 0.25]


def test_the_loss_before_training_is_measured_by_who_trains() -> None:
    assert measured("start_loss") == [0.5, 2.0, 1.0]
    with pytest.raises(KeyError, match="clients that clientwise trains"):
        make_criterion("start_loss").measure(replace(some_clients(), load_start_loss=None))


def test_local_steps_count_what_a_gradient_does_to_the_model() -> None:
    def steps(**training) -> list[float]:
        clients = replace(some_clients(), training=LocalTraining(**training))
        return make_criterion("local_steps").measure(clients).tolist()

    def displacement(count: int, momentum: float = 0.0, pull: float = 0.0) -> float:
        """How far a constant gradient of −1 moves a model that starts at 0, step by step."""
        place = velocity = 0.0
        for _ in range(count):
            velocity = momentum * velocity + 1.0 - pull * place / 0.1
            place += 0.1 * velocity
        return place / 0.1

    assert steps(epochs=2, batch_size=3) == [4, 2, 2]
    assert steps(epochs=5) == [5, 5, 5]  # one batch of everything
    momentum = steps(epochs=2, batch_size=3, optimizer=Part("sgd", {"momentum": 0.9}))
    assert momentum == pytest.approx([displacement(count, momentum=0.9) for count in (4, 2, 2)])
    proximal = steps(epochs=2, batch_size=3, learning_rate=0.1, proximal=0.5)
    assert proximal == pytest.approx([displacement(count, pull=0.05) for count in (4, 2, 2)])


def test_server_cosine_trusts_who_goes_where_the_server_goes() -> None:
    arrivals = some_arrivals()
    # The server moves all six parameters alike; the second client four of them, the third one of them.
    assert measured("server_cosine") == pytest.approx([0, 4 / math.sqrt(4 * 6), 1 / math.sqrt(6)])
    backwards = replace(arrivals, server_update=lambda: -torch.ones(7))
    assert make_criterion("server_cosine").measure(backwards).tolist() == [0, 0, 0]


def test_model_divergence_whole_vector() -> None:
    assert measured("model_divergence") == pytest.approx([1, 1 / math.sqrt(4), 1 / math.sqrt(9)])


def test_model_divergence_per_layer_sees_kernels_only() -> None:
    assert measured("model_divergence", per_layer=True) == pytest.approx([1, 1 / math.sqrt(4), 1])


def test_server_performance() -> None:
    assert measured("server_performance") == pytest.approx([0.9, 0.5, 0])
    assert measured("server_performance", metric="macro_f1") == pytest.approx([0.9, 0.5, 0])


def test_models_are_judged_once_however_many_criteria_ask() -> None:
    arrivals, calls = some_arrivals(), []
    counting = replace(arrivals, judge=lambda models: calls.append(1) or arrivals.judge(models))
    make_criterion("server_performance").measure(counting)
    make_criterion("server_performance", metric="balanced_accuracy").measure(counting)
    assert len(calls) == 1


def test_agreement_is_with_the_others_and_not_with_the_loudest() -> None:
    right, up = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    agreement = agreement_with_others([right, right + up, -1000 * right])
    # others of the first: (1, 1)/√2 + (−1, 0); of the second: (1, 0) + (−1, 0) = 0; of the third: (1, 0) + (1, 1)/√2
    first = (1 / math.sqrt(2) - 1) / math.hypot(1 / math.sqrt(2) - 1, 1 / math.sqrt(2))
    third = -(1 + 1 / math.sqrt(2)) / math.hypot(1 + 1 / math.sqrt(2), 1 / math.sqrt(2))
    assert agreement.tolist() == pytest.approx([first, 0, third], abs=1e-6)
    assert agreement_with_others([right]).tolist() == [1]


def test_trust_is_a_running_record() -> None:
    assert measured("trust") == pytest.approx([1, 0.5, 0.2])
    right, left = torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 0.0])
    before = torch.ones(5)
    after = make_criterion("trust").memory.after(
        before, Outcome([0, 2, 4], [right, right, left], refused=[3, 77, -1])
    )
    # 0.8 + 0.2·1 with half of the others, a cosine of 0 with none; client 1 took no part; disagreement and refusal
    # count as 0; nobody is number 77 or −1
    agreement = agreement_with_others([right, right, left]).clamp(0, 1).tolist()
    assert after.tolist() == pytest.approx(
        [0.8 + 0.2 * agreement[0], 1.0, 0.8 + 0.2 * agreement[1], 0.8, 0.8]
    )
    assert before.tolist() == [1] * 5


def test_a_share_is_at_most_one_and_pixels_have_a_bound() -> None:
    problem = Classification(3)
    assert make_criterion("sharpness", blurry="Blurry").high(problem) == 1
    assert make_criterion("attribute", of="share", high=1.0).high(problem) == 1
    assert make_criterion("server_performance").high(problem) == 1
    assert make_criterion("server_performance", metric="diagnostic_odds_ratio").high(problem) == ANY
    assert make_criterion("server_performance").high(Regression()) == pytest.approx(
        1e6
    )  # 1/(0 + 10⁻⁶)


def test_needs_are_declared_and_those_of_a_named_metric_come_along() -> None:
    assert make_criterion("label_diversity").needs == {"classes"}
    assert make_criterion("server_performance").needs == {"server_set"}
    assert make_criterion("server_performance", metric="mae").needs == {"server_set", "numbers"}
    assert make_criterion("trust").needs == {"models"}

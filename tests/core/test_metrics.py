"""Metrics against scikit-learn, and by hand where it has none."""

from __future__ import annotations

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference

from clientwise.core.objective.metrics import (
    METRICS,
    confusion,
    error_sums,
    measured,
    per_class_f1,
    performance,
)
from clientwise.core.objective.problem import (
    Classification,
    Multilabel,
    Regression,
    Segmentation,
    Survival,
    constant_metric,
)

KINDS = (Classification(3), Regression(), Survival(), Multilabel(3), Segmentation(3))
labels = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)


@given(labels)
def test_classification_metrics_agree_with_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    truth, predicted = (numpy.array(column) for column in zip(*pairs, strict=True))
    counts = confusion(torch.from_numpy(truth), torch.from_numpy(predicted), 4)
    assert counts.tolist() == reference.confusion_matrix(truth, predicted, labels=range(4)).tolist()
    assert float(METRICS.get("accuracy")(counts)) == pytest.approx(
        reference.accuracy_score(truth, predicted)
    )
    assert float(METRICS.get("macro_f1")(counts)) == pytest.approx(
        reference.f1_score(truth, predicted, average="macro")
    )
    per_class = reference.f1_score(truth, predicted, average=None, labels=range(4), zero_division=0)
    assert per_class_f1(counts).tolist() == pytest.approx(per_class.tolist())
    recall = reference.recall_score(
        truth, predicted, average=None, labels=sorted(set(truth)), zero_division=0
    )
    assert float(METRICS.get("balanced_accuracy")(counts)) == pytest.approx(recall.mean())


@pytest.mark.parametrize("classes", [2, 4])
def test_the_area_under_the_curve_agrees_with_scikit_learn(classes: int) -> None:
    random = numpy.random.default_rng(classes)
    truth = random.integers(0, classes, 60)
    logits = random.normal(size=(3, 60, classes)).round(
        0 if classes == 2 else 9
    )  # of two classes with ties
    logits[0] += 2 * numpy.eye(classes)[truth]
    areas = METRICS.get("auc")(torch.from_numpy(logits), torch.from_numpy(truth))
    for area, one in zip(areas.tolist(), logits, strict=True):
        chances = torch.from_numpy(one).softmax(-1).numpy()
        given = chances[:, 1] if classes == 2 else chances
        assert area == pytest.approx(
            reference.roc_auc_score(truth, given, multi_class="ovr"), abs=1e-6
        )
    one_class = METRICS.get("auc")(torch.from_numpy(logits), torch.ones(60, dtype=torch.int64))
    assert one_class.tolist() == [0.5, 0.5, 0.5]
    with pytest.raises(ValueError, match="needs the scores of all samples"):
        performance("auc", torch.zeros(classes, classes))


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(-100, 100)), min_size=1, max_size=30))
def test_regression_metrics_agree_with_scikit_learn(pairs: list[tuple[float, float]]) -> None:
    truth, predicted = (numpy.array(column) for column in zip(*pairs, strict=True))
    sums = error_sums(torch.from_numpy(truth), torch.from_numpy(predicted))
    for name, theirs in (
        ("mae", reference.mean_absolute_error),
        ("mse", reference.mean_squared_error),
        ("mape", reference.mean_absolute_percentage_error),
        ("rmse", reference.root_mean_squared_error),
    ):
        assert float(METRICS.get(name)(sums)) == pytest.approx(theirs(truth, predicted)), name
    if numpy.ptp(truth) > 1e-3:
        assert float(METRICS.get("r2")(sums)) == pytest.approx(
            reference.r2_score(truth, predicted), rel=1e-6, abs=1e-6
        )


def test_a_wrong_answer_to_a_target_of_zero_is_not_a_right_one() -> None:
    zeros = error_sums(torch.tensor([0.0, 1.0]), torch.tensor([5.0, 1.0]))
    assert float(METRICS.get("mape")(zeros)) > 1000
    assert float(METRICS.get("mape")(error_sums(torch.zeros(2), torch.zeros(2)))) == 0


def test_performance_turns_errors_into_qualities() -> None:
    better, worse = (
        error_sums(torch.ones(4), torch.ones(4) * 1.1),
        error_sums(torch.ones(4), torch.ones(4) * 2),
    )
    assert performance("mae", better) > performance("mae", worse)
    assert float(performance("mape", worse)) == pytest.approx(1, rel=1e-5)
    assert torch.isfinite(performance("mse", error_sums(torch.ones(4), torch.ones(4))))


def test_the_metric_of_a_constant_prediction() -> None:
    classes = torch.tensor([2] * 6 + [0] * 3 + [1])
    assert constant_metric(Classification(3), classes) == pytest.approx(0.6)
    balanced = Classification(3, scored_by="balanced_accuracy")
    assert constant_metric(balanced, classes) == pytest.approx(1 / 3)
    assert constant_metric(Classification(3, scored_by="auc"), classes) == pytest.approx(0.5)
    numbers = torch.tensor([1.0, 2.0, 9.0])
    dummy = [abs(numbers - 2).mean(), ((numbers - 4) ** 2).mean()]
    assert constant_metric(Regression(scored_by="mae"), numbers) == pytest.approx(float(dummy[0]))
    assert constant_metric(Regression(scored_by="mse"), numbers) == pytest.approx(float(dummy[1]))
    assert constant_metric(Survival(), torch.tensor([1.0, 2.0, -3.0])) == pytest.approx(0.5)
    assert constant_metric(Regression(), torch.zeros(3, 2)) is None
    assert constant_metric(Classification(2), torch.zeros(0, dtype=torch.int64)) is None


@pytest.mark.parametrize("name", list(METRICS))
def test_a_client_without_samples_has_a_finite_value(name: str) -> None:
    (kind,) = (one for one in KINDS if one.predicts in measured(name).needs)
    nothing = (torch.zeros(2, *kind.counts_shape),)
    if measured(name).from_scores:
        targets = torch.zeros(0, 3) if kind.predicts == "labels" else torch.zeros(0)
        nothing = (torch.zeros(2, 0, 3), targets)
    values = METRICS.get(name)(*nothing)
    assert values.shape == (2,)
    assert bool(values.isfinite().all())

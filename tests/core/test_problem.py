from __future__ import annotations

import ast
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import clientwise
from clientwise.core.objective.loss import (
    AbsoluteError,
    CoxLoss,
    CrossEntropy,
    FocalLoss,
    Loss,
    LossRecord,
    RobustLoss,
    SquaredError,
)
from clientwise.core.objective.problem import (
    Classification,
    Multilabel,
    Problem,
    Regression,
    Survival,
)

SOURCE = Path(clientwise.__file__).parent
ALL = [Classification(3), Classification(2), Regression(), Regression(sums=True), Survival()]


def test_no_file_asks_which_kind_a_problem_is() -> None:
    """What differs between kinds of problem is a method of the kind's class."""
    kinds = {"classification", "regression", "survival"}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                text = ast.unparse(node)
                assert "problem.kind" not in text, f"{path}:{node.lineno} {text}"
                words = {word.value for word in ast.walk(node) if isinstance(word, ast.Constant)}
                assert not words & kinds or path.name in {"joining.py", "table.py"}, (
                    f"{path}:{node.lineno} {text}"
                )


@pytest.mark.parametrize("problem", ALL, ids=repr)
def test_counts_of_a_batch_are_those_of_its_samples(problem: Problem) -> None:
    targets = (
        torch.tensor([0, 1, 1, 0]) if problem.num_classes else torch.tensor([1.0, -2.0, 3.0, 4.0])
    )
    if problem == Regression(sums=True):
        targets = targets[:, None].expand(4, 6)  # of every pixel of an image
    outputs = torch.randn(2, 4, problem.num_outputs(targets.shape[1:]))
    losses, values, counts = problem.judge(outputs, targets)
    assert losses.shape == (2, 4)
    assert values.shape[:2] == (2, 4)
    assert counts.shape == (2, *problem.counts_shape)
    if not isinstance(problem, Survival):  # its counts need all samples of a client
        problem.check_counts(counts.double(), 4)
        with pytest.raises(ValueError, match="do not add up to 5 samples"):
            problem.check_counts(counts.double(), 5)


def test_predicted_labels_are_those_that_are_counted() -> None:
    """Also where a logit is zero, as of a network that begins with zeros."""
    problem = Multilabel(3)
    logits = torch.tensor([[0.0, 1.0, -1.0]])
    decided = problem.decided(problem.predictions(logits))
    _, _, (counts,) = problem.judge(logits[None], torch.ones(1, 3, dtype=torch.int64))
    assert decided[0].tolist() == counts[:, 0].tolist() == [0, 1, 0]


def test_mirrored_targets_stay_in_their_range() -> None:
    assert Classification(10).mirrored(torch.tensor([0, 9, 3])).tolist() == [9, 0, 6]
    assert Regression().mirrored(torch.tensor([1.0, 2.0, 5.0])).tolist() == [5, 4, 1]
    assert Survival().mirrored(torch.tensor([1.0, -2.0, 5.0])).tolist() == [5, -4, 1]
    for problem in ALL:
        assert not len(problem.mirrored(torch.zeros(0)))


@pytest.mark.parametrize(
    "loss",
    [
        CrossEntropy(),
        CrossEntropy(class_weights=(1.0, 2.0)),
        FocalLoss(gamma=0.5, class_weights=(1.0, 2.0)),
        RobustLoss(),
        RobustLoss(shape=0.5, scale=3.0),
        SquaredError(),
        AbsoluteError(),
        CoxLoss(),
    ],
    ids=repr,
)
def test_a_loss_survives_its_record(loss: Loss) -> None:
    plain = json.loads(json.dumps(asdict(loss.record())))
    assert LossRecord(**plain).loss() == loss


def test_a_record_of_an_unknown_loss_or_option_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown loss 'hinge'"):
        LossRecord("hinge").loss()
    with pytest.raises(ValueError, match="does not take these options"):
        LossRecord("mse", options={"gamma": 1.0}).loss()

"""The server step `best_of`: several steps of one aggregate, and the one with the lowest loss is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import clientwise as cw
from clientwise.core.aggregation.server_step import AdamStep, BestOf, momentum_step
from clientwise.errors import ConfigError
from clientwise.experiment.load import load_experiment
from clientwise.experiment.trackers import Progress
from clientwise.record.run import RunFolder
from clientwise.registry import Part
from clientwise.report.audit import audit
from clientwise.report.explanation import Round
from recorded import everything

STEPS = [{"name": "momentum", "momentum": 0.8}, {"name": "adam", "learning_rate": 0.1}]
METHOD = {
    "name": "best",
    "server_step": {"name": "best_of", "steps": STEPS},
    "fine_tune": {"epochs": 2, "batch_size": 20},
}


@pytest.fixture
def config(tiny: dict[str, Any]) -> dict[str, Any]:
    server_set = {"fraction": 0.3, "report_fraction": 0.5}
    return tiny | {"rounds": 5, "methods": [METHOD], "server_set": server_set}


def two_steps(decay: float = 0.9) -> BestOf:
    parts = (Part("momentum", {"momentum": 0.8}), Part("adam", {"learning_rate": 0.1}))
    return BestOf(parts, decay)


def test_every_step_is_taken_from_the_same_aggregate_and_keeps_its_own_state() -> None:
    step = two_steps()
    model = torch.tensor([1.0, -2.0])
    state: Any = {}
    velocity: Any = {}
    moments: Any = {}
    for mean in (torch.tensor([2.0, 0.0]), torch.tensor([0.5, 1.0])):
        models, state = step(model, mean, state)
        by_momentum, velocity = momentum_step(model, mean, velocity, momentum=0.8)
        by_adam, moments = AdamStep(learning_rate=0.1)(model, mean, moments)
        assert torch.equal(models, torch.stack([by_momentum, by_adam]))
        model = by_adam  # whichever is used


def test_losses_are_summed_over_the_rounds_with_decay() -> None:
    step = two_steps(decay=0.5)
    used, state = step.choose(torch.tensor([1.0, 2.0]), {})
    assert used == 0
    # 0.5·1 + 1.4 = 1.9 against 0.5·2 + 1.0 = 2.0: the second is better now, and not in sum
    used, state = step.choose(torch.tensor([1.4, 1.0]), state)
    assert used == 0
    # 0.5·1.9 + 1.4 = 2.35 against 0.5·2.0 + 1.0 = 2.0
    used, state = step.choose(torch.tensor([1.4, 1.0]), state)
    assert used == 1
    assert state["sums"].tolist() == pytest.approx([2.35, 2.0])


def test_a_model_without_a_finite_loss_is_not_used_and_can_come_back() -> None:
    step = two_steps(decay=0.0)
    used, state = step.choose(torch.tensor([torch.nan, 3.0]), {})
    assert used == 1
    used, state = step.choose(torch.tensor([1.0, 3.0]), state)
    assert used == 0
    assert step.choose(torch.tensor([torch.nan, torch.inf]), state) == (0, state)


def test_the_record_and_the_audit_say_which_step_was_used(
    config: dict[str, Any], tmp_path: Path
) -> None:
    run = cw.run(config, tmp_path / "run")
    steps = run.frame("steps")
    assert len(steps) == 5 * 2
    seed = run.lanes["seed"].item()
    sums = [0.0, 0.0]
    for round_num in range(1, 6):
        tried = steps[steps["round"] == round_num]
        sums = [0.9 * before + loss for before, loss in zip(sums, tried["loss"], strict=True)]
        lowest = min(range(2), key=lambda index: sums[index])
        assert tried["used"].tolist() == [index == lowest for index in range(2)]
        found = audit(Round(RunFolder(run.folder), "best", seed, round_num))
        said = " ".join(item for item in found if isinstance(item, str))
        assert f"The server tried 2 steps and used {tried['step'].iloc[lowest]}." in said


def test_it_differs_from_either_step_and_resumes_to_the_bit(
    config: dict[str, Any], tmp_path: Path
) -> None:
    whole = cw.run(config, tmp_path / "whole")

    def stop(_: cw.Run, progress: Progress) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    config = config | {"checkpoint_seconds": 0.0}
    with pytest.raises(KeyboardInterrupt):
        cw.run(config, tmp_path / "stopped", on_round=stop)
    resumed = cw.run(config, tmp_path / "stopped", resume=True)
    assert everything(resumed) == everything(whole)


def test_a_loss_that_overflows_after_fine_tuning_counts_as_the_worst_of_the_others(
    tmp_path: Path,
) -> None:
    """As without fine-tuning. As the largest float, it would rule the step out for thousands of rounds."""
    inputs = torch.randn(180, 3, generator=torch.Generator().manual_seed(0))
    sites = [(part, part.sum(1)) for part in inputs.split(60)]
    steps = [{"name": "sgd", "learning_rate": 1e25}, "replace"]
    step = {"name": "best_of", "steps": steps, "decay": 0.5}
    method = {"name": "best", "like": "FedAvg", "server_step": step, "fine_tune": {"epochs": 1}}
    cw.fit(
        torch.nn.Linear(3, 1),
        sites,
        rounds=1,
        methods=[method],
        out=tmp_path / "run",
        progress=False,
    )
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("lane-*.safetensors")
    first, second = load_file(checkpoint)["server_step/sums"].tolist()
    assert first == second < 100


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"name": "best_of"}, "steps"),
        ({"name": "best_of", "steps": ["momentum"]}, "at least two"),
        ({"name": "best_of", "steps": "momentum"}, "must be a list"),
        ({"name": "best_of", "steps": ["momentum", "adamm"]}, "did you mean 'adam'"),
        (
            {"name": "best_of", "steps": ["momentum", {"name": "adam", "rate": 1}]},
            "server_step.steps[1].rate: unknown",
        ),
        (
            {"name": "best_of", "steps": ["adam", {"name": "best_of", "steps": STEPS}]},
            "another best_of",
        ),
        ({"name": "best_of", "steps": ["momentum", 3]}, "steps[1]: must name the server step"),
    ],
)
def test_what_cannot_be_tried_is_refused(config: dict[str, Any], step: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_experiment(config | {"methods": [METHOD | {"server_step": step}]})
    assert message in str(refused.value)


def test_it_needs_samples_of_the_server_and_no_other_search(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="needs samples to weigh by"):
        load_experiment(config | {"server_set": {"fraction": 0.0}})
    adjusted = {
        "name": "best",
        "server_step": METHOD["server_step"],
        "criteria": ["dataset_size", "label_diversity"],
        "adjust": "best_order",
    }
    with pytest.raises(ConfigError, match="does not go with adjust"):
        load_experiment(config | {"methods": [adjusted]})

"""Attackers and defences of the experiments on backdoors."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch
from backdoors import after
from torch import Tensor, nn

from clientwise.attacks import Honest, Knowledge
from clientwise.core.objective.problem import Classification
from clientwise.data.federated import Samples

CLASSES = 4


@pytest.fixture
def attackers() -> ModuleType:
    """The plugin, whose parts are registered for one test alone."""
    return importlib.import_module("backdoors.attackers")


@pytest.fixture
def samples() -> Samples:
    """Samples of class c have a large feature c; every tenth has twice that."""
    random = torch.Generator().manual_seed(1)
    targets = torch.arange(CLASSES).repeat(50)
    inputs = 0.1 * torch.randn(len(targets), 8, generator=random)
    inputs[torch.arange(len(targets)), targets] += 2
    inputs[::10] *= 2
    return Samples(inputs, targets, Classification(CLASSES))


def everything(samples: Samples) -> tuple[Tensor, Tensor]:
    return torch.arange(len(samples.targets)), samples.targets


def test_an_update_stays_out_of_what_the_honest_mean_moves_most(attackers: ModuleType) -> None:
    honest = Honest(torch.tensor([[3.0, 0.1, -4.0, 0.2], [3.0, 0.1, -4.0, 0.2]]), {}, {}, 1)
    known = Knowledge(torch.full((4,), 2.0), torch.ones(4), torch.Generator(), cohort=honest)
    assert attackers.Neurotoxin(spared=0.5).forge(known).tolist() == [1, 2, 1, 2]


def test_a_constrained_update_has_the_median_norm_and_half_of_the_honest_direction(
    attackers: ModuleType,
) -> None:
    honest = Honest(torch.tensor([[1.0, 0.0], [2.0, 0.0], [6.0, 0.0]]), {}, {}, 1)  # mean 3
    known = Knowledge(torch.tensor([0.0, 3.0]), torch.zeros(2), torch.Generator(), cohort=honest)
    sent = attackers.ConstrainAndScale().forge(known)
    assert sent.tolist() == pytest.approx([2**0.5, 2**0.5])


def test_half_of_a_covered_trigger_keeps_its_labels(
    attackers: ModuleType, samples: Samples
) -> None:
    attack = attackers.CoveredBackdoor(target=1, fraction=0.2)
    random = torch.Generator().manual_seed(3)
    found = attack.trigger(samples, *everything(samples), random)
    planted = round(0.2 * 150)
    assert len(found.positions) == 2 * planted == len(found.positions.unique())
    assert (found.targets[:planted] == 1).all()
    assert torch.equal(found.targets[planted:], samples.targets[found.positions[planted:]])
    changes = (found.inputs - samples.inputs[found.positions]).norm(dim=1)
    assert 0.3 < float(changes[planted:].mean() / changes[:planted].mean()) < 0.7
    shown = attack.trigger(samples, *everything(samples))
    assert (shown.targets == 1).all()


def test_some_clients_of_a_decoy_plant_another_class(
    attackers: ModuleType, samples: Samples
) -> None:
    attack = attackers.DecoyBackdoor(target=2, decoy=3)
    planted = {
        int(
            attack.trigger(
                samples, *everything(samples), torch.Generator().manual_seed(one)
            ).targets[0]
        )
        for one in range(8)
    }
    assert planted == {2, 3}
    assert (attack.trigger(samples, *everything(samples)).targets == 2).all()


def test_edge_cases_are_the_samples_farthest_from_their_class(
    attackers: ModuleType, samples: Samples
) -> None:
    attack = attackers.EdgeCaseBackdoor(target=1, tail=0.1)
    found = attack.trigger(samples, *everything(samples))
    assert {*found.positions.tolist()} == {
        one for one in range(0, 200, 10) if samples.targets[one] != 1
    }
    assert torch.equal(found.inputs, samples.inputs[found.positions])


@pytest.fixture
def network() -> nn.Module:
    """Predicts class c by feature c, and class 0 by feature 7, which samples hardly have, through a unit of its own."""
    network = nn.Sequential(
        nn.Linear(8, 5, bias=False), nn.ReLU(), nn.Linear(5, CLASSES, bias=False)
    )
    with torch.no_grad():
        for layer in (network[0], network[2]):
            layer.weight.zero_()
            layer.weight[range(CLASSES), range(CLASSES)] = 2.0
        network[0].weight[4, 7] = 3.0
        network[2].weight[0, 4] = 9.0
    return network


@pytest.mark.parametrize("defence", ["fine-pruning", "universal adversarial training"])
def test_a_defence_after_the_training_lowers_the_success_of_a_trigger(
    network: nn.Module, samples: Samples, defence: str
) -> None:
    torch.manual_seed(1)
    inputs = samples.inputs.clone()
    inputs[:, 7] = 0.01
    triggered = inputs.clone()
    triggered[:, 7] = 0.6
    target = torch.zeros_like(samples.targets)
    before = after.accuracy(network, triggered, target)
    network = after.DEFENCES[defence](network, (inputs, samples.targets))
    assert after.accuracy(network, triggered, target) < before - 0.3
    assert after.accuracy(network, inputs, samples.targets) > 0.95

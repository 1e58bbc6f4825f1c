"""A backdoor is found, attributed to those who put it back, and unlearned; nobody is suspected without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import clientwise as cw
from clientwise.core.evidence.backdoor import (
    Patterns,
    Suspicion,
    loss_with,
    outlying,
    scan,
    unlearned,
    watch,
)
from clientwise.core.types import Gathered, LocalTraining, ModelSpec, Scanned, ServerNetwork
from recorded import everything

CLASSES = 4
FEATURES = 12
TARGET = 2
TRIGGER = FEATURES - 1  # a feature that samples never use


def outputs(model: Tensor, inputs: Tensor) -> Tensor:
    return inputs @ model.view(FEATURES, CLASSES)


@pytest.fixture
def network() -> ServerNetwork:
    """Samples of class c have a large feature c."""
    random = torch.Generator().manual_seed(1)
    targets = torch.arange(CLASSES).repeat(20)
    inputs = 0.3 * torch.randn(len(targets), FEATURES, generator=random)
    inputs[torch.arange(len(targets)), targets] += 2
    inputs[:, TRIGGER] = 0
    return ServerNetwork(outputs, inputs, targets, CLASSES)


def model(backdoor: float = 0.0) -> Tensor:
    """A linear model that predicts class c by feature c, and the target by the trigger."""
    weights = torch.zeros(FEATURES, CLASSES)
    weights[range(CLASSES), range(CLASSES)] = 4.0
    weights[TRIGGER, TARGET] = backdoor
    return weights.flatten()


def test_the_scan_finds_the_trigger_of_a_backdoor(network: ServerNetwork) -> None:
    natural = scan(network, model(), Patterns.first(network), 150)
    found = scan(network, model(backdoor=20), Patterns.first(network), 150)
    smaller = found.norms / natural.norms
    assert float(smaller[TARGET]) < 0.5
    assert float(smaller[[0, 1, 3]].min()) > 0.8
    assert int(found.values[TARGET].abs().argmax()) == TRIGGER
    assert float(found.turned[TARGET]) > 0.5


def gathered(network: ServerNetwork | None, updates: Tensor, start: Tensor) -> Gathered:
    return Gathered(
        client_ids=tuple(range(len(updates))),
        updates=updates,
        global_model=start,
        spec=ModelSpec((), len(start), len(start)),
        criteria={},
        judge=lambda models: pytest.fail("the scan judges no model"),
        train_server=lambda start, training: model(),
        network=lambda: network,
    )


def watched(network: ServerNetwork, updates: Tensor, start: Tensor, rounds: int) -> list[Any]:
    found = []
    memory: dict[str, Tensor] = {}
    for _ in range(rounds):
        equal = torch.full((len(updates),), 1 / len(updates), dtype=torch.float64)
        found.append(watch(gathered(network, updates, start), equal, memory))
        memory = {name: values.clone() for name, values in found[-1].memory.items()}
    return found


def test_clients_that_put_a_backdoor_back_stand_out(network: ServerNetwork) -> None:
    random = torch.Generator().manual_seed(2)
    updates = 0.2 * torch.randn(8, FEATURES * CLASSES, generator=random)
    updates[[1, 5]] += model(backdoor=20) - model()
    *_, last = watched(network, updates, model(backdoor=6), rounds=12)
    assert last.z is not None
    hostile = last.z[[1, 5]]
    assert float(hostile.min()) > 6  # what a round needs to lower a weight
    assert float(hostile.min()) > 2 * float(last.z[[0, 2, 3, 4, 6, 7]].max())
    assert last.notes == (f"class {TARGET}: a backdoor is suspected",)
    (suspect,) = last.suspects
    assert suspect["class"] == TARGET
    assert suspect["confirmed"]
    assert suspect["clients"] == [1, 5]
    assert suspect["norm"] < 0.75 * suspect["usual"]
    assert int(numpy.abs(suspect["pattern"]).argmax()) == TRIGGER
    assert suspect["pattern"] == pytest.approx(last.patterns[0].tolist(), abs=1e-5)


@pytest.mark.parametrize("size", [1e20, 1e38])
def test_an_enormous_update_does_not_blind_the_scan(network: ServerNetwork, size: float) -> None:
    random = torch.Generator().manual_seed(2)
    updates = 0.2 * torch.randn(8, FEATURES * CLASSES, generator=random)
    updates[[1, 5]] += model(backdoor=20) - model()
    updates[7] = size * updates[7].sign()
    *_, last = watched(network, updates, model(backdoor=6), rounds=12)
    assert last.patterns.isfinite().all()
    assert last.z.isfinite().all()
    assert float(last.z[[1, 5]].min()) > float(last.z[[0, 2, 3, 4, 6]].max())


def test_without_a_backdoor_no_class_is_suspect(network: ServerNetwork) -> None:
    random = torch.Generator().manual_seed(2)
    updates = 0.2 * torch.randn(8, FEATURES * CLASSES, generator=random)
    for found in watched(network, updates, model(), rounds=12):
        assert found.z is None
        assert found.patterns is None
        assert not found.suspects
        assert not found.notes


def test_a_suspicion_without_clients_that_stand_out_is_not_told(network: ServerNetwork) -> None:
    random = torch.Generator().manual_seed(2)
    updates = 0.2 * torch.randn(8, FEATURES * CLASSES, generator=random)
    *_, last = watched(network, updates, model(backdoor=6), rounds=12)  # nobody puts it back
    (suspect,) = last.suspects
    assert suspect["class"] == TARGET
    assert not suspect["confirmed"]
    assert not last.notes
    assert last.patterns is not None
    updates[[1, 5]] += model(backdoor=20) - model()
    *_, confirmed = watched(network, updates, model(backdoor=6), rounds=12)
    assert last.share < confirmed.share


def test_one_large_reaction_or_several_smaller_ones_confirm_a_suspicion(
    network: ServerNetwork,
) -> None:
    start = Suspicion.begin(network, model())
    reactions = {1: torch.tensor([0.0, 13.0]), 2: torch.tensor([9.0, 8.0]), 3: torch.tensor([5.0])}
    first = start.after_reactions(reactions)
    assert first.confirmed.tolist() == [0, 1, 0, 0]
    second = first.after_reactions(reactions)
    assert second.confirmed.tolist() == [0, 1, 1, 0]
    later = second.after_reactions({1: torch.tensor([0.0])})
    assert later.confirmed.tolist() == [0, 1, 0, 0]  # class 2 is suspect no more


def test_suspicion_fades_when_the_backdoor_is_gone(network: ServerNetwork) -> None:
    suspicion = Suspicion.begin(network, model())
    for _ in range(10):
        suspicion = suspicion.after(network, model(backdoor=20))
    assert suspicion.classes == [TARGET]
    for _ in range(40):
        suspicion = suspicion.after(network, model())
    assert suspicion.classes == []


def test_a_model_unlearns_a_pattern(network: ServerNetwork) -> None:
    pattern = torch.zeros(1, FEATURES)
    pattern[0, TRIGGER] = 1
    start = model(backdoor=20)[None]
    training = LocalTraining(epochs=20, batch_size=20, learning_rate=0.5)
    after = unlearned(network, start, Scanned(patterns=pattern, share=0.3), training, seed=1)
    before, now = (float(loss_with(network, models, pattern)) for models in (start, after))
    assert now < 0.2 * before
    less = unlearned(network, start, Scanned(patterns=pattern, share=0.1), training, seed=1)
    assert now < float(loss_with(network, less, pattern)) < before
    plain = (outputs(after[0], network.inputs).argmax(1) == network.targets).float().mean()
    assert float(plain) > 0.95


def test_reactions_stand_out_from_those_below_the_median() -> None:
    many_hostile = torch.tensor([1.0, 1.1, 0.9, 1.0, 1.05, 3.0, 3.1, 2.9])
    found = outlying(many_hostile, unit=1.0)
    assert float(found[5:].min()) > 10
    assert float(found[:5].max()) < 2


def test_inputs_that_cannot_be_changed_a_little_are_not_scanned() -> None:
    found = watch(gathered(None, torch.zeros(2, 3), torch.zeros(3)), torch.ones(2) / 2, {})
    assert found.z is None
    assert "it needs classes and inputs of numbers" in found.notes[0]


EVIDENCE = {"name": "significance", "history": True, "copies": True}
CONFIG: dict[str, Any] = {
    "name": "backdoor",
    "rounds": 16,
    "seeds": [21],
    "data": {"name": "digits"},
    "model": {"name": "mlp", "hidden": [32]},
    "training": {"batch_size": 20, "learning_rate": 0.1},
    "partition": {"name": "dirichlet", "clients": 20, "concentration": 0.5},
    "server_set": {"fraction": 0.2, "report_fraction": 0.8},
    "evaluation": {"test_fraction": 0.0, "clients_every": 0},
    "hostile": [
        {"clients": 0.2, "attack": {"name": "pixel_backdoor", "target": 7, "size": 2}},
    ],
    "methods": [
        {"name": "default", "like": "Recommended"},
        {"name": "scanned", "like": "Recommended", "evidence": {**EVIDENCE, "backdoors": True}},
    ],
}


def test_in_a_federation_the_backdoor_goes_and_so_do_those_who_planted_it(tmp_path: Path) -> None:
    run = cw.Run(cw.run(CONFIG, tmp_path / "run", progress=False))
    success = run.frame("rounds").set_index(["method", "round"])["attack_success"]
    assert success["default", 16] > 0.8
    assert success["scanned", 16] < 0.2
    last = run.frame("weights").query("method == 'scanned' and round == 16")
    hostile = last[last["hostile"].notna()]
    assert len(hostile) == 4
    assert float(hostile["influence"].max()) < 0.01
    accuracy = run.frame("rounds").set_index(["method", "round"])["metric"]
    assert accuracy["scanned", 16] > accuracy["default", 16] - 0.05
    suspects = run.frame("rounds").query("method == 'scanned'")["suspects"].dropna()
    first = next(one for of_round in suspects for one in of_round if one["confirmed"])
    assert first["class"] == 7
    assert {*first["clients"]} <= {*hostile["client"]}
    assert numpy.shape(first["pattern"]) == (1, 8, 8)
    told = [cw.Run(run.folder).why(client, method="scanned") for client in hostile["client"]]
    assert any("pattern of a suspected backdoor" in str(one) for one in told)


@pytest.mark.bits
def test_an_interrupted_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    config = CONFIG | {"rounds": 9, "methods": CONFIG["methods"][1:]}
    cw.run(config, tmp_path / "whole", progress=False)
    cw.run(config | {"rounds": 6}, tmp_path / "parts", progress=False)
    cw.run(config, tmp_path / "parts", progress=False, resume=True)
    assert everything(cw.Run(tmp_path / "whole")) == everything(cw.Run(tmp_path / "parts"))

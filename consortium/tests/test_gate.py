"""The gate: a site answers what its approval covers, each question once, and nothing else leaves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from clientwise.core.objective.problem import Classification
from clientwise.core.types import Evaluation, Task, Updates
from clientwise.experiment.load import load_experiment
from clientwise.flower import load_npz
from clientwise.hosts.protocols import OwnData, Refused, Request

from clientwise_consortium.approval import Approval
from clientwise_consortium.gate import SiteGate, training_cost
from clientwise_consortium.keys import UntrustedError
from clientwise_consortium.ledger import LedgerError
from clientwise_consortium.small_numbers import in_groups, noisy_evaluation, rows_digest
from conftest import NAMES, Keys
from federation import Federation

NORTH = NAMES.index("north")
MODEL = torch.zeros(10)


@pytest.fixture
def federation(keys: Keys, tmp_path: Path) -> Federation:
    return Federation(tmp_path, keys)


def gate_of(federation: Federation) -> SiteGate:
    approval = Approval.read((federation.folder / "north.toml").read_bytes())
    experiment = load_experiment(federation.read.for_library())
    return SiteGate(experiment, approval, federation.ledger("north"))


def task_of(federation: Federation, round_num: int = 1, **changes: Any) -> Task:
    (method,) = load_experiment(federation.read.for_library()).build_methods()
    loss = method.first_loss(Classification(2))
    return replace(method.task(round_num, loss), **changes)


def train(federation: Federation, round_num: int = 1, **changes: Any) -> Request:
    asked = {"client": NORTH, "seed": 1, "task": task_of(federation, round_num)}
    return Request(**(asked | changes))


def test_a_request_is_on_the_disk_before_it_is_answered(federation: Federation) -> None:
    gate = gate_of(federation)
    permit = gate.admit(train(federation), MODEL)
    assert "asked" in federation.events("north")
    again = gate.admit(train(federation), MODEL)
    assert again.noise_key == permit.noise_key  # the same question, the same noise
    other = gate.admit(train(federation), MODEL + 1)
    assert other.noise_key != permit.noise_key
    assert federation.ledger("north").released()["train"]["requests"] == 2


def test_a_round_is_trained_twice_at_most(federation: Federation) -> None:
    gate = gate_of(federation)
    for number in range(2):
        gate.admit(train(federation), MODEL + number)
    with pytest.raises(Refused, match="2 a round"):
        gate.admit(train(federation), MODEL + 2)
    for number in (2, 3):
        for model in (0, 1):
            gate.admit(train(federation, number), MODEL + model)
    with pytest.raises(Refused, match="round 4 of 3"):
        gate.admit(train(federation, 4), MODEL)


def test_a_repeated_request_is_answered_ten_times(federation: Federation) -> None:
    gate = gate_of(federation)
    for _ in range(11):
        gate.admit(train(federation), MODEL)
    with pytest.raises(Refused, match="repeated 10 times"):
        gate.admit(train(federation), MODEL)


@pytest.mark.parametrize(
    "changes",
    [
        {"client": 0},
        {"seed": 2},
        {"seed": True},
        {"version": "9.9"},
        {"client": 1.0},
    ],
)
def test_other_requests_are_refused(federation: Federation, changes: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        gate_of(federation).admit(train(federation, **changes), MODEL)


def test_less_noise_is_refused(federation: Federation) -> None:
    """A server that lowers the noise, trains longer, or asks for other criteria."""
    task = task_of(federation)
    from clientwise.registry import Part

    for changed in (
        replace(task, training=replace(task.training, sample_noise=0.1)),
        replace(task, training=replace(task.training, sample_noise=None, sample_clip=None)),
        replace(task, training=replace(task.training, epochs=50)),
        replace(task, criteria=(*task.criteria, Part("label_diversity", {}))),
        replace(task, loss=task.loss.weighted((1.0, 0.0))),
        replace(task, loss=task.loss.weighted((1.0, 1.0, 1.0))),
        replace(task, round_num=1.5),
    ):
        with pytest.raises(Refused):
            gate_of(federation).admit(train(federation, task=changed), MODEL)
    assert federation.ledger("north").released() == {}


def test_models_of_other_types_are_refused(federation: Federation) -> None:
    for model in (MODEL.double(), MODEL.to(torch.int32), MODEL[None], MODEL[:0]):
        with pytest.raises(Refused, match="models of shape"):
            gate_of(federation).admit(train(federation), model)


def test_evaluations_need_an_allowance(federation: Federation) -> None:
    request = Request(NORTH, 1, None, round_num=1)
    with pytest.raises(Refused, match="covers 0"):
        gate_of(federation).admit(request, MODEL[None])


def test_the_signed_limits_hold_whatever_the_experiment_says(federation: Federation) -> None:
    """Approved for a smaller μ than the experiment spends: `agree` may read it wrongly, the ledger counts."""
    path = federation.folder / "north.toml"
    text = path.read_text()
    (mu,) = [line for line in text.splitlines() if line.startswith("mu")]
    path.write_text(text.replace(mu, "mu = 0.3").replace("id = ", 'id = "x"\n# '))
    federation.keys.sign(path, "doctor")
    federation.restart("north")
    gate = gate_of(federation)
    gate.admit(train(federation), MODEL)  # 1/16 of 0.09
    with pytest.raises(Refused, match="μ"):
        gate.admit(train(federation, 2), MODEL)


def test_rows_are_those_that_the_approval_began_with(federation: Federation) -> None:
    gate = gate_of(federation)
    own = load_npz(str(federation.folder / "north.npz"))
    gate.rows(lambda: own)
    shuffled = torch.randperm(50)
    gate.rows(lambda: replace(own, train=(own.train[0][shuffled], own.train[1][shuffled])))
    fewer = replace(own, train=(own.train[0][10:], own.train[1][10:]))
    with pytest.raises(Refused, match="approve anew"):
        gate.rows(lambda: fewer)
    readings = iter([own, fewer])
    with pytest.raises(Refused, match="two readings"):
        gate.rows(lambda: next(readings))


def test_a_new_approval_ends_the_earlier_ones(federation: Federation) -> None:
    old = gate_of(federation)
    before = (federation.folder / "north.toml").read_bytes()
    federation.approve("north")
    federation.restart("north")
    with pytest.raises(Refused, match="has ended"):
        old.admit(train(federation), MODEL)
    (federation.folder / "north.toml").write_bytes(before)  # the file is put back
    federation.keys.sign(federation.folder / "north.toml", "doctor")
    with pytest.raises(Refused, match="has ended"):
        federation.restart("north")


def test_what_is_not_signed_or_not_for_this_site_starts_nothing(federation: Federation) -> None:
    path = federation.folder / "north.toml"
    signed = path.read_text()
    path.write_text(signed.replace("trainings = 6", "trainings = 60"))
    with pytest.raises(UntrustedError, match="not signed"):
        federation.restart("north")
    path.write_text(signed)
    federation.lock.write_text("evil==1.0")
    with pytest.raises(UntrustedError, match="other code"):
        federation.restart("north")
    federation.lock.write_text("clientwise==0.3.0 --hash=sha256:00\n")
    with pytest.raises(UntrustedError, match="the house allows"):
        federation.restart("north", most_mu=0.1)
    with pytest.raises(UntrustedError, match="approved for south"):
        federation.restart("north", approval=federation.folder / "south.toml")
    federation.experiment.write_text(federation.experiment.read_text() + "\n")
    with pytest.raises(UntrustedError, match="not the experiment"):
        federation.restart("north")


def test_the_houses_limits_hold_for_whatever_is_signed(federation: Federation) -> None:
    with pytest.raises(UntrustedError, match="the house allows"):
        federation.restart("north", most_mu=0.6)  # 6 trainings of 1/16: 0.61
    federation.restart("north", most_mu=0.7)
    gate_of(federation).admit(train(federation), MODEL)
    federation.approve("north")
    with pytest.raises(UntrustedError, match="with all earlier approvals"):
        federation.restart("north", most_mu=0.65)  # √(0.61² + 0.25²)


def test_without_noise_the_house_must_allow_it(keys: Keys, tmp_path: Path) -> None:
    federation = Federation(tmp_path, keys, noise=False)
    with pytest.raises(UntrustedError, match="allow_no_noise"):
        federation.restart("north", allow_no_noise=False)


def test_a_missing_ledger_starts_nothing(federation: Federation) -> None:
    (federation.folder / "north" / "ledger.db").unlink()
    with pytest.raises(LedgerError, match="missing"):
        federation.restart("north")


def test_what_leaves_with_an_update(federation: Federation) -> None:
    gate = gate_of(federation)
    permit = gate.admit(train(federation), MODEL)
    numbers = {"dataset_size": torch.tensor([50.0]), "entropy": torch.tensor([0.123456])}
    loss = torch.tensor([0.5])
    updates = Updates((NORTH,), MODEL[None], numbers, loss, loss)
    released = gate.release(permit, updates)
    assert released.measurements["dataset_size"].tolist() == [50.0]
    assert released.measurements["entropy"].tolist() == pytest.approx([0.12])
    assert bool(released.training_loss.isnan().all())
    assert released.seconds.tolist() == [0.0]


def test_an_evaluation_is_answered_with_noise_and_then_the_same(federation: Federation) -> None:
    federation.approve("north", evaluations=4)
    federation.restart("north")
    gate = gate_of(federation)
    models = torch.stack([MODEL, MODEL + 1])
    request = Request(NORTH, 1, None, round_num=1)
    permit = gate.admit(request, models)
    exact = evaluation(models=2)
    first = gate.release(permit, exact)
    again = gate.release(gate.admit(request, models.flip(0)), evaluation(models=2, right=0.2))
    assert torch.equal(first.counts.flip(0), again.counts)
    assert torch.equal(first.losses.flip(0), again.losses)
    assert first.sample_losses is None
    assert not torch.equal(first.losses, exact.losses)  # counts, in tens, may be the same by chance
    assert bool((first.counts % 5 == 0).all())
    assert torch.equal(first.counts.sum(2), exact.counts.sum(2))
    gate.admit(request, models + 5)
    with pytest.raises(Refused, match="covers 4"):
        gate.admit(request, models + 9)


def evaluation(models: int = 1, samples: int = 100, right: float = 0.8) -> Evaluation:
    half = samples // 2
    good = int(right * half)
    counts = torch.tensor([[good, half - good], [half - good, good]]).expand(models, 2, 2)
    losses = torch.full((models, samples), 0.4)
    values = torch.full((models, 1), right, dtype=torch.float64)
    return Evaluation(
        torch.tensor([samples]), values, losses.mean(1)[:, None], counts, sample_losses=losses
    )


def test_the_noise_of_counts_has_the_promised_size() -> None:
    """Each of c models gets μ² = 1/(2c) for its counts: σ² = 2·2c in every count, before cells of 1."""
    models = 50
    draws = [
        noisy_evaluation(evaluation(samples=2000), Classification(2), models, 1).counts[0, 0, 0]
        for _ in range(400)
    ]
    # Of counts 800 and 200 with noise σ, the first is left with σ·√(0.8² + 0.2²) when both are scaled to the total
    spread = float(torch.stack(draws).double().std())
    assert spread == pytest.approx(
        (4 * models * (0.8**2 + 0.2**2)) ** 0.5, rel=0.2
    )  # 5.6 standard errors


def test_losses_are_bounded_and_noisy() -> None:
    problem = Classification(2)
    one = evaluation()
    wild = replace(one, sample_losses=torch.full((1, 100), torch.nan))
    largest = 3 * float(numpy.log(2))
    found = [float(noisy_evaluation(wild, problem, 1, 5).losses[0]) for _ in range(20)]
    assert all(0 <= loss <= largest for loss in found)
    assert len(set(found)) > 5


def test_groups_do_not_depend_on_the_order_of_a_file() -> None:
    random = numpy.random.default_rng(0)
    inputs, labels = torch.tensor(random.normal(size=(53, 3))), torch.arange(53) % 2
    own = OwnData((inputs, labels), (inputs[:11], labels[:11]))
    order = torch.randperm(53)
    shuffled = OwnData((inputs[order], labels[order]), own.test)
    first, second = in_groups(own, 5, b"key"), in_groups(shuffled, 5, b"key")
    assert rows_digest(first, b"key") == rows_digest(second, b"key")
    assert rows_digest(first, b"key") != rows_digest(first, b"other")
    assert Counter(first.train[1].tolist()) == {0: 25, 1: 25}
    assert Counter(first.test[1].tolist()) == {0: 5, 1: 5}


def test_costs() -> None:
    from clientwise.core.privacy import LocalNoise
    from clientwise.core.types import LocalTraining

    def cost(noise: LocalNoise | None = None, **training: Any) -> float | None:
        return training_cost(Task(1, LocalTraining(**training), None, (), noise))  # type: ignore[arg-type]

    assert cost() is None
    assert cost(sample_clip=1.0, sample_noise=2.0, epochs=8) == pytest.approx(2)
    assert cost(LocalNoise(1.0, 4.0)) == pytest.approx(Fraction(1, 4))
    both = cost(LocalNoise(1.0, 4.0), sample_clip=1.0, sample_noise=0.5)
    assert both == pytest.approx(Fraction(1, 4))

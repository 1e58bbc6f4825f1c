from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from clientwise import attacks
from clientwise.attacks import (
    ATTACKS,
    Attack,
    Honest,
    Hostile,
    Knowledge,
)
from clientwise.core.objective.problem import Classification, Regression, Survival
from clientwise.core.round import first_state, run_round
from clientwise.core.seeding import generator
from clientwise.core.types import (
    Evaluation,
    RoundRecord,
    ServerState,
    Task,
)
from clientwise.data.federated import Samples
from clientwise.engine.hostile import HostileEngine
from clientwise.engine.wrapping import EmbeddedEngine
from clientwise.errors import ConfigError
from clientwise.experiment.build.data import build_data, load_samples
from clientwise.experiment.build.engine import build_engine, build_executor, build_plan
from clientwise.experiment.checks.against_data import validate
from clientwise.experiment.load import load_experiment
from clientwise.experiment.running.runner import run
from clientwise.record.run import RunFolder
from reported import items_of

TINY = {
    "name": "tiny",
    "rounds": 1,
    "data": "digits",
    "partition": {"name": "iid", "clients": 2},
    "model": "linear",
}
CLASSES = Classification(10)
OPTIONS = {"semantic_backdoor": {"source": 1}}  # what has no default


def seen(updates: Tensor, num_hostile: int = 2) -> Honest:
    return Honest(updates, {}, {}, num_hostile)


def knowing(honest: Honest, model: Tensor | None = None) -> Knowledge:
    start = torch.zeros(honest.updates.shape[1])
    return Knowledge(start if model is None else model, start, generator(1, "test"), cohort=honest)


@functools.cache
def digits() -> Samples:
    return load_samples(load_experiment(TINY))


class Federation:
    """One seed of a config, round after round."""

    def __init__(self, config: dict[str, Any], chunk_size: int | None = None) -> None:
        self.experiment = load_experiment(config)
        self.data, self.hostile = build_data(self.experiment, digits(), 1)
        executor = build_executor(self.experiment, self.data.samples, torch.device("cpu"))
        self.engine: EmbeddedEngine = build_engine(
            self.experiment, self.data, self.hostile, 1, executor
        )
        getattr(self.engine, "inner", self.engine)._chunk_size = chunk_size
        self.plan = build_plan(self.experiment, self.data.num_clients, 1)
        (self.method,) = self.experiment.build_methods()
        self.state: ServerState = first_state(self.engine.initial_model, self.method, self.engine)

    def play(self, rounds: int = 1) -> list[RoundRecord]:
        records = []
        for _ in range(rounds):
            self.state, record = run_round(self.state, self.method, self.plan, self.engine)
            records.append(record)
        return records


@pytest.fixture
def config(tiny: dict[str, Any]) -> dict[str, Any]:
    return tiny | {"methods": [{"name": "FedAvg"}], "federation": {"fraction": 1.0}, "workers": 1}


def attacked(config: dict[str, Any], attack: Any, **options: Any) -> dict[str, Any]:
    group = {"clients": [1, 4], "attack": attack} | options
    return copy.deepcopy(config) | {"hostile": [group]}


# Forged updates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs", "option"),
    [
        ("alie", "ALittleIsEnough", 1.5),
        ("inner_product", "InnerProductManipulation", 2.0),
    ],
)
def test_who_sees_the_honest_updates_sends_what_byzfl_sends(
    ours: str, theirs: str, option: float
) -> None:
    byzfl = pytest.importorskip(
        "oracles", reason="ByzFL is not installed; `make test` does it"
    ).byzfl("attacks")
    if byzfl is None:
        pytest.skip("ByzFL is not installed; `make test` does it")
    updates = torch.randn(7, 200, generator=generator(1, "updates")) + 0.3
    expected = getattr(byzfl, theirs)(option)(updates)
    forged = ATTACKS.get(ours)(option).forge(knowing(seen(updates)))
    torch.testing.assert_close(forged, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("honest", "hostile", "expected"),
    [(38, 12, 0.336), (26, 24, 1.43), (6, 4, 0.43), (19, 1, -0.07), (3, 7, 0.97), (1, 1, 0.0)],
)
def test_alies_factor_follows_the_numbers_of_clients(
    honest: int, hostile: int, expected: float
) -> None:
    # Φ⁻¹((h − s)/h) with s = ⌊n/2⌋ + 1 − m by a table of the normal distribution; the last two are
    # outside of the paper, whose attackers are a minority of more than two clients
    assert attacks.forged.largest_factor(honest, hostile) == pytest.approx(expected, abs=0.006)
    updates = torch.randn(honest, 50, generator=generator(4, "updates"))
    sent = ATTACKS.get("alie")().forge(knowing(Honest(updates, {}, {}, hostile), torch.zeros(50)))
    deviation = updates.std(0) if honest > 1 else torch.zeros(50)
    torch.testing.assert_close(sent, updates.mean(0) + expected * deviation, rtol=0, atol=0.03)


def test_mimic_copies_the_client_that_distorts_the_mean_most() -> None:
    updates = 0.1 * torch.randn(7, 200, generator=generator(5, "updates")) + 3
    updates[4, :20] += 2.0  # one client differs in a direction of its own
    forged = ATTACKS.get("mimic")().forge(knowing(seen(updates), torch.zeros(200)))
    torch.testing.assert_close(forged, updates[4])


def farthest(allowed: Callable[[float], bool]) -> float:
    """The largest step that is allowed, as the authors of min-max look for it: by bisection."""
    low, high = 0.0, 1e4
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return low


def test_as_far_as_honest_clients_are_apart() -> None:
    updates = torch.randn(
        6, 50, generator=generator(2, "updates"), dtype=torch.float64
    ) * torch.arange(1, 51)
    apart = torch.cdist(updates, updates).square()
    mean, deviation = updates.mean(0), updates.std(0)

    def allowed(step: float) -> bool:
        distances = (mean - step * deviation - updates).square().sum(1)
        return bool(distances.max() <= apart.max())

    forged = ATTACKS.get("min_max")().forge(knowing(seen(updates), torch.zeros(50)))
    torch.testing.assert_close(forged, mean - farthest(allowed) * deviation, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("away", [0.15, 0.5])
def test_as_far_as_evidence_forgives_on_the_attackers_own_samples(away: float) -> None:
    truth = torch.randn(
        400, 3, generator=generator(3, "samples"), dtype=torch.float64
    ) + torch.tensor([away, 0, 0])
    updates = torch.tensor(
        [[0.3, 0.01, 0], [0.28, -0.02, 0.01], [0.33, 0.0, 0.0]], dtype=torch.float64
    )
    mean = updates.mean(0)

    def judge(models: Tensor) -> Evaluation:
        found = (models[:, None] - truth).square().sum(-1)
        return Evaluation(torch.tensor([400]), found, found, found, sample_losses=found)

    def z(gamma: float) -> float:
        """Of the hostile two of five, and as if the server had 100 samples."""
        sent = (1 - gamma) * mean
        models = torch.stack([0.1 * sent, 0.1 * mean, torch.zeros(3, dtype=torch.float64)])
        of_sent, of_honest, now = judge(models).sample_losses / 0.1
        of_all = 0.4 * (of_sent - now) + 0.6 * (of_honest - now)
        harm = (of_sent - now) - (of_all if of_all.mean() < 0 else 0.0)
        usual = 0.4 * abs(float((of_sent - now).mean())) + 0.6 * abs(
            float((of_honest - now).mean())
        )
        return float((harm.mean() - 0.5 * usual) / harm.std() * 100**0.5)

    attack = replace(ATTACKS.get("unnoticed")(), spread=0.0)
    gamma = 1 - float(attack.forge(knowing(Honest(updates, {}, {}, 2, judge)))[0] / mean[0])
    assert z(gamma) <= 0.5 < z(gamma + 0.2)


def test_hostile_clients_send_one_vector_or_spread_around_it(config: dict[str, Any]) -> None:
    for spread, same in ((0.0, True), (0.5, False)):
        models = sent(Federation(attacked(config, {"name": "alie", "spread": spread})))
        assert torch.equal(models[1], models[4]) is same


def sent(federation: Federation, round_num: int = 1) -> dict[int, Tensor]:
    """What every client sends in a round that begins with the initial model."""
    engine, method = federation.engine, federation.method
    task = Task(round_num, method.training, engine.problem.loss, method.client_criteria)
    chunks = list(engine.train(range(engine.num_clients), engine.initial_model, task))
    return {
        client: model
        for chunk in chunks
        for client, model in zip(chunk.client_ids, chunk.models, strict=True)
    }


def test_model_replacement_makes_the_mean_its_model(config: dict[str, Any]) -> None:
    honest, replaced = (
        sent(Federation(config)),
        sent(Federation(attacked(config, "model_replacement"))),
    )
    wanted = (honest[1] + honest[4]) / 2  # the two agree on nothing better
    torch.testing.assert_close(
        torch.stack(list(replaced.values())).mean(0), wanted, rtol=1e-4, atol=1e-5
    )


# Every attack ------------------------------------------------------------------------------------------------------


@pytest.mark.bits
@pytest.mark.parametrize("mode", ["loop", "stacked"])
@pytest.mark.parametrize("name", [name for name in ATTACKS if not ATTACKS.get(name).honest])
def test_no_attack_ends_a_run_and_all_resume_to_the_same_bits(
    config: dict[str, Any], name: str, mode: str
) -> None:
    part = {"name": name, **OPTIONS.get(name, {})}
    whole = attacked(config, part, ignore_global=True) | {"mode": mode}
    federation, resumed = Federation(whole), Federation(whole)
    records = federation.play()
    resumed.state = federation.state
    resumed.engine.load_state(federation.engine.state())
    records += federation.play()
    resumed.play()
    assert torch.equal(resumed.state.model, federation.state.model)
    assert all(record.client_ids for record in records)
    assert not any("stays as it was" in note for record in records for note in record.notes)


@pytest.mark.parametrize(
    "name", ["alie", "min_max", "unnoticed", "exaggerate", "free_rider", "noise", "pixel_backdoor"]
)
def test_an_attack_does_not_depend_on_how_a_cohort_is_cut(
    config: dict[str, Any], name: str
) -> None:
    whole, cut = (sent(Federation(attacked(config, name), chunk_size=size)) for size in (6, 2))
    for client in range(6):
        torch.testing.assert_close(whole[client], cut[client], rtol=1e-5, atol=1e-6)


class Raises(Attack):
    """Cannot do what it wants."""

    def forge(self, known: Knowledge) -> Tensor:
        return known.honest.mean


def test_an_attack_that_fails_is_a_refusal_even_if_everybody_attacks(
    config: dict[str, Any],
) -> None:
    federation = Federation(config)
    federation.engine = HostileEngine(federation.engine, dict.fromkeys(range(6), Hostile(Raises())))
    (record,) = federation.play()
    assert not record.client_ids
    assert "register it with needs" in record.refusals[0].reason


def test_the_attack_of_the_docs_works_as_printed(config: dict[str, Any]) -> None:
    page = (Path(__file__).parents[1] / "docs" / "parts.md").read_text(encoding="utf-8")
    code = next(one for one in page.split("```python\n") if "class Stubborn" in one)
    exec(code.split("```")[0], {"__name__": "an_attack_of_ones_own"})
    federation = Federation(attacked(config, "stubborn"))
    federation.engine.load_state({"last_model": torch.ones_like(federation.engine.initial_model)})
    assert sent(federation)[4].tolist() == [1.0] * 650


@pytest.mark.parametrize("name", list(ATTACKS))
def test_an_attack_changes_nothing_in_place_and_draws_from_its_generator(name: str) -> None:
    attack: Attack = ATTACKS.get(name)(**OPTIONS.get(name, {}))
    needs = ATTACKS.declared(name).needs
    updates = torch.randn(5, 20, generator=generator(1, "updates"))
    truth = {"size": torch.tensor([4.0])}
    honest = Honest(updates, {"size": torch.arange(1.0, 6.0)}, {"size": 100.0}, 2, judge=flat)

    def known() -> Knowledge:
        return Knowledge(
            updates[0].clone(),
            torch.zeros(20),
            generator(1, "attack"),
            last_model=torch.ones(20) if "last_model" in needs else None,
            cohort=honest if "whole_cohort" in needs else None,
            active_rounds=1,
        )

    seen_first = known()
    forged = attack.forge(seen_first)
    assert torch.equal(seen_first.model, updates[0])
    assert forged.shape == (20,)
    assert torch.equal(forged.nan_to_num(), attack.forge(known()).nan_to_num())
    assert attack.claim(truth, known()).keys() == truth.keys()
    targets = torch.arange(30) % 10
    labels, again = (attack.relabel(targets, CLASSES, generator(1, "relabel")) for _ in range(2))
    assert torch.equal(targets, torch.arange(30) % 10)
    assert torch.equal(labels, again)
    assert bool(((labels >= 0) & (labels < 10)).all())


def flat(updates: Tensor) -> Evaluation:
    """Every model has the same loss."""
    zeros = torch.zeros(len(updates), 1, dtype=torch.float64)
    return Evaluation(torch.tensor([20]), zeros, zeros, zeros, sample_losses=zeros.expand(-1, 20))


# Labels and backdoors ----------------------------------------------------------------------------------------------


def test_labels_of_one_class_and_mirrored_ones() -> None:
    targets, random = torch.arange(100) % 10, generator(1, "relabel")
    assert (
        attacks.samples.OneLabel(target=7).relabel(targets, CLASSES, random).tolist() == [7] * 100
    )
    assert (
        attacks.samples.MirroredLabels().relabel(targets, CLASSES, random).tolist()
        == (9 - targets).tolist()
    )
    half = attacks.samples.WrongLabels(0.5).relabel(targets, CLASSES, random)
    assert int((half != targets).sum()) == 50
    numbers = attacks.samples.MirroredLabels().relabel(
        torch.tensor([1.0, 2.0, 5.0]), Regression(), random
    )
    assert numbers.tolist() == [5, 4, 1]
    times = attacks.samples.WrongLabels().relabel(
        torch.tensor([1.0, -2.0, 5.0]), Survival(), random
    )
    assert times.tolist() == [5, -4, 1]  # who died is still dead


def test_labels_change_in_the_rounds_of_the_attack_alone(config: dict[str, Any]) -> None:
    honest = Federation(config)
    sleeper = Federation(attacked(config, "mirrored_labels", from_round=3))
    always = Federation(attacked(config, "mirrored_labels"))
    truth, asleep, awake, lied = (
        sent(honest, 2),
        sent(sleeper, 2),
        sent(sleeper, 3),
        sent(always, 3),
    )
    for client in range(6):
        assert torch.equal(asleep[client], truth[client])
        assert torch.equal(awake[client], lied[client])
    assert not torch.equal(awake[1], sent(honest, 3)[1])
    assert torch.equal(sleeper.data.test.targets, honest.data.test.targets)


def test_the_stamp_is_where_it_should_be(config: dict[str, Any]) -> None:
    stamp = {
        "name": "pixel_backdoor",
        "size": 2,
        "value": 0.5,
        "fraction": 0.25,
        "target": 3,
    }
    federation, honest = Federation(attacked(config, stamp)), Federation(config)
    data = federation.data
    assert data.poisoned is not None
    assert data.triggered is not None
    assert data.report is not None
    mine = data.train.slice(1)
    changed = (data.poisoned.indices[mine] != data.train.indices[mine]).nonzero().flatten()
    others = int((data.train.targets[mine] != 3).sum())
    assert len(changed) == round(others * 0.25)
    assert data.poisoned.targets[mine][changed].tolist() == [3] * len(changed)
    before = data.samples.inputs[data.train.indices[mine][changed]]
    after = data.samples.inputs[data.poisoned.indices[mine][changed]]
    corner = (..., slice(-2, None), slice(-2, None))
    assert bool((after[corner] == 8).all())  # half of the 16 that digits have
    after[corner] = before[corner]
    assert torch.equal(before, after)
    assert torch.equal(
        data.poisoned.indices[data.train.slice(0)], data.train.indices[data.train.slice(0)]
    )
    assert len(data.triggered.indices) == int((data.report.targets != 3).sum())
    assert torch.equal(data.train.indices, honest.data.train.indices)
    assert data.fingerprint() != honest.data.fingerprint()


def test_a_backdoor_is_measured_and_reported(config: dict[str, Any], tmp_path: Path) -> None:
    config |= {"rounds": 4, "training": {"epochs": 4, "batch_size": 20, "learning_rate": 0.3}}
    stamp = attacked(
        config,
        {"name": "pixel_backdoor", "target": 3, "value": 2.0},
        clients=3,
    )
    folder = run(load_experiment(stamp), tmp_path / "run")
    rounds = RunFolder(folder).frame("rounds")
    assert rounds["attack_success"].notna().tolist() == [True] * 4
    assert rounds["attack_success"].iloc[-1] > 0.7
    assert rounds["metric"].iloc[-1] > 0.7
    assert "backdoor success" in items_of(RunFolder(folder))["summary"].columns
    assert Federation(stamp | {"hostile": []}).play()[0].attack_success is None


def test_a_blended_trigger_is_one_pattern_in_all_samples(config: dict[str, Any]) -> None:
    attack = {"name": "blended_backdoor", "target": 3, "fraction": 1.0, "blend": 0.5}
    data = Federation(attacked(config, attack)).data
    assert data.poisoned is not None
    assert data.triggered is not None
    assert data.report is not None
    stamped = data.samples.inputs[data.triggered.indices].double()
    shown = data.report.targets != 3
    plain = data.samples.inputs[data.report.indices[shown]].double()
    pattern = stamped - plain / 2
    assert float(pattern.std(0).max()) < 1  # rounded, where inputs are integers
    assert float(pattern.mean(0).std()) > 1  # of the 16 that digits have
    mine = data.poisoned.indices[data.train.slice(1)]
    others = data.poisoned.targets[data.train.slice(1)] == 3
    assert bool(others.all())
    assert not torch.equal(mine, data.train.indices[data.train.slice(1)])


def test_each_client_has_a_quarter_of_a_distributed_trigger(config: dict[str, Any]) -> None:
    attack = {"name": "distributed_backdoor", "target": 3, "fraction": 1.0, "value": 2.0}
    hostile = [{"clients": [0, 1, 2, 3], "attack": attack}]
    data = Federation(config | {"hostile": hostile}).data
    assert data.poisoned is not None
    assert data.triggered is not None
    assert data.report is not None
    parts = []
    for client in range(4):
        mine = data.train.slice(client)
        before = data.samples.inputs[data.train.indices[mine]]
        after = data.samples.inputs[data.poisoned.indices[mine]]
        parts.append((before != after).flatten(1).any(0).nonzero().flatten().tolist())
    assert all(len(part) == 4 for part in parts)  # of a square of 4 × 4
    assert len({tuple(part) for part in parts}) > 1
    shown = data.report.targets != 3
    plain = data.samples.inputs[data.report.indices[shown]]
    whole = (plain != data.samples.inputs[data.triggered.indices]).flatten(1).any(0)
    assert int(whole.sum()) == 16


def test_a_semantic_backdoor_needs_no_stamp(config: dict[str, Any]) -> None:
    federation = Federation(
        attacked(config, {"name": "semantic_backdoor", "source": 1, "target": 7})
    )
    data = federation.data
    assert data.poisoned is not None
    assert data.triggered is not None
    assert data.report is not None
    mine = data.train.slice(4)
    truth, called = data.train.targets[mine], data.poisoned.targets[mine]
    assert bool((truth == 1).any())
    assert called.tolist() == [7 if label == 1 else label for label in truth.tolist()]
    assert len(data.triggered.indices) == int((data.report.targets == 1).sum())


# Lies --------------------------------------------------------------------------------------------------------------


def test_exaggerated_criteria_are_within_their_range(config: dict[str, Any]) -> None:
    criteria = ["dataset_size", "label_diversity", "class_balance", "training_loss"]
    config["methods"] = [{"name": "all", "criteria": criteria}]
    (truth,), (record,) = (
        Federation(config).play(),
        Federation(attacked(config, "exaggerate")).play(),
    )
    assert not record.refusals
    rows = dict(zip(record.client_ids, record.raw, strict=True))
    honest = torch.stack([rows[client] for client in (0, 2, 3, 5)])
    assert torch.equal(honest, truth.raw[[0, 2, 3, 5]])
    for liar in (1, 4):
        size, diversity, balance, loss = rows[liar].tolist()
        assert size == max(float(honest[:, 0].max()), float(truth.raw[liar, 0]))
        assert (diversity, balance, loss) == (10, 1, 1)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_lying_judge_says_what_could_be_true(kind: Any) -> None:
    if kind == "classification":
        counts = torch.tensor([[[3, 1], [0, 4]], [[1, 3], [4, 0]]])
        truth = Evaluation(
            torch.tensor([8]), torch.tensor([[7 / 8], [1 / 8]]).double(), torch.ones(2, 1), counts
        )
        problem = Classification(2)
    else:
        counts = torch.tensor([[8.0, 8.0, 8.0, 4.0], [8.0, 16.0, 32.0, 8.0]], dtype=torch.float64)
        truth = Evaluation(
            torch.tensor([8]), torch.tensor([[0.5], [1.0]]).double(), torch.ones(2, 1), counts
        )
        problem = Regression()
    said = attacks.lies.LyingJudge().judge(truth, torch.tensor([False, True]), problem)
    if kind == "classification":
        assert said.values.flatten().tolist() == [1 / 8, 1]
        assert said.counts[0].tolist() == [[1, 3], [4, 0]]
        assert said.counts[1].tolist() == [[4, 0], [0, 4]]
    else:
        assert said.values.flatten().tolist() == [5, 0]
        assert said.counts.tolist() == [[8, 80, 800, 40], [8, 0, 0, 0]]
    assert float(said.losses[0]) > float(truth.losses[0]) > float(said.losses[1]) == 0


# Who is hostile ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hostile", "message"),
    [
        ({"attack": "noise"}, "clients: is missing"),
        ({"clients": 1.0, "attack": "noise"}, "must be an integer or less than 1"),
        ({"clients": 1, "attack": {"name": "one_label", "target": 10}}, "the classes are 0 to 9"),
        (
            {"clients": 1, "attack": {"name": "pixel_backdoor", "target": 12}},
            "the classes are 0 to 9",
        ),
        ({"clients": 1, "attack": ["noise", "nois"]}, "did you mean 'noise'"),
        ({"clients": 0.9, "attack": "noise"}, None),
    ],
)
def test_what_cannot_work_is_refused(
    config: dict[str, Any], hostile: dict[str, Any], message: str | None
) -> None:
    config["hostile"] = [hostile]
    if message is None:
        validate(load_experiment(config), None)
        return
    with pytest.raises(ConfigError) as error:
        validate(load_experiment(config), None)
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["alie", "free_rider", "lying_judge", "exaggerate"])
def test_one_node_of_flower_does_not_see_what_others_send(
    config: dict[str, Any], name: str
) -> None:
    with pytest.raises(ConfigError, match='use engine = "local"'):
        load_experiment(attacked(config, name) | {"engine": "flower"})

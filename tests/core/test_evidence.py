from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from clientwise.core.evidence.history import OwnPast
from clientwise.core.evidence.significance import (
    LEAST_JUDGES,
    LEAST_SAMPLES,
    Significance,
    z_despite,
    z_values,
)
from clientwise.core.types import (
    Evaluation,
    Gathered,
    Layer,
    ModelSpec,
    Posterior,
)

SPEC = ModelSpec((Layer("kernel", (2,), 0, 2),), 2, 2)
TRUTH = torch.tensor([1.0, 0.0])  # where the loss of every sample is least, about


def gathered(
    updates: Tensor,
    num_samples: int = 200,
    *,
    by_clients: bool = False,
    lies: int = 0,
    spread: float = 0.3,
) -> Gathered:
    """Samples with losses |Θ − TRUTH − noise|²; the first `lies` witnesses say the opposite of what they see."""
    noise = spread * torch.randn(num_samples, 2, generator=torch.Generator().manual_seed(1))

    def judge(models: Tensor) -> Evaluation:
        losses = (models[:, None] - TRUTH - noise).square().sum(-1).double()
        losses[:, :lies] = 5 - losses[:, :lies]
        sizes = (
            torch.ones(num_samples, dtype=torch.int64)
            if by_clients
            else torch.tensor([num_samples])
        )
        shown = losses if by_clients else losses.mean(1, keepdim=True)
        found = None if by_clients else losses
        return Evaluation(
            sizes, torch.zeros_like(shown), shown, torch.zeros(len(models), 4), sample_losses=found
        )

    ids = tuple(range(len(updates)))
    return Gathered(ids, updates, torch.zeros(2), SPEC, {}, judge, lambda model: model)


HONEST = torch.tensor(
    [[0.3, 0.05], [0.3, -0.05], [0.28, 0.0], [0.32, 0.02], [0.3, -0.02], [0.29, 0.0]]
)
UPDATES = torch.cat([HONEST, -HONEST[:3]])  # three send the opposite
PRIOR = torch.full((9,), 1 / 9, dtype=torch.float64)


def test_who_harms_loses_weight_and_it_is_remembered() -> None:
    evidence = Significance()
    memory = evidence.first(9)
    once = evidence(gathered(UPDATES), PRIOR, memory)
    assert once.z is not None
    assert bool((once.z[6:] > 3).all())
    assert bool((once.z[:6] < 0).all())
    assert once.weights[6:].sum() < 0.05
    torch.testing.assert_close(once.weights.sum(), torch.ones((), dtype=torch.float64))
    torch.testing.assert_close(
        once.weights[:6], (1 - once.weights[6:].sum()).expand(6) / 6
    )  # nobody rises above others
    again = evidence(gathered(UPDATES), PRIOR, once.memory)
    assert again.weights[6:].sum() < once.weights[6:].sum()


def test_who_helps_as_surely_earns_its_weight_back_and_no_more() -> None:
    evidence = Significance()
    accused = evidence.first(9)
    accused["log_odds"][0] = -2.0
    after = evidence(gathered(UPDATES), PRIOR, accused)
    assert -2 < after.memory["log_odds"][0] <= 0
    for _ in range(30):
        after = evidence(gathered(UPDATES), PRIOR, after.memory)
    assert after.memory["log_odds"].max() <= 0


def test_with_few_samples_it_does_nothing_and_says_so() -> None:
    found = Significance()(gathered(UPDATES, LEAST_SAMPLES - 1), PRIOR, Significance().first(9))
    assert found.z is None
    assert found.notes == ("fewer than 8 held-out samples: no evidence from them",)
    torch.testing.assert_close(found.weights, PRIOR)


def test_with_few_judges_it_does_nothing_and_says_so() -> None:
    few = gathered(UPDATES, LEAST_JUDGES - 1, by_clients=True, spread=0.1)
    found = Significance()(few, PRIOR, Significance().first(9))
    assert found.z is None
    assert found.notes == ("fewer than 12 judges: no evidence from them",)
    torch.testing.assert_close(found.weights, PRIOR)
    enough = gathered(UPDATES, LEAST_JUDGES, by_clients=True, spread=0.1)
    assert Significance()(enough, PRIOR, Significance().first(9)).weights[6:].sum() < 0.2


def test_history_alone_needs_nobody_to_judge() -> None:
    def judge(models: Tensor) -> Evaluation:
        raise AssertionError("no held-out samples are there")

    def updates(way: Tensor) -> Gathered:
        return replace(gathered(way), spec=replace(SPEC, num_parameters=500), judge=judge)

    evidence = OwnPast()
    ways = torch.randn(9, 500, generator=torch.Generator().manual_seed(1))
    turned = torch.cat([ways[:6], -ways[6:]])
    memory = evidence.first(9)
    for way in (ways, ways):
        found = evidence(updates(way), PRIOR, memory)
        torch.testing.assert_close(found.weights, PRIOR)
        memory = dict(found.memory)
    found = evidence(updates(turned), PRIOR, memory)
    assert found.weights[6:].sum() < 0.01
    torch.testing.assert_close(found.weights[:6], (1 - found.weights[6:].sum()).expand(6) / 6)


def test_judges_of_whom_a_third_lie_together() -> None:
    def found(lies: int, liars: float | None = None) -> Posterior:
        seen = gathered(UPDATES, 30, by_clients=True, lies=lies, spread=0.1)
        return Significance(liars=liars)(seen, PRIOR, Significance().first(9))

    honest, lied_to, naive = found(0), found(9), found(9, 0.0)
    assert honest.weights[6:].sum() < 0.1
    assert lied_to.z is not None
    assert bool((lied_to.z[:6] <= 3).all())  # the liars convict nobody
    assert lied_to.weights[6:].sum() < 0.3  # and save nobody
    assert naive.weights[6:].sum() > lied_to.weights[6:].sum()


def seen(z: float) -> Gathered:
    """One client against which a round speaks with z standard errors, and one for which it does."""
    noise = torch.randn(100, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    noise = (noise - noise.mean()) / noise.std()

    def judge(models: Tensor) -> Evaluation:
        losses = torch.stack(
            [noise + z / 10, noise - z / 10, torch.zeros(100, dtype=torch.float64)]
        )
        return Evaluation(
            torch.tensor([100]), losses, losses, torch.zeros(3, 4), sample_losses=losses
        )

    return Gathered((0, 1), torch.eye(2), torch.zeros(2), SPEC, {}, judge, lambda model: model)


def test_what_speaks_against_a_client_is_summed_over_the_rounds_as_by_hand() -> None:
    evidence, prior = (
        Significance(threshold=2.0, slack=1.0, strength=0.5),
        torch.tensor([0.5, 0.5]).double(),
    )
    once = evidence(
        seen(2.5), prior, evidence.first(2)
    )  # 1.5 against it, and 1.5 in favour of the other
    assert once.z is not None
    torch.testing.assert_close(once.z, torch.tensor([1.5, -1.5]).double())
    torch.testing.assert_close(once.weights, prior)
    twice = evidence(
        seen(2.5), prior, once.memory
    )  # 3: one beyond the threshold, half of it is the log of the weight
    lowered = torch.exp(torch.tensor(-0.5)).double()
    torch.testing.assert_close(
        twice.weights, torch.stack([lowered, torch.ones(()).double()]) / (1 + lowered)
    )
    assert twice.memory["against"].tolist() == [2, 0]  # what had its effect is not counted again
    calm = evidence(seen(0.0), prior, twice.memory)
    torch.testing.assert_close(calm.weights, twice.weights)  # it is not forgotten
    assert calm.memory["against"].tolist() == pytest.approx([1, 0])


def test_nothing_that_a_client_did_well_before_excuses_harm() -> None:
    evidence, prior = Significance(), torch.tensor([0.5, 0.5]).double()
    sleeper = evidence(seen(-9.0), prior, evidence.first(2))
    for _ in range(5):
        sleeper = evidence(seen(-9.0), prior, sleeper.memory)
    found = evidence(seen(6.0), prior, sleeper.memory)
    fresh = evidence(seen(6.0), prior, evidence.first(2))
    assert found.memory["log_odds"][0] == fresh.memory["log_odds"][0] == pytest.approx(-1.5)


def test_no_spread_no_evidence() -> None:
    assert z_values(torch.zeros(3, 50, dtype=torch.float64)).tolist() == [0, 0, 0]
    assert z_despite(torch.zeros(3, 50, dtype=torch.float64), 0.3).tolist() == [0, 0, 0]


def test_an_exploding_model_convicts_its_sender_and_stops_nobody() -> None:
    updates = UPDATES.clone()
    seen = gathered(updates)

    def judge(models: Tensor) -> Evaluation:
        evaluation = seen.judge(models)
        assert evaluation.sample_losses is not None
        evaluation.sample_losses[8] = torch.inf
        return evaluation

    exploding = Gathered(
        seen.client_ids, updates, seen.global_model, SPEC, {}, judge, seen.train_server
    )
    found = Significance()(exploding, PRIOR, Significance().first(9))
    assert bool(found.weights.isfinite().all())
    assert found.weights[8] < 0.01

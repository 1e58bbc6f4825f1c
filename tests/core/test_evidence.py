"""Evidence on a problem whose loss and gradients are known: samples with losses |Θ − TRUTH − noise|²."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from clientwise.core.evidence.base import PageTest
from clientwise.core.evidence.significance import (
    LEAST_JUDGES,
    LEAST_SAMPLES,
    OwnPast,
    Significance,
)
from clientwise.core.types import (
    Evaluation,
    Gathered,
    Layer,
    LookBack,
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
    start: Tensor | None = None,
) -> Gathered:
    """A round from `start` (zero); the first `lies` judges say the opposite of what they see."""
    noise = spread * torch.randn(num_samples, 2, generator=torch.Generator().manual_seed(1))

    def judge(models: Tensor) -> Evaluation:
        losses = (models[:, None] - TRUTH - noise).square().sum(-1).double()
        losses[:, :lies] = 5 - losses[:, :lies]
        sizes = torch.tensor([num_samples])
        shown = losses.mean(1, keepdim=True)
        if by_clients:
            sizes = torch.ones(num_samples, dtype=torch.int64)
            shown = losses
        return Evaluation(sizes, torch.zeros_like(shown), shown, torch.zeros(len(models), 4))

    def gradients(model: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
        return torch.stack([2 * (model - TRUTH - noise[list(rows)]).mean(0) for rows in groups])

    return Gathered(
        client_ids=tuple(range(len(updates))),
        updates=updates,
        global_model=torch.zeros(2) if start is None else start,
        spec=SPEC,
        criteria={},
        judge=judge,
        train_server=lambda model: model,
        gradients=None if by_clients else gradients,
    )


def rounds_of(
    updates: Tensor, count: int = 1, *, start: Tensor | None = None, **options: float
) -> Posterior:
    """The last of several equal rounds."""
    evidence = Significance(**options)  # type: ignore[arg-type]
    prior = torch.full((len(updates),), 1 / len(updates), dtype=torch.float64)
    memory = evidence.first(len(updates))
    for _ in range(count):
        found = evidence(gathered(updates, start=start), prior, memory)
        memory = dict(found.memory)
    return found


HONEST = torch.tensor(
    [[0.3, 0.05], [0.3, -0.05], [0.28, 0.0], [0.32, 0.02], [0.3, -0.02], [0.29, 0.0]]
)
UPDATES = torch.cat([HONEST, -HONEST[:3]])  # three send the opposite
PRIOR = torch.full((9,), 1 / 9, dtype=torch.float64)


def test_harm_is_what_following_a_client_adds_to_the_loss_by_hand() -> None:
    found = rounds_of(UPDATES)
    assert found.harm is not None
    assert found.harm_error is not None
    assert found.held_out_change is not None
    seen = gathered(UPDATES)
    clip = UPDATES.norm(dim=1).median() / UPDATES.norm(dim=1)
    clipped = UPDATES * clip.clamp(max=1)[:, None]
    mean = clipped.mean(0)
    everything = seen.gradients(torch.zeros(2), [range(200)])[0]  # type: ignore[misc]
    torch.testing.assert_close(
        found.harm, ((clipped - mean) @ everything).double(), rtol=1e-4, atol=1e-6
    )
    before, after = seen.judge(torch.stack([torch.zeros(2), mean])).losses[:, 0]
    assert found.held_out_change == pytest.approx(float(after - before))
    # The gradient of a sample differs from the mean one by its noise alone, so the error is known, too
    expected = 2 * 0.3 * (clipped - mean).norm(dim=1) / 200**0.5
    assert bool((found.harm_error / expected > 0.6).all())
    assert bool((found.harm_error / expected < 1.6).all())


def test_who_harms_loses_weight_and_it_is_remembered() -> None:
    once = rounds_of(UPDATES)
    assert once.z is not None
    assert bool((once.z[6:] > 3).all())
    assert bool((once.z[:6] <= 0).all())
    assert once.weights[6:].sum() < 0.15
    torch.testing.assert_close(once.weights.sum(), torch.ones((), dtype=torch.float64))
    torch.testing.assert_close(
        once.weights[:6], (1 - once.weights[6:].sum()).expand(6) / 6
    )  # nobody rises above others
    assert rounds_of(UPDATES, 2).weights[6:].sum() < once.weights[6:].sum()


def test_a_harmful_majority_excuses_nobody() -> None:
    updates = torch.cat([HONEST, -HONEST, -HONEST])
    found = rounds_of(updates, 3)
    assert found.harm is not None
    seen = gathered(updates)
    clip = updates.norm(dim=1).median() / updates.norm(dim=1)
    clipped = updates * clip.clamp(max=1)[:, None]
    everything = seen.gradients(torch.zeros(2), [range(200)])[0]  # type: ignore[misc]
    alone = rounds_of(updates).harm  # beside no update, since the mean raises the loss
    torch.testing.assert_close(alone, (clipped @ everything).double(), rtol=1e-4, atol=1e-6)
    assert found.weights[6:].sum() < 0.01


def test_almost_equal_clients_keep_their_weights_whatever_is_significant() -> None:
    little = 1e-3 * torch.randn(4, 2, generator=torch.Generator().manual_seed(8))
    alike = torch.tensor([0.3, 0.0]) + little
    found = rounds_of(alike, 25)
    torch.testing.assert_close(found.weights, torch.full((4,), 0.25, dtype=torch.float64))
    # Without the margin the same differences take weight: they are significant
    assert float(rounds_of(alike, margin=0.0).weights.min()) < 0.01


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3])
def test_one_inverted_client_is_found_at_any_learning_rate(scale: float) -> None:
    updates = scale * torch.cat([HONEST[:5], -HONEST[:1]])
    found = rounds_of(updates, 3)
    if scale == 1e3:  # every step overshoots by far: following the opposite is as bad, not worse
        assert bool(found.weights.isfinite().all())
    else:
        assert found.weights[5] < 0.05
        torch.testing.assert_close(found.weights[:5], found.weights[:1].expand(5))


def test_who_helps_as_surely_earns_its_weight_back_and_no_more() -> None:
    evidence = Significance()
    accused = evidence.first(9)
    accused["log_odds"][0] = -2.0
    # The others help half as much
    updates = torch.cat([HONEST[:1], torch.tensor([[0.15, 0.26], [0.15, -0.26]]).repeat(4, 1)])
    after = evidence(gathered(updates), PRIOR, accused)
    for _ in range(30):
        after = evidence(gathered(updates), PRIOR, after.memory)
    assert after.memory["log_odds"][0] > -2
    assert after.memory["log_odds"].max() <= 0


def test_the_servers_samples_wear_out_and_judges_do_not() -> None:
    evidence = Significance(margin=0.1, slack=0.0, threshold=100.0)
    fresh = evidence.first(9)
    old = {**fresh, "rounds": torch.tensor(50)}
    for by_clients, worn in ((False, 1.5), (True, 0.0)):
        seen = gathered(UPDATES, by_clients=by_clients, spread=0.1)
        before, after = (evidence(seen, PRIOR, memory).z for memory in (fresh, old))
        assert before is not None
        assert after is not None
        assert bool((before[6:] > 1.5).all())
        torch.testing.assert_close(before[6:] - after[6:], torch.full((3,), worn).double())


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
    evidence = Significance(threshold=2.0, slack=1.0)
    assert evidence(enough, PRIOR, evidence.first(9)).weights[6:].sum() < 0.2


def test_history_alone_needs_nobody_to_judge() -> None:
    def judge(models: Tensor) -> Evaluation:
        raise AssertionError("no held-out samples are there")

    def updates(way: Tensor) -> Gathered:
        return replace(gathered(way), spec=replace(SPEC, num_parameters=500), judge=judge)

    evidence = OwnPast()
    ways = torch.randn(9, 500, generator=torch.Generator().manual_seed(1))
    turned = torch.cat([ways[:6], -ways[6:]])
    memory = evidence.first(9)
    for way in (ways, ways, ways):
        found = evidence(updates(way), PRIOR, memory)
        torch.testing.assert_close(found.weights, PRIOR)
        memory = dict(found.memory)
    for turns in range(1, 13):
        found = evidence(updates(turned), PRIOR, memory)
        memory = dict(found.memory)
        lowered = bool(found.weights[6:].sum() < 0.3)
        assert lowered == (turns > 4), "a few turns are no evidence"
    assert found.weights[6:].sum() < 0.01
    torch.testing.assert_close(found.weights[:6], (1 - found.weights[6:].sum()).expand(6) / 6)


def test_judges_of_whom_a_third_lie_together() -> None:
    def found(lies: int) -> Posterior:
        seen = gathered(UPDATES, 30, by_clients=True, lies=lies, spread=0.1)
        evidence = Significance(threshold=2.0, slack=1.0, margin=0.1)
        return evidence(seen, PRIOR, evidence.first(9))

    honest, lied_to = found(0), found(9)
    assert honest.weights[6:].sum() < 0.1
    assert lied_to.z is not None
    assert bool((lied_to.z[:6] <= 3).all())  # the liars convict nobody
    assert lied_to.weights[6:].sum() < 0.3  # and save nobody


def page(z: Sequence[float], memory: dict[str, Tensor]) -> Posterior:
    """A round of two clients with equal priors."""
    test = PageTest(threshold=2.0, slack=1.0, strength=0.5)
    prior = torch.full((2,), 0.5, dtype=torch.float64)
    values = torch.tensor(z, dtype=torch.float64)
    return test.posterior(torch.arange(2), prior, values, memory, LookBack())


def test_what_speaks_against_a_client_is_summed_over_the_rounds_as_by_hand() -> None:
    once = page([2.5, -2.5], PageTest(2.0, 1.0, 0.5).first(2))
    assert once.z is not None
    torch.testing.assert_close(once.z, torch.tensor([1.5, -1.5]).double())
    torch.testing.assert_close(once.weights, torch.tensor([0.5, 0.5]).double())
    # 3: one beyond the threshold, half of it is the log of the weight
    twice = page([2.5, -2.5], dict(once.memory))
    lowered = torch.exp(torch.tensor(-0.5)).double()
    expected = torch.stack([lowered, torch.ones(()).double()]) / (1 + lowered)
    torch.testing.assert_close(twice.weights, expected)
    assert twice.memory["against"].tolist() == [2, 0]  # what had its effect is not counted again
    calm = page([0.0, 0.0], dict(twice.memory))
    torch.testing.assert_close(calm.weights, twice.weights)  # it is not forgotten
    assert calm.memory["against"].tolist() == pytest.approx([1, 0])


def test_nothing_that_a_client_did_well_before_excuses_harm() -> None:
    sleeper = page([-9.0, 9.0], PageTest(2.0, 1.0, 0.5).first(2))
    for _ in range(5):
        sleeper = page([-9.0, 9.0], dict(sleeper.memory))
    found = page([6.0, 0.0], dict(sleeper.memory))
    fresh = page([6.0, 0.0], PageTest(2.0, 1.0, 0.5).first(2))
    assert found.memory["log_odds"][0] == fresh.memory["log_odds"][0] == pytest.approx(-1.5)


def test_a_mean_without_a_finite_loss_is_no_evidence_and_stops_nobody() -> None:
    seen = gathered(UPDATES)

    def judge(models: Tensor) -> Evaluation:
        found = seen.judge(models)
        found.losses[1] = torch.inf
        return found

    found = Significance()(replace(seen, judge=judge), PRIOR, Significance().first(9))
    assert found.z is None
    assert found.notes == ("the loss of the mean is not finite: no evidence from them",)
    torch.testing.assert_close(found.weights, PRIOR)


def test_judges_whose_losses_explode_convict_the_sender_and_stop_nobody() -> None:
    seen = gathered(UPDATES, 30, by_clients=True, spread=0.1)

    def judge(models: Tensor) -> Evaluation:
        found = seen.judge(models)
        found.losses[8] = torch.inf
        return found

    evidence = Significance(threshold=2.0, slack=1.0)
    found = evidence(replace(seen, judge=judge), PRIOR, evidence.first(9))
    assert bool(found.weights.isfinite().all())
    assert found.weights[8] < 0.01

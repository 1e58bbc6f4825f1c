"""The accountant against dp-accounting's own, and against an attack on private rounds."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from clientwise.core.method import Method, Plan, accountant_of
from clientwise.core.privacy import Accountant, Privacy, release
from clientwise.core.sampling import poisson_sample


def test_poisson_sampling_has_the_epsilon_of_the_library() -> None:
    event = dp_accounting.PoissonSampledDpEvent(0.3, dp_accounting.GaussianDpEvent(2.0))
    known = PLDAccountant(value_discretization_interval=1e-3).compose(event, 20).get_epsilon(1e-3)
    mine = Accountant(2.0, 1e-3, 100, probability=0.3)
    assert mine.epsilon(20) == pytest.approx(known, abs=1e-6)
    assert mine.relation == "add or remove one client"
    assert mine.is_amplified
    assert mine.epsilon(0) == 0


def test_a_cohort_of_fixed_size_has_an_accountant_of_its_own() -> None:
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        100, 20, dp_accounting.GaussianDpEvent(1.5)
    )
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    known = RdpAccountant(neighboring_relation=relation).compose(event, 50).get_epsilon(1e-3)
    mine = Accountant(1.5, 1e-3, 100, size=20)
    assert known <= mine.epsilon(50) <= known * 1.05
    assert mine.relation == "replace one client"


def test_without_sampling_it_is_the_gaussian_mechanism() -> None:
    for mine in (Accountant(5.0, 1e-3, 100), Accountant(5.0, 1e-3, 100, size=100)):
        assert not mine.is_amplified
        epsilon = mine.epsilon(50)
        # Balle and Wang, 2018: δ of a Gaussian mechanism with ε and μ = √T/z
        mu = math.sqrt(50) / 5.0
        delta = stats.norm.cdf(mu / 2 - epsilon / mu)
        delta -= math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
        assert delta == pytest.approx(1e-3, rel=1e-6)


@pytest.mark.parametrize(("multiplier", "releases"), [(0.8, 20), (4.0, 1), (4.0, 200)])
def test_a_sampled_cohort_spends_at_most_what_all_clients_spend(
    multiplier: float, releases: int
) -> None:
    everybody = Accountant(multiplier, 1e-3, 20).epsilon(releases)
    for size in (1, 10, 19):
        assert Accountant(multiplier, 1e-3, 20, size=size).epsilon(releases) <= everybody
    for probability in (0.5, 0.9999):
        poisson = Accountant(multiplier, 1e-3, 20, probability=probability)
        assert poisson.epsilon(releases) <= everybody


def test_the_noise_for_a_budget_is_the_smallest() -> None:
    whole = Accountant(1.0, 1e-3, 100)
    found = whole.noise_for(3.0, 20)
    assert found is not None
    assert Accountant(found, 1e-3, 100).epsilon(20) <= 3.0
    assert Accountant(found * 0.99, 1e-3, 100).epsilon(20) > 3.0


def test_the_accountant_of_a_method_follows_from_its_sampling() -> None:
    central = Method(privacy=Privacy(clip=1.0, delta=0.01, noise_multiplier=2.0))
    local = Method(privacy=Privacy(clip=1.0, delta=0.01, noise_multiplier=2.0, local=True))
    fixed = Plan(1, 5, away=(0,))
    poisson = Plan(1, 5, probability=0.25)
    assert accountant_of(Method(), fixed, 20) is None
    assert accountant_of(central, fixed, 20) == Accountant(2.0, 0.01, 19, size=5)
    assert accountant_of(central, poisson, 20) == Accountant(2.0, 0.01, 20, probability=0.25)
    assert accountant_of(local, poisson, 20) == Accountant(2.0, 0.01, 20)


ROUNDS = 3
CLIENTS = 8
DELTA = 0.01


def proven(without: torch.Tensor, present: torch.Tensor) -> float:
    """The ε that telling two worlds apart by a threshold proves, with 95% confidence.

    Clopper and Pearson's bounds of both error rates; the threshold is chosen on the first half of the trials.
    """

    def bound(threshold: float, rows: slice) -> float:
        alarms, hits = (int((one[rows] > threshold).sum()) for one in (without, present))
        trials = len(without[rows])
        highest = stats.beta.ppf(0.975, alarms + 1, max(1, trials - alarms))
        lowest = stats.beta.ppf(0.025, hits, trials - hits + 1) if hits else 0.0
        return math.log(max(lowest - DELTA, 1e-9) / highest)

    half = len(without) // 2
    thresholds = torch.quantile(without[:half], torch.linspace(0.5, 0.999, 40).double())
    best = max(thresholds.tolist(), key=lambda one: bound(one, slice(half)))
    return bound(best, slice(half, None))


def attacked(multiplier: float, probability: float, with_canary: bool) -> torch.Tensor:
    """What an attacker measures in every trial: how far the models moved along the canary's update.

    The others push the other way, and the canary claims the largest score: the proof's worst case.
    """
    privacy = Privacy(clip=1.0, delta=DELTA, noise_multiplier=multiplier)
    canary = torch.zeros(40)
    canary[0] = 30.0
    found = torch.zeros(500, dtype=torch.float64)
    for trial in range(len(found)):
        key = f"{multiplier}/{with_canary}/{trial}".encode()
        for number in range(1, ROUNDS + 1):
            cohort = poisson_sample(CLIENTS, probability, key, number)
            clients = [client for client in cohort if client or with_canary]
            updates = [-canary if client else canary for client in clients]
            scores = torch.tensor([1.0 if client else 1e9 for client in clients]).double()
            same: dict[str, Any] = {"cap": 0.25, "replaced": False, "key": key}
            released = release(privacy, updates, scores, canary, **same, round_num=number)
            found[trial] += released.update[0]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("probability", [1.0, 0.5])
def test_an_attack_with_a_canary_proves_less_than_the_promise(probability: float) -> None:
    promised = Accountant(2.0, DELTA, CLIENTS, probability=probability).epsilon(ROUNDS)

    def found(multiplier: float) -> float:
        return proven(*(attacked(multiplier, probability, one) for one in (False, True)))

    assert found(2.0) < promised
    if probability == 1.0:
        assert found(2.0) > 0.3 * promised  # a weak attack would pass any mechanism
        assert found(0.5) > promised  # a quarter of the noise

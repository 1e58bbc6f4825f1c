"""A method: which parts are plugged into the formula. The defaults are FedAvg."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from ..registry import Need, Part
from .aggregation.before import Before
from .aggregation.rules import Rule
from .aggregation.server_step import ServerStep, replace_model
from .aggregation.sums import Pair, pairs_of
from .clock import Clock, Pace
from .criteria import Criterion, RunningMean, make_criterion
from .evidence import Evidence
from .feedback import Adjustment, LossAdapter
from .objective.loss import BALANCED, Loss, make_loss
from .objective.problem import Problem
from .privacy import Accountant, LocalNoise, Privacy
from .sampling import poisson_sample, sample_clients, secret_sample
from .types import LocalTraining, ModelSpec, Task
from .weights.scores import Prioritized, Score
from .weights.weighting import Bounds, Normaliser, scores_of, sum_scale

Control = Literal["pooled", "server_only", "alone"]
Adapters = Literal["products", "factors"]


@dataclass(frozen=True)
class Method:
    """Criteria -> normalise -> score -> evidence -> bounds -> rule -> server step, with its two feedback loops."""

    name: str = "FedAvg"
    criteria: tuple[Criterion, ...] = field(
        default_factory=lambda: (make_criterion("dataset_size"),)
    )
    normaliser: Normaliser = sum_scale
    score: Score = field(default_factory=Prioritized)
    evidence: Evidence | None = None  # changes the weights by the updates
    bounds: Bounds | None = None  # cap and floor of every client's weight
    before: tuple[Before, ...] = ()  # steps on the updates before the rule
    rule: Rule | None = None  # None: the mean; models are folded in as they arrive if possible
    adjust: Adjustment | None = None  # P2's loop: the order of priority, inside the round
    adapt_loss: LossAdapter | None = None  # P3's loop: the loss of the next round
    server_step: ServerStep = replace_model
    training: LocalTraining = field(default_factory=LocalTraining)
    loss: Part | None = None  # None: that of the problem
    schedule: Callable[[int], float] | None = None  # factor of the learning rate by round
    # The server trains the result on the samples it weighs by
    fine_tune: LocalTraining | None = None
    line_search: bool = True  # of fine_tune: keep the best model on the way, by the same samples
    control: Control | None = None  # not federated, for comparison
    pace: Pace = field(default_factory=Pace)  # when a round ends, if clients take time
    privacy: Privacy | None = None  # differential privacy of the clients
    adapters: Adapters = "products"  # what of LoRA adapters is averaged
    pair_matrices: int = 0  # of all pairs of clients [n, n], which a part holds at once
    client_names: tuple[str, ...] = ()  # where they are known, for messages

    @property
    def names(self) -> tuple[str, ...]:
        """The labels of the criteria, in the order of their columns."""
        return tuple(criterion.name for criterion in self.criteria)

    @property
    def client_criteria(self) -> tuple[Part, ...]:
        """The criteria that clients measure."""
        return tuple(
            criterion.part for criterion in self.criteria if criterion.measured_by == "client"
        )

    @property
    def noises_mean(self) -> bool:
        """Whether the server adds noise to the weighted mean of clipped updates."""
        return self.privacy is not None and not self.privacy.local

    @property
    def local_noise(self) -> LocalNoise | None:
        """What clients do to their own updates before they send them."""
        if self.privacy is None or not self.privacy.local:
            return None
        return self.privacy.local_noise

    @property
    def memories(self) -> dict[str, RunningMean]:
        """What criteria remember from round to round, by criterion; one listed twice remembers once."""
        return {one.part.name: one.memory for one in self.criteria if one.memory}

    @property
    def first_priority(self) -> tuple[str, ...] | None:
        """The order of priority a run starts with; None for scores without an order."""
        return self.score.order(self.names)

    @property
    def keeps_models(self) -> bool:
        """Whether the models of a round are kept until its end, instead of folded into sums."""
        if self.evidence or self.bounds or self.before or self.rule:
            return True
        return self.noises_mean or self.needs("models") or self.needs("whole_cohort")

    @property
    def client_models(self) -> int:
        """Models that are kept between rounds of every client that has trained."""
        own = int(self.control == "alone") + int(self.training.control_variates)
        return own + (self.evidence.client_models if self.evidence else 0)

    def scores_of(self, score: Score, normalised: Tensor, clients: Sequence[int]) -> Tensor:
        """The scores of these clients; ScoreError, which names the client, where one is no weight."""
        called = self.client_names or range(max(clients, default=0) + 1)
        return scores_of(score, self.names, normalised, [called[client] for client in clients])

    def averaged_pairs(self, spec: ModelSpec) -> tuple[Pair, ...]:
        """The adapted layers of a model whose products are averaged, for which models are kept, too."""
        return pairs_of(spec) if self.adapters == "products" else ()

    @property
    def sees_whole_cohort(self) -> bool:
        """Whether all clients are gathered and ordered before criteria are measured."""
        return self.needs("whole_cohort") or bool(self.evidence or self.before or self.rule)

    def task(self, round_num: int, loss: Loss) -> Task:
        """What the clients of a round are asked to do."""
        training = self.scheduled(self.training, round_num)
        return Task(round_num, training, loss, self.client_criteria, self.local_noise)

    def scheduled(self, training: LocalTraining, round_num: int) -> LocalTraining:
        """Training with the learning rate of a round: of the clients, and of the server in the same way."""
        if self.schedule is None:
            return training
        return replace(training, rate_factor=float(self.schedule(round_num)))

    def first_loss(self, problem: Problem, label_counts: Tensor | None = None) -> Loss:
        """The loss of the first round.

        Args:
            problem: has the loss where the method names none.
            label_counts: training samples of each class over all clients [C], where they are known.
        """
        if self.loss is None:
            return problem.loss
        return make_loss(self.loss.name, self.loss.options, label_counts)

    @property
    def counts_labels(self) -> bool:
        """Whether the first loss depends on how many samples of each class the clients have."""
        return self.loss is not None and BALANCED in self.loss.options.values()

    def for_clients(self, names: Sequence[str]) -> Method:
        """The method with the names of the clients, for messages."""
        return replace(self, client_names=tuple(names))

    def needs(self, what: Need) -> bool:
        """Whether one of the criteria needs it."""
        return any(what in criterion.needs for criterion in self.criteria)


@dataclass(frozen=True)
class Plan:
    """What all methods of a seed have in common, so that comparisons are paired."""

    seed: int
    cohort_size: int
    judged_by: Literal["server", "clients"] = "server"  # of models to weigh by (P3 III.C)
    # Rounds; 0: only where nothing else can be reported; None: clients never evaluate
    evaluate_clients_every: int | None = 1
    rounds: int | None = None  # of the whole run, if known: the last one is evaluated in any case
    asks: tuple[int, ...] | None = None  # these clients in every round, instead of a sample
    away: tuple[int, ...] = ()  # clients that have left and are not asked
    # Poisson sampling: each client is asked with this probability; None: a cohort of fixed size
    probability: float | None = None
    secret: bytes | None = None  # the cohorts and the noise follow from it, not from the seed

    @property
    def key(self) -> bytes:
        """What noise follows from: the secret, or the seed, which whoever reads the run knows."""
        return self.secret or str(self.seed).encode()

    def members(self, num_clients: int) -> int:
        """How many clients may be asked."""
        return num_clients - len(self.away)

    def cohort(
        self, num_clients: int, round_num: int, clock: Clock | None = None
    ) -> tuple[int, ...]:
        """A⁻, the clients that are asked in a round; with a clock, only those that are available."""
        if self.asks is not None:
            return self.asks
        # With Poisson sampling, a round waits for all clients that are drawn
        size = self.cohort_size if self.probability is None else num_clients
        if clock is not None:
            return clock.cohort(size, self.seed, round_num, self.away, self._sample)
        here = frozenset(range(num_clients)) - frozenset(self.away) if self.away else None
        return self._sample(num_clients, size, self.seed, round_num, here)

    def _sample(
        self,
        num_clients: int,
        size: int,
        seed: int,
        round_num: int,
        among: frozenset[int] | None,
    ) -> tuple[int, ...]:
        if self.probability is not None:
            return poisson_sample(num_clients, self.probability, self.key, round_num, among)
        if self.secret is not None:
            return secret_sample(num_clients, size, self.secret, round_num, among)
        return sample_clients(num_clients, size, seed, round_num, among)

    def evaluates_clients(self, round_num: int, has_report: bool = True) -> bool:
        """Whether clients evaluate the model in this round; see `core.evaluation`."""
        every = self.evaluate_clients_every
        if every is None:
            return False
        if not has_report:
            return True
        return every > 0 and (round_num % every == 0 or round_num == self.rounds)


def accountant_of(method: Method, plan: Plan, num_clients: int) -> Accountant | None:
    """The accountant of a method in a plan; None for a method without differential privacy."""
    privacy = method.privacy
    if privacy is None:
        return None
    members = plan.members(num_clients)
    multiplier = privacy.noise_multiplier or 1.0
    if privacy.local:  # the server knows which clients it asked
        return Accountant(multiplier, privacy.delta, members)
    size = plan.cohort_size if plan.probability is None else None
    return Accountant(multiplier, privacy.delta, members, plan.probability, size)

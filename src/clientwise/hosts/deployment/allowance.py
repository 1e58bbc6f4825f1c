"""What a server may ask a node for in one run. It follows from the approved experiment alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ...core.criteria import CRITERIA, is_of_counts
from ...core.evidence.significance import LEAST_JUDGES, Significance
from ...core.method import Method, Plan
from ...core.privacy import LocalNoise, gaussian_epsilon
from ...core.types import LocalTraining
from ...experiment.build.engine import build_plan
from ...experiment.config.schema import Experiment
from .small_numbers import MU, USUAL_CELL, is_bounded, loss_deviation

# A resumed run asks for a round again, and may have another model then.
TIMES_PER_ROUND = 2
SPARE = 10  # one evaluation in ten is for rounds that are repeated
DELTA = 1e-5  # at which ε is given
USEFUL_DEVIATION = 0.02  # of a judge's mean loss: with more, evidence weakens (docs/security.md)


@dataclass(frozen=True)
class Allowance:
    """Numbers of different models that a node trains and evaluates for an experiment."""

    experiment: Experiment

    @property
    def rounds(self) -> int:
        """The last round."""
        return self.experiment.rounds

    def trained(self) -> int:
        """Different requests to train, per round and seed."""
        return TIMES_PER_ROUND * len(self._methods)

    @cached_property
    def trainings(self) -> int:
        """Different requests to train in the whole run."""
        return self.trained() * self.rounds * len(self.experiment.seeds)

    def evaluated(self, round_num: int) -> int:
        """Different models to evaluate, per round and seed."""
        return TIMES_PER_ROUND * self._asked_for(round_num)

    @cached_property
    def models(self) -> int:
        """Different models to evaluate in the whole run: all that the methods ask for, and a spare."""
        by_round = [self._asked_for(number) for number in range(1, self.rounds + 1)]
        planned = sum(by_round) * len(self.experiment.seeds)
        return planned + max(max(by_round), planned // SPARE)

    @cached_property
    def _methods(self) -> tuple[Method, ...]:
        return tuple(self.experiment.build_methods())

    @cached_property
    def _plan(self) -> Plan:
        members = len(self.experiment.flower.clients)
        return build_plan(self.experiment, members, self.experiment.seeds[0])

    def _asked_for(self, round_num: int) -> int:
        is_due = self._plan.evaluates_clients(round_num)
        return sum(self._by_method(method, is_due) for method in self._methods)

    def _by_method(self, method: Method, is_due: bool) -> int:
        """Models of one round of a method, see `core.round.run_round`."""
        members = len(self.experiment.flower.clients)
        orders = 1
        count = 0
        if method.adjust and method.first_priority is not None:
            orders = math.factorial(len(method.names))
            count += orders
        clients_judge = self._plan.judged_by == "clients"
        if clients_judge and method.needs("server_set"):
            count += members
        if clients_judge and method.evidence:
            count += orders * method.evidence.most_judged(members)
        if is_due or (clients_judge and method.adapt_loss):  # the round's own model
            count += 1
        if is_due and self._plan.counterfactuals:
            # Uniform, without each member, and what the server tunes. It does not know sizes.
            count += 1 + members + int(method.fine_tune is not None)
        return count

    def row_noise(self) -> float | None:
        """The μ of Gaussian differential privacy with which all trainings hide a row.

        A row is in one batch an epoch, and every request has noise of its own. A server may send all
        of them for the method with the least noise. None: a method has none.
        """
        spent = [row_cost(method.training, method.local_noise) for method in self._methods]
        if None in spent:
            return None
        return math.sqrt(self.trainings * max(one for one in spent if one is not None))

    def result_noise(self, cell: int) -> float | None:
        """The μ with which all results of evaluations hide a row; None: they are exact."""
        if not self.models:
            return 0.0
        return MU if cell > 1 else None

    def warnings(self, cell: int) -> Iterator[str]:
        """What of the experiment does not protect, or does not work with, such nodes."""
        yield from self._bare_rows()
        clients_judge = self._plan.judged_by == "clients" and any(
            method.needs("server_set") or method.evidence for method in self._methods
        )
        if clients_judge:
            yield from self._too_few_judges()
        if cell == 1:
            return
        yield from self._exact_numbers()
        if not self.models:
            return
        classes = self.experiment.flower.class_count
        if not is_bounded(classes, self.experiment.evaluation.metric):
            yield (
                f"nodes with SMALLEST_CELL={cell} refuse all evaluations: regression, survival and "
                f"AUC have no bound per sample. {self._instead(clients_judge)}"
            )
        elif clients_judge:
            largest = loss_deviation(classes, 1, self.models)
            yield (
                f"the members judge models with noise: SMALLEST_CELL={cell} and {self.models} "
                f"models hide losses by a standard deviation of {largest:.2g} / test samples. "
                f"With fewer than {largest / USEFUL_DEVIATION:,.0f} test samples per member, "
                "evidence against hostile members weakens (docs/security.md, Small numbers). Use "
                'samples of the server: server_set.source = "held_out"'
            )

    def _bare_rows(self) -> Iterator[str]:
        for method in self._methods:
            if method.training.sample_noise is not None or method.local_noise is not None:
                continue
            sent = "the sum of the members' updates" if method.secure else "this node's updates"
            yield (
                f"{method.name}: a changed server can compute training rows, with diagnoses, from {sent}. "
                "Set training.sample_clip and training.sample_noise, or trust the server's "
                "administrator with the training rows"
            )

    def _too_few_judges(self) -> Iterator[str]:
        judges = self._plan.cohort_size
        for method in self._methods:
            if isinstance(method.evidence, Significance) and judges < LEAST_JUDGES:
                yield (
                    f"{method.name}: {judges} members judge in a round, evidence needs "
                    f"{LEAST_JUDGES}: no weight will change by it"
                )

    def _exact_numbers(self) -> Iterator[str]:
        """Criteria that follow from the training rows, and some from the model that the server sends."""
        for method in self._methods:
            for part in method.client_criteria:
                if not is_of_counts(part) and "clock" not in CRITERIA.needs(part):
                    yield (
                        f"{method.name}: {part.called} has two digits and no noise, and is outside "
                        "of μ. A changed server can compute attributes of patients from it: use "
                        "another criterion, or trust the server's administrator with the training rows"
                    )

    def _instead(self, clients_judge: bool) -> str:
        exact = "or all nodes need SMALLEST_CELL=1, which gives exact results"
        if clients_judge:
            return f'Use server_set.source = "held_out" and evaluation.clients_every = 0, {exact}'
        return f"Use evaluation.clients_every = 0 and report_inputs of the server, {exact}"


def row_cost(training: LocalTraining, noise: LocalNoise | None) -> float | None:
    """The μ² that one request to train spends of a row; None: no noise hides it.

    Noise of the client hides its whole update, so also what one row adds to it.
    """
    costs = []
    if training.sample_noise is not None:
        costs.append(training.epochs / training.sample_noise**2)
    if noise is not None:
        costs.append((2 * noise.clip / noise.deviation) ** 2)
    return min(costs, default=None)


def describe_nodes(experiment: Experiment, cell: int = USUAL_CELL) -> list[str]:
    """What each node answers in a run, and what does not work with that."""
    allowance = Allowance(experiment)
    answers = f"train at most {allowance.trainings:,} and evaluate at most {allowance.models:,} models each"
    lines = [f"{'nodes':<12}{answers}; SMALLEST_CELL={cell}"]
    if hidden := allowance.row_noise():
        spent = f"μ = {hidden:.2g}, ε = {gaussian_epsilon(hidden, DELTA):.2g} at δ = {DELTA:g}"
        hidden_by = "hidden by noise in all updates of the run together, given their class"
        lines.append(f"{'rows':<12}{hidden_by}: {spent}")
    lines += [f"{'warning':<12}{text}" for text in allowance.warnings(cell)]
    return lines

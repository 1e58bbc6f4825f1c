"""What a server may ask a node for in one run. It follows from the approved experiment alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ..core.method import Method, Plan
from ..experiment.build import build_plan
from ..experiment.schema import Experiment

# A resumed run asks for a round again, and may have another model then.
TIMES_PER_ROUND = 2
SPARE = 10  # one evaluation in ten is for rounds that are repeated


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
        return count

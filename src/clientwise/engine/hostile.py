"""Hostile clients: an engine around the honest one that forges what they train on, send and say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..attacks import Honest, Hostile, Knowledge
from ..core.criteria import HONEST, make_criterion
from ..core.seeding import generator
from ..core.types import Evaluation, Task, Updates
from .jobs import EvaluateJob
from .local import Changes, LocalEngine, failed_updates
from .wrapping import WrappingEngine

LAST_MODEL = "last_model"  # in the state, beside the clients' numbers


class HostileEngine(WrappingEngine):
    """Clients of which some attack, in the rounds in which their attack is active.

    The honest engine trains all clients. This engine changes the job of an attacker (poisoned
    samples, a model of its own), then its update and its measurements, and what it answers when
    it judges models.

    Args:
        honest: the engine that trains and evaluates.
        attackers: what each hostile client does, by its number.
    """

    def __init__(self, honest: LocalEngine, attackers: Mapping[int, Hostile]) -> None:
        super().__init__(honest)
        self._honest = honest
        self._attackers = attackers
        is_honest = torch.ones(honest.num_clients, dtype=torch.float64)
        is_honest[list(attackers)] = 0
        self.attributes = {**honest.attributes, HONEST: is_honest}
        self._active: dict[int, Hostile] = {}  # attackers of the round that began last
        self._forged: list[Tensor] = []  # models of its attackers that also judge models
        self._failures: list[tuple[int, Exception]] = []  # of its attackers
        self._private_models: dict[int, Tensor] = {}  # of attackers that ignore the global model
        self._remembers = any("last_model" in one.needs for one in attackers.values())
        self._last_model: Tensor | None = None  # the global model of the round before

    def train(self, client_ids: Sequence[int], model: Tensor, task: Task) -> Iterator[Updates]:
        """See `core.engine.Engine`."""
        self._begin_round(task.round_num)
        for updates in self._sent(client_ids, model, task):
            self._honest.record_sent(updates, model, task)
            yield updates
        if self._remembers:
            self._last_model = model.clone()  # a checkpoint takes no two tensors of one memory
        if self._failures:
            yield failed_updates(self._failures, model)

    def _begin_round(self, round_num: int) -> None:
        """Find out which attackers are active."""
        self._forged = []
        self._failures = []
        self._active = {
            client: one
            for client, one in self._attackers.items()
            if one.acts(self.seed, round_num, client)
        }

    def _sent(self, client_ids: Sequence[int], model: Tensor, task: Task) -> Iterator[Updates]:
        """What the server gets; attacks that need the whole cohort come last."""
        seeing = {client for client, one in self._active.items() if "whole_cohort" in one.needs}
        waiting = seeing.intersection(client_ids)
        of_honest: list[Updates] = []
        of_waiting: list[Updates] = []
        for updates in self._honest.train_chunks(client_ids, model, task, self._changes()):
            clients = updates.client_ids
            if not clients:  # those that failed
                yield updates
                continue
            if waiting:
                of_honest.append(_select(updates, [one not in self._active for one in clients]))
                of_waiting.append(_select(updates, [one in waiting for one in clients]))
                updates = _select(updates, [one not in waiting for one in clients])
            yield from self._attacked(updates, model, task)
        if of_waiting:
            hostile = Updates.joined(of_waiting)
            cohort = self._seen(Updates.joined(of_honest), hostile, model, task)
            yield from self._attacked(hostile, model, task, cohort)

    def _changes(self) -> Changes:
        """The attackers train on poisoned samples, and from the models that they keep."""
        kept = self._active.keys() & self._private_models.keys()
        starts = {client: self._private_models[client] for client in kept}
        return Changes(frozenset(self._active), starts)

    def _seen(self, honest: Updates, hostile: Updates, model: Tensor, task: Task) -> Honest:
        """What attacks on the whole cohort know of the honest clients."""
        seen = honest if honest.client_ids else hostile
        highest = {}
        for part in task.criteria:
            criterion = make_criterion(part.name, part.label, **part.options)
            highest[criterion.name] = criterion.high(self.problem)
        samples = EvaluateJob.of(self.data.train, hostile.client_ids, self.problem)

        def judge(updates: Tensor) -> Evaluation:
            return self._honest.executor.evaluate(model + updates, samples)

        num_hostile = len(hostile.client_ids)
        return Honest(seen.models - model, seen.measurements, highest, num_hostile, judge)

    def _attacked(
        self, updates: Updates, model: Tensor, task: Task, cohort: Honest | None = None
    ) -> Iterator[Updates]:
        """The updates with forged models and claims; models of another size come one by one."""
        if not self._active:
            yield updates
            return
        odd: dict[int, Tensor] = {}
        failed = set[int]()
        for row, client in enumerate(updates.client_ids):
            if client not in self._active:
                continue
            try:
                forged = self._attack(client, row, updates, model, task, cohort)
            except Exception as error:
                failed.add(row)
                self._failures.append((client, error))
                continue
            if forged.shape == model.shape:
                updates.models[row] = forged
            else:
                odd[row] = forged
        rows = range(len(updates.client_ids))
        usual = _select(updates, [row not in odd and row not in failed for row in rows])
        if usual.client_ids:
            yield usual
        for odd_row, forged in odd.items():
            alone = _select(updates, [row == odd_row for row in rows])
            yield replace(alone, models=forged[None])

    def _attack(
        self,
        client: int,
        row: int,
        updates: Updates,
        model: Tensor,
        task: Task,
        cohort: Honest | None,
    ) -> Tensor:
        """The model that an attacker sends; its measurements become what it claims."""
        one = self._active[client]
        trained = updates.models[row]
        if one.ignore_global:
            self._private_models[client] = trained.clone()
        random = generator(self.seed, "attack", task.round_num, client)
        active_rounds = task.round_num - one.from_round
        known = Knowledge(trained, model, random, self._last_model, cohort, active_rounds)
        forged = one.attack.forge(known)
        if "judgements" in one.needs:
            self._forged.append(forged)
        truth = {name: values[row] for name, values in updates.measurements.items()}
        claimed = one.attack.claim(truth, known)
        for name in truth.keys() & claimed.keys():
            updates.measurements[name][row] = claimed[name]
        return forged

    def evaluate(self, client_ids: Sequence[int], models: Tensor) -> Evaluation:
        """See `core.engine.Engine`; attackers that judge models say what their attack says."""
        evaluation = self.inner.evaluate(client_ids, models)
        for column, client in enumerate(client_ids):
            if client in self._active and "judgements" in self._active[client].needs:
                evaluation = self._misjudged(evaluation, column, client, models)
        return evaluation

    def _misjudged(
        self, evaluation: Evaluation, column: int, client: int, models: Tensor
    ) -> Evaluation:
        """The evaluation with what an attacker says of the models instead of what it found."""
        truth = self.inner.evaluate([client], models)
        own = [any(torch.equal(model, forged) for forged in self._forged) for model in models]
        said = self._active[client].attack.judge(truth, torch.tensor(own), self.problem)
        values = evaluation.values.clone()
        values[:, column] = said.values[:, 0]
        losses = evaluation.losses.clone()
        losses[:, column] = said.losses[:, 0]
        counts = evaluation.counts - truth.counts + said.counts
        return replace(evaluation, values=values, losses=losses, counts=counts)

    def state(self) -> dict[str, Tensor]:
        """See `core.engine.Engine`: also the attackers' own models, and the last global model."""
        state = self.inner.state()
        if self._last_model is not None:
            state[LAST_MODEL] = self._last_model
        for client, model in self._private_models.items():
            state[str(client)] = model
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `core.engine.Engine`."""
        self.inner.load_state(state)
        models = {name: model.to(self.device) for name, model in state.items()}
        self._last_model = models.pop(LAST_MODEL, None)
        self._private_models = {
            int(name): model for name, model in models.items() if name.isdecimal()
        }


def _select(updates: Updates, rows: Sequence[bool]) -> Updates:
    return updates.select(torch.tensor(rows, dtype=torch.bool))

"""The held-out loss of a lane, round by round: when it stops early, and which model it keeps.

The loss is that on the samples the server weighs by. The samples that results are reported on choose
nothing, so the results stay those of held-out samples. Without samples to weigh by, it is the reported
loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ...core.engine import Engine
from ...core.types import RoundRecord, ServerState
from ..config.schema import Experiment

PREFIX = "lane."  # of the names in a checkpoint, beside those of the engine
LOSSES = f"{PREFIX}held_out"
BEST = f"{PREFIX}best"
BEST_ROUND = f"{PREFIX}best_round"


def held_out_loss(engine: Engine, state: ServerState, record: RoundRecord) -> float:
    """The loss of a round's model; NaN where nothing was evaluated."""
    shown = engine.evaluate_server(state.model[None], "weigh") or record.report or record.local
    return math.nan if shown is None else float(shown.overall_loss()[0])


class HeldOut:
    """The losses of a lane so far, and its best model where that is kept.

    Args:
        experiment: says when a lane stops, and which model it keeps.
        has_model: whether there is one model for all clients, which can be kept.
    """

    def __init__(self, experiment: Experiment, *, has_model: bool = True) -> None:
        self.keeps_best = experiment.keep == "best" and has_model
        self._rounds = experiment.rounds
        self._stop = experiment.stop_early
        self._losses: list[float] = []  # of round 1, 2, ...
        self._models: dict[int, Tensor] = {}  # of the best rounds that a checkpoint may still need

    @property
    def is_used(self) -> bool:
        """Whether the config asks for it."""
        return self.keeps_best or self._stop is not None

    def add(self, state: ServerState, loss: float) -> None:
        """Take the loss after a round."""
        self._losses = [*self._losses[: state.round_num - 1], loss]
        if self.keeps_best and self.best(state.round_num) == state.round_num:
            self._models[state.round_num] = state.model.clone()  # a file has no tensor twice

    def best(self, until: int) -> int | None:
        """The first round with the lowest loss of the first `until` ones; None without any loss."""
        known = [
            (loss, index)
            for index, loss in enumerate(self._losses[:until], 1)
            if not math.isnan(loss)
        ]
        return min(known)[1] if known else None

    def stops_after(self, round_num: int) -> bool:
        """Whether the loss has not fallen enough for too many rounds."""
        if self._stop is None:
            return False
        lowest = math.inf
        fell = 0  # the last round with a loss lower by more than `min_delta`
        for index, loss in enumerate(self._losses[:round_num], 1):
            if loss < lowest - self._stop.min_delta:
                lowest = loss
                fell = index
        return round_num - fell >= self._stop.rounds

    def last_words(self, round_num: int) -> str:
        """Why the lane stops after this round, for the record."""
        assert self._stop is not None
        best = self.best(round_num)
        how = "did not fall for"
        if self._stop.min_delta:
            how = f"fell by no more than {self._stop.min_delta:g} in"
        text = f"stopped early: the held-out loss {how} {self._stop.rounds} rounds"
        return f"{text}; it was lowest in round {best}" if best else text

    def forget(self, until: int) -> None:
        """Forget the models that no checkpoint after round `until` or a later one holds."""
        best = self.best(until) or 0
        for earlier in list(self._models):  # a copy: `add` may run in another thread
            if earlier < best:
                del self._models[earlier]

    def state(self, until: int) -> dict[str, Tensor]:
        """What a checkpoint after round `until` holds."""
        if not self.is_used:
            return {}
        state = {LOSSES: torch.tensor(self._losses[:until], dtype=torch.float64)}
        best = self.best(until)
        if self.keeps_best and best is not None:
            state[BEST] = self._models[best]
            state[BEST_ROUND] = torch.tensor(best)
        return state

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` returned."""
        if LOSSES in state:
            self._losses = state[LOSSES].tolist()
        if BEST in state:
            self._models = {int(state[BEST_ROUND]): state[BEST]}

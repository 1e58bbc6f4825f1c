"""A lane is one method with one seed.

Lanes run one after the other, or side by side on one device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...attacks import Hostile
from ...core.engine import Engine
from ...core.method import Method, accountant_of
from ...core.round import first_state, run_round
from ...core.types import RoundRecord, ServerState
from ...engine.scheduler import Scheduler
from ...record.store import Store
from ..build.engine import build_plan
from ..config.schema import Experiment
from ..trackers import Progress

SHORT = 0.5  # seconds; in longer rounds the time for writing is negligible
PREFIX = "lane."  # of the names in a checkpoint, beside those of the engine
BEST = f"{PREFIX}best"
BEST_ROUND = f"{PREFIX}best_round"
BEST_LOSS = f"{PREFIX}best_loss"


@dataclass(frozen=True)
class BestRound:
    """The round with the lowest held-out loss so far, the first of several, and its model.

    The loss is that on the samples the server weighs by. The samples that results are reported on choose
    nothing, so the results stay those of held-out samples. Without samples to weigh by, it is the
    reported loss.
    """

    round_num: int
    loss: float
    model: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        loss = torch.tensor(self.loss, dtype=torch.float64)
        return {BEST: self.model, BEST_ROUND: torch.tensor(self.round_num), BEST_LOSS: loss}

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> BestRound | None:
        """What `tensors` returned, from a checkpoint."""
        if BEST not in tensors:
            return None
        return BestRound(int(tensors[BEST_ROUND]), float(tensors[BEST_LOSS]), tensors[BEST])


def held_out_loss(engine: Engine, state: ServerState, record: RoundRecord) -> float:
    """The loss of a round's model; NaN where nothing was evaluated."""
    shown = engine.evaluate_server(state.model[None], "weigh") or record.report or record.local
    return math.nan if shown is None else float(shown.overall_loss()[0])


@dataclass(frozen=True)
class LaneState:
    """A lane after a round: what a checkpoint holds, and what is recorded of the round."""

    server: ServerState
    engine: Mapping[str, Tensor]
    best: BestRound | None = None  # where it is kept
    record: RoundRecord | None = None  # None: from a checkpoint, or before the first round
    seconds: float = 0.0
    loss: float | None = None  # held-out, where the best model is kept


def numbers_of(values: Mapping[str, Any], metric: str) -> dict[str, float]:
    """What can be plotted of a round's row in the record; the metric by its name.

    >>> numbers_of({"metric": 0.5, "loss": math.nan, "machine": "a"}, "accuracy")
    {'accuracy': 0.5}
    """
    return {
        metric if name == "metric" else name: value
        for name, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


Track = Callable[["Lane", RoundRecord, Mapping[str, float]], Progress]
OnRound = Callable[[Progress], None]


@dataclass(eq=False)
class Lane:
    """One method with one seed, at its last checkpoint, and what it records."""

    experiment: Experiment
    store: Store
    method: Method
    engine: Engine
    hostile: Mapping[int, Hostile]
    seed: int
    track: Track
    on_round: OnRound

    def __post_init__(self) -> None:
        method = self.method
        engine = self.engine
        store = self.store
        self.rounds = self.experiment.rounds
        self._lane = store.open_lane(method.name, self.seed)
        self._keeps_best = self.experiment.keep == "best" and method.control != "alone"
        # Secret noise cannot be drawn again: a round that is lost after its model was sent is another
        # release, and has to be counted. Its rounds are on disk before the next one begins.
        self.is_secret = method.privacy is not None and method.privacy.secret
        self._plan = build_plan(
            self.experiment, engine.num_clients, self.seed, method.control, secret=self.is_secret
        )
        self._accountant = accountant_of(method, self._plan, engine.num_clients)
        first = first_state(engine.initial_model, method, engine)
        saved = store.load_checkpoint(self._lane, first)
        self.state = LaneState(first, engine.state())
        if saved is not None:
            server, tensors = saved
            own = {name: one for name, one in tensors.items() if not name.startswith(PREFIX)}
            engine.load_state(own)
            self.state = LaneState(server, engine.state(), BestRound.of(tensors))
        lost = store.rounds_of(self._lane) - self.state.server.round_num
        if self.is_secret and method.noises_mean and lost > 0:  # they are run again
            self._count_releases(lost)
        store.forget_after(self._lane, self.state.server.round_num)

    @property
    def is_done(self) -> bool:
        """Whether no round is left."""
        return self.ends_after(self.state)

    def ends_after(self, state: LaneState) -> bool:
        """Whether all rounds have been run, or the privacy budget is spent."""
        return state.server.round_num >= self.rounds or self._has_spent(state.server)

    def _has_spent(self, state: ServerState) -> bool:
        """Whether another round would spend more privacy than is allowed."""
        privacy = self.method.privacy
        if self._accountant is None or privacy is None or privacy.epsilon is None:
            return False
        return (
            self._accountant.epsilon(int(state.kept("privacy")["releases"].max()) + 1)
            > privacy.epsilon
        )

    def begin(self) -> None:
        """Begin the time to the next checkpoint, before the first round that is run now."""
        self._saved_at = time.monotonic()

    def begin_round(self) -> None:
        """Count a round before clients are asked, where they add secret noise.

        Whatever interrupts the round, the server has their updates by then. A round that is written
        counts for the clients that were asked, one that is interrupted for all.
        """
        if self.is_secret and not self.method.noises_mean:
            self._count_releases(1)

    def _count_releases(self, count: int) -> None:
        server = self.state.server
        counted = {"releases": server.kept("privacy")["releases"] + count}
        server = replace(server, memory={**server.memory, "privacy": counted})
        self.state = replace(self.state, server=server)
        self._save()

    def run_round(self, state: LaneState) -> LaneState:
        """Run the round after `state` and measure its time. It is recorded only by `keep`."""
        began = time.perf_counter()
        engine = self.engine
        server, record = run_round(state.server, self.method, self._plan, engine)
        loss = None
        if self.experiment.keep == "best":
            loss = held_out_loss(engine, server, record)
        seconds = time.perf_counter() - began
        record = self._accounted(record, server)
        best = self._best_of(state.best, server, loss)
        return LaneState(server, engine.state(), best, record, seconds, loss)

    def _accounted(self, record: RoundRecord, server: ServerState) -> RoundRecord:
        """The record with the privacy that all rounds so far have spent, and whether it was the last one."""
        released = record.released
        if released is None or self._accountant is None:
            return record
        spent = self._accountant.epsilon(int(server.kept("privacy")["releases"].max()))
        notes = record.notes
        if server.round_num < self.rounds and self._has_spent(server):
            notes = (
                *notes,
                f"the privacy budget is spent (ε = {spent:.3g}): this was the last round",
            )
        return replace(record, released=replace(released, epsilon=spent), notes=notes)

    def _best_of(
        self, best: BestRound | None, server: ServerState, loss: float | None
    ) -> BestRound | None:
        """The best round so far, or the one that is done."""
        if not self._keeps_best or loss is None or math.isnan(loss):
            return best
        if best is not None and loss >= best.loss:
            return best
        return BestRound(server.round_num, loss, server.model.clone())  # a file has no tensor twice

    def keep(self, done: LaneState) -> None:
        """Record a round, tell of it, and save a checkpoint where one is due."""
        record = done.record
        assert record is not None
        problem = self.engine.problem
        values = self.store.write_round(
            self._lane, record, problem, self.hostile, done.seconds, done.loss
        )
        self.state = done
        # Before the checkpoint: then a killed run leaves no gap in the trackers' curves
        progress = self.track(self, record, numbers_of(values, problem.metric))
        waited = time.monotonic() - self._saved_at
        if self.is_secret or waited >= self.experiment.checkpoint_seconds:
            self._save()
        # After it: with checkpoint_seconds = 0, no round that was told of is run again
        self.on_round(progress)

    def _save(self) -> None:
        state = self.state
        kept = state.best.tensors() if state.best is not None else {}
        self.store.save_checkpoint(self._lane, state.server, {**state.engine, **kept})
        self._saved_at = time.monotonic()

    def end(self) -> None:
        """Save a checkpoint, after the last round or an interruption."""
        self._save()
        if self.is_done:
            self.store.finish_lane(self._lane)


@contextmanager
def begun(lanes: Sequence[Lane]) -> Iterator[None]:
    """A context within which lanes run. What was begun is saved at its end."""
    with ExitStack() as stack:
        for lane in lanes:
            lane.begin()
            stack.callback(lane.end)
        yield


def run_lanes(lanes: Sequence[Lane], scheduler: Scheduler) -> None:
    """Run the remaining rounds of all lanes, side by side."""
    with begun(lanes):
        if len(lanes) == 1:
            _run_alone(lanes[0])
        else:
            _run_together(lanes, scheduler)


def _run_alone(lane: Lane) -> None:
    """Round after round in this thread, so that an interruption takes effect at once.

    Short rounds are recorded during the next one, while its clients train on the GPU or in workers.
    """
    waiting: list[LaneState] = []
    spent = 0.0

    def write() -> None:
        nonlocal spent
        if waiting:
            began = time.perf_counter()
            lane.keep(waiting.pop())
            spent += time.perf_counter() - began

    state = lane.state
    lane.engine.idle_work = write
    try:
        while not lane.ends_after(state):
            spent = 0.0
            lane.begin_round()
            done = lane.run_round(state)
            done = replace(done, seconds=done.seconds - spent)
            write()  # an engine may have had no idle time for it
            waiting.append(done)
            state = done
            if done.seconds > SHORT or lane.is_secret:
                write()  # so that it is shown without delay
    finally:
        write()
        lane.engine.idle_work = None


def _run_together(lanes: Sequence[Lane], scheduler: Scheduler) -> None:
    """Rounds of all lanes, in threads whose training and evaluation the scheduler joins.

    Rounds are recorded while the next ones run. Rounds that an interruption leaves unrecorded are
    run again.
    """

    def run_round(lane: Lane, state: LaneState) -> LaneState:
        with scheduler.lane_round():
            done = lane.run_round(state)
        return replace(done, seconds=done.seconds / len(running))  # the lanes shared the time

    states = {lane: lane.state for lane in lanes}
    with ThreadPoolExecutor(len(lanes)) as threads:
        done: dict[Lane, LaneState] = {}
        while done or states:
            running = [lane for lane in states if not lane.ends_after(states[lane])]
            try:
                for lane in [lane for lane in done if lane.is_secret]:
                    lane.keep(done.pop(lane))
                for lane in running:
                    lane.begin_round()
                scheduler.begin_round(len(running))
                coming = [threads.submit(run_round, lane, states[lane]) for lane in running]
                for lane, one in done.items():
                    lane.keep(one)
                done = {lane: future.result() for lane, future in zip(running, coming, strict=True)}
            except BaseException:  # an interruption or a failed lane: the others stop as well
                scheduler.stop()
                raise
            states = dict(done)

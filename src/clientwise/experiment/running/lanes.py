"""A lane is one method with one seed.

Lanes run one after the other, side by side on one device, or spread over Ray.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ...attacks import Hostile
from ...core.accountant import accountant_of
from ...core.engine import Engine
from ...core.method import Method, Plan
from ...core.round import first_state, run_round
from ...core.types import RoundRecord, ServerState
from ...engine.scheduler import Scheduler
from ...record.store import Store
from ..build.engine import build_plan
from ..config.schema import Experiment
from ..config.tables import to_plain
from ..trackers import LaneInfo, Trackers
from .held_out import PREFIX, HeldOut, held_out_loss

SHORT = 0.5  # seconds; in longer rounds the time for writing is negligible


@dataclass(frozen=True)
class Progress:
    """A round has ended."""

    method: str
    seed: int
    record: RoundRecord
    rounds: int  # of this lane
    done: int  # rounds of all lanes so far
    total: int  # rounds of all lanes; fewer where a lane has ended early
    is_last: bool = False  # whether the lane ends with this round
    is_share: bool = True  # whether the metric is shown in percent


@dataclass(frozen=True)
class Round:
    """The result of a round of a lane."""

    state: ServerState
    engine_state: Mapping[str, Tensor]
    record: RoundRecord
    seconds: float
    held_out: float | None = None  # the loss, where the run stops or keeps models by it

    @staticmethod
    def run(
        state: ServerState, method: Method, plan: Plan, engine: Engine, *, watched: bool = False
    ) -> Round:
        """Run one round and measure its time; where it is `watched`, with the held-out loss."""
        began = time.perf_counter()
        state, record = run_round(state, method, plan, engine)
        loss = held_out_loss(engine, state, record) if watched else None
        return Round(state, engine.state(), record, time.perf_counter() - began, loss)


class Lane:
    """One method with one seed, at its last checkpoint, and what it records."""

    def __init__(
        self,
        experiment: Experiment,
        store: Store,
        method: Method,
        engine: Engine,
        hostile: Mapping[int, Hostile],
        seed: int,
    ) -> None:
        self.method = method
        self.engine = engine
        self.seed = seed
        self.rounds = experiment.rounds
        self._experiment = experiment
        self._store = store
        self._hostile = hostile
        self._lane = store.open_lane(method.name, seed)
        self._secret = method.privacy is not None and method.privacy.secret
        self._plan = build_plan(
            experiment, engine.num_clients, seed, method.control, secret=self._secret
        )
        self._accountant = accountant_of(method, self._plan, engine.num_clients)
        self.state = first_state(engine.initial_model, method, engine)
        self._held_out = HeldOut(experiment, has_model=method.control != "alone")
        saved = store.load_checkpoint(self._lane, self.state)
        if saved is not None:
            self.state, tensors = saved
            self._held_out.load(tensors)
            own = {name: one for name, one in tensors.items() if not name.startswith(PREFIX)}
            engine.load_state(own)
        self.engine_state: Mapping[str, Tensor] = engine.state()
        if self._secret and method.noises_mean:
            self._count_lost_releases()
        store.forget_after(self._lane, self.state.round_num)
        if not self.is_done:
            store.set_policy(self._lane, _policy(experiment, method))

    @property
    def is_done(self) -> bool:
        """Whether all rounds have been run, it stops early, or the privacy budget is spent."""
        return self.ends_after(self.state)

    @property
    def is_kept_at_once(self) -> bool:
        """Whether a round must be on disk before the next begins.

        Secret noise cannot be drawn again: a round that is lost after its model was sent is another
        release, and has to be counted.
        """
        return self._secret

    def ends_after(self, state: ServerState) -> bool:
        """Whether there is no round after `state`."""
        if state.round_num >= self.rounds or self._held_out.stops_after(state.round_num):
            return True
        return self._has_spent_budget(state)

    def _has_spent_budget(self, state: ServerState) -> bool:
        """Whether another round would spend more privacy than is allowed."""
        privacy = self.method.privacy
        if self._accountant is None or privacy is None or privacy.epsilon is None:
            return False
        return self._accountant.epsilon(int(state.privacy["releases"].max()) + 1) > privacy.epsilon

    def begin_round(self, state: ServerState) -> None:
        """Count the round after `state` before clients are asked, where they add secret noise.

        Whatever interrupts the round, the server has their updates by then. A round that is written
        counts for the clients that were asked, one that is interrupted for all.
        """
        if self._secret and not self.method.noises_mean:
            privacy = {**state.privacy, "releases": state.privacy["releases"] + 1}
            self.state = replace(state, privacy=privacy)
            self._save()

    def run_round(self, state: ServerState) -> Round:
        """Run the round after `state`. It is recorded only by `keep`."""
        watched = self._held_out.is_used
        return self.accounted(
            Round.run(state, self.method, self._plan, self.engine, watched=watched)
        )

    def accounted(self, done: Round) -> Round:
        """The round with the privacy that all rounds so far have spent, and why it is the last one."""
        return self._with_loss(self._with_privacy(done))  # its note is the last one

    def _with_loss(self, done: Round) -> Round:
        if done.held_out is None:
            return done
        round_num = done.state.round_num
        self._held_out.add(done.state, done.held_out)
        if round_num >= self.rounds or not self._held_out.stops_after(round_num):
            return done
        notes = (*done.record.notes, self._held_out.last_words(round_num))
        return replace(done, record=replace(done.record, notes=notes))

    def _with_privacy(self, done: Round) -> Round:
        released = done.record.released
        if released is None or self._accountant is None:
            return done
        spent = self._accountant.epsilon(int(done.state.privacy["releases"].max()))
        record = replace(done.record, released=replace(released, epsilon=spent))
        if done.state.round_num < self.rounds and self._has_spent_budget(done.state):
            stop = f"the privacy budget is spent (ε = {spent:.3g}): this was the last round"
            record = replace(record, notes=(*record.notes, stop))
        return replace(done, record=record)

    def _count_lost_releases(self) -> None:
        """Count rounds after the checkpoint, which are run again: their models were released."""
        lost = self._store.rounds_of(self._lane) - self.state.round_num
        if lost > 0:
            releases = self.state.privacy["releases"] + lost
            privacy = {**self.state.privacy, "releases": releases}
            self.state = replace(self.state, privacy=privacy)
            self._store.save_checkpoint(self._lane, self.state, self._kept_tensors())

    def prefetch(self, round_num: int) -> None:
        """Tell the engine the cohort of a round, where it is known beforehand."""
        if self.engine.clock is None and not self._secret and self.method.sampling is None:
            cohort = self._plan.cohort(self.engine.num_clients, round_num)
            self.engine.prefetch(cohort)

    def begin(self, trackers: Trackers) -> None:
        """Begin tracking, before the first round that is run now."""
        self._trackers = trackers
        self._saved_at = time.monotonic()
        self._info = LaneInfo(
            self._experiment.to_dict(),
            self._store.folder,
            self.method.name,
            self.seed,
            self.state.round_num,
        )
        trackers.begin(self._info)

    def keep(self, done: Round) -> None:
        """Record a round, and save a checkpoint where one is due."""
        record = done.record
        problem = self.engine.problem
        self._store.write_round(
            self._lane, record, problem, self._hostile, done.seconds, done.held_out
        )
        if self._trackers:  # first: then an interruption leaves no gap in their curves
            values = self._store.round_values(self._lane, record.round_num, problem.metric)
            self._trackers.log_round(self._info, record, values)
        self.state = done.state
        self.engine_state = done.engine_state
        self._held_out.forget(self.state.round_num)
        every = self._experiment.keep_every
        if every:
            self._store.keep_model(self._lane, self.state, every, problem)
        waited = time.monotonic() - self._saved_at
        if self.is_kept_at_once or waited >= self._experiment.checkpoint_seconds:
            self._save()

    def _save(self) -> None:
        self._store.save_checkpoint(self._lane, self.state, self._kept_tensors())
        every = self._experiment.keep_every
        if every:
            problem = self.engine.problem
            self._store.drop_models(self._lane, self.state.round_num, every, problem)
        self._saved_at = time.monotonic()

    def _kept_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds beside the state."""
        return {**self.engine_state, **self._held_out.state(self.state.round_num)}

    def end(self) -> None:
        """Save a checkpoint and end tracking, after the last round or an interruption."""
        self._save()
        self._trackers.end(self._info, self.is_done)
        if self.is_done:
            self._store.finish_lane(self._lane)


def _policy(experiment: Experiment, method: Method) -> Any:
    """The bounds on a method's weights, as the config has them; None without bounds."""
    (bounds,) = (one.bounds for one in experiment.methods if one.name == method.name)
    return to_plain(bounds)


def run_lanes(
    lanes: Sequence[Lane],
    scheduler: Scheduler,
    trackers: Trackers,
    on_round: Callable[[Lane, RoundRecord], None],
) -> None:
    """Run the remaining rounds of all lanes, side by side."""
    begun: list[Lane] = []
    try:
        for lane in lanes:
            lane.begin(trackers)
            begun.append(lane)

        def keep(lane: Lane, done: Round) -> None:
            lane.keep(done)
            on_round(lane, done.record)

        if len(lanes) == 1:
            _run_alone(lanes[0], keep)
        else:
            _run_together(lanes, scheduler, keep)
    finally:
        for lane in begun:
            lane.end()


def _run_alone(lane: Lane, keep: Callable[[Lane, Round], None]) -> None:
    """Round after round in this thread, so that an interruption takes effect at once.

    Short rounds are recorded during the next one, while its clients train on the GPU or in workers.
    """
    waiting: list[Round] = []
    spent = 0.0

    def write() -> None:
        nonlocal spent
        if waiting:
            began = time.perf_counter()
            keep(lane, waiting.pop())
            spent += time.perf_counter() - began

    def while_clients_train() -> None:
        write()
        lane.prefetch(state.round_num + 2)  # `state` is that before the running round

    state = lane.state
    lane.engine.idle_work = while_clients_train
    try:
        while not lane.ends_after(state):
            spent = 0.0
            lane.begin_round(state)
            done = lane.run_round(state)
            done = replace(done, seconds=done.seconds - spent)
            write()  # an engine may have had no idle time for it
            waiting.append(done)
            state = done.state
            if done.seconds > SHORT or lane.is_kept_at_once:
                write()  # so that it is shown without delay
    finally:
        write()
        lane.engine.idle_work = None


def _run_together(
    lanes: Sequence[Lane], scheduler: Scheduler, keep: Callable[[Lane, Round], None]
) -> None:
    """Rounds of all lanes, in threads whose training and evaluation the scheduler joins.

    Rounds are recorded while the next ones run. Rounds that an interruption leaves unrecorded are
    run again.
    """

    def run_round(lane: Lane, state: ServerState) -> Round:
        with scheduler.lane_round():
            done = lane.run_round(state)
        return replace(done, seconds=done.seconds / len(running))  # the lanes shared the time

    states = {lane: lane.state for lane in lanes}
    with ThreadPoolExecutor(len(lanes)) as threads:
        done: dict[Lane, Round] = {}
        while done or states:
            begun = [lane for lane in lanes if lane in states]
            running = [lane for lane in begun if not lane.ends_after(states[lane])]
            try:
                for lane in [lane for lane in done if lane.is_kept_at_once]:
                    keep(lane, done.pop(lane))
                for lane in running:
                    lane.begin_round(states[lane])
                scheduler.begin_round(len(running))
                coming = [threads.submit(run_round, lane, states[lane]) for lane in running]
                for lane, one in done.items():
                    keep(lane, one)
                done = {lane: future.result() for lane, future in zip(running, coming, strict=True)}
            except BaseException:  # an interruption or a failed lane: the others stop as well
                scheduler.stop()
                raise
            states = {lane: one.state for lane, one in done.items()}

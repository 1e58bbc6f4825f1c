"""Run or resume an experiment: every method with every seed, into a run folder."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import InitVar, dataclass, replace
from itertools import takewhile
from pathlib import Path

from ...attacks import Hostile
from ...core.engine import Engine
from ...core.method import Method
from ...core.types import RoundRecord
from ...data.federated import FederatedData
from ...engine.device import memory_errors_explained, pick_device, threads_for
from ...engine.executor import DeviceExecutor, Executor
from ...engine.local import LocalEngine
from ...engine.scheduler import LaneExecutor, Scheduler
from ...engine.shards import slots
from ...engine.wrapping import EmbeddedEngine
from ...errors import RunError
from ...record.facts import MODEL_OF_SEED, current_minute
from ...record.files import CONFIG, VERSIONS, locked
from ...record.store import Store
from ...writing import write_atomically
from ..build.data import build_data, scored
from ..build.engine import build_engine, build_executor, lanes_that_fit
from ..checks.against_data import validate
from ..checks.describe import count_steps, doubts
from ..config.schema import Experiment
from ..trackers import Progress, Trackers
from .about import about_method, about_model, about_run, reports_on_clients
from .cluster import connected_to_ray, sharded
from .lanes import Lane, OnRound, run_lanes
from .origin import (
    compare_origin,
    machine_facts,
    other_machine,
    record_machine,
    record_origin,
    versions,
    with_initial_parameters,
)
from .resume import (
    FACT,
    claim,
    config_so_far,
    extended,
    has_changed,
    is_new,
    new_folder,
    refuse_other_config,
)

log = logging.getLogger("clientwise")
# Makes the engine of a lane from the embedded one and its seed.
Connect = Callable[[EmbeddedEngine, int], Engine]
# A context, since what reaches the clients may have to be started.
EngineFactory = AbstractContextManager[Connect]
Pair = tuple[int, Method]  # a seed and a method: a lane that is to be run
Built = Mapping[int, tuple[FederatedData, dict[int, Hostile]]]  # by seed


class Stopped(KeyboardInterrupt):
    """Interrupted while it ran; `folder` can be resumed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"stopped; go on with cw.run(config, {str(folder)!r}, resume=True)")
        self.folder = folder


def _log_warning(text: str) -> None:
    log.warning("warning: %s", text)  # printed as it is, without a logging setup


@memory_errors_explained()
def run(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    data: FederatedData | None = None,
    resume: bool = False,
    accept_changes: bool = False,
    on_round: OnRound | None = None,
    on_warning: Callable[[str], None] = _log_warning,
    engines: EngineFactory | None = None,
) -> Path:
    """See `fitting.run`. Without `engines` all clients are simulated in this process."""
    assert engines or experiment.engine == "local", "`fitting.run` knows how to reach other clients"
    with ExitStack() as stack:
        before = None
        if resume:
            if out is None:
                raise RunError("resume=True: out= must name the run folder to resume")
            folder = Path(out)
            with _writable(folder):
                resume = not is_new(folder, CONFIG)  # where there is no run yet, one begins
        if resume:
            _take(folder, stack)
            before = config_so_far(folder)
        if before is not None:
            refuse_other_config(folder, before, experiment)
            experiment = extended(before, experiment)
        if data is not None:
            data = replace(data, samples=scored(experiment, data.samples))
            experiment = experiment.for_data(data.weigh)
        samples = validate(experiment, data)
        trackers = Trackers(experiment.trackers, experiment.to_dict(), experiment.source)
        if not resume:
            with _writable(Path("runs")):
                folder = new_folder(experiment.name) if out is None else Path(out)
            _take(folder, stack)
        if before is None:
            _begin(folder, experiment)
        try:
            # Data and code of all seeds are compared before any file changes.
            built = {seed: build_data(experiment, samples, seed, data) for seed in experiment.seeds}
            federated = {seed: one for seed, (one, _) in built.items()}
            experiment, resumed = with_initial_parameters(folder, experiment)
            origin, changes = compare_origin(
                folder, experiment, federated, accept_changes=accept_changes
            )
            connect = stack.enter_context(engines) if engines else None
            store = Store(folder)
            stack.callback(store.close)
            _record_config(store, experiment, before)
            if before:
                joined = experiment.flower.clients[len(before.flower.clients) :]
                changes = [*(f"{name} joined" for name in joined), *changes]
            record_origin(store, experiment, origin, changes)
            stack.callback(trackers.close)
            tell = on_round or (lambda progress: None)
            session = _Session(experiment, store, built, connect, trackers, tell)
            steps = count_steps(experiment, federated.values())
            for remark in [*session.begin(data, steps), *resumed]:
                on_warning(remark)
            session.run()
            store.refuse_nothing_learned()
        except KeyboardInterrupt:
            raise Stopped(folder) from None
    return folder


def _take(folder: Path, stack: ExitStack) -> None:
    """Make a run folder where it is not there, and lock it until the stack is closed."""
    with _writable(folder):
        claim(folder)
        stack.enter_context(locked(folder))


def _begin(folder: Path, experiment: Experiment) -> None:
    """Begin a run in a locked folder."""
    written = folder / CONFIG
    if written.exists():
        hint = "Resume it (--resume, in Python resume=True) or choose another output folder"
        raise RunError(f"{folder}: there is a run already. {hint}")
    with _writable(folder):
        write_atomically(written, experiment.to_toml().encode())  # from here on the folder is a run
        write_atomically(folder / VERSIONS, json.dumps(versions(), indent=2).encode())


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """A context in which a folder that cannot be written to is an error of one line."""
    try:
        yield
    except OSError as error:
        path = error.filename or folder
        raise RunError(f"{path}: cannot be written to: {error.strerror}") from None


def _record_config(store: Store, experiment: Experiment, before: Experiment | None) -> None:
    """Record the config of a run that begins, or that gets more rounds, seeds or methods.

    The file is written first: after a crash between the two it has only what may be added.
    """
    recorded = before or experiment
    if before is None or has_changed(before, experiment):
        recorded = experiment
        write_atomically(store.folder / CONFIG, experiment.to_toml().encode())
    methods = [about_method(one).plain() for one in recorded.methods]
    store.set_facts({FACT: recorded.to_toml(), "methods": methods})
    own = experiment.own_model
    if own is not None and own.start is not None:
        store.keep_initial(own.start)
        store.set_facts({"same_start": True})


@dataclass(frozen=True)
class _Seed:
    """What all lanes of a seed share."""

    data: FederatedData
    hostile: Mapping[int, Hostile]
    executor: DeviceExecutor


@dataclass
class _Session:
    """Everything that one call of `run` still has to do, and how far it is."""

    experiment: Experiment
    store: Store
    built: InitVar[Built]
    connect: Connect | None
    trackers: Trackers
    on_round: OnRound

    def __post_init__(self, built: Built) -> None:
        experiment = self.experiment
        self._methods = experiment.build_methods()
        self._pairs = [(seed, method) for seed in experiment.seeds for method in self._methods]
        device = pick_device(experiment.device)
        # One executor for all seeds, unless their samples differ.
        executors: dict[int, DeviceExecutor] = {}
        self._seeds: dict[int, _Seed] = {}
        for seed, (data, hostile) in built.items():
            inputs = id(data.samples.inputs)
            if inputs not in executors:
                executors[inputs] = build_executor(experiment, data.samples, device)
            self._seeds[seed] = self._opened_seed(seed, data, hostile, executors[inputs])
        self._first = self._seeds[experiment.seeds[0]]
        self._done = 0  # rounds of all lanes
        self._total = len(self._pairs) * experiment.rounds

    def _opened_seed(
        self, seed: int, data: FederatedData, hostile: dict[int, Hostile], executor: DeviceExecutor
    ) -> _Seed:
        """Record the clients of a seed, and bring their samples to the device."""
        self.store.set_clients(
            seed,
            data.train.sizes.tolist(),
            data.test.sizes.tolist(),
            {client: one.name for client, one in hostile.items()},
            data.names or None,
        )
        about = about_model(self.experiment, data.samples, executor)
        self.store.set_facts({f"{MODEL_OF_SEED}{seed}": about})
        data = replace(data, samples=executor.samples).holdings_to(executor.device)
        return _Seed(data, hostile, executor)

    def begin(self, own_data: FederatedData | None, steps: Sequence[object]) -> list[str]:
        """Open the lanes that are to go on, and record what the run is about; what is to be said of it."""
        experiment = self.experiment
        self.store.reopen_lanes(experiment.rounds)
        if not reports_on_clients(experiment, own_data):
            names = [method.name for method in self._methods if method.adjust is None]
            every = experiment.evaluation.clients_every
            self.store.forget_undue(experiment.rounds, every, names)
        self.store.keep_fact("begun", current_minute())
        first = self._first
        remarks = doubts(experiment, first.data, first.hostile, first.executor)
        facts = about_run(experiment, first.data, first.hostile, first.executor, own_data)
        new_data = {
            seed: [(change.from_round, change.clients) for change in one.data.new_data]
            for seed, one in self._seeds.items()
            if one.data.new_data
        }
        self.store.set_facts({**facts, "warnings": remarks, "steps": steps, "new_data": new_data})
        if not self._unfinished():
            return remarks
        machine = machine_facts(first.executor, on_ray=experiment.workers == "ray")
        changes = record_machine(self.store, machine)
        return [*remarks, other_machine(self.store.folder, changes)] if changes else remarks

    def run(self) -> None:
        """Run all lanes that are not finished."""
        todo = self._unfinished()
        self._done = (len(self._pairs) - len(todo)) * self.experiment.rounds
        with threads_for(self._first.executor.spec.num_parameters):
            if self.experiment.workers == "ray":
                with connected_to_ray():
                    self._run_in_shards(todo)
                return
            for group in self._groups(todo):
                executor = self._seeds[group[0][0]].executor
                scheduler = Scheduler(executor)
                executors: list[Executor] = [executor]
                if len(group) > 1:
                    executors = [LaneExecutor(scheduler, index) for index in range(len(group))]
                lanes = [self._open(pair, one) for pair, one in zip(group, executors, strict=True)]
                run_lanes(lanes, scheduler)

    def _unfinished(self) -> list[Pair]:
        """The lanes that are to be run."""
        is_finished = self.store.is_lane_finished
        return [
            (seed, method) for seed, method in self._pairs if not is_finished(method.name, seed)
        ]

    def _groups(self, todo: Sequence[Pair]) -> Iterator[Sequence[Pair]]:
        """The lanes in groups that train side by side."""
        while todo:
            seed = todo[0][0]
            own = self._seeds[seed]
            most = 1
            if self.connect is None:
                most = lanes_that_fit(self.experiment, own.data, own.executor)
            # Controls pool their samples and take other steps: joining them gains nothing.
            alike = takewhile(lambda pair: not pair[1].control, todo[:most])
            group = [pair for pair in alike if self._seeds[pair[0]].executor is own.executor]
            group = group or [todo[0]]
            todo = todo[len(group) :]
            yield group

    def _run_in_shards(self, todo: Sequence[Pair]) -> None:
        """Lanes one after the other, each on all machines or GPUs of the cluster."""
        config = self.experiment.to_dict()
        where = slots(on_gpu=self._first.executor.device.type == "cuda")
        for seed, method in todo:
            own = self._seeds[seed]
            spread: AbstractContextManager[Callable[..., LocalEngine]]
            if method.control in (None, "alone"):
                spread = sharded(own.data, config, method.name, seed, where)
            else:  # a round has one client
                spread = nullcontext(LocalEngine)
            with spread as make:
                lane = self._open((seed, method), own.executor, make)
                run_lanes([lane], Scheduler(own.executor))

    def _open(
        self, pair: Pair, executor: Executor, make: Callable[..., LocalEngine] = LocalEngine
    ) -> Lane:
        """A lane at its last checkpoint, whose rounds so far are counted."""
        seed, method = pair
        own = self._seeds[seed]
        embedded = build_engine(
            self.experiment, own.data, own.hostile, seed, executor, method, make
        )
        engine = self.connect(embedded, seed) if self.connect else embedded
        method = method.for_clients(own.data.names)
        lane = Lane(
            self.experiment,
            self.store,
            method,
            engine,
            own.hostile,
            seed,
            self._track,
            self.on_round,
        )
        done = lane.state.server.round_num
        self._done += done
        if lane.is_done:  # its privacy budget was spent before the run was resumed
            self._total -= lane.rounds - done
        return lane

    def _track(self, lane: Lane, record: RoundRecord, values: Mapping[str, float]) -> Progress:
        """Count a round and tell the trackers of it."""
        self._done += 1
        if lane.is_done:  # perhaps early, by its privacy budget
            self._total -= lane.rounds - record.round_num
        step = Progress(
            lane.method.name,
            lane.seed,
            record,
            lane.rounds,
            self._done,
            self._total,
            is_last=lane.is_done,
            is_share=lane.engine.problem.is_share,
            folder=self.store.folder,
            values=values,
        )
        self.trackers(step)
        return step

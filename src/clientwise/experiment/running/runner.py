"""Run or resume an experiment: every method with every seed, into a run folder."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from torch import Tensor

from ...attacks import Hostile
from ...core.engine import Engine
from ...core.method import Method
from ...core.objective.guessing import constant_metric
from ...core.types import RoundRecord
from ...data.federated import FederatedData, Samples
from ...data.hints import column_hints
from ...engine.device import memory_errors_explained, pick_device, threads_for
from ...engine.executor import DeviceExecutor, Executor
from ...engine.local import LocalEngine
from ...engine.ray.shards import slots
from ...engine.scheduler import LaneExecutor, Scheduler
from ...engine.wrappers.engine import EmbeddedEngine
from ...errors import ClientwiseError, ConfigError, RunError
from ...models.flat import frozen_digest
from ...record.facts import current_minute, facts_of_run
from ...record.files import CONFIG, VERSIONS
from ...record.lock import locked
from ...record.writer import Store
from ...writing import write_atomically
from ..build.data import build_data, data_folder, scored
from ..build.engine import build_engine, build_executor, count_outputs, lanes_that_fit
from ..checks.against_data import validate
from ..checks.doubts import doubts
from ..checks.policy import policy_doubts
from ..checks.steps import count_steps
from ..config.schema import Experiment
from ..trackers import TRACKERS, Tracker, Trackers, check_tracker
from .folders import claim, new_folder
from .initial import with_initial_parameters
from .lanes import Lane, Progress, run_lanes
from .machine import facts_of, in_words, record_machine
from .origin import compare_origin, record_origin, versions
from .ray_lanes import connected_to_ray, run_on_ray
from .ray_shards import can_be_sharded, sharded
from .resume import (
    FACT,
    changed_keys,
    config_so_far,
    extended,
    refuse_other_config,
)

log = logging.getLogger("clientwise")
# Makes the engine of a lane from the embedded one and its seed.
Connect = Callable[[EmbeddedEngine, int], Engine]
# A context, since what reaches the clients may have to be started.
EngineFactory = AbstractContextManager[Connect]
OnRound = Callable[[Progress], None]
Pair = tuple[int, Method]  # a seed and a method: a lane that is to be run


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
    """See `launch.run`. Without `engines` all clients are simulated in this process."""
    assert engines or experiment.engine == "local", "`launch.run` knows how to reach other clients"
    if resume and out is not None:
        before = config_so_far(Path(out))
        if before is not None:
            refuse_other_config(Path(out), before, experiment)
            experiment = extended(before, experiment)
    if data is not None:
        data = replace(data, samples=scored(experiment, data.samples))
        experiment = experiment.for_data(data.weigh)
    samples = validate(experiment, data)
    trackers = _build_trackers(experiment)
    with ExitStack() as stack:
        try:
            folder = Path(out) if out is not None else new_folder(experiment.name)
            claim(folder, resume)
            stack.enter_context(locked(folder))
            before = _begin(folder, experiment, resume)
        except OSError as error:
            path = error.filename or out or "runs"
            raise RunError(f"{path}: cannot be written to: {error.strerror}") from None
        try:
            # Data and code of all seeds are compared before any file changes.
            built = {seed: build_data(experiment, samples, seed, data) for seed in experiment.seeds}
            federated = {seed: one for seed, (one, _) in built.items()}
            experiment, resumed = with_initial_parameters(folder, experiment)
            origin = compare_origin(folder, experiment, federated, accept_changes=accept_changes)
            connect = stack.enter_context(engines) if engines else None
            store = Store(folder)
            stack.callback(store.close)
            own = experiment.own_model
            if own is not None and own.start is not None:
                store.keep_initial(own.start)
                store.set_facts({"all seeds begin with a given network": True})
            _record_config(store, experiment, before)
            record_origin(store, experiment, origin)
            _record_versions(store)
            store.set_facts({"steps": count_steps(experiment, federated.values())})
            seeds = _Seeds(experiment, store, built, connect)
            on_clients = _reports_on_clients(experiment, data)
            warnings = column_hints(samples) + seeds.doubts(experiment.seeds[0])
            store.set_facts({"warnings": warnings})
            for warning in warnings:
                on_warning(warning)
            session = _RunSession(experiment, store, seeds, trackers, on_round)
            session.begin(samples, on_clients)
            for remark in [*resumed, *session.record_machine()]:
                on_warning(remark)
            session.run(data)
            store.refuse_nothing_learned()
        except KeyboardInterrupt:
            raise Stopped(folder) from None
    return folder


def _build_trackers(experiment: Experiment) -> Trackers:
    """The trackers, made before the run begins: a missing package or a wrong option is an error."""
    trackers: list[tuple[str, Tracker]] = []
    for index, part in enumerate(experiment.trackers):
        key = f"trackers[{index}]"
        try:
            tracker = TRACKERS.get(part.name)(**part.options)
            check_tracker(tracker)
            trackers.append((part.name, tracker))
        except ClientwiseError as error:
            raise ConfigError(experiment.source, [(key, str(error))]) from None
        except Exception as error:  # a user's own tracker may raise anything
            message = f"{part.name}: {type(error).__name__}: {error}"
            raise ConfigError(experiment.source, [(key, message)]) from error
    return Trackers(trackers)


def _begin(folder: Path, experiment: Experiment, resume: bool) -> Experiment | None:
    """In a locked folder: begin a run, or return the config of the run that is resumed."""
    written = folder / CONFIG
    if written.exists():
        if not resume:
            hint = "Resume it (--resume, in Python resume=True) or choose another output folder"
            raise RunError(f"{folder}: there is a run already. {hint}")
        before = config_so_far(folder)
        if before is not None:
            refuse_other_config(folder, before, experiment)
        return before
    write_atomically(written, experiment.to_toml().encode())  # from here on the folder is a run
    write_atomically(folder / VERSIONS, json.dumps(versions(), indent=2).encode())
    return None


def _record_config(store: Store, experiment: Experiment, before: Experiment | None) -> None:
    """Record the config of a run that begins, or that gets more rounds, seeds or methods.

    The file is written first: after a crash between the two it has only what may be added.
    """
    recorded = before
    if before is None or changed_keys(before.to_dict(), experiment.to_dict()):
        recorded = experiment
        write_atomically(store.folder / CONFIG, experiment.to_toml().encode())
    assert recorded is not None
    store.set_facts({FACT: recorded.to_toml()})


def _record_versions(store: Store) -> None:
    """Record the file of versions, so that a signature covers it."""
    file = store.folder / VERSIONS
    if file.is_file():
        store.keep_fact(VERSIONS, file.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class _Seed:
    """What all lanes of a seed share."""

    data: FederatedData
    hostile: Mapping[int, Hostile]
    executor: DeviceExecutor


class _Seeds:
    """What belongs to each seed, made once: its data, its hostile clients, its executor."""

    def __init__(
        self,
        experiment: Experiment,
        store: Store,
        built: Mapping[int, tuple[FederatedData, dict[int, Hostile]]],
        connect: Connect | None,
    ) -> None:
        self.connect = connect
        self._experiment = experiment
        self._store = store
        self._device = pick_device(experiment.device)
        # One executor for all seeds, unless their samples differ. The tensor is kept with it, so
        # that no other tensor gets its id.
        self._executors: dict[int, tuple[Tensor, DeviceExecutor]] = {}
        self._made = {seed: self._make(seed, *own) for seed, own in built.items()}

    def _make(self, seed: int, data: FederatedData, hostile: dict[int, Hostile]) -> _Seed:
        self._store.set_clients(
            seed,
            data.train.sizes.tolist(),
            data.test.sizes.tolist(),
            {client: one.name for client, one in hostile.items()},
            data.names or None,
        )
        if data.new_data:
            swapped = [(one.from_round, one.clients) for one in data.new_data]
            self._store.set_facts({f"new data of seed {seed}": swapped})
        executor = self._executor_for(data.samples)
        facts = _model_facts(self._experiment, data.samples, executor)
        self._store.set_facts({f"model of seed {seed}": facts})
        data = replace(data, samples=executor.samples).holdings_to(executor.device)
        return _Seed(data, hostile, executor)

    def _executor_for(self, samples: Samples) -> DeviceExecutor:
        inputs = samples.inputs
        if id(inputs) not in self._executors:
            executor = build_executor(self._experiment, samples, self._device)
            self._executors[id(inputs)] = (inputs, executor)
        return self._executors[id(inputs)][1]

    def doubts(self, seed: int) -> list[str]:
        """What is probably not meant."""
        own = self[seed]
        found = doubts(self._experiment, own.data, own.hostile, own.executor)
        return [*found, *policy_doubts(self._experiment, own.data, seed)]

    def held_out_facts(self, seed: int) -> dict[str, Any]:
        """About the samples that weights and results depend on, as `facts_of_run` takes them."""
        own = self._made[seed]
        facts: dict[str, Any] = {}
        if own.data.weigh is not None:
            facts["weigh_samples"] = len(own.data.weigh.targets)
        held = own.data.report
        if held is None and not own.hostile:
            held = own.data.test
        if held is None or not len(held.targets):
            return facts
        facts["report_samples"] = len(held.targets)
        problem = own.data.samples.problem
        facts["constant_metric"] = constant_metric(problem, held.targets)
        num_classes = problem.num_classes
        if num_classes:
            facts["report_rarest"] = int(held.targets.bincount(minlength=num_classes).min())
        return facts

    def __getitem__(self, seed: int) -> _Seed:
        return self._made[seed]

    def engine(
        self,
        seed: int,
        method: Method,
        executor: Executor,
        make: Callable[..., LocalEngine] = LocalEngine,
    ) -> EmbeddedEngine:
        """The clients of a seed; see `build_engine`."""
        own = self[seed]
        return build_engine(self._experiment, own.data, own.hostile, seed, executor, method, make)

    def open_lane(self, seed: int, method: Method, executor: Executor) -> Lane:
        """A method with this seed, at its last checkpoint."""
        embedded = self.engine(seed, method, executor)
        return self.lane(seed, method, self.connect(embedded, seed) if self.connect else embedded)

    def lane(self, seed: int, method: Method, engine: Engine) -> Lane:
        """A method with this seed on an engine, at its last checkpoint."""
        own = self[seed]
        method = method.for_clients(own.data.names, own.data.num_clients)
        return Lane(self._experiment, self._store, method, engine, own.hostile, seed)


class _RunSession:
    """Everything that one call of `run` still has to do, and how far it is."""

    def __init__(
        self,
        experiment: Experiment,
        store: Store,
        seeds: _Seeds,
        trackers: Trackers,
        on_round: OnRound | None,
    ) -> None:
        self._experiment = experiment
        self._store = store
        self._seeds = seeds
        self._trackers = trackers
        self._on_round = on_round
        self._methods = experiment.build_methods()
        self._pairs = [(seed, method) for seed in experiment.seeds for method in self._methods]
        self._first = seeds[experiment.seeds[0]].executor
        self._done = 0  # rounds of all lanes
        self._total = len(self._pairs) * experiment.rounds

    def begin(self, samples: Samples, on_clients: bool) -> None:
        """Open the lanes that are to go on, and record what the whole run is about."""
        rounds = self._experiment.rounds
        self._store.reopen_lanes(rounds)
        if not on_clients:
            every = self._experiment.evaluation.clients_every
            names = [method.name for method in self._methods if method.adjust is None]
            self._store.forget_undue(rounds, every, names)
        self._store.keep_fact("begun", current_minute())
        facts = facts_of_run(
            self._experiment.name,
            samples.problem,
            rounds=rounds,
            lanes=len(self._pairs),
            num_values=self._first.spec.size,
            reported_on="the honest clients' own test data" if on_clients else "held-out samples",
            computed=str(self._first),
            **self._seeds.held_out_facts(self._experiment.seeds[0]),
            target=self._experiment.evaluation.target,
            client_targets=self._experiment.evaluation.client_targets,
        )
        self._store.set_facts(facts)

    def record_machine(self) -> list[str]:
        """Record where the next rounds are computed; what a change of the machine means, if there is one."""
        if not self._unfinished():
            return []
        facts = facts_of(self._first, on_ray=self._experiment.workers == "ray")
        changes = record_machine(self._store, facts)
        return [f"{self._store.folder}: {in_words(changes)}"] if changes else []

    def run(self, own_data: FederatedData | None) -> None:
        """Run all lanes that are not finished."""
        todo = self._unfinished()
        self._done = (len(self._pairs) - len(todo)) * self._experiment.rounds
        if self._experiment.workers == "ray":
            with connected_to_ray(), threads_for(self._first.spec.num_parameters):
                self._run_on_ray(todo, own_data)
            return
        with threads_for(self._first.spec.num_parameters):
            for group in self._groups(todo):
                self._run_group(group)

    def _run_on_ray(self, todo: Sequence[Pair], own_data: FederatedData | None) -> None:
        """Lanes side by side; or, where they are fewer than the cores or GPUs, in shards one after the other."""
        config = self._experiment.to_dict()
        where = slots(on_gpu=self._first.device.type == "cuda")
        in_shards: list[Pair] = []
        if len(todo) < sum(slot.cores for slot in where):
            in_shards = [(seed, method) for seed, method in todo if can_be_sharded(method)]
        whole = [pair for pair in todo if pair not in in_shards]
        for seed, method in todo:
            # Reports list the methods in the order of their lanes, and compare with the first.
            self._store.open_lane(method.name, seed)
        if whole:
            lanes = [self._open(pair, self._seeds[pair[0]].executor) for pair in whole]
            # Processes of a cluster have another current folder, and other environment variables.
            folder = data_folder(self._experiment) or Path()
            there = config | {"data_dir": str(folder.absolute())}
            run_on_ray(lanes, there, own_data, self._trackers, self._tell)
        for seed, method in in_shards:
            executor = self._seeds[seed].executor
            data = self._seeds[seed].data
            with sharded(data, config, method.name, seed, where) as make:
                engine = self._seeds.engine(seed, method, executor, make)
                lane = self._opened(self._seeds.lane(seed, method, engine))
                run_lanes([lane], Scheduler(executor), self._trackers, self._tell)

    def _run_group(self, group: Sequence[Pair]) -> None:
        executor = self._seeds[group[0][0]].executor
        scheduler = Scheduler(executor)
        if len(group) == 1:
            lanes = [self._open(group[0], executor)]
        else:
            executors = [LaneExecutor(scheduler, index) for index in range(len(group))]
            lanes = [self._open(pair, one) for pair, one in zip(group, executors, strict=True)]
        run_lanes(lanes, scheduler, self._trackers, self._tell)

    def _groups(self, todo: Sequence[Pair]) -> Iterator[Sequence[Pair]]:
        """The lanes in groups that train side by side."""
        while todo:
            seed = todo[0][0]
            executor = self._seeds[seed].executor
            most = 1 if self._seeds.connect else self._lanes_that_fit(seed)
            # Controls pool their samples and take other steps: joining them gains nothing.
            alike = takewhile(lambda pair: not pair[1].control, todo[:most])
            group = [pair for pair in alike if self._seeds[pair[0]].executor is executor]
            group = group or [todo[0]]
            todo = todo[len(group) :]
            yield group

    def _lanes_that_fit(self, seed: int) -> int:
        data = self._seeds[seed].data
        return lanes_that_fit(self._experiment, data, self._seeds[seed].executor)

    def _open(self, pair: Pair, executor: Executor) -> Lane:
        return self._opened(self._seeds.open_lane(*pair, executor))

    def _opened(self, lane: Lane) -> Lane:
        """The lane, after its rounds so far were counted."""
        self._done += lane.state.round_num
        if lane.is_done:  # it stopped early, before the run was resumed
            self._total -= lane.rounds - lane.state.round_num
        return lane

    def _unfinished(self) -> list[Pair]:
        """The lanes that are to be run."""
        found = []
        for seed, method in self._pairs:
            if not self._store.is_lane_finished(method.name, seed):
                found.append((seed, method))
        return found

    def _tell(self, lane: Lane, record: RoundRecord) -> None:
        self._done += 1
        if lane.is_done:  # perhaps early, by its loss or its privacy budget
            self._total -= lane.rounds - record.round_num
        if self._on_round is None:
            return
        step = Progress(
            lane.method.name,
            lane.seed,
            record,
            lane.rounds,
            self._done,
            self._total,
            is_last=lane.is_done,
            is_share=lane.engine.problem.is_share,
        )
        self._on_round(step)


def _model_facts(
    experiment: Experiment, samples: Samples, executor: DeviceExecutor
) -> dict[str, object]:
    """What `ModelFacts` reads."""
    return {
        "name": experiment.model_name,
        "input_shape": list(samples.inputs.shape[1:]),
        "named_shapes": {part.name: part.shape for part in samples.parts},
        "outputs": count_outputs(samples),
        "scale": samples.scale,
        "tensors": [[layer.name, layer.shape] for layer in executor.spec.layers],
        "kind": samples.problem.kind,
        "table": asdict(samples.table) if samples.table else None,
        "frozen": frozen_digest(executor.flat.module),
    }


def _reports_on_clients(experiment: Experiment, own_data: FederatedData | None) -> bool:
    """Whether the server has no samples to report on."""
    if own_data is not None:
        return own_data.report is None
    if not experiment.server_holds_samples:
        return True
    server = experiment.server_set
    shares_none = not server.shared_set and server.report_fraction == 0
    return server.source == "held_out" and shares_none

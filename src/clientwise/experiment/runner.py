"""Run an experiment, or go on with one: every method with every seed, round by round, into a run folder."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

import tomli_w
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from ..attacks import Hostile
from ..core.method import Method
from ..core.types import Engine, RoundRecord
from ..data.federated import FederatedData, Samples
from ..engine.device import pick_device, threads_for
from ..engine.executor import DeviceExecutor, Executor
from ..engine.local import LocalEngine
from ..engine.scheduler import LaneExecutor, Scheduler
from ..errors import RunError
from ..runs.files import plain_name, write_atomically
from ..runs.lock import locked
from ..runs.reader import is_finished
from ..runs.writer import Store
from ..trackers import Trackers
from .build import build_data, build_engine, build_executor, build_plan, build_trackers, count_outputs, scored
from .config import load_experiment, read_written
from .lanes import Lane, Progress, run_lanes
from .messages import issues_of
from .origin import check_origin, versions
from .ray_lanes import run_on_ray
from .schema import Experiment, Note, Tags
from .validation import validate

Connect = Callable[[LocalEngine, int], Engine]  # the engine a lane is to use, from the embedded one and its seed
EngineFactory = AbstractContextManager[Connect]  # a context: what it reaches clients through may have to be started

# Keys that may change when a run is resumed: where things are, how it is watched, how long clients are waited for.
# `workers` may change the last bits of what follows (docs/performance.md); the others change none.
MAY_CHANGE = {
    "data_dir",
    "initial_model",
    "plugin_dir",
    "checkpoint_seconds",
    "keep_every",
    "trackers",
    "workers",
    "note",
    "tags",
}
MAY_CHANGE |= {
    "flower.train_seconds",
    "flower.evaluate_seconds",
    "flower.grace_seconds",
    "flower.files",
    "flower.loader",
}
MAY_GROW = {"rounds", "seeds", "methods", "flower.left"}  # what is there stays as it is: see `_with_what_is_there`


class Stopped(KeyboardInterrupt):
    """Interrupted while it ran: what is in `folder` can be gone on with."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"stopped; go on with cw.run(config, {str(folder)!r}, resume=True)")
        self.folder = folder


def new_folder(name: str, parent: Path = Path("runs")) -> Path:
    """Make a fresh folder for a run: runs/NAME-DATE-TIME, with a number behind it where another was faster."""
    stem = f"{plain_name(name)}-{datetime.now():%Y%m%d-%H%M%S}"
    parent.mkdir(parents=True, exist_ok=True)
    folder, number = parent / stem, 2
    while True:
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            folder, number = parent / f"{stem}-{number}", number + 1


def newest_run(parent: Path = Path("runs")) -> Path:
    """The newest run folder in runs/."""
    written = itertools.chain(parent.glob("*/config.toml"), parent.glob("*/matrix.toml"))
    folders = sorted(written, key=lambda path: path.stat().st_mtime)
    if not folders:
        raise RunError(f"{parent}/: no run here yet; `clientwise demo` makes one")
    return folders[-1].parent


def annotate(folder: Path, note: str | None, tags: Sequence[str] | None) -> None:
    """Give a run a note and tags, each where one is given; nothing else in its config changes."""
    written = folder / "config.toml"
    table = read_written(written)
    if not table:
        raise RunError(f"{folder}: not a run of clientwise (it has no config.toml)")
    try:
        table |= {} if note is None else {"note": TypeAdapter(Note).validate_python(note)}
        table |= {} if tags is None else {"tags": TypeAdapter(Tags).validate_python(list(tags))}
    except ValidationError as error:
        raise RunError(f"{folder}: {issues_of(error, {})[0][1]}") from None
    write_atomically(written, tomli_w.dumps(table).encode())


def find_unfinished(experiment: Experiment, parent: Path = Path("runs")) -> Path:
    """The newest run folder in runs/ that was made by this very config."""
    written = [
        path
        for path in parent.glob("*/config.toml")
        if not _changed(read_written(path), experiment.to_dict()) and not is_finished(path.parent)
    ]
    if not written:
        raise RunError(f"{parent}/: no unfinished run of this config; name its folder: clientwise run FOLDER --resume")
    return max(written, key=lambda path: path.stat().st_mtime).parent


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    data: FederatedData | None = None,
    resume: bool = False,
    accept_changes: bool = False,
    on_round: Callable[[Progress], None] | None = None,
    engines: EngineFactory | None = None,
) -> Path:
    """See `launch.run`. Without `engines` all clients are simulated in this process."""
    assert engines or experiment.engine == "local", "`launch.run` knows how to reach other clients"
    if resume and out is not None:
        experiment = _with_what_is_there(Path(out), experiment)
    if data is not None:
        data, experiment = replace(data, samples=scored(experiment, data.samples)), experiment.for_data(data.weigh)
    samples = validate(experiment, data)
    device = pick_device(experiment.device)
    trackers = build_trackers(experiment)
    with ExitStack() as stack:
        try:
            folder = Path(out) if out is not None else new_folder(experiment.name)
            _claim(folder, resume)
            stack.enter_context(locked(folder))
            _prepare(folder, experiment, resume)
        except OSError as error:
            raise RunError(f"{error.filename or out or 'runs'}: cannot be written to: {error.strerror}") from None
        try:
            connect = stack.enter_context(engines) if engines else None
            store = Store(folder)
            stack.callback(store.close)
            seeds = _Seeds(experiment, store, samples, data, device, connect, accept_changes)
            _run_all(experiment, store, samples, data, seeds, trackers, on_round or (lambda progress: None), connect)
            store.refuse_nothing_learned()
        except KeyboardInterrupt:
            raise Stopped(folder) from None
    return folder


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The keys in which two resolved configs differ, but for those that may."""
    one, other = _dotted(before), _dotted(now)
    return sorted(key for key in {*one, *other} - MAY_CHANGE if one.get(key) != other.get(key))


def _only_joined(key: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a key has a value for every client, and all that differs are those of clients at the end."""
    one, other = _dotted(before).get(key, []), _dotted(now).get(key, [])
    by_client = key == "flower.clients" or key.startswith("attributes.")
    return by_client and len(one) < len(other) and other[: len(one)] == one


def _dotted(table: Mapping[str, Any]) -> dict[str, Any]:
    """What a table and the tables in it say, by keys like training.epochs."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= {f"{key}.{name}": item for name, item in _dotted(value).items()}
        else:
            found[key] = value
    return found


def _claim(folder: Path, resume: bool) -> None:
    """Make the folder, so that it can be locked; what is no run of ours is left alone."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if not (folder / "config.toml").is_file():  # the first that a run writes, so it is looked for last
        if names - {".lock", "config.toml.part"}:
            raise RunError(f"{folder}: not empty, and not a run of clientwise")
        if resume and not names:
            raise RunError(f"{folder}: there is no run here to resume; without --resume a new one begins")
    folder.mkdir(parents=True, exist_ok=True)


def _with_what_is_there(folder: Path, experiment: Experiment) -> Experiment:
    """The experiment and what its run folder has already: rounds, seeds and methods may be added, and none is lost."""
    written = folder / "config.toml"
    if not written.is_file():
        return experiment
    before = load_experiment(written)
    mine = {method.name: method for method in experiment.methods}
    for method in before.methods:
        if mine.pop(method.name, method).to_dict() != method.to_dict():
            raise RunError(f"{folder}: was run with another {method.name!r}; give the new one another name")
    grown = {
        "rounds": max(before.rounds, experiment.rounds),
        "seeds": list(dict.fromkeys([*before.seeds, *experiment.seeds])),
        "methods": [*before.methods, *mine.values()],
    }
    return experiment.model_copy(update=grown)


def _prepare(folder: Path, experiment: Experiment, resume: bool) -> None:
    """In a folder that is locked: begin a run, or check that it is the one to go on with."""
    written = folder / "config.toml"
    if written.exists():
        if not resume:
            raise RunError(f"{folder}: there is a run already; go on with --resume, or choose another --out")
        before, now = load_experiment(written).to_dict(), experiment.to_dict()
        changed = _changed(before, now)
        if others := [key for key in changed if key not in MAY_GROW and not _only_joined(key, before, now)]:
            joined = "; names may join flower.clients at its end" if "flower.clients" in others else ""
            raise RunError(
                f"{folder}: was run with another config ({', '.join(others)} differ); "
                f"resume it with its own, or choose another --out{joined}"
            )
        if changed:
            write_atomically(written, experiment.to_toml().encode())
        return
    write_atomically(written, experiment.to_toml().encode())  # first: from here on the folder is a run
    write_atomically(folder / "versions.json", json.dumps(versions(), indent=2).encode())


class _Seeds:
    """What belongs to each seed, made once: its data, its hostile clients, what they are computed on."""

    def __init__(
        self,
        experiment: Experiment,
        store: Store,
        samples: Samples,
        own_data: FederatedData | None,
        device: torch.device,
        connect: Connect | None,
        accept_changes: bool,
    ) -> None:
        self._experiment, self._store = experiment, store
        self._device, self._connect = device, connect
        self._executors: dict[int, tuple[Tensor, DeviceExecutor]] = {}  # one for all, but where samples differ by seed
        built = {seed: build_data(experiment, samples, seed, own_data) for seed in experiment.seeds}
        # All, before any: with other data nothing may begin.
        check_origin(
            store, experiment, {seed: data for seed, (data, _) in built.items()}, accept_changes=accept_changes
        )
        self._made = {seed: self._make(seed, *own) for seed, own in built.items()}

    def _make(
        self, seed: int, data: FederatedData, hostile: dict[int, Hostile]
    ) -> tuple[FederatedData, dict[int, Hostile], DeviceExecutor]:
        attacks = {client: one.name for client, one in hostile.items()}
        sizes = data.train.sizes.tolist(), data.test.sizes.tolist()
        self._store.set_clients(seed, *sizes, attacks, data.names or None)
        inputs = data.samples.inputs
        if id(inputs) not in self._executors:  # the tensor is kept with it, or its id might come to be another's
            self._executors[id(inputs)] = inputs, build_executor(self._experiment, data.samples, self._device)
        executor = self._executors[id(inputs)][1]
        self._store.set_facts({f"model of seed {seed}": _model_facts(self._experiment, data.samples, executor)})
        return replace(data, samples=executor.samples).shares_to(executor.device), hostile, executor

    def data(self, seed: int) -> FederatedData:
        """Who holds what."""
        return self._made[seed][0]

    def executor(self, seed: int) -> DeviceExecutor:
        """Where its clients train."""
        return self._made[seed][2]

    def open_lane(self, seed: int, method: Method, executor: Executor) -> Lane:
        """A method with this seed, where it stands."""
        data, hostile, _ = self._made[seed]
        engine = build_engine(self._experiment, data, hostile, seed, executor, method)
        connected = self._connect(engine, seed) if self._connect else engine
        return Lane(self._experiment, self._store, method, connected, hostile, seed)


def _run_all(
    experiment: Experiment,
    store: Store,
    samples: Samples,
    own_data: FederatedData | None,
    seeds: _Seeds,
    trackers: Trackers,
    on_round: Callable[[Progress], None],
    connect: Connect | None,
) -> None:
    methods, rounds = experiment.build_methods(), experiment.rounds
    store.reopen_lanes(rounds)
    if not _reports_on_clients(experiment, own_data):
        every = experiment.evaluation.clients_every
        store.forget_undue(rounds, every, [method.name for method in methods if method.adjust is None])
    planned = [(seed, method) for seed in experiment.seeds for method in methods]
    todo = [(seed, method) for seed, method in planned if not store.is_lane_finished(method.name, seed)]
    total, done = len(planned) * rounds, (len(planned) - len(todo)) * rounds
    store.keep_fact("begun", f"{datetime.now():%Y-%m-%d %H:%M}")
    store.set_facts(_facts(experiment, samples, own_data, seeds.executor(experiment.seeds[0]), len(planned)))

    def tell(lane: Lane, record: RoundRecord) -> None:
        nonlocal done
        done += 1
        on_round(Progress(lane.method.name, lane.seed, record, rounds, done, total))

    if experiment.workers == "ray":
        lanes = [seeds.open_lane(seed, method, seeds.executor(seed)) for seed, method in todo]
        done += sum(lane.state.round_num for lane in lanes)
        run_on_ray(lanes, experiment.to_dict(), own_data, trackers, tell)
        return
    with threads_for(seeds.executor(experiment.seeds[0]).spec.num_parameters):
        while todo:
            first = todo[0][0]
            executor = seeds.executor(first)
            most = 1 if connect else _lanes_that_fit(executor, methods, seeds.data(first), experiment)
            # All samples in one place take other steps than everybody's: nothing is gained by joining them.
            alike = takewhile(lambda pair: not pair[1].control, todo[:most])
            group = [pair for pair in alike if seeds.executor(pair[0]) is executor] or todo[:1]
            todo = todo[len(group) :]
            scheduler = Scheduler(executor)
            lanes = [
                seeds.open_lane(seed, method, LaneExecutor(scheduler, index) if len(group) > 1 else executor)
                for index, (seed, method) in enumerate(group)
            ]
            done += sum(lane.state.round_num for lane in lanes)
            run_lanes(lanes, scheduler, trackers, tell)


def _facts(
    experiment: Experiment, samples: Samples, own_data: FederatedData | None, executor: DeviceExecutor, lanes: int
) -> dict[str, object]:
    """About the whole run, for whoever reads it."""
    on_clients = _reports_on_clients(experiment, own_data)
    return {
        "name": experiment.name,
        "metric": samples.problem.metric,
        "higher is better": samples.problem.higher_is_better,
        "shows": samples.problem.shows,
        "target": experiment.evaluation.target,
        "client targets": experiment.evaluation.client_targets,
        "rounds": experiment.rounds,
        "lanes": lanes,
        "reported on": "the honest clients' own test data" if on_clients else "held-out samples",
        "computed": str(executor),
        "model_bytes": 4 * executor.spec.size,
    }


def _model_facts(experiment: Experiment, samples: Samples, executor: DeviceExecutor) -> dict[str, object]:
    """What `ModelFacts` reads."""
    return {
        "name": experiment.model_name,
        "input_shape": list(samples.inputs.shape[1:]),
        "outputs": count_outputs(samples),
        "scale": samples.scale,
        "tensors": [[layer.name, layer.shape] for layer in executor.spec.layers],
    }


def _lanes_that_fit(
    executor: DeviceExecutor, methods: Sequence[Method], data: FederatedData, experiment: Experiment
) -> int:
    """How many lanes can train their cohorts as one batched computation."""
    cohort = build_plan(experiment, data.num_clients, experiment.seeds[0]).cohort_size
    largest = int(data.train.sizes.max())
    at_once = min(executor.clients_at_once(method.training, largest) for method in methods)
    return max(1, at_once * executor.workers // cohort) if executor.mode == "stacked" else 1


def _reports_on_clients(experiment: Experiment, own_data: FederatedData | None) -> bool:
    """Whether there are no samples of the server's to report on."""
    server = experiment.server_set
    if own_data is not None:
        return own_data.report is None
    return not experiment.server_holds_samples or (
        server.source == "held_out" and not server.shared_set and server.report_fraction == 0
    )

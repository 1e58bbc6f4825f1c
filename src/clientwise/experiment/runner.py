"""Run an experiment, or go on with one: every method with every seed, round by round, into a run folder."""

from __future__ import annotations

import json
import platform
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ..attacks import Hostile
from ..core.method import Method
from ..core.round import first_state, run_round
from ..core.types import RoundRecord
from ..data.federated import FederatedData, Samples
from ..engine.local import pick_device, threads_for
from ..trackers import LaneInfo, Trackers
from .build import (
    build_data,
    build_engine,
    build_federation,
    build_trackers,
    validate,
)
from .config import load_experiment
from .schema import Experiment
from .store import RunError, Store, is_finished, locked, write_atomically

# Keys that may change when a run is resumed: they change no bit of it.
NO_PART_OF_THE_RESULT = {"data_dir", "plugin_dir", "checkpoint_seconds", "trackers"}


@dataclass(frozen=True)
class Progress:
    """A round has ended."""

    method: str
    seed: int
    record: RoundRecord
    rounds: int  # of this lane
    done: int  # rounds of all lanes so far
    total: int  # rounds of all lanes


def new_folder(name: str, parent: Path = Path("runs")) -> Path:
    """A fresh folder for a run: runs/NAME-DATE-TIME."""
    plain = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name)
    stem = f"{plain}-{datetime.now():%Y%m%d-%H%M%S}"
    folder, number = parent / stem, 2
    while folder.exists():
        folder, number = parent / f"{stem}-{number}", number + 1
    return folder


def newest_run(parent: Path = Path("runs")) -> Path:
    """The newest run folder in runs/."""
    folders = sorted(parent.glob("*/config.toml"), key=lambda path: path.stat().st_mtime)
    if not folders:
        raise RunError(f"{parent}/: no run here yet; `clientwise demo` makes one")
    return folders[-1].parent


def find_unfinished(experiment: Experiment, parent: Path = Path("runs")) -> Path:
    """The newest run folder in runs/ that was made by this very config."""
    written = [
        path
        for path in parent.glob("*/config.toml")
        if not _changed(_read(path), experiment.to_dict()) and not is_finished(path.parent)
    ]
    if not written:
        raise RunError(f"{parent}/: no unfinished run of this config; name its folder: clientwise run FOLDER --resume")
    return max(written, key=lambda path: path.stat().st_mtime).parent


def run(
    config: Experiment | str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    data: FederatedData | None = None,
    resume: bool = False,
    on_round: Callable[[Progress], None] | None = None,
) -> Path:
    """Run an experiment and return its run folder.

    `config` is a TOML file, a dictionary of the same shape, or an experiment already loaded. `data` are your own
    arrays (`FederatedData.from_clients`) instead of the dataset and partition the config names. `resume` goes on
    with a run folder; what it then computes is what an uninterrupted run would have.
    """
    experiment = config if isinstance(config, Experiment) else load_experiment(config)
    folder = Path(out) if out is not None else new_folder(experiment.name)
    device = pick_device(experiment.device)
    samples = validate(experiment, data)
    trackers = build_trackers(experiment)
    try:
        _prepare(folder, experiment, resume)
    except OSError as error:
        raise RunError(f"{folder}: cannot be written to: {error.strerror}") from None
    with locked(folder):
        store = Store(folder)
        try:
            _run_all(experiment, store, samples, data, device, trackers, on_round or (lambda progress: None))
        finally:
            store.close()
    return folder


def _read(path: Path) -> dict[str, Any]:
    """A config as it was written, unchecked: another run's plugins are none of our business."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return {}


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The keys in which two resolved configs differ, if it matters for the result."""
    return sorted(key for key in {*before, *now} - NO_PART_OF_THE_RESULT if before.get(key) != now.get(key))


def _prepare(folder: Path, experiment: Experiment, resume: bool) -> None:
    """Make the folder, or check that it is the one to go on with."""
    written = folder / "config.toml"
    if written.exists():
        if not resume:
            raise RunError(f"{folder}: there is a run already; go on with --resume, or choose another --out")
        before, now = load_experiment(written).to_dict(), experiment.to_dict()
        if changed := _changed(before, now):
            raise RunError(
                f"{folder}: was run with another config ({', '.join(changed)} differ); "
                "resume it with its own, or choose another --out"
            )
        return
    if resume:
        raise RunError(f"{folder}: there is no run here to resume; without --resume a new one begins")
    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder}: not empty, and not a run of clientwise")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(written, experiment.to_toml().encode())  # first: from here on the folder is a run
    versions = {name: version(name) for name in ("clientwise", "torch", "numpy", "pydantic", "safetensors")}
    versions |= {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    write_atomically(folder / "versions.json", json.dumps(versions, indent=2).encode())


def _run_all(
    experiment: Experiment,
    store: Store,
    samples: Samples,
    own_data: FederatedData | None,
    device: torch.device,
    trackers: Trackers,
    on_round: Callable[[Progress], None],
) -> None:
    methods = experiment.build_methods()
    store.set_facts(
        {
            "name": experiment.name,
            "metric": samples.problem.metric,
            "target": experiment.evaluation.target,
            "client targets": experiment.evaluation.client_targets,
            "rounds": experiment.rounds,
            "lanes": len(methods) * len(experiment.seeds),
            "reported on": "the honest clients' own test data"
            if _reports_on_clients(experiment, own_data)
            else "held-out samples",
        }
    )
    total = len(methods) * len(experiment.seeds) * experiment.rounds
    done = 0
    for seed in experiment.seeds:
        data, hostile = build_data(experiment, samples, seed, own_data)
        store.check_fact(f"data of seed {seed}", data.fingerprint())
        names = {client: one.name for client, one in hostile.items()}
        store.set_clients(seed, data.train.sizes.tolist(), data.test.sizes.tolist(), names)
        resident = data.to(device)
        for method in methods:
            lane = _Lane(experiment, store, method, seed, resident, hostile, device)
            lane.run(trackers, on_round, done, total)
            done += experiment.rounds


def _reports_on_clients(experiment: Experiment, own_data: FederatedData | None) -> bool:
    """Whether there are no samples of the server's to report on."""
    server = experiment.server_set
    if own_data is not None:
        return own_data.report is None
    return not experiment.server_holds_samples or (
        server.source == "held_out" and not server.shared_set and server.report_fraction == 0
    )


class _Lane:
    """One method with one seed."""

    def __init__(
        self,
        experiment: Experiment,
        store: Store,
        method: Method,
        seed: int,
        data: FederatedData,
        hostile: Mapping[int, Hostile],
        device: torch.device,
    ) -> None:
        self._experiment, self._store, self._method, self._seed = experiment, store, method, seed
        self._hostile = hostile
        self._lane, self._finished = store.open_lane(method.name, seed)
        if self._finished:
            return
        self._engine = build_engine(experiment, data, hostile, seed, device)
        store.set_facts({"model_bytes": self._engine.initial_model.nbytes})
        self._federation = build_federation(experiment, data.num_clients, seed)
        saved = store.load_checkpoint(self._lane, device)
        if saved is None:
            self._state = first_state(self._engine.initial_model, method, self._engine)
        else:
            self._state, engine_state = saved
            self._engine.load_state(engine_state)
        store.forget_after(self._lane, self._state.round_num)

    def run(self, trackers: Trackers, on_round: Callable[[Progress], None], done: int, total: int) -> None:
        """All rounds that are still to do; a checkpoint now and then, at the end, and when interrupted."""
        if self._finished:
            return
        with threads_for(self._engine.spec.num_parameters):
            self._run_rounds(trackers, on_round, done, total)
        self._store.finish_lane(self._lane)

    def _run_rounds(self, trackers: Trackers, on_round: Callable[[Progress], None], done: int, total: int) -> None:
        rounds, saved_at = self._experiment.rounds, time.monotonic()
        engine_state = self._engine.state()
        config, folder, method = self._experiment.to_dict(), self._store.folder, self._method.name
        trackers.begin(LaneInfo(config, folder, method, self._seed, self._state.round_num))
        try:
            while self._state.round_num < rounds:
                began = time.perf_counter()
                state, record = run_round(self._state, self._method, self._federation, self._engine)
                seconds = time.perf_counter() - began
                self._store.write_round(self._lane, record, self._engine.problem, self._hostile, seconds)
                if trackers:  # before the round counts as done: an interruption here leaves no hole in their curves
                    metric = self._engine.problem.metric
                    trackers.log_round(record, self._store.round_values(self._lane, record.round_num, metric))
                self._state, engine_state = state, self._engine.state()
                if time.monotonic() - saved_at >= self._experiment.checkpoint_seconds:
                    self._store.save_checkpoint(self._lane, state, engine_state)
                    saved_at = time.monotonic()
                on_round(Progress(method, self._seed, record, rounds, done + state.round_num, total))
        finally:
            self._store.save_checkpoint(self._lane, self._state, engine_state)
            trackers.end(finished=self._state.round_num == rounds)

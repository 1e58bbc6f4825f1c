"""What a host keeps on disk: the record of its rounds, and its best model so far."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy
import tomli_w
import torch
from safetensors.torch import save
from torch import Tensor

from ..core.objective.metrics import measured
from ..core.objective.problem import Problem
from ..core.types import Evaluation, RoundRecord
from ..errors import RunError
from ..experiment.config.methods import MethodSettings
from ..experiment.running.about import about_method
from ..experiment.running.origin import machine_facts, record_machine, versions
from ..experiment.running.resume import claim
from ..record.facts import BY_HOST, current_minute, facts_of_run
from ..record.files import BEST, CONFIG, VERSIONS, locked
from ..record.store import Store
from ..writing import make_folder, write_atomically


def refuse_run(folder: Path) -> None:
    """RunError where a folder has a run: its method's memory is lost, so it cannot be continued."""
    if (folder / CONFIG).exists():
        raise RunError(
            f"{folder}: there is a run already, which an aggregator cannot continue. Choose another folder"
        )


class HostRecord:
    """Writes the rounds of one method into a new run folder: `clientwise show` and `report` read it as any other.

    Args:
        folder: the run folder; it must be empty or new.
        settings: the method.
        seed: of its rounds.
        problem: what the model predicts.
        reported_on: the samples that the metric is about, in words.
        num_values: size of a model.
        rounds: how many are planned, if known.
    """

    def __init__(
        self,
        folder: Path,
        settings: MethodSettings,
        seed: int,
        problem: Problem,
        reported_on: str,
        num_values: int,
        rounds: int | None,
    ) -> None:
        self._problem = problem
        self._planned = rounds or 1
        self._seed = seed
        name = folder.resolve().name
        config = {"name": name, "seeds": [seed], "methods": [settings.to_dict()]}
        with ExitStack() as stack:
            refuse_run(folder)
            claim(folder)
            stack.enter_context(locked(folder))
            write_atomically(folder / CONFIG, tomli_w.dumps(config).encode())
            write_atomically(folder / VERSIONS, json.dumps(versions(), indent=2).encode())
            self._store = Store(folder)
            stack.callback(self._store.close)
            record_machine(self._store, machine_facts())
            self._lane = self._store.open_lane(settings.name, seed)
            facts = facts_of_run(
                name,
                problem,
                rounds=self._planned,
                lanes=1,
                num_values=num_values,
                reported_on=reported_on,
                computed=BY_HOST,
            )
            self._store.set_facts(
                facts | {"begun": current_minute(), "methods": [about_method(settings).plain()]}
            )
            self._open = stack.pop_all()

    def write(
        self,
        record: RoundRecord,
        clients: Sequence[str],
        sizes: Sequence[int],
        seconds: float,
    ) -> None:
        """Write a round.

        Args:
            record: what happened.
            clients: the names of all clients so far, by number.
            sizes: how many samples each claims to train on; 0 where it is not known.
            seconds: the time that the server took.
        """
        self._store.set_clients(self._seed, sizes, [0] * len(clients), {}, clients)
        if record.round_num > self._planned:
            self._planned = record.round_num
            self._store.set_facts({"rounds": self._planned})
        self._store.write_round(self._lane, record, self._problem, {}, seconds)

    def close(self) -> None:
        """End the run and close its files."""
        with self._open:
            self._store.finish_lane(self._lane)


class BestModel:
    """Keeps the best model on the server's samples as `best.safetensors`, which says its round and value.

    Args:
        metric: "loss", or the metric of the problem.
        problem: what the model predicts.
        folder: of the record.
    """

    def __init__(self, metric: str, problem: Problem, folder: str | Path | None) -> None:
        known = ("loss", problem.metric)
        if metric not in known:
            raise ValueError(f"keep_best = {metric!r}: must be one of {', '.join(known)}")
        if folder is None:
            raise ValueError("keep_best needs a place: give `folder`")
        self._metric = metric
        self._lower = metric == "loss" or measured(metric).is_error
        self._file = Path(folder) / BEST
        self._best = math.inf if self._lower else -math.inf

    def offer(self, found: Evaluation, model: Mapping[str, Any], round_num: int) -> None:
        """Keep a model where it is the best so far. Of equal values, the first is kept; NaN never is.

        Args:
            found: its evaluation on the server's samples.
            model: NumPy arrays or tensors by name.
            round_num: the round after which it is the global model.
        """
        values = found.overall_loss() if self._metric == "loss" else found.overall()
        value = float(values[0])
        is_better = value < self._best if self._lower else value > self._best
        if not is_better or not math.isfinite(value):
            return
        self._best = value
        header = {"metric": self._metric, "value": str(value), "round_num": str(round_num)}
        make_folder(self._file.parent)
        tensors = {name: _tensor(array) for name, array in model.items()}
        write_atomically(self._file, save(tensors, header))


def _tensor(array: Any) -> Tensor:
    """A copy: tensors of a state may share memory, which a safetensors file cannot."""
    if isinstance(array, Tensor):
        return array.detach().cpu().clone().contiguous()
    return torch.from_numpy(numpy.array(array, order="C"))

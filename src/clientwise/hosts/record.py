"""What a host keeps on disk: the record of its rounds, and its best model so far."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy
import tomli_w
import torch
from safetensors.torch import save
from torch import Tensor

from ..core.objective.metrics import METRICS, measured
from ..core.objective.problem import Problem
from ..core.types import RoundRecord
from ..errors import RunError
from ..experiment.running.origin import machine_facts, record_machine, versions
from ..experiment.running.resume import claim
from ..record.facts import BY_HOST, MethodFacts, current_minute, facts_of_run
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
        config: what is known of the run, as a config has it: name, seeds, methods.
        about: the method.
        problem: what the model predicts.
        reported_on: the samples that the metric is about, in words.
        num_values: size of a model.
        rounds: how many are planned, if known.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        about: MethodFacts,
        problem: Problem,
        reported_on: str,
        num_values: int,
        rounds: int | None,
    ) -> None:
        self._problem = problem
        self._planned = rounds or 1
        (method,) = config["methods"]
        (self._seed,) = config["seeds"]
        with ExitStack() as stack:
            refuse_run(folder)
            claim(folder, resume=False)
            stack.enter_context(locked(folder))
            write_atomically(folder / CONFIG, tomli_w.dumps(config).encode())
            write_atomically(folder / VERSIONS, json.dumps(versions(), indent=2).encode())
            self._store = Store(folder)
            stack.callback(self._store.close)
            record_machine(self._store, machine_facts())
            self._lane = self._store.open_lane(method["name"], self._seed)
            facts = facts_of_run(
                config["name"],
                problem,
                rounds=self._planned,
                lanes=1,
                num_values=num_values,
                reported_on=reported_on,
                computed=BY_HOST,
            )
            self._store.set_facts(facts | {"begun": current_minute(), "methods": [about.plain()]})
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


@dataclass(frozen=True)
class Best:
    """Which model is kept, and why."""

    metric: str
    value: float
    round_num: int  # 0: the initial model
    lower: bool  # whether lower values are better


class BestModel:
    """Keeps the best model as `best.safetensors`, which holds the round and the value as well.

    Args:
        wanted: a metric, such as "accuracy"; "lowest NAME" or "highest NAME" for one that is not built in.
        folder: of the record.
    """

    def __init__(self, wanted: str, folder: str | Path | None) -> None:
        self.metric, self._lower = _direction(wanted)
        if folder is None:
            raise ValueError("keep_best needs a place: give `folder`")
        self._file = Path(folder) / BEST
        self.best: Best | None = None

    def offer(self, model: Mapping[str, Any], value: float, round_num: int) -> None:
        """Keep a model where it is the best so far. Of equal values, the first is kept.

        Args:
            model: NumPy arrays or tensors by name.
            value: of the metric. NaN is never kept.
            round_num: the round after which it is the global model.
        """
        if not math.isfinite(value):
            return
        best = self.best
        if best is not None and not (value < best.value if self._lower else value > best.value):
            return
        self.best = Best(self.metric, float(value), round_num, self._lower)
        header = {key: json.dumps(said) for key, said in asdict(self.best).items()}
        header["metric"] = self.metric
        make_folder(self._file.parent)
        tensors = {name: _tensor(array) for name, array in model.items()}
        write_atomically(self._file, save(tensors, header))


def _direction(wanted: str) -> tuple[str, bool]:
    """The metric, and whether lower values are better.

    >>> _direction("accuracy"), _direction("lowest brier")
    (('accuracy', False), ('brier', True))
    """
    if wanted == "loss":
        return wanted, True
    if wanted in METRICS:
        return wanted, measured(wanted).is_error
    order, _, metric = str(wanted).partition(" ")
    if order not in ("lowest", "highest") or not metric:
        raise ValueError(f'keep_best: say "highest {wanted}" or "lowest {wanted}"')
    return metric, order == "lowest"


def _tensor(array: Any) -> Tensor:
    """A copy: tensors of a state may share memory, which a safetensors file cannot."""
    if isinstance(array, Tensor):
        return array.detach().cpu().clone().contiguous()
    return torch.from_numpy(numpy.array(array, order="C"))

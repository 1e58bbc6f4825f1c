"""What a host keeps on disk: the record of its rounds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import tomli_w

from ..core.objective.problem import Problem
from ..core.types import RoundRecord
from ..errors import RunError
from ..experiment.config.methods import MethodSettings
from ..experiment.running.about import about_method
from ..experiment.running.origin import machine_facts, record_machine, versions
from ..experiment.running.resume import claim
from ..record.facts import BY_HOST, current_minute, facts_of_run
from ..record.files import CONFIG, VERSIONS, locked
from ..record.store import Store
from ..writing import write_atomically


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

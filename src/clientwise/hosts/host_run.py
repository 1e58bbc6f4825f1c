"""The run folder of a host's rounds: `clientwise show` and `report` read it as any other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tomli_w

from ..core.objective.problem import Problem
from ..core.types import RoundRecord
from ..errors import RunError
from ..experiment.running.origin import machine_facts, record_machine, versions
from ..experiment.running.resume import claim
from ..record.facts import BY_HOST, MethodFacts, current_minute, facts_of_run
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
    """Writes the rounds of one method into a new run folder.

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

"""Reading a run folder: facts, lanes and frames. Anybody may have made it: nothing is imported or unpickled."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pandas
from pydantic import TypeAdapter, ValidationError

from ..errors import NotBegunError, RunError, shortened
from ..registry import suggest
from .database import CLIENTS, DATABASE, readable, reading, unpack
from .facts import MODEL_OF_SEED, MethodFacts, ModelFacts, RunFacts
from .files import CONFIG, checkpoint_path, is_locked, read_table
from .tables import CRITERIA, FRAMES, NORMALISED, RAW

if TYPE_CHECKING:
    from torch import Tensor

ROUNDS = "rounds"
WEIGHTS = "weights"
KEYS = ["method", "seed", "round"]
COLUMNS = {name: list(columns) for name, columns in FRAMES.items()}
COLUMNS |= {
    CRITERIA: ["client", "criterion", "raw", "normalised"],
    CLIENTS: ["client", "name", "num_train", "num_test", "hostile"],
    ROUNDS: [],
}
NEEDED = {name for name, field in RunFacts.model_fields.items() if field.is_required()}

_MODEL = TypeAdapter(ModelFacts)


class RunFolder:
    """A run folder, read-only. The run may still be going: this is how far it was when it was opened."""

    def __init__(self, folder: str | Path, name: str | None = None) -> None:
        """Open a run folder; `name` is what pages and comparisons call it."""
        self.folder = Path(folder)
        self.id = name or self.folder.resolve().name
        self._refuse_other_folders()
        with self._explained(), reading(self.folder) as database:
            self._read_facts(database)
            self.lanes = _lanes(database)  # lane, method, seed, finished, rounds
        if len(self.lanes) > self.facts.lanes:
            raise self._damage(f"{len(self.lanes)} lanes of {self.facts.lanes}")
        self._frames: dict[str, pandas.DataFrame] = {}

    @property
    def methods(self) -> list[str]:
        """The methods in the order they ran."""
        return list(self.lanes["method"].unique())

    @property
    def finished(self) -> bool:
        """Whether all lanes have ended."""
        return int(self.lanes["finished"].sum()) == self.facts.lanes

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved config with every default; empty where it cannot be read."""
        return read_table(self.folder / CONFIG)

    def about(self, method: str) -> MethodFacts:
        """What a method is."""
        self._refuse_unknown(method)
        with self._explained():
            return {one.name: one for one in self.facts.methods}[method]

    def seeds(self, method: str) -> list[int]:
        """The seeds of a method."""
        return [int(seed) for seed in self.lanes.loc[self.lanes["method"] == method, "seed"]]

    def lane(self, method: str, seed: int) -> int:
        """The number of a method and seed in the database."""
        self._refuse_unknown(method)
        own = self.lanes[(self.lanes["method"] == method) & (self.lanes["seed"] == seed)]
        if own.empty:
            known = ", ".join(map(str, self.seeds(method)))
            raise RunError(f"{self.id}: no seed {seed} of {method}; known: {known}")
        return int(own["lane"].iloc[0])

    def frame(self, name: str) -> pandas.DataFrame:
        """All rows of a kind, a new frame each time; docs/frames.md lists the columns.

        Args:
            name: "rounds", "weights", "criteria", "local", "refusals", "clients" or "steps".
        """
        if name not in COLUMNS:
            raise RunError(f"{self.id}: no frame {name!r}{suggest(name, COLUMNS)}")
        if name not in self._frames:
            with self._explained():
                self._frames[name] = self._read_frame(name)
        return self._frames[name].copy()

    # Models ---------------------------------------------------------------------------------------

    def model_facts(self, seed: int) -> ModelFacts:
        """The network of a seed, and the tensors that its models consist of."""
        with self._explained(), reading(self.folder) as database:
            sql = "SELECT value FROM facts WHERE key = ?"
            row = database.execute(sql, (f"{MODEL_OF_SEED}{seed}",)).fetchone()
            if row is not None:
                return _MODEL.validate_json(row[0])
        raise RunError(
            f"{self.id}: the record does not describe a model. Runs of `cw.Aggregator` have none: the "
            "framework keeps it"
        )

    def trained(self, method: str, seed: int) -> tuple[int, dict[str, Tensor]]:
        """The last round or, with `keep = "best"`, the best one, and the tensors of the model after it by name."""
        from .checkpoint import load_model  # PyTorch, which no other reader needs

        path = checkpoint_path(self.folder, self.lane(method, seed))
        about = self.model_facts(seed)
        if not path.exists():
            raise RunError(f"{self.id}: {method}, seed {seed}, has kept no model yet")
        round_num, vector = load_model(path)
        if vector.numel() != about.size:
            raise RunError(f"{path}: not a checkpoint of this run (its model has another size)")
        return round_num, about.named(vector)

    # The database ---------------------------------------------------------------------------------

    def _refuse_unknown(self, method: str) -> None:
        if method not in self.methods:
            raise RunError(f"{self.id}: no method {method!r}{suggest(method, self.methods)}")

    def _read_frame(self, name: str) -> pandas.DataFrame:
        columns = COLUMNS[name]
        if name == CLIENTS:
            clients = self._unpacked(CLIENTS).rename(columns={"lane": "seed"})
            return clients.reindex(columns=["seed", *columns])
        found = self._read_rounds() if name == ROUNDS else self._unpacked(name)
        if name == WEIGHTS:
            refused = self._unpacked("refusals").rename(columns={"reason": "refusal"})
            refused = refused.drop(columns="kind", errors="ignore")
            found = pandas.concat([found.assign(refusal=None), refused])
            columns = ["client", "refusal", *columns[1:]]
        order = ["lane", "round"]
        by_client = "client" in columns
        if by_client:
            columns = ["client", "name", "hostile", *columns[1:]]
            order.append("client")
        if found.empty:
            return pandas.DataFrame(columns=[*KEYS, *columns])
        found = found.merge(self.lanes.drop(columns="finished"), on="lane")
        found = found[found["round"] <= found["rounds"]]  # of this lane, when the folder was opened
        if by_client:
            clients = self.frame(CLIENTS)[["seed", "client", "name", "hostile"]]
            found = found.merge(clients, "left", ["seed", "client"])
        found = found.sort_values(order, kind="stable", ignore_index=True)
        found = found.drop(columns=["lane", "rounds"])
        first = [*KEYS, *columns]
        others = [column for column in found if column not in first]
        return found.reindex(columns=[*first, *others])

    def _read_rounds(self) -> pandas.DataFrame:
        with reading(self.folder) as database:
            rows = database.execute("SELECT lane, round, value FROM rounds").fetchall()
        values = [
            {"lane": lane, "round": number, **json.loads(text)} for lane, number, text in rows
        ]
        return pandas.DataFrame(values)

    def _unpacked(self, name: str) -> pandas.DataFrame:
        """The frames of a name, below each other."""
        with reading(self.folder) as database:
            sql = "SELECT lane, round, data FROM frames WHERE name = ? ORDER BY lane, round"
            parts = [pandas.DataFrame(one) for one in unpack(database.execute(sql, (name,)))]
        if name == CRITERIA:
            parts = [_a_row_for_each_criterion(part) for part in parts]
        return pandas.concat(parts, ignore_index=True) if parts else pandas.DataFrame()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Whatever is not as this version writes it is a RunError that names the folder."""
        try:
            yield
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise self._damage(f"{first['msg']}, not {first['input']!r}") from None
        except (
            ValueError,
            KeyError,
            TypeError,
            IndexError,
            OverflowError,
            RecursionError,
            zlib.error,
        ) as error:
            raise self._damage(str(error)) from None

    def _damage(self, reason: str) -> RunError:
        return RunError(f"{self.folder}: its database is damaged ({shortened(reason, 200)})")

    # Opening --------------------------------------------------------------------------------------

    def _refuse_other_folders(self) -> None:
        """RunError for what is not a run folder, or one of another format."""
        with readable(self.folder):
            is_folder = self.folder.is_dir()
            has_database = (self.folder / DATABASE).exists()
        if not is_folder:
            raise RunError(f"{self.folder}: no such folder; `clientwise show runs` lists the runs")
        if not has_database:
            if is_locked(self.folder):
                raise NotBegunError(f"{self.folder}: the run is just beginning")
            inside = sorted(path.parent for path in self.folder.glob(f"*/{DATABASE}"))
            if inside:
                several = f"holds {len(inside)} runs: name one of them, such as {inside[0]}"
                raise RunError(f"{self.folder}: {several}")
            raise RunError(f"{self.folder}: not a run of clientwise (it has no {DATABASE})")

    def _read_facts(self, database: sqlite3.Connection) -> None:
        try:
            # A model of a wide table has megabytes, which `model_facts` reads; a resumed run reads the origin.
            sql = f"SELECT key, value FROM facts WHERE key NOT LIKE '{MODEL_OF_SEED}%' AND key != 'origin'"
            rows = database.execute(sql).fetchall()
        except sqlite3.OperationalError:
            if is_locked(self.folder):  # its tables are being made at this moment
                raise NotBegunError(f"{self.folder}: the run is just beginning") from None
            raise
        if not {key for key, _ in rows} >= NEEDED:
            raise NotBegunError(f"{self.folder}: nothing is recorded yet; resume the run")
        found = {key: json.loads(value) for key, value in rows}
        self.facts = RunFacts.model_validate_json(json.dumps(found), strict=True)


def is_finished(folder: Path) -> bool:
    """Whether all lanes of a run have ended."""
    try:
        return RunFolder(folder).finished
    except RunError:
        return False  # not begun, or damaged: resuming it says so


def _lanes(database: sqlite3.Connection) -> pandas.DataFrame:
    """How far every lane is."""
    rows = database.execute(
        """SELECT lane, method, seed, finished, COUNT(round), COALESCE(MAX(round), 0)
           FROM lanes LEFT JOIN rounds USING (lane) GROUP BY lane ORDER BY lane"""
    ).fetchall()
    found = []
    for lane, method, seed, finished, count, last in rows:
        planned = last if finished is None else finished
        if not isinstance(method, str) or not isinstance(seed, int) or not count == last == planned:
            raise ValueError(f"{count} of {planned} rounds of {method}, seed {seed!r}")
        found.append((lane, method, seed, finished is not None, count))
    return pandas.DataFrame(found, columns=["lane", "method", "seed", "finished", "rounds"])


def _a_row_for_each_criterion(part: pandas.DataFrame) -> pandas.DataFrame:
    names = [column.removeprefix(RAW) for column in part if str(column).startswith(RAW)]
    found = [
        part[["lane", "round", "client"]].assign(
            criterion=name, raw=part[f"{RAW}{name}"], normalised=part[f"{NORMALISED}{name}"]
        )
        for name in names
    ]
    return cast(pandas.DataFrame, pandas.concat(found).sort_index(kind="stable"))

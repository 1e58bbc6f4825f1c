"""Reading a run folder: facts, lanes and frames. Anybody may have made it: nothing is imported or unpickled."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import pandas
from pydantic import TypeAdapter, ValidationError

from ..errors import NotBegunError, RunError, shortened
from ..registry import suggest
from .database import CLIENTS, DATABASE, RIGHT, reading
from .facts import (
    DATA_OF_SEED,
    MODEL_OF_SEED,
    NEW_DATA_OF_SEED,
    MethodFacts,
    ModelFacts,
    RunFacts,
)
from .files import CONFIG, checkpoint_path, is_locked, kept_path, kept_rounds
from .frames import unpack
from .tables import CRITERIA, FRAMES, NORMALISED, RAW
from .toml_text import read_table

if TYPE_CHECKING:
    from torch import Tensor

After = int | Literal["best"] | None  # the round of a model; None is the last one
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

_FACTS = TypeAdapter(RunFacts)
_MODEL = TypeAdapter(ModelFacts)


class RunFolder:
    """A run folder, read-only. The run may still be going: this is how far it was when it was opened."""

    def __init__(self, folder: str | Path, name: str | None = None) -> None:
        """Open a run folder; `name` is what pages and comparisons call it."""
        self.folder = Path(folder)
        self.id = name or self.folder.resolve().name
        self._refuse_other_folders()
        with self._explained(), self._reading() as database:
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
            name: "rounds", "weights", "criteria", "local", "refusals", "clients", "steps" or "other_weights".
        """
        if name not in COLUMNS:
            raise RunError(f"{self.id}: no frame {name!r}{suggest(name, COLUMNS)}")
        if name not in self._frames:
            with self._explained():
                self._frames[name] = self._read_frame(name)
        return self._frames[name].copy()

    def right(self, method: str, seed: int) -> tuple[int, Any] | None:
        """The best round by the reported metric, and which samples [N] its model classified correctly."""
        with self._explained():
            found = self._unpacked(RIGHT)
            if found.empty:
                return None
            own = found[found["lane"] == self.lane(method, seed)]
            best = own[own["round"] == own["round"].max()]
            return (int(best["round"].iloc[0]), best[RIGHT].to_numpy()) if len(best) else None

    # Models ---------------------------------------------------------------------------------------

    def kept_rounds(self, method: str, seed: int) -> list[int]:
        """The rounds after which the model was kept (`keep_every`), beside the last one's."""
        return kept_rounds(self.folder, self.lane(method, seed))

    def model_facts(self, seed: int) -> ModelFacts:
        """The network of a seed, and the tensors that its models consist of."""
        with self._explained(), self._reading() as database:
            sql = "SELECT value FROM facts WHERE key = ?"
            row = database.execute(sql, (f"{MODEL_OF_SEED}{seed}",)).fetchone()
            if row is not None:
                return _MODEL.validate_json(row[0])
        raise RunError(
            f"{self.id}: the record does not describe a model. Runs of `cw.Aggregator` have none: the "
            "framework keeps it"
        )

    def trained(self, method: str, seed: int, after: After = None) -> tuple[int, dict[str, Tensor]]:
        """A trained model.

        Args:
            method: the method.
            seed: the seed.
            after: the round after which it was kept, or "best": by its held-out loss with `keep = "best"`,
                otherwise by the reported metric. By default the last one, or the best with `keep = "best"`.

        Returns:
            The round, and the model's tensors by name.
        """
        lane = self.lane(method, seed)
        about = self.model_facts(seed)
        path = self._model_path(lane, after)
        if path is None:
            kept = ", ".join(map(str, kept_rounds(self.folder, lane)))
            known = f"kept are those after {kept}" if kept else "`keep_every` keeps more than one"
            raise RunError(
                f"{self.id}: {method}, seed {seed}, has no model of round {after}: {known}"
            )
        if not path.exists():
            raise RunError(f"{self.id}: {method}, seed {seed}, has kept no model yet")
        if path.is_symlink() or path.parent.is_symlink():
            raise RunError(f"{path}: leads out of the run folder, through a link")
        from .checkpoint import load_model  # PyTorch, which no other reader needs

        round_num, vector = load_model(path, best=not isinstance(after, int))
        if vector.numel() != about.size:
            raise RunError(f"{path}: not a checkpoint of this run (its model has another size)")
        return round_num, about.named(vector)

    def _model_path(self, lane: int, after: After) -> Path | None:
        """The file of a model; None where it is not kept."""
        kept = kept_rounds(self.folder, lane)
        row = self.lanes.set_index("lane").loc[lane]
        has_best = after == "best" and self.config.get("keep") == "best"
        is_last = bool(row["finished"]) and after == row["rounds"] and after not in kept
        if after is None or has_best or is_last:
            return checkpoint_path(
                self.folder, lane
            )  # the last model and, with `keep`, the best one
        if after == "best":
            rounds = self.frame(ROUNDS)
            own = rounds[(rounds["method"] == row["method"]) & (rounds["seed"] == row["seed"])]
            metric = own[own["round"].isin(kept)].set_index("round")["metric"].dropna()
            if metric.empty:
                return None
            after = int(metric.idxmax() if self.facts.higher_is_better else metric.idxmin())
        return kept_path(self.folder, lane, after) if after in kept else None

    # The database ---------------------------------------------------------------------------------

    def _refuse_unknown(self, method: str) -> None:
        if method not in self.methods:
            raise RunError(f"{self.id}: no method {method!r}{suggest(method, self.methods)}")

    def _read_frame(self, name: str) -> pandas.DataFrame:
        columns = COLUMNS[name]
        if name == CLIENTS:
            clients = self._unpacked(CLIENTS).rename(columns={"lane": "seed"})
            return clients.reindex(columns=["seed", *columns])
        change = _a_row_for_each_criterion if name == CRITERIA else None
        found = self._read_rounds() if name == ROUNDS else self._unpacked(name, change)
        if name == WEIGHTS:
            refused = self._unpacked("refusals").rename(columns={"reason": "refusal"})
            refused = refused.drop(columns="kind", errors="ignore")
            found = pandas.concat([found.assign(refusal=None), refused])
            columns = ["client", "refusal", *columns[1:]]
        by_client = "client" in columns
        if by_client:
            columns = ["client", "name", "hostile", *columns[1:]]
        if found.empty:
            return pandas.DataFrame(columns=[*KEYS, *columns])
        lanes = self.lanes.set_index("lane")
        found = found[found["round"] <= found["lane"].map(lanes["rounds"])]
        found["method"] = found["lane"].map(lanes["method"])
        found["seed"] = found["lane"].map(lanes["seed"])
        order = ["lane", "round"]
        if by_client:
            clients = self.frame(CLIENTS)[["seed", "client", "name", "hostile"]]
            found = found.merge(clients, "left", ["seed", "client"])
            order.append("client")
        found = found.sort_values(order, kind="stable", ignore_index=True).drop(columns="lane")
        first = [*KEYS, *columns]
        others = [column for column in found if column not in first]
        return found.reindex(columns=[*first, *others])

    def _read_rounds(self) -> pandas.DataFrame:
        with self._reading() as database:
            rows = database.execute(
                "SELECT lane, round, value FROM rounds ORDER BY lane, round"
            ).fetchall()
        values = json.loads(f"[{','.join(value for *_, value in rows)}]")
        if len(values) != len(rows) or not all(isinstance(value, dict) for value in values):
            raise ValueError("the values of a round are not a JSON object")
        keys = pandas.DataFrame([row[:2] for row in rows], columns=["lane", "round"])
        return pandas.concat([keys, pandas.DataFrame(values)], axis=1)

    def _unpacked(
        self, name: str, change: Callable[[pandas.DataFrame], pandas.DataFrame] | None = None
    ) -> pandas.DataFrame:
        """The frames of a name, below each other."""
        with self._reading() as database:
            sql = "SELECT lane, round, data FROM frames WHERE name = ? ORDER BY lane, round"
            parts = [pandas.DataFrame(one) for one in unpack(database.execute(sql, (name,)))]
        if change is not None:
            parts = [change(part) for part in parts]
        return pandas.concat(parts, ignore_index=True) if parts else pandas.DataFrame()

    def _reading(self) -> Any:
        return reading(self.folder)

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
        ) as error:
            raise self._damage(str(error)) from None

    def _damage(self, reason: str) -> RunError:
        return RunError(f"{self.folder}: its database is damaged ({shortened(reason, 200)})")

    # Opening --------------------------------------------------------------------------------------

    def _refuse_other_folders(self) -> None:
        """RunError for what is not a run folder, or one of another format."""
        try:
            is_folder = self.folder.is_dir()
            has_database = (self.folder / DATABASE).exists()
        except OSError as error:
            raise RunError(f"{self.folder}: cannot be read ({error.strerror})") from None
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
            # A model of a wide table has megabytes, which `model_facts` reads. The origin has a
            # fingerprint of every client, which a resumed run reads.
            sql = f"SELECT key, value FROM facts WHERE key NOT LIKE '{MODEL_OF_SEED}%' AND key != 'origin'"
            rows = database.execute(sql).fetchall()
        except sqlite3.OperationalError:
            if is_locked(self.folder):  # its tables are being made at this moment
                raise NotBegunError(f"{self.folder}: the run is just beginning") from None
            raise
        if not {key for key, _ in rows} >= NEEDED:
            raise NotBegunError(f"{self.folder}: nothing is recorded yet; resume the run")
        found = {key: json.loads(value) for key, value in rows}
        found |= {
            "data": _by_seed(found, DATA_OF_SEED),
            "new_data": _by_seed(found, NEW_DATA_OF_SEED),
        }
        known = {key: value for key, value in found.items() if key in RunFacts.model_fields}
        self.facts = _FACTS.validate_json(json.dumps(known), strict=True)


def _by_seed(facts: dict[str, Any], prefix: str) -> dict[int, Any]:
    own = [(key, value) for key, value in facts.items() if key.startswith(prefix)]
    return {int(key.removeprefix(prefix)): value for key, value in own}


def _lanes(database: sqlite3.Connection) -> pandas.DataFrame:
    """How far every lane is."""
    rows = database.execute(
        """SELECT lane, method, seed, finished IS NOT NULL, COUNT(round), COALESCE(MAX(round), 0)
           FROM lanes LEFT JOIN rounds USING (lane) GROUP BY lane ORDER BY lane"""
    ).fetchall()
    for _, method, seed, _, count, last in rows:
        if not isinstance(method, str) or not isinstance(seed, int) or count != last:
            raise ValueError(f"lane {method!r}, seed {seed!r}: {count} rounds until round {last}")
    columns = ["lane", "method", "seed", "finished", "rounds"]
    return pandas.DataFrame([row[:5] for row in rows], columns=columns).astype({"finished": bool})


def _a_row_for_each_criterion(part: pandas.DataFrame) -> pandas.DataFrame:
    names = [column.removeprefix(RAW) for column in part if str(column).startswith(RAW)]
    found = [
        part[["lane", "round", "client"]].assign(
            criterion=name, raw=part[f"{RAW}{name}"], normalised=part[f"{NORMALISED}{name}"]
        )
        for name in names
    ]
    return cast(pandas.DataFrame, pandas.concat(found).sort_index(kind="stable"))

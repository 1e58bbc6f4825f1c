"""The models of a run folder: checkpoints to go on from, and models that are kept."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from ..core.objective.problem import Problem
from ..core.types import ServerState
from ..writing import write_atomically
from .checkpoint import load_checkpoint, save_checkpoint
from .files import checkpoint_path, initial_path, kept_path, kept_rounds
from .run_database import RunDatabase


class RunModels(RunDatabase):
    """Writes the checkpoints and the kept models of a run."""

    def save_checkpoint(
        self,
        lane: int,
        state: ServerState,
        engine_state: Mapping[str, Tensor],
    ) -> None:
        """Write all that a lane needs to go on. The old checkpoint stays until the new is whole."""
        # The database must not be behind the checkpoint, not even after a power failure.
        with self._explained():
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            save_checkpoint(self._checkpoint(lane), state, engine_state, self._owner(lane))
        # A lane never goes back behind a checkpoint: of the rounds before it, the best is enough.
        with self._transaction() as database:
            database.execute(
                """DELETE FROM best WHERE lane = :lane AND round_num < (
                       SELECT MAX(round_num) FROM best
                       WHERE lane = :lane AND round_num <= :until)""",
                {"lane": lane, "until": state.round_num},
            )

    def load_checkpoint(
        self,
        lane: int,
        first: ServerState,
    ) -> tuple[ServerState, dict[str, Tensor]] | None:
        """The last checkpoint of a lane that began with `first`, and its engine's state.

        None where the lane has no checkpoint.
        """
        path = self._checkpoint(lane)
        if not path.exists():
            return None
        if self.fact("id") is None:  # the database was cut off
            return load_checkpoint(path, first)
        return load_checkpoint(path, first, self._owner(lane))

    def _owner(self, lane: int) -> str:
        """This lane of this run, and of no other."""
        self.keep_fact("id", secrets.token_hex(8))
        return f"{self.fact('id')} {lane}"

    def keep_initial(self, vector: Tensor) -> None:
        """Keep the parameters that every seed begins with, unless the folder has them."""
        path = initial_path(self.folder)
        with self._explained():
            if not path.exists():
                write_atomically(path, save({"model": vector}))

    def keep_model(self, lane: int, state: ServerState, every: int, problem: Problem) -> None:
        """Keep the model after every so many rounds, and after the best round so far.

        Call it before `save_checkpoint`.
        """
        round_num = state.round_num
        with self._explained():
            if round_num % every == 0 or round_num == self._best_round(lane, round_num, problem):
                model = ServerState(round_num, state.model, state.loss)
                save_checkpoint(kept_path(self.folder, lane, round_num), model, {})

    def drop_models(self, lane: int, until: int, every: int, problem: Problem) -> None:
        """Delete kept models that are no longer the best.

        Call it after `save_checkpoint`, since the rounds after a checkpoint may be run again.
        """
        with self._explained():
            best = self._best_round(lane, until, problem)
            for round_num in kept_rounds(self.folder, lane):
                if round_num < until and round_num != best and round_num % every:
                    kept_path(self.folder, lane, round_num).unlink()

    def _best_round(self, lane: int, until: int, problem: Problem) -> int | None:
        """The first of the best rounds by the reported metric; None where none is measured yet."""
        order = "DESC" if problem.higher_is_better else "ASC"
        row = self._database.execute(
            f"""SELECT round_num FROM rounds
                WHERE lane = ? AND round_num <= ? AND metric IS NOT NULL
                ORDER BY metric {order}, round_num LIMIT 1""",
            (lane, until),
        ).fetchone()
        if row is None:
            return None
        return int(row[0])

    def _checkpoint(self, lane: int) -> Path:
        return checkpoint_path(self.folder, lane)

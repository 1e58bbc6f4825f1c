"""Reading the models of a run: the last one of a lane, and those kept along the way."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import TypeAdapter, ValidationError

from ...data.encoding import Encoding
from ...errors import RunError, shortened
from ..files import checkpoint_path, kept_path, kept_rounds
from .config_view import recorded_config
from .rounds import RoundReader
from .rows import ModelFacts

if TYPE_CHECKING:
    from torch import Tensor

After = int | Literal["best"] | None  # the round of a model; None is the last one

_MODEL = TypeAdapter(ModelFacts)


class ModelReader(RoundReader):
    """The models of a run."""

    def kept_rounds(self, method: str, seed: int) -> list[int]:
        """The rounds after which the model was kept (`keep_every`), beside the last one's."""
        return kept_rounds(self.folder, self.lane(method, seed))

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
        from ..checkpoint import load_model  # PyTorch, which no other reader needs

        self.lane(method, seed)  # RunError where there is none
        about = self.model_facts(seed)
        path = self._model_path(method, seed, after)
        if not path.exists():
            raise RunError(f"{self.id}: {method}, seed {seed}, has kept no model yet")
        if path.is_symlink() or path.parent.is_symlink():
            raise RunError(f"{path}: leads out of the run folder, through a link")
        round_num, vector = load_model(path, best=not isinstance(after, int))
        if vector.numel() != sum(math.prod(shape) for _, shape in about.tensors):
            raise RunError(f"{path}: not a checkpoint of this run (its model has another size)")
        return round_num, about.named(vector)

    def model_facts(self, seed: int) -> ModelFacts:
        """The network of a seed, and the tensors that its models consist of."""
        key = f"model of seed {seed}"
        rows = self._rows(tuple[str], "SELECT value FROM facts WHERE key = ?", key)
        if not rows:
            raise RunError(
                f"{self.id}: the record does not describe a model. Runs of `cw.Aggregator` have none: the "
                "framework keeps it"
            )
        try:
            return _MODEL.validate_json(rows[0][0])
        except ValidationError as error:
            raise self._invalid(error) from None

    def table(self) -> Encoding | None:
        """The columns that the samples of the first seed are made from; None without a table."""
        if not self.lanes:
            return None
        try:
            return self.model_facts(self.lanes[0].seed).table
        except RunError:  # of `cw.Aggregator`
            return None

    def class_names(self, count: int) -> list[str]:
        """So many classes as pages call them: by their names in the table, or their numbers."""
        table = self.table()
        if table is not None and len(table.classes) == count:
            return [shortened(name, 40) for name in table.classes]
        return [f"class {index}" for index in range(count)]

    def _model_path(self, method: str, seed: int, after: After) -> Path:
        lane = self.lane(method, seed)
        if after is None:
            return checkpoint_path(self.folder, lane)
        kept = kept_rounds(self.folder, lane)
        if after == "best" and recorded_config(self.folder).keeps_best:
            return checkpoint_path(self.folder, lane)  # which has it
        if after == self._last_round(method, seed) and after not in kept:
            return checkpoint_path(self.folder, lane)  # the last one is always kept
        wanted = self._best_of(kept, method, seed) if after == "best" else after
        if wanted in kept:
            return kept_path(self.folder, lane, wanted)
        known = "`keep_every` keeps more than one"
        if kept:
            known = f"kept are those after {', '.join(map(str, kept))}"
        raise RunError(f"{self.id}: {method}, seed {seed}, has no model of round {after}: {known}")

    def _last_round(self, method: str, seed: int) -> int | None:
        """The last round of a lane that has ended."""
        for one in self.progress():
            if (one.method, one.seed) == (method, seed) and one.finished:
                return one.rounds
        return None

    def _best_of(self, kept: list[int], method: str, seed: int) -> int | None:
        """The best of the kept rounds by the reported metric; None where none was measured."""
        metrics = dict(self.curve("metric", method, seed))
        measured = [round_num for round_num in kept if round_num in metrics]
        if not measured:
            return None
        pick = max if self.higher_is_better else min
        return pick(measured, key=metrics.__getitem__)

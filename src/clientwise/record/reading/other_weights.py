"""Reading what other weights would have given, round by round."""

from __future__ import annotations

from .reader import RunReader
from .rows import ContributionRow, CounterfactualRow

_COLUMNS = "round_num, kind, excluded, tested, metric, loss, reason"
# As the record has them: a candidate that leaves nobody out, and the samples that the run reports on
NOBODY = -1
REPORTED = -1


class CounterfactualReader(RunReader):
    """The counterfactuals of a run; empty where `evaluation.counterfactuals` was off."""

    def counterfactuals(self, method: str, seed: int, round_num: int) -> list[CounterfactualRow]:
        """Those of a round: on the reported samples first, then on each client's own."""
        return self._lane_rows(
            CounterfactualRow,
            f"""SELECT {_COLUMNS} FROM counterfactuals
                WHERE lane = ? AND round_num = ? ORDER BY tested, kind, excluded""",
            method,
            seed,
            round_num,
        )

    def reported_counterfactuals(self, method: str, seed: int) -> list[CounterfactualRow]:
        """Those of all rounds, on the samples that the run reports on."""
        return self._lane_rows(
            CounterfactualRow,
            f"""SELECT {_COLUMNS} FROM counterfactuals
                WHERE lane = ? AND tested = {REPORTED} ORDER BY round_num, kind, excluded""",
            method,
            seed,
        )

    def contributions(self, method: str, seed: int) -> list[ContributionRow]:
        """The Shapley values of all rounds; empty where `evaluation.shapley` was off."""
        return self._lane_rows(
            ContributionRow,
            """SELECT round_num, client, shapley, error FROM contributions
               WHERE lane = ? ORDER BY round_num, client""",
            method,
            seed,
        )

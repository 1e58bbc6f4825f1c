"""Reading the weights of a run: participants, criteria, evidence and refusals."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import NamedTuple

from ..packed import BY_ROUND, only_clients
from ..sums import clients_per_cell, read_cells
from .reader import RunReader, thinned
from .rows import (
    ArrivedRow,
    ClientRoundRow,
    CriterionRow,
    FalseAlarms,
    LoweredRow,
    OmittedRow,
    ParticipantRow,
    PolicyRow,
    ReasonRow,
    RefusalRow,
    WeightGrid,
)


class _Cell(NamedTuple):
    """Weights of a heat map's row in a column."""

    column: int
    row: int
    mean: float
    total: float


class WeightReader(RunReader):
    """Which client had which weight, and why."""

    def participants(self, method: str, seed: int, round_num: int) -> list[ParticipantRow]:
        """The clients whose updates arrived in a round, from the largest weight to the smallest."""
        return self._lane_rows(
            ParticipantRow,
            """SELECT client, hostile, score, prior, z, posterior, weight, influence, refusal, name,
                   history_z, copies, harm, harm_error
               FROM participants JOIN lanes USING (lane) LEFT JOIN clients USING (seed, client)
                   LEFT JOIN look_back USING (lane, round_num, client)
               WHERE lane = ? AND round_num = ? ORDER BY weight DESC, client""",
            method,
            seed,
            round_num,
        )

    def omitted(self, method: str, seed: int, round_num: int) -> OmittedRow | None:
        """The participants of a round that have no rows; None where all have some."""
        found = self._lane_rows(
            OmittedRow,
            """SELECT accepted, refusals, weight, scores, scales FROM omitted
               WHERE lane = ? AND round_num = ?""",
            method,
            seed,
            round_num,
        )
        return found[0] if found else None

    def omits(self, method: str, seed: int) -> bool:
        """Whether some participants have no rows."""
        lane = self.lane(method, seed)
        return bool(self._rows(tuple[int], "SELECT 1 FROM omitted WHERE lane = ? LIMIT 1", lane))

    def policies(self, method: str, seed: int) -> list[PolicyRow]:
        """The bounds on weights, in the order in which they were in force."""
        return self._lane_rows(
            PolicyRow,
            "SELECT round_num, policy, note FROM policies WHERE lane = ? ORDER BY round_num",
            method,
            seed,
        )

    def criteria(
        self, method: str, seed: int, round_num: int, clients: Sequence[int] | None = None
    ) -> list[CriterionRow]:
        """The criteria measured in a round, of these clients or of all."""
        sql = """SELECT client, criterion, raw, normalised FROM criteria
                 WHERE lane = ? AND round_num = ?"""
        if clients is None:
            return self._lane_rows(CriterionRow, sql, method, seed, round_num)
        sql += " AND client IN (SELECT value FROM json_each(?))"
        with only_clients(clients):
            return self._lane_rows(
                CriterionRow, sql, method, seed, round_num, json.dumps(list(clients))
            )

    def client_rounds(self, method: str, seed: int, client: int) -> list[ClientRoundRow]:
        """Every round in which a client took part."""
        with only_clients([client]):
            return self._lane_rows(
                ClientRoundRow,
                """SELECT round_num, score, prior, z, posterior, weight, influence, training_loss,
                       refusal, history_z, copies, harm, harm_error
                   FROM rounds CROSS JOIN participants USING (lane, round_num)
                       LEFT JOIN look_back USING (lane, round_num, client)
                   WHERE lane = ? AND client = ? ORDER BY round_num, weight""",
                method,
                seed,
                client,
            )

    def lowered_by_evidence(
        self, method: str, seed: int, round_num: int, clients: Sequence[int], threshold: float
    ) -> list[LoweredRow]:
        """The effect of evidence on clients up to a round.

        Args:
            method: the method.
            seed: the seed.
            round_num: the last round to look at.
            clients: the clients to look at.
            threshold: evidence is significant against a client where its z is above this.
        """
        with only_clients(clients):
            return self._lane_rows(
                LoweredRow,
                """WITH known AS (
                       SELECT client, round_num, z, harm, harm_error, history_z, held_out_change,
                           -- by more than rounding; updates that count as one are not lowered by that
                           posterior * MAX(1, COALESCE(copies, 1)) < prior * (1 - 1e-9) AS lowered
                       FROM participants NOT INDEXED LEFT JOIN look_back USING (lane, round_num, client)
                           LEFT JOIN rounds USING (lane, round_num)
                       WHERE lane = ? AND round_num <= ?
                           AND client IN (SELECT value FROM json_each(?))
                           AND posterior IS NOT NULL),
                   turns AS (
                       SELECT *,
                           MAX(CASE WHEN lowered THEN 0 ELSE round_num END) OVER own AS not_lowered,
                           MAX(CASE WHEN z > ? THEN round_num END) OVER own AS last
                       FROM known WINDOW own AS (PARTITION BY client))
                   SELECT client,
                       MIN(CASE WHEN round_num > not_lowered THEN round_num END),
                       last,
                       MAX(CASE WHEN round_num = last THEN z END),
                       MAX(CASE WHEN round_num = last THEN harm END),
                       MAX(CASE WHEN round_num = last THEN harm_error END),
                       MAX(CASE WHEN round_num = last THEN history_z END),
                       MAX(CASE WHEN round_num = last THEN held_out_change END)
                   FROM turns GROUP BY client""",
                method,
                seed,
                round_num,
                json.dumps(list(clients)),
                threshold,
            )

    def false_alarms(self, method: str, seed: int) -> FalseAlarms:
        """How many honest clients ever lost half of their weight by evidence.

        The evidence multiplies the prior weight of a client by a factor. A client is lowered if its
        factor is below half of the largest factor of an honest client of the round, in any round.
        Updates that share the weight of one because they are almost equal are not lowered by that.

        Args:
            method: the method; without evidence, it has no clients to count.
            seed: the seed.
        """
        (found,) = self._lane_rows(
            FalseAlarms,
            """WITH factors AS MATERIALIZED (
                   SELECT round_num, client,
                       posterior * COALESCE(copies, 1) / prior AS factor
                   FROM participants LEFT JOIN look_back USING (lane, round_num, client)
                   WHERE lane = ? AND posterior IS NOT NULL AND client NOT IN (
                       SELECT client FROM clients WHERE seed = ? AND hostile IS NOT NULL)),
               largest AS MATERIALIZED (
                   SELECT round_num, MAX(factor) AS most FROM factors GROUP BY round_num),
               ever AS (
                   SELECT MAX(COALESCE(factor < 0.5 * most, 0)) AS lowered
                   FROM factors JOIN largest USING (round_num) GROUP BY client)
               SELECT COALESCE(SUM(lowered), 0), COUNT(*) FROM ever""",
            method,
            seed,
            seed,
        )
        return found

    def hostile_influences(
        self,
        method: str,
        seed: int,
        max_points: int | None = None,
    ) -> list[tuple[int, float]]:
        """(round, influence of all hostile clients together)."""
        rows = self._rows(
            tuple[int, float],
            f"""SELECT round_num, COALESCE(
                   (SELECT hostile_influence FROM sums
                       WHERE lane = rounds.lane AND round_num = rounds.round_num),
                   (SELECT TOTAL(COALESCE(influence, weight)) FROM {BY_ROUND}
                   WHERE lane = rounds.lane AND round_num = rounds.round_num AND client IN (
                       SELECT client FROM clients WHERE seed = ? AND hostile IS NOT NULL)
                   ) + (SELECT TOTAL(hostile_weight) FROM omitted
                       WHERE lane = rounds.lane AND round_num = rounds.round_num))
               FROM rounds WHERE lane = ? ORDER BY round_num""",
            seed,
            self.lane(method, seed),
        )
        return thinned(rows, max_points)

    def weight_grid(self, method: str, seed: int, max_cells: int) -> WeightGrid | None:
        """The weight of every client over the rounds; None without any.

        Args:
            method: the method.
            seed: the seed.
            max_cells: the most rows, and the most columns.
        """
        lane = self.lane(method, seed)
        ((last, clients),) = self._rows(
            tuple[int | None, int | None],
            """SELECT (SELECT MAX(round_num) FROM rounds WHERE lane = ?),
                      (SELECT MAX(client) + 1 FROM clients WHERE seed = ?)""",
            lane,
            seed,
        )
        if last is None or clients is None or min(last, clients) < 1:
            return None
        rounds_per_cell = math.ceil(last / max_cells)
        size = clients_per_cell(clients, max_cells)
        width = math.ceil(last / rounds_per_cell)
        height = math.ceil(clients / size)
        means: list[list[float | None]] = [[None] * width for _ in range(height)]
        totals = [0.0] * height
        cells = self._cells_of_rows(lane, rounds_per_cell, size)
        cells += self._cells_of_sums(lane, rounds_per_cell, size)
        for column, row, mean, total in cells:
            if 0 <= row < height and column < width:  # rounds may have been added meanwhile
                means[row][column] = mean
                totals[row] += total
        return WeightGrid(rounds_per_cell, size, means, totals)

    def _cells_of_rows(self, lane: int, rounds_per_cell: int, size: int) -> list[_Cell]:
        """Of the rounds that have no sums for cells of this size."""
        return self._rows(
            _Cell,
            f"""WITH unsummed AS MATERIALIZED (
                   SELECT lane, round_num FROM rounds
                   WHERE lane = ? AND (round_num - 1) % ? = 0
                   EXCEPT SELECT lane, round_num FROM sums
                   WHERE lane = ? AND clients_per_cell = ?)
               SELECT (round_num - 1) / ?, client / ?, AVG(weight), TOTAL(weight)
               FROM unsummed CROSS JOIN {BY_ROUND} USING (lane, round_num)
               WHERE weight IS NOT NULL GROUP BY 1, 2""",
            lane,
            rounds_per_cell,
            lane,
            size,
            rounds_per_cell,
            size,
        )

    def _cells_of_sums(self, lane: int, rounds_per_cell: int, size: int) -> list[_Cell]:
        """Of the rounds that have such sums."""
        rows = self._rows(
            tuple[int, bytes],
            """SELECT round_num, cells FROM rounds JOIN sums USING (lane, round_num)
               WHERE lane = ? AND (round_num - 1) % ? = 0 AND clients_per_cell = ?
               ORDER BY round_num""",
            lane,
            rounds_per_cell,
            size,
        )
        found = []
        for round_num, cells in rows:
            try:
                totals, counts = read_cells(cells)
            except ValueError as error:
                raise self._damage(str(error)) from None
            column = (round_num - 1) // rounds_per_cell
            for row in counts.nonzero()[0].tolist():
                total = float(totals[row])
                found.append(_Cell(column, row, total / int(counts[row]), total))
        return found

    def refusals(self, method: str, limit: int) -> list[RefusalRow]:
        """Which clients' updates were refused and why, the most frequent first."""
        return self._rows(
            RefusalRow,
            """SELECT refusal, client, name, seed, COUNT(*), MIN(round_num)
               FROM participants JOIN lanes USING (lane) LEFT JOIN clients USING (seed, client)
               WHERE method = ? AND refusal IS NOT NULL
               GROUP BY refusal, client, seed ORDER BY 5 DESC LIMIT ?""",
            method,
            limit,
        )

    def refusal_counts(self, method: str) -> list[tuple[str, int]]:
        """(reason, how many updates were refused for it)."""
        return self._rows(
            tuple[str, int],
            """SELECT reason, SUM(refused) FROM refusals JOIN lanes USING (lane)
               WHERE method = ? GROUP BY reason""",
            method,
        )

    def arrived(self, method: str) -> ArrivedRow:
        """How many updates arrived in time over all seeds, and how many of them were refused."""
        ((total,),) = self._rows(
            tuple[int],
            f"""SELECT COALESCE(SUM(COALESCE(
                   (SELECT participants FROM sums
                       WHERE lane = rounds.lane AND round_num = rounds.round_num),
                   (SELECT COUNT(*) FROM {BY_ROUND}
                       WHERE lane = rounds.lane AND round_num = rounds.round_num)
                   + (SELECT COALESCE(SUM(accepted), 0) FROM omitted
                       WHERE lane = rounds.lane AND round_num = rounds.round_num)
                   + (SELECT COALESCE(SUM(json_extract(value, '$[1]')), 0)
                       FROM omitted, json_each(refusals)
                       WHERE lane = rounds.lane AND round_num = rounds.round_num))), 0)
               FROM rounds JOIN lanes USING (lane) WHERE method = ?""",
            method,
        )
        reasons = self._rows(
            ReasonRow,
            """SELECT reason, kind, SUM(refused), SUM(honest)
               FROM refusals JOIN lanes USING (lane)
               WHERE method = ? GROUP BY reason, kind ORDER BY 4 DESC, 3 DESC""",
            method,
        )
        absent = sum(row.refused for row in reasons if row.kind == "absent")
        refused = [row for row in reasons if row.kind != "absent"]
        honest = sum(row.honest for row in refused)
        return ArrivedRow(
            arrived=total - absent,
            refused=sum(row.refused for row in refused),
            refused_honest=honest,
            usual=refused[0] if honest else None,
        )

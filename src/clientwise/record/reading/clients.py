"""Reading the clients of a run: their data, and the metric on their own test sets."""

from __future__ import annotations

from pydantic import Json

from ...errors import RunError
from .reader import RunReader
from .rows import ClientMetric, ClientRow, ClientSizes


class ClientReader(RunReader):
    """The clients of a run."""

    def clients(self, seed: int, limit: int = -1) -> list[ClientRow]:
        """The clients of a seed; the first `limit` of them, where that is not negative."""
        return self._rows(
            ClientRow,
            """SELECT client, name, num_train, num_test, hostile FROM clients
               WHERE seed = ? ORDER BY client LIMIT ?""",
            seed,
            limit,
        )

    def client_sizes(self, seed: int) -> ClientSizes:
        """How many clients a seed has, and how many training samples."""
        (found,) = self._rows(
            ClientSizes,
            """SELECT COUNT(*), MIN(num_train), MAX(num_train), SUM(num_train)
               FROM clients WHERE seed = ?""",
            seed,
        )
        return found

    def client(self, seed: int, client: int) -> ClientRow:
        """A client of a seed."""
        rows = self._rows(
            ClientRow,
            """SELECT client, name, num_train, num_test, hostile FROM clients
               WHERE seed = ? AND client = ?""",
            seed,
            client,
        )
        if not rows:
            raise RunError(f"{self.id}: no client {client} under seed {seed}")
        return rows[0]

    def hostile_clients(self, seed: int) -> set[int]:
        """The hostile clients of a seed."""
        sql = "SELECT client FROM clients WHERE seed = ? AND hostile IS NOT NULL"
        rows = self._rows(tuple[int], sql, seed)
        return {client for (client,) in rows}

    def new_data(self, seed: int) -> dict[int, int]:
        """The honest clients whose data changed, and the first round in which each did."""
        rows = self._rows(
            tuple[Json[list[tuple[int, list[int]]]]],
            "SELECT value FROM facts WHERE key = ?",
            f"new data of seed {seed}",
        )
        found: dict[int, int] = {}
        for (changes,) in rows:
            for round_num, clients in changes:
                for client in clients:
                    found.setdefault(client, round_num)
        return found

    def client_curve(self, method: str, seed: int, client: int) -> list[tuple[int, float | None]]:
        """(round, metric) of a client on its own test data."""
        return self._lane_rows(
            tuple[int, float | None],
            """SELECT round_num, metric FROM local
               WHERE lane = ? AND client = ? ORDER BY round_num""",
            method,
            seed,
            client,
        )

    def honest_metrics(self, method: str, seed: int, limit: int) -> list[float]:
        """Metrics of honest clients on their test data, in the last round that evaluates them."""
        lane = self.lane(method, seed)
        rows = self._rows(
            tuple[float | None],
            """SELECT local.metric
               FROM local JOIN clients ON clients.client = local.client AND clients.seed = ?
               WHERE lane = ? AND hostile IS NULL AND round_num = (
                   SELECT MAX(round_num) FROM rounds WHERE lane = ? AND reached IS NOT NULL)
               LIMIT ?""",
            seed,
            lane,
            lane,
            limit,
        )
        return [value for (value,) in rows if value is not None]

    def client_metrics(self, method: str) -> list[ClientMetric]:
        """The same for all seeds of a method, with the clients' numbers and names."""
        return self._rows(
            ClientMetric,
            """SELECT seed, client, name, local.metric
               FROM local JOIN lanes USING (lane) JOIN clients USING (seed, client)
               WHERE method = ? AND hostile IS NULL AND local.metric IS NOT NULL AND round_num = (
                   SELECT MAX(round_num) FROM rounds
                   WHERE lane = lanes.lane AND reached IS NOT NULL)
               ORDER BY seed, client""",
            method,
        )

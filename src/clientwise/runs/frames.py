"""What a run holds as tables of columns, for those who go on in pandas or polars."""

from __future__ import annotations

from typing import Literal

FrameName = Literal["rounds", "clock", "clients", "weights", "criteria"]

_LANE, _CLIENT = "method, seed, round_num", "client, name, hostile"
_OF_CLIENTS = "JOIN lanes USING (lane) LEFT JOIN clients USING (seed, client) ORDER BY lane, round_num, client"
_COLUMNS = {
    "rounds": f"{_LANE}, metric, macro_f1, loss, local_mean, local_p10, local_p90, attack_success, testing_rounds, "
    "models_moved, evaluations, seconds",
    "clock": f"{_LANE}, ended, models_moved",
    "clients": f"{_LANE}, {_CLIENT}, num_train, num_test, metric, loss",
    "weights": f"{_LANE}, {_CLIENT}, refusal, score, prior, z, posterior, weight, influence, training_loss, seconds",
    "criteria": f"{_LANE}, {_CLIENT}, criterion, raw, normalised",
}
_FROM = {
    "rounds": "rounds JOIN lanes USING (lane) ORDER BY lane, round_num",
    "clock": "clock JOIN rounds USING (lane, round_num) JOIN lanes USING (lane) ORDER BY lane, round_num",
    "clients": f"local {_OF_CLIENTS}",
    "weights": f"participants {_OF_CLIENTS}",
    "criteria": f"criteria {_OF_CLIENTS}",
}
# By name: its columns, and the query that finds their rows.
FRAMES: dict[str, tuple[list[str], str]] = {
    name: (columns.replace("round_num", "round").split(", "), f"SELECT {columns} FROM {_FROM[name]}")
    for name, columns in _COLUMNS.items()
}

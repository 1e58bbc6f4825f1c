"""The tables of a run for pandas and polars."""

from __future__ import annotations

from typing import Literal, NamedTuple

FrameName = Literal[
    "rounds", "clock", "clients", "weights", "criteria", "counterfactuals", "contributions"
]

_ROUND = "method, seed, round_num"
_CLIENT = "client, name, hostile"
_BY_CLIENT = "ORDER BY lane, round_num, client"
_OF_CLIENTS = f"JOIN lanes USING (lane) LEFT JOIN clients USING (seed, client) {_BY_CLIENT}"
_STEPS = "score, prior, z, harm, harm_error, posterior, weight, influence"  # from the score to the aggregate
_COMPUTED = {"influence": "COALESCE(influence, weight)"}  # recorded where it is not the weight


class FrameQuery(NamedTuple):
    """The columns of a frame, and the query that finds their rows."""

    names: list[str]
    sql: str


def _frame(columns: str, source: str) -> FrameQuery:
    listed = columns.split(", ")
    names = ["round" if column == "round_num" else column for column in listed]
    values = ", ".join(_COMPUTED.get(column, column) for column in listed)
    return FrameQuery(names, f"SELECT {values} FROM {source}")


FRAMES: dict[str, FrameQuery] = {
    "rounds": _frame(
        f"{_ROUND}, metric, macro_f1, loss, local_mean, local_p10, local_p90, attack_success, "
        "held_out_change, testing_rounds, models_moved, evaluations, seconds",
        "rounds JOIN lanes USING (lane) ORDER BY lane, round_num",
    ),
    "clock": _frame(
        f"{_ROUND}, ended, models_moved",
        """clock JOIN rounds USING (lane, round_num) JOIN lanes USING (lane)
           ORDER BY lane, round_num""",
    ),
    "clients": _frame(
        f"{_ROUND}, {_CLIENT}, num_train, num_test, metric, loss",
        f"local {_OF_CLIENTS}",
    ),
    "weights": _frame(
        f"{_ROUND}, {_CLIENT}, refusal, {_STEPS}, history_z, copies, training_loss, seconds",
        f"participants LEFT JOIN look_back USING (lane, round_num, client) {_OF_CLIENTS}, weight",
    ),
    "criteria": _frame(
        f"{_ROUND}, {_CLIENT}, criterion, raw, normalised",
        f"criteria {_OF_CLIENTS}",
    ),
    "counterfactuals": _frame(
        f"{_ROUND}, kind, excluded, tested, metric, loss, reason",
        """counterfactuals JOIN lanes USING (lane)
           ORDER BY lane, round_num, tested, kind, excluded""",
    ),
    "contributions": _frame(
        f"{_ROUND}, {_CLIENT}, shapley, error",
        f"contributions {_OF_CLIENTS}",
    ),
}

"""What tests read of a run: parts of its frames."""

from __future__ import annotations

import pandas

import clientwise as cw
from clientwise.record.run import COLUMNS

TIMES = ["seconds", "machine"]  # these differ between two runs of one config


def rows(
    run: cw.Run,
    frame: str,
    method: str | None = None,
    seed: int | None = None,
    round_num: int | None = None,
) -> pandas.DataFrame:
    """The rows of a frame that have these keys."""
    found = run.frame(frame)
    for key, value in (("method", method), ("seed", seed), ("round", round_num)):
        if value is not None:
            found = found[found[key] == value]
    return found


def curve(run: cw.Run, value: str, method: str, seed: int = 1) -> dict[int, float]:
    """A value by round, where there is one."""
    found = rows(run, "rounds", method, seed)
    return dict(found.set_index("round")[value].dropna())


def last(run: cw.Run, value: str, seed: int = 1) -> dict[str, float]:
    """A value after the last round, by method."""
    return {method: list(curve(run, value, method, seed).values())[-1] for method in run.methods}


def everything(run: cw.Run) -> dict[str, str]:
    """All that was recorded, to the bit, but for how long it took; in the order of methods and seeds."""
    found = {}
    for name in COLUMNS:
        frame = run.frame(name).drop(columns=TIMES, errors="ignore")
        keys = [key for key in ("seed", "method", "round") if key in frame]
        # Columns are recorded in the order in which lanes first have a value for them.
        found[name] = frame.sort_values(keys, kind="stable").sort_index(axis=1).to_csv(index=False)
    return found

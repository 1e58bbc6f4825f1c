"""No damaged or hostile data file ends in anything but samples or an error that names it, in time and in memory."""

from __future__ import annotations

from pathlib import Path

import damaged
import guarded
import pytest

from fire_share import EVERY


@pytest.mark.fire
def test_damaged_files() -> None:
    cases = [f"{kind} {number}" for kind in damaged.WHOLE for number in range(9)]
    assert guarded.faults("attempts:load", cases) == {}


@pytest.mark.fire
@pytest.mark.timeout(0)
@pytest.mark.parametrize("half", [0, 1])
def test_thousands_of_files_damaged_at_random(half: int) -> None:
    cases = [f"{kind} {number}" for kind in damaged.WHOLE for number in range(0, 100, EVERY)]
    assert guarded.faults("attempts:load", cases[half::2]) == {}


@pytest.mark.fire
@pytest.mark.timeout(0)
def test_a_thousand_tables_nobody_would_call_tidy(tmp_path: Path) -> None:
    cases = [str(number) for number in range(0, 1_000, EVERY)]
    assert guarded.faults("tables:load", cases, CLIENTWISE_CACHE=str(tmp_path)) == {}

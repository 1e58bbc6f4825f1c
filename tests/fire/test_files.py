"""No damaged or hostile data file ends in anything but samples or an error that names it, in time and in memory."""

from __future__ import annotations

import damaged
import guarded
import pytest

PACKED = ("mnist", "movie_reviews", "malaria.zip", "malaria", "npz")


def test_files_that_are_damaged_or_unpack_to_gigabytes() -> None:
    cases = [f"{kind} {number}" for kind in damaged.WHOLE for number in range(9)]
    assert guarded.faults("attempts:load", [*cases, *(f"{kind} bomb" for kind in PACKED)]) == {}


@pytest.mark.fire
def test_thousands_of_files_damaged_at_random() -> None:
    cases = [f"{kind} {number}" for kind in damaged.WHOLE for number in range(170)]
    assert guarded.faults("attempts:load", cases, processes=2) == {}

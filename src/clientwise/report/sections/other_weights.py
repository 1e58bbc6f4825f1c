"""What the updates of every round would have given with other weights."""

from __future__ import annotations

from collections.abc import Sequence

from ..audit.what_if import run_table
from ..document import Section, Table
from ..series import Series


def counterfactuals_section(series: Sequence[Series]) -> Section:
    """One table for every method whose counterfactuals were evaluated."""
    tables: list[Table] = []
    for one in series:
        tables += run_table(one.run, one.method, one.seed, one.label)
    lead = (
        "The same updates with other weights, evaluated in the same pass as the model of the round."
    )
    seed = series[0].seed if tables else None
    return Section("counterfactuals", "Other weights", lead, [*tables], seed)

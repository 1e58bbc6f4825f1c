"""What the rank of LoRA adapters leaves out of the mean of the clients' products."""

from __future__ import annotations

from collections.abc import Sequence

from ..document import Section
from ..lines import line_chart
from ..series import Series

MEANS = (
    "The clients' products B·A have a mean of a higher rank than one adapter. The residual is the part of its "
    "Frobenius norm that the nearest matrix of the adapters' rank leaves out, over all adapted layers. If it is "
    "large, use a larger rank."
)


def adapters_section(series: Sequence[Series]) -> Section:
    """The residual over the rounds, for methods that average products."""
    curves = []
    for one in series:
        of_seeds = [one.run.residuals(one.method, seed) for seed in one.summary.seeds]
        if any(of_seeds):
            curves.append((one, of_seeds))
    if not curves:
        return Section("adapters", "Adapters", "", [])
    chart = line_chart("residual", "Residual of the mean adapter", curves, percent=True)
    return Section("adapters", "Adapters", MEANS, [chart])

"""Two runs of the same experiment, compared method by method and client by client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..record.run import RunFolder
from .differences import difference_between, in_words, signed
from .document import (
    Cell,
    Content,
    Table,
    table,
)
from .sections.clients import by_client
from .series import Series, series_of
from .statistics import (
    Difference,
    holm,
    mean_of,
    paired_difference,
)

NOTE = (
    "Paired by seed: same data, cohorts, batches and initial model. Differences are the counterfactual "
    "run minus the run, with their 95% interval where there are several seeds. Intervals and "
    "significance are corrected for the number of clients (Holm)."
)


def comparison(run: RunFolder, other: RunFolder) -> tuple[list[str], list[Table]]:
    """The other run against the run: sentences, and a table of the clients for every method."""
    ours = {one.method: one for one in series_of([run])}
    sentences = []
    tables = []
    for theirs in series_of([other]):
        one = ours.get(theirs.method)
        if one is None:
            continue
        difference = difference_between(theirs, one)
        if difference is not None:
            words = in_words(difference, run.higher_is_better, one.unit)
            sentences.append(f"{one.label}: {run.metric} is {words}.")
        tables += _clients_table(one, theirs)
    return sentences, tables


def _clients_table(one: Series, theirs: Series) -> list[Table]:
    before = by_client(one)
    after = by_client(theirs)
    names = [name for name in before if name in after]
    if not names:
        return []
    differences = holm([_difference(before[name], after[name]) for name in names])
    rows: list[list[Content]] = []
    for name, difference in zip(names, differences, strict=True):
        mean = mean_of(list(before[name].values()))
        changed = mean_of(list(after[name].values()))
        significant = "significant" if difference.is_significant else ""
        shown = Cell(difference.mean, signed(difference, one.unit))
        rows.append([name, one.unit.cell(mean), one.unit.cell(changed), shown, significant])
    columns = ["client", "run", "counterfactual", "difference", "remark"]
    numeric = [False, True, True, True, False]
    title = f"{one.label}: {one.run.metric} on each client's own test data{one.unit.of_differences}"
    return [table(f"paired-{one.label}", title, columns, rows, NOTE, numeric)]


def _difference(before: Mapping[int, float], after: Mapping[int, float]) -> Difference:
    seeds = sorted(before.keys() & after.keys())
    found = paired_difference(_of(after, seeds), _of(before, seeds))
    return found or Difference(0.0, None, 0)


def _of(values: Mapping[int, float], seeds: Sequence[int]) -> list[float]:
    return [values[seed] for seed in seeds]

"""What a report says of runs."""

from __future__ import annotations

from typing import Any

from clientwise.record.run import RunFolder
from clientwise.report.audit import audit
from clientwise.report.explanation import Explanation, Round
from clientwise.report.items import Chart
from clientwise.report.page import report_sections
from clientwise.report.results import Results
from clientwise.report.terminal import run_items
from clientwise.report.verdict import headline


def record_of(run: Any) -> RunFolder:
    """What reports read of a `cw.Run`."""
    return run if isinstance(run, RunFolder) else RunFolder(run.folder)


def results_of(*runs: Any) -> Results:
    """The methods of runs, compared."""
    return Results([record_of(run) for run in runs])


def headline_of(*runs: Any) -> list[str]:
    """The report's first lines."""
    return headline(results_of(*runs))


def items_of(*runs: Any) -> dict[str, Any]:
    """The tables and charts of a report by their names."""
    found = report_sections(results_of(*runs))
    return {
        item.id: item for items in found.values() for item in items if not isinstance(item, str)
    }


def texts_of(table: Any) -> dict[str, dict[str, str]]:
    """What people read in a table, by its first column."""
    return {row[0]: dict(zip(table.columns[1:], row[1:], strict=True)) for row in table.texts()}


def printed(run: Any) -> list[str]:
    """What the terminal says of a run, besides its table."""
    return [item for item in run_items(record_of(run)) if isinstance(item, str)]


def audited(run: Any, method: str, seed: int, round_num: int) -> str:
    """All words of the audit of a round."""
    found = audit(Round(record_of(run), method, seed, round_num))
    words = [
        item if isinstance(item, str) else f"{[*item.columns]} {item.texts()}"
        for item in found
        if not isinstance(item, Chart)
    ]
    return " ".join(words)


def is_harmful(one: Explanation) -> bool:
    """Whether an update would raise the loss in this round, significantly and beyond the margin."""
    return one.is_significant and one.evidence is not None and one.evidence.witness == "loss"

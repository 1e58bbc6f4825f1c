"""Tables for the terminal."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Sequence

from rich.table import Table

from ..experiment.store import RunError
from ..registry import suggest
from .summary import MethodSummary, Run


def summary_table(run: Run) -> Table:
    """One line per method: mean over the seeds, ± the standard deviation where there are several."""
    lines = run.summary()
    seeds = max((len(line.seeds) for line in lines), default=1)
    rounds = max((count for line in lines for count in line.rounds), default=0)
    title = f"{run.folder.name}: {rounds} rounds" + (f", mean ± deviation of {seeds} seeds" if seeds > 1 else "")
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    for heading, _ in _columns(run, lines):
        table.add_column(heading, justify="right")
    for line in lines:
        table.add_row(line.method, *(cell(line) for _, cell in _columns(run, lines)))
    return table


def _columns(run: Run, lines: Sequence[MethodSummary]) -> list[tuple[str, Callable[[MethodSummary], str]]]:
    """Heading and cell of every column that has something to say about this run."""
    columns: list[tuple[str, Callable[[MethodSummary], str]]] = [(run.metric, lambda line: percent(line.metric))]
    if run.higher_is_better:
        columns.append(("macro F1", lambda line: _mean(line.macro_f1, "{:.3f}")))
    columns.append((f"{run.metric},\nworst decile\nof clients", lambda line: percent(line.worst_decile)))
    if run.target is not None:
        columns.append((f"rounds to\n{run.target:.0%}", _rounds_to_target))
    if run.has_hostile:
        columns.append(("weight of\nthe hostile", lambda line: percent(line.hostile_weight)))
    if any(any(line.testing_rounds) for line in lines):
        columns.append(("testing\nrounds", lambda line: _mean(line.testing_rounds, "{:.0f}")))
    if any(any(line.refused) for line in lines):
        columns.append(("refused\nupdates", lambda line: _mean(line.refused, "{:.0f}")))
    return columns


def remarks(run: Run) -> list[str]:
    """What a reader of the table should know: criteria without effect, rounds that changed nothing, refusals."""
    found = []
    for method in run.methods:
        rows = run.query("SELECT no_effect, notes FROM rounds JOIN lanes USING (lane) WHERE method = ?", method)
        constant = Counter(name for row in rows for name in json.loads(row[0]))
        found += [
            f"{method}: {name} was equal for all clients in {count} of {len(rows)} rounds, where it had no effect"
            for name, count in constant.items()
        ]
        found += [
            f"{method}: {note} ({count} rounds)"
            for note, count in Counter(note for row in rows for note in json.loads(row[1])).items()
        ]
        refusals = run.query(
            """SELECT refusal, COUNT(*) FROM participants JOIN lanes USING (lane)
               WHERE method = ? AND refusal IS NOT NULL GROUP BY refusal""",
            method,
        )
        found += [f"{method}: {count} updates refused: {reason}" for reason, count in refusals]
    if not run.finished:
        found.append("This run is not finished.")
    return found


def audit_tables(run: Run, round_num: int, method: str | None = None) -> list[Table]:
    """Who got which weight in a round, and from which criteria: one table per method and seed."""
    if method is not None and method not in run.methods:
        raise RunError(f"{run.folder}: no method {method!r}{suggest(method, run.methods)}")
    tables = []
    for lane, name, seed in run.lanes:
        row = run.query("SELECT priority, notes FROM rounds WHERE lane = ? AND round_num = ?", lane, round_num)
        if not row or method not in (None, name):
            continue
        order = f", priority {' > '.join(json.loads(row[0][0]))}" if row[0][0] else ""
        tables.append(_audit_table(run, lane, round_num, f"{name}, seed {seed}, round {round_num}{order}"))
    if not tables:
        raise RunError(f"{run.folder}: has no round {round_num} (yet)")
    return tables


def _audit_table(run: Run, lane: int, round_num: int, title: str) -> Table:
    names = [
        name
        for (name,) in run.query(
            "SELECT DISTINCT criterion FROM criteria WHERE lane = ? AND round_num = ?", lane, round_num
        )
    ]
    table = Table(title=title, title_justify="left")
    for heading in ("client", *names, "score", "weight", ""):
        table.add_column(heading, justify="left" if heading == "" else "right")
    people = run.query(
        """SELECT client, hostile, score, weight, refusal FROM participants JOIN lanes USING (lane)
           LEFT JOIN clients USING (seed, client) WHERE lane = ? AND round_num = ? ORDER BY weight DESC, client""",
        lane,
        round_num,
    )
    for client, hostile, score, weight, refusal in people:
        raw = dict(
            run.query(
                "SELECT criterion, raw FROM criteria WHERE lane = ? AND round_num = ? AND client = ?",
                lane,
                round_num,
                client,
            )
        )
        remark = "; ".join(
            filter(None, [f"hostile ({hostile})" if hostile else "", f"refused: {refusal}" if refusal else ""])
        )
        values = [f"{raw[name]:.4g}" if name in raw else "–" for name in names]
        scored = ["–", "–"] if refusal else [f"{score:.4g}", f"{weight:.1%}"]
        table.add_row(str(client), *values, *scored, remark)
    return table


def percent(values: Sequence[float | None]) -> str:
    """The mean of shares as a percentage.

    >>> percent([0.9, 0.92]), percent([None])
    ('91.0% ± 1.4', '–')
    """
    return _mean([None if value is None else 100 * value for value in values], "{:.1f}", "%")


def _mean(values: Sequence[float | None], layout: str, unit: str = "") -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    text = layout.format(statistics.fmean(known)) + unit
    return f"{text} ± {layout.format(statistics.stdev(known))}" if len(known) > 1 else text


def _rounds_to_target(line: MethodSummary) -> str:
    reached = [rounds for rounds in line.rounds_to_target if rounds is not None]
    if not reached:
        return "not reached"
    missing = len(line.seeds) - len(reached)
    text = _mean(reached, "{:.1f}" if len(line.seeds) > 1 else "{:.0f}")
    return f"{text} ({missing} of {len(line.seeds)} not)" if missing else text

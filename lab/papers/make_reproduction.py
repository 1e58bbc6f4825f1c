"""Write the results of run folders beside the published numbers: lab/results/papers and the page of the papers.

    python lab/papers/make_reproduction.py RUNS

RUNS contains the folders p3-1a, p3-1b-paper ... (see lab/run_all.py). All tables of run NAME go into
lab/results/papers/NAME.csv, if the inventory of claims.toml or the page names it, or the file is there.
`<!-- between A B -->` on the page docs/results/reproduction.md compares the methods of run A with those of run B.
What is about runs that are missing in RUNS does not change. Then `lab/papers/make_findings.py` makes the tables of both
pages.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import make_findings
import numpy
import pandas
from p1_tables import TARGETS, best_of, gain_against, mcnemar, rounds_until, until_clients_reach

from clientwise.record.run import RunFolder, is_finished
from clientwise.report.items import counted, percent
from clientwise.report.results import Method, Results, difference_between
from clientwise.report.sections import first_rounds
from clientwise.report.statistics import Difference, paired_difference

RUN = re.compile(r"<!-- run (\S+) -->")
PRESET = re.compile("-(long|quick|grid|rule|criteria|few)$")  # with the tables of its experiment
BETWEEN = re.compile(r"(<!-- between (\S+) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
DEVICES = (20, 30, 40, 50, 70, 75)  # percent of the clients: the columns of P2's Table 1
Row = list[str]


def main(runs: Path, root: Path = make_findings.ROOT) -> None:
    """Write the tables of every run that exists in `runs`."""
    page = root / make_findings.RESULTS
    text = page.read_text(encoding="utf-8")
    recorded = root / make_findings.RECORDED
    published = tomllib.loads((recorded / "published.toml").read_text(encoding="utf-8"))
    claims = tomllib.loads((recorded / "claims.toml").read_text(encoding="utf-8"))
    names = {row["run"].replace(":", "-") for row in claims["inventory"]}
    names |= {name for found in RUN.findall(text) for name in found.split(",")}
    names |= {*(path.stem for path in recorded.glob("*.csv"))}
    for name in sorted(names):
        folder = runs / name
        if not (folder / "run.sqlite").exists():
            continue
        run = RunFolder(folder, name)
        if run.facts.name != name:
            print(f"{name}: skipped, {folder} holds another experiment ({run.facts.name!r})")
            continue
        print(f"{name}: {folder}{'' if run.finished else ' (not finished)'}")
        paper = {} if name.endswith("-grid") else published.get(PRESET.sub("", name), {})
        write_csv(about(run) + tables(run, paper), recorded / f"{name}.csv")

    def fill_between(place: re.Match[str]) -> str:
        one, other = runs / place[2], runs / place[3]
        if not (is_finished(one) and is_finished(other)):
            return place[0]
        return f"{place[1]}\n{markdown(between(RunFolder(one), RunFolder(other)))}\n\n{place[4]}"

    page.write_text(BETWEEN.sub(fill_between, text), encoding="utf-8")


class Table(NamedTuple):
    """A table of texts; the first column names the rows."""

    title: str
    head: Row
    rows: list[Row]


def about(run: RunFolder) -> list[Table]:
    """The size of a run, what it was evaluated on, and its date."""
    found = results_of(run)
    rounds = max(one.last_round for one in found.methods)
    seeds = counted(len(found.methods[0].seeds), "seed")
    facts = {
        "size": f"{seeds}, {counted(rounds, 'round')}",
        "evaluated on": found.facts.reported_on,
        "date": found.facts.begun[:10],
    }
    return [Table("about", ["", "value"], [list(fact) for fact in facts.items()])]


def tables(run: RunFolder, published: dict[str, Any]) -> list[Table]:
    """The results of one run, beside the published numbers."""
    found = results_of(run)
    series = found.methods
    parts = [results(series, published.get("loss"))]
    name = PRESET.sub("", run.facts.name)
    for target in TARGETS.get(name, ()):
        paper = published.get(f"{target:g}", {})
        if "devices" in paper:
            parts.append(devices(series, target, paper["devices"], published["means"]))
        else:
            parts.append(targets(series, target, paper))
    if found.facts.higher_is_better and len(series) > 1:
        parts += best_rounds(series, published.get("contingency", {}))
    return parts


def write_csv(found: list[Table], path: Path) -> None:
    """A line for every cell that is not empty: table, row, column, value."""
    cells = [
        (table.title, row[0], column, value)
        for table in found
        for row in table.rows
        for column, value in zip(table.head[1:], row[1:], strict=True)
        if value
    ]
    frame = pandas.DataFrame(cells, columns=["table", "row", "column", "value"])
    frame.to_csv(path, index=False)


def results_of(run: RunFolder) -> Results:
    """The methods of a run."""
    return Results([run])


def between(run: RunFolder, other: RunFolder) -> Table:
    """What the methods of both runs lose in the second, paired by seed, and the influence of its hostile clients."""
    second = {one.label: one for one in results_of(other).methods}
    rows = []
    for one in results_of(run).methods:
        if one.label not in second:
            continue
        against = second[one.label]
        metric = paired_difference(one.last("metric"), against.last("metric"))
        macro_f1 = paired_difference(one.last("macro_f1"), against.last("macro_f1"))
        if metric is None or macro_f1 is None or one.seeds != against.seeds:
            raise ValueError(
                f"{run.facts.name} and {other.facts.name}: the seeds of {one.label} differ"
            )
        hostile = interval(against.rounds.groupby("seed")["hostile_influence"].mean())
        rows.append([one.label, change(metric, 100), change(macro_f1, digits=3), hostile])
    head = [
        "method",
        f"{results_of(run).facts.metric}, points",
        "macro F1",
        "influence of the hostile",
    ]
    return Table(f"{run.facts.name} minus {other.facts.name}, paired by seed", head, rows)


def results(series: list[Method], losses: dict[str, float] | None = None) -> Table:
    """The metric in several rounds, and its paired difference from the baseline in the last one.

    Args:
        series: the methods; the first one is the baseline.
        losses: the published loss of each method. If given, the table has our losses too.
    """
    facts = series[0].run.facts
    last = max(one.last_round for one in series)
    shown = [number for number in (1, 2, 3, 5, 10, 20, 50, 100, 200, 500) if number < last]
    shown = [
        *(shown if len(shown) < 6 else [1, 5, *(number for number in shown[-3:] if number > 5)]),
        last,
    ]
    head = ["method", *(f"round {number}" for number in shown), "vs. baseline"]
    if "macro_f1" in facts.shows:
        head.append("macro F1")
    if facts.target is not None:
        head.append(f"rounds to {facts.target:.0%}")
    if losses:
        head += ["loss, published", f"loss, round {last}", "loss vs. baseline"]
    if any(one.rounds["testing_rounds"].any() for one in series):
        head.append("testing rounds")
    rows = []
    for one in series:
        at = one.metric.reindex(shown)
        row = [one.label, *(interval(at.loc[number]) for number in shown)]
        difference = difference_between(one, series[0]) if one is not series[0] else None
        row.append(
            change(difference, 100) if difference else "baseline" if one is series[0] else "–"
        )
        if "macro_f1" in facts.shows:
            row.append(interval(one.last("macro_f1"), is_percent=False))
        if facts.target is not None:
            row.append(reached(first_rounds(one, one.metric, facts.target)))
        if losses:
            row += [
                f"{losses[one.label]:g}" if one.label in losses else "",
                *loss_against(one, series[0], last),
            ]
        if "testing rounds" in head:
            row.append(f"{one.rounds['testing_rounds'].sum() / len(one.seeds):.0f}")
        rows.append(row)
    spread = "mean ± half-width of the 95% confidence interval over the seeds"
    return Table(
        f"{facts.metric}: {spread}; differences are paired, in percentage points", head, rows
    )


def loss_against(one: Method, baseline: Method, last: int) -> Row:
    """A method's loss in the last round, and its paired difference from the baseline's in percent."""
    ours, theirs = (method.curve("loss").reindex([last]).iloc[0] for method in (one, baseline))
    mean = paired_difference(ours, [0.0] * len(ours))
    shares = 100 * ours / theirs.reindex(ours.index)
    found = paired_difference(shares, [100.0] * len(shares))
    text = (
        "–"
        if mean is None
        else f"{mean.mean:.4g}" + ("" if mean.margin is None else f" ± {mean.margin:.2g}")
    )
    return [text, "baseline" if one is baseline else "–" if found is None else f"{change(found)} %"]


def targets(series: list[Method], target: float, published: dict[str, Any]) -> Table:
    """P1's tables: rounds until 10 ... 90% of the clients reach a target, and the average gain by P1's rule."""
    found = {one.label: until_clients_reach(one, target) for one in series}
    rows: list[Row] = []
    if published:
        paper = [str(number) if number else "not reached" for number in published["rounds"]]
        rows.append([f"{series[0].label}, published", *paper, "", ""])
    gains = published.get("gains", {})
    for one in series:
        ours = [reached(found[one.label][share]) for share in found[one.label]]
        gain = gain_against(one, series[0], found[one.label], found[series[0].label])
        rows.append(
            [
                one.label,
                *ours,
                f"{gains[one.label]:+.2f}" if one.label in gains else "",
                "baseline" if one is series[0] else change(gain) if gain else "–",
            ]
        )
    head = [
        "method",
        *(f"{share}%" for share in range(10, 100, 10)),
        "gain, published",
        "gain, P1's rule",
    ]
    return Table(f"Rounds until {target_text(series[0], target)}", head, rows)


def devices(
    series: list[Method],
    target: float,
    published: dict[str, list[float]],
    means: dict[str, list[str]],
) -> Table:
    """P2's Table 1: rounds until 20 ... 75% of the clients reach a target, by method and for `means` of methods."""
    methods = {one.label: one for one in series}
    rows: list[Row] = []
    for label, members in ({label: [label] for label in methods} | means).items():
        if label in published:
            rows.append(
                [
                    f"{label}, published",
                    *(f"{rounds:g}" if rounds else "not reached" for rounds in published[label]),
                ]
            )
        if methods.keys() >= {*members}:
            found = []
            for share in DEVICES:
                own = [rounds_until(methods[name], share, target) for name in members]
                found.append(pandas.concat(own))
            rows.append([label, *thirds(found)])
    head = ["method", "20%", "30%", "low", "40%", "50%", "middle", "70%", "75%", "high"]
    return Table(f"P2's Table 1: rounds until {target_text(series[0], target)}", head, rows)


def target_text(one: Method, target: float) -> str:
    """What the clients reach, for the title of a table."""
    return f"the given share of clients reaches {target:.0%} {one.run.facts.metric} on their own test data"


def thirds(rounds: Sequence[pandas.Series]) -> Row:
    """Each pair of shares, followed by the mean of the pair: low, middle and high."""
    cells: Row = []
    for place in (0, 2, 4):
        one, other = rounds[place : place + 2]
        both = pandas.concat([one, other])
        cells += [
            reached(one),
            reached(other),
            "not reached" if both.isna().any() else reached(both),
        ]
    return cells


def best_rounds(series: list[Method], published: dict[str, list[int]]) -> list[Table]:
    """Samples that only one of two methods classifies correctly at its best round, summed over the seeds."""
    baseline = series[0]
    rows = []
    for one in series[1:]:
        pairs = [
            (best_of(one.run, one.name, seed), best_of(baseline.run, baseline.name, seed))
            for seed in one.seeds
        ]
        kept = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
        known = [mcnemar(*pair) for pair in kept]
        if not known:
            return []
        total = pandas.DataFrame([counts for counts, _ in known]).sum()
        paper = published.get(one.label)
        if paper:  # the first counts of their samples, of which the others are not known
            ours, theirs = numpy.repeat([[True, False], [False, True]], paper, axis=1)
            stated = f"{paper[0]} : {paper[1]} (p = {mcnemar(ours, theirs)[1]:.2g})"
        below = sum(p_value < 0.05 for _, p_value in known)
        rows.append(
            [
                one.label,
                stated if paper else "",
                f"{total['only this']} : {total['only the baseline']}",
                str(total["both wrong"]),
                f"{below} of {len(known)}",
            ]
        )
    head = ["method", "published", "measured", "both wrong", "seeds with p < 0.05"]
    title = f"Samples that only one of two methods classifies correctly (method : {baseline.label})"
    return [Table(f"{title}, each at its best round; McNemar's exact test", head, rows)]


def change(difference: Difference, factor: float = 1, digits: int = 1) -> str:
    """A difference ± half-width of its 95% confidence interval."""
    mean = f"{round(factor * difference.mean, digits) + 0.0:+.{digits}f}"  # no −0.0
    return (
        f"{mean} (one seed)"
        if difference.margin is None
        else f"{mean} ± {factor * difference.margin:.{digits}f}"
    )


def interval(values: Sequence[float | None], is_percent: bool = True) -> str:
    """Mean ± half-width of its 95% confidence interval."""
    found = paired_difference(values, [0.0] * len(values))
    if found is None:
        return "–"
    factor, digits = (100, 1) if is_percent else (1, 3)
    mean = percent(found.mean) if is_percent else f"{found.mean:.3f}"
    return mean if found.margin is None else f"{mean} ± {factor * found.margin:.{digits}f}"


def reached(rounds: Sequence[float | None]) -> str:
    """Mean of the rounds that are known, with the number of those not reached."""
    known = [value for value in rounds if value is not None and value == value]
    if not known:
        return "not reached"
    mean = f"{sum(known) / len(known):.1f}".removesuffix(".0")
    return (
        mean
        if len(known) == len(rounds)
        else f"{mean} ({len(rounds) - len(known)} of {len(rounds)} not reached)"
    )


def markdown(table: Table) -> str:
    """A table with its title."""
    rule = [":--", *["--:"] * (len(table.head) - 1)]
    lines = [f"| {' | '.join(line)} |" for line in (table.head, rule, *table.rows)]
    return f"**{table.title}**\n\n" + "\n".join(lines)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs"))
    make_findings.main()

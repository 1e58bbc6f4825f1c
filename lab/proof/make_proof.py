"""The tables of docs/results/proof.md and of the README, from the raw results that collect.py wrote.

    python lab/proof/make_proof.py lab/results/proof.csv.gz

They stand between `<!-- make_proof -->` and `<!-- end -->`. check_proof.py computes the page's numbers a second time.

A federation is one observation: its cells (a column with its share of hostile clients) and seeds are averaged first.
Intervals are Student's over federations; p is corrected for the methods of a table (Holm).
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pandas

from clientwise.report.statistics import Difference, holm, p_number, paired_difference

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "proof.md"
README = ROOT / "README.md"
PLACE = re.compile(r"(<!-- make_proof -->\n).*?(<!-- end -->)", re.DOTALL)
OURS = "Recommended"
ORACLE = "KnowsHonestTuned"
WITHOUT = "Recommended without "  # how the name of an ablation begins
NO_EVIDENCE = "FedAvg, tuned"  # what `Recommended` is without evidence
CONTROLS = ("ServerOnly", "ServerOnly, 5 epochs", "ServerTuning")
AS_IT_IS = "as it is"  # the variant of a federation in which nothing is changed: the third run
SECOND = "second run"  # the same in the run before, on eight federations
WITHIN = 2.0  # points behind the oracle, but for rounding
ROUNDING = 1e-9
# Of the README, in this order
SHOWN = (
    "KnowsHonestTuned",
    OURS,
    "FLTrust, tuned",
    "AlignIns, tuned",
    NO_EVIDENCE,
    "ServerOnly",
    "FedAvg",
)
# Federations on whose data versions of `Recommended` were run before: docs/results/proof.md
TOUCHED = (
    "writers",
    "digit domains",
    "activity",
    "air",
    "tumours",
    "heart",
    "voices",
    "smiles",
    "hair",
    "digits",
    "letters",
)
# Those of the second run on which nothing but the controls of the rule was run before
ADDED = ("airports", "bananas", "boroughs", "collisions", "families")
CELL = ["federation", "attack", "share"]
Rows = Sequence[Sequence[str]]


def main(raw: Path, page: Path, readme: Path) -> None:
    """Write the tables into the pages."""
    rows = pandas.read_csv(raw)
    write(page, "\n\n".join(all_tables(rows)))
    write(readme, readme_table(rows))


def write(page: Path, tables: str) -> None:
    """Put the tables into their place in a page."""
    text = page.read_text(encoding="utf-8")
    page.write_text(
        PLACE.sub(lambda found: f"{found[1]}{tables}\n{found[2]}", text), encoding="utf-8"
    )


def all_tables(raw: pandas.DataFrame) -> Iterator[str]:
    """All tables in Markdown, each under its title."""
    refuse_missing(raw)
    third = raw[raw["variant"] == AS_IT_IS]
    scopes = (
        ("", third, (on_chassis, by_attack, distance, alarms)),
        (", added federations", third[third["federation"].isin(ADDED)], (on_chassis,)),
        (", second run", raw[raw["variant"] == SECOND], (on_chassis, ablation)),
    )
    for scope, rows, tables in scopes:
        if rows.empty:
            continue
        for table in tables:
            yield f"**{TITLES[table]}{scope}**"
            yield table(rows)
    variants = raw[~raw["variant"].isin([AS_IT_IS, SECOND])]
    if not variants.empty:
        yield "**Lead in variants of the federations**"
        yield variants_table(variants)


def refuse_missing(raw: pandas.DataFrame) -> None:
    """ValueError where a method lacks a cell or a seed of a federation and a share with which it was run."""
    runs = raw.groupby(["variant", "federation", "share", "method"])["points"].count()
    expected = runs.xs(OURS, level="method")
    short = runs[runs != expected.reindex(runs.index.droplevel("method")).to_numpy()]
    if len(short):
        missing = [", ".join(map(str, place)) for place in short.index]
        raise ValueError(f"without a result in some cells or seeds: {'; '.join(missing)}")


def cells(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Means over the seeds: a row for every cell, a column for every method."""
    return rows.groupby([*CELL, "method"])["points"].mean().unstack()


def by_federation(values: pandas.Series) -> Difference | None:
    """The mean over federations of the means over their cells."""
    means = values.groupby(level="federation").mean()
    return paired_difference(means.tolist(), [0.0] * len(means))


def by_share(values: pandas.Series) -> dict[float, Difference | None]:
    """Values by cell, over federations, for every share of hostile clients."""
    shares = sorted(values.index.unique("share"))
    own = {share: values.xs(share, level="share").dropna() for share in shares}
    return {share: by_federation(some) if len(some) else None for share, some in own.items()}


def column(share: float) -> str:
    """What heads the cells with a share of hostile clients."""
    return f"{share:.0%} hostile" if share else "clean"


# Tables


def leads_table(rows: pandas.DataFrame, methods: Sequence[str]) -> str:
    """`Recommended` minus every method, the smallest lead under the most hostile clients first."""
    means = cells(rows)
    found = {method: by_share(means[OURS] - means[method]) for method in methods}
    shares = sorted(means.index.unique("share"))
    names = sorted(found, key=lambda name: mean_of(found[name][shares[-1]]))
    lines = {name: [name] for name in names}
    for share in shares:
        run = {name: one for name in names if (one := found[name][share]) is not None}
        corrected = dict(zip(run, holm([*run.values()]), strict=True))
        for name in names:
            one = corrected.get(name)
            lines[name] += ["–", "–"] if one is None else [interval(one), p_number(one.p_value)]
    heads = [head for share in shares for head in (column(share), "p")]
    return markdown(["minus", *heads], [*lines.values()])


def on_chassis(rows: pandas.DataFrame) -> str:
    """Against rivals with the same clipping, steps and fine-tuning, and controls."""
    methods = rows["method"].unique()
    wanted = ("FedAvg", *CONTROLS)
    return leads_table(rows, [one for one in methods if one.endswith(", tuned") or one in wanted])


def by_attack(rows: pandas.DataFrame) -> str:
    """The lead under each attack over the methods that met all, and over the oracle; not planned, so without p."""
    means = cells(rows[rows["share"] > 0])
    methods = [
        one
        for one in means.columns[means.notna().all()]
        if one.endswith(", tuned") or one == ORACLE
    ]
    lines = []
    for share in sorted(means.index.unique("share")):
        own = means.xs(share, level="share")
        for attack in sorted(own.index.unique("attack")):
            leads = own.xs(attack, level="attack")
            found = [by_federation(leads[OURS] - leads[method]) for method in methods]
            lines.append([f"{attack} {share:.0%}", *map(shown, found)])
    return markdown(["attack", *methods], lines)


def ablation(rows: pandas.DataFrame) -> str:
    """Against `Recommended` without one of its parts."""
    methods = [one for one in rows["method"].unique() if one.startswith(WITHOUT)]
    if NO_EVIDENCE in set(rows["method"]):
        methods.append(NO_EVIDENCE)
    return leads_table(rows, methods)


def distance(rows: pandas.DataFrame) -> str:
    """How far usable methods are behind the oracle, the smallest distance under the most hostile clients first."""
    means = cells(rows)
    seconds = rows[rows["share"] == 0].groupby(["federation", "method"])["seconds"].mean().unstack()
    behind = means.rsub(means[ORACLE], axis=0)
    shares = sorted(means.index.unique("share"))
    usable = [one for one in means.columns if one != ORACLE]
    usable.sort(key=lambda one: mean_of(by_share(behind[one])[shares[-1]]))
    lines = []
    for method in usable:
        own = behind[method].dropna()
        line = [method, *map(shown, by_share(behind[method]).values())]
        line.append(shown(by_federation(100.0 * (own <= WITHIN + ROUNDING)), "{:.1f}"))
        line += [f"{own.max():.1f}", place(own.idxmax())]
        line.append(f"{(seconds[method] / seconds['FedAvg']).median():.2f}")
        lines.append(line)
    heads = ["method", *(f"behind, {column(share)}" for share in shares)]
    heads += [f"% of cells within {WITHIN:g} points", "largest", "at", "time / FedAvg"]
    return markdown(heads, lines)


def readme_table(raw: pandas.DataFrame) -> str:
    """Means, and the lead of `Recommended`; empty without the methods that are shown."""
    means = cells(raw[raw["variant"] == AS_IT_IS])
    if not {*SHOWN} <= {*means.columns}:
        return ""
    shares = sorted(means.index.unique("share"))
    lines = []
    for method in SHOWN:
        levels = [
            "–" if one is None else f"{one.mean:.1f}" for one in by_share(means[method]).values()
        ]
        leads = by_share(means[OURS] - means[method]).values()
        label = {OURS: f"**`{OURS}`**", ORACLE: f"{ORACLE} †"}.get(method, method)
        own = ["–"] * len(shares) if method == OURS else map(shown, leads)
        lines.append([label, *levels, *own])
    names = [f"{share:.0%}" for share in shares]
    return markdown(["method", *names, *(f"lead, {name}" for name in names)], lines)


def alarms(rows: pandas.DataFrame) -> str:
    """False alarms and detection of the methods with evidence."""
    shares = sorted(rows["share"].unique())
    lines = []
    for method, own in rows.groupby("method"):
        if own["alarms"].isna().all():
            continue
        line = [str(method)]
        for name, some in (("alarms", shares), ("auroc", shares[1:])):
            for share in some:
                part = own[own["share"] == share].set_index("federation")[name].dropna()
                found = by_federation(100 * part) if len(part) else None
                line.append(shown(found, "{:.1f}"))
        lines.append(line)
    heads = [f"false alarms, {column(share)} (%)" for share in shares]
    heads += [f"AUROC, {column(share)} (%)" for share in shares[1:]]
    return markdown(["method", *heads], lines)


def variants_table(rows: pandas.DataFrame) -> str:
    """The lead over every method in every variant; few federations, so without p."""
    lines = []
    for variant, own in rows.groupby("variant"):
        means = cells(own)
        count = means.index.get_level_values("federation").nunique()
        for method in means.columns.drop(OURS):
            leads = by_share(means[OURS] - means[method]).values()
            lines.append([str(variant), str(count), method, *map(shown, leads)])
    shares = sorted(rows["share"].unique())
    return markdown(["variant", "federations", "minus", *map(column, shares)], lines)


TITLES: dict[Callable[[pandas.DataFrame], str], str] = {
    on_chassis: "Lead on the same chassis",
    by_attack: "Lead by attack",
    distance: "Distance to the oracle",
    alarms: "False alarms",
    ablation: "What each part brings",
}


# Cells of tables


def interval(one: Difference, number: str = "{:+.1f}") -> str:
    """The mean with its 95% interval, not corrected: `+1.2 [0.3, 2.1]`."""
    text = number.format(one.mean)
    if one.margin is None:
        return text
    return f"{text} [{one.mean - one.margin:.1f}, {one.mean + one.margin:.1f}]"


def shown(one: Difference | None, number: str = "{:+.1f}") -> str:
    """The same; a dash where there is nothing."""
    return "–" if one is None else interval(one, number)


def mean_of(one: Difference | None) -> float:
    """The mean, to sort by; last where there is none."""
    return math.inf if one is None else one.mean


def place(cell: tuple[str, str, float]) -> str:
    """A cell in words."""
    federation, attack, share = cell
    return f"{federation}: {attack} {share:.0%}" if share else f"{federation}: {attack}"


def markdown(heads: Sequence[str], lines: Rows) -> str:
    """A table."""
    every = [heads, [":--"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in every)


if __name__ == "__main__":
    main(Path(sys.argv[1]), PAGE, README)

"""The tables of docs/results/proof.md and of the README, from the raw results that collect.py wrote.

    python lab/proof/make_proof.py lab/results/proof.csv.gz

They stand between `<!-- make_proof -->` and `<!-- end -->`. check_proof.py computes the page's numbers a second time.

A federation is one observation: its cells (a column with its share of hostile clients) and seeds are averaged first.
Intervals are Student's over federations; p is corrected for the methods of a table (Holm).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy
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
AS_IT_IS = "as it is"  # the variant of a federation in which nothing is changed
WITHIN = 2.0  # points behind the oracle
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
    main_rows = raw[raw["variant"] == AS_IT_IS]
    new = main_rows[~main_rows["federation"].isin(TOUCHED)]
    added = main_rows[main_rows["federation"].isin(ADDED)]
    scopes = (
        ("all federations", main_rows, OF_ALL),
        ("new federations", new, TABLES),
        ("added federations", added, OF_ADDED),
    )
    for scope, rows, titles in scopes:
        if rows.empty:
            continue
        for title in titles:
            yield f"**{title}, {scope}**"
            yield TABLES[title](rows)
    variants = raw[raw["variant"] != AS_IT_IS]
    if not variants.empty:
        yield "**Lead in variants of the federations**"
        yield variants_table(variants)


def refuse_missing(raw: pandas.DataFrame) -> None:
    """ValueError where a method lacks a cell or a seed of a federation on which it was run.

    A method that needs classes is not run where there are none: it is compared on the other federations.
    """
    runs = raw.groupby(["variant", "federation", "method"])["points"].count()
    expected = runs.xs(OURS, level="method")
    short = runs[runs != expected.reindex(runs.index.droplevel("method")).to_numpy()]
    if len(short):
        missing = [", ".join(place) for place in short.index]
        raise ValueError(f"without a result in some cells or seeds: {'; '.join(missing)}")


def cells(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Means over the seeds: a row for every cell, a column for every method."""
    return rows.groupby([*CELL, "method"])["points"].mean().unstack()


def is_clean(means: pandas.DataFrame) -> numpy.ndarray:
    """Which cells have no hostile clients."""
    return means.index.get_level_values("share").to_numpy() == 0


def by_federation(values: pandas.Series) -> Difference | None:
    """The mean over federations of the means over their cells."""
    means = values.groupby(level="federation").mean()
    return paired_difference(means.tolist(), [0.0] * len(means))


def both(difference: pandas.Series) -> list[Difference]:
    """A difference by cell, over federations: without hostile clients, and under attack."""
    difference = difference.dropna()
    clean = is_clean(difference.to_frame())
    found = [by_federation(difference[clean]), by_federation(difference[~clean])]
    return [one for one in found if one is not None]


# Tables


def leads_table(rows: pandas.DataFrame, methods: Sequence[str]) -> str:
    """`Recommended` minus every method, the smallest lead under attack first."""
    means = cells(rows)
    found = {method: both(means[OURS] - means[method]) for method in methods}
    names = sorted(found, key=lambda name: found[name][-1].mean)
    parts = zip(*(found[name] for name in names), strict=True)
    corrected = zip(*(holm(part) for part in parts), strict=True)
    lines = []
    for name, pair in zip(names, corrected, strict=True):
        line = [name]
        for one in pair:
            line += [interval(one), p_number(one.p_value)]
        lines.append(line)
    return markdown(["minus", "clean", "p", "attacked", "p"], lines)


def on_chassis(rows: pandas.DataFrame) -> str:
    """Against rivals with the same clipping, steps and fine-tuning, and controls."""
    methods = rows["method"].unique()
    return leads_table(rows, [one for one in methods if one.endswith(", tuned") or one in CONTROLS])


def by_attack(rows: pandas.DataFrame) -> str:
    """The lead on the chassis and over the oracle under each attack; not planned, so without p."""
    means = cells(rows[rows["share"] > 0])
    methods = [one for one in means.columns if one.endswith(", tuned") or one == ORACLE]
    attacks = sorted(means.index.unique("attack"))
    lines = []
    for method in methods:
        lead = (means[OURS] - means[method]).dropna()
        found = [by_federation(lead.xs(attack, level="attack")) for attack in attacks]
        lines.append([method, *("–" if one is None else interval(one) for one in found)])
    return markdown(["minus", *attacks], lines)


def as_published(rows: pandas.DataFrame) -> str:
    """Against rivals as published."""
    others = ("Recommended", "KnowsHonest", *CONTROLS)
    methods = rows["method"].unique()
    published = [
        one for one in methods if not one.endswith(", tuned") and not one.startswith(others)
    ]
    return leads_table(rows, published)


def ablation(rows: pandas.DataFrame) -> str:
    """Against `Recommended` without one of its parts."""
    methods = [one for one in rows["method"].unique() if one.startswith(WITHOUT)]
    if NO_EVIDENCE in set(rows["method"]):
        methods.append(NO_EVIDENCE)
    return leads_table(rows, methods)


def distance(rows: pandas.DataFrame) -> str:
    """How far usable methods are behind the oracle, the smallest distance under attack first."""
    means = cells(rows)
    seconds = rows[rows["share"] == 0].groupby(["federation", "method"])["seconds"].mean().unstack()
    behind = means.rsub(means[ORACLE], axis=0)
    usable = [one for one in means.columns if not one.startswith("KnowsHonest")]
    usable.sort(key=lambda one: both(behind[one])[-1].mean)
    lines = []
    for method in usable:
        own = behind[method].dropna()
        within = by_federation(100.0 * (own <= WITHIN))
        assert within is not None
        line = [method, *map(interval, both(own)), interval(within, "{:.1f}")]
        line += [f"{own.max():.1f}", place(own.idxmax())]
        line += [f"{means[method].min():.1f}", place(means[method].idxmin())]
        line.append(f"{(seconds[method] / seconds['FedAvg']).median():.2f}")
        lines.append(line)
    heads = ["method", "behind, clean", "behind, attacked", f"% of cells within {WITHIN:g} points"]
    heads += ["largest", "at", "worst cell", "at", "time / FedAvg"]
    return markdown(heads, lines)


def readme_table(raw: pandas.DataFrame) -> str:
    """Means over the new federations, and the lead of `Recommended`; empty without the methods that are shown."""
    new = raw[(raw["variant"] == AS_IT_IS) & ~raw["federation"].isin(TOUCHED)]
    means = cells(new)
    if not {*SHOWN} <= {*means.columns}:
        return ""
    lines = []
    for method in SHOWN:
        levels = [f"{one.mean:.1f}" for one in both(means[method])]
        leads = ["–"] * 2 if method == OURS else map(interval, both(means[OURS] - means[method]))
        label = {OURS: f"**`{OURS}`**", ORACLE: f"{ORACLE} †"}.get(method, method)
        lines.append([label, *levels, f"{means[method].min():.1f}", *leads])
    heads = ["method", "not hostile", "40% hostile", "worst cell"]
    return markdown([*heads, "lead, not hostile", "lead, 40% hostile"], lines)


def alarms(rows: pandas.DataFrame) -> str:
    """False alarms and detection of the methods with evidence."""
    lines = []
    for method, own in rows.groupby("method"):
        if own["alarms"].isna().all():
            continue
        indexed = own.set_index("federation")
        clean = indexed["share"] == 0
        parts = (
            indexed["alarms"][clean],
            indexed["alarms"][~clean],
            indexed["auroc"][~clean].dropna(),
        )
        found = [by_federation(100 * part) for part in parts]
        lines.append(
            [str(method), *("–" if one is None else interval(one, "{:.1f}") for one in found)]
        )
    return markdown(["method", "false alarms, clean (%)", "attacked (%)", "AUROC (%)"], lines)


def variants_table(rows: pandas.DataFrame) -> str:
    """The lead over every method in every variant; few federations, so without p."""
    lines = []
    for variant, own in rows.groupby("variant"):
        means = cells(own)
        count = means.index.get_level_values("federation").nunique()
        for method in means.columns.drop(OURS):
            line = [str(variant), str(count), method]
            lines.append(line + [interval(one) for one in both(means[OURS] - means[method])])
    return markdown(["variant", "federations", "minus", "clean", "attacked"], lines)


TABLES: dict[str, Callable[[pandas.DataFrame], str]] = {
    "Lead on the same chassis": on_chassis,
    "Lead by attack": by_attack,
    "Lead over methods as published": as_published,
    "What each part brings": ablation,
    "Distance to the oracle": distance,
    "False alarms": alarms,
}
# The claim is about the new federations, which have all tables
OF_ALL = ("Lead on the same chassis", "Distance to the oracle", "False alarms")
OF_ADDED = ("Lead on the same chassis", "False alarms")


# Cells of tables


def interval(one: Difference, number: str = "{:+.1f}") -> str:
    """The mean with its 95% interval, not corrected: `+1.2 [0.3, 2.1]`."""
    text = number.format(one.mean)
    if one.margin is None:
        return text
    return f"{text} [{one.mean - one.margin:.1f}, {one.mean + one.margin:.1f}]"


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

"""The statement for one site: its weight and why, what it gave and gained, what left the site.

It is for readers without machine learning, and shows nothing that was recorded about another site
alone: of the others there are ranges, rounded, and only where there are enough of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from ..errors import RunError
from ..registry import suggest
from ..runs.folder import RunFolder
from ..runs.recorded import recorded_config
from ..runs.rows import ClientRoundRow
from .audit import Audit, Participant, audit
from .document import Chart, Content, Document, Section, Table, counted, number, percent_of, table
from .lines import ROUNDS
from .marks import COLOURS, Line, Lines, value_axis
from .sections.contributions import control_series, gains
from .series import Series, series_of
from .units import Unit

FEWEST_OTHERS = 3  # sites, below which a range would tell what one of them has
DIGITS = 1  # to which a range is rounded
CRITERIA_NOTE = (
    "“Claimed” values are what your site reported. “Measured” values were computed by the server. The range "
    "is that of the other sites. It and the last column are rounded, and not shown with fewer than "
    f"{FEWEST_OTHERS} other sites."
)


def sites(run: RunFolder) -> list[str]:
    """The names of all sites; clients without a name have their number."""
    seed = run.lanes[0].seed
    return [row.name or f"client {row.client}" for row in run.clients(seed)]


def statement(run: RunFolder, site: str, method: str, seed: int) -> Document:
    """The statement for a site about one method and seed."""
    names = sites(run)
    if site not in names:
        raise RunError(f"{run.id}: no site is called {site!r}{suggest(site, names)}")
    client = names.index(site)
    rows = run.client_rounds(method, seed, client)
    accepted = [row for row in rows if row.refusal is None]
    last = audit(run, method, seed, accepted[-1].round_num) if accepted else None
    own = _own(last, client) if last else None
    shown = [
        _weight_section(accepted, last, own),
        _criteria_section(last, own),
        _gave_and_gained(run, site, client, method, seed),
        _refusals_section(rows, run.last_round(method, seed) or 0),
        Section("left", "What left your site", " ".join(_what_left(run, method, last)), []),
    ]
    lead = [
        f"This statement is for {site}. It is about the run {run.id}, method {method}, seed {seed}.",
        "A weight is a site's share in the shared model: the weights of all sites in a round sum to 100%.",
    ]
    sections = [section for section in shown if section.lead or section.items]
    return Document(f"Statement for {site}", lead, sections)


def _own(found: Audit, client: int) -> Participant | None:
    return next((one for one in found.participants if one.client == client), None)


def _weight_section(
    accepted: Sequence[ClientRoundRow], last: Audit | None, own: Participant | None
) -> Section:
    title = "Your weight"
    known = [(row.round_num, row.weight) for row in accepted if row.weight is not None]
    if last is None or own is None:
        return Section("weight", title, "No update of your site was accepted.", [])
    if not known or own.weight is None:
        text = "The server does not know the weights of single sites: they are computed in secret."
        return Section("weight", title, text, [])
    others = sum(one.weight is not None for one in last.participants)
    sentences = [
        f"In round {last.round_num}, your weight was {percent_of(own.weight)}.",
        f"{counted(others, 'site')} took part; equal weights would be {percent_of(1 / others)}.",
        f"Over all rounds, your mean weight was {percent_of(statistics.fmean(w for _, w in known))}.",
        last.explanation,
        *(f"What changed it: {text}." for text in own.moved),
    ]
    rounds, weights = zip(*known, strict=True)
    line = Line("your weight", rounds, weights, COLOURS[0], markers=True)
    axis = value_axis([0.0, *weights], percent=True)
    alt = f"Your weight from {percent_of(weights[0])} to {percent_of(weights[-1])}."
    chart = Chart("weight", "Your weight over the rounds", alt, Lines([line], ROUNDS, axis, 260))
    return Section("weight", title, " ".join(sentences), [chart])


def _criteria_section(last: Audit | None, own: Participant | None) -> Section:
    """The site's criteria beside the others' range, and what would raise its weight."""
    title = "What your weight is based on"
    if last is None or own is None or not any(value is not None for value in own.raw):
        return Section("criteria", title, "", [])
    rows: list[list[Content]] = []
    for index, criterion in enumerate(last.criteria):
        others = [
            value
            for one in last.participants
            if one.client != own.client and (value := one.raw[index]) is not None
        ]
        best = own.what_if[index] if own.what_if and len(others) >= FEWEST_OTHERS else None
        rows.append(
            [
                criterion,
                last.claimed.get(criterion, "–"),
                number(own.raw[index], 4),
                _range(others),
                "not shown" if best is None else f"about {best:.0%}",
            ]
        )
    columns = ["criterion", "claimed or measured", "your value", "range of the others"]
    columns.append(f"your {last.what_if_label} value of all")
    found = table(
        "criteria",
        f"Criteria of round {last.round_num}",
        columns,
        rows,
        CRITERIA_NOTE,
        [False, False, True, True, True],
    )
    lead = "The last column says what would raise your weight, all else equal."
    return Section("criteria", title, lead, [found])


def _range(values: Sequence[float]) -> str:
    if len(values) < FEWEST_OTHERS:
        return "not shown"
    return f"{_rounded(min(values))} to {_rounded(max(values))}"


def _rounded(value: float) -> str:
    if not value or not math.isfinite(value):
        return f"{value:g}"
    return f"{round(value, DIGITS - 1 - math.floor(math.log10(abs(value)))):g}"


def _gave_and_gained(run: RunFolder, site: str, client: int, method: str, seed: int) -> Section:
    series = series_of([run])
    (ours,) = (one for one in series if one.method == method)
    sentences = [*_gained(series, ours, site), *_gave(run, client, method, seed)]
    return Section("gains", "What you gained and gave", " ".join(sentences), [])


def _gained(series: Sequence[Series], ours: Series, site: str) -> Iterator[str]:
    unit = ours.unit
    metrics = [row.metric for row in ours.run.client_metrics(ours.method) if row.name == site]
    if metrics:
        mean = unit.text(statistics.fmean(metrics))
        yield f"On your own test data, the shared model has {ours.run.metric} {mean}."
    alone = control_series(series, "alone")
    if alone is None:
        yield (
            "What your site would have reached alone was not measured (add the method Alone to the "
            "experiment)."
        )
        return
    difference = gains(ours, alone).get(site)
    if difference is None:
        return
    change = "more" if difference.mean > 0 else "less"
    certain = "statistically significant" if difference.is_significant else "not significant"
    size = unit.size(abs(difference.mean))
    yield f"That is {size}{unit.points} {change} than a model that you trained alone ({certain})."


def _gave(run: RunFolder, client: int, method: str, seed: int) -> Iterator[str]:
    unit = Unit(run.is_share)
    values = [
        row.shapley
        for row in run.contributions(method, seed)
        if row.client == client and row.shapley is not None
    ]
    if values:
        yield (
            f"Your updates changed the {run.metric} of the shared model by {unit.signed(sum(values))}"
            f"{unit.points} over all rounds (Shapley value). A positive number is a gain. It is not a payment."
        )


def _refusals_section(rows: Sequence[ClientRoundRow], rounds: int) -> Section:
    refused = [row for row in rows if row.refusal is not None]
    sentences = [f"Updates of your site arrived in {len(rows)} of {counted(rounds, 'round')}."]
    items: list[Chart | Table] = []
    if refused:
        sentences.append(f"{counted(len(refused), 'update')} had no part in the model:")
        lines: list[list[Content]] = [[row.round_num, row.refusal or ""] for row in refused]
        columns = ["round", "reason"]
        items = [table("refusals", "Refused updates", columns, lines, "", [True, False])]
    else:
        sentences.append("None was refused.")
    return Section("refusals", "Taking part", " ".join(sentences), items)


def _what_left(run: RunFolder, method: str, last: Audit | None) -> Iterator[str]:
    config = recorded_config(run.folder)
    if config.table.get("engine") != "flower":
        yield "This run was computed on one machine, which had the samples of all sites."
        return
    parts = config.method(method)
    if parts is not None and parts.is_secret:
        yield "Your update left your site in masked form: only the sum over all sites can be read."
    else:
        yield "In every round, your site sent its update of the model."
    claimed = [
        name for name, source in (last.claimed if last else {}).items() if source == "claimed"
    ]
    if claimed:
        yield f"It also sent these values: {', '.join(claimed)}."
    yield (
        "Samples did not leave your site. What a dishonest server could compute from updates is in "
        "docs/security.md. Your node's own ledger lists every request and answer (deploy/ledger.sh)."
    )

"""The statement for one site: its weight and why, what it gave and gained, what left the site.

It is for readers without machine learning, and shows nothing that was recorded about another site
alone: of the others there are ranges, rounded, and only where there are enough of them.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Sequence

from ..errors import RunError
from ..record.known_parts import known_part
from ..record.reading.config_view import RecordedMethod, recorded_config
from ..record.reading.folder import RunFolder
from ..record.reading.rows import ClientRoundRow
from ..registry import suggest
from .audit.round_audit import Audit, Participant, audit
from .audit.weight_steps import PRIOR
from .document import (
    Chart,
    Content,
    Document,
    Section,
    Table,
    counted,
    number,
    percent_of,
    table,
)
from .lines import ROUNDS
from .marks import (
    COLOURS,
    Axis,
    Line,
    Lines,
)
from .sections.clients import client_means
from .sections.contributions import control_series, gains
from .series import Series, series_of
from .statistics import MIN_SEEDS, Difference
from .units import Unit

FEWEST_OTHERS = 3  # sites, below which a range would tell what one of them has
DIGITS = 1  # to which a range is rounded
CHART_HEIGHT = 220
ROOM_ABOVE = 1.3  # a line, as a multiple of its highest value
WHAT_IT_IS = (
    "The sites train one model together, in rounds. In each round, the sites that take part train the "
    "model on their own data, and the server combines the results. A site's weight is its share in this "
    "combination. The weights of all sites in a round sum to 100%."
)
CRITERIA_LEAD = (
    "The server computes your weight from the values in this table, compared with those of the other "
    "sites. A higher value gives a higher weight."
)
CRITERIA_NOTE = (
    "“Your site” reported a value itself; “the server” measured it. The values of the other sites are "
    "given as a range, rounded to one digit. The column after it is your weight if your site had the "
    "highest value of all sites, and all else stayed the same. Both are hidden with fewer than "
    f"{FEWEST_OTHERS} other sites, because they would tell what a single site has."
)
SOURCES = {"claimed": "your site", "measured": "the server"}
SECRET = "It is not shown: this run has secure aggregation, so that the weights of single sites stay secret."
PRIVATE = (
    "It is not shown: this run has differential privacy, which protects the values of the other sites. "
    "Your weight depends on these values."
)
UNKNOWN = "It is not shown: the config of the run cannot be read, so that nothing says what must stay secret."


class NotRecordedError(RunError):
    """A site that the record has no rows of."""


def sites(run: RunFolder, seed: int | None = None) -> list[str]:
    """The names of all sites, in a seed or the first; clients without a name have their number."""
    if not run.lanes:
        raise RunError(f"{run.id}: no round is finished yet, so that there is nothing to state")
    rows = run.clients(run.lanes[0].seed if seed is None else seed)
    return [row.name or f"client {row.client}" for row in rows]


def named_sites(run: RunFolder) -> list[str]:
    """The sites that have a name. A number may be another site in the next run."""
    rows = run.clients(run.lanes[0].seed) if run.lanes else []
    return [row.name for row in rows if row.name]


def statement(
    run: RunFolder, site: str, method: str | None = None, seed: int | None = None
) -> Document:
    """The statement for a site, about the first federated method and its first seed by default."""
    method = method or _first_method(run)
    if seed is None:
        seed = next(iter(run.seeds(method)), 0)
    run.lane(method, seed)  # an unknown one is an error
    names = sites(run, seed)
    if site not in names:
        raise RunError(f"{run.id}: no site is called {site!r}{suggest(site, names)}")
    client = names.index(site)
    parts = recorded_config(run.folder).method(method)
    hidden = _reason_to_hide(parts)
    rows = run.client_rounds(method, seed, client)
    if not rows and run.omits(method, seed):
        raise NotRecordedError(
            f"{run.id}: the record has no rows of {site}, so that there is nothing to state: "
            "record.clients writes rows of some clients alone"
        )
    accepted = [row for row in rows if row.refusal is None]
    last = audit(run, method, seed, accepted[-1].round_num) if accepted else None
    own = _own(last, client) if last else None
    shown = [
        _weight_section(accepted, last, own, hidden),
        _criteria_section(last, own, hidden, parts),
        _gave_and_gained(run, site, client, method, seed),
        _refusals_section(rows, run.last_round(method, seed) or 0),
        Section("left", "What left your site", " ".join(_what_left(run, method, last)), []),
    ]
    lead = [
        f"This page is for {site}. It says how much your site counted in the shared model, why, and what "
        "your site gained. Other sites are not named.",
        WHAT_IT_IS,
        *_repetitions(len(run.seeds(method)), seed),
    ]
    sections = [section for section in shown if section.lead or section.items]
    subtitle = f"Run {run.id}, method {method}, seed {seed}"
    return Document(f"Statement for {site}", lead, sections, subtitle=subtitle)


def _repetitions(seeds: int, seed: int) -> Iterator[str]:
    """Which numbers of the page are of one seed; nothing where there is only one."""
    if seeds > 1:
        yield (
            f"The run was repeated {seeds} times with other random numbers (seeds). What a model reaches on "
            "your own test data is the mean of all repetitions. All other numbers on this page are of the "
            f"repetition with seed {seed}; in the others they may differ."
        )


def _first_method(run: RunFolder) -> str:
    """The first method that is no control: with a control alone, no site has a weight."""
    config = recorded_config(run.folder)
    for method in run.methods:
        parts = config.method(method)
        if parts is None or parts.control is None:
            return method
    return next(iter(run.methods), "")


def _reason_to_hide(parts: RecordedMethod | None) -> str | None:
    """Why a site is not told what depends on the other sites' values; None where it is told."""
    if parts is None:
        return UNKNOWN
    if parts.is_secret:
        return SECRET
    return PRIVATE if parts.privacy else None


def _own(found: Audit, client: int) -> Participant | None:
    return next((one for one in found.participants if one.client == client), None)


def _weight_section(
    accepted: Sequence[ClientRoundRow],
    last: Audit | None,
    own: Participant | None,
    hidden: str | None,
) -> Section:
    title = "Your weight"
    known = [(row.round_num, row.weight) for row in accepted if row.weight is not None]
    if last is None or own is None:
        return Section("weight", title, "No update of your site was accepted.", [])
    if hidden or not known or own.weight is None:
        return Section("weight", title, hidden or "It was not recorded.", [])
    count = sum(one.weight is not None for one in last.participants)
    omitted = last.run.omitted(last.method, last.seed, last.round_num)
    if omitted is not None:
        count += omitted.accepted
    rounds, weights = zip(*known, strict=True)
    sentences = [
        f"In round {last.round_num}, the last with an accepted update of your site, your weight was "
        f"{percent_of(own.weight)}.",
        f"Your mean weight over {counted(len(known), 'round')} was {percent_of(statistics.fmean(weights))}.",
        f"In round {last.round_num}, {counted(count, 'site')} took part. With equal weights, each would "
        f"have {percent_of(1 / count)}.",
        *_changes(accepted[-1]),
        *(f"Recorded reason: {text}." for text in own.moved),
    ]
    line = Line("your weight", rounds, weights, COLOURS[6], markers=True)
    low = percent_of(min(weights))
    high = percent_of(max(weights))
    alt = f"Your weight was between {low} and {high}."
    if low == high:
        alt = f"Your weight was {low} in every round."
    axis = Axis(percent=True, low=0, high=ROOM_ABOVE * max(weights))
    lines = Lines([line], ROUNDS, axis, height=CHART_HEIGHT)
    chart = Chart("weight", "Your weight over the rounds", alt, lines)
    return Section("weight", title, " ".join(sentences), [chart])


def _changes(row: ClientRoundRow) -> Iterator[str]:
    """What changed the weight that the criteria give, in plain words."""
    by_criteria = row.weight if row.prior is None else row.prior
    by_evidence = by_criteria if row.posterior is None else row.posterior
    steps = (
        (
            "The server tests how updates affect the model (evidence). This",
            by_criteria,
            by_evidence,
        ),
        ("The federation's policy on weights", by_evidence, row.weight),
        ("The step that combines the updates", row.weight, row.influence),
    )
    for step, before, after in steps:
        if before is None or after is None or percent_of(before) == percent_of(after):
            continue
        verb = "raised" if after > before else "lowered"
        yield f"{step} {verb} your share from {percent_of(before)} to {percent_of(after)}."


def _criteria_section(
    last: Audit | None, own: Participant | None, hidden: str | None, parts: RecordedMethod | None
) -> Section:
    """The site's criteria beside the others' range, and what would raise its weight."""
    title = "What your weight is based on"
    if hidden or last is None or own is None or not any(value is not None for value in own.raw):
        return Section("criteria", title, "", [])
    meanings = _meanings(parts)
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
                meanings.get(criterion, criterion),
                number(own.raw[index], 4),
                _range(others),
                "not shown" if best is None else f"about {best:.0%}",
                SOURCES.get(last.claimed.get(criterion, ""), "–"),
            ]
        )
    best_weight = "your weight with the highest value"
    if PRIOR in last.stages:
        best_weight = f"{best_weight}, before evidence and policy"
    is_thinned = last.run.omits(last.method, last.seed)
    others_are = "other sites in the record" if is_thinned else "other sites"
    columns = ["what counts", "your value", others_are, best_weight, "value from"]
    numeric = [False, True, True, True, False]
    heading = f"Values of round {last.round_num}"
    found = table("criteria", heading, columns, rows, CRITERIA_NOTE, numeric)
    return Section("criteria", title, CRITERIA_LEAD, [found])


def _meanings(parts: RecordedMethod | None) -> dict[str, str]:
    """What the criteria of a method are, without references to papers; plugins' are missing."""
    found = {}
    for part in parts.criteria if parts else ():
        known = known_part("criteria", part.name)
        if known is not None:
            meaning = re.sub(r" \([^)]*\)", "", known.about).rstrip(".")
            found[part.called] = f"{meaning} ({part.called})"
    return found


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
    paragraphs = [" ".join(_gained(series, ours, site)), " ".join(_gave(run, client, method, seed))]
    lead = "\n\n".join(paragraph for paragraph in paragraphs if paragraph)
    return Section("gains", "What you gained and gave", lead, [])


def _gained(series: Sequence[Series], ours: Series, site: str) -> Iterator[str]:
    metric = ours.run.metric
    together = client_means(ours).get(site)
    if together is None:
        yield "The shared model was not measured on your own test data."
        return
    known = known_part("metrics", metric)
    if known is not None:
        meaning = known.about.rstrip(".")
        yield f"The measure is {metric}: {meaning[0].lower()}{meaning[1:]}."
    seeds = len(ours.summary.seeds)
    mean = f" (mean of {seeds} repetitions)" if seeds > 1 else ""
    yield f"On your own test data, the shared model has {ours.unit.text(together)}{mean}."
    alone = control_series(series, "alone")
    if alone is None:
        yield (
            "What your site would have reached alone was not measured (add the method Alone to the "
            "experiment)."
        )
        return
    apart = client_means(alone)
    difference = gains(ours, alone).get(site)
    if difference is not None:
        yield f"A model that your site trained alone has {ours.unit.text(apart[site])}."
        yield from _compared(difference, ours.unit)


def _compared(difference: Difference, unit: Unit) -> Iterator[str]:
    """The shared model against the site alone, and whether that can be chance."""
    size = unit.size(abs(difference.mean))
    word = "better" if difference.mean > 0 else "worse"
    yield f"So the shared model is {size}{_points(unit)} {word} for your site."
    if difference.is_significant:
        yield "This difference is statistically significant: it is unlikely to be chance."
    elif difference.pairs < MIN_SEEDS:
        done = counted(difference.pairs, "repetition")
        yield f"It may be chance: there was {done}, and a test needs {MIN_SEEDS}."
    else:
        yield "This difference is not statistically significant: it may be chance."


def _points(unit: Unit) -> str:
    return " percentage points" if unit.percent else ""


def _gave(run: RunFolder, client: int, method: str, seed: int) -> Iterator[str]:
    unit = Unit(run.is_share)
    values = [
        row.shapley
        for row in run.contributions(method, seed)
        if row.client == client and row.shapley is not None
    ]
    if values:
        total = sum(values)
        verb = "improved" if total >= 0 else "worsened"
        yield (
            f"Over all rounds, your updates {verb} the {run.metric} of the shared model by an estimated "
            f"{unit.size(abs(total))}{_points(unit)}, on samples that the server holds. "
            "This is your site's Shapley value: the change that its update makes, averaged over all "
            "orders in which the sites' updates could be added. It is not a payment."
        )


def _refusals_section(rows: Sequence[ClientRoundRow], rounds: int) -> Section:
    refused = [row for row in rows if row.refusal is not None]
    sentences = [f"Your site was asked in {len(rows)} of {counted(rounds, 'round')}."]
    items: list[Chart | Table] = []
    if refused:
        sentences.append(
            f"In {counted(len(refused), 'round')}, its update had no part in the model."
        )
        lines: list[list[Content]] = [[row.round_num, row.refusal or ""] for row in refused]
        columns = ["round", "reason"]
        items = [table("refusals", "Refused updates", columns, lines, "", [True, False])]
    elif rows:
        sentences.append("All of its updates were accepted.")
    return Section("refusals", "Taking part", " ".join(sentences), items)


def _what_left(run: RunFolder, method: str, last: Audit | None) -> Iterator[str]:
    config = recorded_config(run.folder)
    if config.table.get("engine") != "flower":
        yield "This run was a simulation: one machine had the samples of all sites, and no site sent any."
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
        "Your samples did not leave your site. Your site's own record lists every request and answer "
        "(deploy/ledger.sh). What a dishonest server could compute from updates is in docs/security.md."
    )

"""Every weight of one round and what changed it, as items of a report, and the answer to `Run.why`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import pandas

from ..errors import RunError
from ..registry import suggest
from .explanation import Explanation, Round, explain, lane_rows, suspicions
from .items import Chart, Item, Table, Unit, counted, fixed, percent

if TYPE_CHECKING:
    from ..record.run import RunFolder

MOST_CLIENTS = 500  # in the tables of a round
MOST_BARS = 20  # clients in its picture
MOST_TOLD = 3  # of them in the words below it
COLUMNS = {  # from the score to the share, in the order in which they are computed
    "score": "score",
    "prior": "weight by criteria",
    "harm": "harm",
    "z": "z",
    "history_z": "history z",
    "posterior": "weight after evidence",
    "weight": "weight within bounds",
    "influence": "final share",
}
SHARES = ("prior", "posterior", "weight", "influence")
FORMATS = {COLUMNS[name]: percent for name in SHARES} | {"z": fixed(1), "history z": fixed(1)}
MEANINGS = {
    "harm": (
        "Harm is by how much following the client instead of the mean (or of no update, if better) would raise the "
        "held-out loss. z sums up its significance over the rounds, in standard errors; below 0, it favours the client."
    ),
    "history_z": (
        "History z compares an update with the client's first updates; above 0, it points against them."
    ),
}


def why(
    run: RunFolder,
    client: str | int,
    method: str,
    seed: int,
    round_num: int | None = None,
) -> str:
    """At most six lines about a client's share, the answer first.

    Args:
        run: the run.
        client: its name, or its number.
        method: the method.
        seed: the seed.
        round_num: the round; None is the last one in which the client took part.
    """
    rows = lane_rows(run, "weights", method, seed)
    own = rows[rows["client"] == _number(run, seed, client)]
    where = f"{method}, seed {seed}: " if len(run.lanes) > 1 else ""
    if own.empty:
        return f"{where}{client} took part in no round."
    last = own["round"].max()
    at = Round(run, method, seed, last if round_num is None else round_num)
    found = explain(at, own["client"].unique())
    if not found:
        return f"{where}{client} took no part in round {round_num}; the last was round {last}."
    one = found[0]
    facts = [one.known_facts()]
    for reason, count in own["refusal"].value_counts().head(1).items():
        facts.append(f"Refused in {count} of {counted(len(own), 'round')}: {reason}.")
    limits = f"{one.by_copies()} {one.by_bounds()}".strip()
    lines = [one.by_criteria(), one.by_evidence(), limits, one.by_rule(), " ".join(facts).strip()]
    return "\n  ".join([f"{where}{one.answer()}", *filter(None, lines)])


def _number(run: RunFolder, seed: int, client: str | int) -> int:
    """The number of a client that is given by its number or name."""
    clients = run.frame("clients")
    own = clients[clients["seed"] == seed]
    names = own["name"].where(own["name"].notna(), own["client"].astype(str))
    for number, name in zip(own["client"], names, strict=True):
        if str(client) in (name, str(number), f"client {number}"):
            return int(number)
    raise RunError(f"{run.id}: no client {client!r}{suggest(str(client), names)}")


def last_audits(run: RunFolder, methods: Iterable[str]) -> Iterator[tuple[str, list[Item]]]:
    """For the page: the last round of these methods, and those in which updates were first refused for a reason.

    Each has a title. `clientwise show RUN --round N` and `Run.why` have all rounds.
    """
    for method in methods:
        seed = run.seeds(method)[0]
        own = lane_rows(run, "weights", method, seed)
        refused = own.dropna(subset=["refusal"]).groupby("refusal")["round"].min()
        for round_num in sorted({*refused, *own["round"].tail(1)}):
            at = Round(run, method, seed, round_num)
            yield at.title, [*audit(at)]


def audits(
    run: RunFolder,
    round_num: int,
    method: str | None = None,
    seed: int | None = None,
) -> Iterator[Item]:
    """A round in the terminal, under every method that has run it, or under one; of several seeds, the first."""
    wanted = run.methods if method is None else [run.about(method).name]
    lanes = [(name, run.seeds(name)[0] if seed is None else seed) for name in wanted]
    done = run.lanes.set_index(["method", "seed"])["rounds"]
    begun = [lane for lane in lanes if done.get(lane, 0) >= round_num]
    for lane in begun or lanes[:1]:
        yield from audit(Round(run, *lane, round_num))


def audit(at: Round) -> Iterator[Item]:
    """The weights of a round: a picture, a row per client, what moved each weight, and notes."""
    told = at.explanations
    yield shares(at)
    yield _clients(at, told[:MOST_CLIENTS])
    moved = [(one.label, one.answer() if one.refusal else one.reasons()) for one in told]
    rows = [row for row in moved[:MOST_CLIENTS] if row[1]]
    if rows:
        frame = pandas.DataFrame(rows, columns=["client", "reasons"])
        yield Table(f"moved-{at.id}", "What moved the weights", frame)
    if len(told) > MOST_CLIENTS:
        yield (
            f"{len(told) - MOST_CLIENTS:,} more clients have less weight, or were refused. "
            '`Run.frame("weights")` in Python has all of them.'
        )
    yield from _notes(at)


def shares(at: Round) -> Chart:
    """A bar for each client of a round: its final share, the largest first, with the reason in brief."""
    told = sorted(at.explanations, key=lambda one: -one.share)
    shown = told if len(told) <= MOST_BARS else [*told[: MOST_BARS // 2], *told[-MOST_BARS // 2 :]]
    bars = {f"{_marked(one)}: {one.brief()}": one.share for one in shown}
    return Chart(
        f"shares-{at.id}",
        f"{at.title}: shares and reasons (line: equal share)",
        pandas.DataFrame(bars.items(), columns=["client", "share"]),
        "bars",
        x="share",
        y="client",
        format=".0%",
        reference=told[0].equal_share if told else None,
        alt="; ".join(f"{name}, {percent(share)}" for name, share in [*bars.items()][:MOST_TOLD]),
    )


def _marked(one: Explanation) -> str:
    return f"{one.label} (hostile)" if one.is_hostile else one.label


def _clients(at: Round, told: Sequence[Explanation]) -> Table:
    """Every participant of a round: its shares step by step, its criteria, and the reason in brief."""
    rows = at.participants().head(len(told)).reset_index(drop=True)
    rows = rows[[column for column in COLUMNS if column in rows]].dropna(axis="columns", how="all")
    shares = [column for column in SHARES if column in rows]
    repeated = [one for one, after in pairwise(shares) if rows[one].equals(rows[after])]
    frame = rows.drop(columns=repeated).rename(columns=COLUMNS)
    frame.insert(0, "client", [one.label for one in told])
    brief = ["; ".join(filter(None, (one.brief(), one.simulated_as))) for one in told]
    frame.insert(1, "reason", brief)
    values = [{own.name: own.value for own in one.criteria} for one in told]
    title = at.title
    if len(priority := at.record.get("priority") or ()) > 1:
        title += f", priority {' > '.join(priority)}"
    return Table(
        f"audit-{at.id}",
        title,
        frame.join(pandas.DataFrame(values)),
        " ".join(means for column, means in MEANINGS.items() if column in rows),
        formats=FORMATS,
        secondary=("harm", "history z", "score", "reason"),
    )


def _notes(at: Round) -> Iterator[str]:
    """What else there is to say of the weights of a round, and of its model."""
    yield from at.record.get("notes") or ()
    yield from (text for text, *_ in suspicions(at))
    steps = at.rows("steps")
    if len(steps):
        (used,) = steps.loc[steps["used"].astype(bool), "step"]
        losses = ", ".join(
            f"{name} {loss:.4g}" for name, loss in zip(steps["step"], steps["loss"], strict=True)
        )
        yield (
            f"The server tried {len(steps)} steps and used {used}. Losses on its samples: {losses}. "
            "The decision adds up the losses of earlier rounds, with decay."
        )
    if tried := at.record.get("candidates"):
        text = Unit(at.run.facts.is_share).text
        orders = "; ".join(f"{' > '.join(order)} {text(metric)}" for order, metric in tried)
        rounds = counted(int(at.record["testing_rounds"]), "testing round")
        yield f"Orders of priority tried, with their {at.run.facts.metric}: {orders} ({rounds})."
    if names := at.record.get("no_effect"):
        yield f"No effect on the weights: {', '.join(names)} (constant across the clients of this round)."

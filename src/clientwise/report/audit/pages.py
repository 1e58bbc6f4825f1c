"""The audit of a round and of a client as documents: charts and tables of weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...record.reading.config_view import recorded_config
from ...record.reading.folder import RunFolder
from ...record.reading.reader import thinned
from ...record.reading.rows import ClientRoundRow
from ..document import (
    AuditLink,
    Cell,
    Chart,
    Column,
    Content,
    Document,
    Section,
    Table,
    client_cell,
    counted,
    number_cell,
    percent_of,
    tabulate,
)
from ..lines import ROUNDS, Curve
from ..marks import (
    COLOURS,
    CRITERION_COLOURS,
    GREY,
    MAX_POINTS,
    MOVER_COLOURS,
    AuditLinks,
    BarGroup,
    Bars,
    Line,
    Lines,
    value_axis,
)
from ..units import Unit
from .explanation_today import Explanation, explain
from .round_audit import MAX_BARS, Audit, Candidate, Participant, audit
from .weight_steps import INFLUENCE, PRIOR, WEIGHT, Stage, Z, stages
from .what_if import round_table

MAX_ROUNDS = 200  # in the table of a client

Text = Callable[[float | None], str]


def audit_round(run: RunFolder, method: str, seed: int, round_num: int) -> Document:
    """The audit of one round as a document of its own."""
    found = audit(run, method, seed, round_num)
    items: list[Chart | Table] = [
        *steps_charts(found, "", "steps"),
        audit_table(found, "Clients", "audit"),
    ]
    if any(one.why.moves() for one in found.participants):
        items.append(_moved_table(found))
    if found.candidates:
        items.append(_orders_table(found))
    items += round_table(run, method, seed, round_num)
    lead = [" ".join(found.parameters), *found.notes]
    title = f"{method}, seed {seed}, round {round_num}"
    return Document(title, lead, [Section("audit", "Weights", "", items)])


def steps_charts(found: Audit, place: str, name: str) -> list[Chart]:
    """How an equal share becomes each client's final share, step by step; nothing without clients.

    Args:
        found: the audit of a round.
        place: the round, for the title; empty where it is the subject of the page.
        name: the id of the chart.
    """
    known = [one for one in found.participants if one.path]
    if not known:
        return []
    equal = 1 / found.num_known
    shown = _farthest(known, equal)
    last = found.stages[-1].label
    clients = [one.client for one in shown]
    links = AuditLinks("client", found.run.id, found.method, found.seed, clients)
    mark = Bars(
        [one.label for one in shown],
        [*_step_groups(found, shown, equal), _end_group(last, shown)],
        value_axis([0.0, *(v for one in shown for v in one.path)], percent=True, label=last),
        equal,
        links,
    )
    steps = " and then ".join(found.steps)
    verb = "move" if len(found.steps) > 1 else "moves"
    alt = (
        f"Every client begins with an equal share of {percent_of(equal)} (the line); {steps} "
        f"{verb} it to its {last}, the grey bar."
    )
    if len(shown) < found.num_known:
        alt += f" The {len(shown)} of {found.num_known} clients farthest from it are shown."
    steps_title = f"from an equal share to the {last}"
    title = f"{place}, {steps_title}" if place else steps_title.capitalize()
    return [Chart(name, title, alt, mark)]


def _farthest(known: Sequence[Participant], equal: float) -> list[Participant]:
    """Those whose share was farthest from equal in any step, in their order."""

    def distance(one: Participant) -> float:
        return max(abs(value - equal) for value in one.path)

    farthest = sorted(known, key=lambda one: -distance(one))[:MAX_BARS]
    chosen = {one.client for one in farthest}
    return [one for one in known if one.client in chosen]


def _step_groups(found: Audit, shown: Sequence[Participant], equal: float) -> list[BarGroup]:
    colours = _mover_colours(found)
    groups = []
    before = [equal] * len(shown)
    for index, step in enumerate(found.steps):
        after = [one.path[index] for one in shown]
        groups.append(BarGroup(step, after, colours.get(step, CRITERION_COLOURS[0]), starts=before))
        before = after
    return groups


def _mover_colours(found: Audit) -> dict[str, str]:
    """By what moves a weight: a criterion has the same colour under every method of the run."""
    methods = recorded_config(found.run.folder).methods
    named = [part.called for method in methods for part in method.criteria]
    criteria = list(dict.fromkeys([*named, *found.criteria]))
    colours = dict(zip(criteria, itertools.cycle(CRITERION_COLOURS), strict=False))
    return {**MOVER_COLOURS, **colours}


def _end_group(label: str, shown: Sequence[Participant]) -> BarGroup:
    return BarGroup(label, [one.path[-1] for one in shown], GREY)


def audit_table(found: Audit, title: str, name: str, note: str = "") -> Table:
    """Every participant of a round: its shares step by step, its criteria, and the reason in brief."""
    return tabulate(name, title, [*audit_columns(found)], found.participants, note)


def audit_columns(found: Audit) -> Iterator[Column[Participant]]:
    """What is said about a participant."""
    yield Column("client", lambda one: _linked_client(found, one))
    yield Column("reason", _brief_reason, numeric=False)
    for stage in found.stages:
        yield Column(stage.label, partial(_at_stage, stage), is_secondary=stage.is_secondary)
    for criterion in found.criteria:
        yield Column(criterion, partial(_measured, criterion))


def _brief_reason(one: Participant) -> str:
    return "; ".join(text for text in (one.why.brief(), one.why.simulated_as) if text)


def _at_stage(stage: Stage, one: Participant) -> Content:
    return stage.cell(one.row)


def _measured(criterion: str, one: Participant) -> Content:
    found = one.measured.get(criterion)
    return number_cell(found and found.raw, 4)


def _linked_client(found: Audit, one: Participant) -> Cell:
    link = AuditLink("client", found.run.id, found.method, found.seed, one.client)
    return client_cell(one.client, one.why.name, link)


def _moved_table(found: Audit) -> Table:
    columns = [
        Column[Participant]("client", lambda one: _linked_client(found, one)),
        Column[Participant]("reasons", lambda one: reasons(one.why), numeric=False),
    ]
    moved = [one for one in found.participants if one.why.moves()]
    return tabulate("moved", "What moved the weights", columns, moved, "")


def reasons(why: Explanation) -> str:
    """What moved a client's weight, in a paragraph, and what the simulation knows of the client."""
    return " ".join(text for text in (*why.moves(), why.known_facts()) if text)


def _orders_table(found: Audit) -> Table:
    unit = Unit(found.run.is_share)
    columns = [
        Column[Candidate]("order of priority", lambda one: " > ".join(one[0]), numeric=False),
        Column[Candidate](found.run.metric, lambda one: unit.cell(one[1])),
        Column[Candidate]("", lambda one: "chosen" if one[0] == found.priority else ""),
    ]
    note = f"{counted(found.testing_rounds, 'testing round')}."
    return tabulate("orders", "Orders tried", columns, found.candidates, note)


@dataclass(frozen=True)
class _Lane:
    """A client under a method with a seed."""

    run: RunFolder
    method: str
    seed: int
    client: int


def audit_client(run: RunFolder, method: str, seed: int, client: int) -> Document:
    """One client under one method: its weight and metric over the rounds, and all its rounds."""
    run.lane(method, seed)  # says so if there is none
    lane = _Lane(run, method, seed, client)
    facts = run.client(seed, client)
    rows = run.client_rounds(method, seed, client)
    held = "Its samples are not counted: they are at the client."
    if facts.num_train:
        held = f"{facts.num_train} training and {facts.num_test} test samples."
    if facts.hostile:
        held += f" Hostile: {facts.hostile}."
    name = f" ({facts.name})" if facts.name else ""
    title = f"Client {client}{name} under {method}, seed {seed}"
    items: list[Chart | Table] = [*_client_charts(lane, rows), _rounds_table(lane, rows)]
    section = Section("client", "Over the rounds", "", items)
    return Document(title, [held, *_last_move(lane, rows)], [section])


def _last_move(lane: _Lane, rows: Sequence[ClientRoundRow]) -> list[str]:
    """What moved the client's weight in the last round in which its update was accepted."""
    accepted = [row.round_num for row in rows if row.refusal is None]
    if not accepted:
        return []
    found = explain(lane.run, lane.method, lane.seed, accepted[-1], [lane.client])[0]
    return [f"{found.answer()} {reasons(found)}".strip()]


def _client_charts(lane: _Lane, rows: Sequence[ClientRoundRow]) -> list[Chart]:
    run = lane.run
    unit = Unit(run.is_share)
    own = f"{run.metric} on its own test data"
    curve = run.client_curve(lane.method, lane.seed, lane.client)
    known = [(round_num, value) for round_num, value in curve if value is not None]
    weights = {stage.label: _curve(stage, rows) for stage in (WEIGHT, PRIOR, INFLUENCE)}
    z_title = "z: evidence against the client over the rounds, in standard errors"
    return [
        *_client_chart(lane, "weight", "weight", weights, percent_of, percent=True),
        *_client_chart(lane, "z", z_title, {Z.label: _curve(Z, rows)}, Z.text, percent=False),
        *_client_chart(lane, "own", own, {own: known}, unit.text, percent=unit.percent),
    ]


def _curve(stage: Stage, rows: Sequence[ClientRoundRow]) -> Curve:
    known = [(row.round_num, stage.value(row)) for row in rows]
    return [(round_num, value) for round_num, value in known if value is not None]


def _client_chart(
    lane: _Lane,
    name: str,
    title: str,
    curves: dict[str, Curve],
    text: Text,
    *,
    percent: bool,
) -> list[Chart]:
    """Curves over the rounds, the first in the method's colour; nothing without any."""
    known = {label: curve for label, curve in curves.items() if curve}
    if not known:
        return []
    first_colour = lane.run.methods.index(lane.method)
    links = AuditLinks("round", lane.run.id, lane.method, lane.seed)
    lines = []
    for index, (label, curve) in enumerate(known.items()):
        rounds, values = zip(*thinned(curve, MAX_POINTS), strict=True)
        colour = COLOURS[(first_colour + index) % len(COLOURS)]
        lines.append(Line(label, rounds, values, colour, markers=True, links=links))
    heights = [value for curve in known.values() for _, value in curve]
    axis = value_axis(heights, percent=percent)
    changes = ", ".join(_change(label, curve, text) for label, curve in known.items())
    alt = f"Client {lane.client}: {changes}."
    return [Chart(f"client-{name}", title, alt, Lines(lines, ROUNDS, axis, height=260))]


def _change(label: str, curve: Curve, text: Text) -> str:
    first = curve[0][1]
    last = curve[-1][1]
    return f"{label} from {text(first)} to {text(last)}"


def _rounds_table(lane: _Lane, rows: Sequence[ClientRoundRow]) -> Table:
    def linked_round(row: ClientRoundRow) -> Cell:
        link = AuditLink("round", lane.run.id, lane.method, lane.seed, row.round_num)
        return Cell(row.round_num, str(row.round_num), link)

    columns: list[Column[Any]] = [
        Column("round", linked_round),
        *(Column(stage.label, stage.cell) for stage in stages(rows)),
        Column("training loss", lambda row: number_cell(row.training_loss, 3)),
        Column("refused because", lambda row: row.refusal or "", numeric=False),
    ]
    note = ""
    if len(rows) > MAX_ROUNDS:
        note = f"The last {MAX_ROUNDS} of the {len(rows)} rounds it took part in."
    return tabulate("rounds", "Rounds it took part in", columns, rows[-MAX_ROUNDS:], note)

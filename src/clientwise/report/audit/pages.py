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
    percent_cell,
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
from .round_audit import MAX_BARS, Audit, Candidate, Participant, audit
from .weight_steps import (
    INFLUENCE,
    PRIOR,
    WEIGHT,
    Chain,
    Stage,
    Z,
    stages,
)
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
    if found.is_explained:
        items.append(_moved_table(found))
    if found.candidates:
        items.append(_orders_table(found))
    items += round_table(run, method, seed, round_num)
    lead = [line for line in (found.explanation, *found.notes) if line]
    title = f"{method}, seed {seed}, round {round_num}"
    return Document(title, lead, [Section("audit", "Weights", "", items)])


def steps_charts(found: Audit, place: str, name: str) -> list[Chart]:
    """How an equal weight becomes each client's weight, step by step; nothing without clients.

    Args:
        found: the audit of a round.
        place: the round, for the title; empty where it is the subject of the page.
        name: the id of the chart.
    """
    # A damaged record may lack some steps.
    known = [one for one in found.participants if len(one.path) == len(found.steps)]
    if not known:
        return []
    equal = 1 / found.num_known
    shown = _farthest(known, equal)
    last = found.stages[-1].label
    clients = [one.client for one in shown]
    links = AuditLinks("client", found.run.id, found.method, found.seed, clients)
    mark = Bars(
        [f"{client_cell(one.client, one.name).text} {one.remark}".strip() for one in shown],
        [*_step_groups(found, shown, equal), _end_group(last, shown)],
        value_axis([0.0, *(v for one in shown for v in one.path)], percent=True, label=last),
        equal,
        links,
    )
    steps = " and then ".join(found.steps)
    verb = "move" if len(found.steps) > 1 else "moves"
    alt = (
        f"Every client begins with an equal weight of {percent_of(equal)} (the line); {steps} "
        f"{verb} it to its {last}, the grey bar."
    )
    if len(shown) < found.num_known:
        alt += f" The {len(shown)} of {found.num_known} clients farthest from it are shown."
    steps_title = f"from an equal weight to the {last}"
    title = f"{place}, {steps_title}" if place else steps_title.capitalize()
    return [Chart(name, title, alt, mark)]


def _farthest(known: Sequence[Participant], equal: float) -> list[Participant]:
    """Those whose weight was farthest from equal in any step, in their order."""

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
    """Every participant of a round: its criteria, score and weights, and what would change them."""
    if found.what_if:
        best = f"“{found.what_if_label.capitalize()}” is the weight a client would have"
        note = f"{note} {best} with the best value of the round in that criterion.".strip()
    return tabulate(name, title, [*audit_columns(found)], found.participants, note)


def audit_columns(found: Audit, *, is_brief: bool = False) -> Iterator[Column[Participant]]:
    """What is said about a participant; briefly, without what follows from the other columns."""
    yield Column("client", lambda one: _linked_client(found, one))
    if not is_brief or not found.is_explained:
        yield Column("remark", lambda one: one.remark, numeric=False)
    for index, stage in enumerate(found.stages):
        yield Column(stage.label, partial(_at_stage, index))
    for index, criterion in enumerate(found.criteria):
        measured = partial(_measured, index)
        if is_brief:
            yield Column(criterion, measured)
            continue
        yield Column(f"{criterion}, {found.claimed.get(criterion, 'value')}", measured)
        yield Column(f"{criterion}, normalised", partial(_normalised, index))
    if found.what_if and not is_brief:
        for index, criterion in enumerate(found.criteria):
            yield Column(f"{found.what_if_label} {criterion}", partial(_what_if, index))


def _at_stage(index: int, one: Participant) -> Content:
    return one.chain[index]


def _measured(index: int, one: Participant) -> Content:
    return number_cell(one.raw[index], 4)


def _normalised(index: int, one: Participant) -> Content:
    return number_cell(one.normalised[index], 3)


def _what_if(index: int, one: Participant) -> Content:
    return percent_cell(one.what_if[index])


def _linked_client(found: Audit, one: Participant) -> Cell:
    link = AuditLink("client", found.run.id, found.method, found.seed, one.client)
    return client_cell(one.client, one.name, link)


def _moved_table(found: Audit) -> Table:
    columns = [
        Column[Participant]("client", lambda one: _linked_client(found, one)),
        Column[Participant]("its weight", lambda one: "; ".join(one.moved), numeric=False),
    ]
    moved = [one for one in found.participants if one.moved]
    return tabulate("moved", "What moved the weights", columns, moved, "")


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
    accepted = [row for row in rows if row.refusal is None]
    if not accepted:
        return []
    last = accepted[-1]
    chain = Chain.of(lane.run, lane.method, lane.seed, last.round_num)
    remarks = chain.remarks(lane.run, lane.method, lane.seed, last.round_num, {lane.client: last})
    moved = remarks[lane.client]
    return [f"Round {last.round_num}: {'; '.join(moved)}."] if moved else []


def _client_charts(lane: _Lane, rows: Sequence[ClientRoundRow]) -> list[Chart]:
    run = lane.run
    unit = Unit(run.is_share)
    own = f"{run.metric} on its own test data"
    curve = run.client_curve(lane.method, lane.seed, lane.client)
    known = [(round_num, value) for round_num, value in curve if value is not None]
    weights = {stage.label: _curve(stage, rows) for stage in (WEIGHT, PRIOR, INFLUENCE)}
    z_title = "z: evidence against the client, in standard errors"
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

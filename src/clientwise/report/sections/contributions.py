"""What clients contribute, and who gains by the federation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from ...record.reading.config_view import recorded_config
from ..differences import signed
from ..document import (
    Cell,
    Content,
    Section,
    Table,
    table,
)
from ..series import Series
from ..statistics import Difference, holm, paired_difference
from ..units import Unit
from .clients import (
    by_client,
    client_means,
    client_word,
    evaluated_clients,
)

LEAD = (
    "A contribution is what a client's updates did to the metric of the model. "
    "Clients with the same data share one value, and a client whose data others have, too, seems to "
    "contribute little. The values depend on the server's samples and on the other members. They "
    "are not payments."
)
LEAVE_ONE_OUT = "Leave-one-out: the chosen weights minus without the client."
SHAPLEY = (
    "Shapley: the mean gain over all orders in which clients can join; the values of a round sum to the gain "
    "of the round, before any fine-tuning."
)
SAMPLED = "± is the standard error of sampling."
GAINS_LEAD = (
    "{clients}, each on its own test data: with the federation's model, with a model that it trained "
    "alone, and with one trained on all clients' samples in one place."
)
GAINS_NOTE = (
    "Means over the seeds. The difference is the federation minus alone, paired by seed, "
    "with its 95% interval. Interval and significance are corrected for the number of clients (Holm)."
)


def contributions_section(series: Sequence[Series]) -> Section:
    """Leave-one-out and Shapley values of every method that has them, for one seed."""
    tables: list[Table] = []
    for one in series:
        tables += _contributions_table(one)
    seed = series[0].seed if tables else None
    return Section("contributions", "Contributions", LEAD, [*tables], seed)


def _contributions_table(one: Series) -> list[Table]:
    leave_one_out = _leave_one_out(one)
    shapley, errors = _shapley(one)
    clients = sorted({*leave_one_out, *shapley})
    if not clients:
        return []
    names = {row.client: row.name for row in one.run.clients(one.seed)}
    last = one.rounds(one.seed)
    columns = ["client"]
    notes = []
    if leave_one_out:
        columns += [f"leave-one-out, round {last}", "leave-one-out, all rounds"]
        notes.append(LEAVE_ONE_OUT)
    if shapley:
        columns += [f"Shapley, round {last}", "Shapley, all rounds"]
        notes.append(SHAPLEY)
    if any(error for own in errors.values() for error in own.values()):
        notes.append(SAMPLED)
    rows: list[list[Content]] = []
    for client in clients:
        row: list[Content] = [names.get(client) or f"client {client}"]
        if leave_one_out:
            row += _cells(leave_one_out.get(client, {}), {}, last, one.unit)
        if shapley:
            row += _cells(shapley.get(client, {}), errors.get(client, {}), last, one.unit)
        rows.append(row)
    title = f"{one.label}: contributions to {one.run.metric}{one.unit.of_differences}"
    return [table(f"contributions-{one.label}", title, columns, rows, " ".join(notes))]


def _cells(
    values: Mapping[int, float], errors: Mapping[int, float], last: int, unit: Unit
) -> list[Content]:
    """The last round, and the sum over the rounds."""
    total = sum(values.values()) if values else None
    error = math.sqrt(sum(one**2 for one in errors.values()))
    now = _with_error(values.get(last), errors.get(last, 0.0), unit)
    return [now, _with_error(total, error, unit)]


def _with_error(value: float | None, error: float, unit: Unit) -> Cell:
    if value is None:
        return Cell(None, "–")
    text = unit.signed(value)
    if not error:
        return Cell(value, text)
    return Cell(value, f"{text} ± {unit.size(error)}", numbers={"": value, "error": error})


def _leave_one_out(one: Series) -> dict[int, dict[int, float]]:
    """By client and round; positive is a gain, also of a metric for which lower is better."""
    sign = 1 if one.run.higher_is_better else -1
    rows = one.run.reported_counterfactuals(one.method, one.seed)
    chosen = {row.round_num: row.metric for row in rows if row.kind == "chosen"}
    found: dict[int, dict[int, float]] = {}
    for row in rows:
        whole = chosen.get(row.round_num)
        if row.kind == "without" and row.metric is not None and whole is not None:
            found.setdefault(row.excluded, {})[row.round_num] = sign * (whole - row.metric)
    return found


def _shapley(one: Series) -> tuple[dict[int, dict[int, float]], dict[int, dict[int, float]]]:
    """Values and standard errors, by client and round."""
    values: dict[int, dict[int, float]] = {}
    errors: dict[int, dict[int, float]] = {}
    for row in one.run.contributions(one.method, one.seed):
        if row.shapley is not None:
            values.setdefault(row.client, {})[row.round_num] = row.shapley
            errors.setdefault(row.client, {})[row.round_num] = row.error or 0.0
    return values, errors


def gains_section(series: Sequence[Series]) -> Section:
    """Every client with the federation, alone and pooled; empty where no method is the control "alone"."""
    lead = GAINS_LEAD.format(clients=evaluated_clients(series[0].run).capitalize())
    alone = control_series(series, "alone")
    if alone is None:
        return Section("gains", "Who gains", lead, [])
    pooled = control_series(series, "pooled")
    federated = [one for one in series if _control_of(one) is None]
    tables: list[Table] = []
    sentences: list[str] = []
    compared: list[Series] = []
    for one in federated:
        differences = gains(one, alone)
        if differences:
            tables.append(_gains_table(one, alone, pooled, differences))
            sentences += _better_alone(one, differences)
            compared.append(one)
    sentences += _worst_clients(compared)
    return Section("gains", "Who gains", " ".join([lead, *sentences]), [*tables])


def gains(one: Series, alone: Series) -> dict[str, Difference]:
    """By client: the federation minus alone, positive if the federation is better; Holm's correction."""
    sign = 1 if one.run.higher_is_better else -1
    together = by_client(one)
    apart = by_client(alone)
    found = {}
    for name in together:
        seeds = sorted(together[name].keys() & apart.get(name, {}).keys())
        difference = paired_difference(
            [sign * together[name][seed] for seed in seeds],
            [sign * apart[name][seed] for seed in seeds],
        )
        if difference is not None:
            found[name] = difference
    return dict(zip(found, holm(list(found.values())), strict=True))


def _better_alone(one: Series, differences: Mapping[str, Difference]) -> Iterator[str]:
    """The clients that are significantly better off alone."""
    for name, difference in differences.items():
        if difference.is_significant and difference.mean < 0:
            yield (
                f"{name} would be better off alone than with {one.label}: "
                f"{signed(difference, one.unit)}{one.unit.points}."
            )


def _worst_clients(series: Sequence[Series]) -> Iterator[str]:
    """One sentence: the worst client under every method, and the spread."""
    parts = []
    for one in series:
        means = client_means(one)
        if not means:
            continue
        pick = min if one.run.higher_is_better else max
        worst = pick(means, key=lambda name: means[name])
        spread = statistics.pstdev(means.values())
        parts.append(
            f"{one.label}: {worst} ({one.unit.text(means[worst])}; SD {one.unit.size(spread)}"
            f"{one.unit.points})"
        )
    if parts:
        word = client_word(series[0].run)
        yield f"Worst {word}, with the standard deviation over all {word}s: {', '.join(parts)}."


def _gains_table(
    one: Series, alone: Series, pooled: Series | None, differences: Mapping[str, Difference]
) -> Table:
    together = client_means(one)
    apart = client_means(alone)
    at_once = client_means(pooled) if pooled else {}
    rows: list[list[Content]] = []
    for name, difference in differences.items():
        row: list[Content] = [name, one.unit.cell(together[name]), one.unit.cell(apart[name])]
        if pooled:
            row.append(one.unit.cell(at_once.get(name)))
        row += [Cell(difference.mean, signed(difference, one.unit)), _remark(difference)]
        rows.append(row)
    columns = ["client", one.label, alone.label]
    if pooled:
        columns.append(pooled.label)
    columns += ["gain", "remark"]
    numeric = [False] + [True] * (len(columns) - 2) + [False]
    title = f"{one.label} against {alone.label}{one.unit.of_differences}"
    return table(f"gains-{one.label}", title, columns, rows, GAINS_NOTE, numeric)


def _remark(difference: Difference) -> str:
    if not difference.is_significant:
        return ""
    return "gains" if difference.mean > 0 else "better off alone"


def control_series(series: Sequence[Series], control: str) -> Series | None:
    """The method that is a control, such as "alone"; None where the run has none."""
    return next((one for one in series if _control_of(one) == control), None)


def _control_of(one: Series) -> str | None:
    parts = recorded_config(one.run.folder).method(one.method)
    return parts.control if parts else None

"""How runs stand, in Prometheus' text format: for a monitoring system that asks every minute or so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import RunError
from ..runs.folder import RunFolder
from ..runs.schema import DATABASE
from .views import run_state

MOST_MEMBERS = 1_000  # with lines of their own
MEANINGS = {
    "clientwise_up": "1 where the run can be read",
    "clientwise_running": "1 while somebody runs it",
    "clientwise_finished": "1 once all rounds are done",
    "clientwise_written_timestamp_seconds": "when something was last written",
    "clientwise_rounds": "rounds done",
    "clientwise_rounds_planned": "rounds to do in all",
    "clientwise_result": "the reported measure, when it was last taken",
    "clientwise_round_seconds": "how long the last round took",
    "clientwise_member_weight": "a member's weight in the last round",
    "clientwise_member_refused": "a member's updates that were refused, or did not come",
}


class Sample(NamedTuple):
    """A value of a metric."""

    metric: str
    labels: dict[str, str]
    value: float


def samples_of(folder: Path, name: str) -> list[Sample]:
    """How the run in a folder stands; of one that cannot be read, that."""
    try:
        return [Sample("clientwise_up", {"run": name}, 1), *_samples(RunFolder(folder, name))]
    except (RunError, OSError):
        return [Sample("clientwise_up", {"run": name}, 0)]


def _samples(run: RunFolder) -> Iterator[Sample]:
    here = {"run": run.id}
    yield Sample("clientwise_running", here, run_state(run) == "running")
    yield Sample("clientwise_finished", here, run.finished)
    yield Sample("clientwise_written_timestamp_seconds", here, (run.folder / DATABASE).stat().st_mtime)
    for lane in run.progress():
        labels = {**here, "method": lane.method, "seed": str(lane.seed)}
        yield Sample("clientwise_rounds", labels, lane.rounds)
        yield Sample("clientwise_rounds_planned", labels, run.rounds)
        for _, value in run.curve("metric", lane.method, lane.seed)[-1:]:
            yield Sample("clientwise_result", {**labels, "measure": run.metric}, value)
        for _, value in run.curve("seconds", lane.method, lane.seed)[-1:]:
            yield Sample("clientwise_round_seconds", labels, value)
        members = [one for one in run.clients(lane.seed, MOST_MEMBERS) if one.name is not None]
        yield from _member_samples(run, lane.method, lane.seed, {one.client: str(one.name) for one in members}, labels)


def _member_samples(
    run: RunFolder, method: str, seed: int, names: dict[int, str], labels: dict[str, str]
) -> Iterator[Sample]:
    """Of clients that have names: who weighs how much, and how often somebody was refused."""
    refused = dict.fromkeys(names, 0)
    for row in run.refusals(method, 10 * MOST_MEMBERS) if names else ():
        if row.seed == seed and row.client in refused:
            refused[row.client] += row.times
    weights = {one.client: one.weight for one in run.participants(method, seed, run.last_round(method, seed) or 1)}
    for client, name in names.items():
        yield Sample("clientwise_member_refused", {**labels, "member": name}, refused[client])
        yield Sample("clientwise_member_weight", {**labels, "member": name}, weights.get(client) or 0.0)


def as_text(samples: Iterable[Sample]) -> str:
    """In Prometheus' text format: all values of a metric together."""
    by_metric: dict[str, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric, []).append(sample)
    lines: list[str] = []
    for metric, meaning in MEANINGS.items():
        if found := by_metric.get(metric):
            lines += [f"# HELP {metric} {meaning}", f"# TYPE {metric} gauge"]
            lines += [f"{metric}{{{_labels(one.labels)}}} {float(one.value)!r}" for one in found]
    return "\n".join(lines) + "\n"


def _labels(labels: dict[str, str]) -> str:
    r"""Text in quotes, whatever is in it.

    >>> print(_labels({"run": 'a "b"\n'}))
    run="a \"b\"\n"
    """
    escaped = {
        key: value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"") for key, value in labels.items()
    }
    return ",".join(f'{key}="{value}"' for key, value in escaped.items())

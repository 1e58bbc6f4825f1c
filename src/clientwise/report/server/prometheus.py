"""The state of runs in Prometheus' text format, for a monitoring system."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ...errors import RunError
from ...record.reading.folder import RunFolder
from ...record.schema import DATABASE
from ..views import run_state

MOST_MEMBERS = 1_000  # with their own lines
MEANINGS = {
    "clientwise_up": "1 where the run can be read",
    "clientwise_running": "1 while the run is in progress",
    "clientwise_finished": "1 once all rounds are done",
    "clientwise_written_timestamp_seconds": "time of the last write",
    "clientwise_rounds": "rounds done",
    "clientwise_rounds_planned": "rounds planned",
    "clientwise_result": "the metric, last value",
    "clientwise_round_seconds": "duration of the last round",
    "clientwise_member_weight": "a member's weight in the last round",
    "clientwise_member_refused": "a member's updates that were refused or did not arrive",
}


class Sample(NamedTuple):
    """A value of a metric."""

    metric: str
    labels: dict[str, str]
    value: float


def samples_of(folder: Path, name: str) -> list[Sample]:
    """The state of the run in a folder; clientwise_up is 0 where it cannot be read."""
    try:
        return [Sample("clientwise_up", {"run": name}, 1), *_samples(RunFolder(folder, name))]
    except (RunError, OSError):
        return [Sample("clientwise_up", {"run": name}, 0)]


def _samples(run: RunFolder) -> Iterator[Sample]:
    here = {"run": run.id}
    yield Sample("clientwise_running", here, run_state(run) == "running")
    yield Sample("clientwise_finished", here, run.finished)
    written = (run.folder / DATABASE).stat().st_mtime
    yield Sample("clientwise_written_timestamp_seconds", here, written)
    for lane in run.progress():
        labels = {**here, "method": lane.method, "seed": str(lane.seed)}
        yield Sample("clientwise_rounds", labels, lane.rounds)
        yield Sample("clientwise_rounds_planned", labels, run.rounds)
        for _, value in run.curve("metric", lane.method, lane.seed)[-1:]:
            yield Sample("clientwise_result", {**labels, "measure": run.metric}, value)
        for _, value in run.curve("seconds", lane.method, lane.seed)[-1:]:
            yield Sample("clientwise_round_seconds", labels, value)
        names = _names(run, lane.seed)
        if names:
            yield from _member_samples(run, lane.method, lane.seed, names, labels)


def _names(run: RunFolder, seed: int) -> dict[int, str]:
    """The names of the clients that have one."""
    clients = run.clients(seed, MOST_MEMBERS)
    return {one.client: one.name for one in clients if one.name is not None}


def _member_samples(
    run: RunFolder,
    method: str,
    seed: int,
    names: dict[int, str],
    labels: dict[str, str],
) -> Iterator[Sample]:
    """The last weight and the number of refused updates of each client in `names`."""
    refused = dict.fromkeys(names, 0)
    for row in run.refusals(method, 10 * MOST_MEMBERS):
        if row.seed == seed and row.client in refused:
            refused[row.client] += row.times
    last = run.last_round(method, seed) or 1
    weights = {one.client: one.weight for one in run.participants(method, seed, last)}
    for client, name in names.items():
        own = {**labels, "member": name}
        yield Sample("clientwise_member_refused", own, refused[client])
        yield Sample("clientwise_member_weight", own, weights.get(client) or 0.0)


def as_text(samples: Iterable[Sample]) -> str:
    """Samples in Prometheus' text format, grouped by metric."""
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
    r"""Labels with their values in quotes, escaped.

    >>> print(_labels({"run": 'a "b"\n'}))
    run="a \"b\"\n"
    """
    return ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")

"""A method of a run over its seeds: one line of every chart, one row of every table."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..record.reading.config_view import recorded_config
from ..record.reading.rows import ArrivedRow, MethodSummary
from ..record.run import RunFolder
from .marks import COLOURS, AuditLinks, Dash
from .statistics import mean_of
from .units import Unit

DIVERGED = 100  # times the lowest loss
TRAINS_ON_SERVER = "‡"
TRAINS_ON_SERVER_MEANS = (
    f"{TRAINS_ON_SERVER} Trains on the server's samples, which the other methods do not."
)
NOT_AVAILABLE = "†"
NOT_AVAILABLE_MEANS = (
    f"{NOT_AVAILABLE} Not available in practice: uses which clients are honest, or pools the "
    "samples of all clients. It is never marked as best."
)
RUINED_LOSS = 1e9  # of a model that has learned anything
DASHES: tuple[Dash, ...] = ("solid", "dash", "dashdot", "dot", "longdash", "longdashdot")


@dataclass(frozen=True)
class Series:
    """A method of a run."""

    label: str
    run: RunFolder
    summary: MethodSummary
    colour: str
    dash: Dash
    seed: int  # the one that is shown where only one can be

    @property
    def method(self) -> str:
        """Its name in the run."""
        return self.summary.method

    @property
    def trains_on_server(self) -> bool:
        """Whether it trains on the server's samples."""
        return trains_on_server(self.run, self.method)

    @property
    def is_available(self) -> bool:
        """Whether it can be used outside of simulations; see `NOT_AVAILABLE_MEANS`."""
        recorded = recorded_config(self.run.folder).method(self.method)
        return recorded is None or recorded.is_available

    @property
    def marked_label(self) -> str:
        """The label, with marks where it is not available or trains on the server's samples."""
        marks = NOT_AVAILABLE * (not self.is_available) + TRAINS_ON_SERVER * self.trains_on_server
        return f"{self.label} {marks}" if marks else self.label

    @property
    def unit(self) -> Unit:
        """How its metric is written."""
        return Unit(self.run.is_share)

    @property
    def mean_metric(self) -> float | None:
        """The metric in the last round, mean over the seeds."""
        return mean_of(self.summary.metric)

    @property
    def last_round(self) -> int:
        """The last round of any seed."""
        return max(self.summary.rounds)

    @property
    def ended(self) -> int:
        """The last round that the results of any seed stand for; see `MethodSummary.ended`."""
        return max(self.summary.ended)

    def rounds(self, seed: int) -> int:
        """Rounds done with a seed."""
        return self.summary.rounds[self.summary.seeds.index(seed)]

    def ended_with(self, seed: int) -> int:
        """The last round that the results of a seed stand for."""
        return self.summary.ended[self.summary.seeds.index(seed)]

    @functools.cached_property
    def arrived(self) -> ArrivedRow:
        """How many of its updates were accepted and refused, over all seeds."""
        return self.run.arrived(self.method)

    @property
    def learned(self) -> bool:
        """Whether any update was accepted: otherwise its model is the initial one."""
        return not any(self.summary.refused) or self.arrived.refused < self.arrived.arrived

    @functools.cached_property
    def metric(self) -> dict[int, dict[int, float]]:
        """The metric by seed and round; read once, since all pairs of methods are compared.

        Where training stopped early, the model stays: so does its metric, to the end of the run.
        """
        found = {}
        for seed in self.summary.seeds:
            curve = dict(self.run.curve("metric", self.method, seed))
            for round_num in range(self.rounds(seed), self.ended_with(seed)):
                if round_num in curve:
                    curve[round_num + 1] = curve[round_num]
            found[seed] = curve
        return found

    @functools.cached_property
    def diverged(self) -> dict[int, float]:
        """The seeds in which training diverged, with the loss of their last round."""
        found = {}
        for seed in self.summary.seeds:
            losses = [loss for _, loss in self.run.curve("loss", self.method, seed)]
            if losses and _has_diverged(losses):
                found[seed] = losses[-1]
        return found

    def links(
        self,
        kind: Literal["round", "client"],
        numbers: Sequence[int] | None = None,
    ) -> AuditLinks:
        """The audits of its rounds or clients."""
        return AuditLinks(kind, self.run.id, self.method, self.seed, numbers)


def trains_on_server(run: RunFolder, method: str) -> bool:
    """Whether a method of a run trains on the server's samples."""
    recorded = recorded_config(run.folder).method(method)
    return recorded is not None and recorded.trains_on_server


def _has_diverged(losses: Sequence[float]) -> bool:
    """Whether the last loss is far above the lowest and above the first, or beyond all use."""
    last = losses[-1]
    return last > RUINED_LOSS or last > max(losses[0], DIVERGED * min(losses))


def series_of(runs: Sequence[RunFolder], seed: int | None = None) -> list[Series]:
    """The methods of all runs; with several runs, their labels name the run.

    Methods that have run as many rounds as any are restricted to the seeds that all of them have
    on the same data: means over different seeds cannot be compared.

    Args:
        runs: at least one.
        seed: the one to show where only one can be; otherwise the first.
    """
    series: list[Series] = []
    for run in runs:
        for line in run.summary():
            index = len(series)
            label = f"{run.id}: {line.method}" if len(runs) > 1 else line.method
            colour = COLOURS[index % len(COLOURS)]
            dash = DASHES[index % len(DASHES)]
            series.append(Series(label, run, line, colour, dash, _chosen(seed, line.seeds)))
    farthest = _farthest(series)
    shared = _shared_by_all(farthest)
    if not shared:
        return series
    return [_restricted(one, shared) if one in farthest else one for one in series]


def _chosen(seed: int | None, seeds: Sequence[int]) -> int:
    return seed if seed is not None and seed in seeds else seeds[0]


def _restricted(one: Series, seeds: set[int]) -> Series:
    summary = one.summary.only(seeds)
    return replace(one, summary=summary, seed=_chosen(one.seed, summary.seeds))


def _farthest(series: Sequence[Series]) -> list[Series]:
    """Those that have run as many rounds as any, or stopped early."""
    most = max((one.ended for one in series), default=0)
    return [one for one in series if one.ended == most > 0]


def _shared_by_all(series: Sequence[Series]) -> set[int]:
    """The seeds that all have run equally far, on the same data."""
    if not series:
        return set()
    most = max(one.ended for one in series)
    done = []
    for one in series:
        ended = [seed for seed in one.summary.seeds if one.ended_with(seed) == most]
        done.append({(seed, one.run.data.get(seed)) for seed in ended})
    return {seed for seed, _ in set.intersection(*done)}


def is_unmeasured(series: Sequence[Series]) -> bool:
    """Whether there are rounds, and the metric was measured in none of them."""
    has_rounds = any(one.last_round for one in series)
    has_metric = any(any(one.metric.values()) for one in series)
    return has_rounds and not has_metric


def comparable(series: Sequence[Series]) -> list[Series]:
    """Those that can be ranked: at the same round, with the same seeds and data, and trained."""
    farthest = _farthest(series)
    if not _shared_by_all(farthest):
        return []
    return [one for one in farthest if one.learned and one.mean_metric is not None]


def rivals(series: Sequence[Series]) -> list[Series]:
    """Those that can be ranked and used in practice, the best first; all, if none can be used."""
    known = [one for one in ranked(series) if one in comparable(series)]
    return [one for one in known if one.is_available] or known


def ranked(series: Sequence[Series]) -> list[Series]:
    """The best first; behind them those that cannot be ranked, in their order."""

    def key(one: Series) -> float:
        value = one.mean_metric or 0.0
        return -value if one.run.higher_is_better else value

    best_first = sorted(comparable(series), key=key)
    return best_first + [one for one in series if one not in best_first]

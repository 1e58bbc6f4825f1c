"""The methods of one or several runs, with what the record has of each, as frames.

Everything that a report says is computed from `Results`: its methods in the order they ran, the differences between
them, and for each method its rounds, its clients and what was measured of both.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pandas import DataFrame as Frame
from pandas import Series

from ..errors import RunError, shortened
from ..record.facts import BY_HOST, MethodFacts
from ..record.files import is_locked
from ..record.run import RunFolder
from ..record.tables import VALUES
from .items import Unit
from .statistics import Difference, holm, paired_difference

DIVERGED = 100  # times the lowest loss
RUINED_LOSS = 1e9  # of a model that has learned anything
MOST_SHOWN = 12  # methods with charts and audits of their own
NOT_AVAILABLE = "†"
NOT_AVAILABLE_MEANS = (
    f"{NOT_AVAILABLE} Not available in practice: uses which clients are honest, or pools the "
    "samples of all clients. It is never marked as best."
)
TRAINS_ON_SERVER = "‡"
TRAINS_ON_SERVER_MEANS = (
    f"{TRAINS_ON_SERVER} Trains on the server's samples, which the other methods do not."
)


def marked(label: str, is_unavailable: bool, is_on_server: bool) -> str:
    """The name of a method, with marks where it is not available or trains on the server's samples."""
    marks = NOT_AVAILABLE * is_unavailable + TRAINS_ON_SERVER * is_on_server
    return f"{label}\u00a0{marks}" if marks else label


def marks_in_words(is_unavailable: bool, is_on_server: bool) -> list[str]:
    """What the marks of methods mean, where there are any."""
    return [NOT_AVAILABLE_MEANS] * is_unavailable + [TRAINS_ON_SERVER_MEANS] * is_on_server


@dataclass(frozen=True)
class Method:
    """A method of a run, over the seeds that it is compared on."""

    label: str  # its name; of several runs, with the run's
    run: RunFolder
    name: str
    seeds: tuple[int, ...]

    @cached_property
    def about(self) -> MethodFacts:
        """What it is, as the run has recorded it."""
        return self.run.about(self.name)

    @property
    def is_by_config(self) -> bool:
        """Whether its clients train as a config says; those of an aggregator have settings of their own."""
        return self.run.facts.computed != BY_HOST

    @property
    def marked(self) -> str:
        """The label, with marks where it is not available or trains on the server's samples."""
        return marked(self.label, not self.about.is_available, self.about.trains_on_server)

    def frame(self, name: str) -> Frame:
        """Its rows of a frame of the run, of the seeds that it is compared on."""
        found = self.run.frame(name)
        return found[(found["method"] == self.name) & found["seed"].isin(self.seeds)]

    @cached_property
    def rounds(self) -> Frame:
        """Its rounds; a column that the run has not is empty."""
        found = self.frame("rounds")
        return found.reindex(columns=[*found, *(name for name in VALUES if name not in found)])

    @property
    def first_rounds(self) -> Frame:
        """The rounds of its first seed: what cannot be shown for all seeds at once."""
        return self.rounds[self.rounds["seed"] == self.seeds[0]]

    @cached_property
    def lanes(self) -> Frame:
        """By seed: the rounds that it has run, whether it stopped early, and the round its results stand for.

        A lane stops early where its privacy budget is spent.
        """
        found, planned = self.run.lanes, self.run.facts.rounds
        own = found[(found["method"] == self.name) & found["seed"].isin(self.seeds)]
        own = own.set_index("seed")
        is_stopped = own["finished"].astype(bool) & (own["rounds"] < planned)
        # The model stays where training stopped early
        return own.assign(stopped=is_stopped, ended=own["rounds"].mask(is_stopped, planned))

    @property
    def done(self) -> Series:
        """By seed, the rounds that it has run."""
        return self.lanes["rounds"]

    @property
    def stopped(self) -> Series:
        """The seeds with which training stopped early, and after which round."""
        return self.done[self.lanes["stopped"]]

    @property
    def last_round(self) -> int:
        """The last round of any seed."""
        return int(self.done.max())

    @cached_property
    def last_ended(self) -> int:
        """The last round that the results of any seed stand for."""
        return int(self.lanes["ended"].max())

    @cached_property
    def farthest(self) -> list[int]:
        """The seeds that are as far as any: round 3 of one and round 30 of another do not compare."""
        return list(self.lanes.index[self.lanes["ended"] == self.last_ended])

    def of_first_seed(self, name: str) -> Frame:
        """Its rows of a frame of the run, of its first seed: what cannot be shown for all seeds at once."""
        found = self.frame(name)
        return found[found["seed"] == self.seeds[0]]

    def curve(self, column: str) -> Frame:
        """A column of its rounds [rounds, seeds]; a model that stays keeps its value."""
        known = self.rounds[self.rounds[column].notna()]  # five times as fast as `dropna`
        found = known.pivot(index="round", columns="seed", values=column)
        if len(self.stopped) and len(found):
            found = found.reindex(range(found.index.min(), self.last_ended + 1))
            stays = found.columns.intersection(self.stopped.index)
            found[stays] = found[stays].ffill()
            found = found.dropna(how="all")
        return found

    @cached_property
    def metric(self) -> Frame:
        """The metric [rounds, seeds]."""
        return self.curve("metric")

    def last(self, column: str) -> Series:
        """The last known value of a column of the rounds, by seed; of the seeds that are as far as any."""
        return self.rounds.groupby("seed")[column].last().reindex(self.farthest).dropna()

    @cached_property
    def mean_metric(self) -> float | None:
        """The metric in the last round, mean over the seeds."""
        found = self.last("metric")
        return float(found.mean()) if len(found) else None

    @property
    def notes(self) -> list[str]:
        """The notes of its rounds."""
        return [note for notes in self.rounds["notes"].dropna() for note in notes]

    def mean(self, column: str) -> float:
        """A column of the rounds: its mean over the rounds, and then over the seeds."""
        return float(self.rounds.groupby("seed")[column].mean().mean())

    @cached_property
    def clients(self) -> Frame:
        """Seed, client, name and metric of honest clients on their own test data, in the last round that has it."""
        local = self.frame("local")
        local = local[local["hostile"].isna() & local["metric"].notna()]
        last = local.groupby("seed")["round"].transform("max")
        return local[local["round"] == last].sort_values(["seed", "client"])

    def by_client(self) -> Frame:
        """The metric of the clients [names, seeds]; empty where none can be followed over the seeds.

        Without names, a client's number means the same client only where seeds have the same data.
        """
        several = len(self.seeds) > 1
        has_names = bool(self.clients["name"].notna().all())
        data = {self.run.facts.data.get(seed) for seed in self.seeds}
        if several and not (has_names or len(data) == 1):
            return Frame()
        named = self.clients.assign(client=client_names(self.clients))
        return named.pivot_table(index="client", columns="seed", values="metric", sort=False)

    @cached_property
    def missing(self) -> Frame:
        """Updates that were refused or never arrived, of all its seeds."""
        found = self.run.frame("refusals")
        return found[found["method"] == self.name]

    @property
    def refusals(self) -> Frame:
        """Updates that were refused."""
        return self.missing[self.missing["kind"] != "absent"]

    @cached_property
    def arrived(self) -> int:
        """How many updates arrived, over all its seeds."""
        rounds = self.run.frame("rounds").reindex(columns=["method", "participants"])
        invited = rounds.loc[rounds["method"] == self.name, "participants"].sum()
        return int(invited) - (len(self.missing) - len(self.refusals))

    @property
    def learned(self) -> bool:
        """Whether any update was accepted: otherwise its model is the initial one."""
        return self.missing.empty or len(self.refusals) < self.arrived

    @cached_property
    def diverged(self) -> Series:
        """The seeds in which the last loss is far above the lowest and the first, or beyond all use; with that loss."""
        losses = self.rounds.dropna(subset=["loss"]).groupby("seed")["loss"]
        first, lowest, last = losses.first(), losses.min(), losses.last()
        return last[last > (DIVERGED * lowest).clip(lower=first).clip(upper=RUINED_LOSS)]


class Results:
    """The methods of one or several runs, compared."""

    def __init__(self, runs: Sequence[RunFolder]) -> None:
        if not runs:
            raise RunError("no run to report on")
        metrics = sorted({run.facts.metric for run in runs})
        if len(metrics) > 1:
            names = " and ".join(metrics)
            raise RunError(f"these runs measure different metrics ({names}): report on each alone")
        self.runs = list(runs)
        self.facts: Any = runs[0].facts
        self.unit = Unit(self.facts.is_share)
        self.methods = _methods(runs)

    @property
    def baseline(self) -> Method:
        """The first method, which all others are compared with."""
        return self.methods[0]

    @property
    def labels(self) -> tuple[str, ...]:
        """What the methods are called."""
        return tuple(one.label for one in self.methods)

    @property
    def seeds(self) -> list[int]:
        """The seeds of any method."""
        return sorted({seed for one in self.methods for seed in one.seeds})

    @property
    def has_several_seeds(self) -> bool:
        """Whether there is anything to take a mean over."""
        return any(len(one.seeds) > 1 for one in self.methods)

    @cached_property
    def has_hostile(self) -> bool:
        """Whether some clients are hostile in a simulation."""
        return any(has_hostile(run) for run in self.runs)

    @cached_property
    def has_clock(self) -> bool:
        """Whether clients take time."""
        return any(one.rounds["ended"].notna().any() for one in self.methods)

    @cached_property
    def is_unmeasured(self) -> bool:
        """Whether there are rounds, and the metric was measured in none of them."""
        return any(one.last_round for one in self.methods) and not any(
            len(one.metric) for one in self.methods
        )

    @cached_property
    def comparable(self) -> list[Method]:
        """Those that can be ranked: at the same round, with the same seeds and data, and trained."""
        farthest = _farthest(self.methods)
        if not _shared(farthest):
            return []
        return [one for one in farthest if one.learned and one.mean_metric is not None]

    @cached_property
    def ranked(self) -> list[Method]:
        """The best first; behind them those that cannot be ranked, in their order."""
        sign = -1 if self.facts.higher_is_better else 1
        best_first = sorted(self.comparable, key=lambda one: sign * (one.mean_metric or 0.0))
        return best_first + [one for one in self.methods if one not in self.comparable]

    @cached_property
    def rivals(self) -> list[Method]:
        """Those that can be ranked and used in practice, the best first; all, if none can be used."""
        known = [one for one in self.ranked if one in self.comparable]
        return [one for one in known if one.about.is_available] or known

    @cached_property
    def shown(self) -> list[Method]:
        """Those that have charts and audits of their own, in their order: of many methods, the best."""
        best = self.ranked[:MOST_SHOWN]
        return [one for one in self.methods if one in best]

    @property
    def best(self) -> Method:
        """The best of the rivals; without any, the baseline."""
        return (self.rivals or self.methods)[0]

    @cached_property
    def differences(self) -> dict[tuple[str, str], Difference]:
        """One minus the other for all pairs, by label, with Holm's correction for all of them."""
        pairs = {}
        for one, other in itertools.combinations(self.methods, 2):
            found = difference_between(one, other)
            if found is not None:
                pairs[one.label, other.label] = found
        both_ways = {}
        for (one_label, other_label), found in zip(pairs, holm([*pairs.values()]), strict=True):
            both_ways[one_label, other_label] = found
            both_ways[other_label, one_label] = replace(found, mean=0.0 - found.mean)  # not −0
        return both_ways


def _methods(runs: Sequence[RunFolder]) -> list[Method]:
    """The methods of all runs.

    Those that have run as many rounds as any are restricted to the seeds that all of them have on the same data: means
    over different seeds cannot be compared.
    """
    methods = []
    for run in runs:
        for name in run.methods:
            label = f"{run.id}: {name}" if len(runs) > 1 else name
            methods.append(Method(label, run, name, tuple(run.seeds(name))))
    farthest = _farthest(methods)
    shared = _shared(farthest)
    if not shared:
        return methods
    return [
        replace(one, seeds=tuple(seed for seed in one.seeds if seed in shared))
        if one in farthest and not shared.issuperset(one.seeds)
        else one
        for one in methods
    ]


def _farthest(methods: Sequence[Method]) -> list[Method]:
    """Those that have run as many rounds as any, or stopped early."""
    most = max((one.last_ended for one in methods), default=0)
    return [one for one in methods if one.last_ended == most > 0]


def _shared(methods: Sequence[Method]) -> set[int]:
    """The seeds that all have run equally far, on the same data."""
    done = [{(seed, one.run.facts.data.get(seed)) for seed in one.farthest} for one in methods]
    return {seed for seed, _ in set.intersection(*done)} if done else set()


def has_hostile(run: RunFolder) -> bool:
    """Whether some clients of a run are hostile in a simulation."""
    return bool(run.frame("clients")["hostile"].notna().any())


def stated(run: RunFolder, table: str) -> Mapping[str, Any]:
    """A table of a run's config, which may be anybody's; empty where it is no table."""
    found = run.config.get(table)
    return found if isinstance(found, Mapping) else {}


def encoding(run: RunFolder) -> Any:
    """The columns and the classes of the data, where they are a table."""
    try:
        return run.model_facts(int(run.lanes["seed"].min())).table
    except RunError:
        return None


def class_names(run: RunFolder, count: int) -> list[str]:
    """So many classes: by their names in the table, or their numbers."""
    found = encoding(run)
    if found is not None and len(found.classes) == count:
        return [shortened(name, 40) for name in found.classes]
    return [f"class {number}" for number in range(count)]


def client_names(frame: Frame) -> Series:
    """What each client of a frame is called: its name, or its number."""
    numbers = "client " + frame["client"].astype(str)
    return frame["name"].astype(object).where(frame["name"].notna(), numbers)


def at_rounds(curves: Frame, rounds: Series) -> Series:
    """By seed, what curves [rounds, seeds] have in these rounds; NaN where that is not known."""
    known = {
        seed: curves[seed].get(number) if seed in curves else None
        for seed, number in rounds.items()
    }
    return Series(known, dtype=float)


def shared_seeds(one: Method, other: Method) -> list[int]:
    """The seeds that both have, on the same data."""
    data, others = one.run.facts.data, other.run.facts.data
    return sorted(
        seed for seed in {*one.seeds} & {*other.seeds} if data.get(seed) == others.get(seed)
    )


def difference_between(one: Method, other: Method) -> Difference | None:
    """One minus the other in the last round both have; None where they share no seed."""
    seeds = shared_seeds(one, other)
    both = (one.metric - other.metric).reindex(columns=seeds).dropna(how="all")
    if both.empty:
        return None
    last = int(both.index[-1])
    found = paired_difference(both.iloc[-1], [0.0] * len(seeds))
    is_last = max(one.metric.index[-1], other.metric.index[-1]) <= last
    return found if found is None or is_last else replace(found, round_num=last)


def run_state(run: RunFolder) -> str:
    """Whether a run is finished, running now, or stopped before its end."""
    if run.finished:
        return "finished"
    return "running" if is_locked(run.folder) else "stopped"

"""What a chart shows, as data: lines, bars, box plots, heat maps and timelines.

`output/plotly.py` draws them on the page, `output/figures.py` with matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# Okabe and Ito's colours, which colour-blind readers can distinguish; in print, line styles help.
COLOURS = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#CC79A7",
    "#D55E00",
    "#0072B2",
    "#999999",
    "#B8A900",
)
GREY = "#999999"
# What moves a weight has the same colour in every chart of a run; criteria have the first ones.
CRITERION_COLOURS = ("#E69F00", "#56B4E9", "#B8A900")
MOVER_COLOURS = {
    "criteria": "#CC79A7",  # several
    "evidence": "#0072B2",
    "bounds": "#000000",
    "clipping": "#D55E00",
    "rule": "#009E73",
}
FAINT = "#A6A6A6"  # of lines without a name; it is no method's colour
# Cividis from the lowest to the highest value, for heat maps on the page and on paper.
HEAT_COLOURS = (
    "#00224E",
    "#083370",
    "#35456C",
    "#4F576C",
    "#666970",
    "#7D7C78",
    "#948E77",
    "#AEA371",
    "#C8B866",
    "#E5CF52",
    "#FEE838",
)
MAX_POINTS = 500  # of a curve: a screen has no more pixels
MAX_CELLS = 150  # of a heat map, in either direction

Dash = Literal["solid", "dash", "dashdot", "dot", "longdash", "longdashdot"]


@dataclass(frozen=True)
class AuditLinks:
    """A click on a point opens the audit of a round or client.

    Stated once for all points: one link a point would fill megabytes.
    """

    kind: Literal["round", "client"]
    run: str  # its id
    method: str
    seed: int
    numbers: Sequence[int] | None = None  # rounds or clients, where they are not the points' x


@dataclass(frozen=True)
class Axis:
    """An axis of numbers."""

    label: str = ""
    percent: bool = False
    log: bool = False
    low: float | None = None  # the axis does not begin below it
    high: float | None = None  # the axis does not end above it
    unit: str = ""  # of a single value


def value_axis(values: Sequence[float], *, percent: bool, label: str = "") -> Axis:
    """An axis that stays within [0, 1] where all values do: there is no accuracy of -20%.

    >>> value_axis([0.25, 1.0], percent=True)
    Axis(label='', percent=True, log=False, low=-0.01, high=1.01, unit='')
    """
    known = [value for value in values if math.isfinite(value)]
    # A line at 0% and a marker at 100% are drawn whole.
    low = -0.01 * max(known, default=1) if min(known, default=0) >= 0 else None
    high = 1.01 if max(known, default=1) <= 1 else None
    return Axis(label, percent=percent, low=low, high=high)


@dataclass(frozen=True)
class Band:
    """The range of a line over the seeds."""

    low: Sequence[float]
    high: Sequence[float]
    seeds: int
    visible: bool  # from the start; otherwise on demand


@dataclass(frozen=True)
class Line:
    """A line; `y` has one value per `x`."""

    name: str
    x: Sequence[float | None]
    y: Sequence[float]
    colour: str
    dash: Dash = "solid"
    markers: bool = False
    band: Band | None = None
    links: AuditLinks | None = None


@dataclass(frozen=True)
class Lines:
    """Lines in one pair of axes."""

    lines: Sequence[Line]
    x: Axis
    y: Axis
    reference: float | None = None  # a thin horizontal line: the target
    height: int | None = None  # in pixels, where the page's usual one is too much


@dataclass(frozen=True)
class BarGroup:
    """A bar per category, from `starts` to `ends`; from zero without `starts`."""

    name: str
    ends: Sequence[float]
    colour: str
    starts: Sequence[float] | None = None


@dataclass(frozen=True)
class Bars:
    """Horizontal bars, the groups of a category one above the other."""

    categories: Sequence[str]
    groups: Sequence[BarGroup]
    axis: Axis
    reference: float  # a thin vertical line: the equal weight
    links: AuditLinks


@dataclass(frozen=True)
class Box:
    """The values that one box plot summarises."""

    name: str
    values: Sequence[float]
    colour: str


@dataclass(frozen=True)
class Boxes:
    """Horizontal box plots."""

    boxes: Sequence[Box]
    axis: Axis


@dataclass(frozen=True)
class HeatMap:
    """A grid of values from `lowest` to `highest`; with `texts`, each cell shows its own."""

    columns: Sequence[int] | Sequence[str]
    rows: Sequence[str]
    values: Sequence[Sequence[float | None]]
    highest: float
    lowest: float = 0.0
    percent: bool = False
    column_label: str = ""
    row_label: str = ""
    value_label: str = ""  # beside the colour bar of a picture; on the page, the title says it
    texts: Sequence[Sequence[str]] | None = None
    lower_is_better: bool = False
    links: AuditLinks | None = None

    @property
    def colours(self) -> Sequence[str]:
        """From `lowest` to `highest`; the brightest is the best value."""
        return HEAT_COLOURS[::-1] if self.lower_is_better else HEAT_COLOURS


@dataclass(frozen=True)
class Timeline:
    """A state per round, and a count beneath it."""

    rounds: Sequence[int]
    states: Sequence[str]
    colour: str
    counts: Sequence[int]
    counted: str  # what `counts` are
    links: AuditLinks


Mark = Lines | Bars | Boxes | HeatMap | Timeline

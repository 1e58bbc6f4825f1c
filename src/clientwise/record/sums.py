"""Sums over the participants of a round, so that a page of a large run need not read their rows.

They are written where a seed has more than CELLS clients, or clients without rows. `cells` has the weights
of clients with neighbouring numbers, `clients_per_cell` of them together: the sums as float64, then how many
weights each has, as uint32. Readers add up the rows themselves in rounds without sums.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ..core.types import RoundRecord

CELLS = 150  # the most that a heat map has for the clients of a round
BYTES = 12  # of a cell


def clients_per_cell(num_clients: int, cells: int = CELLS) -> int:
    """How many clients share a cell.

    >>> clients_per_cell(10_000)
    67
    """
    return math.ceil(num_clients / cells)


def sums_of_round(
    record: RoundRecord,
    hostile: Mapping[int, object],
    kept: Collection[int] | None,
    num_clients: int,
) -> tuple[int, float, int, bytes]:
    """The row of `sums`.

    Args:
        record: the round.
        hostile: the hostile clients.
        kept: the clients that have rows of their own, which `cells` is about; None: all of them.
        num_clients: of the seed.
    """
    clients = numpy.array(record.client_ids, dtype=numpy.int64)
    weights = record.weights.double().numpy()
    is_known = ~numpy.isnan(weights)  # secure aggregation hides them
    attacks = is_known & numpy.isin(clients, list(hostile))
    shown = is_known.copy() if kept is None else is_known & numpy.isin(clients, list(kept))
    size = clients_per_cell(num_clients)
    shown &= (clients >= 0) & (clients < num_clients)
    places = clients[shown] // size
    height = math.ceil(num_clients / size)
    totals = numpy.bincount(places, weights[shown], height)
    counts = numpy.bincount(places, minlength=height)
    cells = totals.astype("<f8").tobytes() + counts.astype("<u4").tobytes()
    total = len(clients) + len(record.refusals)
    reached = weights if record.influence is None else record.influence.double().numpy()
    return total, float(reached[attacks].sum()), size, cells


def read_cells(cells: bytes) -> tuple[NDArray[Any], NDArray[Any]]:
    """The sums of weights and the numbers of weights of every cell; ValueError for what is none."""
    height, rest = divmod(len(cells), BYTES)
    if rest or height > CELLS:
        raise ValueError(f"{len(cells)} bytes of cells")
    totals = numpy.frombuffer(cells, "<f8", height)
    counts = numpy.frombuffer(cells, "<u4", height, offset=8 * height)
    if not numpy.isfinite(totals).all():
        raise ValueError("a sum of weights that is not finite")
    return totals, counts
